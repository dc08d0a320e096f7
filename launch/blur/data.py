"""The data of launch.blur: images, tables of scikit-learn, and exclusive or, by name."""

import hashlib
from typing import Any

import numpy as np

from icl.blur.data import Examples, Sets, corners, image_sets, table_sets, xor
from jexplicit.data.images import read_images
from jexplicit.runs.progress import console, stage
from launch.blur.config import LearnersConfig, MetaTrainingConfig


def read_sets(
    config: LearnersConfig, name: str | None = None, side: int | None = None, classes: tuple[int, ...] | None = None
) -> Sets:
    """The images of the config, or other data by name: wine, breast_cancer, xor, images, images@side.

    Args:
        config: of the run.
        name: of other data, which have all their classes.
        side: of the images; default, as they are.
        classes: other classes of the images of the config.

    Raises:
        ValueError: no such data or classes.
    """
    if (name or config.data) == "xor":  # its four points are train, dev and test
        points = Examples(*(array.astype(np.float32) for array in xor()))
        return Sets(points, points, points, "xor")
    if name in ("wine", "breast_cancer"):
        from sklearn import datasets

        X, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        return table_sets(X, labels.astype(np.int64), name, seed=config.seed)
    if name is not None and "@" in name:
        name, _, size = name.partition("@")
        if not size.isdigit():
            raise ValueError(f"--others {name}@{size}: write NAME@SIDE, e.g. mnist@10")
        side = int(size)
    images = read_images(name or config.data, config.data_dir if name in (None, config.data) else None)
    if classes is None:
        classes = config.classes if name is None else ()
    return image_sets(images, side=side, limit=config.limit, classes=classes, seed=config.seed)


def meta_examples(config: MetaTrainingConfig, sets: Sets) -> tuple[Examples, Examples]:
    """Train and dev for meta-training: those of the sets, but the four corners with noise where the sets are exclusive or."""
    if config.data != "xor":
        return sets.train, first_examples(sets.dev)
    rng = np.random.default_rng(config.seed)
    return corners(400, rng), corners(400, rng)


def load_sets(config: LearnersConfig) -> Sets:
    """The images of the config, with a line on the terminal."""
    with stage("reading"):
        sets = read_sets(config, side=config.side)
    parts = ", ".join(f"{len(part.X):,} {name}" for part, name in zip(sets[:3], ("train", "dev", "test"), strict=True))
    console.print(f"[bold]{sets.name}[/]: {sets.inputs} inputs, {parts}")
    return sets


def describe_data(sets: Sets) -> dict[str, Any]:
    """Name, shape and sha256 of the data."""
    digest = hashlib.sha256()
    for part in sets[:3]:
        digest.update(np.ascontiguousarray(part.X).tobytes() + np.ascontiguousarray(part.Y).tobytes())
    return {"name": sets.name, "inputs": sets.inputs, "outputs": sets.outputs, "sha256": digest.hexdigest()}


def first_examples(part: Examples) -> Examples:
    """At most 2000 examples of a part, enough for an accuracy; parts are in random order, or in that of their files."""
    return Examples(part.X[:2000], part.Y[:2000])

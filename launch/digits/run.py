"""The experiment of launch.digits, and its models as functions of images for launch.classify."""

import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import check_grey_levels, pixel_features, read_grey_images, size
from jexplicit.features import Axes, describe
from jexplicit.runs.devices import is_checkpoint, load_checkpoint
from jexplicit.runs.files import config_of, local_path, read_config, read_run
from jexplicit.runs.progress import console, show
from launch.digits import solved
from launch.digits.config import PRESETS, Config
from launch.digits.solved import model_name, row_name
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Results, Row, section, where

_networks = ("network", "cnn", "cold", "warm")
_images_per_call = 1000


def _measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """Every method that the flags name."""
    problem, methods = solved.read_problem(config, folder), dict(solved.METHODS)
    if not methods.keys() >= set(config.methods):
        from launch.digits import trained  # flax and optax, which solved models need not wait for

        methods |= trained.METHODS
    for method in config.methods:
        for key in solved.keys_of(config, method):
            yield key, functools.partial(methods[method], problem, key)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)


def _optimum(results: Results) -> list[str]:
    """The table of one loss and four optimisers."""
    from launch.digits.trained import OPTIMUM

    return OPTIMUM(results)


_views = [*solved.VIEWS, section("One loss, four optimisers", _optimum, method="optimum")]
EXPERIMENT = Experiment(
    "digits", Config, _measure, _views, PRESETS, solved.check_images, ("methods", "layers"), "Digits: solved and trained"
)


class Classifier(NamedTuple):
    """A model of a run: its row, labels and logits [M, N] of images."""

    row: Row
    classes: tuple[str, ...]
    logits: Callable[[np.ndarray], Array]


def _load(path: Path) -> Any:
    """The arrays in a checkpoint."""
    return jax.tree.map(jnp.asarray, load_checkpoint(path)["params"])


def load_classifier(run: str, **wanted: Any) -> Classifier:
    """The most accurate of the wanted models of a run."""
    stored, rows = read_run(run, "digits")
    if set(stored) != {field.name for field in dataclasses.fields(Config)}:
        raise ValueError(f"{run} is a run of another version: fit its models again, by jexplicit digits with another --out")
    config_of(Config, stored, f"restore it in {run}, or give another run")
    folder = local_path(run, "--run") / "checkpoints"
    saved = [row for row in rows if is_checkpoint(folder / model_name(row))]
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not (fitting := where(saved, **wanted)):
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items()) or "--run"
        there = "; ".join(map(row_name, saved)) or "none that was saved"
        raise ValueError(f"{asked}: {run} has no such model; it has {there}")
    row = solved.most_accurate(fitting)
    params, weights = _load(folder / model_name(row)), _load(folder / row["features"]) if row["features"] != "pixels" else {}
    if row["method"] in _networks:
        from launch.digits.trained import network_logits, network_of

        logits: Callable[[Any], Array] = functools.partial(network_logits(network_of(row)), params)
    else:
        logits = solved.logits_of(params, weights)

    def of_images(X: np.ndarray) -> Array:
        if weights:
            return logits(describe(solved.pools(X.shape), Axes(weights["mean"], weights["axes"]), X, row["levels"]))
        return logits(jnp.asarray(pixel_features(X, row["levels"])))

    return Classifier(row, tuple(row.get("classes") or map(str, range(row["outputs"]))), of_images)


def classify(config: Any) -> dict[str, Any]:
    """launch.classify: load the model, read the images, print a line for each."""
    if not config.images:
        raise ValueError("--images needs at least one file or folder")
    wanted = {name: getattr(config, name) for name in ("method", "layers", "features", "solver")}
    model = load_classifier(config.run, **wanted)
    row, name = model.row, row_name(model.row)
    console.print(f"model {name} of {config.run}, test accuracy {100 * row['test_accuracy']:.2f} %", soft_wrap=True)
    shape, resize = (row["height"], row["width"]), (read_config(config.run) or {}).get("resize")
    given = list(read_grey_images(config.images, row["levels"], resize))
    for image, pixels in given:
        if pixels.shape != shape:
            remedy = f"resize it, with Pillow: image.resize({shape[::-1]})"
            raise ValueError(f"{image} is {size(pixels.shape)}, but the models of {config.run} read {size(shape)}: {remedy}")
    names, X = [image for image, _ in given], np.stack([pixels for _, pixels in given])
    check_grey_levels(X, row["levels"], f"images such as {names[int(X.max(axis=(1, 2)).argmax())]}")
    blocks = (X[m : m + _images_per_call] for m in range(0, len(X), _images_per_call))
    P = np.concatenate([np.asarray(jax.nn.softmax(model.logits(block))) for block in blocks])
    found = []
    for image, p in zip(names, P, strict=True):
        top = [{"label": model.classes[i], "probability": float(p[i])} for i in np.argsort(-p, kind="stable")[: config.top]]
        found.append({"image": image, **top[0], "top": top})
        show(f"{image}: " + ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in top))
    return {"model": name, "test_accuracy": row["test_accuracy"], "images": found}

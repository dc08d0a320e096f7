"""A suite of small tasks for evaluating learned rules: 18 data sets, each with networks of one, two and three hidden layers.

Tasks are not selected by results: data set i with depth d has hidden layers of width `WIDTHS[(i + 2 (d - 1)) mod 6]`, so that
every width from 16 to 512 occurs three times with every depth. Images that may occur in meta-training are excluded: digits are
the test images of `image_sets`, which are not used in any search, and MNIST its test images.

Half of the examples are for training, a quarter each for dev (for tuning baselines) and test. MNIST has 3500, 500 and 1000.
Inputs are standardised by the training examples: tables by column, images as a whole after centring each pixel.
"""

import os
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from icl.blur.data import Examples, Sets, image_sets
from icl.blur.genome_files import LearnedRule
from icl.blur.judging.points import PLANES, mixture, plane
from icl.names import TASK_GROUPS
from jexplicit.data.images import Images, one_hot, read_images

WIDTHS = (16, 32, 64, 128, 256, 512)
DEPTHS = (1, 2, 3)
MIXTURES: dict[str, dict[str, Any]] = {
    "mixture@5": {"inputs": 5, "classes": 3, "clusters": 2, "distance": 5.0},
    "mixture@20": {"inputs": 20, "classes": 5, "clusters": 1, "distance": 3.0},
    "mixture@50": {"inputs": 50, "classes": 10, "clusters": 2, "distance": 7.0},
}
"""Gaussian mixtures by name: inputs, classes, clusters per class, distance of two clusters (see `mixture`)."""
DATA: dict[str, tuple[str, ...]] = {
    "digits": ("digits@4", "digits@8", "digits@16"),
    "mnist": ("mnist@7", "mnist@10", "mnist@14", "mnist@28"),
    "tables": ("wine", "breast_cancer", "iris"),
    "planes": PLANES,
    "mixtures": tuple(MIXTURES),
}
"""Names of the data by group; NAME@SIDE are images of this side."""

DESIGNED_ON = ("wine", "breast_cancer", "xor")
"""Data whose results were inspected while the ridge rule was designed."""

_drawn = 2000  # points of a figure or mixture
_mnist = 4000, 1000  # images to learn from (train and dev), and for testing


class Task(NamedTuple):
    """Data, and a network of `depth` hidden layers of the same width."""

    data: str
    width: int
    depth: int

    @property
    def name(self) -> str:
        """`wine/128-128`: the data and the widths of the hidden layers."""
        return f"{self.data}/{'-'.join(map(str, self.hidden))}"

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return (self.width,) * self.depth


SUITE = tuple(
    Task(data, WIDTHS[(i + 2 * (depth - 1)) % len(WIDTHS)], depth)
    for i, data in enumerate(name for group in TASK_GROUPS for name in DATA[group])
    for depth in DEPTHS
)
"""All tasks."""


def select_tasks(names: Sequence[str] = TASK_GROUPS) -> tuple[Task, ...]:
    """Tasks of the suite, in order, by names of tasks (`wine/128-128`), data (`wine`: all networks) or groups (`tables`)."""
    groups = {data: group for group, members in DATA.items() for data in members}
    known = {name for task in SUITE for name in (task.name, task.data, groups[task.data])}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"tasks {', '.join(unknown) or 'none'}: choose groups ({', '.join(DATA)}), data ({', '.join(groups)}) or tasks "
            f"({', '.join(task.name for task in SUITE)})"
        )
    if not names:
        raise ValueError(f"no tasks: name at least one of {', '.join(DATA)}, or of their data and tasks")
    return tuple(task for task in SUITE if {task.name, task.data, groups[task.data]} & set(names))


def known_from(rule: LearnedRule, task: Task) -> str | None:
    """Whether a rule knows the data of a task from its meta-training (of the same kind, even if of other images), or from the
    design of the ridge update; None for tasks that are new to it."""
    kind = task.data.partition("@")[0]
    if kind == rule.provenance.get("data", {}).get("name"):
        return "meta-training"
    return "design" if rule.rules.update == "ridge" and kind in DESIGNED_ON else None


def task_sets(data: str, *, seed: int = 0, data_dir: str | os.PathLike | None = None) -> Sets:
    """The three splits of one of DATA, from a seed; the digits' test images of search seed 0 are used for any seed."""
    name, _, side = data.partition("@")
    rng = np.random.default_rng((seed, zlib.crc32(data.encode())))  # independent numbers for each data set
    if data not in {name for members in DATA.values() for name in members}:
        raise ValueError(f"data {data!r}: choose one of {', '.join(name for members in DATA.values() for name in members)}")
    if name == "mnist":
        return image_sets(_unseen_mnist(data_dir, seed), side=int(side))._replace(name=data)
    if name == "digits":
        test = image_sets(read_images("digits"), side=int(side)).test
        return _parts(test.X, test.Y.argmax(axis=1), data, seed, whole=True)
    if data in MIXTURES:
        return _parts(*mixture(_drawn, rng, **MIXTURES[data]), data, seed)
    if data in PLANES:
        return _parts(*plane(data, _drawn, rng), data, seed)
    from sklearn import datasets

    X, labels = getattr(datasets, f"load_{data}")(return_X_y=True)
    return _parts(X, labels.astype(np.int64), data, seed)


def _parts(X: np.ndarray, labels: np.ndarray, name: str, seed: int, *, whole: bool = False) -> Sets:
    """Halves and quarters in random order, standardised by the first: each column, or all centred columns as a whole."""
    order, ends = np.random.default_rng(seed).permutation(len(X)), [len(X) // 2, len(X) // 2 + len(X) // 4]
    X, train = X[order], X[order[: ends[0]]]
    centre = train.mean(axis=0, keepdims=True)
    scale = (train - centre).std(keepdims=True) if whole else train.std(axis=0, keepdims=True)
    Z, Y = ((X - centre) / scale).astype(np.float32), one_hot(labels[order], int(labels.max()) + 1)
    return Sets(*map(Examples, np.split(Z, ends), np.split(Y, ends)), name=name)


def _unseen_mnist(data_dir: str | os.PathLike | None, seed: int) -> Images:
    """Images of MNIST's test set only, split again."""
    try:
        images = read_images("mnist", data_dir)
    except ValueError as error:
        rest = " ".join(group for group in TASK_GROUPS if group != "mnist")
        raise ValueError(f"tasks on MNIST: {error}. Or leave them out, and name the other tasks: {rest}") from error
    order, (few, tests) = np.random.default_rng(seed).permutation(len(images.test_labels)), _mnist
    learned, tested = order[:few], order[few : few + tests]
    X, Y = images.test_images, images.test_labels
    return images._replace(train_images=X[learned], train_labels=Y[learned], test_images=X[tested], test_labels=Y[tested])

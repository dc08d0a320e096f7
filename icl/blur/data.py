"""Labelled data for learners and meta-learners: centred vectors in three splits.

A genome is meta-trained on *train*, selected on *dev* and reported on *test*. Reported learners take minibatches from *train*;
the learning rate of a baseline is selected on *dev*, as the genome. The embedded digits are shuffled first, as their last
images come from other writers: the experiments measure speed of learning, not generalisation to new writers.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jexplicit.data.images import Images, one_hot, pixel_features


class Examples(NamedTuple):
    """Inputs [M, D] and one-hot targets [M, N]."""

    X: Float[Any, "M D"]
    Y: Float[Any, "M N"]


class Sets(NamedTuple):
    """The three splits of a data set, and its name."""

    train: Examples
    dev: Examples
    test: Examples
    name: str

    @property
    def inputs(self) -> int:
        """D."""
        return self.train.X.shape[1]

    @property
    def outputs(self) -> int:
        """N."""
        return self.train.Y.shape[1]


def image_sets(
    images: Images, *, side: int | None = None, limit: int | None = None, classes: tuple[int, ...] = (), seed: int = 0
) -> Sets:
    """Centred pixels, `(h - mean h)/std`, and one-hot labels, in three splits.

    Args:
        images: from `jexplicit.data.images.read_images`.
        side: resize the images to side x side (`resize_images`); default, unchanged.
        limit: use at most this many images, train and test together.
        classes: use the images of these classes only, relabelled 0, 1, ..; default, all. The test split does not depend on
            the classes.

    Raises:
        ValueError: fewer than 100 images, an impossible side, unknown or repeated classes, or a single class.

    Example:
        >>> from jexplicit.data.images import read_images
        >>> sets = image_sets(read_images("digits"))
        >>> sets.train.X.shape, sets.dev.X.shape, sets.test.X.shape
        ((1050, 64), (150, 64), (597, 64))
    """
    X = np.concatenate([images.train_images, images.test_images])
    labels = np.concatenate([images.train_labels, images.test_labels])
    tests = len(images.test_labels)
    outputs = images.outputs
    if images.name == "digits":
        order, tests = np.random.default_rng(seed).permutation(len(X)), len(X) // 3 - 2
        X, labels = X[order], labels[order]
    if classes:
        number, outputs = _new_labels(images, classes), len(classes)
        kept = number[labels] >= 0
        X, labels, tests = X[kept], number[labels[kept]], int(kept[-tests:].sum())
    if limit is not None and limit < len(X):
        tests = max(1, tests * limit // len(X))
        X, labels = (np.concatenate([array[: limit - tests], array[-tests:]]) for array in (X, labels))
    if len(X) < 100:
        raise ValueError(f"{len(X)} images of {images.name}: at least 100 are needed for the three parts; read more images")
    H = pixel_features(resize_images(X, X.shape[1] if side is None else side).round().astype(np.int64), images.levels)
    M = len(X) - tests
    ends = [M - M // 8, M]
    mean = H[: ends[0]].mean(axis=0)
    Z, Y = (H - mean) / (H[: ends[0]] - mean).std(), one_hot(labels, outputs)
    return Sets(*map(Examples, np.split(Z, ends), np.split(Y, ends)), name=images.name)


def _new_labels(images: Images, classes: tuple[int, ...]) -> np.ndarray:
    """[N] the new label of every class, -1 for excluded classes."""
    if len(set(classes)) < max(2, len(classes)) or not set(classes) <= set(range(images.outputs)):
        given, last = " ".join(map(str, classes)), images.outputs - 1
        raise ValueError(f"classes {given} of {images.name}: use at least two of 0 .. {last}, each once")
    number = np.full(images.outputs, -1)
    number[list(classes)] = np.arange(len(classes))
    return number


def resize_images(images: np.ndarray, side: int) -> Float[np.ndarray, "M side side"]:
    """Images resized to side x side, by repeated pixels or averages of blocks.

    28 x 28 to 10 x 10 averages the central 20 x 20 over blocks of 2 x 2, as in the paper.

    Raises:
        ValueError: images that are not square, or a larger side that is not a multiple of theirs.
    """
    old = images.shape[1]
    if images.shape[2] != old or side < 1 or (side > old and side % old):
        raise ValueError(f"images of {old} x {images.shape[2]} to a side of {side}: use a smaller side, or a multiple")
    images = images.astype(np.float64)
    if side >= old:
        return images.repeat(side // old, axis=1).repeat(side // old, axis=2)
    block = old // side
    first = (old - block * side) // 2
    crop = images[:, first : first + block * side, first : first + block * side]
    return crop.reshape(len(images), side, block, side, block).mean(axis=(2, 4))


def xor() -> tuple[Float[np.ndarray, "4 2"], Float[np.ndarray, "4 2"]]:
    """The four inputs ±1 of XOR, and their one-hot targets.

    Example:
        >>> xor()[1].argmax(axis=1).tolist()
        [0, 1, 1, 0]
    """
    x = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    return x, np.eye(2)[[0, 1, 1, 0]]


def corners(examples: int, rng: np.random.Generator, *, noise: float = 0.1) -> Examples:
    """The four noisy inputs of `xor` as four classes.

    Example:
        >>> x, y = corners(100, np.random.default_rng(0))
        >>> np.array_equal(np.sign(x), xor()[0][y.argmax(axis=1)])
        True
    """
    corner = rng.integers(0, 4, examples)
    x = xor()[0][corner] + noise * rng.normal(size=(examples, 2))
    return Examples(x.astype(np.float32), np.eye(4, dtype=np.float32)[corner])

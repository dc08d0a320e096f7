"""Labelled images for learners and meta-learners: centred vectors, split in three.

A genome is meta-trained on *train*, chosen on *dev*, and reported on *test*; learners that are reported take minibatches from
*train*, and a baseline's learning rate is chosen on *dev*, as the genome is. Images of the embedded digits are shuffled first:
their last ones come from other writers, and the question here is how fast something is learned, not how far it reaches.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jexplicit.data.images import Images, one_hot, pixel_features

_dev_share = 8  # one part of so many training images


class Part(NamedTuple):
    """Inputs [M, D] and one-hot targets [M, N]."""

    X: Float[Any, "M D"]
    Y: Float[Any, "M N"]


class Sets(NamedTuple):
    """The three parts of a data set, and its name."""

    train: Part
    dev: Part
    test: Part
    name: str

    @property
    def inputs(self) -> int:
        """D."""
        return self.train.X.shape[1]

    @property
    def outputs(self) -> int:
        """N."""
        return self.train.Y.shape[1]


def image_sets(images: Images, *, side: int | None = None, limit: int | None = None, seed: int = 0) -> Sets:
    """Centred pixels, `(h - mean h)/std`, and one-hot labels, in three parts.

    Args:
        images: as `jexplicit.data.images.read_images` gives them.
        side: the images are brought to side x side; default, as they are. See `resized`.
        limit: at most so many images, train and test together.
        seed: of the shuffle.

    Raises:
        ValueError: fewer than 100 images, or a side that cannot be reached.

    Example:
        >>> from jexplicit.data.images import read_images
        >>> sets = image_sets(read_images("digits"))
        >>> sets.train.X.shape, sets.dev.X.shape, sets.test.X.shape
        ((1050, 64), (150, 64), (597, 64))
    """
    X = np.concatenate([images.train_images, images.test_images])
    labels = np.concatenate([images.train_labels, images.test_labels])
    if images.name == "digits":
        order, tests = np.random.default_rng(seed).permutation(len(X)), len(X) // 3 - 2
        X, labels, tests = X[order], labels[order], tests
    else:
        tests = len(images.test_labels)
    if limit is not None and limit < len(X):
        tests = max(1, tests * limit // len(X))
        X, labels = (np.concatenate([part[: limit - tests], part[-tests:]]) for part in (X, labels))
    if len(X) < 100:
        raise ValueError(f"{len(X)} images of {images.name}: at least 100 are needed for the three parts; raise --limit")
    M = len(X) - tests
    dev = M // _dev_share
    H = pixel_features(resized(X, side or X.shape[1]).round().astype(np.int64), images.levels)
    mean = H[: M - dev].mean(axis=0)
    H = (H - mean) / (H[: M - dev] - mean).std()
    Y = one_hot(labels, images.outputs)
    return Sets(*(Part(H[s], Y[s]) for s in (slice(M - dev), slice(M - dev, M), slice(M, None))), name=images.name)


def table_sets(X: Float[np.ndarray, "M D"], labels: np.ndarray, name: str, *, seed: int = 0) -> Sets:
    """The same of a table of numbers: every column less its mean, over its deviation; half of the rows for testing.

    Example:
        >>> table_sets(np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 2, "coins").test.X.shape
        (40, 3)
    """
    order = np.random.default_rng(seed).permutation(len(X))
    X, labels, tests = X[order], labels[order], len(X) // 2
    M = len(X) - tests
    dev = M // _dev_share
    known = X[: M - dev]
    Z = ((X - known.mean(axis=0)) / (known.std(axis=0) + 1e-9)).astype(np.float32)
    Y = one_hot(labels, int(labels.max()) + 1)
    return Sets(*(Part(Z[s], Y[s]) for s in (slice(M - dev), slice(M - dev, M), slice(M, None))), name=name)


def resized(images: np.ndarray, side: int) -> Float[np.ndarray, "M side side"]:
    """Images of another side: whole multiples repeat pixels; smaller ones are cropped to the middle and averaged over blocks.

    28 x 28 to 10 x 10 averages the middle 20 x 20 over blocks of 2 x 2, as in the paper.

    Raises:
        ValueError: images that are not square, or a larger side that is not a multiple of theirs.

    Example:
        >>> resized(np.arange(4.0).reshape(1, 2, 2), 4)[0].tolist()[0], resized(np.arange(4.0).reshape(1, 2, 2), 1).tolist()
        ([0.0, 0.0, 1.0, 1.0], [[[1.5]]])
    """
    old = images.shape[1]
    if images.shape[2] != old or side < 1 or (side > old and side % old):
        raise ValueError(f"images of {images.shape[1]} x {images.shape[2]} to a side of {side}: smaller, or a multiple of it")
    images = images.astype(np.float64)
    if side >= old:
        return images.repeat(side // old, axis=1).repeat(side // old, axis=2)
    block = old // side
    first = (old - block * side) // 2
    middle = images[:, first : first + block * side, first : first + block * side]
    return middle.reshape(len(images), side, block, side, block).mean(axis=(2, 4))

"""Labelled images: scikit-learn's 8x8 digits, files (idx as of MNIST, PNG, .npz), and TFDS.

The paper's features are `H = flatten((X + 1)/256)`, strictly positive and at most 1 (Sec. 3.2); the 8x8 digits have 17 grey
levels instead of 256, and so `(X + 1)/17`.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer, Num, UInt8

from jexplicit.data.image_files import FILES, check_grey_levels, read_parts
from jexplicit.data.tfds import prepared_builder, unreadable
from jexplicit.runs.checks import check_labels

_ten_classes = ("digits", "mnist", "fashion_mnist")
_train_digits = 1437  # the last 360 of the 8x8 digits are from other writers


class Images(NamedTuple):
    """A data set split into train and test: images of grey levels 0 .. levels - 1, and labels 0 .. outputs - 1.

    classes: names of the labels; () for numbers.
    """

    name: str
    train_images: UInt8[np.ndarray, "M height width"]
    train_labels: UInt8[np.ndarray, " M"]
    test_images: UInt8[np.ndarray, "T height width"]
    test_labels: UInt8[np.ndarray, " T"]
    levels: int
    classes: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """N, the number of classes."""
        return int(self.train_labels.max()) + 1

    @property
    def sha256(self) -> str:
        """Hash of the images and labels, to identify the data of a result."""
        digest = hashlib.sha256()
        for part in self[1:5]:
            digest.update(str(part.shape).encode() + np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def read_images(name: str, data_dir: str | os.PathLike | None = None, *, limit: int | None = None) -> Images:
    """The data set of a name.

    Args:
        name: `digits` (embedded), `tfds:NAME` or `tfds:DIR`, the name of a data set of files, such as `mnist`,
            `fashion_mnist`, or its path: `./shapes`, `mnist.npz`.
        data_dir: a folder of idx files, or of PNGs as `train/LABEL/*.png` and `test/LABEL/*.png` (which are shuffled), or an
            .npz file with the arrays x_train, y_train, x_test, y_test; default, the folder `name` in `$JEXPLICIT_DATA_DIR`.
        limit: read at most this many training images, and at most this many test images.

    Raises:
        ValueError: missing, damaged or inconsistent data.

    Example:
        >>> data = read_images("digits")
        >>> data.train_images.shape, data.test_images.shape, data.outputs
        ((1437, 8, 8), (360, 8, 8), 10)
        >>> len(read_images("digits", limit=100).train_labels)
        100
    """
    if name == "digits":
        if data_dir is not None:
            raise ValueError(
                f"data_dir={data_dir} with the data set digits, which is embedded: name the data set of that folder"
            )
        images = _embedded_digits()
    elif name.startswith("tfds:"):
        images = _tfds_images(name.removeprefix("tfds:"), data_dir)
    else:
        parts, is_path = read_parts(_place(name, data_dir)), data_dir is None and _is_path(name)
        images = Images(Path(name).resolve().stem if is_path else name, *parts[:4], levels=256, classes=parts.classes)
    if limit is not None:
        images = check_images(images)._replace(**{part: getattr(images, part)[:limit] for part in FILES})
    return check_images(images)


def pixel_features(images: Num[np.ndarray, "..."], levels: int, dtype: Any = np.float32) -> Float[np.ndarray, "M D"]:
    """`H = flatten((X + 1)/levels)`, in (0, 1].

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: 256 for bytes, 17 for the 8x8 digits.

    Raises:
        ValueError: not three dimensions; grey levels that are not the integers 0 .. levels - 1, such as images in [0, 1].

    Example:
        >>> pixel_features(np.array([[[0, 255]]]), 256).tolist()
        [[0.00390625, 1.0]]

    Source: paper, Sec. 3.2.
    """
    if images.ndim != 3:
        raise ValueError(f"images of the shape {images.shape}: give grey images [images, height, width]")
    check_grey_levels(images, levels)
    return (images.reshape(len(images), -1).astype(dtype) + dtype(1)) / dtype(levels)


def one_hot(labels: Integer[np.ndarray, " M"], outputs: int, dtype: Any = np.float32) -> Float[np.ndarray, "M N"]:
    """Targets Y, a unit vector per label.

    Raises:
        ValueError: a label outside of 0 .. outputs - 1.

    Example:
        >>> one_hot(np.array([1, 0]), 2).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    check_labels(labels, outputs)
    return np.eye(outputs, dtype=dtype)[labels]


def check_images(images: Images) -> Images:
    """Refuse a data set that a model would misread.

    That is: no images; images and labels of different numbers; train and test of different shapes; a label out of range or a
    class without a training image; a grey level out of range; an image that is zero everywhere.
    """
    for part in ("train", "test"):
        X, Y = getattr(images, f"{part}_images"), getattr(images, f"{part}_labels")
        if len(X) != len(Y) or not len(X):
            raise ValueError(f"{images.name}: {len(X)} {part} images and {len(Y)} labels: give equally many, and at least one")
        check_grey_levels(X, images.levels, f"{images.name}: {part} images")
        if (dark := ~X.any(axis=(1, 2))).any():
            raise ValueError(
                f"{images.name}: {part} image {int(dark.argmax())} is zero everywhere ({int(dark.sum())} are): "
                "it has no information about its label; remove it"
            )
    if images.train_images.shape[1:] != images.test_images.shape[1:]:
        shapes = f"{images.train_images.shape[1:]} and test images {images.test_images.shape[1:]}"
        raise ValueError(f"{images.name}: train images are {shapes}: they must have equal shapes")
    highest = int(max(images.train_labels.max(), images.test_labels.max()))
    if images.name in _ten_classes and highest > 9:
        raise ValueError(
            f"label {highest} in {images.name}, whose labels are 0 .. 9: the label file is damaged or another data set's "
            "(name that, with data_dir=DIR)"
        )
    if int(images.test_labels.max()) >= images.outputs:
        raise ValueError(
            f"{images.name}: test label {int(images.test_labels.max())}, and training labels are 0 .. {images.outputs - 1}"
        )
    seen = np.bincount(images.train_labels, minlength=images.outputs)
    if images.outputs < 2 or not seen.all():
        raise ValueError(
            f"{images.name}: label {int(seen.argmin())} has no training image, and the labels go up to {images.outputs - 1}: "
            "number at least two classes 0, 1, 2, ... without gaps"
        )
    return images


def _embedded_digits() -> Images:
    from sklearn.datasets import load_digits

    X, Y = (np.asarray(part) for part in load_digits(return_X_y=True))
    X, Y, m = X.reshape(-1, 8, 8).astype(np.uint8), Y.astype(np.uint8), _train_digits
    return Images("digits", X[:m], Y[:m], X[m:], Y[m:], levels=17)


def _is_path(name: str) -> bool:
    return Path(name).name != name or name.endswith(".npz")


def _place(name: str, data_dir: str | os.PathLike | None) -> Path:
    if data_dir is not None or _is_path(name):
        return Path(data_dir or name)
    if root := os.environ.get("JEXPLICIT_DATA_DIR"):
        return Path(root) / name
    raise ValueError(
        f"the data set {name} without a folder: name that of its files, data_dir=DIR, or a folder that holds a folder "
        f"{name} in the environment variable JEXPLICIT_DATA_DIR; the data set digits needs no files"
    )


def _tfds_images(name: str, data_dir: str | os.PathLike | None) -> Images:
    """A data set of TFDS with the features `image` and `label`, and the splits train and test; without TensorFlow."""
    way_out = "download the idx files and use data_dir=DIR, or the data set digits, which is embedded"
    builder = prepared_builder(name, data_dir, way_out=way_out)
    try:
        parts = {part: list(builder.as_data_source(split=part)) for part in ("train", "test")}
        arrays = {part: (_grey(rows), np.array([row["label"] for row in rows])) for part, rows in parts.items()}
        names = tuple(getattr(builder.info.features["label"], "names", None) or ())
    except Exception as error:  # as in prepared_builder
        raise unreadable(name, error, way_out=way_out) from error
    (X, Y), (X_test, Y_test) = arrays["train"], arrays["test"]
    return Images(f"tfds:{builder.info.full_name}", *map(_as_bytes, (X, Y, X_test, Y_test)), levels=256, classes=names)


def _grey(rows: list[Any]) -> np.ndarray:
    """[M, height, width] of images [height, width, channels]; colours are averaged to whole grey levels."""
    return np.stack([np.asarray(row["image"]) for row in rows]).mean(axis=-1).round()


def _as_bytes(x: np.ndarray) -> np.ndarray:
    if x.min() < 0 or x.max() >= 256:  # astype would wrap
        raise ValueError(f"grey levels or labels from {x.min()} to {x.max()}: only 0 .. 255 are supported")
    return x.astype(np.uint8)

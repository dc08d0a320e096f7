"""Labelled grey images: 8x8 digits, idx files, arrays, and files that Pillow reads.

The paper's features are `H = flatten((X + 1)/256)`, strictly positive and at most 1 (Sec. 3.2); the 8x8 digits have 17 grey
levels, and so `(X + 1)/17`. Images in colour become grey, on white; of several sizes they are resized or refused.
"""

import hashlib
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer, Num, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from jexplicit.data.text import COMPRESSED, folder_files, is_left_out, open_input, read_input
from jexplicit.runs.devices import check_labels_of
from jexplicit.runs.files import local_path, refuse_errors

FILES = {"train_images": "train-images-idx3-ubyte", "train_labels": "train-labels-idx1-ubyte"}
FILES |= {"test_images": "t10k-images-idx3-ubyte", "test_labels": "t10k-labels-idx1-ubyte"}
"""MNIST's published names of idx files; each may also end in .gz."""
_keys = ("x_train", "y_train", "x_test", "y_test")  # of arrays in an .npz file, as in Keras

_train_digits = 1437  # the last 360 of the 8x8 digits are from other writers
_most_classes, _largest_side = 256, 1024  # labels are bytes; pixels of resize=N


class Images(NamedTuple):
    """Train and test images of levels 0 .. levels - 1, and labels.

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


def read_images(
    name: str, data_dir: str | os.PathLike | None = None, *, limit: int | None = None, resize: int | None = None, seed: int = 0
) -> Images:
    """The data set of a name.

    Args:
        name: `digits` (embedded), the name of a data set of files, such as `mnist`, or its path: `./shapes`, `mnist.npz`.
        data_dir: a folder of idx files, or of images in `train/LABEL` and `test/LABEL` (which are shuffled), or in `LABEL`
            alone (every fifth image of a label, drawn with the seed, is a test image), or an .npz file with the arrays x_train,
            y_train, x_test, y_test; default, the folder `name` in `$JEXPLICIT_DATA_DIR`.
        limit: read at most this many training images, and at most this many test images.
        resize: N, of a folder of images of any size, which become N x N.

    Example:
        >>> data = read_images("digits")
        >>> data.train_images.shape, data.test_images.shape, data.outputs
        ((1437, 8, 8), (360, 8, 8), 10)
    """
    name, root = os.fspath(name), os.environ.get("JEXPLICIT_DATA_DIR")
    is_path = Path(name).name != name or name.endswith(".npz")
    if name == "digits":
        if data_dir is not None or resize is not None:
            raise ValueError("the data set digits is embedded, 8x8 pixels: name the data set of data_dir, which resize is for")
        from sklearn.datasets import load_digits  # not for every program

        X, Y = (np.asarray(part).astype(np.uint8) for part in load_digits(return_X_y=True))
        X, m = X.reshape(-1, 8, 8), _train_digits
        images = Images("digits", X[:m], Y[:m], X[m:], Y[m:], levels=17)
    elif is_path or data_dir or root:
        place = local_path(data_dir or (name if is_path else Path(root or "", name)))
        if resize is not None and not (1 <= resize <= _largest_side and place.is_dir()):
            raise ValueError(f"resize={resize} for {name}: name a folder of images and a size of 1 to {_largest_side}, or none")
        images = read_parts(place, resize, seed)
        images = images._replace(name=place.resolve().stem if data_dir is None and is_path else name)
    else:
        remedy = f"name that of its files, data_dir=DIR, or a folder that holds a folder {name} in JEXPLICIT_DATA_DIR"
        raise ValueError(f"the data set {name} without a folder: {remedy}; the data set digits needs no files")
    if limit is not None:
        images = check_images(images)._replace(**{part: getattr(images, part)[:limit] for part in FILES})
    return check_images(images)


def pixel_features(images: Num[np.ndarray, "..."], levels: int, dtype: Any = np.float32) -> Float[np.ndarray, "M D"]:
    """`H = flatten((X + 1)/levels)`, in (0, 1]: paper, Sec. 3.2.

    images: [M, height, width], of the integers 0 .. levels - 1; others, such as [0, 1], are refused. levels: 256 for bytes.

    >>> pixel_features(np.array([[[0, 255]]]), 256).tolist()
    [[0.00390625, 1.0]]
    """
    images = _grey(images, "images", levels)
    return (images.reshape(len(images), -1).astype(dtype) + dtype(1)) / dtype(levels)


def one_hot(labels: Integer[np.ndarray, " M"], outputs: int, dtype: Any = np.float32) -> Float[np.ndarray, "M N"]:
    """Targets Y, a unit vector per label 0 .. outputs - 1.

    >>> one_hot(np.array([1, 0]), 2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    check_labels_of(labels := np.asarray(labels), (len(labels), outputs))
    return np.eye(outputs, dtype=dtype)[labels.astype(int)]


def check_images(images: Images) -> Images:
    """Refuse a data set that a model would misread."""
    for part in ("train", "test"):
        X, Y = getattr(images, f"{part}_images"), getattr(images, f"{part}_labels")
        if len(X) != len(Y) or not len(X):
            raise ValueError(f"{images.name}: {len(X)} {part} images and {len(Y)} labels: give equally many, and at least one")
        check_grey_levels(X, images.levels, f"{images.name}: {part} images")
    if images.train_images.shape[1:] != images.test_images.shape[1:]:
        shapes = f"{images.train_images.shape[1:]} and test images {images.test_images.shape[1:]}"
        raise ValueError(f"{images.name}: train images are {shapes}: they must have equal shapes")
    if (tested := int(images.test_labels.max())) >= images.outputs:
        raise ValueError(f"{images.name}: test label {tested}, and training labels are 0 .. {images.outputs - 1}")
    seen = np.bincount(images.train_labels, minlength=images.outputs)
    if images.outputs < 2 or not seen.all():
        found = f"label {int(seen.argmin())} has no training image, and the labels go up to {images.outputs - 1}"
        raise ValueError(f"{images.name}: {found}: number at least two classes 0, 1, 2, ... without gaps")
    return images


def check_grey_levels(X: np.ndarray, levels: int, name: str = "images") -> None:
    """Refuse grey levels that are not the integers 0 .. levels - 1."""
    if not X.size:
        return
    if X.dtype.kind not in "biuf":
        raise ValueError(f"{name} are of type {X.dtype}: give integers 0 .. {levels - 1}")
    low, high, integers = X.min(), X.max(), X.dtype.kind in "iu"
    if not 0 <= low <= high < levels:
        wrong = high if low >= 0 else low
        raise ValueError(f"pixel {wrong:g}: grey levels are 0 .. {levels - 1}; rescale {name}")
    in_unit = high <= 1 and levels > 2
    if not integers or (in_unit and high == 1):
        remedy = f"use {f'({levels - 1} * X)' if in_unit else 'X'}.round().astype(np.uint8)"
        raise ValueError(f"{name} are {X.dtype} from {low:g} to {high:g}, not the integers 0 .. {levels - 1}: {remedy}")


# Files of arrays


def read_parts(path: str | os.PathLike, resize: int | None = None, seed: int = 0) -> Images:
    """The data set in an .npz file, a folder of images, or idx files."""
    path = local_path(path)
    if path.suffix.lower() == ".npz":
        arrays, remedy = _load(path), "save images as x_train and x_test, labels as y_train and y_test"
        if missing := [key for key in _keys if key not in arrays]:
            raise ValueError(f"{path} holds {', '.join(arrays) or 'no array'} and no {', '.join(missing)}: {remedy}")
        found = [(_grey if key[0] == "x" else _labels)(arrays[key], f"{path}: {key}").astype(np.uint8) for key in _keys]
        return Images._make([path.stem, *found, 256, ()])
    inside = {file.name.lower(): file for file in (sorted(path.iterdir()) if path.is_dir() else [])}
    idx = any(name.startswith(tuple(FILES.values())) for name in inside)
    if inside and not idx and (resize or any(file.is_dir() for file in inside.values())):
        return _read_folders(path, resize, seed)
    arrays = []
    for part, file in FILES.items():
        own = next((inside[name] for name in (file, *(file + ending for ending in COMPRESSED)) if name in inside), None)
        if own is None:
            raise ValueError(
                f"{path} holds neither {file} nor {file}.gz: put the four idx files there under their published names, or "
                "images as train/LABEL/* and test/LABEL/*, or as LABEL/* alone, or name an .npz file"
            )
        arrays.append(_read_idx(own, 3 if "images" in part else 1))
    return Images._make([path.name, *arrays, 256, ()])


def _read_idx(path: str | os.PathLike, dimensions: int) -> UInt8[np.ndarray, "..."]:
    """The array in an idx file of unsigned bytes, compressed or not.

    Two zero bytes, 8 for bytes, the number of dimensions, these as big-endian 32-bit integers, and the values.
    """
    content, header = read_input(path), 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]):
        remedy = "check that images and labels are not swapped, and that images are grey"
        raise ValueError(f"{path} begins with {content[:4]!r}, not as an idx file of {dimensions} dimension(s): {remedy}")
    shape = tuple(int(n) for n in np.frombuffer(content[4:header], ">u4")) if len(content) >= header else (-1,)
    if (values := len(content) - header) != math.prod(shape):
        raise ValueError(f"{path} is damaged: its header promises {shape} values and {values} follow; download it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npy or .npz file."""
    with open_input(path) as file, refuse_errors(f"{path} cannot be read", "write it again, as arrays of numbers"):
        content: Any = np.load(file, allow_pickle=False)
        return {"": content} if isinstance(content, np.ndarray) else {key: content[key][()] for key in content.files}


def _grey(X: np.ndarray, name: str, levels: int = 256) -> Num[np.ndarray, "M height width"]:
    """Checked images [M, height, width], also of [M, height, width, 1]."""
    X = X[..., 0] if X.ndim == 4 and X.shape[-1] == 1 else X
    if X.ndim != 3:
        remedy = "; average the colours" * (X.ndim == 4)
        raise ValueError(f"{name} has the shape {X.shape}: give grey images [images, height, width]{remedy}")
    check_grey_levels(X, levels, name)
    return X


def _labels(Y: np.ndarray, name: str) -> Integer[np.ndarray, " M"]:
    """Checked labels [M], also of [M, 1]."""
    Y = Y[:, 0] if Y.ndim == 2 and Y.shape[1] == 1 else Y
    if Y.ndim != 1 or Y.dtype.kind not in "iu" or (Y.size and not 0 <= Y.min() <= Y.max() < _most_classes):
        raise ValueError(f"{name}: {Y.dtype} of the shape {Y.shape}: give one integer per image, 0 .. {_most_classes - 1}")
    return Y


# Images that Pillow reads


def read_grey_images(
    paths: Sequence[str], levels: int = 256, resize: int | None = None
) -> list[tuple[str, UInt8[np.ndarray, "height width"]]]:
    """The images in files and folders, each with its name.

    Those that Pillow reads, whose levels are 0 .. 255, are rescaled to 0 .. levels - 1, unless none has a higher level.
    """
    found, bytes_at = [], []  # bytes_at: indices in found
    for path in map(local_path, paths):
        before = len(found)
        if path.is_dir() or _is_image(path):
            found += [(str(file), read_image(file, resize)) for file in (_image_files(path) if path.is_dir() else [path])]
            bytes_at += range(before, len(found))
        else:
            found += [(f"{path}[{n}]", image) for n, image in enumerate(_images_in(path, levels))]
        if len(found) == before:
            raise ValueError(f"{path} holds no image: leave it out, or write it again")
    if any((found[n][1] >= levels).any() for n in bytes_at):
        for n in bytes_at:
            found[n] = found[n][0], ((levels - 1) / 255 * found[n][1]).round().astype(np.uint8)
    return found


def _images_in(path: Path, levels: int) -> np.ndarray:
    """The images in a file of arrays."""
    if "-ubyte" in path.name.lower():
        return _read_idx(path, 3)
    if path.suffix.lower() not in (".npy", ".npz"):
        raise ValueError(f"{path} is no file of images: name images, folders of them, .npy, .npz or idx files (*-idx3-ubyte)")
    arrays = _load(path)
    X = arrays.get("x_test", next(iter(arrays.values()), None) if len(arrays) == 1 else None)
    if not isinstance(X, np.ndarray):
        raise ValueError(f"{path} holds {', '.join(arrays) or 'no array'}: save the images alone, or as x_test")
    return _grey(X[None] if X.ndim == 2 else X, str(path), levels).astype(np.uint8)


def size(shape: Sequence[int]) -> str:
    """Height and width in words: 28 x 20."""
    return " x ".join(map(str, shape))


def read_image(path: str | os.PathLike, resize: int | None = None) -> UInt8[np.ndarray, "height width"]:
    """The grey levels 0 .. 255 of an image on white, maybe resized."""
    content = read_input(path)
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            mode, frames = image.mode, getattr(image, "n_frames", 1)
            upright = ImageOps.exif_transpose(image)
    except Exception as error:  # Pillow raises SyntaxError, struct.error and others for a broken image
        why = "none is in it, or Pillow does not read it" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"{path} cannot be read as an image ({why}): write it again, as PNG or JPEG") from error
    if mode in ("I", "F"):
        raise ValueError(f"{path} is an image of mode {mode}: its grey levels have no known range; write it with 8 or 16 bits")
    if frames > 1:
        raise ValueError(f"{path} has {frames} frames: write each as an image of its own")
    if mode.startswith("I;16"):  # which a conversion would clip, not scale
        upright = Image.fromarray((np.asarray(upright) // 257).astype(np.uint8))
    if mode not in ("L", "1") or "transparency" in upright.info:
        shown = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)
    grey = upright.convert("L")
    return np.asarray(grey.resize((resize, resize)) if resize else grey)


def _read_folders(folder: Path, resize: int | None, seed: int) -> Images:
    """The images `train/LABEL/*` and `test/LABEL/*`, or `LABEL/*`, shuffled by a fixed permutation."""
    parts = ("train", "test") if (folder / "train").is_dir() else ("",)
    labels = {part: _subfolders(folder / part) for part in parts}
    classes, arrays = labels[parts[0]], []
    if unknown := sorted(set(labels[parts[-1]]) - set(classes)):
        raise ValueError(f"{folder / 'test' / unknown[0]}: {folder / 'train'} has no folder {unknown[0]}; put images there")
    if len(classes) > _most_classes:
        raise ValueError(f"{folder / parts[0]} has {len(classes)} labels: at most {_most_classes} classes")
    for part in parts:
        files = [(file, classes.index(label)) for label in labels[part] for file in _image_files(folder / part / label)]
        images = [read_image(file, resize) for file, _ in files]
        if other := next((n for n, image in enumerate(images) if image.shape != images[0].shape), None):
            sizes = " and ".join(f"{files[n][0]} is {size(images[n].shape)}" for n in (0, other))
            raise ValueError(f"{sizes}: all images need one size; resize them by resize=N")
        order = np.random.default_rng(0).permutation(len(files))
        arrays += [np.stack(images)[order], np.array([label for _, label in files], np.uint8)[order]]
    if len(parts) == 1:
        (X, Y), order = arrays, np.random.default_rng(seed).permutation(len(arrays[1]))
        tests = np.concatenate([order[Y[order] == n][4::5] for n in range(len(classes))])
        arrays = [np.delete(X, tests, axis=0), np.delete(Y, tests), X[tests], Y[tests]]
    return Images._make([folder.name, *arrays, 256, tuple(classes)])


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in (*Image.registered_extensions(), ".heic", ".heif")  # the last ones to be refused


def _image_files(folder: Path) -> list[Path]:
    files = [path for path in map(Path, folder_files(folder)) if _is_image(path)]
    if not files:
        raise ValueError(f"{folder} holds no image: name a folder of images such as *.png, or of MNIST's four files")
    return files


def _subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, in numerical order if all are numbers."""
    inside = [path for path in folder.iterdir() if not is_left_out(path)] if folder.is_dir() else []
    if loose := [path for path in inside if _is_image(path) and path.is_file()]:
        raise ValueError(f"{loose[0]} has no label: put it in a folder of its label, {folder}/LABEL/{loose[0].name}")
    names = [path.name for path in inside if path.is_dir()]
    if not names:
        raise ValueError(f"{folder} holds no folder: put the images there as {folder}/LABEL/*")
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)

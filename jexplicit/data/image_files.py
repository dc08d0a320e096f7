"""Files of grey images: idx files as of MNIST, folders of PNGs, and NumPy's .npz and .npy.

An idx file is two zero bytes, a type (8: unsigned bytes), a number of dimensions, the dimensions as big-endian 32-bit integers,
and the values. Images are read as bytes; colours, and images of several sizes, are refused.
"""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from jexplicit.data.inputs import COMPRESSED, folder_files, input_head, is_left_out, open_input, read_input

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
"""MNIST's published names of idx files; each may also end in .gz."""
KEYS = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
"""Names of arrays in an .npz file, as in Keras."""

_unsigned_bytes = 8
_most_classes = 256  # labels are bytes


class Parts(NamedTuple):
    """The four arrays of a data set, and the names of its classes, if known."""

    train_images: UInt8[np.ndarray, "M height width"]
    train_labels: UInt8[np.ndarray, " M"]
    test_images: UInt8[np.ndarray, "T height width"]
    test_labels: UInt8[np.ndarray, " T"]
    classes: tuple[str, ...] = ()


def read_parts(path: str | os.PathLike) -> Parts:
    """The data set in an .npz file, in a folder of PNGs (`train/LABEL/*.png` and `test/LABEL/*.png`), or in idx files."""
    path = Path(path).expanduser()
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    return read_png_folders(path) if (path / "train").is_dir() else read_idx_folder(path)


# idx


def read_idx_folder(folder: Path) -> Parts:
    """The four idx files of a data set, under MNIST's published names, gzipped or not."""
    dimensions = {part: 3 if part.endswith("images") else 1 for part in FILES}
    arrays = (read_idx(_idx_file(folder, file), dimensions=dimensions[part]) for part, file in FILES.items())
    return Parts._make([*arrays, ()])


def read_idx(path: str | os.PathLike, *, dimensions: int) -> UInt8[np.ndarray, "..."]:
    """The array in an idx file of unsigned bytes, compressed or not; dimensions: 3 for images, 1 for labels."""
    content = read_input(path)
    header = 4 + 4 * dimensions
    magic, expected = int.from_bytes(content[:4], "big"), _unsigned_bytes << 8 | dimensions
    if magic == _unsigned_bytes << 8 | 4:
        raise ValueError(f"{path} has four dimensions, as of colour images: only grey images are read; average the colours")
    if magic != expected or len(content) < 4:
        kind = {_unsigned_bytes << 8 | 1: "that of labels", _unsigned_bytes << 8 | 3: "that of images"}
        what = kind.get(magic, "not that of an idx file of bytes")
        raise ValueError(
            f"{path} has the magic number {magic}, {what}; expected {expected}: check that images and labels are not swapped"
        )
    shape = tuple(int(n) for n in np.frombuffer(content[4:header], ">u4")) if len(content) >= header else ()
    values, wanted = len(content) - header, math.prod(shape)
    if len(shape) < dimensions or values != wanted:
        what = "is truncated" if len(shape) < dimensions or values < wanted else "has extra bytes"
        raise ValueError(f"{path} {what}: its header promises {shape} values and {max(values, 0)} follow; download it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _idx_file(folder: Path, file: str) -> Path:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.name.lower() in (file, *(file + ending for ending in COMPRESSED)):
            return path
    raise ValueError(
        f"{folder} holds neither {file} nor {file}.gz: put the four idx files there under their published names, or PNGs as "
        "train/LABEL/*.png and test/LABEL/*.png, or name an .npz file"
    )


# PNG

_TO_GREY = """Image.open(file).convert("L").save(new_file)"""
_TO_WHITE = (  # a conversion alone would drop the transparency, and show what lies under it
    """image = Image.open(file).convert("RGBA"); """
    """Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("L").save(new_file)"""
)


def read_png(path: str | os.PathLike) -> UInt8[np.ndarray, "height width"]:
    """The grey levels of a PNG of 1 or 8 bits, 0 .. 255, without palette or transparency; black and white are 0 and 255."""
    content = read_input(path)
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            image.load()
            mode, frames, transparent = image.mode, getattr(image, "n_frames", 1), "transparency" in image.info
            upright = ImageOps.exif_transpose(image)
    except Exception as error:  # Pillow raises SyntaxError, struct.error and others for a broken PNG
        why = "none is in it" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"{path} cannot be read as a PNG ({why}): write it again") from error
    transparent |= mode.endswith("A")
    if transparent or mode not in ("L", "1"):
        raise ValueError(
            f"{path} is an image of mode {mode}{' with transparency' * transparent}: only grey images of 8 bits are read; "
            f"convert it, with Pillow: {_TO_WHITE if transparent else _TO_GREY}"
        )
    if frames > 1:
        raise ValueError(f"{path} has {frames} frames: write each as an image of its own")
    return np.asarray(upright.convert("L"))


def read_png_folders(folder: Path) -> Parts:
    """The PNGs `train/LABEL/*.png` and `test/LABEL/*.png`, shuffled by a fixed permutation.

    Classes are the folders of train, in numerical or alphabetical order.
    """
    labels = {part: _subfolders(folder / part) for part in ("train", "test")}
    classes = labels["train"]
    if unknown := sorted(set(labels["test"]) - set(classes)):
        raise ValueError(f"{folder / 'test' / unknown[0]}: {folder / 'train'} has no folder {unknown[0]}; put images there")
    if len(classes) > _most_classes:
        raise ValueError(f"{folder / 'train'} has {len(classes)} labels: at most {_most_classes} classes")
    arrays = {}
    for part in ("train", "test"):
        files = [(file, label) for label in labels[part] for file in png_files(folder / part / label)]
        order = np.random.default_rng(0).permutation(len(files))
        arrays[f"{part}_images"] = stack_pngs([file for file, _ in files])[order]
        arrays[f"{part}_labels"] = np.array([classes.index(label) for _, label in files], np.uint8)[order]
    return Parts(**arrays, classes=tuple(classes))


def png_files(folder: Path) -> list[Path]:
    """The PNGs in a folder and its subfolders, in the order of their paths."""
    files = [path for path in map(Path, folder_files(folder)) if path.suffix.lower() in Image.registered_extensions()]
    if not files:
        raise ValueError(f"{folder} holds no PNG: name a folder of *.png")
    if other := next((path for path in files if path.suffix.lower() != ".png"), None):
        raise ValueError(f"{other} is no PNG: convert it, with Pillow, or remove it: {_TO_GREY}")
    return files


def stack_pngs(files: Sequence[Path]) -> UInt8[np.ndarray, "M height width"]:
    """PNGs of equal size as one array."""
    images = [read_png(file) for file in files]
    other = next((n for n, image in enumerate(images) if image.shape != images[0].shape), None)
    if other is not None:
        sizes = [f"{files[n]} is {size(images[n].shape)}" for n in (0, other)]
        raise ValueError(f"{sizes[0]} and {sizes[1]}: all images need one size; resize them, with Pillow: image.resize(...)")
    return np.stack(images)


def size(shape: Sequence[int]) -> str:
    """Height and width in words: 28 x 20."""
    return " x ".join(map(str, shape))


def _subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, in numerical order if all are numbers."""
    inside = [path for path in folder.iterdir() if not is_left_out(path)] if folder.is_dir() else []
    if loose := [path for path in inside if path.suffix.lower() in Image.registered_extensions() and path.is_file()]:
        raise ValueError(f"{loose[0]} has no label: put it in a folder of its label, {folder}/LABEL/{loose[0].name}")
    names = [path.name for path in inside if path.is_dir()]
    if not names:
        raise ValueError(f"{folder} holds no folder: put the PNGs there as {folder}/LABEL/*.png")
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


# NumPy


def read_npz(path: Path) -> Parts:
    """The arrays x_train, y_train, x_test and y_test of an .npz file, as in Keras' mnist.npz."""
    arrays = _load(path)
    if missing := [key for key in KEYS.values() if key not in arrays]:
        raise ValueError(
            f"{path} holds {', '.join(arrays) or 'no array'} and no {', '.join(missing)}: save images as x_train and x_test, "
            "labels as y_train and y_test: np.savez(file, x_train=..., ...)"
        )
    read = {part: grey_bytes if part.endswith("images") else _label_bytes for part in KEYS}
    return Parts._make([*(read[part](arrays[key], f"{path}: {key}") for part, key in KEYS.items()), ()])


def grey_bytes(X: np.ndarray, name: str, levels: int = 256) -> UInt8[np.ndarray, "M height width"]:
    """Images [M, height, width], or [M, height, width, 1], as bytes."""
    X = X[..., 0] if X.ndim == 4 and X.shape[-1] == 1 else X
    if X.ndim != 3:
        remedy = "; average the colours" * (X.ndim == 4)
        raise ValueError(f"{name} has the shape {X.shape}: give grey images [images, height, width]{remedy}")
    check_grey_levels(X, levels, name)
    return X.astype(np.uint8)


def check_grey_levels(X: np.ndarray, levels: int, name: str = "images") -> None:
    """Refuse images whose grey levels are not the integers 0 .. levels - 1, such as images in [0, 1]."""
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
        scaled = f"({levels - 1} * X)" if in_unit else "X"
        remedy = f"use {scaled}.round().astype(np.uint8)"
        raise ValueError(f"{name} are {X.dtype} from {low:g} to {high:g}, not the integers 0 .. {levels - 1}: {remedy}")


def read_grey_images(paths: Sequence[str], levels: int = 256) -> list[tuple[str, UInt8[np.ndarray, "height width"]]]:
    """The images in files and folders (PNG; idx; .npy; .npz with a single array or x_test), each with its name.

    PNGs, whose levels are 0 .. 255, are rescaled to 0 .. levels - 1, unless none has a higher level.
    """
    found, pngs = [], []  # pngs: indices in found
    for path in (Path(path).expanduser() for path in paths):
        if not path.exists():
            raise ValueError(f"{path} does not exist: name PNGs, folders of PNGs, .npy, .npz or idx files")
        before = len(found)
        if path.is_dir() or path.suffix.lower() == ".png":
            files = png_files(path) if path.is_dir() else [path]
            pngs += range(len(found), len(found) + len(files))
            found += [(str(file), read_png(file)) for file in files]
        else:
            found += [(f"{path}[{n}]", image) for n, image in enumerate(_images_in(path, levels))]
        if len(found) == before:
            raise ValueError(f"{path} holds no image: leave it out, or write it again")
    if any((found[n][1] >= levels).any() for n in pngs):
        for n in pngs:
            found[n] = found[n][0], ((levels - 1) / 255 * found[n][1]).round().astype(np.uint8)
    return found


def _images_in(path: Path, levels: int) -> np.ndarray:
    if path.suffix.lower() in (".npy", ".npz"):
        arrays = _load(path)
        key = "x_test" if "x_test" in arrays else next(iter(arrays), "")
        if len(arrays) > 1 and key != "x_test" or not arrays:
            raise ValueError(f"{path} holds {', '.join(arrays) or 'no array'}: save the images alone, or as x_test")
        X = arrays[key]
        return grey_bytes(X[None] if X.ndim == 2 else X, str(path), levels)
    if "-ubyte" in path.name.lower() or input_head(path).startswith(b"\0\0\x08"):
        return read_idx(path, dimensions=3)
    raise ValueError(f"{path} is no file of images: name PNGs, folders of PNGs, .npy, .npz or idx files (*-idx3-ubyte)")


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_input(path) as file:
            content: Any = np.load(file, allow_pickle=False)
            arrays = {"": content} if isinstance(content, np.ndarray) else {key: content[key] for key in content.files}
    except Exception as error:  # those of NumPy, tokenize, zipfile and zlib
        raise ValueError(f"{path} cannot be read ({error}): write it again, with numbers only") from error
    if other := [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{path} holds {other[0]}, which is no array: write it again, np.savez(file, x_train=..., ...)")
    return arrays


def _label_bytes(Y: np.ndarray, name: str) -> np.ndarray:
    Y = Y[:, 0] if Y.ndim == 2 and Y.shape[1] == 1 else Y
    if Y.ndim != 1 or Y.dtype.kind not in "iu" or (Y.size and not 0 <= Y.min() <= Y.max() < _most_classes):
        raise ValueError(f"{name}: {Y.dtype} of the shape {Y.shape}: give one integer per image, 0 .. {_most_classes - 1}")
    return Y.astype(np.uint8)

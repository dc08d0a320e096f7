"""Files that are seen whole or not at all, also after a kill or a crash in the middle of writing them."""

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under another name, to the disk, and only then rename it.

    Args:
        path: of the file.
        write: called with the open file.

    Raises:
        ValueError: it cannot be written; what was there before stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ValueError(f"{path} cannot be written ({error.strerror}): make room, or choose another folder") from error


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as one .npz file, whole or not at all; zip keeps a checksum of each.

    Raises:
        ValueError: it cannot be written.
    """
    write_whole(path, lambda file: np.savez(file, **arrays))  # pyright: ignore[reportArgumentType]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that `save_arrays` wrote.

    Raises:
        ValueError: a damaged file, by its name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_arrays(Path(folder, "a.npz"), {"x": np.arange(3)})
        ...     load_arrays(Path(folder, "a.npz"))
        {'x': array([0, 1, 2])}
    """
    try:
        with open(path, "rb") as file:
            arrays = np.load(file, allow_pickle=False)
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and what it holds is made again") from error

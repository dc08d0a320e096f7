"""Paths that a user gives, and files that a reader sees whole or not at all, even after a crash while they are written."""

import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np


def local_path(path: str | os.PathLike, flag: str = "--out") -> Path:
    """The path of a folder or file on this machine, with a leading `~` expanded.

    Args:
        path: as the user gave it.
        flag: of the command line, for the message.

    Raises:
        ValueError: an empty path, the address of a remote store, or the home folder of an unknown user.

    Example:
        >>> local_path("gs://bucket/run")
        Traceback (most recent call last):
        ...
        ValueError: --out gs://bucket/run: give a path on this machine (a mounted bucket is one) and copy the result
    """
    given = os.fspath(path)
    if not given.strip():
        raise ValueError(f"{flag} {given!r}: give a path, such as runs/demo")
    if "://" in given:
        raise ValueError(f"{flag} {given}: give a path on this machine (a mounted bucket is one) and copy the result")
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{flag} {given}: {error}; give the whole path") from error


def check_writable(path: str | os.PathLike, flag: str) -> Path:
    """The path of a file that can be written, for a check before long work; its folder is made.

    Args:
        path: as the user gave it.
        flag: of the command line, for the message.

    Raises:
        ValueError: a folder, or a place where nothing can be written; those of `local_path`.

    Example:
        >>> check_writable("/", "--export")
        Traceback (most recent call last):
        ...
        ValueError: --export /: it is a folder; give the file to write
    """
    file = local_path(path, flag)
    if file.is_dir():
        raise ValueError(f"{flag} {path}: it is a folder; give the file to write")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be written ({error.strerror}): choose another place") from error
    return file


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, flush it to the disk, then rename it.

    Args:
        path: of the file.
        write: called with the open file.

    Raises:
        ValueError: it cannot be written; the previous file stays.
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
    """Write arrays as one .npz file, which has a checksum of each, as `write_whole` does.

    Raises:
        ValueError: it cannot be written.
    """
    write_whole(path, lambda file: np.savez(file, **arrays))  # pyright: ignore[reportArgumentType]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that `save_arrays` wrote.

    Raises:
        ValueError: the file is damaged; the message names it.

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
        raise ValueError(f"{path} is damaged ({error}): delete it and run the command again, which writes it anew") from error

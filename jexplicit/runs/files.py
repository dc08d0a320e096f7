"""Paths of users, and files that are written whole."""

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np  # and where it is needed: --help does without it


def local_path(path: str | os.PathLike, flag: str = "path") -> Path:
    """The whole path of a user's file or folder, whatever `os.chdir` does later.

    Raises:
        ValueError: no path, the address of a remote store, or `~` where no home folder is known.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{flag} {path!r} of type {type(path).__name__}: give a path, such as runs/demo")
    given = os.fspath(path)
    if not given.strip():
        raise ValueError(f"{flag} {given!r}: give a path, such as runs/demo")
    if "://" in given:
        raise ValueError(f"{flag} {given}: give a path on this machine (a mounted bucket is one) and copy the result")
    try:
        return Path(given).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no home folder, or a working folder that was removed
        raise ValueError(f"{flag} {given}: set HOME, or give the whole path ({error})") from error


def file_inside(folder: Path, name: object, index: str | os.PathLike) -> Path:
    """The path of a file that an index in the same folder names.

    Raises:
        ValueError: a name that leads out of the folder, itself or by a link; into `blobs` of Hugging Face's cache it may.
    """
    path = folder / str(name)
    if isinstance(name, str) and name == path.name and "\0" not in name:
        home, target = path.resolve().parent, folder.resolve()
        if home == target or home in [parent / "blobs" for parent in target.parents]:
            return path
    raise ValueError(f"{index} names the file {name!r}, which is not in its folder: restore it, or write the folder again")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, one that is nested too deeply, or an object with two values of one name.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = max(fields, key=[name for name, _ in pairs].count)
        raise ValueError(f"two values of {twice!r}, rename one")
    return fields


def check_writable(path: str | os.PathLike, flag: str) -> Path:
    """The path of a writable file, checked before long work; its folder is created."""
    file = local_path(path, flag)
    if file.is_dir():
        raise ValueError(f"{flag} {path}: it is a folder; give the file to write")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be written ({error.strerror}): choose another place") from error
    return file


def make_folder(folder: Path) -> None:
    """Make a folder and those that it lies in, where they are missing.

    Raises:
        ValueError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written ({error.strerror}): choose another folder") from error


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, flush it, then rename it."""
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


def plain(value: Any) -> Any:
    """A number or array as JSON, the `default` of `json.dumps`."""
    if not hasattr(value, "tolist"):
        raise ValueError(f"{value!r} is of type {type(value).__name__}: give numbers, strings, lists or dicts of these")
    return value.tolist()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, as `jexplicit.runs.files.write_whole`."""
    text = json.dumps(value, indent=1, default=plain) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def save_arrays(path: Path, arrays: "Mapping[str, np.ndarray]") -> None:
    """Write arrays as one .npz file, atomically."""
    import numpy as np

    write_whole(path, lambda file: np.savez(file, **arrays))  # pyright: ignore[reportArgumentType]


def load_arrays(path: Path) -> "dict[str, np.ndarray]":
    """The arrays of a file of `save_arrays`."""
    import numpy as np

    try:
        with open(path, "rb") as file:
            arrays = np.load(file, allow_pickle=False)
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run the command again, which writes it anew") from error

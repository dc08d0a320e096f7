"""Arrays in files, written whole, with checksums."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jexplicit.runs.files import write_whole


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as one .npz file, which has a checksum per array, atomically as `write_whole`."""
    write_whole(path, lambda file: np.savez(file, **arrays))  # pyright: ignore[reportArgumentType]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of `save_arrays`."""
    try:
        with open(path, "rb") as file:
            arrays = np.load(file, allow_pickle=False)
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run the command again, which writes it anew") from error

"""Arrays in files: written whole, with checksums; and arrays that grow, in a file or in memory."""

import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

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


class ArrayFile:
    """A growing one-axis array in an anonymous file in `folder` (default: temporary), which is deleted with the process."""

    def __init__(self, dtype: DTypeLike, folder: str | Path | None = None):
        self.dtype, self._folder, self._length = np.dtype(dtype), folder, 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder)
        except OSError as error:
            raise self._error(error) from error
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._length

    def append(self, values: np.ndarray) -> None:
        """Append values."""
        try:
            self._file.seek(0, 2)
            self._file.write(values.astype(self.dtype, copy=False).tobytes())
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error
        self._length += len(values)

    def read(self, start: int, stop: int) -> np.ndarray:
        """A copy of a part in memory; pages of a map would stay resident."""
        self._file.seek(start * self.dtype.itemsize)
        return np.fromfile(self._file, self.dtype, stop - start)

    def map(self) -> np.ndarray:
        """The whole array, memory-mapped."""
        file: Any = self._file
        return np.memmap(file, self.dtype, "r") if self._length else np.zeros(0, self.dtype)

    def _error(self, error: OSError) -> ValueError:
        folder = self._folder or tempfile.gettempdir()
        return ValueError(
            f"{error.strerror}: counts do not fit in {folder}; use a scratch folder with more room, or more memory"
        )


class ArrayParts:
    """An `ArrayFile` in memory: parts that are concatenated at the end."""

    def __init__(self, dtype: DTypeLike):
        self.dtype, self._parts = np.dtype(dtype), []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def append(self, values: np.ndarray) -> None:
        """Append values."""
        self._parts.append(values.astype(self.dtype, copy=False))

    def map(self) -> np.ndarray:
        """The whole array; the parts are released."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

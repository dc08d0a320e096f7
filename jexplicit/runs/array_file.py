"""Arrays that grow: in memory, or in files without a name, for what memory should not hold."""

import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


class ArrayFile:
    """An array of one axis in a file without a name, which goes with it however the process ends.

    Args:
        dtype: of the array.
        folder: where; default, the system's temporary folder.

    Raises:
        ValueError: the folder is full, here or later.

    Example:
        >>> array = ArrayFile(np.int32)
        >>> array.append(np.array([5, 6]))
        >>> array.append(np.array([7]))
        >>> array.read(1, 3).tolist(), array.map().tolist()
        ([6, 7], [5, 6, 7])
    """

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
        """Put values at the end."""
        try:
            self._file.seek(0, 2)
            self._file.write(values.astype(self.dtype, copy=False).tobytes())
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error
        self._length += len(values)

    def read(self, start: int, stop: int) -> np.ndarray:
        """A part of it in memory: what is mapped stays resident after its use."""
        self._file.seek(start * self.dtype.itemsize)
        return np.fromfile(self._file, self.dtype, stop - start)

    def map(self) -> np.ndarray:
        """All of it, of which only what is read comes into memory."""
        file: Any = self._file
        return np.memmap(file, self.dtype, "r") if self._length else np.zeros(0, self.dtype)

    def _error(self, error: OSError) -> ValueError:
        folder = self._folder or tempfile.gettempdir()
        return ValueError(
            f"{error.strerror}: counts do not fit in {folder}; use a scratch folder with more room, or more memory"
        )


class ArrayParts:
    """The same in memory, where the parts wait to become one array."""

    def __init__(self, dtype: DTypeLike):
        self.dtype, self._parts = np.dtype(dtype), []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def append(self, values: np.ndarray) -> None:
        """Put values at the end."""
        self._parts.append(values.astype(self.dtype, copy=False))

    def map(self) -> np.ndarray:
        """All of it, handed over: nothing is kept here."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

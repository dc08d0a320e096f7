"""Tables of counts, dense or sparse, and how many of them become one: a log-structured merge.

Tables of like size are added up, as the levels of a log-structured merge tree are, so that n pairs cost O(n log n) whatever
they come from: blocks of a stream (jexplicit.counts.sparse), parts of a corpus (jexplicit.counts.beam), processes. Tables that
pass a budget of memory wait in files and are added up a few rows at a time. Counts stay integers: no order of merging or
spilling changes one.

Source: O'Neil et al. 1996, The log-structured merge-tree.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer
from scipy.sparse import csr_array

from jexplicit.runs.arrays import ArrayFile

Counts = tuple[Integer[np.ndarray, "N N"], ...]
"""C_1 .. C_K on the host: int32, or int64 once a cell could pass 2^31. Column PAD counts the ends of documents."""

SparseCounts = tuple[csr_array, ...]
"""The same with sorted columns in every row; `toarray` makes a table dense."""

INT32_CELLS = 2**31
CSR = ("data", "indices", "indptr")  # the arrays of a sparse table


def merge_counts(*parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Counts of several bodies of text together, `C_k + C'_k + ...`, in int64 where a cell could pass 2^31.

    Args:
        parts: `Counts`, or `SparseCounts`; an empty tuple is the counts of no text.

    Raises:
        ValueError: counts of different radius or vocabulary; counts that are no integers, or negative.

    Example:
        >>> C = (np.full((1, 1), 2**31 - 1, np.int32),)
        >>> merge_counts(C, C)[0].item(), merge_counts(C, C)[0].dtype.name
        (4294967294, 'int64')
    """
    parts = tuple(counts for counts in parts if counts)
    if len(parts) < 2:
        return parts[0] if parts else ()
    K, N = len(parts[0]), parts[0][0].shape[0]
    for counts in parts:
        if (len(counts), *counts[0].shape) != (K, *parts[0][0].shape):
            raise ValueError(
                f"counts of {K} offsets and vocabulary {N} do not merge with {len(counts)} offsets and vocabulary "
                f"{counts[0].shape[0]}: count both with the same radius and tokenizer"
            )
        if not all(np.issubdtype(C.dtype, np.integer) and C.shape == counts[0].shape and C.min() >= 0 for C in counts):
            found = ", ".join(f"{C.dtype} {C.shape} from {C.min()}" for C in counts)
            raise ValueError(
                f"counts of {found}: pass tables of integers of at least 0, all of one shape, as they were counted"
            )
    trees = [MergeTree(N) for _ in range(K)]
    for counts in parts:
        for tree, C in zip(trees, counts, strict=True):
            tree.add(C)
    return tuple(tree.total() for tree in trees)


def merge_offsets(counts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The one table `sum_k C_k`, from which a table that all offsets share is solved."""
    return merge_counts(*((C,) for C in counts))


def add_tables(x: Any, y: Any) -> Any:
    """The sum of two tables, in int64 where a cell could pass 2^31."""
    dtype = np.int32 if int(x.max()) + int(y.max()) < INT32_CELLS else np.int64
    return (x.astype(dtype, copy=False) + y).astype(dtype, copy=False)


def sparse_table(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, *, vocab_size: int | None = None) -> csr_array:
    """The rows of a table with these cells, sorted by row and column; they are copied only to make their index type smaller.

    Args:
        data, indices, indptr: of the CSR format.
        vocab_size: N, the number of columns; default, that of rows.
    """
    index_type, rows = np.int32 if len(indices) < 2**31 else np.int64, len(indptr) - 1
    parts = (data, indices.astype(index_type, copy=False), indptr.astype(index_type, copy=False))
    return csr_array(parts, shape=(rows, vocab_size or rows))


class MergeTree:
    """The sum of tables [N, N] that arrive one by one; each table in it is at least twice as large as the next.

    Args:
        vocab_size: N.
        pairs: pairs of context and target in memory at a time while files are added up.
        scratch: folder for the files, which have no name; default, the system's temporary folder.

    Example:
        >>> tree, C = MergeTree(2), csr_array(np.array([[0, 3], [1, 0]], np.int32))
        >>> for _ in range(5):
        ...     tree.add(C)
        >>> tree.total().toarray().tolist()
        [[0, 15], [5, 0]]
    """

    def __init__(self, vocab_size: int, *, pairs: int = 1, scratch: str | Path | None = None):
        self._N, self._pairs, self._scratch = vocab_size, pairs, scratch
        self.tables: list[Any] = []  # in memory, of which dense ones are all of one size
        self.files: list[_TableFile] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the sparse tables in memory."""
        return sum(getattr(C, name).nbytes for C in self.tables for name in CSR)

    def add(self, table: Any) -> None:
        """Add a table."""
        _push(self.tables, table, _sum)

    def spill(self) -> None:
        """Move the tables in memory to a file.

        Raises:
            ValueError: the scratch folder is full.
        """
        if self.tables:
            _push(self.files, self._sum_in_file(self.tables), self._sum_in_file)
            self.tables.clear()

    def total(self) -> Any:
        """The sum of all tables so far, mapped from a file if any were spilled; more may be added afterwards."""
        if self.files:
            if len(self.files) + len(self.tables) > 1:
                self.files[:] = [self._sum_in_file([*self.files, *self.tables])]
                self.tables.clear()
            return self.files[0].mapped()
        if len(self.tables) != 1:
            zero = csr_array((self._N, self._N), dtype=np.int32)
            self.tables[:] = [_sum([zero, *self.tables[::-1]])]  # the smallest first
        return self.tables[0]

    def _sum_in_file(self, tables: "list[csr_array | _TableFile]") -> "_TableFile":
        """The sum of tables, made from a few rows at a time."""
        row, before = 0, functools.reduce(np.add, [C.indptr.astype(np.int64) for C in tables])
        total = _TableFile(np.int32 if sum(int(C.max()) for C in tables) < INT32_CELLS else np.int64, self._scratch)
        while row < self._N:
            stop = max(row + 1, int(np.searchsorted(before, before[row] + self._pairs, "right")) - 1)
            total.append(_sum(C[row:stop] for C in tables))
            row = stop
        return total


def _push(tables: list[Any], table: Any, total: Callable[[list[Any]], Any]) -> None:
    """Put a table on top of larger ones: while the one below is less than twice as large, they become one."""
    tables.append(table)
    while len(tables) > 1 and tables[-2].size < 2 * tables[-1].size:
        tables[-2:] = [total(tables[-2:])]


def _sum(tables: Iterable[Any]) -> Any:
    return functools.reduce(add_tables, tables)


class _TableFile:
    """A table whose cells and columns are in files: as much of csr_array as a sum in files takes."""

    def __init__(self, dtype: type, scratch: str | Path | None):
        self.indptr, self._largest = np.zeros(1, np.int64), 0
        self._cells, self._columns = ArrayFile(dtype, scratch), ArrayFile(np.int32, scratch)

    @property
    def size(self) -> int:
        return len(self._cells)

    def max(self) -> int:
        return self._largest

    def append(self, rows: csr_array) -> None:
        self.indptr = np.concatenate([self.indptr, self.size + rows.indptr[1:].astype(np.int64)])
        self._cells.append(rows.data)
        self._columns.append(rows.indices)
        self._largest = max(self._largest, int(rows.max()))

    def __getitem__(self, rows: slice) -> csr_array:
        start, stop = (int(self.indptr[row]) for row in (rows.start, rows.stop))
        indptr = self.indptr[rows.start : rows.stop + 1] - start
        return sparse_table(
            self._cells.read(start, stop), self._columns.read(start, stop), indptr, vocab_size=len(self.indptr) - 1
        )

    def mapped(self) -> csr_array:
        """The table, of which only what is read comes into memory."""
        return sparse_table(self._cells.map(), self._columns.map(), self.indptr)

"""Sparse tables of counts, and how many of them become one: a log-structured merge.

Tables of like size are added up, as the levels of a log-structured merge tree are, so that n pairs cost O(n log n) whatever
they come from: blocks of a stream (jexplicit.counts.sparse), parts of a corpus (jexplicit.counts.beam), processes. Tables that
pass a budget of memory wait in files and are added up a few rows at a time. Counts stay integers: no order of merging or
spilling changes one.

Source: O'Neil et al. 1996, The log-structured merge-tree.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from jexplicit.counts.dense import INT32_CELLS, Counts, check_same_shape
from jexplicit.runs.files import ArrayFile

SparseCounts = tuple[csr_array, ...]
"""C_1 .. C_K, [N, N] each, with sorted columns in every row: int32, or int64 once a cell could pass 2^31."""

_PARTS = ("data", "indices", "indptr")


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
        self._tables: list[csr_array] = []
        self._files: list[_TableFile] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the tables in memory."""
        return sum(C.data.nbytes + C.indices.nbytes + C.indptr.nbytes for C in self._tables)

    @property
    def files(self) -> int:
        """How many tables wait in files."""
        return len(self._files)

    def add(self, table: csr_array) -> None:
        """Add a table."""
        _push(self._tables, table, _sum)

    def spill(self) -> None:
        """Move the tables in memory to a file.

        Raises:
            ValueError: the scratch folder is full.
        """
        if self._tables:
            _push(self._files, self._sum_in_file(self._tables), self._sum_in_file)
            self._tables.clear()

    def total(self) -> csr_array:
        """The sum of all tables so far, mapped from a file if any were spilled; more may be added afterwards."""
        if self._files:
            if len(self._files) + len(self._tables) > 1:
                self._files[:] = [self._sum_in_file([*self._files, *self._tables])]
                self._tables.clear()
            return self._files[0].mapped()
        if len(self._tables) != 1:
            zero = csr_array((self._N, self._N), dtype=np.int32)
            self._tables[:] = [_sum([zero, *self._tables[::-1]])]  # the smallest first
        return self._tables[0]

    def _sum_in_file(self, tables: "Sequence[csr_array | _TableFile]") -> "_TableFile":
        """The sum of tables, made from a few rows at a time."""
        row = 0
        in_rows = functools.reduce(np.add, [np.diff(C.indptr).astype(np.int64) for C in tables])
        before = np.concatenate([[0], np.cumsum(in_rows)])
        total = _TableFile(np.int32 if sum(map(_largest, tables)) < INT32_CELLS else np.int64, self._scratch)
        while row < self._N:
            stop = max(row + 1, int(np.searchsorted(before, before[row] + self._pairs, "right")) - 1)
            total.append(_sum([_rows(C, row, stop) for C in tables]))
            row = stop
        return total


def merge_sparse(*parts: SparseCounts) -> SparseCounts:
    """Counts of several bodies of text together, `C_k + C'_k + ...`, in int64 where a cell could pass 2^31.

    An empty tuple is the counts of no text.

    Raises:
        ValueError: counts of different radius or vocabulary.

    Example:
        >>> C = (csr_array(np.full((1, 1), 2**31 - 1, np.int32)),)
        >>> merge_sparse(C, C)[0].data.item(), merge_sparse(C, C)[0].dtype.name
        (4294967294, 'int64')
    """
    parts = tuple(counts for counts in parts if counts)
    if len(parts) < 2:
        return parts[0] if parts else ()
    check_same_shape(parts)
    trees = [MergeTree(_rows_of(C)) for C in parts[0]]
    for counts in parts:
        for tree, C in zip(trees, counts, strict=True):
            tree.add(C)
    return tuple(tree.total() for tree in trees)


def sparse_table(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray) -> csr_array:
    """The table [N, N] with these cells, sorted by row and column; they are copied only to make their index type smaller."""
    return _table(data, indices, indptr, len(indptr) - 1)


def to_arrays(counts: SparseCounts) -> dict[str, np.ndarray]:
    """The tables as named arrays, `data_1`, `indices_1`, `indptr_1`, ..., of which `from_arrays` makes them again."""
    return {f"{name}_{k}": getattr(C, name) for k, C in enumerate(counts, start=1) for name in _PARTS}


def from_arrays(arrays: Mapping[str, np.ndarray], radius: int) -> SparseCounts:
    """The tables C_1 .. C_K of `to_arrays`."""
    return tuple(sparse_table(*(arrays[f"{name}_{k}"] for name in _PARTS)) for k in range(1, radius + 1))


def dense_counts(counts: SparseCounts) -> Counts:
    """Sparse tables as dense ones, as `jexplicit.counts.dense.count` gives them."""
    return tuple(C.toarray() for C in counts)


def _push(tables: list[Any], table: Any, total: Callable[[list[Any]], Any]) -> None:
    """Put a table on top of larger ones: while the one below is less than twice as large, they become one."""
    tables.append(table)
    while len(tables) > 1 and tables[-2].nnz < 2 * tables[-1].nnz:
        tables[-2:] = [total(tables[-2:])]


def _sum(tables: list[csr_array]) -> csr_array:
    return functools.reduce(_add, tables)


def _add(x: csr_array, y: csr_array) -> csr_array:
    dtype = np.int32 if _largest(x) + _largest(y) < INT32_CELLS else np.int64
    return _canonical(x.astype(dtype, copy=False) + y.astype(dtype, copy=False))


def _table(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, N: int) -> csr_array:
    """Rows of N columns."""
    index_type = np.int32 if len(indices) < 2**31 else np.int64
    parts = (data, indices.astype(index_type, copy=False), indptr.astype(index_type, copy=False))
    return _canonical(csr_array(parts, shape=(len(indptr) - 1, N)))


def _canonical(table: Any) -> csr_array:
    """The table, marked as having sorted rows without duplicates: its sums are then merges."""
    table.has_canonical_format = True
    return table


class _TableFile:
    """A table whose cells and columns are in files."""

    def __init__(self, dtype: type, scratch: str | Path | None):
        self.indptr, self.largest = np.zeros(1, np.int64), 0
        self._cells, self._columns = ArrayFile(dtype, scratch), ArrayFile(np.int32, scratch)

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1])

    def append(self, rows: csr_array) -> None:
        self._cells.append(rows.data)
        self._columns.append(rows.indices)
        self.indptr = np.concatenate([self.indptr, self.nnz + rows.indptr[1:].astype(np.int64)])
        self.largest = max(self.largest, _largest(rows))

    def rows(self, start: int, stop: int) -> csr_array:
        where = int(self.indptr[start]), int(self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - where[0]
        return _table(self._cells.read(*where), self._columns.read(*where), indptr, _rows_of(self))

    def mapped(self) -> csr_array:
        """The table, of which only what is read comes into memory."""
        return sparse_table(self._cells.map(), self._columns.map(), self.indptr)


def _rows(C: csr_array | _TableFile, start: int, stop: int) -> csr_array:
    return C.rows(start, stop) if isinstance(C, _TableFile) else _canonical(C[start:stop])


def _rows_of(C: csr_array | _TableFile) -> int:
    return len(C.indptr) - 1


def _largest(C: csr_array | _TableFile) -> int:
    return C.largest if isinstance(C, _TableFile) else int(C.data.max(initial=0))

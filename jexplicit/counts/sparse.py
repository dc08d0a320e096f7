"""Co-occurrence counts of large vocabularies, as sparse tables made by sorting.

A dense table has N² cells, most of them zero: with 128,000 tokens it takes 65 GB. Here a block of pairs becomes sorted
keys `j * N + i`, which runs of equal keys turn into counts: a sparse table. Tables of like size are added up, as the levels
of a log-structured merge tree are, so that n pairs cost O(n log n); those that pass a budget of memory wait in files and are
added up a few rows at a time. Counts stay integers: no size of block, order of merging or spilling changes one.

Two thirds of the time is NumPy's sort. On AMD processors of family 25 (Zen 4) its AVX-512 version takes five times as long as
the one for AVX2, which NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL" in the environment brings back.

Source: O'Neil et al. 1996, The log-structured merge-tree.
"""

import functools
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.sparse import csr_array

from jexplicit.counts.stream import Saving, check_stream, feed
from jexplicit.data.contexts import check_token_ids, context_columns
from jexplicit.data.shards import Stream
from jexplicit.runs.processes import gather_over_processes, part_of_process

SparseCounts = tuple[csr_array, ...]
"""C_1 .. C_K, [N, N] each, with sorted columns in every row: int32, or int64 once a cell could pass 2^31."""

_CELL_BOUND = 2**31
_block_positions = 1 << 20  # sorted at once: the keys of one offset are 8 MB
_bytes_per_key = 48  # of a block while it is sorted and its runs are counted
_least_memory = 1 << 20


class SparseCounter:
    """Counts a stream window by window: `C_k[j, i] = sum_m [x_{m-k} = j] [x_m = i]` for k = 1..K.

    Args:
        radius: K, the largest offset in tokens.
        vocab_size: N, the number of token ids.
        memory: bytes that counting may take beside the windows; counts beyond wait in files, and so do the tables then.
            Default: no bound, no files.
        scratch: folder for those files, which have no name and go with the tables; default, the system's temporary folder.

    Raises:
        ValueError: K < 1, N < 1 or N > 2^31, or a memory too small to count in.

    Example:
        >>> counter = SparseCounter(1, 3)
        >>> counter.add(np.array([0, 1, 2, 0, 1, 0]))
        >>> C, = counter.tables()
        >>> C.toarray().tolist()  # rows: the context <pad>, 1, 2; columns: the target
        [[0, 2, 0], [1, 0, 1], [1, 0, 0]]

    Source: paper, Eq. 2 and Sec. 3.1.
    """

    def __init__(self, radius: int, vocab_size: int, *, memory: int | None = None, scratch: str | Path | None = None):
        if radius < 1:
            raise ValueError(f"radius K = {radius}: a context needs at least one token; use K >= 1")
        if not 1 <= vocab_size <= 2**31:
            raise ValueError(f"vocabulary {vocab_size}: sparse counts take token ids below 2^31; use 1 <= N <= 2^31")
        least = _least_memory + 128 * radius * vocab_size  # some tables per offset, each with 4 bytes per row
        if memory is not None and memory < least:
            raise ValueError(
                f"memory of {memory} bytes: sparse counts of {radius} offsets and vocabulary {vocab_size} need at least {least}"
            )
        self.radius, self.vocab_size, self.positions = radius, vocab_size, 0
        self._memory, self._scratch = memory, scratch
        # A quarter of the memory for keys, a quarter for tables; their sum takes as much again while it is made.
        self._block = min(_block_positions, memory // 4 // (8 * radius + _bytes_per_key)) if memory else _block_positions
        self._keys: list[list[np.ndarray]] = [[] for _ in range(radius)]
        self._waiting = 0  # positions in _keys
        self._tables: list[list[csr_array]] = [[] for _ in range(radius)]
        self._spilled: list[list[_FileTable]] = [[] for _ in range(radius)]

    @property
    def span(self) -> int:
        """Positions that it sorts at once."""
        return self._block

    def add(self, window: np.ndarray) -> None:
        """Count the targets `window[K:]` with the K tokens before each; the first K tokens serve as context only.

        Raises:
            ValueError: a window that is not of integers or shorter than K, or a token id out of range.
        """
        K, N = self.radius, self.vocab_size
        window = np.asarray(window)
        if window.ndim != 1 or not np.issubdtype(window.dtype, np.integer) or len(window) < K:
            raise ValueError(
                f"a {window.dtype} window of shape {window.shape}: pass one axis of integers, K = {K} context tokens before "
                "the targets"
            )
        if len(window) == K:
            return
        check_token_ids(window, N, f"in a vocabulary of {N}: ids are 0 .. N - 1; pass the tokenizer's vocab_size")
        key_type = np.uint32 if N * N <= 2**32 else np.int64
        for start in range(0, len(window) - K, self._block):
            part = window[start : start + K + self._block]
            i = part[K:].astype(key_type)
            for keys, j in zip(self._keys, context_columns(part, K), strict=True):
                keys.append(j.astype(key_type) * key_type(N) + i)
            self._waiting += len(i)
            if self._waiting >= self._block:
                self._sort()
        self.positions += len(window) - K

    def tables(self) -> SparseCounts:
        """C_1 .. C_K of all windows so far; counting may go on afterwards."""
        self._sort()
        return tuple(self._table_of(k) for k in range(self.radius))

    def state(self) -> dict[str, np.ndarray]:
        """The counts as plain arrays, for a checkpoint; `restore` takes them back."""
        state = {name: np.array(getattr(self, name), np.int64) for name in ("radius", "vocab_size", "positions")}
        for k, C in enumerate(self.tables(), start=1):
            state |= {f"indptr_{k}": C.indptr, f"indices_{k}": C.indices, f"data_{k}": C.data}
        return state

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from the `state` of another counter: what is counted next adds to the same counts.

        Raises:
            ValueError: a state of another radius or vocabulary, with an array missing, or whose counts are not those of its
                positions.
        """
        N, sizes = self.vocab_size, ("radius", "vocab_size", "positions")
        try:
            radius, vocab_size, positions = (int(state[name]) for name in sizes)
            parts = [tuple(state[f"{name}_{k + 1}"] for name in ("data", "indices", "indptr")) for k in range(radius)]
        except KeyError as error:
            raise ValueError(f"a state of sparse counts without {error}: it is damaged; use an older checkpoint") from error
        if (radius, vocab_size) != (self.radius, N):
            raise ValueError(
                f"a state of radius {radius} and vocabulary {vocab_size} for a counter of {self.radius} and {N}: count with "
                "the same radius and tokenizer"
            )
        self.positions = positions
        for k, (data, indices, indptr) in enumerate(parts):
            counted = int(data.sum(dtype=np.int64))
            whole = len(indptr) == N + 1 and len(data) == len(indices) == indptr[-1]
            if not whole or counted != positions:
                raise ValueError(
                    f"a state of sparse counts with {counted} pairs at offset {k + 1} for {positions} positions: "
                    "it is damaged; use an older checkpoint"
                )
            self._tables[k] = [_table(data, indices, indptr, N)]
        self._spill_beyond_memory()

    def _sort(self) -> None:
        """Turn the waiting keys into one table per offset, and add up tables of like size."""
        if not self._waiting:
            return
        for k, keys in enumerate(self._keys):
            block = np.concatenate(keys)
            keys.clear()
            block.sort()
            _push(self._tables[k], _counted_runs(block, self.vocab_size), _sum)
        self._waiting = 0
        self._spill_beyond_memory()

    def _spill_beyond_memory(self) -> None:
        if self._memory is None or sum(_bytes(C) for tables in self._tables for C in tables) <= self._memory // 4:
            return
        for tables, spilled in zip(self._tables, self._spilled, strict=True):
            _push(spilled, self._sum_in_file(tables), self._sum_in_file)
            tables.clear()

    def _table_of(self, k: int) -> csr_array:
        tables, spilled = self._tables[k], self._spilled[k]
        if spilled:
            if len(tables) + len(spilled) > 1:
                spilled[:] = [self._sum_in_file([*spilled, *tables])]
                tables.clear()
            return spilled[0].mapped()
        if len(tables) != 1:
            zero = csr_array((self.vocab_size, self.vocab_size), dtype=np.int32)
            tables[:] = [_sum([zero, *tables[::-1]])]  # the smallest first
        return tables[0]

    def _sum_in_file(self, tables: Sequence["csr_array | _FileTable"]) -> "_FileTable":
        pairs = max((self._memory or 0) // 4 // 64, 1)  # up to 16 bytes each, in the tables, their sum and what is written
        return _sum_in_file(tables, pairs=pairs, scratch=self._scratch)


def count_sparse(
    stream: Stream,
    *,
    radius: int,
    vocab_size: int,
    memory: int | None = None,
    scratch: str | Path | None = None,
    saving: Saving | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SparseCounts:
    """The counts of `jexplicit.counts.dense.count` as sparse tables, for vocabularies that no dense table holds.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`: an array, a memory map, or shards.
        radius: K, the largest offset in tokens.
        vocab_size: N, the number of token ids.
        memory, scratch: bytes and folder of `SparseCounter`.
        saving: where partial counts are kept, for a killed pass to go on from; default, nowhere.
        progress: called with (positions done, positions in all), of this process.

    Returns:
        K tables [N, N], of all processes together, in each of them.

    Raises:
        ValueError: a token id out of range, a malformed stream, or an error of `SparseCounter`.

    Example:
        >>> C, = count_sparse(np.array([0, 1, 2, 0, 1, 0], np.uint8), radius=1, vocab_size=3)
        >>> C.nnz, C[0, 1].item()
        (4, 2)
    """
    check_stream(stream)
    counter = SparseCounter(radius, vocab_size, memory=memory, scratch=scratch)
    first, last = part_of_process(1, len(stream))
    feed(counter, stream, first, last, saving=saving, progress=progress)
    return _sum_over_processes(counter.tables())


def merge_sparse(a: SparseCounts, b: SparseCounts) -> SparseCounts:
    """Counts of two bodies of text together, `C_k + C'_k`, in int64 where a cell could pass 2^31.

    An empty tuple is the counts of no text.

    Example:
        >>> C = (csr_array(np.full((1, 1), 2**31 - 1, np.int32)),)
        >>> merge_sparse(C, C)[0].data.item(), merge_sparse(C, C)[0].dtype.name
        (4294967294, 'int64')
    """
    if not a or not b:
        return a or b
    if len(a) != len(b) or a[0].shape != b[0].shape:
        raise ValueError(
            f"counts of {len(a)} offsets and vocabulary {_rows_of(a[0])} do not merge with {len(b)} offsets and vocabulary "
            f"{_rows_of(b[0])}: count both with the same radius and tokenizer"
        )
    return tuple(_add(x, y) for x, y in zip(a, b, strict=True))


def _sum_over_processes(tables: SparseCounts) -> SparseCounts:
    """The tables of all processes merged, in each of them."""
    if jax.process_count() == 1:
        return tables
    N, merged = _rows_of(tables[0]), []
    for C in tables:
        data, indices = gather_over_processes(C.data.astype(np.int64)), gather_over_processes(C.indices)
        in_rows = gather_over_processes(np.diff(C.indptr).astype(np.int64)[None])  # [processes, N]
        ends = np.cumsum(in_rows.sum(axis=1))
        total = csr_array((N, N), dtype=np.int32)
        for rows, end in zip(in_rows, ends, strict=True):
            own = slice(end - rows.sum(), end)
            total = _add(_canonical(total), _table(data[own], indices[own], np.concatenate([[0], np.cumsum(rows)]), N))
        merged.append(total)
    return tuple(merged)


def _counted_runs(keys: np.ndarray, N: int) -> csr_array:
    """Sorted keys `j * N + i` as a table: a run of n equal keys is a cell of count n."""
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    n = np.diff(first, append=len(keys)).astype(np.int32)
    distinct = keys[first]
    row_starts = np.arange(N + 1, dtype=np.int64) * N
    indptr = np.searchsorted(distinct.astype(np.int64), row_starts)
    return _table(n, (distinct % distinct.dtype.type(N)).astype(np.int32), indptr, N)


def sparse_table(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray) -> csr_array:
    """The table [N, N] with these cells, as they were read from another one."""
    return _table(data, indices, indptr, len(indptr) - 1)


def _table(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, N: int) -> csr_array:
    """The table with these cells and N columns, without a copy of them if their index type is the smallest that fits."""
    index_type = np.int32 if len(indices) < 2**31 else np.int64
    table = csr_array(
        (data, indices.astype(index_type, copy=False), indptr.astype(index_type, copy=False)), shape=(len(indptr) - 1, N)
    )
    return _canonical(table)


def _canonical(table: Any) -> csr_array:
    """The table, marked as having sorted rows without duplicates: its sums are then merges."""
    table.has_canonical_format = True
    return table


def _rows_of(C: csr_array) -> int:
    return len(C.indptr) - 1


def _add(x: csr_array, y: csr_array) -> csr_array:
    fits = int(x.data.max(initial=0)) + int(y.data.max(initial=0)) < _CELL_BOUND
    total = x.astype(np.int32 if fits else np.int64, copy=False) + y.astype(np.int32 if fits else np.int64, copy=False)
    return _canonical(total)


def _push(tables: list[Any], table: Any, total: Callable[[list[Any]], Any]) -> None:
    """Put a table on top of larger ones: while the one below is less than twice as large, they become one."""
    tables.append(table)
    while len(tables) > 1 and tables[-2].nnz < 2 * tables[-1].nnz:
        tables[-2:] = [total(tables[-2:])]


def _sum(tables: list[csr_array]) -> csr_array:
    return functools.reduce(_add, tables)


def _sum_in_file(tables: Sequence["csr_array | _FileTable"], *, pairs: int, scratch: str | Path | None) -> "_FileTable":
    """The sum of tables, made from a few rows at a time that hold about so many pairs."""
    N, row = len(tables[0].indptr) - 1, 0
    in_rows = functools.reduce(np.add, [np.diff(C.indptr).astype(np.int64) for C in tables])
    before = np.concatenate([[0], np.cumsum(in_rows)])
    try:
        total = _FileTable(np.int32 if sum(_largest(C) for C in tables) < _CELL_BOUND else np.int64, scratch)
        while row < N:
            stop = max(row + 1, int(np.searchsorted(before, before[row] + pairs, "right")) - 1)
            total.append(_sum([_rows(C, row, stop) for C in tables]))
            row = stop
    except OSError as error:
        folder = scratch or tempfile.gettempdir()
        remedy = f"sparse counts do not fit in {folder}; use a scratch folder with more room, or more memory"
        raise ValueError(f"{error.strerror}: {remedy}") from error
    return total


class _FileTable:
    """A table in two files without a name, which go with it however the process ends."""

    def __init__(self, dtype: type, scratch: str | Path | None):
        self.indptr, self.largest = np.zeros(1, np.int64), 0
        self._files = []
        for kind in (dtype, np.int32):  # cells and columns
            file = tempfile.TemporaryFile(dir=scratch)
            weakref.finalize(self, file.close)
            self._files.append((file, np.dtype(kind)))

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1])

    def append(self, rows: csr_array) -> None:
        for (file, dtype), array in zip(self._files, (rows.data, rows.indices), strict=True):
            file.write(array.astype(dtype, copy=False).tobytes())
            file.flush()
        self.indptr = np.concatenate([self.indptr, self.nnz + rows.indptr[1:].astype(np.int64)])
        self.largest = max(self.largest, _largest(rows))

    def rows(self, start: int, stop: int) -> csr_array:
        """Rows that are read, not mapped: what is mapped stays resident after its use."""
        indptr = self.indptr[start : stop + 1] - self.indptr[start]
        parts = []
        for file, dtype in self._files:
            file.seek(int(self.indptr[start]) * dtype.itemsize)
            parts.append(np.fromfile(file, dtype, int(indptr[-1])))
        return _table(parts[0], parts[1], indptr, len(self.indptr) - 1)

    def mapped(self) -> csr_array:
        """The table, of which only what is read comes into memory."""
        parts = [np.memmap(file, dtype, "r") if self.nnz else np.zeros(0, dtype) for file, dtype in self._files]
        return _table(parts[0], parts[1], self.indptr, len(self.indptr) - 1)


def _rows(C: csr_array | _FileTable, start: int, stop: int) -> csr_array:
    return C.rows(start, stop) if isinstance(C, _FileTable) else _canonical(C[start:stop])


def _largest(C: csr_array | _FileTable) -> int:
    return C.largest if isinstance(C, _FileTable) else int(C.data.max(initial=0))


def _bytes(C: csr_array) -> int:
    return C.data.nbytes + C.indices.nbytes + C.indptr.nbytes

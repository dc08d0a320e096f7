"""Log-linear models of explicit rows: counting gives the rows, a handful of exponents weighs them.

Every feature g of a position names one row of a log table, and the logits are `sum_g a_g row_g`. A table is dense [R, N], or
sparse where most of its entries are the same: a constant along a row cancels in the softmax, so only the entries that differ
from it are kept. With the rows fixed the loss is convex in the exponents a (jexplicit.lm.fits.calibration).
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import pad_to
from jexplicit.lm.model import pytree
from jexplicit.lm.rows.threads import map_in_threads
from jexplicit.runs.devices import full_precision

_cells_of_rows = 1 << 21  # of a block on a CPU, all rows of its positions: they stay near the caches, and few copies are small
_cells_of_logits = 1 << 19  # of a block whose rows are summed
_long_row = 8  # a row with more than 1/8 of the outputs is faster to read with its zeros
_smallest_pad = 1 << 12  # sparse entries of a block are padded to a power of two, so that few shapes are compiled


class SparseRows(NamedTuple):
    """Sparse rows: row r adds `values[start[r]:start[r + 1]]` to the logits of `outputs[start[r]:start[r + 1]]`."""

    start: Any  # [R + 1] integers
    outputs: Any  # [E] token ids, of the smallest type that holds them
    values: Any  # [E] nats

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.start.nbytes + self.outputs.nbytes + self.values.nbytes

    @property
    def longest(self) -> int:
        """Entries of the longest row; at least 1, so that a row can always be read."""
        return max(1, int(np.diff(np.asarray(self.start)).max(initial=0)))


def sparse_row(rows: SparseRows, r: Integer[Array, ""], N: int, longest: int) -> Float[Array, " N"]:
    """Row r with its zeros, and zeros for r = -1: pure, with `longest` of the rows.

    Example:
        >>> rows = SparseRows(jnp.array([0, 0, 2]), jnp.array([2, 0]), jnp.array([5.0, 7.0]))
        >>> sparse_row(rows, jnp.array(1), 3, rows.longest).tolist()
        [7.0, 0.0, 5.0]
    """
    r = r.astype(jnp.int32)
    start = jnp.asarray(rows.start)
    first, last = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))
    e = first + jnp.arange(longest, dtype=jnp.int32)
    own = (e < last) & (r >= 0)
    i = jnp.where(own, jnp.asarray(rows.outputs).at[e].get(mode="clip").astype(jnp.int32), N)  # N is dropped
    values = jnp.asarray(rows.values)
    return jnp.zeros(N, values.dtype).at[i].add(values.at[e].get(mode="clip"), mode="drop")


class SplitRows(NamedTuple):
    """Sparse rows, and the long ones of them with their zeros, which are faster to read.

    entries: all rows.
    long: [n] the numbers of the long rows, in their order.
    dense: [n + 1, N] these rows, and a row of zeros for all others.
    """

    entries: SparseRows
    long: Any
    dense: Any


def split_rows(rows: SparseRows, N: int) -> SparseRows | SplitRows:
    """Sparse rows with the long ones kept dense too; where none is long, as they are.

    Example:
        >>> rows = SparseRows(np.array([0, 3, 4]), np.array([0, 2, 9, 5]), np.array([1.0, 2.0, 3.0, 4.0]))
        >>> split = split_rows(rows, 16)
        >>> split.long.tolist(), split.dense.sum(axis=1).tolist()
        ([0], [6.0, 0.0])
    """
    start = np.asarray(rows.start)
    long = np.flatnonzero(is_long(start[1:] - start[:-1], N))
    if not len(long):
        return rows
    dense = np.zeros((len(long) + 1, N), rows.values.dtype)
    add_entries(dense, take_rows(rows, long))
    return SplitRows(rows, long, jnp.asarray(dense))


def is_long(entries: Any, N: int) -> Any:
    """Whether rows with so many entries are faster to read with their zeros."""
    return entries * _long_row > N


def take_rows(rows: SparseRows, r: Int[np.ndarray, " n"]) -> SparseRows:
    """Some of the rows, on the host."""
    start, outputs, values = map(np.asarray, rows)
    first, last = start[r].astype(np.int64), start[r + 1]
    n = last - first
    beside = len(r) > 0 and last[-1] - first[0] == n.sum()  # then nothing is copied
    entry = slice(first[0], last[-1]) if beside else ranges(first, last)
    return SparseRows(np.concatenate([[0], np.cumsum(n)]), outputs[entry], values[entry])


def add_entries(table: Float[np.ndarray, "R N"], rows: SparseRows) -> None:
    """`table[r, i] += value` for every entry of the rows, in place."""
    start, outputs, values = map(np.asarray, rows)
    places = np.repeat(np.arange(len(start) - 1) * table.shape[1], np.diff(start))
    places += outputs
    table.reshape(-1)[places] += values  # no place twice


@pytree
class Gathered:
    """A table [R, N] of few different columns: column i is column `column_of_output[i]` of a smaller one [R, C].

    Example:
        >>> Gathered(jnp.array([[5.0, 7.0]]), jnp.array([1, 1, 0]))[jnp.array([0])].tolist()
        [[7.0, 7.0, 5.0]]
    """

    rows: Any
    column_of_output: Any

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, r: Any) -> Any:
        return jnp.asarray(self.rows)[r][:, self.column_of_output]


class LogTables(NamedTuple):
    """The tables that a position reads, dense ones first; a table may be there several times.

    dense: [R, N] each, the first an array; others may be Gathered.
    sparse: rows that are zero but for their entries.
    bases: [S, N] what is added to every row of a sparse table; default, nothing.
    """

    dense: tuple[Any, ...]
    sparse: tuple[SparseRows | SplitRows, ...] = ()
    bases: Any = None

    @property
    def arrays(self) -> "Arrays":
        """What a block of positions reads on the device."""
        long = tuple(table.dense if isinstance(table, SplitRows) else None for table in self.sparse)
        return Arrays(self.dense, long, self.bases)

    @property
    def outputs(self) -> int:
        """N."""
        return self.dense[0].shape[1]


class Arrays(NamedTuple):
    """The tables on the device: dense ones, long rows of sparse ones (None where it has none), and bases."""

    dense: tuple[Any, ...]
    long: tuple[Any, ...]
    bases: Any


class Positions(NamedTuple):
    """What is read at each of M positions.

    rows: the row of each table, -1 for none (sparse tables only).
    exponents: which exponent weighs it.
    """

    rows: Integer[np.ndarray, "M G"]
    exponents: Integer[np.ndarray, "M G"]

    def take(self, m: slice | np.ndarray) -> "Positions":
        """Some of the positions."""
        return Positions(self.rows[m], self.exponents[m])


class Block(NamedTuple):
    """A few positions, on their way to the device; the last block of a text is filled with positions of weight 0.

    rows [B, T] of the dense tables; long [B, S] of the long rows of the sparse ones; exponents [B, G]. Sparse entries as places
    in the flattened [B, S, N], or [B, N] where they are summed, and their values.
    """

    rows: Int[np.ndarray, "B T"]
    long: Int[np.ndarray, "B S"]
    places: Int[np.ndarray, " E"]
    values: Float[np.ndarray, " E"]
    exponents: Int[np.ndarray, "B G"]
    y: Int[np.ndarray, " B"]
    weight: Float[np.ndarray, " B"]


def log_probabilities(
    tables: LogTables,
    exponents: Float[np.ndarray, " S"],
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, " M"]:
    """`log p(y_m | x_m)` of every position, in nats.

    Args:
        tables: dense and sparse log tables.
        exponents: [S] the numbers that weigh their rows.
        positions: which rows, and which exponents.
        Y: [M] targets.
        progress: called with (positions done, positions in all).

    Raises:
        ValueError: positions that do not fit the tables or the exponents.

    Example:
        >>> tables = LogTables((jnp.log(jnp.array([[0.5, 0.25, 0.25]])),))
        >>> one = Positions(np.array([[0]]), np.array([[0]]))
        >>> np.exp(log_probabilities(tables, np.array([1.0]), one, np.array([0]))).round(6).tolist()
        [0.5]
    """
    check_exponents(positions, len(exponents))
    out, arrays = [], tables.arrays
    a = np.asarray(exponents, tables.dense[0].dtype)
    for log_p in map_in_threads(lambda block: _log_probabilities(arrays, a, block), blocks(tables, positions, Y, summed=a)):
        out.append(log_p)
        if progress:
            progress(min(len(out) * len(log_p), len(Y)), len(Y))
    return np.concatenate(out)[: len(Y)]


def blocks(
    tables: LogTables,
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    *,
    summed: Float[np.ndarray, " S"] | None = None,
) -> Iterator[Block]:
    """The positions a block at a time, more of them where there are few outputs.

    Args:
        tables: dense and sparse log tables.
        positions: which rows, and which exponents.
        Y: [M] targets.
        summed: exponents by which the sparse rows are weighed and summed; default, every row is kept apart.
    """
    cells = _cells_of_rows // positions.rows.shape[1] if summed is None else _cells_of_logits
    cells = cells if jax.default_backend() == "cpu" else cells << 5
    most = 1 << max(4, min(4096, cells // tables.outputs)).bit_length() - 1
    B = min(most, 1 << max(len(Y) - 1, 0).bit_length())
    T, S = len(tables.dense), len(tables.sparse)
    check_rows(tables, positions)
    for m in range(0, len(Y), B):
        rows, exponents = positions.take(slice(m, m + B))
        n = len(rows)
        long = _long_rows(tables, rows[:, T:])
        places, values = _entries(tables, rows[:, T:], long, None if summed is None else summed[exponents[:, T:]])
        length = max(_smallest_pad, 1 << (len(places) - 1).bit_length()) if S else 0
        out_of_range = B * (S if summed is None else 1) * tables.outputs
        yield Block(
            pad_to(rows[:, :T], B, 0),
            pad_to(long, B, 0),
            np.append(places, out_of_range + np.arange(length - len(places))).astype(np.int32),
            np.pad(values, (0, length - len(values))),
            pad_to(exponents, B, 0),
            pad_to(Y[m : m + B], B, 0),
            (np.arange(B) < n).astype(np.float32),
        )


def check_rows(tables: LogTables, positions: Positions) -> None:
    """Refuse positions of another number of features than there are tables, and rows that a dense table does not have."""
    T, S = len(tables.dense), len(tables.sparse)
    if positions.rows.shape[1] != T + S:
        raise ValueError(
            f"positions of {positions.rows.shape[1]} features, and {T} dense and {S} sparse tables: give one of each"
        )
    for t, table in enumerate(tables.dense):  # an index out of range would read another row, without a word
        _check_within(positions.rows[:, t], len(table), "row {} of a dense table of {} rows")


def check_exponents(positions: Positions, S: int) -> None:
    """Refuse positions with an exponent outside 0 .. S - 1."""
    _check_within(positions.exponents, S, "exponent {} of {}")


def feature_rows(arrays: Arrays, block: Block) -> Float[Array, "B G N"]:
    """All rows of a block's positions, dense and sparse alike."""
    dense, long, bases = arrays
    (B, G), N = block.exponents.shape, dense[0].shape[1]
    read = [table[block.rows[:, t]] for t, table in enumerate(dense)]
    zeros = jnp.zeros(B * (G - len(dense)) * N, dense[0].dtype)
    sparse = zeros.at[block.places].add(block.values.astype(zeros.dtype), mode="drop", unique_indices=True)
    sparse = sparse.reshape(B, -1, N)
    if bases is not None:
        sparse = sparse + bases[None].astype(sparse.dtype)
    read += [sparse[:, s] if table is None else sparse[:, s] + table[block.long[:, s]] for s, table in enumerate(long)]
    return jnp.stack(read, axis=1)


def mixed_logits(W: Float[Array, "B G N"], exponents: Float[Array, " S"], block: Block) -> Float[Array, "B N"]:
    """`sum_g a_g row_g`."""
    a = exponents.astype(W.dtype)[block.exponents]
    return functools.reduce(jnp.add, [a[:, g, None] * W[:, g] for g in range(W.shape[1])])


@full_precision
def summed_logits(arrays: Arrays, exponents: Float[Array, " S"], block: Block) -> Float[Array, "B N"]:
    """The same of a block whose sparse entries are summed already: the rows apart are never held."""
    dense, long, bases = arrays
    N, T = dense[0].shape[1], len(dense)
    a = exponents[block.exponents]
    parts = [a[:, t, None] * table[block.rows[:, t]] for t, table in enumerate(dense)]
    parts += [a[:, T + s, None] * table[block.long[:, s]] for s, table in enumerate(long) if table is not None]
    if bases is not None:
        parts.append(a[:, T:] @ bases.astype(a.dtype))
    if long:
        zeros = jnp.zeros(len(a) * N, a.dtype)
        parts.append(zeros.at[block.places].add(block.values.astype(a.dtype), mode="drop").reshape(-1, N))
    return functools.reduce(jnp.add, parts)


def _log_probabilities(arrays: Arrays, exponents: np.ndarray, block: Block) -> np.ndarray:
    return np.asarray(_log_p_of_targets(_summed_logits(arrays, exponents, block), block.y))


_summed_logits = jax.jit(summed_logits)


@jax.jit  # apart from the logits: XLA on a CPU would make these anew for the maximum, the sum and the target
def _log_p_of_targets(logits: Array, y: Array) -> Array:
    return jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0] - jax.nn.logsumexp(logits, axis=1)


def _long_rows(tables: LogTables, rows: Integer[np.ndarray, "B S"]) -> Int[np.ndarray, "B S"]:
    """Which long row each position reads of every table, or the row of zeros."""
    found = np.zeros(rows.shape, np.int32)
    for s, table in enumerate(tables.sparse):
        if isinstance(table, SplitRows):
            n = np.searchsorted(table.long, rows[:, s])
            own = table.long[np.minimum(n, len(table.long) - 1)] == rows[:, s]
            found[:, s] = np.where(own, n, len(table.long))
    return found


def _entries(
    tables: LogTables, rows: Integer[np.ndarray, "B S"], long: Int[np.ndarray, "B S"], weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Places in the flattened [B, S, N] and values of the sparse entries that a block reads; weighed, places in [B, N]."""
    S, N = len(tables.sparse), tables.outputs
    places, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for s, table in enumerate(tables.sparse):
        read = rows[:, s] >= 0
        if isinstance(table, SplitRows):
            read &= long[:, s] == len(table.long)
            table = table.entries
        b = np.flatnonzero(read)
        start, outputs, entry_values = (np.asarray(part) for part in table)
        first, last = start[rows[b, s]].astype(np.int64), start[rows[b, s] + 1]
        n, entry = last - first, ranges(first, last)
        places.append(np.repeat((b * S + s if weights is None else b) * N, n) + outputs[entry])
        values.append(entry_values[entry] if weights is None else entry_values[entry] * np.repeat(weights[b, s], n))
    return np.concatenate(places), np.concatenate(values)


def ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """`first[0] .. last[0] - 1, first[1] .. last[1] - 1, ...` in one array.

    Example:
        >>> ranges(np.array([3, 7]), np.array([5, 8])).tolist()
        [3, 4, 7]
    """
    n = last - first
    before = np.cumsum(n) - n
    return np.repeat(first - before, n) + np.arange(n.sum())


def _check_within(ids: np.ndarray, size: int, what: str) -> None:
    for i in (int(ids.min(initial=0)), int(ids.max(initial=0))):
        if not 0 <= i < size:
            raise ValueError(f"{what.format(i, size)}: ids are 0 .. {size - 1}")

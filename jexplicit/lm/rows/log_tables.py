"""Log-linear models of explicit rows: counting gives the rows, a handful of exponents weighs them.

Every feature g of a position names one row of a log table, and the logits are `sum_g a_g row_g`. A table is dense [R, N], or
sparse where most of its entries are the same: a constant along a row cancels in the softmax, so only the entries that differ
from it are kept. With the rows fixed the loss is convex in the exponents a (jexplicit.lm.fits.calibration).
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import pad_to
from jexplicit.lm.model import pytree

_cells_of_a_row = 1 << 17  # of a block on a CPU: what its rows hold together stays near the caches
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
    sparse: tuple[SparseRows, ...] = ()
    bases: Any = None

    @property
    def outputs(self) -> int:
        """N."""
        return self.dense[0].shape[1]


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


def select(tables: LogTables, positions: Positions, columns: Sequence[int]) -> tuple[LogTables, Positions]:
    """The model of some of its tables, by their column in the positions; exponents keep their numbers.

    Example:
        >>> tables = LogTables((jnp.zeros((1, 2)), jnp.ones((1, 2))))
        >>> one, read = select(tables, Positions(np.zeros((1, 2), int), np.array([[0, 1]])), [1])
        >>> len(one.dense), read.exponents.tolist()
        (1, [[1]])
    """
    T = len(tables.dense)
    columns = sorted(columns)
    dense = tuple(tables.dense[c] for c in columns if c < T)
    sparse = tuple(tables.sparse[c - T] for c in columns if c >= T)
    bases = None if tables.bases is None else tables.bases[np.array([c - T for c in columns if c >= T], int)]
    return LogTables(dense, sparse, bases), Positions(positions.rows[:, columns], positions.exponents[:, columns])


class Block(NamedTuple):
    """A few positions, on their way to the device; the last block of a text is filled with positions of weight 0.

    rows [B, T] of the dense tables; sparse entries as places in the flattened [B, S, N] and their values; exponents [B, G].
    """

    rows: Int[np.ndarray, "B T"]
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
    out = []
    a = np.asarray(exponents, tables.dense[0].dtype)
    for block in blocks(tables, positions, Y):
        out.append(np.asarray(_log_probabilities(tables.dense, tables.bases, a, block)))
        if progress:
            progress(min(len(out) * len(block.y), len(Y)), len(Y))
    return np.concatenate(out)[: len(Y)]


def blocks(tables: LogTables, positions: Positions, Y: Integer[np.ndarray, " M"]) -> Iterator[Block]:
    """The positions a block at a time, more of them where there are few outputs."""
    cells = _cells_of_a_row if jax.default_backend() == "cpu" else _cells_of_a_row << 5
    most = 1 << max(4, min(4096, cells // tables.outputs)).bit_length() - 1
    B = min(most, 1 << max(len(Y) - 1, 0).bit_length())
    T, S = len(tables.dense), len(tables.sparse)
    if positions.rows.shape[1] != T + S:
        raise ValueError(
            f"positions of {positions.rows.shape[1]} features, and {T} dense and {S} sparse tables: give one of each"
        )
    for t, table in enumerate(tables.dense):  # an index out of range would read another row, without a word
        _check_within(positions.rows[:, t], len(table), "row {} of a dense table of {} rows")
    for m in range(0, len(Y), B):
        rows, exponents = positions.take(slice(m, m + B))
        n = len(rows)
        places, values = _entries(tables, rows[:, T:])
        length = max(_smallest_pad, 1 << (len(places) - 1).bit_length()) if S else 0
        out_of_range = B * S * tables.outputs
        yield Block(
            pad_to(rows[:, :T], B, 0),
            pad_to(places, length, out_of_range),
            np.pad(values, (0, length - len(values))),
            pad_to(exponents, B, 0),
            pad_to(Y[m : m + B], B, 0),
            (np.arange(B) < n).astype(np.float32),
        )


def check_exponents(positions: Positions, S: int) -> None:
    """Refuse positions with an exponent outside 0 .. S - 1."""
    _check_within(positions.exponents, S, "exponent {} of {}")


def feature_rows(dense: tuple[Any, ...], bases: Array | None, block: Block) -> Float[Array, "B G N"]:
    """All rows of a block's positions, dense and sparse alike."""
    (B, G), N = block.exponents.shape, dense[0].shape[1]
    read = [table[block.rows[:, t]] for t, table in enumerate(dense)]
    zeros = jnp.zeros(B * (G - len(dense)) * N, dense[0].dtype)
    sparse = zeros.at[block.places].add(block.values.astype(zeros.dtype), mode="drop")
    sparse = sparse.reshape(B, -1, N)
    if bases is not None:
        sparse = sparse + bases[None].astype(sparse.dtype)
    return jnp.concatenate([jnp.stack(read, axis=1), sparse], axis=1)


def mixed_logits(W: Float[Array, "B G N"], exponents: Float[Array, " S"], block: Block) -> Float[Array, "B N"]:
    """`sum_g a_g row_g`."""
    a = exponents.astype(W.dtype)[block.exponents]
    return functools.reduce(jnp.add, [a[:, g, None] * W[:, g] for g in range(W.shape[1])])


@jax.jit
def _log_probabilities(dense: tuple[Any, ...], bases: Array | None, exponents: Array, block: Block) -> Array:
    log_p = jax.nn.log_softmax(mixed_logits(feature_rows(dense, bases, block), exponents, block), axis=1)
    return jnp.take_along_axis(log_p, block.y[:, None], axis=1)[:, 0]


def _entries(tables: LogTables, rows: Integer[np.ndarray, "B S"]) -> tuple[np.ndarray, np.ndarray]:
    """Places in the flattened [B, S, N], and values, of the sparse entries that a block reads."""
    S, N = len(tables.sparse), tables.outputs
    places, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for s, table in enumerate(tables.sparse):
        b = np.flatnonzero(rows[:, s] >= 0)
        start, outputs, entry_values = (np.asarray(part) for part in table)
        first, last = start[rows[b, s]].astype(np.int64), start[rows[b, s] + 1]
        entry = ranges(first, last)
        places.append(np.repeat((b * S + s) * N, last - first) + outputs[entry])
        values.append(entry_values[entry])
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

"""Positions of a log-linear model, and the rows of tables that they read, put on the devices of a mesh.

All dense rows of all tables, the long ones of sparse tables among them, stand in one array, from which a block of positions
gathers its own at once. Entries of the other sparse rows stand in pools, by *segments* of 32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Integer

from jexplicit.data.contexts import pad_to
from jexplicit.lm.tables.contexts import few_sizes
from jexplicit.lm.tables.storage import Dense, Gathered, Sparse, add_entries, stays, take_dense, take_rows
from jexplicit.runs.devices import AXIS, on_cpu, replicate

_cells = 1 << 19  # of all rows of a block on a CPU
_most_positions = 4096  # of a block
WIDTH = 32  # entries of a segment
_long = 16  # a row with more than 1/16 of the outputs is faster to read with its zeros
_few_long = 1 / 8  # of the positions: then a table is read from its entries alone
_most_bytes = 1 << 30  # of long rows with their zeros


class Positions(NamedTuple):
    """What M positions read of G tables.

    rows: the row of each table; -1 for none (sparse tables only).
    exponents: which exponent weighs it, or [M, G, J] which ones add up to its weight.
    """

    rows: Integer[np.ndarray, "M G"]
    exponents: Integer[np.ndarray, "M G ..."]

    @property
    def parts(self) -> Integer[np.ndarray, "M G J"]:
        """The exponents that add up to the weight of each row, where there is one, too; a row's own comes first."""
        return self.exponents.reshape(*self.rows.shape, -1)

    def take(self, m: slice | np.ndarray) -> "Positions":
        """Some of the positions."""
        return Positions(self.rows[m], self.exponents[m])

    def columns(self, g: Sequence[int]) -> "Positions":
        """Some of the features."""
        return Positions(self.rows[:, g], self.exponents[:, g])


class Split(NamedTuple):
    """A sparse table whose long rows stand among dense ones.

    table: all rows.
    first: the place of its base row there; the long rows follow.
    long: [L] their numbers, sorted.
    """

    table: Sparse
    first: int
    long: Int[np.ndarray, " L"]


class PreparedTables(NamedTuple):
    """Tables, and all dense rows [R, N] of theirs end to end; the first is of zeros.

    A table is a `Split`, the place of its first dense row, or itself where rows are made for the positions that read them.
    """

    dense: Any
    tables: tuple[Any, ...]


class Shared(NamedTuple):
    """What is whole on every device: dense rows [R, N], tables by classes, entries [E], and segments [Q].

    first, length: the entries of a segment.
    row: its row among the B T of a block.
    """

    dense: Any
    gathered: tuple[Any, ...]
    outputs: Any
    values: Any
    first: Any
    length: Any
    row: Any


class PositionBlocks(NamedTuple):
    """Positions by blocks of B, split over the devices; the features in the order of `PlacedPositions`.

    rows, exponents: [n, B, G] and [n, B, G, J].
    y: [n, B] targets; -1 for what fills up a block.
    span: [n, 2] the segments of each block.
    """

    rows: Any
    exponents: Any
    y: Any
    span: Any


class PlacedPositions(NamedTuple):
    """Positions on the devices of a mesh, and what they read.

    used: blocks of each device that have positions.
    order: [M] places of the positions in the blocks.
    features: [G] numbers of the features: those with dense rows, those of entries alone, and those of tables by classes.
    dense: how many have dense rows.
    """

    shared: Shared
    blocks: PositionBlocks
    used: Any
    order: Int[np.ndarray, " M"]
    features: Int[np.ndarray, " G"]
    dense: int
    mesh: Mesh


def prepare(tables: Sequence[Any], N: int, mesh: Mesh) -> PreparedTables:
    """Tables of N outputs to be read by many positions, their dense rows on the devices of a mesh."""
    dense: list[Any] = [np.zeros((1, N), np.float32)]
    found, R, left = [], 1, _most_bytes
    for table in tables:
        if isinstance(table, Sparse) and table.weighted:
            table = table.take(np.arange(len(table.rows.start) - 1))
        if isinstance(table, Sparse) and not table.longest:  # a row for each position: none is worth its zeros
            rows = dense[0][:0]
        elif isinstance(table, Sparse):
            rows, long = _long_rows(table, left)
            left -= rows.nbytes
            table = Split(table, R if len(rows) else 0, long)
        elif isinstance(table, Dense):
            rows, table = table.rows, R
        else:
            rows = dense[0][:0]
        found.append(table)
        dense.append(rows)
        R += len(rows)
    dtype = np.result_type(*(rows.dtype for rows in dense[1:] or dense))
    if not on_cpu(mesh):  # rows that were made on an accelerator stay there
        return PreparedTables(replicate(jnp.concatenate(dense, dtype=dtype), mesh), tuple(found))
    whole = _aligned(R, N, dtype)
    while dense:  # they are large: no two copies stand side by side
        rows = dense.pop()
        R -= len(rows)
        whole[R : R + len(rows)] = rows
    return PreparedTables(jax.device_put(whole, NamedSharding(mesh, PartitionSpec()), may_alias=True), tuple(found))


def _aligned(R: int, N: int, dtype: Any) -> np.ndarray:
    """An array to fill, [R, N], where devices of a CPU read it without a copy: at a multiple of 64 bytes."""
    size = R * N * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view(dtype).reshape(R, N)


def _long_rows(table: Sparse, most: int) -> tuple[Any, Int[np.ndarray, " L"]]:
    """The base row, and the long rows with their zeros, up to so many bytes; and their numbers. No rows of zeros alone."""
    n, N, dtype = table.rows.lengths, table.vocab_size, table.rows.values.dtype
    is_long, on_device = n > N // _long, stays(n)
    long = jnp.flatnonzero(is_long, size=int(jax.device_get(is_long.sum()))) if on_device else np.flatnonzero(is_long)
    long, n = jax.device_get((long, n[long]))
    longest = np.argsort(-n, kind="stable")[: most // (N * dtype.itemsize)]
    long = np.sort(long[longest])
    if not len(long) and table.base is None:
        return np.zeros((0, N), dtype), long
    if on_device:
        return take_dense(table, np.append(-1, long)).rows, long
    whole = np.tile((np.zeros(N) if table.base is None else np.asarray(table.base)).astype(dtype), (1 + len(long), 1))
    add_entries(whole[1:], take_rows(table.rows, long))
    return whole, long


def prune_rows(tables: Sequence[Any], positions: Positions) -> tuple[tuple[Any, ...], Positions]:
    """The tables with those rows alone that the positions read, on the host.

    Example:
        >>> few, read = prune_rows([Dense(np.arange(6.0).reshape(3, 2))], Positions(np.array([[2], [2]]), np.array([[0], [0]])))
        >>> few[0].rows.tolist(), read.rows.tolist()
        ([[4.0, 5.0]], [[0], [0]])
    """
    check_positions(tables, positions)
    few, rows = zip(*(used_rows(table, r) for table, r in zip(tables, positions.rows.T, strict=True)), strict=True)
    return few, Positions(np.stack(rows, axis=1), positions.exponents)


def used_rows(table: Any, r: Integer[np.ndarray, " M"]) -> tuple[Any, Int[np.ndarray, " M"]]:
    """Those rows of a table that positions read, and the new numbers of these; -1 stays."""
    used, which = np.unique(r.astype(np.int64), return_inverse=True)  # -1 of a small unsigned type would wrap
    none = int(used[:1].sum() < 0)
    return table.take(used[none:]), which - none


def check_positions(tables: Sequence[Any], positions: Positions) -> None:
    """Refuse positions of another number of features than there are tables, and rows that a dense table does not have."""
    if positions.rows.shape[1] != len(tables):
        raise ValueError(f"positions of {positions.rows.shape[1]} features for {len(tables)} tables: give a row of each")
    for g, table in enumerate(tables):  # JAX clamps indices out of range
        if isinstance(table, Dense | Gathered):
            _check_within(positions.rows[:, g], len(table.rows), "row {} of a dense table of {} rows")


def check_exponents(positions: Positions, S: int) -> None:
    """Refuse positions with an exponent outside 0 .. S - 1."""
    _check_within(positions.exponents, S, "exponent {} of {}")


def _check_within(ids: np.ndarray, size: int, what: str) -> None:
    for i in (int(ids.min(initial=0)), int(ids.max(initial=0))):
        if not 0 <= i < size:
            raise ValueError(f"{what.format(i, size)}: ids are 0 .. {size - 1}")


def place(
    prepared: PreparedTables, positions: Positions, Y: Integer[np.ndarray, " M"], mesh: Mesh, *, summed: bool = False
) -> PlacedPositions:
    """Put positions, and what they read, on the devices of a mesh.

    Args:
        prepared: tables.
        positions: which rows, and which exponents.
        Y: [M] targets.
        mesh: the devices.
        summed: whether the rows of a position are summed as they are read, and not held apart.

    Raises:
        ValueError: more entries than int32 numbers.
    """
    D, (M, G), N = mesh.size, positions.rows.shape, prepared.dense.shape[1]
    rows, first, length = np.zeros((3, M, G), np.int64)
    entries, gathered, kind, E = [], [], np.zeros(G, np.int64), 0  # kind: with dense rows, of entries alone, by classes
    for g, (table, r) in enumerate(zip(prepared.tables, positions.rows.T.astype(np.int64), strict=True)):
        if isinstance(table, int):
            rows[:, g] = table + r
            continue
        if not isinstance(table, Split):
            table, r = used_rows(table, r)
            if not isinstance(table, Sparse) or table.base is not None:
                gathered.append(_by_class(table))
                rows[:, g], kind[g] = r, 2
                continue
            table = Split(table, 0, np.zeros(0, np.int64))
        used, which = np.unique(r, return_inverse=True)
        place = np.searchsorted(table.long, used)
        long = np.append(table.long, -2)[place] == used
        if table.table.base is None and long[which].mean() < _few_long:
            long[:], kind[g] = False, 1
        read = ~long & (used >= 0)
        few = take_rows(table.table.rows, used[read])
        of_row = np.zeros((len(used), 3), np.int64)
        of_row[:, 0] = table.first + long * (1 + place)
        of_row[read, 1], of_row[read, 2] = E + few.start[:-1], np.diff(few.start)
        rows[:, g], first[:, g], length[:, g] = of_row[which].T
        entries.append(few)
        E += len(few.outputs)
    if E + WIDTH >= 2**31:
        raise ValueError(f"{E} entries of sparse rows: read fewer positions at a time")
    features = np.argsort(kind, kind="stable")
    T = int(np.sum(kind < 2))

    room = (_cells if on_cpu(mesh) else _cells << 5) // (N if summed else G * N)
    B = 1 << max(1, min(_most_positions, room)).bit_length() - 1
    used = -(-M // (D * B))  # blocks of a device
    n = few_sizes(used, 16)
    first, length = (x[:, features[:T]].ravel() for x in (first, length))
    segments = -(-length // WIDTH)
    of = np.repeat(np.arange(M * T), segments)
    skipped = WIDTH * (np.arange(len(of)) - np.repeat(np.cumsum(segments) - segments, segments))
    per_segment = first[of] + skipped, np.minimum(WIDTH, length[of] - skipped), of % (B * T)
    ends = np.append(0, np.cumsum(segments))[T * np.minimum(np.arange(D * used + 1) * B, M)]

    def split(x: np.ndarray) -> Array:
        """[D used, ...] of blocks, filled up to [D n, ...] and split over the devices."""
        filled = np.pad(x.reshape(D, used, *x.shape[1:]), ((0, 0), (0, n - used), *((0, 0),) * (x.ndim - 1)))
        return jax.device_put(filled.reshape(D * n, *x.shape[1:]).astype(np.int32), NamedSharding(mesh, PartitionSpec(AXIS)))

    def in_blocks(x: np.ndarray, fill: int) -> Array:
        return split(pad_to(x, D * used * B, fill).reshape(D * used, B, *x.shape[1:]))

    blocks = PositionBlocks(
        in_blocks(rows[:, features], 0),
        in_blocks(positions.parts[:, features], 0),
        in_blocks(Y, -1),
        split(np.stack([ends[:-1], ends[1:]], axis=1)),
    )
    size, Q = (_pool(E + WIDTH, 1 << 16), _pool(len(of), 1 << 12)) if E else (0, 0)
    pools = [_joined([getattr(part, name) for part in entries], size) for name in ("outputs", "values")]
    shared = Shared(prepared.dense, tuple(gathered), *pools, *(pad_to(x, Q, 0) for x in per_segment))
    m, block = np.arange(M), np.arange(M) // B
    order = (block // used * n + block % used) * B + m % B
    return PlacedPositions(replicate(shared, mesh), blocks, np.int32(used), order, features, int(np.sum(kind < 1)), mesh)


def _pool(n: int, least: int) -> int:
    """Room for n entries, which fill nothing but memory: of less than a million, the next power of two."""
    return few_sizes(n, least) if n >= 1 << 20 else 1 << max(n - 1, least - 1).bit_length()


def _by_class(table: Any) -> Gathered:
    """Rows made for a call, of few different sizes; those of a dense table are read as if each output were its own class."""
    if isinstance(table, Sparse):
        table = take_dense(table, np.arange(len(table.rows.start) - 1))
    rows, numpy = table.rows, jnp if stays(table.rows) else np
    columns = table.column_of_output if isinstance(table, Gathered) else np.arange(rows.shape[1])
    return Gathered(numpy.pad(rows, ((0, few_sizes(len(rows), 1 << 8) - len(rows)), (0, 0))), columns)


def _joined(parts: Sequence[Any], size: int) -> Any:
    """The parts end to end, filled up with zeros to some size, where they are."""
    numpy: Any = jnp if any(map(stays, parts)) else np
    dtype = np.result_type(*(part.dtype for part in parts)) if parts else np.dtype(np.int32)
    return numpy.concatenate([*(numpy.asarray(part, dtype) for part in parts), numpy.zeros(size - sum(map(len, parts)), dtype)])

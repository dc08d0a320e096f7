"""Positions of a log-linear model spread over devices, which read them without the host.

Every device has all dense tables, some of the positions, and the sparse entries that these read. Its positions stand in blocks
of one shape: at most B of them, with at most Q *segments*, runs of 32 entries of a sparse row. A device spreads the segments of
a block into its rows, so that nothing waits for the host between two blocks.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Integer

from jexplicit.lm.rows.log_tables import (
    Arrays,
    Block,
    LogTables,
    Positions,
    SparseRows,
    SplitRows,
    check_exponents,
    check_rows,
    summed_logits,
)
from jexplicit.lm.rows.table_parts import rows_read
from jexplicit.runs.devices import AXIS, everywhere, on_cpu

_width = 32  # entries of a segment
_cells = 1 << 19  # of a block on a CPU
_most_positions = 4096  # of a block
_share = PartitionSpec(AXIS)


class Blocks(NamedTuple):
    """Positions in n blocks of B; those that fill up a block have weight 0.

    rows [n, B, T] of the dense tables, exponents [n, B, G], y and weight [n, B]. Of Q segments [n, Q] the first entry, how many
    entries, and the row that they are of, `b S + s` for position b and sparse table s.
    """

    rows: Any
    exponents: Any
    y: Any
    weight: Any
    first: Any
    entries: Any
    row: Any


class DevicePositions(NamedTuple):
    """Positions on the devices of a mesh, and what they read.

    arrays: dense tables and bases, on every device.
    outputs, values: sparse entries [D E], E of each device.
    blocks: [D n, ...], n of each device.
    """

    arrays: Any
    outputs: Any
    values: Any
    blocks: Any


SHARES = DevicePositions(PartitionSpec(), _share, _share, _share)
"""How they lie on the mesh."""


def place_positions(
    tables: LogTables, positions: Positions, Y: Integer[np.ndarray, " M"], mesh: Mesh, *, cells: int
) -> tuple[DevicePositions, Int[np.ndarray, " M"]]:
    """Put positions and what they read on the devices of a mesh.

    Args:
        tables: dense and sparse log tables.
        positions: which rows, and which exponents.
        Y: [M] targets.
        mesh: the devices.
        cells: that a device holds for each position of a block.

    Returns:
        what is on the devices, and the place of every position in their [D n B].

    Raises:
        ValueError: positions that do not fit the tables; more entries on a device than int32 numbers.
    """
    check_rows(tables, positions)
    D, M, T = mesh.size, len(Y), len(tables.dense)
    entries = [_entries_of(table, positions.rows[:, T + s])[1] for s, table in enumerate(tables.sparse)]
    segments = sum((-(-each // _width) for each in entries), start=np.zeros(M, np.int64))
    room = (_cells if on_cpu(mesh) else _cells << 5) // cells
    B = 1 << max(1, min(_most_positions, room, -(-M // D))).bit_length() - 1
    Q = _few_sizes(int(max(segments.max(initial=1), segments.mean() * B + 2 * segments.std() * np.sqrt(B))))
    bounds = np.linspace(0, M, D + 1).astype(int)
    parts = [slice(*own) for own in zip(bounds[:-1], bounds[1:], strict=True)]
    block = [_cut(segments[own], B, Q) for own in parts]
    n = _few_sizes(max(1 + int(one.max(initial=0)) for one in block))
    shares = [_share_of(tables, positions.take(own), Y[own], one, (n, B, Q)) for own, one in zip(parts, block, strict=True)]
    E = _few_sizes(max(sum(len(few.outputs) for few in read) for read, *_ in shares) + _width)
    if E >= 2**31:
        raise ValueError(f"{E} entries of sparse rows on a device: read fewer positions at a time, or use more devices")

    def place(first: np.ndarray, *others: np.ndarray) -> Array:
        return jax.device_put(np.concatenate([first, *others]) if others else first, NamedSharding(mesh, _share))

    def pool(part: str, dtype: Any) -> Array:
        """A part of the entries of all tables, end to end on each device."""
        whole = np.zeros((D, E), dtype)
        for own, (read, *_) in zip(whole, shares, strict=True):
            end = 0
            for few in read:
                begin, end = end, end + len(few.outputs)
                own[begin:end] = getattr(few, part)
        return place(whole.ravel())

    outputs = pool("outputs", np.uint16 if tables.outputs <= 1 << 16 else np.int32)
    values = pool("values", np.result_type(np.float32, *(few.values.dtype for few in shares[0][0])))
    _, blocks, slots = zip(*shares, strict=True)
    arrays = everywhere(Arrays(tables.dense, (None,) * len(tables.sparse), tables.bases), mesh)
    placed = DevicePositions(arrays, outputs, values, jax.tree.map(place, *blocks))
    return placed, np.concatenate([d * n * B + own for d, own in enumerate(slots)])


def read_block(here: DevicePositions, blocks: Blocks, exponents: Float[Array, " S"] | None = None) -> Block:
    """One block of a device with its sparse entries at their places; with exponents, weighed and to be summed.

    Args:
        here: what is on one device.
        blocks: one of its blocks, without the axis n.
        exponents: by which the sparse rows are weighed.
    """
    (B, T), (_, G), N = blocks.rows.shape, blocks.exponents.shape, here.arrays.dense[0].shape[1]
    S, lane = G - T, jnp.arange(_width, dtype=jnp.int32)[None]
    long: Any = jnp.zeros((B, S), jnp.int32)
    of_positions = blocks.exponents, blocks.y, blocks.weight
    if not S:
        return Block(blocks.rows, long, long.ravel(), here.values[:0], *of_positions)
    e, b, row = blocks.first[:, None] + lane, blocks.row // S, blocks.row
    outputs, values = (part.at[e].get(mode="promise_in_bounds") for part in (here.outputs, here.values))
    if exponents is not None:
        values = values.astype(exponents.dtype) * exponents[blocks.exponents[b, T + row % S]][:, None]
        row = b
    beyond = B * S * N + jnp.arange(e.size, dtype=jnp.int32).reshape(e.shape)  # no two entries have one place
    places: Any = jnp.where(lane < blocks.entries[:, None], row[:, None] * N + outputs.astype(jnp.int32), beyond)
    return Block(blocks.rows, long, places.ravel(), values.ravel(), *of_positions)


def log_probabilities(
    tables: LogTables, exponents: Float[np.ndarray, " S"], positions: Positions, Y: Integer[np.ndarray, " M"], mesh: Mesh
) -> Float[np.ndarray, " M"]:
    """`log p(y_m | x_m)` of every position, in nats: jexplicit.lm.rows.log_tables.log_probabilities over the devices of a mesh.

    Raises:
        ValueError: positions that do not fit the tables or the exponents.

    Example:
        >>> from jexplicit.runs.devices import data_mesh
        >>> tables = LogTables((jnp.log(jnp.array([[0.5, 0.25, 0.25]])),))
        >>> one = Positions(np.array([[0]]), np.array([[0]]))
        >>> np.exp(log_probabilities(tables, np.array([1.0]), one, np.array([0]), data_mesh(1))).round(6).tolist()
        [0.5]
    """
    check_exponents(positions, len(exponents))
    placed, slots = place_positions(tables, positions, Y, mesh, cells=tables.outputs)
    a = np.asarray(exponents, tables.dense[0].dtype)
    return np.asarray(compiled_log_probabilities(mesh)(placed, a)).ravel()[slots]


@functools.cache
def compiled_log_probabilities(mesh: Mesh) -> Any:
    """Compiled `DevicePositions, exponents -> [D n, B]`."""

    def run(here: DevicePositions, exponents: Array) -> Array:
        def step(_: None, blocks: Blocks) -> tuple[None, Array]:
            block = read_block(here, blocks, exponents)
            logits = summed_logits(here.arrays, exponents, block)
            return None, jnp.take_along_axis(logits, block.y[:, None], axis=1)[:, 0] - jax.nn.logsumexp(logits, axis=1)

        return jax.lax.scan(step, None, here.blocks)[1]

    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(SHARES, PartitionSpec()), out_specs=_share))


def _few_sizes(n: int) -> int:
    """n or up to a quarter more, of few different numbers: shapes that are compiled."""
    step = 1 << max(0, n.bit_length() - 3)
    return -(-n // step) * step


def _entries_of(table: SparseRows | SplitRows, r: Integer[np.ndarray, " M"]) -> tuple[np.ndarray, np.ndarray]:
    """The first entry and the number of entries of rows of a sparse table; of no row, -1, there are none."""
    start = np.asarray((table.entries if isinstance(table, SplitRows) else table).start).astype(np.int64)
    start = np.append(start, start[-1])
    r = np.where(r < 0, len(start) - 2, r.astype(np.int64))
    return start[r], start[r + 1] - start[r]


def _cut(segments: Int[np.ndarray, " M"], B: int, Q: int) -> Int[np.ndarray, " M"]:
    """The block of each position: at most B of them and Q segments in one."""
    ends, block, m, n = np.cumsum(segments), np.zeros(len(segments), np.int64), 0, 0
    while m < len(ends):
        last = min(m + B, int(np.searchsorted(ends, ends[m] - segments[m] + Q, side="right")))
        block[m:last] = n
        m, n = last, n + 1
    return block


def _share_of(
    tables: LogTables, positions: Positions, Y: np.ndarray, block: Int[np.ndarray, " M"], shape: tuple[int, int, int]
) -> tuple[list[SparseRows], Blocks, np.ndarray]:
    """Sparse rows and blocks of one device, and the places of its positions in these."""
    (n, B, Q), T, S, M = shape, len(tables.dense), len(tables.sparse), len(Y)
    within = np.arange(M) - np.searchsorted(block, block)
    slots = block * B + within
    read = [rows_read(table, positions.rows[:, T + s]) for s, table in enumerate(tables.sparse)]
    first, entries, before = np.zeros((M, S), np.int64), np.zeros((M, S), np.int64), 0
    for s, (few, r) in enumerate(read):
        first[:, s], entries[:, s] = _entries_of(few, r)
        first[:, s] += before
        before += len(few.outputs)
    segments = -(-entries // _width).ravel()
    of = np.repeat(np.arange(M * S), segments)  # b S + s, for all positions
    offset = _width * (np.arange(len(of)) - np.repeat(np.cumsum(segments) - segments, segments))
    m = of // max(S, 1)
    place = block[m] * Q + np.arange(len(of)) - np.searchsorted(block[m], block[m])

    def fill(size: int, at: np.ndarray, values: np.ndarray, dtype: Any = np.int32) -> np.ndarray:
        whole = np.zeros((n * size, *values.shape[1:]), dtype)
        whole[at] = values
        return whole.reshape(n, size, *values.shape[1:])

    blocks = Blocks(
        fill(B, slots, positions.rows[:, :T]),
        fill(B, slots, positions.exponents),
        fill(B, slots, Y),
        fill(B, slots, np.ones(M), np.float32),
        fill(Q, place, first.ravel()[of] + offset),
        fill(Q, place, np.minimum(_width, entries.ravel()[of] - offset)),
        fill(Q, place, within[m] * S + of % max(S, 1)),
    )
    return [few for few, _ in read], blocks, slots

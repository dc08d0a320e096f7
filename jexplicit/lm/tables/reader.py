"""Many positions of a log-linear model read on the devices of a mesh.

Every feature g of a position names one row of a table, and the logits are `sum_g a_g row_g`. A device reads its positions block
by block, on a CPU blocks that fit into its cache.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Integer

from jexplicit.lm.tables.placing import (
    WIDTH,
    PlacedPositions,
    PositionBlocks,
    Positions,
    PreparedTables,
    Shared,
    check_exponents,
    check_positions,
    place,
    prepare,
)
from jexplicit.lm.tables.storage import as_table
from jexplicit.runs.devices import AXIS, default_mesh, full_precision

_segments = 8  # that are added at once, for each position of a block
_whole, _split = PartitionSpec(), PartitionSpec(AXIS)


def block_rows(shared: Shared, block: PositionBlocks) -> Float[Array, "B G N"]:
    """All rows of a block's positions, on one device; the features in the order of `PlacedPositions`."""
    (B, G), N = block.rows.shape, shared.dense.shape[1]
    T = G - len(shared.gathered)
    W = shared.dense.at[block.rows[:, :T]].get(mode="promise_in_bounds").reshape(B * T, N)
    W = _add_segments(shared, block, W).reshape(B, T, N)
    by_class = [table.rows[block.rows[:, T + g]][:, None, table.column_of_output] for g, table in enumerate(shared.gathered)]
    return jnp.concatenate([W, *(rows.astype(W.dtype) for rows in by_class)], axis=1) if by_class else W


@full_precision
def block_logits(shared: Shared, block: PositionBlocks, exponents: Float[Array, " S"], dense: int) -> Float[Array, "B N"]:
    """`sum_g a_g row_g` of a block's positions, on one device; rows of the first `dense` features alone are held apart."""
    a, T = exponents[block.exponents].sum(axis=2), block.rows.shape[1] - len(shared.gathered)
    rows = [shared.dense.at[block.rows[:, g]].get(mode="promise_in_bounds") for g in range(dense)]
    rows += [table.rows[block.rows[:, g]][:, table.column_of_output] for g, table in enumerate(shared.gathered, start=T)]
    weights = [a[:, g, None] for g in (*range(dense), *range(T, a.shape[1]))]
    parts = [weight * row.astype(a.dtype) for weight, row in zip(weights, rows, strict=True)]
    return _add_segments(shared, block, functools.reduce(jnp.add, parts), a[:, :T])


def _add_segments(shared: Shared, block: PositionBlocks, whole: Array, weights: Float[Array, "B T"] | None = None) -> Array:
    """Add a block's entries to its rows [B T, N], or with weights to its logits [B, N]."""
    if not len(shared.first):
        return whole
    B, T = block.rows.shape[0], block.rows.shape[1] - len(shared.gathered)
    (begin, end), chunk = block.span, _segments * B
    beyond = whole.shape[1] + jnp.arange(chunk * WIDTH, dtype=jnp.int32).reshape(chunk, WIDTH)  # no place twice
    lane = jnp.arange(WIDTH, dtype=jnp.int32)[None]

    def add(k: Array, whole: Array) -> Array:
        q = begin + k * chunk + jnp.arange(chunk, dtype=jnp.int32)
        row, e = shared.row[q], shared.first[q][:, None] + lane
        own = lane < jnp.where(q < end, shared.length[q], 0)[:, None]
        i = jnp.where(own, shared.outputs.at[e].get(mode="clip").astype(jnp.int32), beyond)
        values = shared.values.at[e].get(mode="clip").astype(whole.dtype)
        if weights is None:
            return whole.at[row[:, None], i].add(values, mode="drop", unique_indices=True)
        return whole.at[row[:, None] // T, i].add(values * weights.reshape(-1)[row][:, None], mode="drop")

    return jax.lax.fori_loop(0, (end - begin + chunk - 1) // chunk, add, whole)


def log_probabilities(
    tables: Sequence[Any],
    exponents: Float[np.ndarray, " S"],
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    mesh: Mesh | None = None,
) -> Float[np.ndarray, " M"]:
    """`log p(y_m | x_m)` of every position, in nats.

    Args:
        tables: for each feature a table of jexplicit.lm.tables.storage, or an array [R, N].
        exponents: [S] the numbers that weigh their rows.
        positions: which rows, and which exponents.
        Y: [M] targets.
        mesh: devices to spread the positions over; default, all accelerators, or one CPU.

    Raises:
        ValueError: positions that do not fit the tables or the exponents.

    Example:
        >>> tables = [jnp.log(jnp.array([[0.5, 0.25, 0.25]]))]
        >>> one = Positions(np.array([[0]]), np.array([[0]]))
        >>> np.exp(log_probabilities(tables, np.array([1.0]), one, np.array([0]))).round(6).tolist()
        [0.5]
    """
    tables, mesh = list(map(as_table, tables)), mesh or default_mesh()
    check_positions(tables, positions)
    return read_positions(log_p_of_targets, prepare(tables, tables[0].vocab_size, mesh), exponents, positions, Y, mesh)


def read_positions(
    f: Callable[..., Any],
    prepared: PreparedTables,
    exponents: Float[np.ndarray, " S"],
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    mesh: Mesh,
) -> Any:
    """`log_p_of_targets` or `log_p_of_all` of positions of tables that are prepared."""
    check_exponents(positions, len(exponents))
    return map_positions(f, place(prepared, positions, Y, mesh, summed=True), exponents)


def log_p_of_targets(shared: Shared, block: PositionBlocks, a: Array, dense: int) -> Array:
    """log p of the targets of a block of positions, in nats: [B]."""
    logits = block_logits(shared, block, a, dense)
    return jnp.take_along_axis(logits, block.y[:, None], axis=1)[:, 0] - jax.nn.logsumexp(logits, axis=1)


def log_p_of_all(shared: Shared, block: PositionBlocks, a: Array, dense: int) -> Array:
    """log p of all tokens at a block of positions, in nats: [B, N]."""
    return jax.nn.log_softmax(block_logits(shared, block, a, dense), axis=1)


def map_positions(f: Callable[..., Any], placed: PlacedPositions, exponents: Float[np.ndarray, " S"]) -> Any:
    """`f(shared, block, exponents, dense)` of all blocks, `[B, ...]` for each, by position: [M, ...].

    `f` is compiled once for each function object.
    """
    a = np.asarray(exponents, placed.shared.dense.dtype)
    found = jax.device_get(compiled_map(f, placed.dense, placed.mesh)(placed.shared, placed.blocks, placed.used, a))
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[placed.order], found)


@functools.cache
def compiled_map(f: Callable[..., Any], dense: int, mesh: Mesh) -> Any:
    """`f` of all blocks of placed positions, compiled once for each function, dense part and mesh."""
    f = jax.jit(f, static_argnums=3, inline=True)  # traced once, for its shapes and in the loop

    def run(shared: Shared, blocks: PositionBlocks, used: Array, a: Array) -> Any:
        def of_block(b: Any) -> Any:
            return f(shared, jax.tree.map(lambda part: part[b], blocks), a, dense)

        def step(b: Array, out: Any) -> Any:
            return jax.tree.map(lambda whole, part: whole.at[b].set(part), out, of_block(b))

        out = jax.tree.map(lambda part: jnp.zeros((len(blocks.y), *part.shape), part.dtype), jax.eval_shape(of_block, 0))
        return jax.lax.fori_loop(0, used, step, out)

    specs = {"in_specs": (_whole, _split, _whole, _whole), "out_specs": _split}
    return jax.jit(jax.shard_map(run, mesh=mesh, **specs, check_vma=False))


def sum_positions(
    f: Callable[..., Array], placed: PlacedPositions, exponents: Float[np.ndarray, " S"]
) -> Float[np.ndarray, " sums"]:
    """The sum over all blocks of what `f(shared, block, exponents)` gives of each, in twice the precision of its numbers."""
    a = np.asarray(exponents, placed.shared.dense.dtype)
    sums = jax.device_get(compiled_sums(f, placed.mesh)(placed.shared, placed.blocks, placed.used, a))
    return np.asarray(sums, np.float64).sum(axis=0)


@functools.cache
def compiled_sums(f: Callable[..., Array], mesh: Mesh) -> Any:
    """Compiled sums, and what their additions round away."""
    f = jax.jit(f, inline=True)  # traced once, for its shape and in the loop

    def run(shared: Shared, blocks: PositionBlocks, used: Array, a: Array) -> Array:
        def of_block(b: Any) -> Array:
            return f(shared, jax.tree.map(lambda part: part[b], blocks), a)

        zeros = jnp.zeros_like(jax.eval_shape(of_block, 0))
        sums = jax.lax.fori_loop(0, used, lambda b, sums: add_compensated(sums[0], sums[1], of_block(b)), (zeros, zeros))
        return jax.lax.psum(jnp.stack(sums), AXIS)

    specs = {"in_specs": (_whole, _split, _whole, _whole), "out_specs": _whole}
    return jax.jit(jax.shard_map(run, mesh=mesh, **specs, check_vma=False))


def add_compensated(total: Array, rest: Array, more: Array) -> tuple[Array, Array]:
    """A sum and what its additions have rounded away.

    Source: Knuth, The Art of Computer Programming 2, Sec. 4.2.2, Theorem B.
    """
    new = total + more
    added = new - total
    return new, rest + ((total - (new - added)) + (more - added))

"""Loss, gradient and Hessian of a log-linear model in its exponents, as means over positions.

One CPU reads blocks of positions in threads. Several devices, or an accelerator, hold all positions from the first pass on: a
pass takes the exponents to the devices, each adds up its own positions, and one reduction brings the sums back.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Integer

from jexplicit.lm.rows.device_tables import SHARES, Blocks, DevicePositions, place_positions, read_block
from jexplicit.lm.rows.log_tables import (
    Arrays,
    Block,
    LogTables,
    Positions,
    blocks,
    check_exponents,
    feature_rows,
    mixed_logits,
)
from jexplicit.lm.rows.threads import map_in_threads
from jexplicit.runs.devices import AXIS, full_precision, spreads


class Moments(NamedTuple):
    """Means over positions.

    loss: nats.
    gradient: [S] expected less observed rows.
    hessian: [S, S] covariance of the rows.
    """

    loss: float
    gradient: Float[np.ndarray, " S"]
    hessian: Float[np.ndarray, "S S"]


def moments_of(
    tables: LogTables, positions: Positions, Y: Integer[np.ndarray, " M"], S: int, mesh: Mesh | None = None
) -> Callable[[Float[np.ndarray, " S"]], Moments]:
    """A function of S exponents: the moments of a model over some positions.

    Args:
        tables: dense and sparse log tables.
        positions: which rows and which exponents each position reads.
        Y: [M] targets.
        S: exponents.
        mesh: devices to spread the positions over; default, the threads of one CPU.

    Raises:
        ValueError: positions that do not fit the tables or the exponents.

    Example:
        >>> tables = LogTables((jnp.log(jnp.array([[0.8, 0.2]])),))
        >>> one = Positions(np.zeros((1, 1), int), np.zeros((1, 1), int))
        >>> round(moments_of(tables, one, np.array([0]), 1)(np.zeros(1)).loss, 5)  # log 2
        0.69315
    """
    check_exponents(positions, S)
    if mesh is None or not spreads(mesh):
        return functools.partial(_in_threads, tables, positions, Y)
    placed, _ = place_positions(tables, positions, Y, mesh, cells=positions.rows.shape[1] * tables.outputs)
    dtype = tables.dense[0].dtype

    def measure(a: np.ndarray) -> Moments:
        sums = np.asarray(compiled_sums(mesh, S)(placed, a.astype(dtype)), np.float64).sum(axis=0) / len(Y)
        return Moments(float(sums[0]), sums[1 : 1 + S], sums[1 + S :].reshape(S, S))

    return measure


def _in_threads(tables: LogTables, positions: Positions, Y: np.ndarray, a: np.ndarray) -> Moments:
    S = len(a)
    nll, gradient, hessian, arrays = 0.0, np.zeros(S), np.zeros((S, S)), tables.arrays

    def read(block: Block) -> tuple[Block, list[np.ndarray]]:
        return block, [np.asarray(part) for part in position_moments(arrays, a, block, True)]

    for block, parts in map_in_threads(read, blocks(tables, positions, Y)):
        g = block.exponents.astype(np.int64)
        nll += float(np.asarray(parts[0], np.float64).sum())
        gradient += np.bincount(g.ravel(), np.ravel(parts[1]), minlength=S)
        pairs = (g[:, :, None] * S + g[:, None, :]).ravel()
        hessian += np.bincount(pairs, np.ravel(parts[2]), minlength=S * S).reshape(S, S)
    return Moments(nll / len(Y), gradient / len(Y), hessian / len(Y))


@functools.partial(jax.jit, static_argnums=3)
@full_precision
def position_moments(
    arrays: Arrays, exponents: Array, block: Block, covariances: bool
) -> tuple[Float[Array, " B"], Float[Array, "B G"], Float[Array, "B G G"] | None]:
    """Loss, expected less observed rows, and where wanted covariance of the rows, of each position of a block."""
    W = feature_rows(arrays, block)
    log_p = jax.nn.log_softmax(mixed_logits(W, exponents, block), axis=1)
    p = jnp.exp(log_p)
    mean = jnp.einsum("bgn,bn->bg", W, p)
    observed = jnp.take_along_axis(W, block.y[:, None, None], axis=2)[:, :, 0]
    weight = block.weight.astype(W.dtype)
    loss = -jnp.take_along_axis(log_p, block.y[:, None], axis=1)[:, 0] * weight
    gradient = (mean - observed) * weight[:, None]
    if not covariances:
        return loss, gradient, None
    covariance = jnp.einsum("bgn,bhn->bgh", W * p[:, None, :], W) - mean[:, :, None] * mean[:, None, :]
    return loss, gradient, covariance * weight[:, None, None]


@functools.cache
def compiled_sums(mesh: Mesh, S: int) -> Any:
    """Compiled `DevicePositions, exponents [S] -> [2, 1 + S + S²]`, sums of loss, gradient and Hessian, and what they round."""

    def run(here: DevicePositions, a: Array) -> Array:
        def step(sums: tuple[Array, Array], blocks: Blocks) -> tuple[tuple[Array, Array], None]:
            return _add(*sums, _block_sums(here.arrays, a, read_block(here, blocks), S)), None

        zeros = jnp.zeros(1 + S + S * S, a.dtype)
        return jax.lax.psum(jnp.stack(jax.lax.scan(step, (zeros, zeros), here.blocks)[0]), AXIS)

    specs = {"in_specs": (SHARES, PartitionSpec()), "out_specs": PartitionSpec()}
    return jax.jit(jax.shard_map(run, mesh=mesh, **specs, check_vma=False))


@full_precision
def _block_sums(arrays: Arrays, a: Array, block: Block, S: int) -> Float[Array, " sums"]:
    loss, gradient, covariance = position_moments(arrays, a, block, True)
    which = jax.nn.one_hot(block.exponents, S, dtype=a.dtype)
    hessian = jnp.einsum("bgs,bgt->st", which, jnp.einsum("bgh,bht->bgt", covariance, which))
    return jnp.concatenate([loss.sum()[None], jnp.einsum("bg,bgs->s", gradient, which), hessian.ravel()])


def _add(total: Array, rest: Array, more: Array) -> tuple[Array, Array]:
    """A sum and what its additions have rounded away.

    Source: Knuth, The Art of Computer Programming 2, Sec. 4.2.2, Theorem B.
    """
    new = total + more
    added = new - total
    return new, rest + ((total - (new - added)) + (more - added))

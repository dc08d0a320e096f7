"""Loss, gradient and Hessian of a log-linear model in its exponents, as means over positions.

Positions lie on the devices from the first pass on. A pass takes the exponents there, each device adds up its own positions,
and one reduction brings the sums back.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Integer

from jexplicit.lm.tables.placing import (
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
from jexplicit.lm.tables.reader import block_rows, map_positions, sum_positions
from jexplicit.lm.tables.storage import as_table
from jexplicit.runs.devices import default_mesh, full_precision


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
    tables: Sequence[Any],
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    S: int,
    mesh: Mesh | None = None,
    *,
    most_of_hessian: int = 1 << 30,
) -> Callable[[Float[np.ndarray, " S"]], Moments]:
    """A function of S exponents: the moments of a model over some positions.

    Args:
        tables: for each feature a table of jexplicit.lm.tables.storage, or an array [R, N].
        positions: which rows and which exponents each position reads.
        Y: [M] targets.
        S: exponents.
        mesh: devices to spread the positions over; default, all accelerators, or one CPU.
        most_of_hessian: the Hessian is that of every n-th position, about so many at most.

    Raises:
        ValueError: positions that do not fit the tables or the exponents.

    Example:
        >>> tables = [jnp.log(jnp.array([[0.8, 0.2]]))]
        >>> one = Positions(np.zeros((1, 1), int), np.zeros((1, 1), int))
        >>> round(moments_of(tables, one, np.array([0]), 1)(np.zeros(1)).loss, 5)  # log 2
        0.69315
    """
    some, mesh = slice(None, None, -(-len(Y) // most_of_hessian)), mesh or default_mesh()
    prepared = prepare_rows(tables, positions, S, mesh)  # dense rows are large: both share them
    placed = place(prepared, positions, Y, mesh)
    curved = place(prepared, positions.take(some), Y[some], mesh) if some.step > 1 else None

    def measure(a: np.ndarray) -> Moments:
        sums = sum_positions(block_sums if curved is None else block_slopes, placed, a) / len(Y)
        bent = sums if curved is None else sum_positions(block_sums, curved, a) / len(Y[some])
        return Moments(float(sums[0]), sums[1 : 1 + S], bent[1 + S :].reshape(S, S))

    return measure


def place_rows(
    tables: Sequence[Any], positions: Positions, Y: Integer[np.ndarray, " M"], S: int, mesh: Mesh | None = None
) -> PlacedPositions:
    """Positions and their rows on the devices, for fits of S exponents."""
    mesh = mesh or default_mesh()
    return place(prepare_rows(tables, positions, S, mesh), positions, Y, mesh)


def prepare_rows(tables: Sequence[Any], positions: Positions, S: int, mesh: Mesh) -> PreparedTables:
    """Tables to be read by positions, which fit them and S exponents."""
    tables = list(map(as_table, tables))
    check_positions(tables, positions)
    check_exponents(positions, S)
    return prepare(tables, tables[0].vocab_size, mesh)


def position_slopes(
    placed: PlacedPositions, exponents: Float[np.ndarray, " S"]
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, "M G"], Float[np.ndarray, "M G"]]:
    """`log p` of every position, its slopes in the exponents of the rows that it reads, and the expectations of these; a slope
    is the row of the target less its expectation."""
    loss, excess, mean = map_positions(_loss_and_slopes, placed, exponents)
    of_feature = np.argsort(placed.features)
    return -loss.astype(np.float64), -excess[:, of_feature], mean[:, of_feature]


@full_precision
def _loss_and_slopes(
    shared: Shared, block: PositionBlocks, a: Array, dense: int
) -> tuple[Float[Array, " B"], Float[Array, "B G"], Float[Array, "B G"]]:
    loss, excess, _, mean = _position_moments(block_rows(shared, block), block, a)
    return loss, excess, mean


@full_precision
def block_sums(shared: Shared, block: PositionBlocks, a: Float[Array, " S"]) -> Float[Array, " sums"]:
    """Sums of loss, gradient and Hessian."""
    W, S = block_rows(shared, block), len(a)
    loss, gradient, p, mean = _position_moments(W, block, a)
    weight = (block.y >= 0).astype(W.dtype)[:, None, None]
    covariance = weight * (jnp.einsum("bgn,bhn->bgh", W * p[:, None, :], W) - mean[:, :, None] * mean[:, None, :])
    J = block.exponents.shape[2]
    e = block.exponents.reshape(len(W), -1)  # the exponents of a position, J for each of its rows
    pairs = jnp.repeat(jnp.repeat(covariance, J, axis=1), J, axis=2)
    hessian = jnp.zeros(S * S, a.dtype).at[S * e[:, :, None] + e[:, None, :]].add(pairs)
    return jnp.concatenate([loss.sum()[None], _by_exponent(gradient, block, S), hessian])


@full_precision
def block_slopes(shared: Shared, block: PositionBlocks, a: Float[Array, " S"]) -> Float[Array, " sums"]:
    """Sums of loss and gradient."""
    loss, gradient, _, _ = _position_moments(block_rows(shared, block), block, a)
    return jnp.concatenate([loss.sum()[None], _by_exponent(gradient, block, len(a))])


def _by_exponent(gradient: Float[Array, "B G"], block: PositionBlocks, S: int) -> Float[Array, " S"]:
    B, _, J = block.exponents.shape
    slopes = jnp.repeat(gradient, J, axis=1)
    return jnp.zeros(S, gradient.dtype).at[block.exponents.reshape(B, -1)].add(slopes)


def _position_moments(
    W: Float[Array, "B G N"], block: PositionBlocks, a: Float[Array, " S"]
) -> tuple[Array, Array, Array, Array]:
    """Loss [B] and expected less observed rows [B, G], 0 for what fills up a block; probabilities and expected rows."""
    logits = jnp.einsum("bgn,bg->bn", W, a[block.exponents].sum(axis=2))
    y, weight = jnp.maximum(block.y, 0), (block.y >= 0).astype(W.dtype)
    log_p = jax.nn.log_softmax(logits, axis=1)
    p = jnp.exp(log_p)
    mean = jnp.einsum("bgn,bn->bg", W, p)
    observed = jnp.take_along_axis(W, y[:, None, None], axis=2)[:, :, 0]
    loss = -jnp.take_along_axis(log_p, y[:, None], axis=1)[:, 0] * weight
    return loss, (mean - observed) * weight[:, None], p, mean

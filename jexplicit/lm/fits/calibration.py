"""The exponents of a log-linear model, fitted on held-out positions by Newton's method.

With the rows r_g fixed by counting, `L(a) = (1/M) sum_m log Z_m(a) - sum_g a_g r_g[y_m]` is convex in the few exponents a:

    dL/da_g = E_p[r_g] - r_g[y],    d²L/da_g da_h = Cov_p[r_g, r_h],    means over positions.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from jexplicit.data.tokenizers import Progress
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
from jexplicit.runs.devices import full_precision

_damping = 0.03  # the least, of the mean curvature


class Calibration(NamedTuple):
    """The outcome of `fit_exponents`, or of `fit_pair_exponents`.

    exponents: [S].
    loss: nats per held-out position, or per minimal pair, penalty left out.
    gradient: largest entry of the gradient of what was minimised; 0 at the minimum.
    passes: over the positions; one more than the steps, where none went too far.
    """

    exponents: Float[np.ndarray, " S"]
    loss: float
    gradient: float
    passes: int


def fit_exponents(
    tables: LogTables,
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    start: Float[np.ndarray, " S"],
    *,
    guess: Float[np.ndarray, " S"] | None = None,
    ridge: float = 1e-4,
    tolerance: float = 1e-5,
    gain: float = 0.0,
    iterations: int = 30,
    progress: Progress | None = None,
) -> Calibration:
    """The exponents with the lowest loss on positions that the tables have not seen, `min_a L(a) + ridge/2 ||a - start||²`.

    Args:
        tables: dense and sparse log tables.
        positions: which rows and which exponents each position reads.
        Y: [M] targets.
        start: [S] first exponents. The penalty ties an exponent that the positions say little about to its start.
        guess: [S] where the iterations begin; default, at the start.
        ridge: strength of the penalty, nats per position.
        tolerance: of the largest entry of the gradient, where the iterations end.
        gain: they also end where the next step would lower the loss by less, in nats per position.
        iterations: at most; every one is a pass over the positions.
        progress: called with (passes done, most passes).

    Raises:
        ValueError: no positions; exponents that the start does not have.

    Example:
        >>> tables = LogTables((jnp.log(jnp.array([[0.8, 0.2]])),))  # seen in a text: 4 to 1; in another: 2 to 1
        >>> heads = Positions(np.zeros((3, 1), int), np.zeros((3, 1), int))
        >>> fit_exponents(tables, heads, np.array([0, 0, 1]), np.ones(1), ridge=0).exponents.round(3).tolist()  # log 2 / log 4
        [0.5]

    Source: Klakow 1998 for log-linear interpolation; Newton's method with Levenberg's damping where a step goes too far.
    """
    if not len(Y):
        raise ValueError("no held-out positions: hold out more of the text")
    check_exponents(positions, len(start))
    start, S = np.asarray(start, np.float64), len(start)
    a = start if guess is None else np.asarray(guess, np.float64)
    here, step, passes, damping = Objective(np.inf, np.zeros(S), np.eye(S), np.inf), np.zeros(S), 0, 0.0
    for passes in range(1, iterations + 1):
        there = objective(tables, positions, Y, a + step, start, ridge)
        if progress:
            progress(passes, iterations)
        worse = there.value > here.value + 1e-6  # rounding of float32 losses aside, a short enough step lowers the loss
        if not worse:
            a, here = a + step, there
        least = _damping * float(np.trace(here.hessian)) / S
        damping = max(8 * damping, least) if worse else damping / 8 if damping > least else 0.0
        step = -np.linalg.lstsq(here.hessian + damping * np.eye(S), here.gradient, rcond=1e-10)[0]
        if np.abs(here.gradient).max() < tolerance or -step @ here.gradient / 2 < gain:
            break
    return Calibration(a, here.loss, float(np.abs(here.gradient).max()), passes)


class Objective(NamedTuple):
    """What a fit minimises at one place: value and slopes with the penalty, and the loss without it, in nats per position."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray
    loss: float


def objective(tables: LogTables, positions: Positions, Y: np.ndarray, a: np.ndarray, start: np.ndarray, ridge: float):
    """Value, gradient and Hessian of the penalised loss per position."""
    S = len(a)
    nll, gradient, hessian, arrays = 0.0, np.zeros(S), np.zeros((S, S)), tables.arrays

    def read(block: Block) -> tuple[Block, list[np.ndarray]]:
        return block, [np.asarray(part) for part in moments(arrays, a, block, True)]

    for block, parts in map_in_threads(read, blocks(tables, positions, Y)):
        g = block.exponents.astype(np.int64)
        nll += float(np.asarray(parts[0], np.float64).sum())
        gradient += np.bincount(g.ravel(), np.ravel(parts[1]), minlength=S)
        pairs = (g[:, :, None] * S + g[:, None, :]).ravel()
        hessian += np.bincount(pairs, np.ravel(parts[2]), minlength=S * S).reshape(S, S)
    loss, off = nll / len(Y), a - start
    value = loss + ridge / 2 * float(off @ off)
    return Objective(value, gradient / len(Y) + ridge * off, hessian / len(Y) + ridge * np.eye(S), loss)


@functools.partial(jax.jit, static_argnums=3)
@full_precision
def moments(
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

"""The exponents of a log-linear model, fitted on held-out positions by Newton's method.

With the rows r_g fixed by counting, `L(a) = (1/M) sum_m log Z_m(a) - sum_g a_g r_g[y_m]` is convex in the few exponents a:

    dL/da_g = E_p[r_g] - r_g[y],    d²L/da_g da_h = Cov_p[r_g, r_h],    means over positions.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Integer
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from jexplicit.data.tokenizers import Progress
from jexplicit.lm.tables.moments import Moments, moments_of
from jexplicit.lm.tables.placing import Positions

_damping = 0.03  # the least, of the mean curvature
_positions_of_hessian, _per_exponent = 20_000, 20  # so many fix a direction, which the gradient of all corrects


class Calibration(NamedTuple):
    """The outcome of `fit_exponents`.

    exponents: [S].
    loss: nats per held-out position, penalty left out.
    gradient: largest entry of the gradient of what was minimised; 0 at the minimum.
    passes: over the positions; one more than the steps, where none went too far.
    """

    exponents: Float[np.ndarray, " S"]
    loss: float
    gradient: float
    passes: int


def fit_exponents(
    tables: Sequence[Any],
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    start: Float[np.ndarray, " S"],
    *,
    guess: Float[np.ndarray, " S"] | None = None,
    ridge: float | None = None,
    tolerance: float = 1e-5,
    gain: float = 0.0,
    iterations: int = 30,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """The exponents with the lowest loss on positions that the tables have not seen, `min_a L(a) + ridge/2 ||a - start||²`.

    Args:
        tables: for each feature a table of jexplicit.lm.tables.storage, or an array [R, N].
        positions: which rows and which exponents each position reads.
        Y: [M] targets.
        start: [S] first exponents. The penalty ties an exponent that the positions say little about to its start.
        guess: [S] where the iterations begin; default, at the start.
        ridge: strength of the penalty, nats per position; default, `default_ridge`.
        tolerance: of the largest entry of the gradient, where the iterations end.
        gain: they also end where the next step would lower the loss by less, in nats per position.
        iterations: at most; every one is a pass over the positions.
        mesh: devices to spread the positions over; default, all accelerators, or one CPU.
        progress: called with (passes done, most passes).

    Raises:
        ValueError: no positions; exponents that the start does not have.

    Example:
        >>> import jax.numpy as jnp
        >>> tables = [jnp.log(jnp.array([[0.8, 0.2]]))]  # seen in a text: 4 to 1; in another: 2 to 1
        >>> heads = Positions(np.zeros((3, 1), int), np.zeros((3, 1), int))
        >>> fit_exponents(tables, heads, np.array([0, 0, 1]), np.ones(1), ridge=0).exponents.round(3).tolist()  # log 2 / log 4
        [0.5]

    Source: Klakow 1998 for log-linear interpolation; Newton's method with Levenberg's damping where a step goes too far.
    """
    if not len(Y):
        raise ValueError("no held-out positions: hold out more of the text")
    start, S = np.asarray(start, np.float64), len(start)
    ridge = default_ridge(len(Y)) if ridge is None else ridge
    moments = moments_of(tables, positions, Y, S, mesh, most_of_hessian=max(_positions_of_hessian, _per_exponent * S))
    a = start if guess is None else np.asarray(guess, np.float64)
    here, step, passes, damping = Objective(np.inf, np.zeros(S), np.eye(S), np.inf), np.zeros(S), 0, 0.0
    for passes in range(1, iterations + 1):
        there = objective(moments, a + step, start, ridge)
        if progress:
            progress(passes, iterations)
        worse = there.value > here.value + 1e-6  # rounding of float32 losses aside, a short enough step lowers the loss
        if not worse:
            a, here = a + step, there
        least = _damping * float(np.trace(here.hessian)) / S
        damping = max(8 * damping, least) if worse else damping / 8 if damping > least else 0.0
        step = -_solve(here.hessian + damping * np.eye(S), here.gradient)
        if np.abs(here.gradient).max() < tolerance or -step @ here.gradient / 2 < gain:
            break
    return Calibration(a, here.loss, float(np.abs(here.gradient).max()), passes)


def _solve(H: Float[np.ndarray, "S S"], g: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """H⁻¹ g; the shortest of several solutions where H is singular, as it may be without a penalty."""
    try:
        return cho_solve(cho_factor(H), g)
    except LinAlgError:
        return np.linalg.lstsq(H, g, rcond=1e-10)[0]


def default_ridge(M: int) -> float:
    """The penalty on exponents that M positions fix: `max(1e-4, 3/(2M), 25/M²)`.

    In all it weighs as much as 1.5 positions, so that few positions do not fix many exponents; more if there are fewer than 17.
    """
    M = max(M, 1)  # no position is refused where they are read
    return max(1e-4, 1.5 / M, 25 / M**2)


class Objective(NamedTuple):
    """What a fit minimises at one place: value and slopes with the penalty, and the loss without it, in nats per position."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray
    loss: float


def objective(moments: Callable[[np.ndarray], Moments], a: np.ndarray, start: np.ndarray, ridge: float) -> Objective:
    """Value, gradient and Hessian of the penalised loss per position."""
    loss, gradient, hessian = moments(a)
    off = a - start
    return Objective(loss + ridge / 2 * float(off @ off), gradient + ridge * off, hessian + ridge * np.eye(len(a)), loss)

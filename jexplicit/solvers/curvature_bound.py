"""Sweeps with a fixed bound on the curvature, without a learning rate.

The Hessian of a softmax layer's loss is at most `1/2 HᵀH` for each output, everywhere (Böhning 1992), so the step

    U += 2 (HᵀH)⁻¹ (F - HᵀP),    P = softmax(H U),

never raises the loss. It uses the same two tables as iterative scaling, F and HᵀP, needs no autodiff and no learning rate, and
allows features of either sign. The matrix is factorised once; from zeros, the first sweep is least squares. A ridge keeps it
invertible, and the decreasing loss includes the ridge.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_float, as_targets, check_targets, is_concrete
from jexplicit.runs.devices import full_precision
from jexplicit.solvers.sweeps import SoftmaxFit, run_sweeps


class CurvatureProblem(NamedTuple):
    """Data of a sweep: features, targets, Cholesky factor and penalty."""

    H: Float[Array, "M D"]
    Y: Float[Array, "M N"]
    factor: Float[Array, "D D"]
    penalty: Float[Array, ""]


@jax.jit
@full_precision
def curvature_problem(H: Float[Array, "M D"], Y: Float[Array, "M N"], ridge: float | Float[Array, ""]) -> CurvatureProblem:
    """The problem with penalty `ridge t`, t the mean square of a feature."""
    A = H.T @ H / len(H)
    penalty = ridge * jnp.trace(A) / len(A)
    return CurvatureProblem(H, Y, jnp.linalg.cholesky(A + 2 * penalty * jnp.eye(len(A), dtype=A.dtype)), penalty)


@jax.jit
@full_precision
def curvature_bound_sweep(U: Float[Array, "D N"], problem: CurvatureProblem) -> tuple[Float[Array, "D N"], Float[Array, ""]]:
    """One sweep, and the previous mean loss with the ridge.
    `U + 2 (HᵀH/M + 2 penalty)⁻¹ (Hᵀ(Y - P)/M - penalty U)`."""
    H, Y, factor, penalty = problem
    log_P = jax.nn.log_softmax(H @ U)
    ascent = H.T @ (Y - jnp.exp(log_P)) / len(H) - penalty * U
    loss = -jnp.mean(jnp.sum(Y * log_P, axis=1)) + penalty / 2 * jnp.sum(U**2)
    return U + 2 * jax.scipy.linalg.cho_solve((factor, True), ascent), loss


def no_factor(t: Any, ridge: Any) -> str:
    """Why HᵀH has no Cholesky factor, and the remedy."""
    if 1e-30 < float(t) < 1e30:
        return f"HᵀH cannot be factorised with ridge {float(ridge)}: raise the ridge, or standardise the features"
    return (
        f"HᵀH cannot be factorised with ridge {float(ridge)}: check that the features, of variance {float(t):g}, are finite "
        "and not all constant; standardise them"
    )


def curvature_bound_sweeps(
    H: Float[Array, "M D"],
    Y: Float[Array, "M N"],
    U: Float[Array, "rows columns"] | None = None,
    *,
    sweeps: int,
    ridge: float | Float[Array, ""] = 1e-4,
    **options: Any,
) -> SoftmaxFit:
    """Minimise `mean loss + ridge t/2 ||U||²` by sweeps with bounded curvature.
    `U += 2 (HᵀH/M + 2 ridge t)⁻¹ ((F - HᵀP)/M - ridge t U)`.

    t is the mean square of a feature, so that the ridge does not depend on the features' units.

    Args:
        H: [M, D] features, of either sign.
        Y: [M, N] targets, one-hot or a distribution per row; or [M] labels.
        U: [D, N] start; default, zeros.
        sweeps: number of sweeps.
        ridge: of the order of 1e-4; above 0.
        options: checkpoints and callbacks of jexplicit.solvers.sweeps.run_sweeps.

    Returns:
        U, an intercept of zeros, and the losses with the ridge.

    Raises:
        ValueError: shapes that do not fit, no examples, a feature that is not finite, features that are all 0, targets that are
            no distributions, a ridge that is too small or not above 0, fewer than 0 sweeps. Under jit, vmap and grad only
            shapes are checked.
        FloatingPointError: a loss that is not finite.

    Example:
        >>> H, Y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.eye(2)
        >>> curvature_bound_sweeps(H, Y, sweeps=1, ridge=1e-6).U.round(3).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]

    Source: Böhning, Multinomial logistic regression algorithm, 1992.
    """
    Y = as_targets(Y, None if U is None else U.shape[1])
    if H.ndim != 2 or Y.ndim != 2 or 0 in H.shape:
        raise ValueError(f"H {H.shape}, Y {Y.shape}: expected [M, D] and [M, N], of at least one example and one feature")
    H, Y = as_float(H), as_float(Y)
    start = jnp.zeros((H.shape[1], Y.shape[1]), H.dtype) if U is None else U
    if len(H) != len(Y) or start.shape != (H.shape[1], Y.shape[1]):
        raise ValueError(f"H {H.shape}, Y {Y.shape}, U {start.shape}: expected [M, D], [M, N] and [D, N]")
    check_targets(Y, Y.shape)
    if isinstance(ridge, str) or (is_concrete(ridge) and not 0 < ridge < jnp.inf):
        raise ValueError(f"ridge {ridge}: it keeps HᵀH invertible and must be above 0, e.g. 1e-4")
    problem = curvature_problem(H, Y, ridge)
    if is_concrete(problem) and not bool(jnp.isfinite(problem.factor).all()):
        raise ValueError(no_factor(problem.penalty / ridge, ridge))
    solution, losses = run_sweeps(curvature_bound_sweep, start, problem, sweeps=sweeps, **options)
    return SoftmaxFit(solution, jnp.zeros_like(start[0]), losses)

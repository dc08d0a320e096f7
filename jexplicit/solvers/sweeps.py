"""Fits of a softmax layer by sweeps over all data.

The loop is resumable, or one `scan` under tracing. Its sweeps are those of generalised iterative scaling, those with a fixed
bound on the curvature, and those of jexplicit.solvers.gram.

At the optimum of the convex loss the model's co-occurrences equal those of the data, `HᵀP = F`. A sweep of scaling updates
every parameter by the logarithm of their ratio,

    U[j, i] += (1/K) log(F[j, i] / (HᵀP)[j, i]),    P = softmax(H U),

and never raises the loss (Darroch & Ratcliff 1972), provided that all rows of H have the same L1 norm K. If norms differ, K
is the largest one and a *slack feature* `h_0 = K - ||h||_1` completes every row to this norm; its weight u_0 acts as an
intercept, as `H U + (K - ||h||_1) ⊗ u_0 = H (U - 1 ⊗ u_0) + K u_0`. Sweeps without the slack feature are monotone as well
(Curran & Clark 2003), towards the best layer without an intercept.

The Hessian of the loss is at most `1/2 HᵀH` for each output, everywhere (Böhning 1992), so the step

    U += 2 (HᵀH)⁻¹ (F - HᵀP),    P = softmax(H U),

never raises the loss either. It uses the same two tables, F and HᵀP, needs no autodiff and no learning rate, and allows
features of either sign. The matrix is factorised once; from zeros, the first sweep is least squares. A ridge keeps it
invertible, and the decreasing loss includes the ridge.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_float, as_targets, check_targets, is_concrete
from jexplicit.runs.devices import full_precision
from jexplicit.runs.loop import History, iterate
from jexplicit.solvers.explicit import dense_cooccurrence, priming_number


class SoftmaxFit(NamedTuple):
    """A softmax layer `softmax(H U + intercept)` and its training losses.

    losses: mean negative log-likelihood in nats at the start and after each sweep, including a ridge.
    """

    U: Float[Array, "D N"]
    intercept: Float[Array, " N"]
    losses: Any

    @full_precision
    def logits(self, H: Float[Array, "M D"]) -> Float[Array, "M N"]:
        """`H U + intercept`, in nats."""
        return H @ self.U + self.intercept[None, :]


def run_sweeps(
    sweep: Callable[[Any, Any], tuple[Any, Float[Array, ""]]],
    state: Any,
    problem: Any,
    *,
    sweeps: int,
    checkpoints: str | os.PathLike | None = None,
    checkpoint_seconds: float = 60.0,
    on_sweep: Callable[[int, float, Any], bool | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Any, Any]:
    """Iterate `state, loss = sweep(state, problem)`; the last state and losses.

    Under jit, vmap or grad the loop is one `lax.scan`, without checkpoints and callbacks.

    sweep: pure and compiled; problem: a pytree of constant arrays.
    checkpoints: folder for checkpoints, from which sweeps resume; checkpoint_seconds: time between them.
    on_sweep: called with (sweeps done, loss, state), from 0 sweeps on; where it returns True, they end.
    progress: called with (sweeps done, total sweeps).
    """
    if not isinstance(sweeps, int | float | np.integer) or sweeps < 0 or sweeps % 1:
        raise ValueError(f"{sweeps!r} sweeps: use a whole number of at least 0")
    if not is_concrete(state, problem):
        state, before = jax.lax.scan(lambda state, _: sweep(state, problem), state, length=sweeps)
        return state, jnp.append(before, sweep(state, problem)[1])

    def step(state: Any, history: History) -> tuple[Any, dict[str, float]]:
        moved, loss = sweep(state, problem)
        if not np.isfinite(loss):
            remedy = "start from finite parameters, of tables of the same stream or zeros"
            raise FloatingPointError(f"loss {loss} after {len(history)} sweeps: {remedy}")
        last = bool(on_sweep and on_sweep(len(history), float(loss), state)) or len(history) == sweeps
        if progress and sweeps:
            progress(len(history), sweeps)
        return (state if last else moved), {"loss": float(loss), "last": last}  # the last iteration only computes the loss

    saving: Any = {"checkpoints": checkpoints, "checkpoint_seconds": checkpoint_seconds}
    known = {**(problem if isinstance(problem, dict) else {"problem": problem}), "start": state}
    state, history = iterate(step, state, done=lambda history: bool(history) and history[-1]["last"], known=known, **saving)
    return state, np.array([entry["loss"] for entry in history])


class ScalingProblem(NamedTuple):
    """Data of a sweep: features, targets, F, the largest norm, constant logits."""

    H: Float[Array, "M D"]
    Y: Float[Array, "M N"]
    F: Float[Array, "D N"]
    K: float | Float[Array, ""]
    offsets: Float[Array, "M N"] | None = None


@jax.jit
@full_precision
def scaling_sweep(U: Float[Array, "D N"], problem: ScalingProblem) -> tuple[Float[Array, "D N"], Float[Array, ""]]:
    """One sweep, and the previous mean loss in nats.
    `U + (1/K) log(F / Hᵀ softmax(H U))`; U[j, i] is fixed if F[j, i] = 0."""
    H, Y, F, K, offsets = problem
    logits = H @ U
    log_P = jax.nn.log_softmax(logits if offsets is None else logits + offsets)
    E, occurs = H.T @ jnp.exp(log_P), F > 0
    log_ratio = jnp.where(occurs, jnp.log(jnp.where(occurs, F, 1) / jnp.where(occurs, E, 1)), 0)
    return U + log_ratio / K, -jnp.mean(jnp.sum(Y * log_P, axis=1))


@full_precision
def iterative_scaling_sweeps(
    H: Float[Array, "M D"],
    Y: Float[Array, "M N"],
    U: Float[Array, "rows columns"],
    *,
    sweeps: int,
    slack: bool | None = None,
    offsets: Float[Array, "M N"] | None = None,
    **options: Any,
) -> SoftmaxFit:
    """Fit a softmax layer by iterative scaling from given parameters.

    Args:
        H: [M, D] features, at least 0.
        Y: [M, N] targets, one-hot or a distribution per row; or [M] labels.
        U: [D, N] start: zeros, or the explicit solution.
        sweeps: number of sweeps.
        slack: whether to add the slack feature; default, if the norms of the rows differ.
        offsets: [M, N] constant logits to add; default, none.
        options: checkpoints and callbacks of jexplicit.solvers.sweeps.run_sweeps.

    Raises:
        ValueError: a negative or non-finite feature; features that are all 0, or whose sums are beyond the range of the dtype;
            targets that are no distributions; shapes that do not fit; a feature that never co-occurs with an output, as its
            parameter would diverge to -inf; fewer than 0 sweeps. Under jit, vmap and grad only shapes are checked.
        FloatingPointError: a loss that is not finite.

    Example:
        >>> H, Y = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), jnp.array([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7]])
        >>> fit = iterative_scaling_sweeps(H, Y, jnp.zeros((2, 2)), sweeps=1)
        >>> (100 * jax.nn.softmax(fit.logits(H))).round().tolist()
        [[90.0, 10.0], [40.0, 60.0], [40.0, 60.0]]

    Source: Darroch & Ratcliff 1972; Curran & Clark 2003.
    """
    Y = as_targets(Y, U.shape[1])
    if len(H) != len(Y) or U.shape != (H.shape[1], Y.shape[1]) or (offsets is not None and offsets.shape != Y.shape):
        shapes = f"H {H.shape}, Y {Y.shape}, U {U.shape}" + ("" if offsets is None else f", offsets {offsets.shape}")
        raise ValueError(f"{shapes}: expected [M, D], [M, N], [D, N] and offsets as Y")
    check_targets(Y, Y.shape)
    H, Y = as_float(H), as_float(Y)
    F, n = dense_cooccurrence(H, Y), H.sum(axis=1)
    if is_concrete(H, F):
        _check_pairs(H, F)
        priming_number(H)  # refuses norms beyond the range of the dtype
    K = n.max()
    h0 = jnp.where(K - n.min() > np.sqrt(jnp.finfo(H.dtype).eps) * K, K - n, 0)  # smaller differences are rounding errors
    if slack is None:
        slack = not is_concrete(h0) or bool(h0.max() > 0)
    if slack:
        H = jnp.concatenate([H, h0[:, None]], axis=1)
        F = jnp.concatenate([F, (h0 @ Y)[None, :]])
        U = jnp.concatenate([U, jnp.zeros_like(U[:1])])
    U, losses = run_sweeps(scaling_sweep, U, ScalingProblem(H, Y, F, K, offsets), sweeps=sweeps, **options)
    u0 = U[-1] if slack else jnp.zeros_like(U[0])
    return SoftmaxFit((U[:-1] if slack else U) - u0[None, :], K * u0, losses)


def _check_pairs(H: Array, F: Array) -> None:
    """Refuse features that are all 0, or never occur with some output."""
    if not bool((H > 0).any()):
        raise ValueError("features that are all 0: a layer has nothing to read; check how they were made")
    never = np.argwhere(np.asarray((F <= 0) & (H.max(axis=0) > 0)[:, None]))
    if len(never):
        j, i = never[0].tolist()
        raise ValueError(
            f"feature {j} never co-occurs with output {i} ({len(never)} such pairs): its parameter would diverge to -inf; "
            "add a small constant to the features (jexplicit.features.random.unit_rows) or drop the output"
        )


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

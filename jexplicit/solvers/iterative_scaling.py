"""Generalised iterative scaling: sweeps towards the optimum of a softmax layer, with no autodiff and no learning rate.

At the optimum of the convex loss the model's co-occurrences are those of the data, `HᵀP = F`. A sweep moves every parameter by
how far it is from that,

    U[j, i] += (1/K) log(F[j, i] / (HᵀP)[j, i]),    P = softmax(H U),

and never raises the loss (Darroch & Ratcliff 1972). Their condition is that all rows of H have the same L1 norm K. Where
norms differ, K is the largest of them and a *slack feature* `h_0 = K - ||h||_1` fills every row up to it; its weight u_0 is an
intercept in disguise, as `H U + (K - ||h||_1) ⊗ u_0 = H (U - 1 ⊗ u_0) + K u_0`. Without the slack feature sweeps are monotone
all the same (Curran & Clark 2003), towards the best layer without an intercept.
"""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.counts.dense import dense_cooccurrence
from jexplicit.runs.checkpoints import load_latest, save_latest


class Scaled(NamedTuple):
    """A softmax layer `softmax(H U + intercept)` and how it came about.

    losses: mean negative log-likelihood in nats at the start and after each sweep.
    """

    U: Float[Array, "D N"]
    intercept: Float[Array, " N"]
    losses: list[float]

    def logits(self, H: Float[Array, "M D"]) -> Float[Array, "M N"]:
        """`H U + intercept`, in nats."""
        return H @ self.U + self.intercept[None, :]


class _Problem(NamedTuple):
    """All that a sweep reads: features and slack, targets, their co-occurrences, the common norm, and frozen logits."""

    H: Array
    h0: Array
    Y: Array
    F: Array
    F0: Array
    K: Array
    offsets: Array | None


def scaling_sweeps(
    H: Float[Array, "M D"],
    Y: Float[Array, "M N"],
    U: Float[Array, "rows columns"],
    *,
    sweeps: int,
    slack: bool | None = None,
    offsets: Float[Array, "M N"] | None = None,
    checkpoints: str | os.PathLike | None = None,
    checkpoint_seconds: float = 60.0,
    on_sweep: Callable[[int, float], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scaled:
    """Sweeps of generalised iterative scaling from given parameters, all of the data in each.

    Args:
        H: [M, D] features, at least 0.
        Y: [M, N] targets, one-hot or a distribution per row.
        U: [D, N] where to start: zeros, or the explicit solution.
        sweeps: how many.
        slack: whether to add the slack feature; default, where the rows' norms differ.
        offsets: [M, N] logits to add that stay as they are; default, none.
        checkpoints: folder for checkpoints; where it holds one, the sweeps continue from it.
        checkpoint_seconds: time between two checkpoints.
        on_sweep: called with (sweeps done, loss).
        progress: called with (sweeps done, sweeps in all).

    Raises:
        ValueError: a negative or non-finite feature; shapes that do not fit; a feature that never meets an output, so that its
            parameter would fall forever; fewer than 0 sweeps.

    Example:
        >>> H, Y = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), jnp.array([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7]])
        >>> (100 * jax.nn.softmax(scaling_sweeps(H, Y, jnp.zeros((2, 2)), sweeps=1).logits(H))).round().tolist()
        [[90.0, 10.0], [40.0, 60.0], [40.0, 60.0]]

    Source: Darroch & Ratcliff 1972; Curran & Clark 2003.
    """
    if sweeps < 0 or len(H) != len(Y) or U.shape != (H.shape[1], Y.shape[1]):
        raise ValueError(f"{sweeps} sweeps, H {H.shape}, Y {Y.shape}, U {U.shape}: wanted >= 0, [M, D], [M, N] and [D, N]")
    problem = _problem(H, Y, slack, offsets)
    state, losses = (U, jnp.zeros(Y.shape[1], U.dtype)), []
    if checkpoints is not None and (found := load_latest(checkpoints, {"state": state, "losses": np.zeros(0)})):
        state, losses = found["state"], [float(loss) for loss in found["losses"]]
    saved = time.perf_counter()
    while len(losses) <= sweeps:
        state_after, loss = _sweep(state, problem)
        losses.append(_checked(float(loss) / len(H)))
        if on_sweep:
            on_sweep(len(losses) - 1, losses[-1])
        if progress and sweeps:
            progress(len(losses) - 1, sweeps)
        if len(losses) > sweeps:
            break  # the last pass only measures
        state = state_after
        if checkpoints is not None and time.perf_counter() - saved > checkpoint_seconds:
            save_latest(checkpoints, len(losses), {"state": state, "losses": np.array(losses)})
            saved = time.perf_counter()
    U, u0 = state
    return Scaled(U - u0[None, :], problem.K * u0, losses)


def scaling_sweep(H: Float[Array, "M D"], Y: Float[Array, "M N"], U: Float[Array, "D N"], K: float) -> Float[Array, "D N"]:
    """One sweep as the equation has it, `U + (1/K) log(F / Hᵀ softmax(H U))`, for rows of H whose norm is K.

    Example:
        >>> U = scaling_sweep(jnp.eye(2), jnp.array([[0.5, 0.5], [0.25, 0.75]]), jnp.zeros((2, 2)), 1)
        >>> (100 * jnp.exp(U)).round().tolist()
        [[100.0, 100.0], [50.0, 150.0]]
    """
    return U + jnp.log(H.T @ Y / (H.T @ jax.nn.softmax(H @ U))) / K


def _problem(H: Array, Y: Array, slack: bool | None, offsets: Array | None) -> _Problem:
    F, n = dense_cooccurrence(H, Y), H.sum(axis=1)
    K = n.max()
    h0 = K - n
    if slack is None:
        slack = bool(h0.max() > np.sqrt(jnp.finfo(H.dtype).eps) * K)  # what is less comes from rounding
    h0 = h0 if slack else jnp.zeros_like(h0)
    active = H.max(axis=0) > 0
    never = np.argwhere(np.asarray((F <= 0) & active[:, None]))
    if len(never):
        j, i = (int(n) for n in never[0])
        raise ValueError(
            f"feature {j} never meets output {i} ({len(never)} pairs never meet): its parameter would fall forever; add a "
            "small constant to the features (jexplicit.solvers.features.unit_rows) or drop the output"
        )
    return _Problem(H, h0, Y, F, h0 @ Y, K, offsets)


@jax.jit
def _sweep(state: tuple[Array, Array], problem: _Problem) -> tuple[tuple[Array, Array], Array]:
    """Parameters after a sweep, and the summed loss before it."""
    (U, u0), (H, h0, Y, F, F0, K, offsets) = state, problem
    logits = H @ U + h0[:, None] * u0[None, :]
    log_P = jax.nn.log_softmax(logits if offsets is None else logits + offsets)
    P = jnp.exp(log_P)
    return (U + _step(F, H.T @ P, K), u0 + _step(F0, h0 @ P, K)), -jnp.sum(Y * log_P)


def _step(F: Array, E: Array, K: Array) -> Array:
    """`(1/K) log(F/E)`; a feature that never occurs stays where it is."""
    return jnp.where(F > 0, jnp.log(jnp.where(F > 0, F, 1) / jnp.where(F > 0, E, 1)), 0) / K


def _checked(loss: Any) -> float:
    if not np.isfinite(loss):
        raise FloatingPointError(f"loss {loss} while scaling: start from finite parameters, e.g. zeros")
    return loss

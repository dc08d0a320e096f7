"""The loop that every gradient-free fit of a softmax layer runs: full-data sweeps, resumable, or one `scan` under tracing."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.runs.checks import concrete
from jexplicit.runs.devices import full_precision
from jexplicit.runs.iterate import History, iterate


class SoftmaxFit(NamedTuple):
    """A softmax layer `softmax(H U + intercept)` and its training losses.

    losses: mean negative log-likelihood in nats at the start and after each sweep, plus the ridge where there is one.
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
    on_sweep: Callable[[int, float], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Any, Any]:
    """Iterate `state, loss = sweep(state, problem)`, where the loss is that of the state before the sweep.

    Under jit, vmap or grad the loop is one `lax.scan`, without checkpoints and callbacks.

    Args:
        sweep: pure and compiled.
        state: pytree of arrays to start from.
        problem: pytree of arrays that stay the same.
        sweeps: how many.
        checkpoints: folder for checkpoints; if it holds one, the sweeps continue from it.
        checkpoint_seconds: time between two checkpoints.
        on_sweep: called with (sweeps done, loss).
        progress: called with (sweeps done, sweeps in all).

    Returns:
        The last state, and the losses [sweeps + 1] of the start and after each sweep.

    Raises:
        ValueError: fewer than 0 sweeps.
        FloatingPointError: a loss that is not finite.
    """
    if sweeps < 0:
        raise ValueError(f"{sweeps} sweeps: use at least 0")
    if not concrete(state, problem):
        state, before = jax.lax.scan(lambda state, _: sweep(state, problem), state, length=sweeps)
        return state, jnp.append(before, sweep(state, problem)[1])

    def step(state: Any, history: History) -> tuple[Any, dict[str, float]]:
        moved, loss = sweep(state, problem)
        if not np.isfinite(loss):
            raise FloatingPointError(f"loss {loss} after {len(history)} sweeps: start from finite parameters, e.g. zeros")
        if on_sweep:
            on_sweep(len(history), float(loss))
        if progress and sweeps:
            progress(len(history), sweeps)
        return (moved if len(history) < sweeps else state), {"loss": float(loss)}  # the last pass only measures the loss

    saving: Any = {"checkpoints": checkpoints, "checkpoint_seconds": checkpoint_seconds}
    state, history = iterate(step, state, done=lambda history: len(history) > sweeps, **saving)
    return state, np.array([entry["loss"] for entry in history])

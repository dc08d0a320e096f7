"""The loop of all fits of a softmax layer by sweeps over all data: resumable, or one `scan` under tracing. No learning rate."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.runs.checks import is_concrete
from jexplicit.runs.devices import full_precision
from jexplicit.runs.iterate import History, iterate


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
    on_sweep: Callable[[int, float], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Any, Any]:
    """Iterate `state, loss = sweep(state, problem)`, loss of the state before; returns the last state and losses [sweeps + 1].

    Under jit, vmap or grad the loop is one `lax.scan`, without checkpoints and callbacks.

    sweep: pure and compiled; problem: a pytree of constant arrays.
    checkpoints: folder for checkpoints, from which sweeps resume; checkpoint_seconds: time between them.
    on_sweep: called with (sweeps done, loss); progress: with (sweeps done, total sweeps).
    """
    if sweeps < 0 or sweeps % 1:
        raise ValueError(f"{sweeps} sweeps: use a whole number of at least 0")
    if not is_concrete(state, problem):
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
        return (moved if len(history) < sweeps else state), {"loss": float(loss)}  # the last iteration only computes the loss

    saving: Any = {"checkpoints": checkpoints, "checkpoint_seconds": checkpoint_seconds}
    state, history = iterate(step, state, done=lambda history: len(history) > sweeps, **saving)
    return state, np.array([entry["loss"] for entry in history])

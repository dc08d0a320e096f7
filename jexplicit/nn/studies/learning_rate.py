"""The range test of learning rates: one run whose rate rises at every step.

It raises the rate at every step, `η_s = η_0 (η_S/η_0)^{s/(S-1)}`. The loss falls, flattens and then grows; at its
minimum the rate becomes too high for the direction of largest curvature (on a quadratic, η > 2/λ_max).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Float

_window_fraction = 20  # losses are averaged over 1/20 of the sweep; centred, as an exponential mean would lag behind the rates
_safety = 10.0  # divergence is visible only after some steps, so the loss is lowest at too high a rate


class RangeTest(NamedTuple):
    """A range test: rates and losses by step, smoothed losses, and the rate to use."""

    rates: Float[np.ndarray, " S"]
    losses: Float[np.ndarray, " S"]
    smoothed: Float[np.ndarray, " S"]
    rate: float


def sweep_schedule(lowest: float, highest: float, steps: int) -> optax.Schedule:
    """The rate by step of an exponential sweep, 0 < lowest < highest."""
    if not 0 < lowest < highest < float("inf") or steps < 2:
        raise ValueError(f"a sweep of {steps} steps from {lowest} to {highest}: give 0 < lowest < highest, 2 or more steps")
    return optax.exponential_decay(lowest, steps - 1, highest / lowest)


def range_test(
    step: Callable[[Any, Any], tuple[Any, Array]], state: Any, batches: Any, *, lowest: float, highest: float
) -> RangeTest:
    """One run with exponentially rising rates, as one compiled scan over batches [S, ...].

    step: `(state, batch) -> (state, loss)`, with an optimiser on `sweep_schedule(lowest, highest, S)`. Source: Smith 2017.
    """
    losses = np.asarray(jax.jit(lambda: jax.lax.scan(step, state, batches)[1])(), np.float64)
    rates = np.geomspace(lowest, highest, len(losses))
    smoothed = smooth(losses)
    return RangeTest(rates, losses, smoothed, pick_rate(rates, smoothed))


def smooth(losses: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """Centred moving average over a twentieth of the sweep; infinite from the first non-finite loss on."""
    finite = np.isfinite(losses)
    n = len(losses) if finite.all() else int(finite.argmin())
    window = np.ones(min(2 * (len(losses) // _window_fraction // 2) + 1, max(n, 1)))
    smoothed = np.full(len(losses), np.inf)
    if n:
        smoothed[:n] = np.convolve(losses[:n], window, "same") / np.convolve(np.ones(n), window, "same")
    return smoothed


def pick_rate(rates: Float[np.ndarray, " S"], smoothed: Float[np.ndarray, " S"]) -> float:
    """A tenth of the rate of the lowest smoothed loss, at which the loss is still falling."""
    if not np.isfinite(smoothed).any():
        raise ValueError(f"no finite loss from rate {rates[0]:g} on: start the sweep at a lower rate")
    return float(max(rates[int(np.argmin(smoothed))] / _safety, rates[0]))

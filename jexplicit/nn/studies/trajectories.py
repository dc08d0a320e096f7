"""Paths of optimisers on surfaces of two parameters, for plots.

ravine   f(w) = (w_1² + 20 w_2²)/2             twenty times as steep across as along
saddle   f(w) = (w_1² - w_2²)/2 + w_2⁴/4       a saddle at 0, minima at (0, ±1)
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float


class Surface(NamedTuple):
    """A function of two parameters, the start of paths, and its minimum value."""

    f: Callable[[Float[Array, "2"]], Float[Array, ""]]
    start: tuple[float, float]
    lowest: float


SURFACES: dict[str, Surface] = {
    "ravine": Surface(lambda w: (w[0] ** 2 + 20 * w[1] ** 2) / 2, (-4.0, 1.0), 0.0),
    "saddle": Surface(lambda w: (w[0] ** 2 - w[1] ** 2) / 2 + w[1] ** 4 / 4, (-2.0, 0.01), -0.25),
}


def trajectory(optimizer: optax.GradientTransformation, surface: Surface, steps: int) -> Float[Array, "steps_1 2"]:
    """The parameters before and after every step of an optimiser from the surface's start."""
    if steps < 0:
        raise ValueError(f"{steps} steps of an optimiser: use 0 or more")

    def step(carry, _):
        w, state = carry
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes dtypes
            updates, state = optimizer.update(jax.grad(surface.f)(w), state, w)
            w = w + updates
        return (w, state), w

    start = jnp.asarray(surface.start, jnp.float32)
    _, path = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    return jnp.concatenate([start[None], path])

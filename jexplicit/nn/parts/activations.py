"""Elementwise nonlinearities φ by name, and the regions where they are flat."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jexplicit.nn.parts.names import look_up

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,  # of slope 0.01 below 0
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu_tanh": lambda z: jax.nn.relu(jnp.tanh(z)),
    "silu": jax.nn.silu,
    "linear": lambda z: z,
}

_steepest = {"tanh": 0.0, "sigmoid": 0.0, "relu_tanh": 1e-3}  # z0; 1 for the others, which have a kink or bend at 0
_flat_slope = 0.05  # relative to the steepest: tanh is flat beyond ±0.975, the sigmoid below 0.013 and above 0.987


def activation(name: str) -> Callable[[Array], Array]:
    """The nonlinearity φ called `name`; a ValueError for an unknown name."""
    return look_up("activation", ACTIVATIONS, name)


def is_flat(name: str, z: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether φ is nearly flat at a pre-activation z and passes almost no gradient: `|φ'(z)| < 0.05 φ'(z0)`.

    z0 = 0 for tanh and sigmoid, which are steepest there, just above 0 for relu_tanh, and 1 for the other activations, which
    have a kink or bend at 0.
    """
    slope = jnp.vectorize(jax.grad(activation(name)))
    steepest = slope(jnp.asarray(_steepest.get(name, 1.0), z.dtype))
    return jnp.abs(slope(z)) < _flat_slope * steepest

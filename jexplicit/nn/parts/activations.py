"""Elementwise nonlinearities φ by name."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

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


def activation(name: str) -> Callable[[Array], Array]:
    """The nonlinearity φ called `name`; a ValueError for an unknown name."""
    return look_up("activation", ACTIVATIONS, name)

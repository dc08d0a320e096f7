"""Elementwise nonlinearities φ by name, and the regions where they are flat."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

LEAK = 0.01  # slope of the leaky ReLU below 0
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "leaky_relu": functools.partial(jax.nn.leaky_relu, negative_slope=LEAK),
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu_tanh": lambda z: jax.nn.relu(jnp.tanh(z)),
    "silu": jax.nn.silu,
    "linear": lambda z: z,
}

_steepest = {"tanh": 0.0, "sigmoid": 0.0, "relu_tanh": 1e-3}  # z0; others have a kink or bend at 0, and z0 = 1
_flat_slope = 0.05  # relative to the steepest: tanh is flat beyond ±0.975, the sigmoid below 0.013 and above 0.987


def activation(name: str) -> Callable[[Array], Array]:
    """The nonlinearity φ called `name`.

    Raises:
        ValueError: unknown name.

    Example:
        >>> activation("relu")(jnp.array([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r}: choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def activation_slope(name: str, z: Float[Array, "..."]) -> Float[Array, "..."]:
    """The derivative φ'(z), by hand: with a = φ(z), `1 - a²` of tanh, `a (1 - a)` of the sigmoid, `a + σ(z) (1 - a)` of SiLU.

    At the kink of a ReLU it is 0, or the leak.

    Example:
        >>> activation_slope("sigmoid", jnp.zeros(1)).item()
        0.25
    """
    a, positive = activation(name)(z), (z > 0).astype(z.dtype)
    return {
        "relu": lambda: positive,
        "leaky_relu": lambda: positive + LEAK * (1 - positive),
        "tanh": lambda: 1 - a**2,
        "sigmoid": lambda: a * (1 - a),
        "relu_tanh": lambda: positive * (1 - a**2),
        "silu": lambda: a + jax.nn.sigmoid(z) * (1 - a),
        "linear": lambda: jnp.ones_like(z),
    }[name]()


def is_flat(name: str, z: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether a pre-activation z lies where φ is nearly flat and passes almost no gradient: `|φ'(z)| < 0.05 φ'(z0)`.

    z0 = 0 for tanh and sigmoid, which are steepest there, just above 0 for relu_tanh, and 1 for the other activations, which
    have a kink or bend at 0.

    Example:
        >>> is_flat("tanh", jnp.array([-3.0, 0.5])).tolist(), is_flat("relu", jnp.array([-0.1, 0.1])).tolist()
        ([True, False], [True, False])
    """
    slope = jnp.vectorize(jax.grad(activation(name)))
    steepest = slope(jnp.asarray(_steepest.get(name, 1.0), z.dtype))
    return jnp.abs(slope(z)) < _flat_slope * steepest

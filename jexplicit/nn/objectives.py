"""Loss functions and their *sensitivity* dJ/dz, where backpropagation starts.

An objective is a function of the last layer's outputs z, before any nonlinearity, one row per example:

    squared_error           J = ½ ||y - z||²                        dJ/dz = z - y
    sigmoid_squared_error   J = ||y - a||²,  a = σ(z)               dJ/dz = -2 (y - a) a (1 - a)
    binary_cross_entropy    J = -Σ y ln a + (1 - y) ln(1 - a)       dJ/dz = a - y
    softmax_cross_entropy   J = -Σ y ln softmax(z)                  dJ/dz = softmax(z) - y

Where a sigmoid saturates at the wrong value, the factor a (1 - a) kills the gradient of the squared error but not that of the
cross-entropy: this is why cross-entropy learns faster at first.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jaxtyping import Array, Float

from jexplicit.nn.names import OBJECTIVES


class Objective(NamedTuple):
    """A loss, its derivative, and the output nonlinearity that belongs to it.

    loss: `(z, y) -> J` [B], per example, in nats for the cross-entropies. Targets y are [B, N]; the softmax also takes labels
        [B].
    sensitivity: `(z, y) -> dJ/dz` [B, N], derived by hand.
    outputs: `z -> a`, the network's prediction.
    """

    loss: Callable[[Array, Array], Array]
    sensitivity: Callable[[Array, Array], Array]
    outputs: Callable[[Array], Array]


def objective(name: str) -> Objective:
    """The objective called `name`.

    Raises:
        ValueError: unknown name.

    Example:
        >>> import jax.numpy as jnp
        >>> z, y = jnp.array([[2.0, -1.0]]), jnp.array([[0.0, 1.0]])
        >>> chosen = objective("softmax_cross_entropy")
        >>> by_autodiff = jax.grad(lambda z: chosen.loss(z, y).sum())(z)
        >>> jnp.allclose(by_autodiff, chosen.sensitivity(z, y)).item()
        True
    """
    if name not in OBJECTIVES:
        raise ValueError(f"objective {name!r}: choose one of {', '.join(OBJECTIVES)}")
    return _objectives[name]


def _squared_error(z: Float[Array, "B N"], y: Float[Array, "B N"]) -> Float[Array, " B"]:
    return optax.l2_loss(z, y).sum(axis=1)


def _sigmoid_squared_error(z: Float[Array, "B N"], y: Float[Array, "B N"]) -> Float[Array, " B"]:
    return optax.squared_error(jax.nn.sigmoid(z), y).sum(axis=1)


def _sigmoid_squared_error_sensitivity(z: Float[Array, "B N"], y: Float[Array, "B N"]) -> Float[Array, "B N"]:
    a = jax.nn.sigmoid(z)
    return -2 * (y - a) * a * (1 - a)


def _binary_cross_entropy(z: Float[Array, "B N"], y: Float[Array, "B N"]) -> Float[Array, " B"]:
    return optax.sigmoid_binary_cross_entropy(z, y).sum(axis=1)


def _softmax_cross_entropy(z: Float[Array, "B N"], y: Array) -> Float[Array, " B"]:
    if y.ndim == 1:
        return optax.softmax_cross_entropy_with_integer_labels(z, y)
    return optax.softmax_cross_entropy(z, y)


def _softmax_cross_entropy_sensitivity(z: Float[Array, "B N"], y: Array) -> Float[Array, "B N"]:
    return jax.nn.softmax(z) - (jax.nn.one_hot(y, z.shape[1], dtype=z.dtype) if y.ndim == 1 else y)


_objectives: dict[str, Objective] = {
    "squared_error": Objective(_squared_error, lambda z, y: z - y, lambda z: z),
    "sigmoid_squared_error": Objective(_sigmoid_squared_error, _sigmoid_squared_error_sensitivity, jax.nn.sigmoid),
    "binary_cross_entropy": Objective(_binary_cross_entropy, lambda z, y: jax.nn.sigmoid(z) - y, jax.nn.sigmoid),
    "softmax_cross_entropy": Objective(_softmax_cross_entropy, _softmax_cross_entropy_sensitivity, jax.nn.softmax),
}

"""Loss functions of the last layer's outputs z and targets y.

                            J                                       dJ/dz
    squared_error           ½ ||y - z||²                            z - y
    sigmoid_squared_error   ||y - a||²,  a = σ(z)                   -2 (y - a) a (1 - a)
    binary_cross_entropy    -Σ y ln a + (1 - y) ln(1 - a)           a - y
    softmax_cross_entropy   -Σ y ln softmax(z)                      softmax(z) - y

At a sigmoid saturated at the wrong value, the factor a (1 - a) removes the gradient of the squared error but not that of the
cross-entropy: therefore cross-entropy learns faster at first.
"""

from collections.abc import Callable

import jax
import optax
from jaxtyping import Array, Float

from jexplicit.nn.parts.names import look_up

Objective = Callable[[Array, Array], Array]
"""`(z, y) -> J` [B], per example, in nats for the cross-entropies. Targets y are [B, N]; the softmax also takes labels [B]."""


def objective(name: str) -> Objective:
    """The loss called `name`; a ValueError for an unknown name."""
    return look_up("objective", OBJECTIVES, name)


def _softmax_cross_entropy(z: Float[Array, "B N"], y: Array) -> Float[Array, " B"]:
    loss = optax.softmax_cross_entropy_with_integer_labels if y.ndim == 1 else optax.softmax_cross_entropy
    return loss(z, y)


OBJECTIVES: dict[str, Objective] = {
    "squared_error": lambda z, y: optax.l2_loss(z, y).sum(axis=1),
    "sigmoid_squared_error": lambda z, y: optax.squared_error(jax.nn.sigmoid(z), y).sum(axis=1),
    "binary_cross_entropy": lambda z, y: optax.sigmoid_binary_cross_entropy(z, y).sum(axis=1),
    "softmax_cross_entropy": _softmax_cross_entropy,
}

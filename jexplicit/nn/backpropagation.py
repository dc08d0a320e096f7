"""Backpropagation written out layer by layer, without automatic differentiation.

With a⁽⁰⁾ = x, the forward pass of L layers and the *sensitivities* v⁽ˡ⁾ = dJ/dz⁽ˡ⁾, from the last to the first:

    z⁽ˡ⁾ = W⁽ˡ⁾ a⁽ˡ⁻¹⁾ + b⁽ˡ⁾,    a⁽ˡ⁾ = φ(z⁽ˡ⁾)
    v⁽ᴸ⁾ = the objective's dJ/dz,    v⁽ˡ⁾ = φ'(z⁽ˡ⁾) ⊙ W⁽ˡ⁺¹⁾ᵀ v⁽ˡ⁺¹⁾
    dJ/dW⁽ˡ⁾ = v⁽ˡ⁾ a⁽ˡ⁻¹⁾ᵀ,    dJ/db⁽ˡ⁾ = v⁽ˡ⁾

Only v⁽ᴸ⁾ depends on the objective: changing that changes one line.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.nn.activations import activation, activation_slope
from jexplicit.nn.objectives import Objective
from jexplicit.runs.devices import full_precision


class Layer(NamedTuple):
    """`z = W a + b`."""

    W: Float[Array, "n_out n_in"]
    b: Float[Array, " n_out"]


class Backpropagation(NamedTuple):
    """The loss of one example, its gradient with respect to every layer, and the sensitivities v⁽ˡ⁾, in the layers' order."""

    loss: Float[Array, ""]
    gradients: tuple[Layer, ...]
    sensitivities: tuple[Float[Array, " n_out"], ...]


@full_precision
def backpropagation(
    layers: Sequence[Layer], phi: str, goal: Objective, x: Float[Array, " D"], y: Float[Array, " N"]
) -> Backpropagation:
    """The gradient of one example's loss by the chain rule; `jax.vmap` over x and y makes it that of a batch.

    Args:
        layers: L of them, the first of n_in = D.
        phi: the nonlinearity of all layers but the last, whose z the objective takes.
        goal: of jexplicit.nn.objectives.
        x: [D] input.
        y: [N] target.

    Raises:
        ValueError: no layers, or an unknown nonlinearity.

    Example:
        >>> from jexplicit.nn.objectives import objective
        >>> layers = [Layer(jnp.array([[2.0]]), jnp.zeros(1)), Layer(jnp.array([[3.0]]), jnp.zeros(1))]
        >>> found = backpropagation(layers, "linear", objective("squared_error"), jnp.array([1.0]), jnp.array([5.0]))
        >>> [v.item() for v in found.sensitivities], [layer.W.item() for layer in found.gradients]  # f(x) = 6, z - y = 1
        ([3.0, 1.0], [3.0, 2.0])

    Source: lecture notes on backpropagation (vectorised, bp-5); Rumelhart, Hinton & Williams 1986.
    """
    if not layers:
        raise ValueError("no layers to propagate through: give at least one")
    inputs, z = [x], []
    for W, b in layers:
        z.append(W @ inputs[-1] + b)
        inputs.append(activation(phi)(z[-1]))
    v = [goal.sensitivity(z[-1][None], y[None])[0]]
    for (W, _), before in zip(layers[:0:-1], z[-2::-1], strict=True):
        v.insert(0, activation_slope(phi, before) * (W.T @ v[0]))
    gradients = tuple(Layer(jnp.outer(sensitivity, a), sensitivity) for sensitivity, a in zip(v, inputs[:-1], strict=True))
    return Backpropagation(goal.loss(z[-1][None], y[None])[0], gradients, tuple(v))


def layers_of(params: Any) -> list[Layer]:
    """The layers of a `FullyConnected` without norms, from its parameters; a layer without biases has b = 0.

    Raises:
        ValueError: a network with norms.

    Example:
        >>> import jax
        >>> from jexplicit.nn.networks import FullyConnected, init_variables
        >>> params = init_variables(FullyConnected((4,), 2), jax.random.key(0), jnp.ones((1, 3), jnp.float32))["params"]
        >>> [layer.W.shape for layer in layers_of(params)]
        [(4, 3), (2, 4)]
    """
    hidden = sorted((name for name in params if name.startswith("hidden_")), key=lambda name: int(name.split("_")[1]))
    if normalised := [name for name in hidden if set(params[name]) != {"Dense_0"}]:
        raise ValueError(f"layer {normalised[0]} has a norm, which is no W and b: use a network without norms")
    dense = [*(params[name]["Dense_0"] for name in hidden), params["output"]]
    return [Layer(d["kernel"].T, d.get("bias", jnp.zeros(d["kernel"].shape[1], d["kernel"].dtype))) for d in dense]

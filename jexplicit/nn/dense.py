"""Gradient training of networks on numeric features: stacks of softmax layers, and a network with one hidden layer.

The gradient of a single layer is by hand, `dL/dU = Hᵀ(P - Y)`; deeper networks are differentiated by JAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jexplicit.solvers.layerwise import stack_logits

Logits = Callable[[Any, Float[Array, "B D"]], Float[Array, "B N"]]
Batch = tuple[Float[Array, "B D"], Float[Array, "B N"]]


class DenseState(NamedTuple):
    """A network's parameters and the optimiser's state."""

    params: Any
    optimizer: Any


def cold_layers(key: Array, inputs: int, outputs: int, layers: int, dtype=jnp.float32) -> tuple[Array, ...]:
    """Random decoders of a stack of softmax layers, uniform in +-1/sqrt(D), with D the inputs of each.

    Example:
        >>> [U.shape for U in cold_layers(jax.random.key(0), 5, 3, 2)]
        [(5, 3), (3, 3)]
    """
    sizes = [inputs] + [outputs] * (layers - 1)
    keys = jax.random.split(key, layers)
    return tuple(jax.random.uniform(k, (D, outputs), dtype, -(D**-0.5), D**-0.5) for k, D in zip(keys, sizes, strict=True))


def hidden_network(key: Array, inputs: int, hidden: int, outputs: int, dtype=jnp.float32) -> dict[str, Array]:
    """Random parameters of a network with one hidden layer: normal weights of variance 2/D (He et al. 2015), no biases yet."""
    keys = jax.random.split(key)
    W1 = jax.random.normal(keys[0], (inputs, hidden), dtype) * (2 / inputs) ** 0.5
    W2 = jax.random.normal(keys[1], (hidden, outputs), dtype) * (2 / hidden) ** 0.5
    return {"W1": W1, "b1": jnp.zeros(hidden, dtype), "W2": W2, "b2": jnp.zeros(outputs, dtype)}


def hidden_logits(params: dict[str, Array], H: Float[Array, "B D"]) -> Float[Array, "B N"]:
    """`relu(H W1 + b1) W2 + b2`, in nats."""
    return jax.nn.relu(H @ params["W1"] + params["b1"][None, :]) @ params["W2"] + params["b2"][None, :]


def initial_state(params: Any, optimizer: optax.GradientTransformation) -> DenseState:
    """The state of a training run from given parameters; a copy, as the state is donated."""
    params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
    return DenseState(params, optimizer.init(params))


def layer_gradient(params: tuple[Array, ...], batch: Batch) -> tuple[Array, tuple[Array, ...]]:
    """The summed loss of one softmax layer in nats, and its gradient `Hᵀ(P - Y)` by hand.

    Source: paper, Eq. 1.
    """
    (U,), (H, Y) = params, batch
    log_P = jax.nn.log_softmax(H @ U)
    return -jnp.sum(Y * log_P), (H.T @ (jnp.exp(log_P) - Y),)


def autodiff_gradient(logits: Logits) -> Callable[[Any, Batch], tuple[Array, Any]]:
    """`(params, batch) -> (summed loss in nats, its gradient)` of any network, by backpropagation."""

    def loss(params: Any, batch: Batch) -> Array:
        H, Y = batch
        return -jnp.sum(Y * jax.nn.log_softmax(logits(params, H)))

    return jax.value_and_grad(loss)


def stack_gradient(layers: int) -> Callable[[Any, Batch], tuple[Array, Any]]:
    """Loss and gradient of a stack of softmax layers: by hand for one, by autodiff for more."""
    return layer_gradient if layers == 1 else autodiff_gradient(stack_logits)


def training_step(
    optimizer: optax.GradientTransformation, gradient: Callable[[Any, Batch], tuple[Array, Any]]
) -> Callable[[DenseState, Batch], tuple[DenseState, Array]]:
    """The compiled step `(state, (H, Y)) -> (state, summed loss)`, with its state donated.

    Args:
        optimizer: of optax, applied to the gradient of the batch's mean loss.
        gradient: `(params, batch) -> (summed loss, gradient of it)`.
    """

    def step(state: DenseState, batch: Batch) -> tuple[DenseState, Array]:
        loss, summed = gradient(state.params, batch)
        mean = jax.tree.map(lambda G: G / len(batch[0]), summed)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
            updates, optimizer_state = optimizer.update(mean, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
        return DenseState(params, optimizer_state), loss

    return jax.jit(step, donate_argnums=0)

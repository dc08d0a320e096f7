"""Diagnostics of training: hidden layers, and a first loss too high."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.nn.parts.objectives import Objective


class LayerValues(NamedTuple):
    """Pre-activations and gradients of one hidden layer for B examples."""

    z: Float[Array, "B width"]
    gradient: Float[Array, "B width"]


def hidden_layers(
    model: nn.Module, variables: Mapping[str, Any], objective: Objective, X: Any, Y: Any, *, train: bool = True
) -> dict[str, LayerValues]:
    """Pre-activations [B, width] and gradients of every hidden layer by name.

    train: whether BatchNorm uses batch statistics.
    """
    X, Y = jnp.asarray(X), jnp.asarray(Y)
    shapes = jax.eval_shape(model.init, jax.random.key(0), X).get("perturbations", {})
    rngs = {"dropout": jax.random.key(0)}
    unchanged = jax.tree.map(lambda z: jnp.zeros(z.shape, z.dtype), shapes)

    def mean_loss(perturbations: Any) -> tuple[Array, Any]:
        read = {**variables, "perturbations": perturbations}
        z, seen = model.apply(read, X, train=train, mutable=["intermediates", "batch_stats"], rngs=rngs)
        return objective(z, Y).mean(), seen.get("intermediates", {})

    gradients, seen = jax.jit(jax.grad(mean_loss, has_aux=True))(unchanged)
    return {name: LayerValues(z, gradient) for name, z, gradient in _by_layer(seen, gradients)}


class HockeyStick(NamedTuple):
    """The first loss of a run compared with log N.

    excess: first loss minus log N, nats.
    detected: whether it exceeds a tenth of log N: the first steps then only shrink the outputs.
    """

    excess: float
    detected: bool


def hockey_stick(first_loss: float, outputs: int) -> HockeyStick:
    """Whether a loss curve starts well above `log N`, a bad initialisation."""
    if outputs < 2 or math.isnan(first_loss):
        raise ValueError(f"first loss {first_loss} with {outputs} outputs: give a number, and at least 2 outputs")
    uniform = math.log(outputs)
    return HockeyStick(first_loss - uniform, first_loss - uniform > 0.1 * uniform)


def _by_layer(seen: Any, gradients: Any) -> list[tuple[str, Array, Array]]:
    """(layer, z, its gradient) from flax's nested collections."""
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    flat, by_z = ({name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)} for tree in (seen, gradients))
    named = {path.removesuffix("/z/0"): z for path, z in flat.items() if path.endswith("/z/0")}  # flax sows tuples
    return [(path.removeprefix("network/"), z, by_z[f"{path}/z"]) for path, z in named.items()]

"""Causal attention: scores depend on the contents and distance of two tokens.

    a_ts = softmax_{s <= t}((W_K e_s)ᵀ W_Q e_t / sqrt(key size) + b_{t-s}),    e_t <- e_t + Σ_h P_h Σ_s a_ts W_V,h e_s

There are no MLPs and no normalisation. Tokens are initialised by the embeddings of their states; a linear read-out follows the
last layer.

Source: Elhage et al. 2021 for attention-only transformers; Raffel et al. 2020 for a bias b per distance.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from icl.models.attention import AttentionLayer, init_layers
from jexplicit.runs.devices import full_precision


class CausalLayer(NamedTuple):
    """Heads and score biases by distance; a stack has a first axis more."""

    heads: AttentionLayer
    bias: Float[Array, "*layers heads D"]


class CausalModel(NamedTuple):
    """Layers between an embedding and a linear read-out of k outputs.

    embedding: [symbols, width]; layers: [L, ...]; read_out: [k, width].
    """

    embedding: Float[Array, "symbols width"]
    layers: CausalLayer
    read_out: Float[Array, "k width"]

    @property
    def before(self) -> int:
        """Number of symbols that precede a sequence."""
        return len(self.embedding) - len(self.read_out)


@full_precision
def attention_weights(layer: CausalLayer, E: Float[Array, "S width"], *, softmax: bool = True) -> Float[Array, "heads S S"]:
    """`a_ts`, the weight of token s <= t in the update of token t."""
    S, D = len(E), layer.bias.shape[-1]
    if S > D:
        raise ValueError(f"{S} tokens for a layer with {D} distances: give a shorter sequence, or make a longer model")
    distance = jnp.arange(S)[:, None] - jnp.arange(S)[None]

    def head(W_K: Array, W_Q: Array, bias: Array) -> Array:
        scores = (E @ W_Q.T) @ (E @ W_K.T).T
        if not softmax:
            return jnp.where(distance < 0, 0, scores + bias[distance])
        return jax.nn.softmax(jnp.where(distance < 0, -jnp.inf, scores / len(W_K) ** 0.5 + bias[distance]))

    return jax.vmap(head)(layer.heads.W_K, layer.heads.W_Q, layer.bias)


@full_precision
def attend_causally(layer: CausalLayer, E: Float[Array, "S width"], *, softmax: bool = True) -> Float[Array, "S width"]:
    """The update of all tokens by one layer, `Σ_h P_h Σ_s a_ts W_V,h e_s`."""

    def head(a: Array, W_V: Array, P: Array) -> Array:
        return a @ (E @ W_V.T) @ P.T

    a = attention_weights(layer, E, softmax=softmax)
    return jax.vmap(head)(a, layer.heads.W_V, layer.heads.P).sum(axis=0)


@full_precision
def next_outputs(model: CausalModel, x: Int[Array, " T"], *, softmax: bool = True) -> Float[Array, "T k"]:
    """The outputs at every state of a sequence, from x_1, .., x_t alone."""
    E = _layer_inputs(model, x, softmax)[-1]
    return E[model.before :] @ model.read_out.T


def attention_maps(model: CausalModel, x: Int[Array, " T"], *, softmax: bool = True) -> Float[Array, "L heads S S"]:
    """`a_ts` in every layer; S is T plus the number of preceding symbols."""
    inputs = _layer_inputs(model, x, softmax)[:-1]
    return jnp.stack([attention_weights(_layer(model, n), E, softmax=softmax) for n, E in enumerate(inputs)])


def _layer_inputs(model: CausalModel, x: Array, softmax: bool) -> list[Array]:
    """The input tokens of each layer, and of the read-out."""
    symbols = jnp.concatenate([jnp.arange(len(model.read_out), len(model.embedding), dtype=x.dtype), x])
    inputs = [model.embedding[symbols]]
    for n in range(len(model.layers.bias)):
        inputs.append(inputs[-1] + attend_causally(_layer(model, n), inputs[-1], softmax=softmax))
    return inputs


def _layer(model: CausalModel, n: int) -> CausalLayer:
    return jax.tree.map(lambda leaf: leaf[n], model.layers)


def init_model(
    key: Array,
    states: int,
    length: int,
    *,
    width: int = 16,
    layers: int = 2,
    heads: int = 1,
    start: bool = False,
    dtype: Any = None,
) -> CausalModel:
    """Small random weights and biases 0; `start` adds a start symbol."""
    if min(states, length) < 1:
        raise ValueError(f"{states} states, length {length}: use at least 1 of each")
    key_e, key_layers, key_r = jax.random.split(key, 3)
    heads_of_layers = init_layers(key_layers, width, layers=layers, heads=heads, scale=0.2, dtype=dtype)
    dtype = heads_of_layers.P.dtype
    embedding = jax.random.normal(key_e, (states + start, width), dtype) / width**0.5
    read_out = 0.1 * jax.random.normal(key_r, (states, width), dtype) / width**0.5
    return CausalModel(embedding, CausalLayer(heads_of_layers, jnp.zeros((layers, heads, length + start), dtype)), read_out)

"""Causal attention on sequences of states: scores depend on what two tokens hold, and on how far apart they are.

    a_ts = softmax_{s <= t}((W_K e_s)ᵀ W_Q e_t / sqrt(key size) + b_{t-s}),    e_t <- e_t + Σ_h P_h Σ_s a_ts W_V,h e_s

There are no MLPs and no normalisation. A token begins as the embedding of its state; a linear map reads it after the last
layer.

Source: Elhage et al. 2021 for attention-only transformers; Raffel et al. 2020 for a number b per distance.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from icl.models.attention import AttentionLayer, init_layers
from jexplicit.runs.devices import full_precision


class CausalLayer(NamedTuple):
    """Heads, and what they add to scores at the distances 0, 1, .., D - 1; a stack of layers has one more, first, axis."""

    heads: AttentionLayer
    bias: Float[Array, "*layers heads D"]


class CausalModel(NamedTuple):
    """Layers between an embedding and a linear read-out of k outputs.

    Symbols beyond the k states stand before every sequence, in their order: none, one that marks its start, or several.

    embedding: [symbols, width]; layers: [L, ...]; read_out: [k, width].
    """

    embedding: Float[Array, "symbols width"]
    layers: CausalLayer
    read_out: Float[Array, "k width"]

    @property
    def before(self) -> int:
        """How many symbols stand before a sequence."""
        return len(self.embedding) - len(self.read_out)


@full_precision
def attention_weights(layer: CausalLayer, E: Float[Array, "S width"], *, softmax: bool = True) -> Float[Array, "heads S S"]:
    """`a_ts`, what token t takes from token s <= t.

    Args:
        layer: one layer.
        E: [S, width] the tokens, no more than the layer has distances.
        softmax: without it a is the score itself, not divided by the root of the key size.

    Raises:
        ValueError: more tokens than distances.

    Example:
        >>> layer = jax.tree.map(lambda leaf: leaf[0], init_model(jax.random.key(0), 2, 3, width=4).layers)
        >>> attention_weights(layer, jnp.zeros((2, 4)))[0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
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
    """The update of all tokens by one layer, `Σ_h P_h Σ_s a_ts W_V,h e_s`. Arguments are those of `attention_weights`."""

    def head(a: Array, W_V: Array, P: Array) -> Array:
        return a @ (E @ W_V.T) @ P.T

    a = attention_weights(layer, E, softmax=softmax)
    return jax.vmap(head)(a, layer.heads.W_V, layer.heads.P).sum(axis=0)


@full_precision
def next_outputs(model: CausalModel, x: Int[Array, " T"], *, softmax: bool = True) -> Float[Array, "T k"]:
    """The outputs at every state of a sequence; those at t depend on x_1, .., x_t only.

    Args:
        model: its outputs are logits, or what the model was constructed to give.
        x: a sequence of states 0, .., k - 1.
        softmax: whether attention has one, in all layers.

    Raises:
        ValueError: a sequence that is too long for the model.

    Example:
        >>> next_outputs(init_model(jax.random.key(0), 3, 5, width=4), jnp.array([0, 2, 1, 1, 0])).shape
        (5, 3)
    """
    E = _layer_inputs(model, x, softmax)[-1]
    return E[model.before :] @ model.read_out.T


def attention_maps(model: CausalModel, x: Int[Array, " T"], *, softmax: bool = True) -> Float[Array, "L heads S S"]:
    """`a_ts` in every layer, S = T + the symbols before the sequence. Arguments are those of `next_outputs`.

    Example:
        >>> attention_maps(init_model(jax.random.key(0), 3, 5, width=4, start=True), jnp.array([0, 2, 1])).shape
        (2, 1, 4, 4)
    """
    inputs = _layer_inputs(model, x, softmax)[:-1]
    return jnp.stack([attention_weights(_layer(model, n), E, softmax=softmax) for n, E in enumerate(inputs)])


def _layer_inputs(model: CausalModel, x: Array, softmax: bool) -> list[Array]:
    """The tokens that each layer reads, and last those that the read-out does."""
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
    """Random weights, small enough for the first predictions to be almost uniform; distances begin equal.

    Args:
        states: k.
        length: T of the longest sequence.
        width, layers, heads: of the model.
        start: whether a symbol marks the start of a sequence.

    Raises:
        ValueError: a number below 1.

    Example:
        >>> model = init_model(jax.random.key(0), 3, 64, start=True)
        >>> model.embedding.shape, model.layers.bias.shape, model.before
        ((4, 16), (2, 1, 65), 1)
    """
    if min(states, length) < 1:
        raise ValueError(f"{states} states, length {length}: use at least 1 of each")
    key_e, key_layers, key_r = jax.random.split(key, 3)
    heads_of_layers = init_layers(key_layers, width, layers=layers, heads=heads, scale=0.2, dtype=dtype)
    dtype = heads_of_layers.P.dtype
    embedding = jax.random.normal(key_e, (states + start, width), dtype) / width**0.5
    read_out = 0.1 * jax.random.normal(key_r, (states, width), dtype) / width**0.5
    return CausalModel(embedding, CausalLayer(heads_of_layers, jnp.zeros((layers, heads, length + start), dtype)), read_out)

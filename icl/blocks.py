"""Causal attention, and layers of it that count a Markov chain's transitions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from icl.attention import AttentionLayer, init_layers, layers_from_maps
from jexplicit.runs.checks import is_concrete
from jexplicit.runs.devices import full_precision

# Causal attention: scores depend on the contents and distance of two tokens.
#
#     a_ts = softmax_{s <= t}((W_K e_s)ᵀ W_Q e_t / sqrt(key size) + b_{t-s}),    e_t <- e_t + Σ_h P_h Σ_s a_ts W_V,h e_s
#
# There are no MLPs and no normalisation. Tokens are initialised by the embeddings of their states; a linear read-out follows
# the last layer.
#
# Source: Elhage et al. 2021 for attention-only transformers; Raffel et al. 2020 for a bias b per distance.


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


def _attention_weights(layer: CausalLayer, E: Float[Array, "S width"]) -> Float[Array, "heads S S"]:
    """`a_ts`, the weight of token s <= t in the update of token t."""
    S, D = len(E), layer.bias.shape[-1]
    if S > D:
        raise ValueError(f"{S} tokens for a layer with {D} distances: give a shorter sequence, or make a longer model")
    distance = jnp.arange(S)[:, None] - jnp.arange(S)[None]

    def head(W_K: Array, W_Q: Array, bias: Array) -> Array:
        scores = (E @ W_Q.T) @ (E @ W_K.T).T / len(W_K) ** 0.5
        return jax.nn.softmax(jnp.where(distance < 0, -jnp.inf, scores + bias[distance]))

    return jax.vmap(head)(layer.heads.W_K, layer.heads.W_Q, layer.bias)


@full_precision
def run_layers(model: CausalModel, x: Int[Array, " T"]) -> tuple[Float[Array, "S width"], Float[Array, "L heads S S"]]:
    """The tokens after all layers, and `a_ts` in every layer.

    S is T plus the number of symbols before the sequence.
    """
    symbols = jnp.concatenate([jnp.arange(len(model.read_out), len(model.embedding), dtype=x.dtype), x])
    E, maps = model.embedding[symbols], []
    for n in range(len(model.layers.bias)):
        layer = jax.tree.map(lambda leaf, n=n: leaf[n], model.layers)
        maps.append(_attention_weights(layer, E))
        update = jax.vmap(lambda a, W_V, P, E=E: a @ (E @ W_V.T) @ P.T)(maps[-1], layer.heads.W_V, layer.heads.P)
        E = E + update.sum(axis=0)
    return E, jnp.stack(maps)


@full_precision
def next_outputs(model: CausalModel, x: Int[Array, " T"]) -> Float[Array, "T k"]:
    """The outputs at every state of a sequence, from x_1, .., x_t alone."""
    return run_layers(model, x)[0][model.before :] @ model.read_out.T


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


# Two layers that compute the posterior mean of a Markov chain.
#
# The first layer writes the preceding state into each token. In the second, the token of x_t attends to the tokens that follow
# a state equal to x_t. Of these n_i tokens (i = x_t), n_ij have state j. k prior tokens, one for each state, precede the
# sequence; every token attends to them with weight α_j. The softmax over both gives, without a further read-out,
#
#     Σ_s a_ts e_{x_s} = (n_ij + α_j) / (n_i + Σ_l α_l).
#
# Both heads are exact: the scores of all other tokens are so low that their exponentials are zero in floating point.
#
# Source: Edelman et al. 2024, Sec. 2, for the counts; this package for the prior tokens.

_far = 1000.0  # exp(-1000) is zero in float64


def induction_model(states: int, length: int, alpha: Any, *, dtype: Any = None) -> CausalModel:
    """Weights whose softmax outputs are the posterior mean of a chain.
    It is `(n_ij + α_j) / (n_i + Σ α)`: probabilities, not logits."""
    k, dtype = states, jnp.dtype(dtype or jnp.zeros(()).dtype)
    if k < 2 or length < 1:
        raise ValueError(f"{k} states, length {length}: use at least 2 states, and a length of at least 1")
    if jnp.shape(alpha) not in ((), (k,)):
        raise ValueError(f"alpha of shape {jnp.shape(alpha)} for {k} states: give one number, or one for each state")
    if is_concrete(alpha) and not np.all(np.asarray(alpha) > 0):
        raise ValueError(f"alpha {alpha}: use numbers above 0")
    log_alpha = jnp.broadcast_to(jnp.log(jnp.asarray(alpha, dtype)), (k,))
    now, prior, before, output = np.arange(4 * k).reshape(4, k)  # channels: state, role in the prior, preceding state, output
    bias = np.zeros((2, 1, length + k))
    bias[0] = -_far
    bias[0, 0, 1] = 0  # only the preceding token
    match = np.zeros((4 * k, 4 * k))
    match[np.ix_(now, now)] = -_far  # e_sᵀ M e_t = 0 if x_{s-1} = x_t, else -_far
    match[before, now] = _far
    scores = jnp.asarray(match, dtype).at[np.ix_(prior, now)].set(log_alpha[:, None])
    scores = scores * (4 * k) ** 0.5  # attention divides by sqrt(4 k)
    R = np.zeros((2, 1, 4 * k, 4 * k))
    R[0, 0, before, now] = R[1, 0, output, now] = R[1, 0, output, prior] = 1
    heads = layers_from_maps(jnp.stack([jnp.zeros_like(scores), scores])[:, None], jnp.asarray(R, dtype))
    eye = jnp.eye(4 * k, dtype=dtype)
    return CausalModel(eye[: 2 * k], CausalLayer(heads, jnp.asarray(bias, dtype)), eye[output])


class HeadRoles(NamedTuple):
    """Attention shares: to the preceding token, and to tokens after x_t's state."""

    previous: Float[Array, ""]
    matches: Float[Array, ""]


def head_roles(model: CausalModel, x: Int[Array, " T"]) -> HeadRoles:
    """Shares of a previous-token and an induction head (Olsson et al. 2022).

    Symbols before the sequence are excluded, and for the second layer also the positions whose x_t is new.
    """
    maps = jnp.mean(run_layers(model, x)[1], axis=1)[:, model.before :, model.before :]
    place = jnp.arange(len(x))
    before = jnp.concatenate([jnp.full_like(x[:1], -1), x[:-1]])
    wanted = place[:, None] == place[None] + 1, (before[None] == x[:, None]) & (place[:, None] >= place[None])
    shares = []
    for a, here in zip(maps, wanted, strict=True):
        some = jnp.any(here, axis=1)
        share = jnp.sum(jnp.where(here, a, 0), axis=1) / jnp.maximum(jnp.sum(a, axis=1), jnp.finfo(a.dtype).tiny)
        shares.append(jnp.sum(jnp.where(some, share, 0)) / jnp.maximum(jnp.sum(some, dtype=a.dtype), 1))
    return HeadRoles(*shares)

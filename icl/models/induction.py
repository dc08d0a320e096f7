"""Two layers that compute the posterior mean of a Markov chain.

The first layer writes the preceding state into each token. In the second, the token of x_t attends to the tokens that follow a
state equal to x_t. Of these n_i tokens (i = x_t), n_ij have state j. k prior tokens, one for each state, precede the sequence;
every token attends to them with weight α_j. The softmax over both gives, without a further read-out,

    Σ_s a_ts e_{x_s} = (n_ij + α_j) / (n_i + Σ_l α_l).

Without softmax and prior tokens the second layer sums instead of averaging, and the outputs are the counts n_ij.

Both heads are exact: the scores of all other tokens are so low that their exponentials are zero in floating point.

Source: Edelman et al. 2024, Sec. 2, for the counts; this package for the prior tokens.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from icl.models.attention import layers_from_maps
from icl.models.causal import CausalLayer, CausalModel, attention_maps
from jexplicit.runs.checks import is_concrete

_far = 1000.0  # exp(-1000) is zero in float64


def induction_model(states: int, length: int, alpha: Any, *, dtype: Any = None) -> CausalModel:
    """Weights whose softmax outputs are the posterior mean of a chain.
    It is `(n_ij + α_j) / (n_i + Σ α)`: probabilities, not logits."""
    k, dtype = states, jnp.dtype(dtype or jnp.zeros(()).dtype)
    _check(states, length)
    if jnp.shape(alpha) not in ((), (k,)):
        raise ValueError(f"alpha of shape {jnp.shape(alpha)} for {k} states: give one number, or one for each state")
    if is_concrete(alpha) and not np.all(np.asarray(alpha) > 0):
        raise ValueError(f"alpha {alpha}: use numbers above 0")
    log_alpha = jnp.broadcast_to(jnp.log(jnp.asarray(alpha, dtype)), (k,))
    now, prior, before, _ = _channels(k)
    bias = np.zeros((2, 1, length + k))
    bias[0] = -_far
    bias[0, 0, 1] = 0  # only the preceding token
    match = np.zeros((4 * k, 4 * k))
    match[np.ix_(now, now)] = -_far  # e_sᵀ M e_t = 0 if x_{s-1} = x_t, else -_far
    match[before, now] = _far
    scores = jnp.asarray(match, dtype).at[np.ix_(prior, now)].set(log_alpha[:, None])
    return _two_layers(k, 2 * k, scores * (4 * k) ** 0.5, jnp.asarray(bias, dtype))  # attention divides by sqrt(4 k)


def counting_model(states: int, length: int, *, dtype: Any = None) -> CausalModel:
    """Weights for the counts n_ij, i = x_t (Edelman et al. 2024, Sec. 2)."""
    _check(states, length)
    dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
    now, _, before, _ = _channels(states)
    bias, scores = np.zeros((2, 1, length)), np.zeros((4 * states, 4 * states))
    bias[0, 0, 1:2] = 1
    scores[before, now] = 1
    return _two_layers(states, states, jnp.asarray(scores, dtype), jnp.asarray(bias, dtype))


def _check(states: int, length: int) -> None:
    if states < 2 or length < 1:
        raise ValueError(f"{states} states, length {length}: use at least 2 states, and a length of at least 1")


def _channels(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The channels of state, role in the prior, preceding state and output."""
    now, prior, before, output = np.arange(4 * k).reshape(4, k)
    return now, prior, before, output


def _two_layers(k: int, symbols: int, scores: Array, bias: Array) -> CausalModel:
    """A layer that copies states by distance, and a second with given scores."""
    now, prior, before, output = _channels(k)
    R = np.zeros((2, 1, 4 * k, 4 * k))
    R[0, 0, before, now] = 1
    R[1, 0, output, now] = 1
    R[1, 0, output, prior] = 1
    M = jnp.stack([jnp.zeros_like(scores), scores])[:, None]
    eye = jnp.eye(4 * k, dtype=scores.dtype)
    return CausalModel(eye[:symbols], CausalLayer(layers_from_maps(M, jnp.asarray(R, scores.dtype)), bias), eye[output])


class HeadRoles(NamedTuple):
    """Attention shares: to the preceding token, and to tokens after x_t's state."""

    previous: Float[Array, ""]
    matches: Float[Array, ""]


def head_roles(model: CausalModel, x: Int[Array, " T"]) -> HeadRoles:
    """Shares of a previous-token and an induction head (Olsson et al. 2022).

    Symbols before the sequence are excluded, and for the second layer also the positions whose x_t is new.
    """
    maps = jnp.mean(attention_maps(model, x), axis=1)[:, model.before :, model.before :]
    place = jnp.arange(len(x))
    before = jnp.concatenate([jnp.full_like(x[:1], -1), x[:-1]])
    wanted = place[:, None] == place[None] + 1, (before[None] == x[:, None]) & (place[:, None] >= place[None])
    shares = []
    for a, here in zip(maps, wanted, strict=True):
        some = jnp.any(here, axis=1)
        share = jnp.sum(jnp.where(here, a, 0), axis=1) / jnp.maximum(jnp.sum(a, axis=1), jnp.finfo(a.dtype).tiny)
        shares.append(jnp.sum(jnp.where(some, share, 0)) / jnp.maximum(jnp.sum(some, dtype=a.dtype), 1))
    return HeadRoles(*shares)


class CacheRow(NamedTuple):
    """The row of a language model's cache after every state of a sequence.

    row: [T, k] `log(1 + c_j / (n₊ / k))`, added to the logarithm of the uniform distribution.
    counts: [T, k] c_j, how often each state has followed x_t; different: [T] n₊, the number of distinct such states.
    p: [T, k] the prediction, `(c_j + n₊/k) / (Σ c + n₊)`: that of the induction head with α = n₊/k.
    """

    row: Float[Array, "T k"]
    counts: Float[Array, "T k"]
    different: Float[Array, " T"]
    p: Float[Array, "T k"]


def cache_row(x: Int[Array, " T"], states: int, *, dtype: Any = None) -> CacheRow:
    """The row "after this token" of a cache over a uniform base.

    Source: Kuhn & De Mori 1990 for the cache; Witten & Bell 1991 for its prior weight n₊.
    """
    dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
    follows = jnp.eye(states, dtype=dtype)[x[1:]]
    after = (x[:-1, None] == x[None]) & (jnp.arange(len(x) - 1)[:, None] < jnp.arange(len(x))[None])
    counts = jnp.where(after.T[..., None], follows, 0).sum(axis=1)
    different = jnp.maximum((counts > 0).sum(axis=1), 1).astype(dtype)
    row = jnp.log1p(counts * states / different[:, None])
    return CacheRow(row, counts, different, jax.nn.softmax(row))

"""Two layers of attention that are the posterior mean of a Markov chain: a previous-token head and an induction head.

The first layer writes into each token the state before it. In the second, the token of x_t attends to those that follow a state
equal to x_t. Of these n_i tokens (i = x_t), n_ij hold state j. k more tokens stand before the sequence, one for each state, to
which every token attends with weight α_j. The softmax over both gives, with no other read-out,

    Σ_s a_ts e_{x_s} = (n_ij + α_j) / (n_i + Σ_l α_l).

Without softmax and without those tokens the second layer sums instead of averaging, and the outputs are the counts n_ij.

Both heads are exact, for scores of tokens that should not be attended to are so far below the others that their exponentials
are zero in floating point.

Source: Edelman et al. 2024, Sec. 2, construct the counts; the tokens of weight α, this package.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from icl.models.attention import layers_from_maps
from icl.models.causal import CausalLayer, CausalModel, attention_maps
from jexplicit.lm.core.model import NOTHING
from jexplicit.lm.rows.cache import Cache, recent_row
from jexplicit.runs.checks import concrete

_far = 1000.0  # exp(-1000) is zero in float64


def induction_model(states: int, length: int, alpha: Any, *, dtype: Any = None) -> CausalModel:
    """Weights whose outputs (with softmax) are the posterior mean `(n_ij + α_j) / (n_i + Σ α)`: probabilities, not logits.

    Args:
        states: k.
        length: T of the longest sequence.
        alpha: α of the Dirichlet prior, one number or one per state.

    Raises:
        ValueError: fewer than two states, no length, an α of another shape, or one that is not positive. The last is a check of
            values, which tracers skip.

    Example:
        >>> from icl.models.causal import next_outputs
        >>> np.asarray(next_outputs(induction_model(2, 3, 0.5), jnp.array([0, 1, 0])), float).round(3).tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]]
    """
    k, dtype = states, jnp.dtype(dtype or jnp.zeros(()).dtype)
    _check(states, length)
    if jnp.shape(alpha) not in ((), (k,)):
        raise ValueError(f"alpha of shape {jnp.shape(alpha)} for {k} states: give one number, or one for each state")
    if concrete(alpha) and not np.all(np.asarray(alpha) > 0):
        raise ValueError(f"alpha {alpha}: use numbers above 0")
    log_alpha = jnp.broadcast_to(jnp.log(jnp.asarray(alpha, dtype)), (k,))
    now, prior, before, _ = _channels(k)
    bias = np.zeros((2, 1, length + k))
    bias[0] = -_far
    bias[0, 0, 1] = 0  # only the token before
    match = np.zeros((4 * k, 4 * k))
    match[np.ix_(now, now)] = -_far  # e_sᵀ M e_t = 0 where x_{s-1} = x_t, else far below
    match[before, now] = _far
    scores = jnp.asarray(match, dtype).at[np.ix_(prior, now)].set(log_alpha[:, None])
    return _two_layers(k, 2 * k, scores * (4 * k) ** 0.5, jnp.asarray(bias, dtype))  # attention divides by that root


def counting_model(states: int, length: int, *, dtype: Any = None) -> CausalModel:
    """Weights whose outputs without softmax are the counts n_ij, i = x_t.

    Args:
        states: k.
        length: T of the longest sequence.

    Raises:
        ValueError: fewer than two states, or no length.

    Example:
        >>> from icl.models.causal import next_outputs
        >>> next_outputs(counting_model(2, 4), jnp.array([0, 1, 0, 1]), softmax=False).tolist()
        [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]

    Source: Edelman et al. 2024, Sec. 2.
    """
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
    """The channels of a token that hold its state, that of a token of the prior, the state before it, and the output."""
    now, prior, before, output = np.arange(4 * k).reshape(4, k)
    return now, prior, before, output


def _two_layers(k: int, symbols: int, scores: Array, bias: Array) -> CausalModel:
    """A first layer that looks at distances only and copies the state, and a second with given scores that outputs it."""
    now, prior, before, output = _channels(k)
    R = np.zeros((2, 1, 4 * k, 4 * k))
    R[0, 0, before, now] = 1
    R[1, 0, output, now] = 1
    R[1, 0, output, prior] = 1
    M = jnp.stack([jnp.zeros_like(scores), scores])[:, None]
    eye = jnp.eye(4 * k, dtype=scores.dtype)
    return CausalModel(eye[:symbols], CausalLayer(layers_from_maps(M, jnp.asarray(R, scores.dtype)), bias), eye[output])


class HeadRoles(NamedTuple):
    """Shares of the attention paid to states: by the first layer to the one before, by the second to those after x_t's like."""

    previous: Float[Array, ""]
    matches: Float[Array, ""]


def head_roles(model: CausalModel, x: Int[Array, " T"]) -> HeadRoles:
    """How far the two layers of a model are a previous-token head and an induction head, in the mean over their heads.

    Symbols before the sequence are left out; so are, for the second layer, places where x_t has not been followed yet.

    Example:
        >>> [float(share) for share in head_roles(induction_model(2, 5, 1.0), jnp.array([0, 1, 1, 0, 1]))]
        [1.0, 1.0]

    Source: Olsson et al. 2022, In-context learning and induction heads, for such scores.
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

    row: [T, k] `log(1 + c_j / (n₊ / k))`, to be added to the logarithm of the uniform distribution.
    counts: [T, k] the c_j in it, how often each state has followed x_t; different: [T] n₊, how many states have.
    p: [T, k] the prediction, `(c_j + n₊/k) / (Σ c + n₊)`: that of the induction head with α = n₊/k.
    """

    row: Float[Array, "T k"]
    counts: Float[Array, "T k"]
    different: Float[Array, " T"]
    p: Float[Array, "T k"]


def cache_row(x: Int[Array, " T"], states: int, *, dtype: Any = None) -> CacheRow:
    """The row "what followed this token before" of `jexplicit.lm.rows.cache`, with a uniform base distribution.

    Its counts are read back from the row, which holds nothing else. Where nothing has followed x_t yet the row is zero, and n₊
    is taken as 1.

    Args:
        x: a sequence.
        states: k.

    Example:
        >>> np.asarray(cache_row(jnp.array([0, 1, 0]), 2).p, float).round(3).tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]]

    Source: Kuhn & De Mori 1990 for the cache; Witten & Bell 1991 for its prior weight n₊.
    """
    T, dtype = len(x), jnp.dtype(dtype or jnp.zeros(()).dtype)
    log_base = jnp.concatenate([jnp.zeros(1, dtype), jnp.full(states, -np.log(states), dtype)])  # token 0 is <pad>
    nearest = jnp.arange(T)[:, None] - jnp.arange(T + 1)[None]
    histories = jnp.where(nearest >= 0, x[jnp.maximum(nearest, 0)].astype(jnp.int32) + 1, NOTHING)
    row = jax.vmap(lambda history: recent_row(history, log_base, Cache(T, 1)))(histories)[:, 1:]
    different = jnp.maximum(jnp.sum(row > 0, axis=1), 1).astype(dtype)
    return CacheRow(row, jnp.expm1(row) * different[:, None] / states, different, jax.nn.softmax(row))

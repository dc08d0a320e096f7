"""Constructions beyond linear regression: copying, and Markov chains by causal attention."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from icl.attention import AttentionLayer, descent_layers, head_maps, init_layers, layers_from_maps
from icl.tasks import Sequence, transpose
from jexplicit.runs.devices import full_precision, is_concrete
from jexplicit.runs.files import is_of

# Copying: a layer joins x and y tokens, a second performs descent.
#
#     x_1, (0, .., 0, y_1), x_2, (0, .., 0, y_2), .., x_q,    each with a code of its position appended
#
# A first layer with softmax can attend from each x to the next token, and add its y; two linear layers can do the same.
#
# Source: von Oswald et al. 2023, Sec. 5, Prop. 3 and App. A.6.


def copying_tokens(batch: Sequence) -> Float[Array, "width tokens *batch"]:
    """Tokens `x_1, (0, .., 0, y_1), .., x_q`, features first, with unit codes."""
    if batch.Y.shape[1] != 1:
        raise ValueError(f"{batch.Y.shape[1]} outputs: separate tokens have one")
    x, y = transpose(batch.X), transpose(batch.Y)
    y = jnp.concatenate([jnp.zeros_like(x[1:]), y])
    pairs = jnp.stack([x, y], axis=2).reshape(len(x), -1, *x.shape[2:])
    tokens = jnp.concatenate([pairs, batch.x_q[:, None]], axis=1)
    codes = jnp.eye(tokens.shape[1], dtype=tokens.dtype)[:-1].reshape(-1, tokens.shape[1], *[1] * (tokens.ndim - 2))
    return jnp.concatenate([tokens, jnp.broadcast_to(codes, (len(codes), *tokens.shape[1:]))])


def copying_layers(dim: int, context: int, eta: Any) -> AttentionLayer:
    """Two linear layers that copy and descend: exactly one step of rate η.

    The first head of the first layer attends from each x to the y that follows, and replaces the code of x by that y; the
    second head clears the tokens of y. The second layer is a step of gradient descent. The prediction is minus the last channel
    of the last token.
    """
    descent = head_maps(descent_layers(dim, context, eta))  # checks the sizes
    width = dim + 2 * context
    M, R = np.zeros((2, 2, width, width)), np.zeros((2, 2, width, width))
    xs, ys = np.arange(dim, width, 2), np.arange(dim + 1, width, 2)  # channels of the codes
    M[0, 0, ys, xs] = 1  # e_iᵀ M e_j = 1 if i is the y that follows the x at j
    R[0, 0, xs, ys] = -1  # maps the code of y to minus the code of x, which cancels
    R[0, 0, -1, dim - 1] = 1  # y moves to the last channel
    M[0, 1, ys, ys] = 1  # a token of y attends to itself
    R[0, 1] = -np.eye(width)
    x_and_y = np.ix_([*range(dim), width - 1], [*range(dim), width - 1])
    M, R = (
        jnp.asarray(copy, step.dtype).at[1, 0].set(jnp.zeros((width, width), step.dtype).at[x_and_y].set(step[0, 0]))
        for copy, step in zip((M, R), descent, strict=True)
    )
    return layers_from_maps(M, R)


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
    """The tokens after all layers, and `a_ts` in every layer."""
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


def init_model(key: Array, states: int, length: int, *, start: bool = False, dtype: Any = None) -> CausalModel:
    """Two layers of width 16, small random weights; `start` adds a start symbol."""
    key_e, key_layers, key_r = jax.random.split(key, 3)
    heads = init_layers(key_layers, 16, layers=2, scale=0.2, dtype=dtype)
    embedding = jax.random.normal(key_e, (states + start, 16), heads.P.dtype) / 16**0.5
    read_out = 0.1 * jax.random.normal(key_r, (states, 16), heads.P.dtype) / 16**0.5
    return CausalModel(embedding, CausalLayer(heads, jnp.zeros((2, 1, length + start), heads.P.dtype)), read_out)


# Markov chains learned in context: each sequence has its own matrix.
#
#     P_i ~ Dirichlet(α, .., α) for each of k rows,    x_{t+1} ~ P_{x_t}
#
# With n_ij the number of steps from i to j so far and n_i their sum over j, the posterior mean of P_ij is `(n_ij + α) / (n_i +
# k α)`. Its row i = x_t is the prediction with the least expected loss if the first state is uniform. If it is drawn from the
# stationary distribution of P, as in the paper, x_1 is informative of P, which the formula ignores.
#
# Source: Edelman, Edelman, Goel, Malach, Tsilivis 2024, The evolution of statistical induction heads.


class Chain(NamedTuple):
    """A transition matrix P [k, k] and states x [T]; batch last."""

    P: Float[Array, "k k *batch"]
    x: Int[Array, "T *batch"]


@dataclasses.dataclass(frozen=True)
class Chains:
    """A distribution of Markov chains, and the cross-entropy of a causal model.

    states: k; length: T, states of a sequence; alpha: α of the Dirichlet distribution of each row. The first state has the
    chain's stationary distribution.
    """

    states: int = 3
    length: int = 64
    alpha: float = 1.0

    def __post_init__(self):
        whole = all(isinstance(size, int | np.integer) and size >= 2 for size in (self.states, self.length))
        if not whole or not is_of(self.alpha, float) or not 1e-30 <= self.alpha <= 1e30:  # others are NaN in float32
            sizes = f"{self.states} states, length {self.length}, alpha {self.alpha}"
            raise ValueError(f"{sizes}: use whole numbers of at least 2, and an alpha from 1e-30 to 1e30")

    def sample(self, key: Array, size: int, dtype: Any = None) -> Chain:
        """Fresh chains and a sequence of each, batch last."""
        if size < 1:
            raise ValueError(f"{size} chains: draw at least one")
        return _sample_chains(jax.random.split(key, size), self, jnp.dtype(dtype or jnp.zeros(()).dtype))

    def loss(self, params: CausalModel, batch: Chain) -> Float[Array, ""]:
        """The mean cross-entropy of a batch, in nats."""
        losses = jax.vmap(lambda x: cross_entropy(jax.nn.log_softmax(next_outputs(params, x)), x), in_axes=-1)(batch.x)
        return jnp.mean(losses)


@functools.partial(jax.jit, static_argnums=(1, 2))
@functools.partial(jax.vmap, in_axes=(0, None, None), out_axes=-1)
def _sample_chains(key: Array, chains: Chains, dtype: Any) -> Chain:
    """A chain and a sequence of states, for each key."""
    key_P, key_x = jax.random.split(key)
    k = chains.states
    P = jax.random.dirichlet(key_P, jnp.full(k, chains.alpha, dtype), (k,), dtype)
    uniform = jax.random.uniform(key_x, (chains.length,), dtype)

    def step(row: Array, u: Array) -> tuple[Array, Array]:
        x = jnp.sum(jnp.cumsum(row)[:-1] < u, dtype=jnp.int32)  # the inverse of the distribution function
        return P[x], x

    return Chain(P, lax.scan(step, stationary_distribution(P), uniform)[1])


@full_precision
def stationary_distribution(P: Float[Array, "k k"]) -> Float[Array, " k"]:
    """The π with `π P = π` and sum 1, by elimination.

    Each state may go to any other, with a probability of 2e-13 or more in float32: π is unique where states are never left.

    Source: Grassmann, Taksar and Heyman 1985.
    """
    A, π = P + jnp.finfo(P.dtype).tiny ** (1 / 3), jnp.ones(1, P.dtype)
    for n in reversed(range(1, len(P))):
        A = A.at[:n, n].divide(A[n, :n].sum())
        A = A.at[:n, :n].add(A[:n, n, None] * A[n, None, :n])
    for n in range(1, len(P)):
        π = jnp.append(π, π @ A[:n, n])
        π = π / π.sum()
    return π


def unigram_posterior(x: Int[Array, " T"], alpha: Any, states: int) -> Float[Array, "T k"]:
    """`(n_j + α) / (t + k α)`: the posterior mean for independent states."""
    return _dirichlet_mean(jnp.cumsum(jax.nn.one_hot(x, states), axis=0), alpha)


def bigram_posterior(x: Int[Array, " T"], alpha: Any, states: int) -> Float[Array, "T k"]:
    """`(n_ij + α) / (n_i + k α)`, i = x_t: the posterior mean."""
    now = jax.nn.one_hot(x, states)

    def step(n: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        before, here = pair
        n = n + before[:, None] * here[None]
        return n, jnp.sum(n * here[:, None], axis=0)

    before = jnp.concatenate([jnp.zeros_like(now[:1]), now[:-1]])  # x_1 has no predecessor
    return _dirichlet_mean(lax.scan(step, jnp.zeros((states, states), now.dtype), (before, now))[1], alpha)


def _dirichlet_mean(n: Float[Array, "T k"], alpha: Any) -> Float[Array, "T k"]:
    """`(n_j + α_j) / Σ_l (n_l + α_l)`."""
    n = n + jnp.broadcast_to(jnp.asarray(alpha, n.dtype), n.shape[1:])[None]
    return n / jnp.sum(n, axis=1, keepdims=True)


def cross_entropy(log_p: Float[Array, "T k"], x: Int[Array, " T"]) -> Float[Array, ""]:
    """`-mean log p_t(x_{t+1})` over t = 1, .., T - 1, in nats."""
    return -jnp.mean(jnp.take_along_axis(log_p[:-1], x[1:, None], axis=1))


def divergence(p: Float[Array, "T k"], log_q: Float[Array, "T k"]) -> Float[Array, ""]:
    """The mean over t of `KL(p_t || q_t)`, in nats."""
    return jnp.mean(jnp.sum(jax.scipy.special.xlogy(p, p) - p * log_q, axis=1))


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


def induction_model(states: int, length: int, alpha: Any) -> CausalModel:
    """Weights whose outputs are the posterior mean of a chain, not its logits."""
    k, dtype = states, jnp.zeros(()).dtype
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

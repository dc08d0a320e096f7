"""Problems beyond linear regression: copying, sine waves, Markov chains, causal attention."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from icl.attention import AttentionLayer, Softmax, descent_layers, head_maps, init_layers, layers_from_maps, transform_batch
from icl.tasks import QueryLoss, Sequence, Tasks, draw, transpose, truncated_std, truncated_weights
from jexplicit.runs.devices import full_precision, is_concrete
from jexplicit.runs.files import is_of

# Copying: a layer joins x and y tokens, a second performs descent.
#
#     x_1, (0, .., 0, y_1), x_2, (0, .., 0, y_2), .., x_q,    each with a code of its position appended
#
# A first layer with softmax can attend from each x to the next token, and add its y. The sensitivities `∂ Σ e'_j / ∂ e_i` to a
# token itself, to the next and to all others measure it. `copying_layers` are two linear layers that are exactly one step of
# gradient descent.
#
# Source: von Oswald et al. 2023, Sec. 5, Prop. 3 and App. A.6.


@dataclasses.dataclass(frozen=True)
class Copying(QueryLoss):
    """Two layers on separate tokens of x and y: a problem for `icl.train_layers`.

    As in the paper's code, the prediction is minus the last channel of the last token. This channel belongs to the position
    code, whose value the layers learn to subtract.

    tasks: their distribution, with one output.
    codes: width of the position codes, even. The paper's code has 10, its text 20.
    softmax: of each layer. With two linear layers training does not succeed (paper).
    clip: tokens are clipped to [-clip, clip].
    """

    tasks: Tasks
    codes: int = 10
    softmax: Softmax = (True, False)
    clip: float | None = 10.0

    def __post_init__(self):
        if self.tasks.outputs != 1 or self.codes < 2 or self.codes % 2:
            raise ValueError(f"{self.tasks.outputs} outputs, codes of width {self.codes}: use one output and an even width")

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.tasks.dim + self.codes

    def tokens(self, batch: Sequence) -> Float[Array, "width tokens batch"]:
        """The tokens with their position codes."""
        return add_codes(separate_tokens(batch), sinusoidal_codes(2 * self.tasks.context + 1, self.codes))

    def predict(self, params: AttentionLayer, batch: Sequence) -> Float[Array, "1 batch"]:
        """Predictions for a batch."""
        return read_out(params, self.tokens(batch), softmax=self.softmax, clip=self.clip)


class CopySensitivity(NamedTuple):
    """Norms of mean gradients of a context token's output by input tokens."""

    own: Float[Array, ""]
    next: Float[Array, ""]
    other: Float[Array, ""]


def separate_tokens(batch: Sequence) -> Float[Array, "d tokens *batch"]:
    """Tokens `x_1, (0, .., 0, y_1), .., x_q` of width d, features first."""
    if batch.Y.shape[1] != 1:
        raise ValueError(f"{batch.Y.shape[1]} outputs: separate tokens have one")
    x, y = transpose(batch.X), transpose(batch.Y)
    y = jnp.concatenate([jnp.zeros_like(x[1:]), y])
    pairs = jnp.stack([x, y], axis=2).reshape(len(x), -1, *x.shape[2:])
    return jnp.concatenate([pairs, batch.x_q[:, None]], axis=1)


def add_codes(
    tokens: Float[Array, "d n *batch"], codes: Float[Array, "n p"] | Float[np.ndarray, "n p"]
) -> Float[Array, "width n *batch"]:
    """Tokens with the codes of their positions appended as channels."""
    columns = jnp.asarray(codes, tokens.dtype).T.reshape(codes.shape[::-1] + (1,) * (tokens.ndim - 2))
    return jnp.concatenate([tokens, jnp.broadcast_to(columns, (len(columns), *tokens.shape[1:]))])


def sinusoidal_codes(positions: int, width: int) -> Float[np.ndarray, "positions width"]:
    """`sin(n / 10000^(2i/width))` and its cosine, interleaved (Vaswani et al. 2017, Sec. 3.5)."""
    angles = np.arange(positions)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(positions, width)


def read_out(
    layers: AttentionLayer, tokens: Float[Array, "width n batch"], *, softmax: Softmax = False, clip: float | None = None
) -> Float[Array, "1 batch"]:
    """Minus the last channel of the last token after the layers."""
    return -transform_batch(layers, tokens[:, :-1], tokens[:, -1:], softmax=softmax, clip=clip)[-1]


def copying_layers(dim: int, context: int, eta: Any, *, dtype: Any = None) -> AttentionLayer:
    """Two linear layers that copy and descend: exactly one step of rate η.

    With unit codes p_j the first head of the first layer attends from each x to the y that follows, and replaces the code of x
    by that y; the second head clears the tokens of y. The second layer is a step of gradient descent.
    """
    descent = head_maps(descent_layers(dim, context, eta, dtype=dtype))  # checks the sizes
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


def unit_codes(context: int) -> Float[np.ndarray, "positions width"]:
    """A unit vector for each position; the code of the last is zero."""
    return np.eye(2 * context + 1)[:, :-1]


def copy_sensitivity(layers: AttentionLayer, tokens: Float[Array, "width n batch"], *, softmax: bool = True) -> CopySensitivity:
    """Sensitivity of the first layer at each context token to input tokens.

    The norm, per input token, of the gradient of the sum of an output's channels, averaged over tasks. Unlike in the paper's
    code, *other* does not include the next token.
    """
    first = jax.tree.map(lambda leaf: leaf[:1], layers)
    n = tokens.shape[1]

    def outputs(shift: Array) -> Array:
        """Channel sums of each token but the last two, with shifted inputs."""
        E = tokens + shift[:, :, None]
        return jnp.mean(jnp.sum(transform_batch(first, E[:, :-1], E[:, : n - 2], softmax=softmax), axis=0), axis=-1)

    norms = jnp.linalg.norm(jax.jacrev(outputs)(jnp.zeros(tokens.shape[:2], tokens.dtype)), axis=1)  # [n - 2, n]
    own, following = jnp.diagonal(norms), jnp.diagonal(norms, 1)
    return CopySensitivity(own.mean(), following.mean(), jnp.mean((norms.sum(axis=1) - own - following) / (n - 2)))


# Sine waves: descent on features of an MLP.
#
#     e = E (x, y),    φ = e + MLP(e),    ŷ = -(last channel of φ_q after layers of linear attention on φ)
#
# The last channel is `y - f(x)`. The prediction before the layers, `-φ_q[-1]`, is thus a function of the query alone, which
# attention corrects by the context. In the *control* the layers are not trained: each is one step of gradient descent on the
# other channels, and only the features are learned.
#
# Source: von Oswald et al. 2023, Sec. 3, 4 and App. A.12.


@dataclasses.dataclass(frozen=True)
class Waves:
    """A distribution of tasks `y = a sin(x + p)`.

    context: N, pairs in the context.
    input_range: x ~ U(-r/2, r/2).
    amplitude: bounds of the uniform amplitude a. The paper's code has 0.1 to 0.5, its text 0.1 to 5.

    As in the paper's code a and p ~ U(0, π) come from one random number: a task has a single unknown.
    """

    context: int = 10
    input_range: float = 10.0
    amplitude: tuple[float, float] = (0.1, 0.5)

    def __post_init__(self):
        low, high = self.amplitude
        if self.context < 1 or not self.input_range > 0 or not 0 <= low <= high:
            raise ValueError(
                f"context {self.context}, input range {self.input_range}, amplitude {self.amplitude}: "
                "use at least one pair, a range above 0, and amplitudes 0 <= low <= high"
            )

    def sample(self, key: Array, *batch: int, dtype: Any = None) -> Sequence:
        """Fresh tasks, batch last."""
        return _sample_waves(key, self, batch, jnp.dtype(dtype or jnp.zeros(()).dtype))


class Encoder(NamedTuple):
    """The feature map of tokens: the embedding E and a residual MLP.

    E: [C, 2]; W1: [H, C]; b1: [H]; W2: [C, H]; b2: [C].
    """

    E: Float[Array, "*seeds C 2"]
    W1: Float[Array, "*seeds H C"]
    b1: Float[Array, "*seeds H"]
    W2: Float[Array, "*seeds C H"]
    b2: Float[Array, "*seeds C"]


class Network(NamedTuple):
    """An encoder and layers of attention, None for the control."""

    encoder: Encoder
    attention: AttentionLayer | None


class WavePredictions(NamedTuple):
    """Predictions [1, batch] before and after attention."""

    initial: Float[Array, "1 batch"]
    final: Float[Array, "1 batch"]


@dataclasses.dataclass(frozen=True)
class NonlinearRegression(QueryLoss):
    """Networks on sine tasks: a problem for `icl.train_layers`.

    tasks: their distribution.
    eta: η of the control's step.
    """

    tasks: Waves
    eta: float = 0.1

    def predict(self, params: Network, batch: Sequence) -> Float[Array, "1 batch"]:
        """Predictions after attention."""
        return predict_waves(params, batch, eta=self.eta).final


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _sample_waves(key: Array, waves: Waves, batch: tuple[int, ...], dtype: Any) -> Sequence:
    key_x, key_a, _ = jax.random.split(key, 3)
    low, high = waves.amplitude
    u = jax.random.uniform(key_a, batch, dtype)
    a, p = low + (high - low) * u, jnp.pi * u
    x = waves.input_range * draw(
        jax.random.uniform, key_x, (waves.context + 1, 1, *batch), dtype=dtype, minval=-0.5, maxval=0.5
    )
    y = a[None, None] * jnp.sin(x + p[None, None])
    return Sequence(x[:-1], y[:-1], x[-1], y[-1])


def init_network(
    key: Array, *, channels: int = 40, hidden: int = 160, scale: float = 0.002, layers: int = 1, dtype: Any = None
) -> Network:
    """Random weights of variance scale / fan-in, biases 0; no layers for controls."""
    if channels < 2 or min(hidden, layers + 1) < 1 or not scale > 0:
        sizes = f"{channels} channels, {hidden} hidden units, {layers} layers, scale {scale}"
        raise ValueError(f"{sizes}: use at least 2 channels, 1 hidden unit and 0 layers, and a positive scale")
    dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
    *keys, last = jax.random.split(key, 4)
    encoder = _init_encoder(keys, channels, hidden, [truncated_std(scale / n, dtype) for n in (2, channels, hidden)], dtype)
    return Network(encoder, init_layers(last, channels, layers=layers, scale=scale, dtype=dtype) if layers else None)


@functools.partial(jax.jit, static_argnums=(1, 2, 4))
def _init_encoder(keys: list[Array], channels: int, hidden: int, stds: Any, dtype: Any) -> Encoder:
    shapes = (channels, 2), (hidden, channels), (channels, hidden)
    E, W1, W2 = (truncated_weights(*of_layer, dtype) for of_layer in zip(keys, shapes, stds, strict=True))
    return Encoder(E, W1, jnp.zeros(hidden, dtype), W2, jnp.zeros(channels, dtype))


@full_precision
def features(encoder: Encoder, tokens: Float[Array, "2 n batch"]) -> Float[Array, "C n batch"]:
    """`φ = e + MLP(e)` of tokens `e = E (x, y)`."""
    E, W1, b1, W2, b2 = encoder
    e = jnp.einsum("ij,jnb->inb", E, tokens)
    h = jax.nn.gelu(jnp.einsum("he,enb->hnb", W1, e) + b1[:, None, None])
    return e + jnp.einsum("eh,hnb->enb", W2, h) + b2[:, None, None]


def encode(encoder: Encoder, batch: Sequence) -> tuple[Float[Array, "C N batch"], Float[Array, "C 1 batch"]]:
    """The features of a batch's context, and of its queries with y = 0."""
    context = jnp.stack([batch.X[:, 0], batch.Y[:, 0]])
    query = jnp.stack([batch.x_q, jnp.zeros_like(batch.y_q)])
    return features(encoder, context), features(encoder, query)


def predict_waves(params: Network, batch: Sequence, *, eta: Any = 0.1) -> WavePredictions:
    """Predictions before and after the layers, or the control's step of descent."""
    context, query = encode(params.encoder, batch)
    C, N = context.shape[:2]
    layers = params.attention or descent_layers(C - 1, N, eta, dtype=context.dtype)
    return WavePredictions(-query[-1], -transform_batch(layers, context, query)[-1])


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

    states: k; length: T, states of a sequence; alpha: α of the Dirichlet distribution of each row.
    stationary: whether the first state has the chain's stationary distribution; else it is uniform.
    """

    states: int = 3
    length: int = 64
    alpha: float = 1.0
    stationary: bool = True

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
    first = stationary_distribution(P) if chains.stationary else jnp.full(k, 1 / k, dtype)
    uniform = jax.random.uniform(key_x, (chains.length,), dtype)

    def step(row: Array, u: Array) -> tuple[Array, Array]:
        x = jnp.sum(jnp.cumsum(row)[:-1] < u, dtype=jnp.int32)  # the inverse of the distribution function
        return P[x], x

    return Chain(P, lax.scan(step, first, uniform)[1])


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


def unigram_posterior(x: Int[Array, " T"], alpha: Any, states: int, *, dtype: Any = None) -> Float[Array, "T k"]:
    """`(n_j + α) / (t + k α)`: the posterior mean for independent states."""
    return dirichlet_mean(jnp.cumsum(jax.nn.one_hot(x, states, dtype=dtype), axis=0), alpha)


def bigram_posterior(x: Int[Array, " T"], alpha: Any, states: int, *, dtype: Any = None) -> Float[Array, "T k"]:
    """`(n_ij + α) / (n_i + k α)`, i = x_t: the posterior mean."""
    return dirichlet_mean(transition_counts(x, states, dtype=dtype), alpha)


def transition_counts(x: Int[Array, " T"], states: int, *, dtype: Any = None) -> Float[Array, "T k"]:
    """n_ij with i = x_t: how often each state has followed x_t."""
    now = jax.nn.one_hot(x, states, dtype=dtype)

    def step(n: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        before, here = pair
        n = n + before[:, None] * here[None]
        return n, jnp.sum(n * here[:, None], axis=0)

    before = jnp.concatenate([jnp.zeros_like(now[:1]), now[:-1]])  # x_1 has no predecessor
    return lax.scan(step, jnp.zeros((states, states), now.dtype), (before, now))[1]


def dirichlet_mean(n: Float[Array, "T k"], alpha: Any) -> Float[Array, "T k"]:
    """`(n_j + α_j) / Σ_l (n_l + α_l)`; uniform where all are 0."""
    n = n + jnp.broadcast_to(jnp.asarray(alpha, n.dtype), n.shape[1:])[None]
    total = jnp.sum(n, axis=1, keepdims=True)
    return jnp.where(total > 0, n / jnp.where(total > 0, total, 1), 1 / n.shape[1])


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

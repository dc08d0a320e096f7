"""Self-attention without biases, of one sequence and of batches.

    e_j <- e_j + λ Σ_h P_h V_h K_hᵀ q_h,j,    k = W_K e,  q = W_Q e,  v = W_V e

Keys and values come from the context tokens only; all tokens are updated, including the query. A head depends on
`M = W_Kᵀ W_Q` and `R = P W_V` only, `e_j <- e_j + λ R (Σ_i e_i e_iᵀ) M e_j`, and is invariant to scaling them by inverse
factors. The prediction is minus the last coordinates of the query, which are `y - W x`, starting from y = 0.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.draws import truncated_std, truncated_weights
from icl.linalg import contract, transpose
from icl.tasks import QueryLoss, Sequence, TaskSampler, tokens
from jexplicit.runs.checks import check_key
from jexplicit.runs.devices import full_precision

Softmax = bool | tuple[bool, ...]  # softmax of the scores: for all layers, or one value per layer


class AttentionLayer(NamedTuple):
    """The heads of one layer, or of a stack (layers first).

    W_K, W_Q, W_V: [heads, key size, width]; P: [heads, width, key size].
    """

    W_K: Float[Array, "*layers heads key width"]
    W_Q: Float[Array, "*layers heads key width"]
    W_V: Float[Array, "*layers heads key width"]
    P: Float[Array, "*layers heads width key"]


@functools.partial(jax.jit, static_argnames="softmax")
@full_precision
def attend(
    layer: AttentionLayer, context: Float[Array, "N width"], queries: Float[Array, "n width"], *, softmax: bool = False
) -> Float[Array, "n width"]:
    """The update of some tokens by one layer, linear or with softmax.
    `Σ_h P_h V_h K_hᵀ q_h`, or `Σ_h P_h V_h softmax(K_hᵀ q_h / sqrt(key size))`.

    Args:
        context: [N, width] the tokens attended to.
        queries: [n, width] the tokens to update.
        softmax: whether to apply a softmax to a query's scores.

    Example:
        >>> one = jnp.ones((1, 1, 1))
        >>> attend(AttentionLayer(one, one, one, one), jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])).tolist()
        [[15.0]]

    Source: von Oswald et al. 2023, Eq. 3.
    """

    def head(W_K: Array, W_Q: Array, W_V: Array, P: Array) -> Array:
        K, Q, V = context @ W_K.T, queries @ W_Q.T, context @ W_V.T
        scores = jax.nn.softmax(Q @ K.T / K.shape[1] ** 0.5) if softmax else Q @ K.T
        return scores @ V @ P.T

    return jax.vmap(head)(*layer).sum(axis=0)


@functools.partial(jax.jit, static_argnames=("depth", "clip", "softmax", "layernorm"))
def predict(
    layers: AttentionLayer,
    sequence: Sequence,
    *,
    depth: int | None = None,
    clip: float | None = None,
    damping: Any = 1.0,
    W0: Float[Array, "m d"] | None = None,
    softmax: Softmax = False,
    layernorm: bool = False,
) -> Float[Array, " m"]:
    """The prediction of a stack of layers for one sequence.

    Args:
        layers: [L, ...] applied in order.
        depth: number of layers to apply; a single layer is applied repeatedly (recurrent). Default, L.
        clip: tokens are clipped to [-clip, clip] after each layer; default, not at all.
        damping: λ.
        W0: [m, d] initial weights; default, zero.
        softmax: whether to apply a softmax to scores, for all layers or one value per layer.
        layernorm: whether to normalise the inputs of layers (in a stack of several layers, of all but the first).

    Raises:
        ValueError: widths that do not fit, a depth other than L where L > 1, or a wrong number of values in `softmax`.

    Example:
        >>> layers = init_layers(jax.random.key(0), 4)
        >>> one = Sequence(jnp.ones((5, 3)), jnp.ones((5, 1)), jnp.ones(3), jnp.ones(1))
        >>> predict(layers, one).shape
        (1,)

    Source: von Oswald et al. 2023, Sec. 3.
    """
    E = tokens(sequence, W0)
    context, query = E[:-1], E[-1:]
    for step in layer_steps(layers, E.shape[1], depth, softmax=softmax, layernorm=layernorm):
        keys, queries = (layer_norm(part) if step.layernorm else part for part in (context, query))
        if not step.last:  # the output depends on the query only
            context = clip_tokens(context + damping * attend(step.layer, keys, keys, softmax=step.softmax), clip)
        query = clip_tokens(query + damping * attend(step.layer, keys, queries, softmax=step.softmax), clip)
    return -query[0, sequence.x_q.shape[0] :]


@functools.partial(jax.jit, static_argnames="steps")
def roll_out(layer: AttentionLayer, sequence: Sequence, *, steps: int, damping: Any = 1.0) -> Float[Array, "steps m"]:
    """The prediction after each of several applications of one layer.

    Args:
        damping: λ.

    Example:
        >>> layer = jax.tree.map(lambda leaf: leaf[0], init_layers(jax.random.key(0), 2))
        >>> roll_out(layer, Sequence(jnp.ones((5, 1)), jnp.ones((5, 1)), jnp.ones(1), jnp.ones(1)), steps=3).shape
        (3, 1)

    Source: von Oswald et al. 2023, Fig. 1 and 10.
    """
    E, d = tokens(sequence), sequence.x_q.shape[0]

    def step(E: Array, _: None) -> tuple[Array, Array]:
        E = E + damping * attend(layer, E[:-1], E)
        return E, -E[-1, d:]

    return lax.scan(step, E, None, length=steps)[1]


class LayerStep(NamedTuple):
    """One application of a layer in a stack."""

    layer: AttentionLayer
    softmax: bool
    layernorm: bool
    last: bool


def layer_steps(
    layers: AttentionLayer, width: int, depth: int | None = None, *, softmax: Softmax = False, layernorm: bool = False
) -> list[LayerStep]:
    """The layers to apply, in order; a single one `depth` times."""
    L = len(layers.W_K)
    depth = L if depth is None else depth
    if layers.W_K.ndim != 4 or layers.W_K.shape[-1] != width:
        raise ValueError(f"W_K {layers.W_K.shape} for tokens of width {width}: wanted [layers, heads, key size, {width}]")
    if depth < 1 or L not in (1, depth):
        raise ValueError(f"depth {depth} of {L} layers: give {max(depth, 1)} layers, or a single one to repeat")
    softmaxes = (softmax,) * depth if isinstance(softmax, bool) else softmax
    if len(softmaxes) != depth:
        raise ValueError(f"softmax {softmax} for {depth} layers: give one value, or one per layer")
    steps = []
    for n in range(depth):
        layer = jax.tree.map(lambda leaf, n=n: leaf[min(n, L - 1)], layers)
        steps.append(LayerStep(layer, softmaxes[n], layernorm and (n > 0 or L == 1), n == depth - 1))
    return steps


def layer_norm(E: Float[Array, "*tokens"], *, axis: int = -1) -> Float[Array, "*tokens"]:
    """Tokens shifted and scaled to mean 0, variance 1 (Ba et al. 2016)."""
    return jax.nn.standardize(E, axis=axis)


@jax.jit
@full_precision
def head_maps(
    layers: AttentionLayer,
) -> tuple[Float[Array, "*layers heads width width"], Float[Array, "*layers heads width width"]]:
    """The two matrices of a head: `M = W_Kᵀ W_Q`, `R = P W_V`.

    Example:
        >>> M, R = head_maps(init_layers(jax.random.key(0), 11))
        >>> M.shape, R.shape
        ((1, 1, 11, 11), (1, 1, 11, 11))
    """
    return layers.W_K.mT @ layers.W_Q, layers.P @ layers.W_V


def layers_from_maps(M: Float[Array, "*layers heads w w"], R: Float[Array, "*layers heads w w"]) -> AttentionLayer:
    """Layers with given `M = W_Kᵀ W_Q` and `R = P W_V`."""
    eye = jnp.broadcast_to(jnp.eye(M.shape[-1], dtype=M.dtype), M.shape)
    return AttentionLayer(eye, M, R, eye)


def init_layers(
    key: Array, width: int, *, layers: int = 1, heads: int = 1, scale: float = 0.002, dtype: Any = None
) -> AttentionLayer:
    """Random weights: truncated normal with standard deviation `sqrt(scale / fan-in)`, key size = width.

    Args:
        width: d + m.
        layers, heads: numbers of layers and heads.
        scale: variance times fan-in; the paper's code has 0.002/K, its text a standard deviation of 0.002/K.

    Raises:
        ValueError: a number that is no whole one or below 1, a scale that is not positive, or an integer as key.

    Example:
        >>> bool(0.013 < init_layers(jax.random.key(0), 11, heads=100).W_K.std() < 0.014)  # sqrt(0.002 / 11) = 0.0135
        True

    Source: von Oswald et al. 2023, App. A.12, as in its code.
    """
    check_key(key)
    if not all(isinstance(n, int | np.integer) and n > 0 for n in (width, layers, heads)) or not scale > 0:
        given = f"width {width}, {layers} layers, {heads} heads, scale {scale}"
        raise ValueError(f"{given}: use whole numbers of at least 1, and a positive scale")
    shape, dtype = (layers, heads, width, width), jnp.dtype(dtype or jnp.zeros(()).dtype)
    return AttentionLayer(*_random_weights(jax.random.split(key, 4), shape, truncated_std(scale / width, dtype), dtype))


@functools.partial(jax.jit, static_argnums=(1, 3))
def _random_weights(keys: Array, shape: tuple[int, ...], std: Any, dtype: Any) -> Array:
    return jax.vmap(lambda key: truncated_weights(key, shape, std, dtype))(keys)


def clip_tokens(E: Array, clip: float | None) -> Array:
    """Tokens clipped to [-clip, clip]; unchanged without a clip."""
    return E if clip is None else jnp.clip(E, -clip, clip)


@dataclasses.dataclass(frozen=True)
class Regression(QueryLoss):
    """Stacks of attention layers on regression tasks: a problem for `icl.train_layers`.

    tasks: their distribution, e.g. `icl.Tasks` with Python numbers.
    depth: K, number of applications of a single layer, or the number of layers.
    clip, softmax, layernorm: as in `icl.predict`.

    Example:
        >>> from icl import Tasks, init_layers
        >>> regression = Regression(Tasks(dim=3, context=5))
        >>> batch = regression.sample(jax.random.key(0), 4)
        >>> regression.loss(init_layers(jax.random.key(1), 4), batch).shape
        ()
    """

    tasks: TaskSampler
    depth: int = 1
    clip: float | None = None
    softmax: Softmax = False
    layernorm: bool = False

    def predict(self, params: AttentionLayer, batch: Sequence) -> Float[Array, "m batch"]:
        """Predictions for a batch."""
        return predict_batch(params, batch, depth=self.depth, clip=self.clip, softmax=self.softmax, layernorm=self.layernorm)


@functools.partial(jax.jit, static_argnames=("depth", "clip", "softmax", "layernorm"))
def predict_batch(layers: AttentionLayer, batch: Sequence, **options: Any) -> Float[Array, "m batch"]:
    """The predictions of a stack of layers for a batch, batch last.

    Options and errors are those of `icl.predict`: depth, clip, softmax and layernorm.

    Raises:
        ValueError: a single sequence, for which there is `icl.predict`, or another thing than a sequence.

    Example:
        >>> from icl import Tasks, init_layers, sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> jax.jit(predict_batch)(init_layers(jax.random.key(1), 4), batch).shape
        (1, 4)

    Source: von Oswald et al. 2023, Eq. 3.
    """
    if not isinstance(batch, Sequence):
        raise ValueError(f"a batch of type {type(batch).__name__}: give icl.sample_tasks(key, tasks, size), or an icl.Sequence")
    if batch.X.ndim != 3:
        raise ValueError(f"X {batch.X.shape}: wanted [N, d, batch] of many tasks, batch last (for one task: icl.predict)")
    context = jnp.concatenate([transpose(batch.X), transpose(batch.Y)])  # [width, N, batch]
    query = jnp.concatenate([batch.x_q, jnp.zeros_like(batch.y_q)])[:, None]  # [width, 1, batch]
    return -transform_batch(layers, context, query, **options)[batch.x_q.shape[0] :, 0]


def transform_batch(
    layers: AttentionLayer,
    context: Float[Array, "width N batch"],
    query: Float[Array, "width n batch"],
    *,
    depth: int | None = None,
    clip: float | None = None,
    softmax: Softmax = False,
    layernorm: bool = False,
) -> Float[Array, "width n batch"]:
    """The queries of a batch after a stack of layers."""
    for step in layer_steps(layers, len(context), depth, softmax=softmax, layernorm=layernorm):
        M, R = head_maps(step.layer)
        if step.softmax:
            M = M / step.layer.W_K.shape[-2] ** 0.5
        keys, queries = (layer_norm(part, axis=0) if step.layernorm else part for part in (context, query))
        if not step.last:  # the output depends on the query only
            context = clip_tokens(context + attention_update(keys, keys, M, R, softmax=step.softmax), clip)
        query = clip_tokens(query + attention_update(keys, queries, M, R, softmax=step.softmax), clip)
    return query


def attention_update(
    context: Float[Array, "width N batch"],
    tokens: Float[Array, "width n batch"],
    M: Float[Array, "heads width width"],
    R: Float[Array, "heads width width"],
    *,
    softmax: bool = False,
) -> Float[Array, "width n batch"]:
    """The update of tokens e_j by all heads: `Σ_h Σ_i R e_i a_ij`.
    Scores are `a_ij = e_iᵀ M e_j` or their softmax over i.

    The order of the products is chosen for few multiplications.
    """
    if not softmax and tokens.shape[1] > len(context):  # more tokens than coordinates: R (Σ_i e_i e_iᵀ) M e_j
        G = contract(transpose(context), transpose(context))
        updates = (_apply(R_h, contract(G, _apply(M_h, tokens))) for M_h, R_h in zip(M, R, strict=True))
    else:
        scores = (contract(context, _apply(M_h, tokens)) for M_h in M)
        if softmax:
            scores = (jax.nn.softmax(a, axis=0) for a in scores)
        updates = (_weighted_values(context, R_h, a) for R_h, a in zip(R, scores, strict=True))
    return functools.reduce(jnp.add, updates)


def _weighted_values(context: Array, R: Array, a: Array) -> Array:
    """`Σ_i R e_i a_ij`, with R on the fewer of sums and tokens.

    For equal numbers, applying R first halves the time of a step of five layers.
    """
    if a.shape[1] < a.shape[0]:
        return _apply(R, contract(transpose(context), a))
    return contract(transpose(_apply(R, context)), a)


@full_precision
def _apply(M: Array, E: Array) -> Array:
    """`M e_n` of every token."""
    return jnp.einsum("ce,enb->cnb", M, E)

"""Self-attention without biases, its weights that perform steps of descent, and descent itself.

e_j <- e_j + λ Σ_h P_h V_h K_hᵀ q_h,j,    k = W_K e,  q = W_Q e,  v = W_V e
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.tasks import (
    QueryLoss,
    Sequence,
    TaskSampler,
    contract,
    initial_weights,
    tokens,
    transpose,
    truncated_std,
    truncated_weights,
)
from jexplicit.runs.devices import checked, full_precision, is_concrete

# Keys and values come from the context tokens only; all tokens are updated, including the query. A head depends on
# `M = W_Kᵀ W_Q` and `R = P W_V` only, `e_j <- e_j + λ R (Σ_i e_i e_iᵀ) M e_j`, and is invariant to scaling them by inverse
# factors. The prediction is minus the last coordinates of the query, which are `y - W x`, starting from y = 0.

Softmax = bool | tuple[bool, ...]  # softmax of the scores: for all layers, or one value per layer


class AttentionLayer(NamedTuple):
    """The heads of one layer, or of a stack (layers first).

    W_K, W_Q, W_V: [heads, key size, width]; P: [heads, width, key size].
    """

    W_K: Float[Array, "*layers heads key width"]
    W_Q: Float[Array, "*layers heads key width"]
    W_V: Float[Array, "*layers heads key width"]
    P: Float[Array, "*layers heads width key"]


@functools.partial(jax.jit, static_argnames=("depth", "clip", "softmax"))
def predict(
    layers: AttentionLayer,
    sequence: Sequence,
    *,
    depth: int | None = None,
    clip: float | None = None,
    damping: Any = 1.0,
    W0: Float[Array, "m d"] | None = None,
    softmax: Softmax = False,
) -> Float[Array, " m"]:
    """The prediction of a stack of layers for one sequence.

    Args:
        layers: [L, ...] applied in order.
        depth: number of layers to apply; a single layer is applied repeatedly (recurrent). Default, L.
        clip: tokens are clipped to [-clip, clip] after each layer; default, not at all.
        damping: λ.
        W0: [m, d] initial weights; default, zero.
        softmax: whether to apply a softmax to scores, `K_hᵀ q_h / sqrt(key size)`, for all layers or one value per layer.

    Raises:
        ValueError: widths that do not fit, a depth other than L where L > 1, or a wrong number of values in `softmax`.

    Example:
        >>> layers = init_layers(jax.random.key(0), 4)
        >>> one = Sequence(jnp.ones((5, 3)), jnp.ones((5, 1)), jnp.ones(3), jnp.ones(1))
        >>> predict(layers, one).shape
        (1,)

    Source: von Oswald et al. 2023, Sec. 3.
    """
    E = tokens(sequence, W0).T[..., None]  # a batch of one
    options: Any = {"depth": depth, "clip": clip, "damping": damping, "softmax": softmax}
    return -transform_batch(layers, E[:, :-1], E[:, -1:], **options)[sequence.x_q.shape[0] :, 0, 0]


@functools.partial(jax.jit, static_argnames="steps")
def roll_out(layer: AttentionLayer, sequence: Sequence, *, steps: int, damping: Any = 1.0) -> Float[Array, "steps m"]:
    """The prediction after each of several applications of one layer.

    damping: λ. Source: von Oswald et al. 2023, Fig. 1 and 10.
    """
    maps, d = head_maps(layer), sequence.x_q.shape[0]

    def step(E: Array, _: None) -> tuple[Array, Array]:
        E = E + damping * attention_update(E[:, :-1], E, *maps)
        return E, -E[d:, -1, 0]

    return lax.scan(step, tokens(sequence).T[..., None], None, length=steps)[1]


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
        ValueError: a number that is no whole one or below 1, or a scale that is not positive.

    Source: von Oswald et al. 2023, App. A.12, as in its code.

    Example:
        >>> bool(0.013 < init_layers(jax.random.key(0), 11, heads=100).W_K.std() < 0.014)  # sqrt(0.002 / 11) = 0.0135
        True

    """
    if not all(isinstance(n, int | np.integer) and n > 0 for n in (width, layers, heads)) or not scale > 0:
        given = f"width {width}, {layers} layers, {heads} heads, scale {scale}"
        raise ValueError(f"{given}: use whole numbers of at least 1, and a positive scale")
    shape, dtype = (layers, heads, width, width), jnp.dtype(dtype or jnp.zeros(()).dtype)
    return AttentionLayer(*_random_weights(jax.random.split(key, 4), shape, truncated_std(scale / width, dtype), dtype))


@functools.partial(jax.jit, static_argnums=(1, 3))
def _random_weights(keys: Array, shape: tuple[int, ...], std: Any, dtype: Any) -> Array:
    return jax.vmap(lambda key: truncated_weights(key, shape, std, dtype))(keys)


@dataclasses.dataclass(frozen=True)
class Regression(QueryLoss):
    """Stacks of attention layers on regression tasks: a problem for `icl.train_layers`.

    tasks: their distribution, e.g. `icl.Tasks` with Python numbers.
    depth: K, number of applications of a single layer, or the number of layers.
    clip, softmax: as in `icl.predict`.
    """

    tasks: TaskSampler
    depth: int = 1
    clip: float | None = None
    softmax: Softmax = False

    def predict(self, params: AttentionLayer, batch: Sequence) -> Float[Array, "m batch"]:
        """Predictions for a batch."""
        return predict_batch(params, batch, depth=self.depth, clip=self.clip, softmax=self.softmax)


@functools.partial(jax.jit, static_argnames=("depth", "clip", "softmax"))
def predict_batch(layers: AttentionLayer, batch: Sequence, **options: Any) -> Float[Array, "m batch"]:
    """The predictions of a stack of layers for a batch, batch last.

    Options and errors are those of `icl.predict`.

    Example:
        >>> from icl import Tasks, init_layers, sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> predict_batch(init_layers(jax.random.key(1), 4), batch).shape
        (1, 4)
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
    damping: Any = 1.0,
    softmax: Softmax = False,
) -> Float[Array, "width n batch"]:
    """The queries of a batch after a stack of layers, as in `predict`."""
    L, width = len(layers.W_K), len(context)
    depth = L if depth is None else depth
    if layers.W_K.ndim != 4 or layers.W_K.shape[-1] != width:
        raise ValueError(f"W_K {layers.W_K.shape} for tokens of width {width}: wanted [layers, heads, key size, {width}]")
    if depth < 1 or L not in (1, depth):
        raise ValueError(f"depth {depth} of {L} layers: give {max(depth, 1)} layers, or a single one to repeat")
    softmaxes = (softmax,) * depth if isinstance(softmax, bool) else softmax
    if len(softmaxes) != depth:
        raise ValueError(f"softmax {softmax} for {depth} layers: give one value, or one per layer")

    def moved(E: Array, change: Array) -> Array:
        E = E + damping * change
        return E if clip is None else jnp.clip(E, -clip, clip)

    for n, soft in enumerate(softmaxes):
        M, R = head_maps(jax.tree.map(lambda leaf, n=n: leaf[min(n, L - 1)], layers))
        if soft:
            M = M / layers.W_K.shape[-2] ** 0.5
        last = n == depth - 1  # the output depends on the query only
        update = attention_update(context, query, M, R, softmax=soft)
        context = context if last else moved(context, attention_update(context, context, M, R, softmax=soft))
        query = moved(query, update)
    return query


def attention_update(
    context: Float[Array, "width N batch"],
    tokens: Float[Array, "width n batch"],
    M: Float[Array, "heads width width"],
    R: Float[Array, "heads width width"],
    *,
    softmax: bool = False,
) -> Float[Array, "width n batch"]:
    """`Σ_h Σ_i R e_i a_ij`: scores `a_ij = e_iᵀ M e_j`, or their softmax."""
    many = not softmax and tokens.shape[1] > len(context)  # more tokens than coordinates: R (Σ_i e_i e_iᵀ) M e_j
    sums = contract(transpose(context), transpose(context)) if many else context

    def head(M_h: Array, R_h: Array) -> Array:
        a = contract(sums, _apply(M_h, tokens))
        if many:
            return _apply(R_h, a)
        a = jax.nn.softmax(a, axis=0) if softmax else a
        if a.shape[1] < a.shape[0]:  # R on the fewer of sums and tokens
            return _apply(R_h, contract(transpose(context), a))
        return contract(transpose(_apply(R_h, context)), a)

    return functools.reduce(jnp.add, map(head, M, R))


@full_precision
def _apply(M: Array, E: Array) -> Array:
    """`M e_n` of every token."""
    return jnp.einsum("ce,enb->cnb", M, E)


# Attention weights that perform given steps of descent, without training.
#
# With `W_K = W_Q = [[I, 0], [0, 0]]`, `W_V = [[0, 0], [W0, -I]]` and `P = (η/N) I` one layer is exactly one step of gradient
# descent on `L(W) = 1/(2N) Σ ||W x_i - y_i||²` from W0: it replaces y_j by `y_j - ΔW x_j`, and L layers are L steps. The
# weights are pure functions of the rates, compatible with `jit`, `grad` and `vmap`.

Rate = Any  # a number, or one per layer or step


def descent_layers(
    dim: int,
    context: int,
    eta: Rate,
    *,
    gamma: Rate = 0.0,
    layers: int = 1,
    W0: Float[Array, "m d"] | None = None,
    outputs: int = 1,
    preconditioner: Float[Array, "d d"] | None = None,
    dtype: Any = None,
) -> AttentionLayer:
    """A stack of layers that performs steps of GD, preconditioned GD, or GD++.

    Args:
        dim: d; context: N.
        eta: η of each step, one number or one per layer.
        gamma: γ of GD++, one number or one per layer: `x_j <- (I - γ XᵀX) x_j`. 0 is GD.
        layers: number of layers, unless η or γ has one value per layer.
        W0: [m, d] initial weights; default, zero.
        outputs: m, unless W0 is given.
        preconditioner: [d, d] G, the right factor of ΔW; default, the identity.

    Raises:
        ValueError: sizes below 1; shapes that do not fit; GD++ with W0, as it changes x (tracers skip this check).

    Example:
        >>> descent_layers(2, 4, 0.5).P[0, 0].diagonal().tolist()
        [0.0, 0.0, 0.125]

    Source: von Oswald et al. 2023, Prop. 1 and App. A.1, A.10; P as in their code (under GD its x entries act on zeros).
    """
    dtype = dtype or jax.dtypes.canonicalize_dtype(float)
    m = outputs if W0 is None else W0.shape[0]
    L = max(layers, jnp.size(eta), jnp.size(gamma))
    if min(dim, context, layers, m) < 1:
        raise ValueError(f"dim {dim}, context {context}, {layers} layers, {m} outputs: use at least 1 for each")
    if any(jnp.ndim(rate) > 1 or jnp.size(rate) not in (1, L) for rate in (eta, gamma)):
        shapes = f"eta {jnp.shape(eta)}, gamma {jnp.shape(gamma)}"
        raise ValueError(f"{shapes} and {layers} layers: give one rate, or one for each layer")
    G = np.eye(dim) if preconditioner is None else preconditioner
    W = np.zeros((m, dim)) if W0 is None else W0
    if G.shape != (dim, dim) or W.shape != (m, dim):
        raise ValueError(f"preconditioner {G.shape}, W0 {W.shape}: wanted {(dim, dim)} and {(m, dim)}")
    if is_concrete(gamma, W) and np.any(gamma) and np.any(W):
        raise ValueError("GD++ with W0 other than zero: x, and so W0 x, change from layer to layer; start from zero")
    return _descent_layers(eta, gamma, G, W, context, L, jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(5, 6))
def _descent_layers(eta: Rate, gamma: Rate, G: Array, W: Array, context: Any, L: int, dtype: Any) -> AttentionLayer:
    dim, width = len(G), sum(W.shape)
    G, W = jnp.asarray(G, dtype), jnp.asarray(W, dtype)
    etas, gammas = (jnp.broadcast_to(jnp.asarray(rate, dtype).reshape(-1), (L,)) for rate in (eta, gamma))
    empty = jnp.zeros((L, 1, width, width), dtype)
    x, y = np.arange(dim), np.arange(dim, width)
    values = jnp.where(jnp.any(gammas != 0), jnp.eye(dim, dtype=dtype), 0)  # GD does not change x
    return AttentionLayer(
        W_K=empty.at[..., x, x].set(1),
        W_Q=empty.at[..., :dim, :dim].set(G),
        W_V=empty.at[..., :dim, :dim].set(values).at[..., dim:, :dim].set(W).at[..., y, y].set(-1),
        P=empty.at[:, 0, x, x].set(0.0 - gammas[:, None]).at[:, 0, y, y].set(etas[:, None] / context),
    )


def softmax_descent_layer(
    dim: int, context: int, eta: Any, *, sharpness: Any = 0.01, outputs: int = 1, dtype: Any = None
) -> AttentionLayer:
    """A step of descent: two softmax heads with a linear difference.

    For scores `±ε x_iᵀ x_j` heads of opposite signs cancel all even powers, and the remainder is a step on inputs that are
    centred over the context:

        y_j <- y_j - (η/N) Σ_i y_i (x_i - x̄)ᵀ x_j + O(ε²)

    Args:
        dim: d; context: N; eta: η; outputs: m.
        sharpness: ε. A smaller ε makes the layer more nearly linear, and the cancelling values larger.

    Raises:
        ValueError: sizes below 1, or a sharpness that is not positive.

    Source: this package; von Oswald et al. 2023, App. A.9, observe it in two trained heads.

    Example:
        >>> softmax_descent_layer(3, 4, 0.5).P.shape
        (1, 2, 4, 4)

    """
    return softmax_layers(descent_layers(dim, context, eta, outputs=outputs, dtype=dtype), context, sharpness=sharpness)


@checked(lambda linear, context, *, sharpness=0.01: _check_sharpness(sharpness), static=("context",))
def softmax_layers(linear: AttentionLayer, context: int, *, sharpness: Any = 0.01) -> AttentionLayer:
    """Two softmax heads for each linear head, with centred keys.

        Σ_i v_i (k_i - k̄)ᵀ q_j + O(ε²)  =  N/(2 ε) Σ_i v_i [softmax(ε k_iᵀ q_j) - softmax(-ε k_iᵀ q_j)]

    Args:
        sharpness: ε, for scores of the order of 1; or one for each layer.

    Raises:
        ValueError: a sharpness that is not positive.

    Source: this package.
    """
    W_K, W_Q, W_V, P = (jnp.repeat(weights, 2, axis=1) for weights in linear)
    epsilon = jnp.broadcast_to(jnp.asarray(sharpness, P.dtype), len(P))[:, None, None, None]
    root = (epsilon * W_K.shape[2] ** 0.5) ** 0.5  # scores are divided by the root of the key size
    signs = jnp.tile(jnp.array([1.0, -1.0], P.dtype), P.shape[1] // 2)[None, :, None, None]
    return AttentionLayer(root * W_K, signs * root * W_Q, W_V, signs * context / (2 * epsilon) * P)


def _check_sharpness(sharpness: Any) -> None:
    if not np.all(np.asarray(sharpness) > 0):
        raise ValueError(f"sharpness {sharpness}: use numbers above 0")


@functools.partial(jax.jit, static_argnames="context")
def head_layer(p: Float[Array, " D"], A: Float[Array, "D d"], context: int) -> AttentionLayer:
    """A layer of one head, `ŷ = pᵀ (1/N) Σ_i e_i e_iᵀ A x_q`.

    Args:
        p: [d + 1]; A: [d + 1, d]; context: N.

    Raises:
        ValueError: shapes that do not fit.
    """
    D = len(p)
    if A.shape != (D, D - 1) or context < 1:
        raise ValueError(f"p {p.shape}, A {A.shape}, context {context}: wanted [d + 1] and [d + 1, d], and at least one pair")
    empty = jnp.zeros((1, 1, D, D), A.dtype)
    return layers_from_maps(empty.at[..., : D - 1].set(A), empty.at[..., D - 1, :].set(-p / context))


@functools.partial(jax.jit, static_argnames="context")
@full_precision
def head_tensor(layer: AttentionLayer, context: int) -> Float[Array, "D D d"]:
    """The H of one layer of any weights, `ŷ = Σ_abj H_abj Z_ab x_q,j`.

    Args:
        layer: a stack of one layer, of one output and any number of heads; context: N.

    Raises:
        ValueError: several layers.

    Example:
        >>> p, A = jnp.array([1.0, 2.0]), jnp.array([[3.0], [4.0]])
        >>> head_tensor(head_layer(p, A, 4), 4)[..., 0].tolist()
        [[3.0, 4.0], [6.0, 8.0]]
    """
    if len(layer.P) != 1 or layer.P.ndim != 4:
        raise ValueError(f"layers {layer.P.shape}: wanted a stack of one layer, [1, heads, width, key size]")
    M, R = (maps[0] for maps in head_maps(layer))
    return -context * jnp.einsum("ha,hbj->abj", R[:, -1], M[:, :, :-1])


# Gradient descent, its variants and ridge regression, functions of one sequence; batch them by `jax.vmap`.
#
# L(W) = 1/(2N) Σ_i ||W x_i - y_i||²,    ΔW = -(η/N) Σ_i (W x_i - y_i) x_iᵀ


@jax.jit
@full_precision
def squared_error(W: Float[Array, "m d"], X: Float[Array, "N d"], Y: Float[Array, "N m"]) -> Float[Array, ""]:
    """`L(W) = 1/(2N) Σ_i ||W x_i - y_i||²`."""
    if (len(X), len(W)) != Y.shape or not len(X):
        raise ValueError(f"W {W.shape}, X {X.shape}, Y {Y.shape}: wanted [m, d], [N, d] and [N, m], of at least one pair")
    return jnp.sum((X @ W.T - Y) ** 2) / (2 * len(X))


@functools.partial(jax.jit, static_argnames="steps")
@full_precision
def gradient_descent(
    sequence: Sequence,
    eta: Rate,
    *,
    steps: int = 1,
    W0: Float[Array, "m d"] | None = None,
    preconditioner: Float[Array, "d d"] | None = None,
) -> Float[Array, "steps m"]:
    """The predictions `W x_q` after 1, 2, .. steps of gradient descent.

        W <- W - (η/N) Σ_i (W x_i - y_i) x_iᵀ G

    Args:
        eta: η, one number or one per step.
        W0: [m, d] initial weights; default, zero.
        preconditioner: [d, d] G; default, the identity.

    Raises:
        ValueError: shapes that do not fit, or fewer than one step.

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> gradient_descent(one, 1.0, steps=2).tolist()
        [[1.5], [2.25]]

    Source: von Oswald et al. 2023, Eq. 6; with G Ahn et al. 2023.
    """
    W = initial_weights(sequence, W0)
    X, Y, x_q, _ = sequence
    (etas,) = _per_step(steps, X.dtype, eta=eta)
    if preconditioner is not None and preconditioner.shape != (X.shape[1],) * 2:
        raise ValueError(f"preconditioner {preconditioner.shape}: wanted {(X.shape[1],) * 2}")

    def step(W: Array, eta: Array) -> tuple[Array, Array]:
        change = (X @ W.T - Y).T @ X / len(X)
        W = W - eta * (change if preconditioner is None else change @ preconditioner)
        return W, W @ x_q

    return lax.scan(step, W, etas)[1]


@functools.partial(jax.jit, static_argnames="steps")
@full_precision
def gd_plus_plus(sequence: Sequence, eta: Rate, gamma: Rate, *, steps: int) -> Float[Array, "steps m"]:
    """The predictions of GD++: descent that also moves the inputs.

        y_j <- y_j - (η/N) Σ_i y_i x_iᵀ x_j,    x_j <- (I - γ Σ_i x_i x_iᵀ) x_j    (both from the same x)

    Args:
        eta, gamma: η and γ, one number or one per step. The last γ has no effect.

    Raises:
        ValueError: shapes that do not fit, or fewer than one step.

    Source: von Oswald et al. 2023, App. A.10, Eq. 23.
    """
    initial_weights(sequence)  # checks the shapes
    X, Y, x_q, y_q = sequence
    N, (etas, gammas) = len(X), _per_step(steps, X.dtype, eta=eta, gamma=gamma)

    def step(state: tuple[Array, ...], rates: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        (X, Y, x, y), (eta, gamma) = state, rates
        G, change = X.T @ X, eta / N * Y.T @ X
        state = X - gamma * X @ G, Y - X @ change.T, x - gamma * G @ x, y - change @ x
        return state, -state[3]

    return lax.scan(step, (X, Y, x_q, jnp.zeros_like(y_q)), (etas, gammas))[1]


def _per_step(steps: int, dtype: Any, **rates: Rate) -> tuple[Array, ...]:
    """Each rate once per step."""
    if steps < 1 or any(jnp.shape(rate) not in ((), (steps,)) for rate in rates.values()):
        shapes = ", ".join(f"{name} {jnp.shape(rate)}" for name, rate in rates.items())
        raise ValueError(f"{steps} steps, {shapes}: wanted at least one step, and one rate or one per step")
    return tuple(jnp.broadcast_to(jnp.asarray(rate, dtype), (steps,)) for rate in rates.values())


@checked(after=lambda y, sequence, penalty: _check_ridge(y, penalty))
@full_precision
def ridge(sequence: Sequence, penalty: Any) -> Float[Array, " m"]:
    """The prediction of ridge regression, `W = Yᵀ X (XᵀX + penalty I)⁻¹`.

    For Gaussian weights and noise, the penalty noise variance / weight variance gives the Bayes-optimal prediction.

    Raises:
        ValueError: shapes that do not fit; a penalty that is negative, infinite, or 0 where XᵀX has no inverse. Under jit, vmap
            and grad only shapes are checked.

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> ridge(one, 1.0).tolist()
        [1.5]
    """
    initial_weights(sequence)  # checks the shapes
    X, Y, x_q, _ = sequence
    A = X.T @ X + penalty * jnp.eye(X.shape[1], dtype=X.dtype)
    return Y.T @ X @ jnp.linalg.solve(A, x_q)


def _check_ridge(y: Float[Array, " m"], penalty: Any) -> None:
    if not (0 <= penalty < np.inf and bool(jnp.isfinite(y).all())):
        raise ValueError(f"penalty {penalty}: use a finite number above 0, and finite numbers of the order of 1")


# A predictor is a function of a batch of sequences (batch last) to predictions [m, B]. Its sensitivity is `∂ŷ/∂x_q`; for a
# predictor that is linear in the query, this is the weight matrix W inferred from the context.

Predictor = Callable[[Sequence], Float[Array, "m batch"]]
_tiny = 1e-8  # added to norms, as in the paper's code


class Predictions(NamedTuple):
    """Predictions [m, B], sensitivities [m, d, B] and half squared errors [B]."""

    y: Array
    sensitivity: Array
    loss: Array


class PredictorDifference(NamedTuple):
    """Mean differences of predictions and of sensitivities, and the sensitivities' cosine."""

    prediction_difference: Float[Array, ""]
    model_difference: Float[Array, ""]
    cosine: Float[Array, ""]


def predictions(predictor: Predictor, batch: Sequence) -> Predictions:
    """A predictor on a batch (batch last): its predictions, sensitivities and losses.

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.

    Example:
        >>> from icl.tasks import Tasks, sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> [leaf.shape for leaf in predictions(lambda b: jnp.sum(b.x_q, axis=0, keepdims=True), batch)]
        [(1, 4), (1, 3, 4), (4,)]

    """
    y, pullback = jax.vjp(lambda x_q: predictor(batch._replace(x_q=x_q)), batch.x_q)
    rows = [jnp.zeros_like(y).at[o].set(1) for o in range(len(y))]  # a task's prediction depends on its own query alone
    sensitivity = jnp.stack([pullback(row)[0] for row in rows])
    return Predictions(y, sensitivity, jnp.sum((y - batch.y_q) ** 2, axis=0) / 2)


@jax.jit
def difference(ours: Predictions, theirs: Predictions) -> PredictorDifference:
    """Prediction difference, model difference and sensitivity cosine of two predictors on the same tasks.

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.
    """
    a, b = ours.sensitivity, theirs.sensitivity
    norms = (jnp.linalg.norm(a, axis=1) + _tiny) * (jnp.linalg.norm(b, axis=1) + _tiny)
    return PredictorDifference(
        jnp.mean(jnp.abs(ours.y - theirs.y)), jnp.mean(jnp.linalg.norm(a - b, axis=1)), jnp.mean(jnp.sum(a * b, axis=1) / norms)
    )


@functools.partial(jax.jit, static_argnames="dim")
def interpolate(trained: AttentionLayer, constructed: AttentionLayer, *, dim: int) -> AttentionLayer:
    """The means of trained and constructed layers of one head.

    With b the mean of the first d diagonal entries of a layer's M, its trained maps are rescaled to M/b and R b.

    Raises:
        ValueError: layers of several heads, or of different shapes.

    Source: von Oswald et al. 2023, Sec. 3; for several layers of separate weights the mean is not expected to do well.
    """
    if trained.P.shape != constructed.P.shape or trained.P.shape[1] != 1:
        raise ValueError(f"layers {trained.P.shape} and {constructed.P.shape}: wanted the same shape, and one head")
    (M, R), (M_gd, R_gd) = head_maps(trained), head_maps(constructed)
    b = jnp.mean(jnp.diagonal(M, axis1=-2, axis2=-1)[..., :dim], axis=-1)[..., None, None]
    return layers_from_maps((M / b + M_gd) / 2, (R * b + R_gd) / 2)


def descent_rates(layer: AttentionLayer, *, dim: int, context: int) -> tuple[Array, Array]:
    """The η and γ nearest to a layer of one head."""
    M, R = (of_layer[0] for of_layer in head_maps(layer))
    b, diagonal = jnp.mean(jnp.diagonal(M)[:dim]), jnp.diagonal(R)
    return -context * b * jnp.mean(diagonal[dim:]), -b * jnp.mean(diagonal[:dim])

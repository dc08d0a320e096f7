"""Attention weights that perform given steps of descent, without training.

With `W_K = W_Q = [[I, 0], [0, 0]]`, `W_V = [[0, 0], [W0, -I]]` and `P = (η/N) I` one layer is exactly one step of gradient
descent on `L(W) = 1/(2N) Σ ||W x_i - y_i||²` from W0: it replaces y_j by `y_j - ΔW x_j`, and L layers are L steps. The weights
are pure functions of the rates, compatible with `jit`, `grad` and `vmap`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.models.attention import AttentionLayer, head_maps, layers_from_maps
from jexplicit.runs.checks import checked, is_concrete
from jexplicit.runs.devices import full_precision

Rate = Any  # a number, or one per layer


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
        ValueError: sizes below 1; shapes that do not fit; GD++ with W0, as it changes x (a check of values, which tracers
            skip).

    Example:
        >>> layer = descent_layers(2, 4, 0.5)
        >>> layer.P[0, 0].diagonal().tolist(), layer.W_V[0, 0, 2].tolist()
        ([0.0, 0.0, 0.125], [0.0, 0.0, -1.0])

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

    Scores are `±ε x_iᵀ x_j`. For small scores `softmax(z)_i = (1 + z_i - mean z)/N + O(ε²)`, heads of opposite signs cancel all
    even powers, and the remainder is a step on inputs centred over the context:

        y_j <- y_j - (η/N) Σ_i y_i (x_i - x̄)ᵀ x_j + O(ε²)

    Args:
        dim: d; context: N; eta: η; outputs: m.
        sharpness: ε. A smaller ε makes the layer more nearly linear, and the cancelling values larger.

    Raises:
        ValueError: sizes below 1, or a sharpness that is not positive.

    Example:
        >>> softmax_descent_layer(3, 4, 0.5).P.shape
        (1, 2, 4, 4)

    Source: this package; von Oswald et al. 2023, App. A.9, observe it in two trained heads.
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


def diagonal_layers(rates: Float[Array, "L 4"] | Float[np.ndarray, "L 4"], dim: int, *, dtype: Any = None) -> AttentionLayer:
    """`icl.problems.mixed_noise.predict_diagonal` as attention of two heads; rates: w_xx, w_xy, w_yx, w_yy of each layer.

    Source: Vladymyrov et al. 2024, Sec. 3.
    """
    if rates.ndim != 2 or rates.shape[1] != 4 or dim < 1:
        raise ValueError(f"rates {rates.shape}, d = {dim}: wanted [layers, 4], and at least one input")
    dtype = dtype or jnp.zeros(()).dtype
    y = jnp.zeros((dim + 1, dim + 1), dtype).at[-1, -1].set(1)
    x = jnp.eye(dim + 1, dtype=dtype) - y
    xx, xy, yx, yy = jnp.asarray(rates, dtype).T[:, :, None, None]
    M = jnp.broadcast_to(jnp.stack([x, y]), (len(rates), 2, dim + 1, dim + 1))  # one head compares x, the other y
    return layers_from_maps(M, jnp.stack([xx * x[None] + yx * y[None], xy * x[None] + yy * y[None]], axis=1))


@functools.partial(jax.jit, static_argnames="context")
def head_layer(p: Float[Array, " D"], A: Float[Array, "D d"], context: int) -> AttentionLayer:
    """A layer of one head, `ŷ = pᵀ (1/N) Σ_i e_i e_iᵀ A x_q`.

    Args:
        p: [d + 1]; A: [d + 1, d].
        context: N.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> layer = head_layer(jnp.array([0.0, 1.0]), jnp.array([[0.5], [0.0]]), 4)  # y_q is half the mean of y x times x_q
        >>> layer.P.shape
        (1, 1, 2, 2)
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
        layer: a stack of one layer, of one output and any number of heads.
        context: N.

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

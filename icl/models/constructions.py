"""Attention weights that perform given steps of descent, nothing trained.

With `W_K = W_Q = [[I, 0], [0, 0]]`, `W_V = [[0, 0], [W0, -I]]` and `P = (η/N) I` one layer is exactly one step of gradient
descent on `L(W) = 1/(2N) Σ ||W x_i - y_i||²` from W0: it replaces y_j by `y_j - ΔW x_j`, and L layers are L steps.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.models.attention import Layer

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
) -> Layer:
    """A stack of layers that performs steps of GD, of preconditioned GD, or of GD++.

    Args:
        dim: d; context: N.
        eta: η of each step, one number or one per layer.
        gamma: γ of GD++, one number or one per layer: `x_j <- (I - γ XᵀX) x_j`. 0 is GD.
        layers: how many, where neither η nor γ says so.
        W0: [m, d] initial weights; default, zero.
        outputs: m, where W0 does not say so.
        preconditioner: [d, d] G: ΔW is multiplied by it from the right; default, the identity.
        dtype: default, JAX's float.

    Raises:
        ValueError: sizes below 1; shapes that do not fit; GD++ with W0, which x that change would turn away from.

    Example:
        >>> layer = descent_layers(2, 4, 0.5)
        >>> layer.P[0, 0].diagonal().tolist(), layer.W_V[0, 0, 2].tolist()
        ([0.0, 0.0, 0.125], [0.0, 0.0, -1.0])

    Source: von Oswald et al. 2023, Prop. 1 and App. A.1, A.10; P as their code has it (its x entries act on zeros under GD).
    """
    m = outputs if W0 is None else W0.shape[0]
    if min(dim, context, layers, m) < 1:
        raise ValueError(f"dim {dim}, context {context}, {layers} layers, {m} outputs: each is at least 1")
    etas, gammas = (np.atleast_1d(np.asarray(rate, np.float64)) for rate in (eta, gamma))
    L = max(layers, len(etas), len(gammas))
    if any(rates.ndim > 1 or len(rates) not in (1, L) for rates in (etas, gammas)):
        raise ValueError(f"eta {etas.shape}, gamma {gammas.shape} and {layers} layers: give one rate, or one for each layer")
    G = np.eye(dim) if preconditioner is None else np.asarray(preconditioner, np.float64)
    start = np.zeros((m, dim)) if W0 is None else np.asarray(W0, np.float64)
    if G.shape != (dim, dim) or start.shape != (m, dim):
        raise ValueError(f"preconditioner {G.shape}, W0 {start.shape}: wanted {(dim, dim)} and {(m, dim)}")
    if gammas.any() and start.any():
        raise ValueError("GD++ from W0 other than zero: its x change from layer to layer, and W0 x with them; start from zero")
    W_K, W_Q, W_V, P = (np.zeros((L, 1, dim + m, dim + m)) for _ in range(4))
    W_K[..., :dim, :dim] = np.eye(dim)
    W_Q[..., :dim, :dim] = G
    W_V[..., :dim, :dim] = np.eye(dim) if gammas.any() else 0
    W_V[..., dim:, :dim], W_V[..., dim:, dim:] = start, -np.eye(m)
    P[:, 0, range(dim), range(dim)] = -gammas[:, None] if gammas.any() else 0.0
    P[:, 0, range(dim, dim + m), range(dim, dim + m)] = etas[:, None] / context
    dtype = dtype or jnp.zeros(()).dtype
    return Layer(*(jnp.asarray(weights, dtype) for weights in (W_K, W_Q, W_V, P)))


def softmax_descent_layer(
    dim: int, context: int, eta: float, *, sharpness: float = 0.01, outputs: int = 1, dtype: Any = None
) -> Layer:
    """Two heads of softmax attention whose difference is linear, and together a step of gradient descent.

    Scores are `±ε x_iᵀ x_j`. As `softmax(z)_i = (1 + z_i - mean z)/N + O(ε²)` for small scores, heads of opposite signs cancel
    all even powers, and what remains is a step on inputs less their mean over the context:

        y_j <- y_j - (η/N) Σ_i y_i (x_i - x̄)ᵀ x_j + O(ε²)

    Args:
        dim: d; context: N; eta: η; outputs: m.
        sharpness: ε. The smaller, the more nearly linear, and the larger the values that cancel.
        dtype: default, JAX's float.

    Raises:
        ValueError: sizes below 1, or a sharpness that is not above 0.

    Example:
        >>> softmax_descent_layer(3, 4, 0.5).P.shape
        (1, 2, 4, 4)

    Source: this package; that two heads do it is observed in von Oswald et al. 2023, App. A.9.
    """
    if not sharpness > 0:
        raise ValueError(f"sharpness {sharpness}: it is above 0")
    one = descent_layers(dim, context, eta, outputs=outputs, dtype=dtype)
    scale = sharpness * (dim + outputs) ** 0.5  # scores are divided by the root of the key size
    signs = jnp.array([1.0, -1.0], one.P.dtype)[None, :, None, None]
    W_K, W_V = (jnp.repeat(weights, 2, axis=1) for weights in (one.W_K, one.W_V))
    return Layer(W_K, signs * scale * one.W_Q, W_V, signs * (context / (2 * sharpness)) * one.P)


def diagonal_layers(rates: Float[np.ndarray, "L 4"], dim: int, *, dtype: Any = None) -> Layer:
    """Layers of two heads that change x and y by four scalars each: `icl.problems.mixed_noise.diagonal_answer` as attention.

    Args:
        rates: w_xx, w_xy, w_yx, w_yy of each layer.
        dim: d.
        dtype: default, JAX's float.

    Raises:
        ValueError: rates that are not four per layer.

    Example:
        >>> diagonal_layers(np.zeros((3, 4)), 5).P.shape
        (3, 2, 6, 6)

    Source: Vladymyrov et al. 2024, Sec. 3.
    """
    if rates.ndim != 2 or rates.shape[1] != 4 or dim < 1:
        raise ValueError(f"rates {rates.shape}, d = {dim}: wanted [layers, 4], and at least one input")
    L, width = len(rates), dim + 1
    x, y = np.diag([1.0] * dim + [0.0]), np.diag([0.0] * dim + [1.0])
    xx, xy, yx, yy = np.asarray(rates, np.float64).T[:, :, None, None]
    M = np.broadcast_to(np.stack([x, y]), (L, 2, width, width))  # heads that compare x, and y
    R = np.stack([xx * x + yx * y, xy * x + yy * y], axis=1)
    eye = np.broadcast_to(np.eye(width), M.shape)
    dtype = dtype or jnp.zeros(()).dtype
    return Layer(*(jnp.asarray(weights, dtype) for weights in (eye, M, R, eye)))

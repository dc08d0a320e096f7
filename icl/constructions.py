"""Attention weights that perform given steps of descent, nothing trained.

With `W_K = W_Q = [[I, 0], [0, 0]]`, `W_V = [[0, 0], [W0, -I]]` and `P = (η/N) I` one layer is exactly one step of gradient
descent on `L(W) = 1/(2N) Σ ||W x_i - y_i||²` from W0: it replaces y_j by `y_j - ΔW x_j`, and L layers are L steps.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.attention import Layer

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

"""Newton's iteration for the inverse of XᵀX, and layers of GD++.

    M_0 = α A^p,    M_{k+1} = 2 M_k - M_k A M_k,    w = M_k Xᵀ y,    A = XᵀX

It squares `I - M A`, so that after k steps the error of the prediction is `wᵀ r(A) x_q` with

    r(λ) = (1 - α λ^(p + 1))^(2^k).

With α = 1/||A||^(p + 1) errors never grow, and every step fits eigenvalues half as large (p = 0). A layer of GD++ at
Chebyshev's rates fits eigenvalues a ninth as large, so it equals log₂ 9 = 3.17 steps from M_0 = α I, and 6.34 from M_0 = α A.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

START_POWERS = {"identity": 0, "A": 1}
"""Powers p of XᵀX in M_0: the simplest start of Schulz, and that of Fu et al. 2023."""


def newton_residual(values: Float[Array, "*T d"], steps: Any, *, power: int = 0) -> Float[Array, "*T d"]:
    """`r(λ) = (1 - (λ/λ_max)^(power + 1))^(2^steps)` of the eigenvalues of contexts.

    The power is taken in logarithms, for steps of any size. Source: Schulz 1933; Fu et al. 2023, Sec. 3.
    """
    if power not in START_POWERS.values():
        raise ValueError(f"power {power}: use 0 for M_0 = α I, 1 for M_0 = α A")
    share = values / jnp.max(values, axis=-1, keepdims=True)
    return jnp.exp(2.0**steps * jnp.log1p(-(share ** (power + 1))))


def equivalent_steps(losses: Float[np.ndarray, " k"], loss: float) -> float | None:
    """The fractional step at which losses reach a loss; None if never."""
    if loss < losses[-1]:
        return None
    logs = np.log(np.maximum(losses, np.finfo(float).tiny))
    return float(np.interp(-np.log(loss), -logs, np.arange(len(losses))))


def residual_loss(weights: Float[Array, "T d"], r: Float[Array, "T d"]) -> Float[Array, ""]:
    """The loss of a residual r: half the mean `sum_i w_i r(λ_i)²`.

    Args:
        weights: w of the eigenvalues of each context, `icl.solvers.spectrum.weighted_eigenvalues`.
        r: their residuals.
    """
    return jnp.mean(jnp.sum(weights * r**2, axis=1)) / 2


def steps_per_layer(layers: Sequence[int], steps: Sequence[float | None]) -> float:
    """Newton's steps per layer: the slope from two layers on.

    Args:
        layers: K.
        steps: that have the loss of K layers, see `equivalent_steps`.

    Example:
        >>> round(steps_per_layer([1, 2, 3, 4], [9.0, 6.0, 9.0, None]), 2)
        3.0
    """
    known = np.array([(K, k) for K, k in zip(layers, steps, strict=True) if K > 1 and k is not None])
    return float(np.polyfit(known[:, 0], known[:, 1], 1)[0]) if len(known) > 1 else np.nan

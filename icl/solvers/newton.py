"""Newton's iteration for the inverse of XᵀX, as a polynomial in its eigenvalues, and what it counts for beside layers of GD++.

    M_0 = α A^p,    M_{k+1} = 2 M_k - M_k A M_k,    w = M_k Xᵀ y,    A = XᵀX

It squares `I - M A`, so that after k steps the error of the prediction is `wᵀ r(A) x_q` with

    r(λ) = (1 - α λ^(p + 1))^(2^k).

With α = 1/||A||^(p + 1) errors never grow, and every step fits eigenvalues half as large (p = 0). A layer of GD++ at
Chebyshev's rates fits eigenvalues a ninth as large, so it counts for log₂ 9 = 3.17 steps from M_0 = α I, and for 6.34 from
M_0 = α A.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

START_POWERS = {"identity": 0, "A": 1}
"""Of XᵀX in M_0: Schulz's start in its simplest form, and that of Fu et al. 2023."""


def newton_residual(values: Float[Array, "*T d"], steps: Any, *, power: int = 0) -> Float[Array, "*T d"]:
    """`r(λ) = (1 - (λ/λ_max)^(power + 1))^(2^steps)` of the eigenvalues of contexts, each with its own largest.

    Args:
        values: [.., d] eigenvalues, of one context or many.
        steps: k, of any size: the power is taken in logarithms.
        power: p of `M_0 = α A^p`.

    Raises:
        ValueError: another power than 0 and 1.

    Example:
        >>> newton_residual(jnp.array([1.0, 2.0]), 1).tolist()
        [0.25, 0.0]

    Source: Schulz 1933; Fu et al. 2023, Sec. 3.
    """
    if power not in START_POWERS.values():
        raise ValueError(f"power {power}: use 0 for M_0 = α I, 1 for M_0 = α A")
    share = values / jnp.max(values, axis=-1, keepdims=True)
    return jnp.exp(2.0**steps * jnp.log1p(-(share ** (power + 1))))


def equivalent_steps(losses: Float[np.ndarray, " k"], loss: float) -> float | None:
    """Between which steps a loss lies, by linear interpolation of its logarithm; None below the last.

    Args:
        losses: after 0, 1, 2, .. steps, falling.
        loss: above 0.

    Example:
        >>> equivalent_steps(np.array([1.0, 0.1, 0.001]), 0.01)
        1.5
    """
    if loss < losses[-1]:
        return None
    logs = np.log(np.maximum(losses, np.finfo(float).tiny))
    return float(np.interp(-np.log(loss), -logs, np.arange(len(losses))))

"""The explicit solution of a softmax layer (paper, Eq. 3 and 5).

`U[j, i] = log F[j, i] - (K - 1)/K * log(sum_d F[d, i])`, where F = HᵀY are the layer's co-occurrences and K is its priming
number, the L1 norm of its inputs. This is naive Bayes in closed form: with K unit-norm features the logit of output i is
`log(f_i * prod_k P(x_k | i))` up to a constant, for `sum_d F[d, i] = K f_i`. At K = 1 it is the exact optimum, the
conditional relative frequencies; beyond, it is an approximation to the optimum of a convex problem.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def explicit_solution(F: Any, K: float) -> Any:
    """The decoder U of a softmax layer `softmax(H U)`, from co-occurrences alone.

    `U[j, i] = log F[j, i] - (K - 1)/K * log(sum_d F[d, i])`. A zero co-occurrence gives -inf: smooth the counts first
    (jexplicit.lm.smoothing) where such a pair may still be met.

    Args:
        F: [D, N] co-occurrences HᵀY, or a tuple of blocks of its rows [D_k, N] (one block per offset, for Cat features).
        K: priming number, the (mean) L1 norm of the features, at least 1.

    Returns:
        U, of the same shape and structure as F; logits are `H @ U`, in nats.

    Raises:
        ValueError: K < 1; a negative or NaN co-occurrence; an output that was never seen.

    Example:
        >>> U = explicit_solution(jnp.array([[3.0, 1.0], [1.0, 1.0]]), K=1)
        >>> jnp.exp(U).round(3).tolist()
        [[3.0, 1.0], [1.0, 1.0]]

    Source: paper, theorem of Sec. 2.1 with the sign of Eq. 3, 5 and 14.
    """
    if not 1 <= K < jnp.inf:
        raise ValueError(f"priming number K = {K}: it is the features' L1 norm and at least 1; rescale the features")
    column = column_sums(F)
    lowest = float(np.min([float(block.min()) for block in jax.tree.leaves(F)]))  # NaN where any block has one
    if not lowest >= 0 or not bool(jnp.isfinite(column).all()):
        wrong = lowest if not lowest >= 0 else float(column.max())
        raise ValueError(f"co-occurrences with the value {wrong}: they come from features >= 0 without NaN or infinity")
    if not float(column.min()) > 0:
        raise ValueError(
            f"output {int(column.argmin())} never occurs, so its column has no logarithm: "
            "drop the output or give it a count (jexplicit.lm.smoothing.with_unseen_outputs)"
        )
    return jax.tree.map(lambda block: _solve(block, column, K), F)


def column_sums(F: Any) -> Float[Array, " N"]:
    """`sum_d F[d, i]` over all rows, of all blocks; K times the target counts where every feature vector has norm K."""
    return functools.reduce(jnp.add, [jnp.sum(block, axis=0) for block in jax.tree.leaves(F)])


def priming_number(H: Float[Array, "M D"]) -> Float[Array, ""]:
    """`K = (1/M) sum_m ||H_m||_1`, the mean L1 norm, for features that are not unit-normalised.

    Example:
        >>> priming_number(jnp.array([[1.0, 1.0], [0.0, 4.0]])).item()
        3.0

    Source: paper, Sec. 2.1.
    """
    return jnp.abs(H).sum(axis=1).mean()


@jax.jit
def _solve(F: Float[Array, "D N"], column: Float[Array, " N"], K: Array) -> Float[Array, "D N"]:
    return jnp.log(F) - ((K - 1) / K * jnp.log(column))[None, :]

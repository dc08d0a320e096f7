"""Which priming number suits numeric features, and the solution as a separate intercept.

Features whose L1 norms differ have no norm K, and the paper takes their mean. All that K changes is a weight per output: with
log F frozen and `log w = -(K - 1)/K log(sum_d F[d, :])`,

    logits = H log F + ||H||_1 ⊗ log w,

so a scan over K takes one product H log F, and the best w is a convex problem in N numbers (paper, Sec. 3.2.1 and 5).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.solvers.explicit import column_sums
from jexplicit.solvers.iterative_scaling import Scaled, scaling_sweeps

_images_per_block = 512  # of which all K are scored at once


class Scan(NamedTuple):
    """Accuracy of the explicit solution, as a fraction, at each of many priming numbers."""

    K: Float[Array, " S"]
    accuracy: Float[Array, " S"]


def log_intercept(F: Float[Array, "D N"], K: float) -> Float[Array, " N"]:
    """`log w_i = -(K - 1)/K log(sum_d F[d, i])`, the explicit solution's own intercept.

    Example:
        >>> jnp.exp(log_intercept(jnp.array([[3.0, 1.0], [1.0, 0.0]]), 2.0)).round(4).tolist()
        [0.5, 1.0]

    Source: paper, Eq. 14.
    """
    return -(K - 1) / K * jnp.log(column_sums(F))


def intercept_logits(H: Float[Array, "M D"], F: Float[Array, "D N"], log_w: Float[Array, " N"]) -> Float[Array, "M N"]:
    """`H log F + ||H||_1 ⊗ log w`: the logits of `U = log F + 1 ⊗ log w`, in nats, with F frozen.

    Args:
        H: [M, D] features, at least 0.
        F: [D, N] co-occurrences, above 0.
        log_w: [N] logarithms of the weights.

    Example:
        >>> intercept_logits(jnp.array([[1.0, 1.0]]), jnp.ones((2, 3)), jnp.arange(3.0)).tolist()
        [[0.0, 2.0, 4.0]]

    Source: paper, Eq. 6 and Sec. 5.
    """
    return H @ jnp.log(F) + H.sum(axis=1)[:, None] * log_w[None, :]


def priming_scan(H: Float[Array, "M D"], F: Float[Array, "D N"], labels: Array, K: Float[Array, " S"]) -> Scan:
    """Accuracy of the explicit solution at every K, in one compiled call.

    `argmax_i (H log F)[m, i] - (K - 1)/K ||H_m||_1 log(sum_d F[d, i])`, vmapped over K; images go by in blocks, so memory does
    not grow with their number.

    Args:
        H: [M, D] features, at least 0.
        F: [D, N] co-occurrences of the training data, above 0.
        labels: [M] the right outputs.
        K: [S] priming numbers, at least 1.

    Raises:
        ValueError: K < 1, or a co-occurrence that is not above 0.

    Example:
        >>> F = jnp.array([[8.0, 1.0], [2.0, 1.0]])
        >>> priming_scan(jnp.eye(2), F, jnp.array([0, 1]), jnp.array([1.0, 4.0])).accuracy.tolist()
        [0.5, 1.0]

    Source: paper, Sec. 3.2.1 and Fig. 2 right.
    """
    if not 1 <= float(K.min()) <= float(K.max()) < jnp.inf:
        raise ValueError(f"priming numbers between {float(K.min())} and {float(K.max())}: they are finite and at least 1")
    if not float(F.min()) > 0:
        raise ValueError(
            f"a co-occurrence of {float(F.min())}: the scan takes logarithms; add 1 to the grey levels or smooth F"
        )
    K = K.astype(H.dtype)
    return Scan(K, _right(H, F, labels, K).astype(H.dtype) / len(H))


def fit_intercept(
    H: Float[Array, "M D"], Y: Float[Array, "M N"], F: Float[Array, "D N"], *, K: float, sweeps: int = 100
) -> Scaled:
    """The best intercept w for a frozen F: scaling sweeps on the one feature that w weighs, the norm of a row.

    Returns:
        `U = log F + 1 ⊗ log w`, an intercept of 0, and the loss of each sweep.

    Source: paper, Sec. 5; jexplicit.solvers.iterative_scaling.
    """
    n = H.sum(axis=1, keepdims=True)
    fitted = scaling_sweeps(n, Y, log_intercept(F, K)[None, :], offsets=H @ jnp.log(F), slack=False, sweeps=sweeps)
    return fitted._replace(U=jnp.log(F) + fitted.U)


@jax.jit
def _right(H: Array, F: Array, labels: Array, K: Array) -> Array:
    """[S] how many images the solution gets right at each K."""
    base, n, column = H @ jnp.log(F), H.sum(axis=1), jnp.log(column_sums(F))
    padding = -len(H) % _images_per_block
    blocks = [jnp.pad(x, ((0, padding),) + ((0, 0),) * (x.ndim - 1)) for x in (base, n, labels)]
    counted = jnp.pad(jnp.ones(len(H), bool), (0, padding))
    blocks = [x.reshape(-1, _images_per_block, *x.shape[1:]) for x in (*blocks, counted)]

    def of_block(total, block):
        base, n, labels, counted = block

        def at(k):
            guess = jnp.argmax(base - (k - 1) / k * n[:, None] * column[None, :], axis=1)
            return jnp.sum((guess == labels.astype(guess.dtype)) & counted, dtype=jnp.int32)

        return total + jax.vmap(at)(K), None

    return jax.lax.scan(of_block, jnp.zeros(len(K), jnp.int32), tuple(blocks))[0]

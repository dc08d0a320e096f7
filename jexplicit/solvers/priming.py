"""Choice of K for numeric features, and a separate intercept.

For features of different L1 norms the paper uses the mean norm as K. K changes only one weight per output: with log F frozen
and `log w = -(K - 1)/K log(sum_d F[d, :])`,

    logits = H log F + ||H||_1 ⊗ log w,

so a scan over K needs one product H log F, and the best w is a convex problem in N numbers (paper, Sec. 3.2.1 and 5).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_float, check_labels_of, checked, labels_are_fine
from jexplicit.runs.devices import full_precision
from jexplicit.solvers.explicit import column_sums
from jexplicit.solvers.frequency_exponent import DeltaFit, fit_delta
from jexplicit.solvers.sweeps import SoftmaxFit, iterative_scaling_sweeps

_rows_per_block = 512  # scored at all K in one call


class PrimingScan(NamedTuple):
    """Accuracy of the explicit solution, as a fraction, at each of S priming numbers."""

    K: Float[Array, " S"]
    accuracy: Float[Array, " S"]


def log_intercept(F: Float[Array, "D N"], K: float) -> Float[Array, " N"]:
    """`log w_i = -(K - 1)/K log(sum_d F[d, i])` (paper, Eq. 14)."""
    return -(K - 1) / K * jnp.log(column_sums(F))


def delta_intercept(F: Float[Array, "D N"], f: Float[Array, " N"], K: float, delta: float) -> Float[Array, " N"]:
    """`-(K - 1)/K log(sum_d F[d, i]) - δ/K log f_i`, f > 0."""
    return log_intercept(F, K) - delta / K * jnp.log(f)


@full_precision
def intercept_logits(H: Float[Array, "M D"], F: Float[Array, "D N"], log_w: Float[Array, " N"]) -> Float[Array, "M N"]:
    """Logits `H log F + ||H||_1 ⊗ log w` (paper, Eq. 6, Sec. 5)."""
    return H @ jnp.log(F) + H.sum(axis=1)[:, None] * log_w[None, :]


def _scan_is_fine(H: Array, F: Array, labels: Array, K: Array) -> Array:
    of_H, of_F, of_K = (((low <= x) & (x < jnp.inf)).all() for low, x in ((0, H), (0, F), (1, K)))
    return of_H & of_F & of_K & (F != 0).all() & labels_are_fine(labels, F.shape[1])


@checked(lambda H, F, labels, K: _check_scan(H, F, labels, K), fine=_scan_is_fine)
def priming_scan(H: Float[Array, "M D"], F: Float[Array, "D N"], labels: Array, K: Float[Array, " S"]) -> PrimingScan:
    """Accuracy of the explicit solution at every K, in one compiled call.

    `argmax_i (H log F)[m, i] - (K - 1)/K ||H_m||_1 log(sum_d F[d, i])`, vmapped over K. Rows are processed in blocks, of
    which only right or wrong is kept.

    Args:
        H: [M, D] features, at least 0.
        F: [D, N] co-occurrences of the training data, above 0.
        labels: [M] correct outputs.
        K: [S] priming numbers, at least 1.

    Raises:
        ValueError: no examples or no K; shapes that do not fit; K < 1; a feature below 0 or not finite; a co-occurrence that is
            not above 0 and finite; labels that are not M numbers 0 .. N - 1. Under jit and vmap only shapes are checked.

    Example:
        >>> F = jnp.array([[8.0, 1.0], [2.0, 1.0]])
        >>> priming_scan(jnp.eye(2), F, jnp.array([0, 1]), jnp.array([1.0, 4.0])).accuracy.tolist()
        [0.5, 1.0]

    Source: paper, Sec. 3.2.1 and Fig. 2 right.
    """
    H, F = as_float(H), as_float(F)
    if H.ndim != 2 or F.shape[:1] != H.shape[1:] or 0 in H.shape or not K.size:
        raise ValueError(f"H {H.shape}, F {F.shape}, K {K.shape}: expected [M, D], [D, N] and [S], none of them empty")
    check_labels_of(labels, (len(H), F.shape[1]))
    K = K.astype(H.dtype)
    return PrimingScan(K, _correct(H, F, labels, K).astype(H.dtype) / len(H))


def _check_scan(H: Array, F: Array, labels: Array, K: Array) -> None:
    check_labels_of(labels, (len(H), F.shape[1]))
    if not (float(H.min()) >= 0 and bool(jnp.isfinite(H).all())):
        raise ValueError(f"features between {float(H.min())} and {float(H.max())}: the scan needs finite features >= 0")
    if not 1 <= float(K.min()) <= float(K.max()) < jnp.inf:
        raise ValueError(f"priming numbers between {float(K.min())} and {float(K.max())}: use finite numbers of at least 1")
    if not 0 < float(F.min()) <= float(F.max()) < jnp.inf:
        raise ValueError(
            f"co-occurrences between {float(F.min())} and {float(F.max())}: the scan takes logarithms; add 1 to the grey "
            "levels or smooth F"
        )


@full_precision
def fit_intercept(
    H: Float[Array, "M D"], Y: Float[Array, "M N"], F: Float[Array, "D N"], *, K: float, sweeps: int = 100
) -> SoftmaxFit:
    """`U = log F + 1 ⊗ log w`, best w (paper, Sec. 5)."""
    n, log_F = H.sum(axis=1, keepdims=True), jnp.log(F)
    start = log_intercept(F, K)[None, :]
    fit = iterative_scaling_sweeps(n, Y, start, offsets=H @ log_F, slack=False, sweeps=sweeps)
    return fit._replace(U=log_F + fit.U)


def fit_image_delta(H: Float[Array, "M D"], labels: Array, F: Float[Array, "D N"], f: Float[Array, " N"], K: float) -> DeltaFit:
    """The δ of `w_i = f_i^((1 - K - δ)/K)` with the lowest loss."""
    log_F, log_w = jnp.log(F), log_intercept(F, K)
    u = H.sum(axis=1) / K
    return fit_delta(lambda h: h @ log_F + h.sum() * log_w, H, u, labels, jnp.log(f))


@jax.jit
@full_precision
def _correct(H: Array, F: Array, labels: Array, K: Array) -> Array:
    """[S] number of correctly classified rows at each K."""
    column, share = jnp.log(column_sums(F)), (K - 1) / K

    def correct(row: tuple[Array, Array, Array]) -> Array:
        base, n, label = row
        guess = jnp.argmax(base[None, :] - share[:, None] * n * column[None, :], axis=1)
        return guess == label.astype(guess.dtype)

    rows = H @ jnp.log(F), H.sum(axis=1), labels
    return jax.lax.map(correct, rows, batch_size=_rows_per_block).sum(axis=0, dtype=jnp.int32)

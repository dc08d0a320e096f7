"""Choice of K for numeric features, and the delta-corrected exponent of the output weights.

For features of different L1 norms the paper uses the mean norm as K. K changes only one weight per output: with log F frozen
and `log w = -(K - 1)/K log(sum_d F[d, :])`,

    logits = H log F + ||H||_1 ⊗ log w,

so a scan over K needs one product H log F (paper, Sec. 3.2.1 and 5).

The solution weights output i by `w_i = f_i^((1 - K)/K)`, which assumes that mean co-occurrences are proportional to counts. If
they grow slightly faster, the paper expects `w_i = f_i^((1 - K - δ)/K)` to be better for some small δ > 0 (Sec. 2.2). This
subtracts δ log f_i from the logits of an example of norm K, so that

    L(δ) = (1/M) sum_m log sum_i exp(z[m, i] - δ u_m l_i) - (z[m, y_m] - δ u_m l_{y_m}),    u_m = ||H_m||_1/K,   l_i = log f_i

is convex in this one number, and at its minimum the mean of u l under the model is that of the targets.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import scipy
from jaxtyping import Array, Float, Integer

from jexplicit.runs.checks import as_float, check_labels_of, checked, labels_are_fine
from jexplicit.runs.devices import full_precision
from jexplicit.solvers.explicit import column_sums

_block = 256  # examples whose logits are in memory at once
_largest = 64.0  # bound of |δ|


def fit_delta(
    logits: Callable[[Any], Float[Array, " N"]],
    X: Any,
    u: Float[Array, " M"],
    labels: Integer[Array, " M"],
    l: Float[Array, " N"],  # noqa: E741
) -> float:
    """The δ with the lowest loss on M examples (paper, Sec. 2.2).

    X: [M, ...] examples. u: [M] their norms, relative to K. labels: [M] correct outputs. l: [N] log f, up to a constant.
    """
    if not len(labels):
        raise ValueError("no examples to fit delta on: give at least one")

    @jax.jit
    @full_precision
    def slope(delta: Array) -> Array:
        def one(example: tuple[Any, Array, Array]) -> Array:
            x, u, y = example
            return u * (l[y] - jax.nn.softmax(logits(x) - delta * u * l) @ l)

        return jax.lax.map(one, (X, u, labels), batch_size=_block).mean()

    def slope_at(delta: float) -> float:
        return float(slope(jnp.asarray(delta, l.dtype)))

    if float(l.max()) == float(l.min()):  # equally frequent outputs: the loss does not depend on δ
        return 0.0
    width = 1.0
    while width <= _largest and slope_at(-width) * slope_at(width) >= 0:
        width *= 2
    if width > _largest:
        raise ValueError(f"no delta within ±{_largest:g} has the lowest loss: use more examples")
    return float(scipy.optimize.root_scalar(slope_at, bracket=(-width, width), xtol=1e-5).root)


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

    `argmax_i (H log F)[m, i] - (K - 1)/K ||H_m||_1 log(sum_d F[d, i])`, by blocks of rows.

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


def fit_image_delta(H: Float[Array, "M D"], labels: Array, F: Float[Array, "D N"], f: Float[Array, " N"], K: float) -> float:
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

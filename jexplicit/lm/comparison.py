"""Whether one language model is better than another on the same text: a paired comparison by document; and how sure a mean is.

With d_n the difference of two models' negative log-likelihoods of document n, and b_n its bytes, the difference per byte is the
ratio r = Σ d_n / Σ b_n, and its standard error that of a ratio of sums over independent documents,

    s² = n / (n - 1) · Σ (d_n - r b_n)² / (Σ b_n)².

Documents differ far more than models do, so s is much smaller than the standard error of either model's own mean. Neighbouring
lines are not quite independent; where they depend on one another, s is too small.

A model's own mean loss, L = Σ l_n / Σ m_n over documents of m_n predictions, has the standard error of its bootstrap: documents
are drawn with replacement, and both sums are taken again.

Source: Cochran 1977, Sampling Techniques, Sec. 2.11; Efron and Tibshirani 1993, An Introduction to the Bootstrap, Ch. 6.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer


class Difference(NamedTuple):
    """A mean difference per byte, and its standard error (NaN of a single document)."""

    mean: float
    standard_error: float


def paired_difference(
    nll: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"], sizes: Integer[np.ndarray, " n"]
) -> Difference:
    """How much more one model loses per byte than another, on the same documents.

    Args:
        nll: negative log-likelihood of each document, in nats or bits.
        other: the same of the other model, whatever its tokenizer.
        sizes: bytes of each document.

    Raises:
        ValueError: no documents, unequal numbers of them, a loss that is not finite, or a size that is not above 0.

    Example:
        >>> paired_difference(np.array([4.0, 6.0]), np.array([3.0, 6.0]), np.array([2, 2]))
        Difference(mean=0.25, standard_error=0.25)
    """
    if not nll.shape == other.shape == sizes.shape or not len(nll):
        raise ValueError(f"{nll.shape}, {other.shape} losses, {sizes.shape} sizes: give one of each for at least one document")
    if not (np.isfinite(nll) & np.isfinite(other) & (sizes > 0)).all():
        raise ValueError("losses that are not finite, or documents of 0 bytes: leave these documents out, of both models")
    nll, other = nll.astype(np.float64), other.astype(np.float64)
    d, n, in_all = nll - other, len(nll), sizes.sum()
    mean = d.sum() / in_all
    variance = n / (n - 1) * np.sum((d - mean * sizes) ** 2) / in_all**2 if n > 1 else np.nan
    return Difference(float(mean), float(np.sqrt(variance)))


def bootstrap_standard_error(
    nll: Float[np.ndarray, " n"], sizes: Integer[np.ndarray, " n"], *, draws: int = 1000, seed: int = 0
) -> float:
    """The standard error of the mean loss `Σ nll / Σ sizes` over documents, by resampling documents; NaN of a single one.

    Args:
        nll: negative log-likelihood of each document.
        sizes: predictions of each document.
        draws: how often as many documents are drawn with replacement. The result has a relative error of `1/sqrt(2 draws)`.
        seed: of the draws.

    Raises:
        ValueError: no documents, unequal numbers of them, a loss that is not finite, a size that is not above 0, or fewer than
            two draws.

    Example:
        >>> bootstrap_standard_error(np.array([2.0, 4.0, 6.0]), np.array([1, 2, 3]))  # every prediction loses 2
        0.0
    """
    if nll.shape != sizes.shape or not len(nll) or draws < 2:
        raise ValueError(f"{nll.shape} losses, {sizes.shape} sizes, {draws} draws: give one of each a document, and two draws")
    if not (np.isfinite(nll) & (sizes > 0)).all():
        raise ValueError("losses that are not finite, or documents without predictions: leave these documents out")
    if len(nll) == 1:
        return float("nan")
    rng, n, nll = np.random.default_rng(seed), len(nll), nll.astype(np.float64)
    drawn = (rng.integers(n, size=n) for _ in range(draws))
    return float(np.std([nll[m].sum() / sizes[m].sum() for m in drawn], ddof=1))

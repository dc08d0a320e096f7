"""Smoothing of count tables: the paper's pseudo-counts (Eq. 4), and Kneser-Ney rows.

The noise model replaces the one-hot embedding of token n by `E_n = q_n e_n + (1 - q_n) p`: E is never built.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from jexplicit.runs.devices import as_float, checked, full_precision


class Noise(NamedTuple):
    """Eq. 4: a token is seen rightly with probability q_n, else drawn from p.

    1 - q is kept beside q: in float32 it would be lost to rounding for the tokens seen most.
    """

    q: Float[np.ndarray, " N"]
    one_minus_q: Float[np.ndarray, " N"]
    p: Float[np.ndarray, " N"]


def noise_model(f: Integer[np.ndarray, " N"]) -> Noise:
    """One wrong observation per token type: `q_n = f_n / (f_n + 1)`.

    f: [N] how often each token of the stream was observed, `<pad>` (once per document) included.

    Example:
        >>> noise = noise_model(np.array([1, 3, 0]))
        >>> noise.q.tolist(), noise.p.tolist()
        ([0.5, 0.75, 0.0], [0.375, 0.125, 0.5])

    Source: paper, Sec. 3.1.1.
    """
    f = np.asarray(f, np.float64)
    if f.size < 2 or not f.min() >= 0 or not 0 < f.sum() < np.inf:
        raise ValueError(f"token counts {f}: the noise model needs at least two tokens and non-negative counts, not all zero")
    p = 1 - f / f.sum()
    return Noise(q=f / (f + 1), one_minus_q=1 / (f + 1), p=p / p.sum())


@jax.jit
@full_precision
def noisy_counts(C: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """Co-occurrences of the noisy embeddings, `F = Eᵀ C`, from counts [N, I].

    Example:
        >>> noisy_counts(jnp.array([[2.0], [4.0]]), noise_model(np.array([1, 3]))).tolist()
        [[2.5], [3.5]]

    Source: paper, Eq. 2 and 4.
    """
    C = as_float(C)
    q, one_minus_q, p = (jnp.asarray(v, C.dtype) for v in noise)
    return q[:, None] * C + p[:, None] * (one_minus_q @ C)[None, :]


@jax.jit
@full_precision
def noisy_rows(U: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """The rows that noisy embeddings select from a decoder, `Ũ = E U`.

    Example:
        >>> noisy_rows(jnp.array([[2.0], [4.0]]), noise_model(np.array([1, 3]))).tolist()
        [[2.25], [3.625]]

    Source: paper, Eq. 4.
    """
    U = as_float(U)
    q, one_minus_q, p = (jnp.asarray(v, U.dtype) for v in noise)
    return q[:, None] * U + one_minus_q[:, None] * (p @ U)[None, :]


@jax.jit
def with_unseen_outputs(C: Float[Array, "N I"], f: Float[Array, " I"]) -> Float[Array, "N I"]:
    """For outputs never seen the column of one observation, `sum_i C[j, i] / M`."""
    independent = jnp.where(f[None, :] == 0, 0, C).sum(axis=1) / f.sum()
    return jnp.where(f[None, :] == 0, independent[:, None], C)


def unigram(f: Any) -> Any:
    """Relative frequencies [I]; every output that was never seen has one pseudo-count."""
    f = f.__array_namespace__().maximum(f, 1)
    return f / f.sum()


def _refuse_counts(C: Any) -> None:
    raise ValueError("counts that are negative, fractions or not finite: Kneser-Ney discounts whole numbers of at least 0")


@checked(_refuse_counts, fine=lambda C: ((C >= 0) & (C % 1 == 0)).all())
def kneser_ney(C: Float[Array, "N I"]) -> Float[Array, "N I"]:
    """Kneser-Ney bigram: `P(i|j) = max(C[j, i] - D, 0) / C(j) + γ(j) P_cont(i)`.

    γ(j) is the mass that the discount D frees, `D n₊(j) / C(j)`. `P_cont(i)` is the share of different contexts of i (one for
    an unseen output), and the row of a context never seen. Rows [N, I] are positive and sum to 1. Counts that are no whole
    numbers of at least 0 are refused, but not under jit, vmap and grad.

    Example:
        >>> kneser_ney(jnp.array([[4.0, 0.0], [1.0, 1.0], [0.0, 2.0]])).tolist()
        [[0.9375, 0.0625], [0.5, 0.5], [0.125, 0.875]]

    Source: Kneser & Ney 1995; Chen & Goodman 1999, Eq. 12 and 17 (interpolated).
    """
    C = as_float(C)
    n = jnp.stack([jnp.sum(C == c).astype(C.dtype) for c in (1, 2, 3, 4)])
    P_cont, total = unigram(jnp.sum(C > 0, axis=0).astype(C.dtype)), C.sum(axis=1)
    taken = jnp.where(C > 0, discounts_of(n, modified=False)[0], 0)
    gamma = jnp.where(total > 0, taken.sum(axis=1) / jnp.maximum(total, 1), 1)
    return (C - taken) / jnp.maximum(total, 1)[:, None] + gamma[:, None] * P_cont[None, :]


def discounts_of(n: Any, *, modified: bool) -> Any:
    """Kneser-Ney discounts of counts 1, 2 and 3, from counts of counts.

    `D = n_1 / (n_1 + 2 n_2)` from each, or, modified, `D_c = c - (c + 1) D n_{c+1} / n_c` (Chen & Goodman 1999, Eq. 17, 26).
    A D_c without an estimate, or not above 0, is D. Without counts of 1 or 2, D is 1/2, and modified 1/2, 1 and 3/2 (KenLM).
    """
    xp, (n1, n2, n3, n4) = n.__array_namespace__(), n
    known = xp.minimum(n1, n2) > 0
    D = xp.where(known, n1 / xp.maximum(n1 + 2 * n2, 1), 0.5)
    one = xp.stack([D, D, D])
    if not modified:
        return one
    some = xp.minimum(xp.minimum(n1, n2), xp.minimum(n3, n4)) > 0
    three = xp.stack([c - (c + 1) * D * after / xp.maximum(n, 1) for c, n, after in ((1, n1, n2), (2, n2, n3), (3, n3, n4))])
    return xp.where(some & (three > 0), three, xp.where(known, one, xp.asarray([0.5, 1.0, 1.5], dtype=one.dtype)))


def counts_of_counts(counts: Any) -> Any:
    """How many counts are 1, 2, 3 and 4: NumPy and JAX alike."""
    xp = counts.__array_namespace__()
    return xp.stack([xp.count_nonzero(counts == c) for c in (1, 2, 3, 4)])

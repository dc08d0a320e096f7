"""What fills the zeros of a table of counts: the paper's noise model (Eq. 4), unseen outputs, Kneser-Ney rows.

The noise model replaces the one-hot embedding of token n by `E_n = q_n e_n + (1 - q_n) p`. As E is diagonal plus rank one,
`F = Eᵀ C` and the rows `E U` follow from the integer counts and vectors: E itself is never built.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer


class Noise(NamedTuple):
    """The noise model of Eq. 4: a token is seen rightly with probability q_n, else as a token drawn from p.

    1 - q is kept beside q: in float32 it would be lost to rounding for the tokens seen most.
    """

    q: Float[np.ndarray, " N"]
    one_minus_q: Float[np.ndarray, " N"]
    p: Float[np.ndarray, " N"]


def noise_model(f: Integer[np.ndarray, " N"]) -> Noise:
    """One wrong observation per token type: `q_n = f_n / (f_n + 1)`, `p = (1 - f/M) / ||1 - f/M||_1`.

    Args:
        f: [N] how often each token of the stream was observed, `<pad>` (once per document) included.

    Raises:
        ValueError: negative counts, or fewer than two tokens.

    Example:
        >>> noise = noise_model(np.array([1, 3, 0]))
        >>> noise.q.tolist(), noise.p.tolist()
        ([0.5, 0.75, 0.0], [0.375, 0.125, 0.5])

    Source: paper, Sec. 3.1.1.
    """
    if f.size < 2 or f.min() < 0 or f.sum() == 0:
        raise ValueError(f"token counts {f}: the noise model needs at least two tokens and non-negative counts, not all zero")
    f = f.astype(np.float64)
    p = 1 - f / f.sum()
    return Noise(q=f / (f + 1), one_minus_q=1 / (f + 1), p=p / p.sum())


def noisy_counts(C: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """Co-occurrences of the noisy embeddings, `F = Eᵀ C = diag(q) C + p ⊗ (1 - q)ᵀ C`.

    Args:
        C: [N, I] counts of input tokens (rows) with outputs, as floats.

    Source: paper, Eq. 2 and 4.
    """
    q, one_minus_q, p = (jnp.asarray(v, C.dtype) for v in noise)
    return q[:, None] * C + p[:, None] * (one_minus_q @ C)[None, :]


def noisy_rows(U: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """What a noisy embedding reads from a decoder, `Ũ = E U = diag(q) U + (1 - q) ⊗ pᵀU`.

    With the noise folded into its rows, a decoder is read by plain token ids.

    Source: paper, Eq. 4.
    """
    q, one_minus_q, p = (jnp.asarray(v, U.dtype) for v in noise)
    return q[:, None] * U + one_minus_q[:, None] * (p @ U)[None, :]


def with_unseen_outputs(C: Float[Array, "N I"], f: Float[Array, " I"]) -> Float[Array, "N I"]:
    """One pseudo-observation, independent of its context, for every output that was never seen.

    An output with `f_i = 0` has an all-zero column and so no logarithm. It gets the column that a single independent
    observation has on average, `C[j, i] = sum_i C[j, i] / M`, hence a probability near 1/M instead of zero.

    Args:
        C: [N, I] counts as floats.
        f: [I] how often each output was seen.
    """
    independent = C.sum(axis=1) / f.sum()
    return jnp.where(f[None, :] == 0, independent[:, None], C)


def unigram(f: Float[Array, " I"]) -> Float[Array, " I"]:
    """Relative frequencies, with one pseudo-count for every output that was never seen.

    Example:
        >>> unigram(jnp.array([3.0, 0.0])).tolist()
        [0.75, 0.25]
    """
    f = jnp.maximum(f, 1)
    return f / f.sum()


def kneser_ney(C: Float[Array, "N I"]) -> Float[Array, "N I"]:
    """Kneser-Ney bigram: `P(i|j) = (max(C - D, 0) + D n₊(j) P_cont(i)) / C(j)`, `D = n1 / (n1 + 2 n2)`.

    `P_cont(i)` is the share of different contexts i was seen in (one for an unseen output), `n₊(j)` the number of different
    outputs after j, n1 and n2 the number of pairs seen once and twice. A context never seen falls back to P_cont; a table
    without a pair seen once has no estimate of D, and 1/2 stands in.

    Args:
        C: [N, I] counts as floats.

    Returns:
        [N, I] rows that are positive and sum to 1.

    Source: Kneser & Ney 1995; Chen & Goodman 1999, Eq. 12 and 26 (interpolated).
    """
    n1, n2 = jnp.sum(C == 1), jnp.sum(C == 2)
    D = jnp.where(n1 > 0, n1 / (n1 + 2 * n2), 0.5).astype(C.dtype)
    P_cont = unigram(jnp.sum(C > 0, axis=0).astype(C.dtype))
    row = C.sum(axis=1)
    back_off = jnp.where(row > 0, D * jnp.sum(C > 0, axis=1).astype(C.dtype) / jnp.maximum(row, 1), 1)
    return jnp.maximum(C - D, 0) / jnp.maximum(row, 1)[:, None] + back_off[:, None] * P_cont[None, :]

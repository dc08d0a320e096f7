"""What fills the zeros of a table of counts: the paper's noise model (Eq. 4), and rows of probabilities that replace it.

The noise model replaces the one-hot embedding of token n by `E_n = q_n e_n + (1 - q_n) p`. As E is diagonal plus rank one,
`F = Eᵀ C` and the rows `E U` follow from the integer counts and vectors: E itself is never built.

Every smoothing of counts (`noise_rows`, `add_alpha`, `dirichlet`, `absolute_discount`, `kneser_ney`) gives rows that are
positive and sum to 1, an unseen token's row included, so that one can stand in for another.
"""

from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.lm.names import Smoothing as Smoothing
from jexplicit.runs.devices import full_precision

SMOOTHINGS: tuple[str, ...] = get_args(Smoothing)


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


@full_precision
def noisy_counts(C: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """Co-occurrences of the noisy embeddings, `F = Eᵀ C = diag(q) C + p ⊗ (1 - q)ᵀ C`.

    Args:
        C: [N, I] counts of input tokens (rows) with outputs, as floats.

    Example:
        >>> noisy_counts(jnp.array([[2.0], [4.0]]), noise_model(np.array([1, 3]))).tolist()
        [[2.5], [3.5]]

    Source: paper, Eq. 2 and 4.
    """
    q, one_minus_q, p = (jnp.asarray(v, C.dtype) for v in noise)
    return q[:, None] * C + p[:, None] * (one_minus_q @ C)[None, :]


@full_precision
def noisy_rows(U: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """What a noisy embedding reads from a decoder, `Ũ = E U = diag(q) U + (1 - q) ⊗ pᵀU`.

    With the noise folded into its rows, a decoder is read by plain token ids.

    Args:
        U: [N, I] decoder, in nats.
        noise: the noise model of the embeddings.

    Example:
        >>> noisy_rows(jnp.array([[2.0], [4.0]]), noise_model(np.array([1, 3]))).tolist()
        [[2.25], [3.625]]

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


def noise_rows(C: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """What the paper's noise model predicts after each token on its own: `softmax(E log(Eᵀ C))`, its solution at K = 1.

    Args:
        C: [N, I] counts as floats; an output that was never seen needs `with_unseen_outputs`.
        noise: the noise model of the embeddings.
    """
    return jax.nn.softmax(noisy_rows(jnp.log(noisy_counts(C, noise)), noise), axis=1)


def add_alpha(C: Float[Array, "N I"], alpha: float = 1.0) -> Float[Array, "N I"]:
    """Additive smoothing, `P(i|j) = (C[j, i] + alpha) / (C(j) + alpha I)`; Laplace's rule at alpha = 1.

    Example:
        >>> add_alpha(jnp.array([[2.0, 0.0]])).tolist()
        [[0.75, 0.25]]
    """
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha {alpha}: the pseudo-count of every pair is a number above 0")
    return (C + alpha) / (C.sum(axis=1, keepdims=True) + alpha * C.shape[1])


def dirichlet(C: Float[Array, "N I"], p: Float[Array, " I"] | None = None) -> Float[Array, "N I"]:
    """Dirichlet prior at the unigram, `P(i|j) = (C[j, i] + n₊(j) p_i) / (C(j) + n₊(j))`.

    The strength of the prior is n₊(j), the number of different outputs after j: the estimate of Witten and Bell, which has no
    constant to choose. A context never seen falls back to the unigram.

    Args:
        C: [N, I] counts as floats.
        p: [I] the unigram; default, that of C.

    Source: Witten & Bell 1991, method C; MacKay & Peto 1995.
    """
    p = unigram(C.sum(axis=0)) if p is None else p
    m = jnp.sum(C > 0, axis=1).astype(C.dtype)
    m = jnp.where(m > 0, m, 1)[:, None]
    return (C + m * p[None, :]) / (C.sum(axis=1, keepdims=True) + m)


def absolute_discount(C: Float[Array, "N I"]) -> Float[Array, "N I"]:
    """Absolute discounting towards the unigram: a row of `kneser_ney` with p in the place of P_cont.

    Source: Ney, Essen & Kneser 1994.
    """
    return discounted(C, discounts(C, modified=False), unigram(C.sum(axis=0)))


def kneser_ney(C: Float[Array, "N I"], *, modified: bool = False) -> Float[Array, "N I"]:
    """Kneser-Ney bigram: `P(i|j) = (C[j, i] - D) / C(j) + γ(j) P_cont(i)`, D and γ of `discounted`.

    `P_cont(i)` is the share of different contexts i was seen in (one for an unseen output).

    Args:
        C: [N, I] counts as floats.
        modified: three discounts instead of one.

    Returns:
        [N, I] rows that are positive and sum to 1.

    Example:
        >>> kneser_ney(jnp.array([[4.0, 0.0], [1.0, 1.0], [0.0, 2.0]])).tolist()
        [[0.9375, 0.0625], [0.5, 0.5], [0.125, 0.875]]

    Source: Kneser & Ney 1995; Chen & Goodman 1999, Eq. 12, 17 and 26 (interpolated).
    """
    return discounted(C, discounts(C, modified=modified), continuations(C))


def continuations(C: Float[Array, "N I"]) -> Float[Array, " I"]:
    """`P_cont`: the share of different contexts that each output was seen in, one for an unseen output.

    Source: Kneser & Ney 1995.
    """
    return unigram(jnp.sum(C > 0, axis=0).astype(C.dtype))


def discounts(C: Float[Array, "..."], *, modified: bool) -> Float[Array, "3"]:
    """What is taken from counts of 1, of 2, and of 3 and more.

    With n_c the number of counts equal to c and `D = n_1 / (n_1 + 2 n_2)`: D from each, or, modified,
    `D_c = c - (c + 1) D n_{c+1} / n_c`. Where counts of 1 to 4 are not all there, the modified discounts have no estimate and
    D stands in, also for a D_c that is not above 0 and would free nothing for what was never seen; 1/2 for a D without one.

    Example:
        >>> discounts(jnp.array([1.0, 1, 2, 3, 4]), modified=False).tolist()
        [0.5, 0.5, 0.5]

    Source: Chen & Goodman 1999, Eq. 17 and 26.
    """
    return discounts_of(jnp.stack([jnp.sum(C == c).astype(C.dtype) for c in (1, 2, 3, 4)]), modified=modified)


def discounts_of(n: Float[Array, "4"], *, modified: bool) -> Float[Array, "3"]:
    """The discounts of a table in which so many counts are 1, 2, 3 and 4."""
    n1, n2, n3, n4 = n
    D = jnp.where(n1 > 0, n1 / jnp.maximum(n1 + 2 * n2, 1), 0.5)
    one = jnp.stack([D, D, D])
    if not modified:
        return one
    some = jnp.minimum(jnp.minimum(n1, n2), jnp.minimum(n3, n4)) > 0
    three = jnp.stack([c - (c + 1) * D * after / jnp.maximum(n, 1) for c, n, after in ((1, n1, n2), (2, n2, n3), (3, n3, n4))])
    return jnp.where(some & (three > 0), three, one)


def counts_of_counts(counts: Integer[np.ndarray, " E"]) -> Int[np.ndarray, "4"]:
    """How many cells of a sparse table are 1, 2, 3 and 4."""
    return np.array([np.count_nonzero(counts == c) for c in (1, 2, 3, 4)])


def discounts_on_host(n: Int[np.ndarray, "4"], *, modified: bool) -> Float[np.ndarray, "3"]:
    """`discounts_of` counts of counts of sparse tables, whose sizes it is not compiled for."""
    return np.asarray(discounts_of(jnp.asarray(n, float), modified=modified), np.float64)


def discounted(C: Float[Array, "N I"], D: Float[Array, "3"], lower: Float[Array, " I"]) -> Float[Array, "N I"]:
    """`P(i|j) = (C[j, i] - D(C[j, i])) / C(j) + γ(j) lower_i`, where γ(j) is what the discounts have freed, `sum D / C(j)`.

    A context that was never seen falls back to `lower`.

    Args:
        C: [N, I] counts as floats.
        D: discounts of counts 1, 2 and 3 or more.
        lower: [I] a positive distribution over outputs.

    Source: Chen & Goodman 1999, Eq. 15 and 16.
    """
    D_0123 = jnp.concatenate([jnp.zeros(1, C.dtype), D.astype(C.dtype)])
    taken = D_0123[jnp.clip(C, 0, 3).astype(jnp.int32)]
    row = C.sum(axis=1)
    gamma = jnp.where(row > 0, taken.sum(axis=1) / jnp.maximum(row, 1), 1)
    return (C - taken) / jnp.maximum(row, 1)[:, None] + gamma[:, None] * lower[None, :]

"""The explicit language model and its baselines: counts -> tables, without another pass.

One counting pass gives the models of every radius up to the counted one, Sum and Cat. The noise is folded into the rows of
their tables.
"""

import functools
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array, issparse
from scipy.special import xlogy

from jexplicit.counts.pairs import Counts, counted_radius
from jexplicit.counts.tables import SparseCounts
from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import Constant, LanguageModel, token_model
from jexplicit.lm.core.names import Features
from jexplicit.lm.core.smoothing import noise_model, noisy_counts, noisy_rows, unigram, with_unseen_outputs
from jexplicit.lm.rows.sparse import smoothed_offset_rows, sparse_language_model
from jexplicit.solvers.explicit import explicit_solution

FLOOR = 1e-9  # the count in the place of 0, at the optimum


def explicit_language_model(
    counts: Counts | SparseCounts,
    *,
    features: Features,
    radius: int | None = None,
    eos: bool = False,
    noise: bool = True,
    dtype=jnp.float32,
) -> LanguageModel:
    """A single-layer language model in closed form: counts, F, U, then Ũ.

    Args:
        counts: C_1 .. C_K' of jexplicit.counts.pairs.count; of sparse ones the model is `sparse_language_model`.
        features: "sum" (one table for all offsets) or "cat" (a table per offset); the same at K = 1.
        noise: the paper's noise model; without it a pair that never occurred has the logit -inf.

    Raises:
        ValueError: a radius that was not counted; other features than the two.

    Example:
        >>> from jexplicit.counts.pairs import count
        >>> model = explicit_language_model(count(np.array([0, 1, 2, 1, 0]), radius=2, vocab_size=3), features="cat")
        >>> model.radius, model.vocab_size
        (2, 3)

    Source: paper, Eq. 3-5 and Sec. 3.1.
    """
    if counts and issparse(counts[0]):
        return sparse_language_model(cast(SparseCounts, counts), features=features, radius=radius, eos=eos, dtype=dtype)
    options: Any = {"features": features, "radius": radius, "eos": eos, "noise": noise, "dtype": dtype}
    tables, K = explicit_blocks(cast(Counts, counts), **options), len(counts) if radius is None else radius
    return token_model(tables * (K // len(tables)), features, eos)


def explicit_blocks(
    counts: Counts,
    *,
    features: Features,
    radius: int | None = None,
    eos: bool = False,
    noise: bool = True,
    dtype=jnp.float32,
    read: bool = True,
) -> tuple[Float[Array, "N N"], ...]:
    """The tables Ũ = E U: one for Sum, K for Cat.

    Arguments and errors are those of `explicit_language_model`; without `read` it is the decoder U below the noise. An output
    that is no target gets the column of one independent observation.

    Source: paper, Eq. 2-5.
    """
    if features not in ("sum", "cat"):
        raise ValueError(f"features {features!r}: choose sum (one table) or cat (a table per offset)")
    K = counted_radius(counts, radius)
    of_noise, f = noise_model(token_counts(counts)) if noise else None, target_counts(counts, eos=eos).astype(dtype)
    seen = (C.astype(dtype) if of_noise is None else noisy_counts(C.astype(dtype), of_noise) for C in counts[:K])
    F = [with_unseen_outputs(F_k, f) for F_k in seen]
    U = explicit_solution((functools.reduce(jnp.add, F),) if features == "sum" else tuple(F), K)
    return U if of_noise is None or not read else tuple(noisy_rows(block, of_noise) for block in U)


def unigram_model(counts: Counts | SparseCounts, *, eos: bool = False) -> LanguageModel:
    """The baseline without context: the log relative frequency of the targets.

    Raises:
        ValueError: no counts.

    Example:
        >>> from jexplicit.counts.pairs import count
        >>> model = unigram_model(count(np.array([0, 1, 2, 1, 0]), radius=1, vocab_size=3))
        >>> jnp.exp(model.logits(jnp.array([1]))).round(2).tolist()  # what was never a target counts once
        [0.25, 0.5, 0.25]
    """
    counted_radius(counts, 1)  # checks them
    row = Constant(jnp.log(unigram(jnp.asarray(target_counts(counts, eos=eos), jnp.float32))))
    return LanguageModel(row, "none", eos)


def bigram_model(counts: Counts | SparseCounts, *, eos: bool = False) -> LanguageModel:
    """The baseline with one token of context: interpolated Kneser-Ney.

    Raises:
        ValueError: no counts.

    Example:
        >>> from jexplicit.counts.pairs import count
        >>> import jax
        >>> model = bigram_model(count(np.array([0, 1, 2, 1, 0]), radius=1, vocab_size=3))
        >>> (8 * jax.nn.softmax(model.logits(jnp.array([1])))).round().tolist()  # after 1 came 2
        [1.0, 2.0, 5.0]
    """
    counted_radius(counts, 1)  # checks them
    return LanguageModel(smoothed_offset_rows((csr_array(counts[0]),), eos=eos), "none", eos)


def bigram_optimum(C: Int[np.ndarray, "N N"], *, floor: float = FLOOR) -> tuple[Float[np.ndarray, "N N"], float]:
    """The optimum at K = 1, conditional relative frequencies, and its loss.

        U[j, i] = log(C[j, i] / C(j)),        L = -(1/M) sum_{j,i} C[j, i] log(C[j, i] / C(j))

    Args:
        C: counts of targets after each token.
        floor: the count in the place of 0, as log 0 = -inf; the summed loss of the table is at most `N^2 * floor` above the
            infimum. A context that never occurs gets equal probabilities.

    Raises:
        ValueError: no position to predict.

    Example:
        >>> round(bigram_optimum(np.array([[3, 1], [0, 4]]))[1], 4)  # H(1/4) / 2
        0.2812

    Source: paper, Eq. 1 and 3, at K = 1.
    """
    n = C.sum(axis=1, dtype=np.int64)
    if not n.any():
        raise ValueError("no position to predict: the text has no tokens")
    loss = float(xlogy(n, n).sum() - sum(xlogy(row, row).sum() for row in C)) / int(n.sum())
    return np.log(np.maximum(C, floor)) - np.log(np.maximum(n, len(C) * floor))[:, None], loss


def token_counts(counts: Counts | SparseCounts) -> Int[np.ndarray, " N"]:
    """f: how often each token occurs in the stream, `<pad>` once per document."""
    return counts[0].sum(axis=0, dtype=np.int64)


def target_counts(counts: Counts | SparseCounts, *, eos: bool = False) -> Int[np.ndarray, " N"]:
    """f: the count of each target; `<pad>` only if document ends are predicted."""
    f = token_counts(counts)
    return f if eos else np.where(np.arange(len(f)) == PAD, 0, f)


def with_targets(C: np.ndarray, *, eos: bool = False) -> np.ndarray:
    """A table of counts without the column of document ends, unless they are predicted."""
    return C if eos else np.where(np.arange(C.shape[1]) == PAD, 0, C)

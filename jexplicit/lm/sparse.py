"""The explicit language model on sparse counts: nothing of size N x N is made.

With the paper's noise model a pair that was never seen has the rank-one co-occurrence `p_j b_i`, `b = (1 - q)ᵀ C`, and one
that was seen has `exp(δ[j, i])` times as much::

    δ[j, i] = log(1 + q_j C[j, i] / (p_j b_i))                        zero where C is
    U[j, i] = log p_j + log b_i + δ[j, i] - c_i,                      c = (K - 1)/K log colsum F
    Ũ[j, i] = (log b_i - c_i) + (1 - q_j) (pᵀδ)_i + q_j δ[j, i]      and a constant of the row, which no softmax sees

So the logits of a context are one vector of all outputs, K multiples of K others, and what is stored of K sparse rows.
Outputs that were never seen share one column of pseudo-observations and so one logit, a sum of K numbers.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from scipy.sparse import csr_array
from scipy.special import logsumexp

from jexplicit.counts.sparse import SparseCounts, merge_sparse
from jexplicit.data.contexts import PAD, check_token_ids
from jexplicit.lm.explicit import Features
from jexplicit.lm.smoothing import Noise, noise_model


class SparseTables(NamedTuple):
    """A language model whose logits are a vector plus sparse rows.

    After the context x, output i has the logit `base_i + sum_k (weight[x_k] slopes[k]_i + corrections[k][x_k, i])` where it was
    seen, and `sum_k unseen[k][x_k]` where it was not (`base_i = -inf`).

    base: [N] nats.
    weight: [N] 1 - q, how much of a token's row is that of other tokens.
    slopes: K vectors [N], `pᵀδ`; those of Sum are one vector K times, and so are its other fields.
    corrections: K sparse [N, N], `diag(q) δ`.
    unseen: K vectors [N].
    features: how the K tokens of a context are combined.
    eos: whether `<pad>` is predicted as the end of a document.
    """

    base: Float[np.ndarray, " N"]
    weight: Float[np.ndarray, " N"]
    slopes: tuple[Float[np.ndarray, " N"], ...]
    corrections: tuple[csr_array, ...]
    unseen: tuple[Float[np.ndarray, " N"], ...]
    features: Features
    eos: bool

    @property
    def radius(self) -> int:
        """K, the context length in tokens."""
        return len(self.slopes)

    @property
    def vocab_size(self) -> int:
        """N, the number of token ids."""
        return len(self.base)

    @property
    def ordered(self) -> bool:
        """Whether the order of a context's tokens matters."""
        return any(table is not self.corrections[0] for table in self.corrections)


def sparse_language_model(
    counts: SparseCounts, *, features: Features, radius: int | None = None, eos: bool = False, dtype: type = np.float32
) -> SparseTables:
    """The model of `explicit_language_model`, from sparse counts: its probabilities are the same to rounding.

    Args:
        counts: C_1 .. C_K' of jexplicit.counts.sparse.
        features: "sum" (one table for all offsets) or "cat" (a table per offset); the same at K = 1.
        radius: K <= K'; default, all the counted offsets.
        eos: predict `<pad>` at the end of a document.
        dtype: of the corrections; the vectors are float64.

    Raises:
        ValueError: a radius that was not counted; other features than the two.

    Example:
        >>> from jexplicit.counts.sparse import SparseCounter
        >>> counter = SparseCounter(1, 3)
        >>> counter.add(np.array([0, 1, 2, 1, 0]))
        >>> model = sparse_language_model(counter.tables(), features="cat", eos=True)
        >>> np.exp(next_log_probabilities(model, np.array([2]))).round(2).tolist()  # after 2 came 1
        [0.15, 0.71, 0.15]

    Source: paper, Eq. 3-5 and Sec. 3.1.
    """
    if features not in ("sum", "cat"):
        raise ValueError(f"features {features!r}: choose sum (one table) or cat (a table per offset)")
    K = len(counts) if radius is None else radius
    if not 1 <= K <= len(counts):
        raise ValueError(f"radius {radius} with counts of offsets 1..{len(counts)}: count with a radius of at least {radius}")
    noise = noise_model(_column_sums(counts[0]))
    targets = [C if eos else _without_column(C, PAD) for C in counts[:K]]
    blocks = targets if features == "cat" else [_merged_offsets(targets)]
    b = [noise.one_minus_q @ C for C in blocks]
    delta = [_log_ratio(C, noise, row) for C, row in zip(blocks, b, strict=True)]
    column = sum(_column_sums(C) for C in blocks)  # that of F too: Σp = 1, so noise moves nothing to another output
    with np.errstate(divide="ignore"):  # of outputs never seen: there the base is -inf
        log_b = [np.where(column > 0, np.log(row), -np.inf) for row in b]
    c = (K - 1) / K * np.log(np.maximum(column, 1))

    times = K if features == "sum" else 1
    return SparseTables(
        base=times * functools.reduce(np.add, log_b) - K * c,
        weight=noise.one_minus_q,
        slopes=tuple(noise.p @ table for table in delta) * times,
        corrections=tuple(_scaled_rows(table, noise.q, dtype) for table in delta) * times,
        unseen=_unseen_logits(blocks, int(_column_sums(targets[0]).sum()), noise, K) * times,
        features=features,
        eos=eos,
    )


def sparse_unigram_model(counts: SparseCounts, *, eos: bool = False) -> SparseTables:
    """The baseline without context: every row is the log relative frequency of the targets, one for an output never seen."""
    C = counts[0] if eos else _without_column(counts[0], PAD)
    return _bigram(_relative_frequencies(_column_sums(C)), csr_array(C.shape, dtype=np.float32), eos)


def sparse_bigram_model(counts: SparseCounts, *, eos: bool = False, dtype: type = np.float32) -> SparseTables:
    """The baseline with one token of context: interpolated Kneser-Ney, `P(i|j) = (C[j, i] - D) / C(j) + γ(j) P_cont(i)`.

    A row is `log P_cont`, and `log(1 + (C[j, i] - D) / (C(j) γ(j) P_cont(i)))` more where a pair was seen.

    Source: Kneser & Ney 1995; Chen & Goodman 1999, Eq. 12 and 17; jexplicit.lm.smoothing.kneser_ney.
    """
    C = counts[0] if eos else _without_column(counts[0], PAD)
    n1, n2 = (np.count_nonzero(C.data == c) for c in (1, 2))
    D = n1 / (n1 + 2 * n2) if n1 else 0.5
    P_cont = _relative_frequencies(np.bincount(C.indices, minlength=len(C.indptr) - 1))
    different = np.diff(C.indptr)
    freed = D * np.repeat(different, different)  # C(j) γ(j), in every cell of the row
    return _bigram(P_cont, _with_data(C, np.log1p((C.data - D) / (freed * P_cont[C.indices])).astype(dtype)), eos)


def next_log_probabilities(model: SparseTables, x: Integer[np.ndarray, " K"]) -> Float[np.ndarray, " N"]:
    """`log p(i | x)` of every output i after one context, nearest token first, in nats.

    Raises:
        ValueError: a context of another length than K, or a token id out of range.
    """
    if len(x) != model.radius:
        raise ValueError(f"a context of {len(x)} tokens for a model of radius {model.radius}: pass the {model.radius} nearest")
    check_token_ids(x, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    logits = model.base.copy()
    for j, slope, corrections in zip(x, model.slopes, model.corrections, strict=True):
        logits += model.weight[j] * slope
        row = slice(corrections.indptr[j], corrections.indptr[j + 1])
        logits[corrections.indices[row]] += corrections.data[row]
    logits[np.isneginf(model.base)] = sum(unseen[j] for j, unseen in zip(x, model.unseen, strict=True))
    return logits - logsumexp(logits)


def _log_ratio(C: csr_array, noise: Noise, b: np.ndarray) -> csr_array:
    """δ[j, i] = log(1 + q_j C[j, i] / (p_j b_i))."""
    ratio = _scaled_rows(C, noise.q / noise.p).data / b[C.indices]
    return _with_data(C, np.log1p(ratio))


def _unseen_logits(blocks: list[csr_array], M: int, noise: Noise, K: int) -> tuple[np.ndarray, ...]:
    """What a token adds to the logit of an output never seen, whose column of pseudo-observations is `C(j) / M`.

    Less the constant of the token's row that the other logits leave out, `q_j log p_j + (1 - q_j) Σ p log p`.
    """
    C = [block.sum(axis=1, dtype=np.float64) / M for block in blocks]
    F = [noise.q * column + noise.p * (noise.one_minus_q @ column) for column in C]
    c = (K - 1) / K * np.log(sum(column.sum() for column in F))
    ratio = [np.log(column / noise.p) for column in F]
    return tuple(noise.q * r + noise.one_minus_q * (noise.p @ r) - c for r in ratio)


def _bigram(P: np.ndarray, corrections: csr_array, eos: bool) -> SparseTables:
    """The model of radius 1 with one distribution for every token, but for corrections."""
    zeros = np.zeros(len(P))
    return SparseTables(np.log(P), zeros, (zeros,), (corrections,), (zeros,), "cat", eos)


def _relative_frequencies(f: np.ndarray) -> np.ndarray:
    """With one pseudo-count for every output that was never seen, as jexplicit.lm.smoothing.unigram."""
    f = np.maximum(f, 1)
    return f / f.sum()


def _merged_offsets(blocks: list[csr_array]) -> csr_array:
    return functools.reduce(merge_sparse, [(C,) for C in blocks])[0]


def _column_sums(C: csr_array) -> np.ndarray:
    return C.sum(axis=0, dtype=np.int64)


def _without_column(C: csr_array, i: int) -> csr_array:
    kept = C.indices != i
    indptr = np.concatenate([[0], np.cumsum(kept)])[C.indptr]
    return csr_array((C.data[kept], C.indices[kept], indptr.astype(C.indptr.dtype)), shape=C.shape)


def _with_data(C: csr_array, data: np.ndarray) -> csr_array:
    """A table whose cells are those of C, which it shares the places with."""
    return csr_array((data, C.indices, C.indptr), shape=C.shape)


def _scaled_rows(C: csr_array, q: np.ndarray, dtype: type = np.float64) -> csr_array:
    """`diag(q) C`."""
    return _with_data(C, (C.data * np.repeat(q, np.diff(C.indptr))).astype(dtype, copy=False))

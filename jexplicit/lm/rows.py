"""Kinds of rows, the parts of a language model: explicit, n-grams, a network's.

With the paper's noise model a pair that was never seen has the rank-one co-occurrence `p_j b_i`, `b = (1 - q)ᵀ C`, and one
that was seen has `exp(δ[j, i])` times as much::

    δ[j, i] = log(1 + q_j C[j, i] / (p_j b_i))                        zero where C is
    U[j, i] = log p_j + log b_i + δ[j, i] - c_i,                      c = (K - 1)/K log colsum F
    Ũ[j, i] = (log b_i - c_i) + (1 - q_j) (pᵀδ)_i + q_j δ[j, i]      and a constant of the row, which no softmax sees

So the logits of a context are one vector of all outputs, K multiples of K others, and what is stored of K sparse rows.
Outputs that were never seen share one column of pseudo-observations and so one logit, a sum of K numbers.

A context h of n-grams extends a shorter one h' by a token further back. Its smoothed row backs off to the row of h',

    P(i|h) = (C(h, i) - D) / C(h) + γ(h) P(i|h'),      row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),

An output that never followed h has row_h[i] = 0, hence a row holds only what was seen: the table is sparse, and a context that
never occurred adds nothing, which is an exact back-off. The sum of rows leaves out the weights γ alone,

    log p(i|x) = log P(i) + sum_n row_n(x)[i] + sum_n log γ(h_n)

with h_n the last n tokens of x: the partition function is their product. An entry is found by binary search, no row is read.
"""

import functools
import math
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer
from numpy.polynomial.chebyshev import chebpts1, chebval, chebvander
from scipy.sparse import csr_array, issparse
from scipy.special import xlogy

from jexplicit.counts.pairs import ContextLevel, Counts, count_contexts, counted_radius, quotient_and_rest, starts_of, sum_runs
from jexplicit.counts.tables import SparseCounts, merge_offsets
from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import (
    NO_TOKEN,
    Constant,
    Dense,
    LanguageModel,
    RowsByOffset,
    Sparse,
    SparseRows,
    TableRows,
    find_entry,
    pytree,
    static,
    token_model,
)
from jexplicit.lm.core.names import Features
from jexplicit.lm.core.smoothing import (
    Noise,
    counts_of_counts,
    discounts_of,
    noise_model,
    noisy_counts,
    noisy_rows,
    smoothed_excess,
    unigram,
    with_unseen_outputs,
)
from jexplicit.runs.devices import default_mesh, on_cpu
from jexplicit.solvers.explicit import explicit_solution


@pytree
class SparseTables(RowsByOffset):
    """Rows of single tokens: a base row, a multiple of another, a sparse row.

    After the token j k places back, the row of offset k adds `bases[t]_i + weight[j] slopes[t]_i + corrections[t][j, i]` to the
    logit of an output that was seen, t the table of the offset, and `unseen[t][j]` to that of one never seen (`bases = -inf`).

    bases: [N] for every different table, nats.
    corrections: sparse rows for every different table.
    table_of_offset: for k = 1 .. K, which of them.
    weight: [N] 1 - q, how much of a token's row is that of other tokens; None for none.
    slopes: [N] for every different table, `pᵀδ`; empty without a weight.
    unseen: [N] for every different table; empty where every output was seen.
    longest: entries of the longest row of each table.
    """

    bases: tuple[Any, ...]
    corrections: tuple[SparseRows, ...]
    table_of_offset: tuple[int, ...] = static()
    longest: tuple[int, ...] = static()
    weight: Any = None
    slopes: tuple[Any, ...] = ()
    unseen: tuple[Any, ...] = ()
    name: str = static("offset")

    @property
    def different(self) -> tuple[Sparse, ...]:
        N, none = len(self.bases[0]), (None,) * len(self.bases)
        parts = zip(self.corrections, self.longest, self.bases, self.slopes or none, self.unseen or none, strict=True)
        return tuple(Sparse(rows, N, longest, base, self.weight, *more) for rows, longest, base, *more in parts)

    def log_partition(self, X, *, mesh=None, block=None, progress=None):
        if self.radius == 1:  # no row is read
            return _log_Z_of_tokens(self)[X[:, 0]]
        mesh = mesh or default_mesh()
        if on_cpu(mesh):  # rows that stay in the cache
            block = block or max(1, (1 << 17) // self.vocab_size)
        return super().log_partition(X, mesh=mesh, block=block, progress=progress)

    def dense(self, t: int) -> np.ndarray:
        """The rows of one table with their zeros, [N, N], on the host."""
        rows = np.asarray(self.bases[t])[None] + self.table(t).toarray()
        if self.weight is not None:
            rows = rows + np.asarray(self.weight)[:, None] * np.asarray(self.slopes[t])[None]
        never = np.isneginf(np.asarray(self.bases[t]))[None]
        return np.where(never, np.asarray(self.unseen[t])[:, None], rows) if self.unseen else rows

    def table(self, t: int) -> csr_array:
        """The corrections of one table as a matrix, on the host."""
        start, outputs, values = (np.asarray(part) for part in self.corrections[t])
        return csr_array((values, outputs.astype(np.int32), start), shape=(len(self.bases[0]),) * 2)


def sparse_language_model(
    counts: SparseCounts, *, features: Features, radius: int | None = None, eos: bool = False, dtype: type = np.float32
) -> LanguageModel:
    """The model of `explicit_language_model`, from sparse counts: its probabilities are the same to rounding.

    Args:
        counts: C_1 .. C_K' of jexplicit.counts.pairs.
        features: "sum" (one table for all offsets) or "cat" (a table per offset); the same at K = 1.
        dtype: of the corrections; the vectors are float64.

    Raises:
        ValueError: a radius that was not counted; other features than the two.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jexplicit.counts.pairs import SparseCounter
        >>> counter = SparseCounter(1, 3)
        >>> counter.add(np.array([0, 1, 2, 1, 0]))
        >>> model = sparse_language_model(counter.tables(), features="cat", eos=True)
        >>> [f"{p:.2f}" for p in jax.nn.softmax(model.logits(jnp.array([2])))]  # after 2 came 1
        ['0.15', '0.71', '0.15']

    Source: paper, Eq. 3-5 and Sec. 3.1.
    """
    if features not in ("sum", "cat"):
        raise ValueError(f"features {features!r}: choose sum (one table) or cat (a table per offset)")
    K = counted_radius(counts, radius)
    noise = noise_model(counts[0].sum(axis=0))
    targets = [C if eos else _without_column(C, PAD) for C in counts[:K]]
    blocks = targets if features == "cat" else list(merge_offsets(tuple(targets)))
    b = [noise.one_minus_q @ C for C in blocks]
    delta = [_log_ratio(C, noise, row) for C, row in zip(blocks, b, strict=True)]
    column = sum(
        C.sum(axis=0, dtype=np.int64) for C in blocks
    )  # that of F too: Σp = 1, so noise moves nothing to another output
    with np.errstate(divide="ignore"):  # of outputs never seen: there the base is -inf
        log_b = [np.where(column > 0, np.log(row), -np.inf) for row in b]
    c = (K - 1) / K * np.log(np.maximum(column, 1))

    blocks_of_offset = (0,) * K if features == "sum" else tuple(range(K))
    corrections = [sparse_rows(_scaled_rows(table, noise.q, dtype)) for table in delta]
    seen_all = bool(np.all(column > 0))
    rows = SparseTables(
        bases=tuple(row - c for row in log_b),
        corrections=tuple(corrections),
        table_of_offset=blocks_of_offset,
        longest=tuple(table.longest for table in corrections),
        weight=noise.one_minus_q,
        slopes=tuple(noise.p @ table for table in delta),
        unseen=() if seen_all else _unseen_logits(blocks, int(targets[0].sum()), noise, K),
    )
    return LanguageModel(rows, features, eos)


def smoothed_offset_rows(
    counts: SparseCounts, *, eos: bool = False, smoothing: str = "kneser-ney", over: Any = None, dtype: type = np.float32
) -> SparseTables:
    """Smoothed rows of every offset, `log P_k(i|j)` up to a constant, sparse.

    With `P(i|j) ∝ b_i (1 + s_ji)` and s zero for pairs that never occur, the row is `log b` and the sparse `log(1 + s_j)`.

    Args:
        over: [N] what is subtracted from every row, `log p` for rows over the unigram.

    Raises:
        ValueError: another smoothing than these.

    Source: Kneser & Ney 1995; Chen & Goodman 1999, Eq. 12, 17 and 26.
    """
    targets = [C if eos else _without_column(C, PAD) for C in counts]
    lower, excess = zip(*(smoothed_excess(C, smoothing) for C in targets), strict=True)
    corrections = [sparse_rows(_with_data(C, np.log1p(s).astype(dtype))) for C, s in zip(targets, excess, strict=True)]
    bases = [(np.log(b) - (0 if over is None else over)).astype(dtype) for b in lower]
    return SparseTables(tuple(bases), tuple(corrections), tuple(range(len(bases))), tuple(rows.longest for rows in corrections))


def sparse_rows(C: Any) -> SparseRows:
    """A scipy.sparse.csr_array as sparse rows, with token ids of the smallest type."""
    outputs = C.indices.astype(np.uint16 if C.shape[1] < 1 << 16 else np.int32)
    return SparseRows(*jax.device_put((C.indptr.astype(np.int32), outputs, C.data)))  # jnp.asarray compiles for each shape


def _log_ratio(C: csr_array, noise: Noise, b: np.ndarray) -> csr_array:
    """δ[j, i] = log(1 + q_j C[j, i] / (p_j b_i))."""
    ratio = _scaled_rows(C, noise.q / noise.p).data / b[C.indices]
    return _with_data(C, np.log1p(ratio))


def _unseen_logits(blocks: list[csr_array], M: int, noise: Noise, K: int) -> tuple[np.ndarray, ...]:
    """The logit of an output that a token was never seen with.

    Less the constant of the token's row that the other logits leave out, `q_j log p_j + (1 - q_j) Σ p log p`.
    """
    C = [block.sum(axis=1, dtype=np.float64) / M for block in blocks]
    F = [noise.q * column + noise.p * (noise.one_minus_q @ column) for column in C]
    c = (K - 1) / K * np.log(sum(column.sum() for column in F))
    ratio = [np.log(column / noise.p) for column in F]
    return tuple(noise.q * r + noise.one_minus_q * (noise.p @ r) - c for r in ratio)


def _without_column(C: csr_array, i: int) -> csr_array:
    kept = C.indices != i
    indptr = np.concatenate([[0], np.cumsum(kept)])[C.indptr]
    return csr_array((C.data[kept], C.indices[kept], indptr.astype(C.indptr.dtype)), shape=C.shape)


def _with_data(C: csr_array, data: np.ndarray) -> csr_array:
    """A table with these values in the cells of C."""
    return csr_array((data, C.indices, C.indptr), shape=C.shape)


def _scaled_rows(C: csr_array, q: np.ndarray, dtype: type = np.float64) -> csr_array:
    """`diag(q) C`."""
    return _with_data(C, (C.data * np.repeat(q, np.diff(C.indptr))).astype(dtype, copy=False))


def _log_Z_of_tokens(rows: SparseTables) -> Float[np.ndarray, " N"]:
    """`log Z(j)` after every token j.

    `Z = sum_i exp(b_i + t_j s_i) + sum_{i after j} exp(b_i + t_j s_i) (exp(c_ji) - 1)`.
    """
    C, base, zeros = rows.table(0), np.asarray(rows.bases[0], np.float64), np.zeros(len(rows.bases[0]))
    t = zeros if rows.weight is None else np.asarray(rows.weight, np.float64)
    s, unseen = (np.asarray(part[0], np.float64) if part else zeros for part in (rows.slopes, rows.unseen))
    w, smooth = np.exp(base - base.max()), _chebyshev_coefficients(s)
    S = _with_data(C, np.exp(np.repeat(t, np.diff(C.indptr)) * s[C.indices]) * np.expm1(C.data.astype(np.float64)))
    Z = chebval(2 * t - 1, smooth @ w) + S @ w
    return base.max() + np.log(Z + np.count_nonzero(np.isneginf(base)) * np.exp(unseen - base.max()))


def _chebyshev_coefficients(slopes: np.ndarray) -> np.ndarray:
    """Coefficients [R, N] of `exp(t slopes_i)` over t in [0, 1], to float64 rounding.

    Interpolation in R nodes errs by at most `max |f^(R)| / (2^(R-1) R!) = 2 (d/4)^R exp(d) / R!`, with d the largest slope.

    Source: Trefethen 2013, Approximation Theory and Approximation Practice.
    """
    d, R = float(np.abs(slopes).max()), 1
    while 2 * (d / 4) ** R * math.exp(d) / math.factorial(R) > 2**-53:
        R += 1
    x = chebpts1(R)
    coefficients = 2 / R * chebvander(x, R - 1).T @ np.exp(np.outer((1 + x) / 2, slopes))
    coefficients[0] /= 2
    return coefficients


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


_pairs_per_block = 1 << 20


class Children(NamedTuple):
    """Contexts one token longer: `start[r] .. start[r+1] - 1` extend r."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


def context_numbers(children: tuple[Children, ...], context: Integer[Array, " K"]) -> Int[Array, " levels"]:
    """The number of the context at every level, -1 if absent: pure.

    Example:
        >>> ngrams = smoothed_ngrams(np.array([[1, 0], [2, 1]]), np.array([2, 1]), vocab_size=3)
        >>> [context_numbers(ngrams.children, jnp.array(x)).tolist() for x in ([2, 1], [2, 2])]
        [[2, 1], [2, -1]]
    """
    numbers = [context[0].astype(jnp.int32)]
    for n, level in enumerate(children, 1):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[n].astype(jnp.int32), most))
    return jnp.stack(numbers)


@pytree
class BackOffChain(TableRows):
    """The rows of an n-gram model, one for each length of context.

    base: [N] log of the distribution that the nearest token backs off to.
    children: how a context is found, level by level.
    levels: the sparse rows of contexts of one token, of two, ...; a context that never occurred has a row of zeros.
    log_gamma: [contexts] `log γ` of every level, 0 for a context that never occurred; empty where rows are of a file whose
        probabilities sum to 1 only to its digits: there the softmax normalises.
    longest: entries of the longest row of each level.
    """

    base: Any
    children: tuple[Children, ...]
    levels: tuple[SparseRows, ...]
    log_gamma: tuple[Any, ...] = ()
    longest: tuple[int, ...] = static(())

    names = property(lambda self: ("unigram", *(f"context {n}" for n in range(1, len(self.levels) + 1))))
    tokens = property(lambda self: (None, *range(1, len(self.levels) + 1)))
    radius = property(lambda self: max(1, len(self.levels)))
    vocab_size = property(lambda self: len(self.base))
    normalised = property(lambda self: bool(self.log_gamma))

    @property
    def row_tables(self):
        tables = (Sparse(rows, len(self.base), n) for rows, n in zip(self.levels, self.longest, strict=True))
        return (Dense(jnp.asarray(self.base)[None]), *tables)

    def index(self, context):
        none = jnp.zeros(1, jnp.int32)
        return jnp.concatenate([none, context_numbers(self.children, context)]) if self.levels else none

    def entry(self, context, output):
        """`log p(output | context)`; without weights γ the logit of the output."""
        log_p = super().entry(context, output)
        numbers = context_numbers(self.children, context) if self.log_gamma else ()
        for n, log_gamma in zip(numbers, self.log_gamma, strict=True):
            log_p += jnp.where(n >= 0, jnp.asarray(log_gamma)[jnp.maximum(n, 0)], 0)
        return log_p


def smoothed_ngrams(X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, vocab_size: int) -> BackOffChain:
    """The rows of the interpolated modified Kneser-Ney model up to K tokens.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Args:
        X: [M, K] contexts, nearest token first; four columns for the n-gram model of order 5.
        Y: [M] targets.
        vocab_size: N.

    Raises:
        ValueError: contexts of no token; no position; 2^31 different pairs.

    Example:
        >>> rows = smoothed_ngrams(np.array([[1], [1], [2]]), np.array([1, 2, 1]), vocab_size=3).levels[0]
        >>> rows.outputs.tolist(), rows.start.tolist()  # 1 is followed by 1 and 2; 2 by 1
        ([1, 2, 1], [0, 0, 2, 3])

    Source: Chen & Goodman 1999, Eq. 12 and 26 (interpolated) and Sec. 4; as additive logits, this project.
    """
    N, K = vocab_size, X.shape[1]
    if not K or not len(Y):
        raise ValueError(f"{len(Y)} positions with contexts of {K} tokens: give at least one of each")
    levels = count_contexts(X, Y, N)
    lower, small = unigram(np.bincount(levels[0].outputs, minlength=N)), np.uint16 if N <= 1 << 16 else np.int32
    children, rows, log_gammas, shorter, P = [], [], [], levels[0], lower
    while levels:
        level = levels.pop(0)  # and so no level is kept for longer than it is needed
        if (E := len(level.outputs)) >= 2**31:
            raise ValueError(f"{E} different pairs: rows of contexts number at most 2^31 - 1; fit on less text")
        if rows:
            numbers, ids = quotient_and_rest(level.contexts, N)
            children.append(Children(starts_of(numbers, len(shorter.contexts)), ids.astype(small)))
            level = level._replace(contexts=numbers.astype(np.int32))  # as the keys are large
        D = discounts_of(counts_of_counts(level.counts), modified=True)
        values, log_gamma = np.empty(E, np.float32), np.empty(len(level.contexts), np.float32)
        own_P = np.empty(E if levels else 0)  # nothing backs off to the longest contexts
        for c in _blocks(level):
            block, pairs = level.part(c), slice(level.start[c.start], level.start[c.stop])
            P_lower = _shorter_P(shorter, P, N, block) if rows else lower[block.outputs]
            kind, total = np.minimum(block.counts, 3), sum_runs(block.counts, block.start)
            freed = D @ [sum_runs(kind == n, block.start) for n in (1, 2, 3)]
            kept, backed_off = block.counts - D[kind - 1], block.of_pairs(freed) * P_lower
            values[pairs] = np.log1p(kept / backed_off)
            log_gamma[c] = np.log(np.where(total > 0, freed / np.maximum(total, 1), 1))
            if levels:
                own_P[pairs] = (kept + backed_off) / block.of_pairs(total)
        rows.append(SparseRows(level.start, level.outputs.astype(small), values))
        log_gammas.append(log_gamma)
        shorter, P = level, own_P
    arrays = np.log(lower).astype(np.float32), tuple(children), tuple(rows), tuple(log_gammas)
    longest = tuple(level.longest for level in rows)
    return BackOffChain(*jax.device_put(arrays, may_alias=True), longest)  # on a CPU nothing is copied


def _blocks(level: ContextLevel) -> list[slice]:
    """The contexts of a level in blocks whose pairs fit the caches."""
    later = np.searchsorted(level.start, np.arange(_pairs_per_block, level.start[-1], _pairs_per_block), "right") - 1
    cuts = np.unique([0, *later, len(level.contexts)]).tolist()
    return [slice(*block) for block in pairwise(cuts)]


def _shorter_P(shorter: ContextLevel, P: np.ndarray, N: int, block: ContextLevel) -> np.ndarray:
    """`P(i|h')` of every pair (h, i) of a block.

    The contexts h have the numbers of their h': each i after h occurred after h', too, and has a key there.
    """
    near = slice(block.contexts[0], block.contexts[-1] + 1)  # contexts stand in the order of those that they extend
    some = shorter.part(near)
    keys = some.keys(np.arange(len(some.contexts)), N)
    return P[shorter.start[near.start] :][np.searchsorted(keys, block.keys(block.contexts - near.start, N))]


_overlaps = 4  # windows that read a token of a text


@pytree
class NetworkRows:
    """The logits of a network of K tokens, as one row.

    variables: parameters and running statistics of the network.
    network: the flax module, [B, K] token ids -> [B, N] logits.
    context: K.
    """

    variables: Any
    network: Any = static()
    context: int = static()

    names = property(lambda self: ("network",))
    tokens = property(lambda self: (None,))
    radius = property(lambda self: self.context)
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history=None):
        from jexplicit.nn.networks import network_outputs

        return [network_outputs(self.network, self.variables, context[None])[0]]


@pytree
class SequenceRows:
    """The logits of a network with a context of W tokens, as one row.

    variables: parameters of the network.
    network: the flax module, [B, T] token ids -> [B, T, N] logits; causal, and a `<pad>` begins a document.
    """

    variables: Any
    network: Any = static()

    names = property(lambda self: ("network",))
    tokens = property(lambda self: (None,))
    radius = 1
    history = property(lambda self: self.network.window)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history: Any = None):
        """The row after a history, nearest token first, within its document."""
        from jexplicit.nn.networks import network_outputs

        W = self.history
        known = jnp.where(history == NO_TOKEN, PAD, history)
        n = jnp.argmax(jnp.append(known == PAD, True))  # tokens of the document
        tokens = jnp.roll(known[::-1], -jnp.maximum(W - n - 1, 0))  # the document comes first, from its `<pad>` on
        logits = network_outputs(self.network, self.variables, tokens[None])[0]
        return [logits[jnp.minimum(n, W - 1)]]

    def stream_log_probabilities(self, stream: Any, **options: Any) -> np.ndarray:
        """`log p` of every token of a stream but its first, by long windows."""
        from jexplicit.nn.sequences import stream_log_probabilities

        return stream_log_probabilities(self.network, self.variables, stream, **self._windows, **options)

    def stream_distributions(self, stream: Any, places: np.ndarray, **options: Any) -> np.ndarray:
        """`log p` of all tokens at some places, from the same windows."""
        from jexplicit.nn.sequences import stream_distributions

        return stream_distributions(self.network, self.variables, stream, places, **self._windows, **options)

    _windows = property(lambda self: {"window": self.history, "stride": -(-self.history // _overlaps)})


def network_model(network: Any, variables: Any, *, context: int = 0, eos: bool = True) -> LanguageModel:
    """The language model of a network.

    Args:
        network: a flax module, [B, K] token ids -> [B, N] logits; or [B, T] -> [B, T, N], with a `window`.
        context: K, the tokens that it reads, of a network of K tokens.
        eos: whether it predicts the end of a document.

    Example:
        >>> import jax
        >>> from jexplicit.nn.networks import MLPLanguageModel, init_variables
        >>> network = MLPLanguageModel(vocab_size=4, embedding=2, hidden=(3,))
        >>> model = network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 2), int)), context=2)
        >>> model.logits(jnp.array([1, 3])).shape
        (4,)
    """
    sequence = hasattr(network, "window")
    kind = SequenceRows(variables, network) if sequence else NetworkRows(variables, network, context)
    return LanguageModel(kind, "none", eos)

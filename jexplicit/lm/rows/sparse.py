"""The explicit language model on sparse counts, without tables of N x N.

With the paper's noise model a pair that was never seen has the rank-one co-occurrence `p_j b_i`, `b = (1 - q)ᵀ C`, and one
that was seen has `exp(δ[j, i])` times as much::

    δ[j, i] = log(1 + q_j C[j, i] / (p_j b_i))                        zero where C is
    U[j, i] = log p_j + log b_i + δ[j, i] - c_i,                      c = (K - 1)/K log colsum F
    Ũ[j, i] = (log b_i - c_i) + (1 - q_j) (pᵀδ)_i + q_j δ[j, i]      and a constant of the row, which no softmax sees

So the logits of a context are one vector of all outputs, K multiples of K others, and what is stored of K sparse rows.
Outputs that were never seen share one column of pseudo-observations and so one logit, a sum of K numbers.
"""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from numpy.polynomial.chebyshev import chebpts1, chebval, chebvander
from scipy.sparse import csr_array

from jexplicit.counts.pairs import counted_radius
from jexplicit.counts.tables import SparseCounts, merge_offsets
from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import LanguageModel, RowsByOffset
from jexplicit.lm.core.names import Features
from jexplicit.lm.core.smoothing import Noise, noise_model, smoothed_excess
from jexplicit.lm.core.tables import Sparse, SparseRows, pytree, static
from jexplicit.runs.devices import default_mesh, on_cpu


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

"""The exact loss of a sparse model, at a cost per context that is that of its sparse rows.

The exponentials of a context's logits are a product over its tokens. Each factor is a vector that only the token's weight
`t = 1 - q` chooses, and on the row's cells a sparse vector more::

    Z(x) = sum_i w_i prod_k E_k[x_k, i],      w = exp(base),      E_k[j] = exp(t_j slopes_k) + S_k[j],
    S_k[j] = exp(t_j slopes_k) (exp(corrections_k[j]) - 1)

The contexts that share their first K - 1 tokens share the product v of these. What is left is `v · exp(t slopes_K)`, a smooth
function of t in [0, 1] that is known from its values at a few Chebyshev nodes, and the product of v with a sparse row.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from numpy.polynomial.chebyshev import chebpts1, chebval, chebvander
from scipy.sparse import csr_array

_product_bytes = 1 << 23  # of the products v that are held at once: more would leave the cache
_cells_at_once = 1 << 23  # of sparse rows, copied together
_exponent_range = 700  # nats


class _Factors(NamedTuple):
    """Rows by offset, as host arrays: base [N], weight [N], slopes K x [N], corrections K x [N, N], unseen K x [N]."""

    base: np.ndarray
    weight: np.ndarray
    slopes: list[np.ndarray]
    corrections: list[csr_array]
    unseen: list[np.ndarray]


def _factors(rows: Any) -> _Factors:
    zeros, index = np.zeros(rows.vocab_size), rows.table_of_offset

    def by_offset(vectors: Any) -> list[np.ndarray]:
        return [np.asarray(vectors[t], np.float64) if vectors else zeros for t in index]

    tables = {t: rows.table(t) for t in set(index)}
    weight = zeros if rows.weight is None else np.asarray(rows.weight, np.float64)
    base = functools.reduce(np.add, by_offset(rows.bases))
    return _Factors(base, weight, by_offset(rows.slopes), [tables[t] for t in index], by_offset(rows.unseen))


def sparse_log_partition(
    rows: Any, X: Integer[np.ndarray, "M K"], *, progress: Callable[[int, int], None] | None = None
) -> Float[np.ndarray, " M"]:
    """`log Z(x)` of many contexts, in nats, without the constants of the rows that the logits leave out.

    Contexts that come sorted share the most products.

    Args:
        rows: `SparseTables` of jexplicit.lm.rows.sparse.
        X: [M, K] contexts, nearest token first.
        progress: called with (contexts done, contexts in all).

    Raises:
        ValueError: logits that differ by more than the range of float64 allows.
    """
    N, model, X = rows.vocab_size, _factors(rows), X.astype(np.int64)  # j + 1 of a small unsigned type would wrap
    highest, seen = float(model.base.max()), np.isfinite(model.base)
    spread = highest - float(model.base[seen].min()) + sum(float(C.data.max(initial=0)) for C in model.corrections)
    if spread > _exponent_range:
        raise ValueError(
            f"logits that spread over {spread:.0f} nats, and float64 holds exp({_exponent_range}): use a smaller radius"
        )
    w = np.exp(model.base - highest)
    smooth = _chebyshev_coefficients(model.slopes[-1])
    S = _sparse_factors(model)

    first = np.flatnonzero(np.concatenate([[True], (X[1:, :-1] != X[:-1, :-1]).any(axis=1)]))  # of contexts that share v
    last = np.append(first[1:], len(X))
    Z = np.zeros(len(X))
    several = max(_product_bytes // (8 * N), 1)
    products = np.empty((several, N))
    for g in range(0, len(first), several):
        start, stop = first[g], last[g : g + several][-1]
        prefixes = X[first[g : g + several], :-1]
        v = products[: len(prefixes)]
        for row, x in zip(v, prefixes, strict=True):
            row[:] = _product(model, w, x)
        which = np.repeat(np.arange(len(v)), last[g : g + several] - first[g : g + several])
        t = model.weight[X[start:stop, -1]]
        Z[start:stop] = chebval(2 * t - 1, (v @ smooth.T)[which].T, tensor=False)
        for row, m, after in zip(v, first[g:], last[g : g + several], strict=False):
            Z[m:after] += _row_products(S, X[m:after, -1], row)
        if progress:
            progress(int(stop), len(X))
    unseen = functools.reduce(np.add, [column[x] for column, x in zip(model.unseen, X.T, strict=True)])
    return highest + np.log(Z + np.count_nonzero(~seen) * np.exp(unseen - highest))


def sparse_target_logits(rows: Any, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """The logit of every position's own target, in nats, without the constants of the rows."""
    model = _factors(rows)
    logits, unseen = model.base[Y], np.zeros(len(Y))
    for k, j in enumerate(X.T.astype(np.int64)):
        logits += model.weight[j] * model.slopes[k][Y] + model.corrections[k][j, Y]
        unseen += model.unseen[k][j]
    return np.where(np.isneginf(model.base[Y]), unseen, logits)


def _product(model: _Factors, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """`w_i prod_k E_k[x_k, i]` over the tokens of x."""
    if not len(x):
        return w
    v = w * np.exp(functools.reduce(np.add, [model.weight[j] * model.slopes[k] for k, j in enumerate(x)]))
    for j, table in zip(x, model.corrections, strict=False):
        row = slice(table.indptr[j], table.indptr[j + 1])
        v[table.indices[row]] *= np.exp(table.data[row].astype(np.float64))
    return v


def _sparse_factors(model: _Factors) -> csr_array:
    """S_K, on the cells of the last offset's corrections."""
    table = model.corrections[-1]
    t = np.repeat(model.weight, np.diff(table.indptr))
    data = np.exp(t * model.slopes[-1][table.indices]) * np.expm1(table.data.astype(np.float64))
    return csr_array((data, table.indices, table.indptr), shape=table.shape)


def _row_products(S: csr_array, rows: np.ndarray, v: np.ndarray) -> np.ndarray:
    """`S[rows] @ v`, for few rows or many."""
    first = S.indptr[rows].astype(np.int64)
    lengths = S.indptr[rows + 1] - first
    ends = np.cumsum(lengths)
    if ends[-1] > _cells_at_once:
        return (S @ v)[rows]
    cells = np.arange(ends[-1]) + np.repeat(first - (ends - lengths), lengths)
    which = np.repeat(np.arange(len(rows)), lengths)
    return np.bincount(which, S.data[cells] * v[S.indices[cells]], minlength=len(rows))


def _chebyshev_coefficients(slopes: np.ndarray) -> np.ndarray:
    """Coefficients [R, N] of `exp(t slopes_i)` over t in [0, 1], so many that they leave out less than float64 rounds.

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

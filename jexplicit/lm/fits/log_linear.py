"""Language models of single tokens that generalise: smoothed rows instead of noise, and an exponent per offset.

The logits stay sums over the context's tokens,

    logits = mu log p + sum_k lambda_k a_k(x_k) log(P_k(.|x_k) / p),

with P_k the smoothed rows of the counts at offset k, and mu, lambda_k the only numbers that are fitted (K + 1, on held-out
positions, a convex problem). Cat has a table per offset and a = 1. Sum shares one table, and its *attention* a_k(x) says how
much of a token's information reaches an offset, in closed form from the same counts.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer
from scipy.sparse import csr_array

from jexplicit.counts.dense import Counts, counted_radius
from jexplicit.lm.core.model import Features, LanguageModel, token_model
from jexplicit.lm.core.smoothing import Smoothing, row_smoothing, unigram
from jexplicit.lm.rows.explicit import target_counts, with_targets
from jexplicit.lm.rows.sparse import smoothed_offset_rows, sparse_rows
from jexplicit.lm.tables.placing import Positions
from jexplicit.lm.tables.storage import Sparse, dense_rows

_attention_power = 4  # of the information, in the weights of Sum's shared table: lower ones blur the nearest offset


class OffsetRows(NamedTuple):
    """What a log-linear model is made of: `log p` [1, N] and the tables [N, N] that the exponents weigh, nearest first.

    attention: [K, N] a_k of Sum's shared table, which is in the tables; None for tables of their own.
    """

    log_p: Float[Array, "1 N"]
    tables: tuple[Float[Array, "N N"], ...]
    features: Features
    eos: bool
    attention: Float[Array, "K N"] | None = None

    @property
    def of_features(self) -> tuple[Array, ...]:
        """The table of each feature of a log-linear model."""
        return (self.log_p, *self.tables)


def offset_rows(
    counts: Counts, *, features: Features, radius: int | None = None, eos: bool = False, smoothing: Smoothing = "kneser-ney"
) -> OffsetRows:
    """Smoothed rows of every offset over the unigram, `log(P_k(i|j) / p_i)`; for Sum, of one shared table with attention.

    Sum's table mixes the offsets' rows, `P(i|j) = sum_k w_k(j) P_k(i|j)` with `w_k(j) ∝ I_k(j)^4`, where
    `I_k(j) = KL(P_k(.|j) || p)` is what token j says about the token k places on; an offset reads it with the attention
    `a_k(j) = I_k(j) / I_1(j)`.

    Args:
        counts: C_1 .. C_K' of jexplicit.counts.dense.count.
        features: "sum" or "cat".
        radius: K <= K'; default, all the counted offsets.
        eos: predict the end of a document too.
        smoothing: of the rows; see jexplicit.lm.core.smoothing.

    Raises:
        ValueError: a radius that was not counted; another smoothing than these.

    Example:
        >>> from jexplicit import count
        >>> rows = offset_rows(count(np.array([0, 1, 2, 1, 1, 0]), radius=2, vocab_size=3), features="cat")
        >>> len(rows.tables), rows.tables[0].shape
        (2, (3, 3))
    """
    if features not in ("sum", "cat"):
        raise ValueError(f"features {features!r}: choose sum (one table) or cat (a table per offset)")
    K = counted_radius(counts, radius)
    log_p = jnp.log(unigram(jnp.asarray(target_counts(counts, eos=eos), jnp.float32)))[None]
    sparse = smoothed_offset_rows(tuple(map(csr_array, counts[:K])), eos=eos, smoothing=smoothing, over=np.asarray(log_p[0]))
    tables = tuple(_over_unigram(table, log_p) for table in sparse.row_tables)
    if features == "cat" or K == 1:
        return OffsetRows(log_p, tables, features, eos)
    attention, shared = _shared(tables, log_p)
    return OffsetRows(log_p, shared, features, eos, attention)


def offset_positions(rows: OffsetRows, X: Integer[np.ndarray, "M K"]) -> Positions:
    """What a log-linear model reads: log p, then the row of each context token; every table has its own exponent."""
    ids = np.concatenate([np.zeros((len(X), 1), np.int64), X], axis=1)
    return Positions(ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape))


def leave_one_out_rows(
    counts: Counts,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    eos: bool = False,
    smoothing: Smoothing = "kneser-ney",
) -> OffsetRows:
    """Cat's rows as they would be without position m itself, for positions of the counted text: tables [M, N] of a row each.

    Each pair (x_k, y) is seen once less. Discounts and the distribution that rows fall back to stay those of the whole text.
    With `leave_one_out_positions` for positions, exponents can be fitted on the counted text.

    Args:
        counts: C_1 .. C_K' of the text, K' >= K.
        X: [M, K] contexts of some of its positions.
        Y: [M] their targets.
        eos: predict the end of a document too.
        smoothing: of the rows; not "noise", which mixes rows.

    Raises:
        ValueError: a pair or an offset that was not counted; another smoothing than these.

    Example:
        >>> from jexplicit import count
        >>> counts = count(np.array([0, 1, 2, 1, 2, 2, 0]), radius=1, vocab_size=3)
        >>> rows = leave_one_out_rows(counts, np.array([[1]]), np.array([2]), smoothing="add-alpha")
        >>> np.round(np.exp(rows.tables[0][0] + rows.log_p[0]), 2)  # token 1 was followed by 2 twice: once now
        array([0.25, 0.25, 0.5 ], dtype=float32)

    Source: Ney, Essen & Kneser 1994 for leaving one out.
    """
    K, own = counted_radius(counts, X.shape[1]), np.arange(len(Y))
    log_p = jnp.log(unigram(jnp.asarray(target_counts(counts, eos=eos), jnp.float32)))[None]
    tables = []
    for C_k, x in zip(counts[:K], X.T, strict=True):
        C: Any = csr_array(with_targets(C_k, eos=eos))
        smooth = row_smoothing(C, smoothing)
        left: Any = C[x] - csr_array((np.ones(len(Y), np.int64), (own, Y)), shape=(len(Y), C.shape[1]))
        if left.data.min(initial=0) < 0:
            raise ValueError("a position that was not counted: leave out positions of the counted text itself")
        left.eliminate_zeros()
        values = np.log1p(smooth.excess(left)).astype(np.float32)
        rows = sparse_rows(csr_array((values, left.indices, left.indptr), shape=left.shape))
        base = np.log(smooth.lower) - np.asarray(log_p[0])
        tables.append(_over_unigram(Sparse(rows, C.shape[1], rows.longest, base), log_p))
    return OffsetRows(log_p, tuple(tables), "cat", eos)


def leave_one_out_positions(M: int, K: int) -> Positions:
    """What position m reads from `leave_one_out_rows`: log p, then row m of every table."""
    rows = np.broadcast_to(np.arange(M)[:, None], (M, K + 1)) * (np.arange(K + 1) > 0)
    return Positions(rows, np.broadcast_to(np.arange(K + 1), (M, K + 1)))


def initial_exponents(rows: OffsetRows) -> Float[np.ndarray, " S"]:
    """Where a fit starts: the unigram and the nearest offset whole, the others as rough guesses that fall off."""
    return np.array([1.0, *(1 / k for k in range(1, len(rows.tables) + 1))])


def log_linear_model(rows: OffsetRows, exponents: Float[np.ndarray, " S"]) -> LanguageModel:
    """The language model of fitted exponents (mu, lambda_1 .. lambda_K): tables that are read by token ids.

    The unigram is spread evenly over the K tables. Those of a weighted Sum are multiples of one by rows: the attention and the
    exponents are in them.

    Raises:
        ValueError: another number of exponents than the tables have, and one for log p.

    Example:
        >>> from jexplicit import count
        >>> rows = offset_rows(count(np.array([0, 1, 2, 1, 1, 0]), radius=2, vocab_size=3), features="cat")
        >>> log_linear_model(rows, np.array([1.0, 0.8, 0.2])).radius
        2
    """
    K = len(rows.tables)
    if len(exponents) != 1 + K:
        raise ValueError(f"{len(exponents)} exponents for {K} tables: give mu and one per table")
    mu = float(exponents[0])
    tables = [table * float(a) + rows.log_p * (mu / K) for table, a in zip(rows.tables, exponents[1:], strict=True)]
    return token_model(tables, rows.features, rows.eos)


def implied_slope(exponents: Float[np.ndarray, " K_plus_1"]) -> float:
    """The slope of the scaling assumption that fitted exponents imply, `delta = (1 - mu + sum lambda) / sum lambda`.

    Were mean co-occurrences `f^delta`, the derivation would subtract `delta sum_k lambda_k log f` where it now subtracts
    `sum_k lambda_k log f` and keeps `mu log f`. The paper assumes 1 and suspects a little less.

    Source: paper, Eq. 11-14 and Sec. 4.
    """
    mu, total = float(exponents[0]), float(np.sum(exponents[1:]))
    return (1 - mu + total) / total


def _over_unigram(table: Sparse, log_p: Float[Array, "1 N"]) -> Float[Array, "R N"]:
    """`log(P(i|j) / p_i)` of a table with these rows up to a constant of each."""
    return _normalised(dense_rows(table, np.arange(len(table.rows.start) - 1)), log_p)


@functools.partial(jax.jit, donate_argnums=0)
def _normalised(rows: Array, log_p: Array) -> Array:
    return jax.nn.log_softmax(rows + log_p, axis=1) - log_p


@jax.jit
def _shared(tables: tuple[Array, ...], log_p: Array) -> tuple[Array, tuple[Array, ...]]:
    """The attention of each offset, and Sum's table read with it."""
    P = [jnp.exp(table + log_p) for table in tables]
    information = jnp.stack([jnp.sum(P_k * table, axis=1) for P_k, table in zip(P, tables, strict=True)])
    information = jnp.maximum(information, jnp.finfo(log_p.dtype).tiny ** (1 / 8))  # a token that says nothing says it evenly
    w = information**_attention_power / jnp.sum(information**_attention_power, axis=0)[None, :]
    mixed = sum(w_k[:, None] * P_k for w_k, P_k in zip(w, P, strict=True))
    attention = information / information[:1]
    return attention, tuple(a_k[:, None] * (jnp.log(mixed) - log_p) for a_k in attention)

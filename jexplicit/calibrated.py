"""Language models of single tokens that generalise: smoothed rows instead of noise, and an exponent per offset.

The logits stay sums over the context's tokens,

    logits = mu log p + sum_k lambda_k a_k(x_k) log(P_k(.|x_k) / p),

with P_k the smoothed rows of the counts at offset k, and mu, lambda_k the only numbers that are fitted (K + 1, on held-out
positions, a convex problem). Cat has a table per offset and a = 1. Sum shares one table, and its *attention* a_k(x) says how
much of a token's information reaches an offset, in closed form from the same counts.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from jexplicit.cooccurrence import Counts
from jexplicit.language_model import Features, TokenTables, target_counts, token_counts, with_targets
from jexplicit.log_linear import LogTables, Positions
from jexplicit.smoothing import (
    Noise,
    absolute_discount,
    add_alpha,
    dirichlet,
    kneser_ney,
    noise_model,
    noise_rows,
    unigram,
    with_unseen_outputs,
)

Smoothing = Literal["kneser-ney", "modified-kneser-ney", "absolute-discount", "dirichlet", "add-alpha", "noise"]

_attention_power = (
    4  # of the information, in the weights of Sum's shared table: lower powers blur the nearest offset (measured)
)


class OffsetRows(NamedTuple):
    """What a calibrated model is made of: `log p` [1, N] and the tables [N, N] that the exponents weigh, nearest first."""

    log_p: Float[Array, "1 N"]
    tables: tuple[Float[Array, "N N"], ...]
    features: Features
    eos: bool

    @property
    def log_tables(self) -> LogTables:
        """As the tables of a log-linear model."""
        return LogTables((self.log_p, *self.tables))


def offset_rows(
    counts: Counts, *, features: Features, radius: int | None = None, eos: bool = False, smoothing: Smoothing = "kneser-ney"
) -> OffsetRows:
    """Smoothed rows of every offset over the unigram, `log(P_k(i|j) / p_i)`; for Sum, of one shared table with attention.

    Sum's table mixes the offsets' rows, `P(i|j) = sum_k w_k(j) P_k(i|j)` with `w_k(j) ∝ I_k(j)^4`, where
    `I_k(j) = KL(P_k(.|j) || p)` is what token j says about the token k places on; an offset reads it with the attention
    `a_k(j) = I_k(j) / I_1(j)`.

    Args:
        counts: C_1 .. C_K' of jexplicit.cooccurrence.count.
        features: "sum" or "cat".
        radius: K <= K'; default, all the counted offsets.
        eos: predict the end of a document too.
        smoothing: of the rows; see jexplicit.smoothing.

    Raises:
        ValueError: a radius that was not counted; another smoothing than these.

    Example:
        >>> from jexplicit import count
        >>> rows = offset_rows(count(np.array([0, 1, 2, 1, 1, 0]), radius=2, vocab_size=3), features="cat")
        >>> len(rows.tables), rows.tables[0].shape
        (2, (3, 3))
    """
    K = len(counts) if radius is None else radius
    if features not in ("sum", "cat"):
        raise ValueError(f"features {features!r}: choose sum (one table) or cat (a table per offset)")
    if not 1 <= K <= len(counts):
        raise ValueError(f"radius {radius} with counts of offsets 1..{len(counts)}: count with a radius of at least {radius}")
    noise = noise_model(token_counts(counts)) if smoothing == "noise" else None
    f = jnp.asarray(target_counts(counts, eos=eos), jnp.float32)
    log_p = jnp.log(unigram(f))[None]
    tables = tuple(
        _log_ratio(_smoothed(jnp.asarray(with_targets(C, eos=eos), jnp.float32), f, smoothing, noise), log_p)
        for C in counts[:K]
    )
    return OffsetRows(log_p, _shared(tables, log_p) if features == "sum" and K > 1 else tables, features, eos)


def offset_positions(X: Integer[np.ndarray, "M K"]) -> Positions:
    """What a calibrated model reads: log p, then the row of each context token; every table has its own exponent."""
    M, K = X.shape
    rows = np.concatenate([np.zeros((M, 1), np.int64), X], axis=1)
    return Positions(rows, np.broadcast_to(np.arange(K + 1), (M, K + 1)))


def first_exponents(radius: int) -> Float[np.ndarray, " K_plus_1"]:
    """Where a fit starts: the unigram and the nearest offset whole, the others as rough guesses that fall off."""
    return np.array([1.0, *(1 / k for k in range(1, radius + 1))])


def calibrated_language_model(rows: OffsetRows, exponents: Float[np.ndarray, " K_plus_1"]) -> TokenTables:
    """The language model of fitted exponents (mu, lambda_1 .. lambda_K): tables that are read by token ids.

    Its tables differ by offset even for Sum, where they are multiples of one by rows: the attention and exponents are in them.

    Raises:
        ValueError: another number of exponents than 1 + K.
    """
    if len(exponents) != 1 + len(rows.tables):
        raise ValueError(f"{len(exponents)} exponents and {len(rows.tables)} offsets: give mu and one per offset")
    mu, *lambdas = (float(a) for a in exponents)
    tables = [table * lam for table, lam in zip(rows.tables, lambdas, strict=True)]
    tables[0] = tables[0] + mu * rows.log_p
    return TokenTables(tuple(tables), rows.features, rows.eos)


def implied_slope(exponents: Float[np.ndarray, " K_plus_1"]) -> float:
    """The slope of the scaling assumption that fitted exponents imply, `delta = (1 - mu + sum lambda) / sum lambda`.

    Were mean co-occurrences `f^delta`, the derivation would subtract `delta sum_k lambda_k log f` where it now subtracts
    `sum_k lambda_k log f` and keeps `mu log f`. The paper assumes 1 and suspects a little less.

    Source: paper, Eq. 11-14 and Sec. 4.
    """
    mu, total = float(exponents[0]), float(np.sum(exponents[1:]))
    return (1 - mu + total) / total


def _smoothed(C: Array, f: Array, smoothing: str, noise: Noise | None) -> Array:
    if smoothing == "noise":
        assert noise is not None
        return noise_rows(with_unseen_outputs(C, f), noise)
    kinds = {
        "kneser-ney": kneser_ney,
        "modified-kneser-ney": _modified,
        "absolute-discount": absolute_discount,
        "dirichlet": dirichlet,
        "add-alpha": add_alpha,
    }
    if smoothing not in kinds:
        raise ValueError(f"smoothing {smoothing!r}: choose {', '.join(kinds)} or noise")
    return kinds[smoothing](C)


def _modified(C: Array) -> Array:
    return kneser_ney(C, modified=True)


@jax.jit
def _log_ratio(P: Array, log_p: Array) -> Array:
    return jnp.log(P) - log_p


@jax.jit
def _shared(tables: tuple[Array, ...], log_p: Array) -> tuple[Array, ...]:
    """Sum's table, read with the attention of each offset."""
    P = [jnp.exp(table + log_p) for table in tables]
    information = jnp.stack([jnp.sum(P_k * table, axis=1) for P_k, table in zip(P, tables, strict=True)])
    information = jnp.maximum(information, jnp.finfo(log_p.dtype).tiny ** (1 / 8))  # a token that says nothing says it evenly
    w = information**_attention_power / jnp.sum(information**_attention_power, axis=0)[None, :]
    mixed = sum(w_k[:, None] * P_k for w_k, P_k in zip(w, P, strict=True))
    attention = information / information[:1]
    return tuple(a_k[:, None] * (jnp.log(mixed) - log_p) for a_k in attention)

"""Contexts of several tokens as sparse rows: the n-gram model, and pairs of tokens with a gap.

A context h of several tokens extends a shorter one h' by a token further back. Its smoothed row backs off to the row of h',

    P(i|h) = (C(h, i) - D) / C(h) + γ(h) P(i|h'),      row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),

so that with exponents 1 the rows of h, h', ... add up to log P(i|h): the Kneser-Ney n-gram model is the special case without
a fit. An output that never followed h has row_h[i] = 0, hence a row holds only what was seen: the table is sparse, and a
context that never occurred adds nothing, which is an exact back-off.
"""

from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.counts.contexts import Level, count_contexts, quotient_and_rest, starts_of, sum_runs
from jexplicit.lm.model import pytree, static
from jexplicit.lm.rows.log_tables import SparseRows, SplitRows, sparse_row, split_rows
from jexplicit.lm.rows.look_up import find_entries, find_entry
from jexplicit.lm.smoothing import discounts_of_cells, unigram


class Children(NamedTuple):
    """The contexts that extend shorter ones by a token: those of context r are start[r] .. start[r + 1] - 1, in the order of
    their tokens. The number of a one-token context is the token."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


class Ngrams(NamedTuple):
    """Smoothed rows of the contexts of one, two, ... tokens, each found in the text at the given offsets.

    offsets: how far back the tokens are, in the order in which a context grows.
    children: of every level but the last.
    rows: of every level.
    lower: [N] the distribution that the first level backs off to.
    totals: of every level, how often each context occurred.
    log_gamma: of every level, the log of what each context leaves to the shorter one; 0 where it never occurred.
    """

    offsets: tuple[int, ...]
    children: tuple[Children, ...]
    rows: tuple[SparseRows, ...]
    lower: Float[np.ndarray, " N"]
    totals: tuple[Int[np.ndarray, " _"], ...]
    log_gamma: tuple[Float[np.ndarray, " _"], ...]


@pytree
class NgramRows:
    """Rows of contexts of several tokens; a context that never occurred has a row of zeros.

    children: how a context is found, level by level.
    rows: of the levels that are read, the last ones.
    offsets: how far back the tokens of a context are, in the order in which it grows.
    longest: entries of the longest row of each level that is read.
    vocabulary: N.
    row_names: what each row is.
    confidence: for each level that is read, which of its exponents a context takes, by how much is known of it; empty for one
        exponent per row.
    split: the rows with the long ones dense, for reading many positions; empty where they are read as they are.
    """

    children: tuple[Children, ...]
    rows: tuple[SparseRows, ...]
    offsets: tuple[int, ...] = static()
    longest: tuple[int, ...] = static()
    vocabulary: int = static()
    row_names: tuple[str, ...] = static()
    confidence: tuple[Any, ...] = ()
    split: tuple[SparseRows | SplitRows, ...] = ()

    names = property(lambda self: self.row_names)
    tokens = property(lambda self: self.offsets[-len(self.rows) :])  # a row is what the last token of its context adds
    radius = property(lambda self: max(self.offsets))
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.vocabulary)
    exponents_per_row = property(lambda self: (len(CONFIDENCES) if self.confidence else 1,) * len(self.rows))

    def numbers(self, context):
        """The number of the context of every level that is read, -1 where it never occurred."""
        return context_numbers(self.children, self.offsets, context)[-len(self.rows) :]

    def buckets(self, context):
        """Which exponent each row takes; of a context that never occurred, whose row is zero, any."""
        if not self.confidence:
            return jnp.zeros(len(self.rows), jnp.int32)
        return jnp.stack([jnp.asarray(c)[n] for c, n in zip(self.confidence, self.numbers(context), strict=True)]).astype(
            jnp.int32
        )

    def read(self, context, history=None):
        numbers = self.numbers(context)
        return [
            sparse_row(rows, n, self.vocabulary, longest)
            for rows, n, longest in zip(self.rows, numbers, self.longest, strict=True)
        ]

    def split_long(self) -> "NgramRows":
        """The same rows, faster to read for many positions."""
        return replace(cast(Any, self), split=self.split or tuple(split_rows(rows, self.vocabulary) for rows in self.rows))

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, ...]]:
        """The sparse rows of every level, and which of them, and of their exponents, each context reads."""
        columns = numbers_of_contexts(self.children, self.offsets, X)[-len(self.rows) :]
        tables = [(rows, column, None) for rows, column in zip(self.split or self.rows, columns, strict=True)]
        if not self.confidence:
            return tables
        return [
            (*table, np.asarray(c)[column].astype(np.int64))
            for table, column, c in zip(tables, columns, self.confidence, strict=True)
        ]


CONFIDENCES = tuple(
    f"{times} times{only}" for times in ("1", "2-3", "4-10", "11-50", "more") for only in (", one successor", "")
)
"""What tells the exponents of a row apart: how often its context occurred, and whether only one output ever followed it."""
_times = (2, 4, 11, 51)


def ngram_rows(ngrams: Ngrams, names: tuple[str, ...], *, confidence: bool = False) -> NgramRows:
    """The rows of the last levels, as many as there are names, as rows of a language model.

    Args:
        ngrams: smoothed contexts.
        names: of the rows.
        confidence: an exponent for each of CONFIDENCES instead of one for each row.

    Raises:
        ValueError: no names, or more than levels.
    """
    if not 0 < len(names) <= len(ngrams.rows):
        raise ValueError(f"{len(names)} names of rows for {len(ngrams.rows)} levels: name from 1 to all of them, the last ones")
    rows, totals = ngrams.rows[-len(names) :], ngrams.totals[-len(names) :]
    longest = tuple(table.longest for table in rows)
    known = tuple(_confidence(*level) for level in zip(totals, rows, strict=True)) if confidence else ()
    return NgramRows(ngrams.children, rows, ngrams.offsets, longest, len(ngrams.lower), names, known)


def _confidence(totals: np.ndarray, rows: SparseRows) -> Array:
    """Which of CONFIDENCES each context has."""
    different = np.diff(np.asarray(rows.start).astype(np.int64))
    return jnp.asarray(2 * np.searchsorted(_times, totals, side="right") + (different > 1), jnp.uint8)


def context_numbers(
    children: tuple[Children, ...], offsets: tuple[int, ...], context: Integer[Array, " K"]
) -> Int[Array, " levels"]:
    """The number of the context of every level, -1 where it never occurred: a binary search per level, pure.

    Example:
        >>> X, Y = np.array([[1, 0], [2, 1]]), np.array([2, 1])
        >>> ngrams = smoothed_ngrams(X, Y, offsets=(1, 2), vocab_size=3)
        >>> [context_numbers(ngrams.children, (1, 2), jnp.array(x)).tolist() for x in ([2, 1], [2, 2])]
        [[2, 1], [2, -1]]
    """
    numbers = [context[offsets[0] - 1].astype(jnp.int32)]
    for level, offset in zip(children, offsets[1:], strict=True):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[offset - 1].astype(jnp.int32), most))
    return jnp.stack(numbers)


def numbers_of_contexts(
    children: tuple[Children, ...], offsets: tuple[int, ...], X: Integer[np.ndarray, "M K"]
) -> list[Int[np.ndarray, " M"]]:
    """The same of many contexts, on the host."""
    numbers = [X[:, offsets[0] - 1].astype(np.int64)]
    for level, offset in zip(children, offsets[1:], strict=True):
        start, tokens = map(np.asarray, level)
        numbers.append(find_entries(start, tokens, numbers[-1], X[:, offset - 1].astype(np.int64)))
    return numbers


def smoothed_ngrams(
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    offsets: tuple[int, ...],
    vocab_size: int,
    sizes: tuple[int, ...] | None = None,
) -> Ngrams:
    """Count and smooth the contexts at some offsets: modified Kneser-Ney rows of every length up to `len(offsets)`.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Args:
        X: [M, K] contexts, nearest token first.
        Y: [M] targets.
        offsets: (1, 2, 3, 4) for the n-gram model of order 5; (1, 3) for a pair with a gap. Each at most K.
        vocab_size: N.
        sizes: for each offset how many ids its column of X has, where these are no tokens but what a view makes of them;
            default, N.

    Raises:
        ValueError: offsets that are not different, or outside 1 .. K; no position.

    Example:
        >>> X, Y = np.array([[1], [1], [2]]), np.array([1, 2, 1])
        >>> rows = smoothed_ngrams(X, Y, offsets=(1,), vocab_size=3).rows[0]
        >>> rows.outputs.tolist(), rows.start.tolist()  # 1 is followed by 1 and 2; 2 by 1
        ([1, 2, 1], [0, 0, 2, 3])

    Source: Chen & Goodman 1999, Sec. 4; as additive logits, this project.
    """
    N, K = vocab_size, X.shape[1]
    if not offsets or len(set(offsets)) < len(offsets) or min(offsets) < 1 or max(offsets) > K:
        raise ValueError(f"offsets {offsets}: give different numbers of tokens back, from 1 to the {K} that contexts have")
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    sizes = sizes or (N,) * len(offsets)
    levels = count_contexts([X[:, offset - 1] for offset in offsets], Y, sizes, N)
    lower = np.asarray(unigram(jnp.asarray(np.bincount(levels[0].outputs, minlength=N), jnp.float32)), np.float64)
    children = tuple(
        _children(longer, len(level.contexts), size) for level, longer, size in zip(levels, levels[1:], sizes[1:], strict=False)
    )
    totals = tuple(level.totals for level in levels)
    rows, log_gamma, shorter, P = [], [], None, lower
    for size in sizes:
        level = levels.pop(0)  # and so no level is kept for longer than it is needed
        P = P[level.outputs] if shorter is None else _shorter_P(level, level.contexts // size, shorter, P, N)
        P, values, left = _smoothed(level, P)
        log_gamma.append(left)
        rows.append(SparseRows(_small(level.start, 2**31), _small(level.outputs, N), jnp.asarray(values)))
        shorter = level
    return Ngrams(offsets, children, tuple(rows), lower, totals, tuple(log_gamma))


def _shorter_P(level: Level, shorter_of: np.ndarray, shorter: Level, P: np.ndarray, N: int) -> np.ndarray:
    """`P(i|h')` of every pair (h, i): what occurred after h occurred after h' too."""
    return P[np.searchsorted(shorter.keys(np.arange(len(shorter.contexts)), N), level.keys(shorter_of, N))]


def _smoothed(level: Level, P_lower: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`P(i|h)` and `log(P(i|h) / (γ(h) P(i|h')))` of every pair that occurred, and `log γ(h)` of every context."""
    taken = discounts_of_cells(level.counts, modified=True)[np.minimum(level.counts, 3) - 1]
    freed, total = sum_runs(taken, level.start), sum_runs(level.counts, level.start)
    log_gamma = np.log(np.divide(freed, total, out=np.ones(len(total)), where=total > 0)).astype(np.float32)
    kept = level.counts - taken
    backed_off = taken  # its place
    np.multiply(level.of_pairs(freed), P_lower, out=backed_off)
    values = np.log1p(kept / backed_off).astype(np.float32)
    kept += backed_off
    kept /= level.of_pairs(total)
    return kept, values, log_gamma


def _children(longer: Level, contexts: int, size: int) -> Children:
    """The contexts of a level as the children of those that they extend."""
    shorter, ids = quotient_and_rest(longer.contexts, size)
    return Children(_small(starts_of(shorter, contexts), 2**31), _small(ids, size))


def _small(ids: np.ndarray, bound: int) -> Array:
    """Ids on the device, of the smallest type."""
    if bound > 1 << 16 and len(ids) and int(ids.max()) >= 2**31:
        raise ValueError(f"{int(ids.max())} different pairs: rows of contexts number at most 2^31 - 1; fit on less text")
    return jnp.asarray(ids.astype(np.uint16 if bound <= 1 << 16 else np.int32))

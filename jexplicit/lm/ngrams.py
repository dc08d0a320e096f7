"""Joint features: contexts of several tokens as explicit rows, next to the rows of single tokens.

A context h of several tokens extends a shorter one h' by a token further back. Its smoothed row backs off to the row of h',

    P(i|h) = (C(h, i) - D) / C(h) + γ(h) P(i|h'),      row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),

so that with exponents 1 the rows of h, h', ... add up to log P(i|h): the Kneser-Ney n-gram model is the special case without
a fit. An output that never followed h has row_h[i] = 0, hence a row holds only what was seen: the table is sparse, and a
context that never occurred adds nothing, which is an exact back-off.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.lm.reading import Rows, ranges
from jexplicit.lm.smoothing import discounts, unigram

_counters = 1 << 23  # of a cache, at a time


class JointFeature(NamedTuple):
    """Rows of the contexts of one, two, ... tokens, each found in the text at the given offsets.

    offsets: how far back the tokens are, in the order in which a context grows.
    keys: of every level beyond the first, the sorted keys `(number of the shorter context) * N + token`; the place of a key is
        the number of its context. The number of a one-token context is the token.
    rows: of every level.
    lower: [N] the distribution that the first level backs off to.
    """

    offsets: tuple[int, ...]
    keys: tuple[Int[np.ndarray, " R"], ...]
    rows: tuple[Rows, ...]
    lower: Float[np.ndarray, " N"]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(rows.nbytes for rows in self.rows) + sum(keys.nbytes for keys in self.keys)


class _Entries(NamedTuple):
    """Pairs (context, output) of one level: sorted keys `context * N + output`, and counts."""

    keys: np.ndarray
    counts: np.ndarray


def joint_feature(
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    offsets: tuple[int, ...],
    vocab_size: int,
    progress: Callable[[int, int], None] | None = None,
) -> JointFeature:
    """Count and smooth the contexts at some offsets: modified Kneser-Ney rows of every length up to `len(offsets)`.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Args:
        X: [M, K] contexts, nearest token first.
        Y: [M] targets.
        offsets: (1, 2, 3, 4) for the n-gram model of order 5; (1, 3) for a pair with a gap. Each at most K.
        vocab_size: N.
        progress: called with (levels done, levels in all).

    Raises:
        ValueError: offsets that are not different, or outside 1 .. K; no position.

    Example:
        >>> X, Y = np.array([[1], [1], [2]]), np.array([1, 2, 1])
        >>> feature = joint_feature(X, Y, offsets=(1,), vocab_size=3)
        >>> feature.rows[0].outputs.tolist(), feature.rows[0].start.tolist()  # 1 is followed by 1 and 2; 2 by 1
        ([1, 2, 1], [0, 0, 2, 3])

    Source: Chen & Goodman 1999, Sec. 4; as additive logits, this project.
    """
    N, K = vocab_size, X.shape[1]
    if not offsets or len(set(offsets)) < len(offsets) or min(offsets) < 1 or max(offsets) > K:
        raise ValueError(f"offsets {offsets}: give different numbers of tokens back, from 1 to the {K} that contexts have")
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    context, keys, entries = X[:, offsets[0] - 1].astype(np.int64), [], []
    for level, offset in enumerate(offsets):
        if level:
            found, context = np.unique(context * N + X[:, offset - 1], return_inverse=True)
            keys.append(found)
        entries.append(_Entries(*np.unique(context * N + Y, return_counts=True)))
        if progress:
            progress(level + 1, len(offsets))
    entries = [*(_continuations(*pair, N) for pair in zip(entries, entries[1:], keys, strict=False)), entries[-1]]
    lower = np.asarray(unigram(jnp.asarray(np.bincount(entries[0].keys % N, minlength=N), jnp.float32)), np.float64)
    rows, shorter = [], None
    for level, entry in enumerate(entries):
        contexts = N if level == 0 else len(keys[level - 1])
        P_lower = lower[entry.keys % N] if shorter is None else _shorter_P(entry, keys[level - 1], shorter, N)
        P, values = _smoothed(entry, P_lower, N)
        rows.append(_as_rows(entry, values, contexts, N))
        shorter = entry, P
    return JointFeature(offsets, tuple(keys), tuple(rows), lower)


def context_numbers(feature: JointFeature, X: Integer[np.ndarray, "M K"]) -> Int[np.ndarray, "M levels"]:
    """The row of every level that each context reads, -1 where the context never occurred.

    Example:
        >>> X, Y = np.array([[1, 0], [2, 1]]), np.array([2, 1])
        >>> feature = joint_feature(X, Y, offsets=(1, 2), vocab_size=3)
        >>> context_numbers(feature, np.array([[2, 1], [2, 2]])).tolist()
        [[2, 1], [2, -1]]
    """
    N = len(feature.lower)
    numbers = [X[:, feature.offsets[0] - 1].astype(np.int64)]
    for keys, offset in zip(feature.keys, feature.offsets[1:], strict=True):
        key = numbers[-1] * N + X[:, offset - 1]
        place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        numbers.append(np.where((numbers[-1] >= 0) & (keys[place] == key), place, -1))
    return np.stack(numbers, axis=1)


def dense_rows(rows: Rows, vocab_size: int) -> Float[Array, "R N"]:
    """The same rows as a dense table: faster to read where most outputs of a row are there, as after a single token."""
    R = len(rows.start) - 1
    places = np.repeat(np.arange(R), np.diff(rows.start)) * vocab_size + rows.outputs
    return jnp.zeros(R * vocab_size, rows.values.dtype).at[places].set(rows.values).reshape(R, vocab_size)


def cache_rows(
    stream: np.ndarray, targets: Int[np.ndarray, " M"], log_p: Float[np.ndarray, " N"], *, length: int, successors: bool = False
) -> Rows:
    """Rows of the recent past: `row_m[i] = log(1 + c_i / (n₊ p_i))`, a Dirichlet-smoothed unigram of the last tokens over p.

    c_i counts token i among the `length` tokens before position m, borders of documents ignored, and n₊ is the number of
    different tokens there (the strength that Witten and Bell give the prior). Row m is read by position m alone.

    Args:
        stream: [L] token ids.
        targets: places in the stream of the M targets.
        log_p: [N] log unigram.
        length: tokens to look back.
        successors: count only what followed the previous token where that occurred before.

    Raises:
        ValueError: a length below 1.

    Example:
        >>> rows = cache_rows(np.array([0, 1, 1, 2]), np.array([3]), np.log([0.25, 0.5, 0.25]), length=2)
        >>> rows.outputs.tolist(), np.exp(rows.values).round(3).tolist()  # 1 + 2 / (1 * 0.5)
        ([1], [5.0])

    Source: Kuhn & De Mori 1990 for the cache; as a log-linear row, this project.
    """
    if length < 1:
        raise ValueError(f"cache of {length} tokens: look back at least one")
    N, per_block = len(log_p), max(1, _counters // len(log_p))
    parts = [_recent(stream, targets[m : m + per_block], N, length, successors) for m in range(0, len(targets), per_block)]
    keys = np.concatenate([part.keys + b * per_block * N for b, part in enumerate(parts)])
    counts = np.concatenate([part.counts for part in parts])
    different = np.bincount(keys // N, minlength=len(targets))
    values = np.log1p(counts / (different[keys // N] * np.exp(log_p[keys % N])))
    return _as_rows(_Entries(keys, counts), values, len(targets), N)


def _recent(stream: np.ndarray, targets: np.ndarray, N: int, length: int, successors: bool) -> _Entries:
    """What occurred in the recent past of a few positions."""
    first = np.maximum(targets - length, 1)
    n = np.maximum(targets - first, 0)
    m, place = np.repeat(np.arange(len(targets)), n), ranges(first, first + n)
    counted = stream[place] != PAD
    if successors:
        counted &= stream[place - 1] == np.repeat(stream[targets - 1], n)
    counts = np.bincount(m[counted] * N + stream[place[counted]], minlength=len(targets) * N)
    keys = np.flatnonzero(counts)
    return _Entries(keys, counts[keys])


def _continuations(short: _Entries, long: _Entries, long_contexts: np.ndarray, N: int) -> _Entries:
    """The pairs of a level with the number of different longer contexts they occurred in."""
    keys = (long_contexts // N)[long.keys // N] * N + long.keys % N
    return _Entries(short.keys, np.bincount(np.searchsorted(short.keys, keys), minlength=len(short.keys)))


def _shorter_P(entry: _Entries, contexts: np.ndarray, shorter: tuple[_Entries, np.ndarray], N: int) -> np.ndarray:
    """`P(i|h')` of every pair (h, i): what occurred after h occurred after h' too."""
    (short, P) = shorter
    return P[np.searchsorted(short.keys, (contexts // N)[entry.keys // N] * N + entry.keys % N)]


def _smoothed(entry: _Entries, P_lower: np.ndarray, N: int) -> tuple[np.ndarray, np.ndarray]:
    """`P(i|h)` and `log(P(i|h) / (γ(h) P(i|h')))` of every pair that occurred."""
    D = np.concatenate([[0], np.asarray(discounts(jnp.asarray(entry.counts, jnp.float32), modified=True), np.float64)])
    taken, context = D[np.minimum(entry.counts, 3)], entry.keys // N
    freed = np.bincount(context, weights=taken)[context]
    total = np.bincount(context, weights=entry.counts)[context]
    backed_off = freed * P_lower
    P = (entry.counts - taken + backed_off) / total
    return P, np.log1p((entry.counts - taken) / backed_off)


def _as_rows(entry: _Entries, values: np.ndarray, contexts: int, N: int) -> Rows:
    start = np.searchsorted(entry.keys, np.arange(contexts + 1) * N)
    return Rows(start, (entry.keys % N).astype(np.int32), values.astype(np.float32))

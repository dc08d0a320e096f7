"""Rows of the recent past: what occurred in the last tokens is likelier to occur again.

    row[i] = log(1 + c_i / (n₊ b_i)),

c_i counts token i among the last tokens, or among those of them that followed the same tokens as the target does, and n₊
different ones are there: the unigram of the past with a Dirichlet prior at the base distribution b, over b. The past goes
across the borders of documents. A repeat row is that of a cache that sees no further than a context, and so nothing of another
document.

Source: Kuhn & De Mori 1990 for the cache; as a log-linear row, this project.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import HISTORY, NO_TOKEN, pytree, static
from jexplicit.lm.core.past import Past, histories
from jexplicit.lm.rows.past.keys import CONTEXTS, Block, hashed
from jexplicit.lm.tables.storage import SparseRows, ranges

_targets_at_once = 128
_longest_part = 16  # letters of a word that are matched

Counted = tuple[Int[np.ndarray, " M"], Int[np.ndarray, " E"], Float[np.ndarray, " E"]]
"""Counts of the tokens of M rows: how many different ones each has, which, row after row, and how often."""


class Cache(NamedTuple):
    """A row of the last `length` tokens, or only of those that followed the last `match` tokens there.

    length: tokens that are counted.
    match: how many tokens before a counted one must be those before the target.
    word: count what followed the same part of a word instead, from its first letter on.
    """

    length: int
    match: int = 0
    word: bool = False

    @property
    def name(self) -> str:
        """Such as "cache 400" or "cache 2000 after 1"."""
        return f"cache {self.length}" + (" in words" if self.word else f" after {self.match}" if self.match else "")

    @property
    def reach(self) -> int:
        """How many tokens back it looks."""
        return self.length + (_longest_part + 1 if self.word else self.match)


@pytree
class CacheRows:
    """A row for each of several caches.

    log_base: [N] log of the base distribution: the unigram, or of few tokens the uniform one.
    caches: the window and the filter of each row.
    letters: [N] which tokens are letters, for caches in words.
    within_documents: whether nothing before the document is seen.
    """

    log_base: Any
    caches: tuple[Cache, ...] = static()
    letters: Any = None
    within_documents: bool = static(False)

    names = property(lambda self: tuple(cache.name for cache in self.caches))
    tokens = property(lambda self: (HISTORY,) * len(self.caches))
    radius = property(lambda self: 1)
    history = property(lambda self: max((cache.reach for cache in self.caches), default=0))
    vocab_size = property(lambda self: self.log_base.shape[0])

    def read(self, context, history=None):
        if self.within_documents and history is not None:
            history = jnp.where(jnp.cumsum(history == PAD) > 0, NO_TOKEN, history)
        return [recent_row(history, self.log_base, cache, self.letters) for cache in self.caches]

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, np.ndarray, Any]]:
        """A sparse table of a row per position for each cache."""
        log_base, own = np.asarray(self.log_base, np.float64), np.arange(len(X))
        letters = None if self.letters is None else np.asarray(self.letters)
        past = past.within_documents() if self.within_documents else past
        return [(cache_rows(past, log_base, cache, letters), own, None) for cache in self.caches]


def recent_row(history: Any, log_base: Any, cache: Cache, letters: Any = None) -> Float[Array, " N"]:
    """The row of one cache after one history, nearest token first: pure.

    Example:
        >>> row = recent_row(jnp.array([1, 1, 0]), jnp.log(jnp.array([0.25, 0.5, 0.25])), Cache(2))
        >>> jnp.exp(row).round(3).tolist()  # 1 + 2 / (1 * 0.5)
        [1.0, 5.0, 1.0]
    """
    log_base = jnp.asarray(log_base)
    N, length = len(log_base), min(cache.length, len(history) + cache.length - cache.reach)
    recent = history[:length]
    counted = (recent != PAD) & (recent != NO_TOKEN)
    if cache.word:
        counted &= _same_part(history, jnp.asarray(letters), length)
    for t in range(cache.match):
        counted &= history[1 + t : 1 + t + length] == history[t]
    c = jnp.zeros(N, log_base.dtype).at[jnp.where(counted, recent, N)].add(1, mode="drop")
    different = jnp.maximum((c > 0).sum(), 1).astype(log_base.dtype)
    return jnp.log1p(c / (different * jnp.exp(log_base)))


def _same_part(history: Array, letters: Bool[Array, " N"], length: int) -> Bool[Array, " length"]:
    """Which of the last places follow the same part of a word as the target does."""
    inside = (history >= 0) & letters[jnp.maximum(history, 0)]
    letters_before = jnp.cumprod(inside[: _longest_part + 1]).sum()
    same = letters_before <= _longest_part
    for t in range(_longest_part):
        same &= (history[1 + t : 1 + t + length] == history[t]) | (t >= letters_before)
    return same & ~jax.lax.dynamic_slice(inside, (1 + letters_before,), (length,))


def cache_rows(
    past: Any, log_base: Float[np.ndarray, " N"], cache: Cache, letters: Bool[np.ndarray, " N"] | None = None
) -> SparseRows:
    """The rows of one cache at many places of a text; row m is read by position m alone.

    Args:
        past: the text as `stream` [L], the M `places` of the targets in it, and where the past of each `starts`, or None.
        log_base: [N] log of the base distribution.
        cache: what is counted.
        letters: [N] which tokens are letters, for a cache in words.

    Raises:
        ValueError: a length below 1; a cache in words without letters.

    Example:
        >>> from jexplicit.lm.evaluation import Past
        >>> rows = cache_rows(Past(np.array([0, 1, 1, 2]), np.array([3])), np.log([0.25, 0.5, 0.25]), Cache(2))
        >>> rows.outputs.tolist(), np.exp(rows.values).round(3).tolist()  # 1 + 2 / (1 * 0.5)
        ([1], [5.0])

    Source: Kuhn & De Mori 1990 for the cache; as a log-linear row, this project.
    """
    if cache.length < 1:
        raise ValueError(f"cache of {cache.length} tokens: look back at least one")
    if cache.word and letters is None:
        raise ValueError("a cache in words, and no letters: say which tokens are letters")
    N, M, length = len(log_base), len(past.places), cache.length
    first = max(0, int(past.places.min(initial=0)) - cache.reach)  # nothing before it is looked at
    stream, targets = past.stream[first : int(past.places.max(initial=0)) + 1].astype(np.int64), past.places - first
    starts = np.zeros(M, np.int64) if past.starts is None else np.maximum(past.starts - first, 0)
    first = np.maximum(targets - length, starts + 1)
    key = _keys(stream, cache, letters)
    counted = _in_windows(stream, first, targets, N) if key is None else _after_the_same(stream, first, targets, N, key)
    return rows_of_counts(counted, np.exp(log_base))


def rows_of_counts(counted: Iterable[Counted], b: Float[np.ndarray, " N"]) -> SparseRows:
    """The rows `log(1 + c_i / (n₊ b_i))` of counts, some rows at a time."""
    b = b.astype(np.float32)
    parts = [(n, tokens, np.log1p(c / (np.repeat(n, n).astype(np.float32) * b[tokens]))) for n, tokens, c in counted]
    n, tokens, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    return SparseRows(np.concatenate([[0], np.cumsum(n)]), tokens.astype(np.min_scalar_type(len(b) - 1)), values)


def count_tokens(m: Int[np.ndarray, " L"], tokens: Integer[np.ndarray, " L"], M: int, N: int) -> Counted:
    """What the tokens of each of M rows are, where m is the row of each; <pad> is not counted."""
    cells, counts = np.unique((m.astype(np.int64) * N + tokens)[tokens != PAD], return_counts=True)
    m, tokens = np.divmod(cells, N)
    return np.bincount(m, minlength=M), tokens.astype(np.int32), counts.astype(np.float32)


def _keys(stream: np.ndarray, cache: Cache, letters: np.ndarray | None) -> np.ndarray | None:
    """The context up to every place, as a number; None for a cache that matches nothing. Parts of words too long match none."""
    if not cache.match and not cache.word:
        return None
    places, width = np.arange(1, len(stream) + 1), _longest_part + 1 if cache.word else cache.match
    X = np.maximum(histories(Past(stream, places), width), PAD)
    keys = CONTEXTS["part" if cache.word else f"last {cache.match}"](Block(X, letters, None, {}))
    return keys if letters is None or not cache.word else np.where(letters[X].all(axis=1), hashed(places), keys)


def _in_windows(stream: np.ndarray, first: np.ndarray, targets: np.ndarray, N: int) -> Iterator[Counted]:
    """What the tokens from `first` to each target are.

    Targets that stand side by side share most of these tokens; what they share is counted once.
    """
    for begin in range(0, max(1, len(targets)), _targets_at_once):
        low, high = first[begin : begin + _targets_at_once], targets[begin : begin + _targets_at_once]
        of_all = slice(low.max(initial=0), high.min(initial=len(stream)))
        if of_all.start >= of_all.stop:
            of_all = slice(0, 0)
            place, m = ranges(low, high), np.repeat(np.arange(len(low)), high - low)
        else:
            before, after = of_all.start - low, high - of_all.stop
            place = np.concatenate([ranges(low, low + before), ranges(high - after, high)])
            m = np.concatenate([np.repeat(np.arange(len(low)), n) for n in (before, after)])
        shared = np.bincount(stream[of_all], minlength=N)
        seen = np.flatnonzero(shared + np.bincount(stream[place], minlength=N))
        seen = seen[seen != PAD]
        column = np.full(N, len(seen))  # <pad> has the last, which is left out
        column[seen] = np.arange(len(seen))
        table = np.zeros((len(low), len(seen) + 1), np.float32)
        cells, times = np.unique(m * (len(seen) + 1) + column[stream[place]], return_counts=True)
        table.ravel()[cells] = times
        table = table[:, :-1] + shared[seen].astype(np.float32)
        some = np.flatnonzero(table)
        yield np.count_nonzero(table, axis=1), np.tile(seen.astype(np.int32), len(low))[some], table.ravel()[some]


def _after_the_same(stream: np.ndarray, first: np.ndarray, targets: np.ndarray, N: int, key: np.ndarray) -> Iterator[Counted]:
    """The same of those tokens that follow a place with the key of the place before the target."""
    L, own = len(stream), np.unique(key, return_inverse=True)[1]
    order = np.argsort(own, kind="stable")  # the places of each key, side by side in the order of the text
    places = own[order] * L + order
    low, high = (np.searchsorted(places, own[targets - 1] * L + place - 1) for place in (np.minimum(first, targets), targets))
    tokens = stream[order[ranges(low, high)] + 1]
    yield count_tokens(np.repeat(np.arange(len(targets)), high - low), tokens, len(targets), N)


@pytree
class RepeatRows:
    """A row for each of several numbers of nearest tokens.

    log_base: [N] log unigram.
    lengths: W of each row.

    Example:
        >>> kind = RepeatRows(jnp.log(jnp.array([0.25, 0.5, 0.25])), (2,))
        >>> jnp.exp(kind.read(jnp.array([1, 1]))[0]).round(3).tolist()  # 1 + 2 / (1 * 0.5)
        [1.0, 5.0, 1.0]
    """

    log_base: Any
    lengths: tuple[int, ...] = static()

    names = property(lambda self: tuple(f"repeat {W}" for W in self.lengths))
    tokens = property(lambda self: (HISTORY,) * len(self.lengths))
    radius = property(lambda self: max(self.lengths))
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.log_base.shape[0])

    def read(self, context, history=None):
        near = context.astype(jnp.int32)  # unsigned ids have no number for "none"
        return [recent_row(near[:W], self.log_base, Cache(W)) for W in self.lengths]

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, np.ndarray, Any]]:
        """A sparse table of a row per position for each W."""
        b, own = np.exp(np.asarray(self.log_base)), np.arange(len(X))
        return [(repeat_rows(X[:, :W], b), own, None) for W in self.lengths]


def repeat_rows(X: np.ndarray, b: np.ndarray) -> SparseRows:
    """The rows of many contexts [M, W]; row m is read by position m alone."""
    M, W = X.shape
    return rows_of_counts([count_tokens(np.repeat(np.arange(M), W), X.ravel(), M, len(b))], b)

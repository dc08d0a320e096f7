"""What came last after contexts: the token, the one before it, and for how many times in a row it has been the same.

These facts of two texts, one after the other, make those of both (`followed_by`): they are kept in sorted runs, as counts are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64


class Latest(NamedTuple):
    """Facts of contexts: [R] each.

    times: how often the context occurred.
    last, before: what followed it the last time and the time before; -1 for nothing.
    repeats: how often in a row `last` has followed it.
    """

    times: Int[np.ndarray, " R"]
    last: Int[np.ndarray, " R"]
    before: Int[np.ndarray, " R"]
    repeats: Int[np.ndarray, " R"]

    def take(self, r: np.ndarray) -> "Latest":
        """Those of some contexts, none for -1."""
        known = r >= 0
        none = (0, -1, -1, 0)
        return Latest(
            *(np.where(known, column[np.maximum(r, 0)] if len(column) else 0, n) for column, n in zip(self, none, strict=True))
        )

    def followed_by(self, later: "Latest") -> "Latest":
        """The facts of two texts, one after the other."""
        again = (later.repeats == later.times) & (self.last == later.last)
        return Latest(
            self.times + later.times,
            np.where(later.times > 0, later.last, self.last),
            np.where(later.times > 1, later.before, np.where(later.times == 1, self.last, self.before)),
            np.where(later.times == 0, self.repeats, later.repeats + np.where(again, self.repeats, 0)),
        )


class LatestRun(NamedTuple):
    """Sorted contexts, and their facts."""

    keys: UInt64[np.ndarray, " R"]
    facts: Latest

    def find(self, keys: UInt64[np.ndarray, " n"]) -> Latest:
        """The facts of some contexts."""
        r = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        return self.facts.take(np.where(self.keys[r] == keys, r, -1) if len(self.keys) else np.full(len(keys), -1))


def latest(
    runs: Sequence[LatestRun],
    keys: UInt64[np.ndarray, " B"],
    tokens: Int[np.ndarray, " B"],
    begun: Sequence[LatestRun] = (),
    own_keys: UInt64[np.ndarray, " B"] | None = None,
) -> tuple[Latest, LatestRun]:
    """The facts of the context of each position of a block before it; and the facts of the block alone.

    Args:
        runs: of the text before the block, the oldest first.
        keys: [B] contexts.
        tokens: [B] what follows each; -1 for a token that is not counted.
        begun: of another text, which comes before.
        own_keys: [B] keys of the same contexts in `begun`; default, `keys`.

    Example:
        >>> keys = np.array([1, 1, 1, 1], np.uint64)
        >>> found = latest((), keys, np.array([5, 5, 6, 7]))[0]
        >>> found.last.tolist(), found.repeats.tolist()
        ([-1, 5, 5, 6], [0, 1, 2, 1])
    """
    distinct, some, group = np.unique(keys, return_index=True, return_inverse=True)
    known = empty_latest(len(distinct))
    for run in begun:
        known = known.followed_by(run.find((keys if own_keys is None else own_keys)[some]))
    for run in runs:
        known = known.followed_by(run.find(distinct))
    # positions by context, in the order of the text; a position sees those of its context before it
    order = np.argsort(group, kind="stable")
    g, t = group[order], tokens[order]
    event = t >= 0
    place = np.cumsum(event)  # events up to a position
    e, eg = t[event], g[event]
    first = np.concatenate([[True], eg[1:] != eg[:-1]]) if len(eg) else np.zeros(0, bool)
    begins = np.maximum.accumulate(np.where(first, np.arange(len(e)), 0))
    same = ~first & (e == np.concatenate([[-1], e[:-1]])) if len(e) else first
    reset = np.maximum.accumulate(np.where(same, 0, np.arange(len(e))))
    n = np.arange(len(e)) - begins + 1
    own = Latest(n, e, np.where(n > 1, np.concatenate([[-1], e[:-1]])[: len(e)], -1), np.arange(len(e)) - reset + 1)
    before = place - event - 1  # the last event before a position, of its own context or another
    mine = (before >= 0) & (eg[np.maximum(before, 0)] == g) if len(e) else np.zeros(len(g), bool)
    found = known.take(g).followed_by(own.take(np.where(mine, before, -1)))
    out = Latest(*(np.empty_like(column) for column in found))
    for column, value in zip(out, found, strict=True):
        column[order] = value
    ends = np.flatnonzero(np.concatenate([first[1:], [True]])) if len(e) else np.zeros(0, np.int64)
    return out, LatestRun(distinct[eg[ends]] if len(e) else distinct[:0], own.take(ends))


def empty_latest(n: int) -> Latest:
    """The facts of contexts that have not occurred."""
    return Latest(*(np.full(n, value, np.int64) for value in (0, -1, -1, 0)))


def merge_latest(older: LatestRun, newer: LatestRun) -> LatestRun:
    """The facts of two runs."""
    keys = np.union1d(older.keys, newer.keys)
    return LatestRun(keys, older.find(keys).followed_by(newer.find(keys)))

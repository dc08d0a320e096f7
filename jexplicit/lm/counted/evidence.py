"""The past of a cell as evidence for the next decision.

A *cell* is a context and a node of the tree. The decisions of a text, sorted by (cell, time), hold everything: what a cell has
seen before a decision is an interval of that order, and a statistic of it a difference of two cumulative sums. A *view* says
which intervals. Evidence is measured against the log-odds b of a simpler prediction p = sigma(b), and has three numbers:

    counted     log-odds of what followed, elsewhere in the text, after the same numbers of 0 and 1, the same last two decisions
                and about the same b, less b
    residual    sum(y - p) / (sum p (1 - p) + 2): one Newton step for the cell's own correction of b
    recent      the same of the last decisions, the k-th one back with weight (7/8)^k, and .7 in the place of 2

Evidence is 0 where a cell has seen nothing. All of it runs on the host, where sorting is fastest.
"""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Integer, UInt32, UInt64

from jexplicit.data.streams import PAD
from jexplicit.lm.counted.contexts import Tree, mix

_both = np.array([0, 1, 3], np.int8)  # of the last two decisions, those of a cell that has seen so many
_sizes = np.searchsorted([1, 2, 3, 4, 5, 7, 10, 15, 25, 50, 120], np.arange(122), side="right").astype(np.int32)  # 12 classes
_states = 12 * 12 * 4
_bins, _width = 25, 0.6  # of log-odds
_many = 60  # decisions from which the cell's own log-odds are half of what is counted
_pseudo, _behind = 10.0, 4.0  # counts that stand behind those of a state, and behind those of its cells
_p = 1 / (1 + np.exp(-(np.arange(_bins) - _bins // 2) * _width))  # of the base, in each bin
_seen = np.array([0, 1, 2, 3, 4, 5.5, 8, 12, 19, 36, 80, 150])  # decisions of a class, about
_zeros, _ones = (counts.reshape(-1, 1) for counts in np.meshgrid(_seen, _seen, np.zeros(4), indexing="ij")[:2])
_prior = (_ones + _behind * _p) / (_zeros + _ones + _behind)  # of a state that the text does not show, backed off to the base
KINDS = 3  # of evidence
MOST = 9.5  # of log-odds
LONG, PARTS = 1 << 25, 8  # decisions of a long text, and parts of its cells; one makes the table of states and the weights
_kappa, _recent_kappa = 2.0, 0.7
_half = 1 << 15  # sums below it are kept in half precision, to a two-thousandth
_fade = 0.875 ** np.arange(256, dtype=np.float32)  # weights of what is so many decisions back; after 256 they are nothing
_chunk = 1 << 17  # decisions at a time, which fit a cache
_shard = 1 << 19  # decisions that are sorted at once
SORTED_ONCE = 1 << 24  # decisions above which they are sorted again after a table is counted, to save memory
_precise = 1 << 23  # decisions above which evidence is kept in half precision
_alone = 1 << 23  # decisions above which a shard, mostly one cell, is sorted alone, to save memory
_keys_at_once = 1 << 26  # decisions whose keys are in memory at once
_time_bits = np.uint64(29)  # of a key, for the number of a decision and its bit
_most = 1 << 28  # decisions of a text, whose numbers a key holds


class Decisions(NamedTuple):
    """The decisions of the tokens of a text, in their order.

    place, block: [B] in the text. node: [B] of the tree. bit: [B] 0 or 1.
    """

    place: Int[np.ndarray, " B"]
    block: Int[np.ndarray, " B"]
    node: Integer[np.ndarray, " B"]
    bit: Int[np.ndarray, " B"]


class Statistics(NamedTuple):
    """Sufficient statistics of cells, which add up.

    n, ones: decisions, and those that were 1. last: the last decision, and two times the one before it; 0 where there is none.
    r, v: sums of y - p and of p (1 - p); recent_r, recent_v: with weights that fade.
    """

    n: np.ndarray
    ones: np.ndarray
    last: np.ndarray
    r: np.ndarray
    v: np.ndarray
    recent_r: np.ndarray
    recent_v: np.ndarray

    def then(self, after: "Statistics") -> "Statistics":
        """What was seen first and what was seen after it, together."""
        last = np.where(after.n > 1, after.last, np.where(after.n == 1, after.last + 2 * (self.last & 1), self.last))
        fade = _fade[np.minimum(after.n, 255)]
        r, v = after.recent_r + fade * self.recent_r, after.recent_v + fade * self.recent_v
        return Statistics(self.n + after.n, self.ones + after.ones, last, self.r + after.r, self.v + after.v, r, v)


def predicted_places(ids: Integer[np.ndarray, " L"], eos: bool, start: int = 1) -> Int[np.ndarray, " P"]:
    """The places of a stream from `start` on whose tokens are predicted."""
    return np.arange(start, len(ids)) if eos else np.flatnonzero(ids[start:] != PAD) + start


def decisions(
    ids: Integer[np.ndarray, " L"], tree: Tree, places: Int[np.ndarray, " P"], block: np.ndarray | None = None
) -> Decisions:
    """The decisions of the tokens at some places; block: [L] below 256.

    >>> from jexplicit.lm.counted.contexts import as_tree
    >>> decisions(np.array([0, 1, 2, 0]), as_tree({3: (0, 4), 4: (1, 2)}, 3, 3), np.array([1, 2])).node.tolist()
    [0, 1, 0, 1]
    """
    token = ids[places]
    length = tree.length[token]
    if (B := int(length.sum(dtype=np.int64))) > _most:
        raise ValueError(f"a text of {B:,} decisions: context mixing counts {_most:,} at most; give less text")
    first = np.append(np.int32(0), np.cumsum(length, dtype=np.int32))
    small = np.uint16 if len(tree.length) <= 1 << 16 else np.int32
    node, bit = np.empty(first[-1], small), np.empty(first[-1], np.int8)
    place = np.repeat(places.astype(np.int32), length)
    for d in range(tree.node.shape[1]):
        longer = np.flatnonzero(length > d)
        at = first[longer] + d
        node[at], bit[at] = tree.node[token[longer], d], tree.bit[token[longer], d]
    own = np.zeros(len(bit), np.uint8) if block is None else np.repeat(block[places].astype(np.uint8), length)
    return Decisions(place, own, node, bit)


class View(NamedTuple):
    """The part of a text that a context uses.

    training: whether it sees the blocks before the place's own; in a text that is read after the training text, this.
    since: [L] the first place of its own block that is seen from each place, too; None for none. whole: all before a place.
    """

    training: bool = True
    since: Int[np.ndarray, " L"] | None = None
    whole: bool = False


class Sorted(NamedTuple):
    """Decisions in the order of (cell, time), with cumulative sums from 0.

    cell, time, y, b: [n] numbers of cell and decision, the decision, its base. start: [n] where the cell begins in this order.
    last: [n + 1] the decision before, and two times the one before that, of whatever cell. views: intervals [begin, end) that
    are seen before each decision; without an end, up to itself.
    """

    cell: UInt64[np.ndarray, " n"]
    time: Int[np.ndarray, " n"]
    y: Int[np.ndarray, " n"]
    b: Float32[np.ndarray, " n"]
    start: Int[np.ndarray, " n"]
    last: Int[np.ndarray, " n1"]
    ones: Int[np.ndarray, " n1"]
    r: Float[np.ndarray, " n1"]
    v: Float[np.ndarray, " n1"]
    recent_r: Float32[np.ndarray, " n1"]
    recent_v: Float32[np.ndarray, " n1"]
    views: list[tuple[np.ndarray, np.ndarray | None]]

    def seen(self, *intervals: tuple[np.ndarray, np.ndarray | slice], sums: bool = True) -> Statistics:
        """Statistics of intervals [begin, end); without sums, r and later are 0."""
        found = []
        for begin, end in intervals:
            n = (np.arange(end.start or 0, end.stop, dtype=np.int32) if isinstance(end, slice) else end) - begin
            ones, last = self.ones[end] - self.ones.take(begin), self.last[end] & _both.take(np.minimum(n, 2))
            r = v = recent_r = recent_v = np.zeros(1, np.float32)
            if sums:
                r, v = ((c[end] - c.take(begin)).astype(np.float32) for c in (self.r, self.v))
                fade = _fade.take(np.minimum(n, 255))
                recent_r, recent_v = (c[end] - fade * c.take(begin) for c in (self.recent_r, self.recent_v))
            found.append(Statistics(n, ones, last, r, v, recent_r, recent_v))
        return functools.reduce(Statistics.then, found)


def keys(h: UInt64[np.ndarray, " L"], d: Decisions, shards: int, some: range) -> list[UInt64[np.ndarray, " n"]]:
    """Numbers that sort decisions by (cell, time), for some shards of cells.

    A cell has 35 bits, of a hash of its context and node, the number of a decision 28, and its bit 1. The shards are as many as
    divide all, from a multiple of their number on.
    """
    B, step, fine = len(d.bit), 1 << 20, 1 << 16
    high, higher = (np.uint64(65 - n.bit_length()) for n in (shards, shards // len(some)))

    def part(a: int) -> list[UInt64[np.ndarray, " n"]]:
        found = []
        for first in range(a, min(a + step, B), fine):  # what is made stays in the cache
            at = slice(first, min(first + fine, B))
            k = mix(h[d.place[at]], d.node[at].astype(np.uint64)) >> _time_bits << _time_bits
            k |= np.arange(at.start, at.stop, dtype=np.uint64) << np.uint64(1)
            k |= d.bit[at].astype(np.uint64)
            found.append(k if len(some) == shards else k[k >> higher == some.start // len(some)])
        k = np.concatenate(found or [np.zeros(0, np.uint64)])
        if shards == 1:
            return [k]
        shard = (k >> high).astype(np.uint16) - np.uint16(some.start)
        return np.split(k.take(np.argsort(shard, kind="stable")), np.cumsum(np.bincount(shard, minlength=len(some)))[:-1])

    if B <= step:
        return part(0)
    found = [list(own) for own in zip(*threads().map(part, range(0, B, step)), strict=True)]
    for own in found:  # one after the other, so that memory holds them once
        own[:] = [np.concatenate(own)]
    return [own for (own,) in found]


def sort(key: UInt64[np.ndarray, " n"], base: Float32[np.ndarray, " B"], view: View, d: Decisions) -> Sorted:
    """Sort keys in place, with the sums and views that evidence needs."""
    key.sort()
    n, one = len(key), np.uint64(1)
    cell, time, y = np.empty(n, np.uint64), np.empty(n, np.int32), np.empty(n, np.int8)
    start, ones, mask = np.empty(n, np.int32), np.zeros(n + 1, np.int32), (one << _time_bits) - one
    b, sums, recent = np.zeros(n, np.float32), np.zeros((2, n + 1)), np.zeros((2, n + 1), np.float32)
    before, latest, last, W = np.uint64(0), 0, np.zeros(n + 1, np.int8), len(_fade)
    for a in range(0, n, _chunk):  # what is made in a chunk stays in the cache
        at, to = slice(a, a + _chunk), slice(a + 1, a + _chunk + 1)
        k = key[at]
        c = cell[at] = k >> _time_bits
        t = time[at] = (k & mask) >> one
        z = (k & one).astype(np.int8)
        y[at] = z
        new = np.empty(len(c), bool)
        new[0], new[1:] = a == 0 or c[0] != before, c[1:] != c[:-1]
        start[at] = np.maximum(np.maximum.accumulate(np.where(new, np.arange(a, a + len(c), dtype=np.int32), 0)), latest)
        before, latest = c[-1], start[a + len(c) - 1]
        ones[to] = np.cumsum(z, dtype=np.int32) + ones[a]
        b[at] = base.take(t)
        p = 1 / (1 + np.exp(-b[at]))
        e = np.stack([z - p, p * (1 - p)])
        sums[:, to] = np.cumsum(e, axis=1, dtype=np.float64) + sums[:, a : a + 1]
        wide = np.zeros((2, -(-len(c) // W), W), np.float32)  # sums that fade: within W decisions, and of those before
        wide.reshape(2, -1)[:, : len(c)] = e
        wide = np.cumsum(wide / _fade, axis=2) * _fade
        wide += np.concatenate([recent[:, a, None], wide[:, :-1, -1]], axis=1)[:, :, None] * (_fade * _fade[1])
        recent[:, to] = wide.reshape(2, -1)[:, : len(c)]
    last[1:], last[2:] = y, y[1:] + 2 * y[:-1]
    views: list[tuple[np.ndarray, np.ndarray | None]] = [(start, None)] if view.whole else []
    number = np.arange(n, dtype=np.int32)
    if view.training and not view.whole:
        own = d.block.take(time)
        first = np.flatnonzero((start == number) | np.append(True, own[1:] != own[:-1])[:n])  # of a cell in a block
        views.append((start, np.repeat(first, np.diff(np.append(first, n))).astype(np.int32)))
    if view.since is not None and not view.whole:
        place, rank, L = d.place.take(time), np.cumsum(start == number, dtype=np.int64), len(view.since)
        views.append((np.searchsorted(rank * L + place, rank * L + view.since.take(place)).astype(np.int32), None))
    return Sorted(cell, time, y, b, start, last, ones, *sums, *recent, views=views)


def entries(seen: Statistics, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of cells in a table, and fractions to the next bin.

    A state is the class of the count of 0, of 1, and the last two decisions.
    """
    zeros, ones = (_sizes.take(np.minimum(n, 121)) for n in (seen.n - seen.ones, seen.ones))
    x = np.clip(b / np.float32(_width) + np.float32(_bins // 2), 0, _bins - 1.001)
    j = x.astype(np.int32)
    return ((zeros * 12 + ones) * 4 + seen.last) * _bins + j, x - j


def evidence(seen: Statistics, b: Float32[np.ndarray, " n"], tables: np.ndarray, which: np.ndarray, least: int):
    """[n, 4] evidence over the log-odds b, and whether it is known.

    Args:
        seen: [n] what the cells have seen.
        tables: [T, states, bins] log-odds of states.
        which: [n] the table of each.
        least: decisions that a cell must have seen; with fewer all is 0.
    """
    (at, part), flat = entries(seen, b), tables.ravel()
    at = which * (_states * _bins) + at
    x = flat.take(at)
    x += part * (flat.take(at + 1) - x)
    many = np.flatnonzero(seen.n > _many)
    ones = seen.ones[many].astype(np.float32)
    own = np.log((ones + np.float32(0.3)) / (seen.n[many] - ones + np.float32(0.3)))
    x[many] = (x[many] + own) / 2
    residual = seen.r / (seen.v + np.float32(_kappa))
    recent = seen.recent_r / (seen.recent_v + np.float32(_recent_kappa))
    rows = np.stack([x - b, residual, recent, np.ones_like(x)], axis=1)
    rows[np.flatnonzero(seen.n < least)] = 0
    return rows


class Cells(NamedTuple):
    """All cells of a context at the end of a text, sorted.

    low: [U] the lower 32 bits of their numbers. first: [9] where those with 0, 1, ... 7 in the bits above begin, and U.
    seen: [U] what they have seen, in the smallest integers that hold it, and sums in half precision where it holds them.
    """

    low: UInt32[np.ndarray, " U"]
    first: Int[np.ndarray, " 9"]
    seen: Statistics

    def find(self, cell: UInt64[np.ndarray, " n"]) -> Statistics:
        """What some cells have seen."""
        low, high = cell.astype(np.uint32), cell >> np.uint64(32)
        at, known = np.zeros(len(cell), np.int64), np.zeros(len(cell), bool)
        for k in np.unique(high).astype(int):
            some, part = np.flatnonzero(high == k), self.low[self.first[k] : self.first[k + 1]]
            if len(part):
                found = np.minimum(np.searchsorted(part, low[some]), len(part) - 1)
                at[some], known[some] = self.first[k] + found, part[found] == low[some]
        wide = zip(self.seen, (np.int32, np.int32, np.int8, *[np.float32] * 4), strict=True)
        return Statistics(*(np.where(known, field[at] if len(field) else 0, 0).astype(type_) for field, type_ in wide))


@functools.cache
def threads() -> ThreadPoolExecutor:
    """The threads that work on shards of cells, kept for memory."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, 4))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=threads.cache_clear)  # a child has no threads


class Past(NamedTuple):
    """The results of a pass over the decisions with one context.

    x, known: [3, W] evidence of the decisions that are wanted, and whether their cells have seen enough. table: of states.
    cells: at the end of the training text, if asked for. step: [3] the weights with which evidence was added to the base.
    """

    x: Float[np.ndarray, "3 W"]
    known: Bool[np.ndarray, " W"]
    table: Float32[np.ndarray, "states bins"]
    cells: Cells | None
    step: Float32[np.ndarray, " _"]


def columns(time: Int[np.ndarray, " n"], wanted: Int[np.ndarray, "R 2"]) -> Int[np.ndarray, " n"]:
    """The number of each decision in some ascending ranges, or -1.

    >>> columns(np.arange(8), np.array([[1, 3], [6, 8]])).tolist()
    [-1, 0, 1, -1, -1, -1, 2, 3]
    """
    first, end = wanted.T
    before = np.append(0, np.cumsum(end - first)) - np.append(first, 0)  # what is left out before each range, below zero
    k = np.searchsorted(end, time, side="right")
    return np.where(time >= np.append(first, np.iinfo(np.int32).max)[k], time + before[k], -1)


def pass_over(
    h: UInt64[np.ndarray, " L"],
    d: Decisions,
    base: Float32[np.ndarray, " B"],
    view: View,
    *,
    least: int = 1,
    wanted: Int[np.ndarray, "R 2"] | None = None,
    table: Float32[np.ndarray, "states bins"] | None = None,
    before: Cells | None = None,
    keep: bool = False,
    weights: Callable[[Float[np.ndarray, "W 3"]], Float32[np.ndarray, " 3"]] | None = None,
) -> Past:
    """Evidence of one context for the decisions of a text.

    Of a long text an eighth of the cells makes the table of states and the weights.

    Args:
        h: [L] the context at each place.
        d: the decisions.
        base: [B] log-odds b.
        view: what is seen.
        least: decisions that a cell must have seen before it says anything.
        wanted: [R, 2] first and end of ascending ranges of decisions whose evidence is returned; default, of all.
        table: of states; default, counted in this text, for each half of the cells in the other.
        before: what the cells have seen before this text, for a view of the training text.
        keep: whether to keep the cells.
        weights: of evidence, given [W, 3] of the decisions that are wanted, 0 of cells that were not read for it; the base of
            all decisions then changes in place.
    """
    B = len(d.bit)
    wanted = np.array([[0, B]]) if wanted is None else wanted
    W, shards = int(np.diff(wanted).sum()), 1
    if B > _shard:
        shards = 1 << max(0, int(B - 1).bit_length() - _shard.bit_length() + 1)
    x = np.zeros((W, KINDS + 1), np.float32 if W <= _precise else np.float16)  # and whether cells are known
    rows = np.complex128 if x.itemsize == 4 else np.float64  # of four numbers, which move as one
    before, cells, step = before if view.training else None, [], np.zeros(0, np.float32)
    tables = np.zeros((0, _states, _bins), np.float32) if table is None else table[None]

    def counted(number: int) -> np.ndarray:
        """Counts of 0 and 1, by half of the cells, state and base."""
        s, found = kept[number] if kept else sort(key[number], base, view, d), np.zeros(4 * _states * _bins)
        for a in range(0, len(s.time), _chunk):
            at = slice(a, min(a + _chunk, len(s.time)))
            seen = s.seen(*((begin[at], at if end is None else end[at]) for begin, end in s.views), sums=False)
            (entry, part), known = entries(seen, s.b[at]), np.flatnonzero(seen.n)
            half = (s.cell[at] & np.uint64(1)).astype(np.int32)
            entry, part = (entry + (2 * half + s.y[at]) * (_states * _bins))[known], part[known]
            found += np.bincount(entry, 1 - part, len(found)) + np.bincount(entry + 1, part, len(found) + 1)[:-1]
        return found.reshape(2, 2, -1)

    def evaluated(number: int, *, store: bool) -> tuple[np.ndarray, Statistics] | None:
        """Evidence and base of a shard are written; its cells, if stored."""
        s = kept[number] if kept else sort(key[number], base, view, d)
        new = s.start == np.arange(len(s.start))
        earlier, rank = (before.find(s.cell[new]), np.cumsum(new) - 1) if before else (None, new)
        some = None if W == B or len(step) else np.flatnonzero(columns(s.time, wanted) >= 0)
        n = len(s.time) if some is None else len(some)
        for a in range(0, n, _chunk):
            at = slice(a, min(a + _chunk, n)) if some is None else some[a : a + _chunk]
            seen = s.seen(*((begin[at], at if end is None else end[at]) for begin, end in s.views))
            b, time = s.b[at], s.time[at]
            seen = seen if earlier is None else Statistics(*(field[rank[at]] for field in earlier)).then(seen)
            found = evidence(seen, b, tables, (s.cell[at] & np.uint64(1)).astype(np.int32) % len(tables), least)
            if len(step):
                base[time] = weigh(step, found.T, b)
            if W < B:
                time = columns(time, wanted)
                time, found = time[time >= 0], found[time >= 0]
            np.put(x.view(rows), time, found.astype(x.dtype).view(rows))
        last = np.flatnonzero(np.append(new[1:], np.ones(min(len(new), 1), bool))) if store else np.zeros(0, int)
        last = last[last - s.start[last] + 1 >= least]
        return (s.cell[last], s.seen((s.start[last], (last + 1).astype(np.int32)))) if store else None

    size = min(shards, max(1, _keys_at_once // _shard))
    for group in (range(first, first + size) for first in range(0, shards, size)):
        key = keys(h, d, shards, group)
        alone = shards == 1 or max(map(len, key)) > _alone  # a short text starts no thread
        each = map if alone else threads().map
        kept = [*each(functools.partial(sort, base=base, view=view, d=d), key)] if B <= SORTED_ONCE else []
        if not len(tables):
            some = range(min(size, max(1, shards // (PARTS if B > LONG else 1))))
            even, odd = functools.reduce(np.add, each(counted, some))
            n0, n1 = np.moveaxis(np.stack([odd, even, even + odd]), 1, 0).reshape(2, 3, _states, _bins)
            table = (np.log(n1 + _pseudo * _prior) - np.log(n0 + _pseudo * (1 - _prior))).astype(np.float32)
            tables, table = table[:2], table[2]  # a half of the cells is measured with the counts of the other
            if weights is not None and W < B:
                list(each(functools.partial(evaluated, store=False), some))
                step = weights(x[:, :KINDS])
        cells += [part for part in each(functools.partial(evaluated, store=keep), range(size)) if part]
        key = kept = []  # before the next ones are made
    if weights is not None and W == B:
        step = weights(x[:, :KINDS])
        base[:] = weigh(step, x.T[:KINDS], base)
    return Past(x.T[:KINDS], x[:, KINDS] > 0, cast(np.ndarray, table), join(*zip(*cells, strict=True)) if cells else None, step)


def weigh(weights: np.ndarray, X: np.ndarray, log_odds: Float32[np.ndarray, " B"]) -> Float32[np.ndarray, " B"]:
    """The log-odds of every decision with `w.x`, context by context."""
    out = np.empty(len(log_odds), np.float32)
    for a in range(0, len(out), 1 << 16):  # what is made stays in the cache
        at = slice(a, a + (1 << 16))
        out[at] = log_odds[at]
        for k in range(0, len(weights), KINDS):
            out[at] = np.clip(out[at] + weights[k : k + KINDS] @ X[k : k + KINDS, at].astype(np.float32), -MOST, MOST)
    return out


def join(cell: Sequence[UInt64[np.ndarray, " _"]], seen: Sequence[Statistics]) -> Cells:
    """Cells of ascending numbers, of some at a time, in small types."""
    high, fields = np.concatenate([part >> np.uint64(32) for part in cell]), []
    for parts in zip(*seen, strict=True):
        most = max(np.abs(part).max(initial=0) for part in parts)
        integers = np.issubdtype(parts[0].dtype, np.integer)
        kind = np.min_scalar_type(most) if integers else np.float16 if most < _half else np.float32
        fields.append(np.concatenate(parts, dtype=kind, casting="unsafe"))
    low = np.concatenate(cell, dtype=np.uint32, casting="unsafe")
    return Cells(low, np.searchsorted(high, np.arange(9)), Statistics(*fields))

"""Evidence for decisions, from cells and word vectors, and its mix by gates.

A *cell* is a context and a node of the tree. All runs on the host, where sorting is fastest, but for gates that learn.
"""

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Float32, Int, Integer, UInt32, UInt64
from scipy.sparse import csr_array
from scipy.special import expit

from jexplicit.data.tokenizers import PAD
from jexplicit.lm.counted.contexts import Decisions, Text, Tree, mix, word_vectors
from jexplicit.runs.devices import check_threads

KINDS = 3  # of evidence
MOST = 9.5  # of log-odds
LONG, PARTS = 1 << 25, 8  # decisions of a long text, and parts of its cells; one makes the table of states and the weights
SORTED_ONCE = 1 << 24  # decisions above which they are sorted again after a table is counted, to save memory
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
_kappa, _recent_kappa = 2.0, 0.7
_half = 1 << 15  # sums below it are kept in half precision, to a two-thousandth
_fade = 0.875 ** np.arange(256, dtype=np.float32)  # weights of what is so many decisions back; after 256 they are nothing
_chunk = 1 << 17  # decisions at a time, which fit a cache
_shard = 1 << 19  # decisions that are sorted at once
_precise = 1 << 23  # decisions above which evidence is kept in half precision
_alone = 1 << 23  # decisions above which a shard, mostly one cell, is sorted alone, to save memory
_keys_at_once = 1 << 26  # decisions whose keys are in memory at once
_time_bits = np.uint64(29)  # of a key, for the number of a decision and its bit

BLOCK = 64  # decisions from one change of the weights of gates to the next, about
CLIP = 8.0  # of directions
NO_BLOCKS = np.zeros(0, np.int64)  # of weights that stay as they are
_padded, _wider = (1 << 4, 1 << 8, 1 << 11), 16  # blocks that a call is padded to, and decisions that its blocks are
_rows, _wide = 1 << 14, 1 << 17  # decisions of a product, and of those that threads share
_parts = 4  # of a sum over decisions, which threads share
_sets = 1 << 13  # of every gate, so that gates share a program

_rank, _topic_rank, _span = 32, 64, 10  # of the layer on word vectors; tokens between those of a pair
_offsets, _windows = (1, 2), (20, 100)
_layer_ridge, _near = 200.0, 2.0  # of rows; the weight of S in F_n
_deepest, _of_group = 10, 1 << 15  # depth of nodes that share F, at most, and how many decisions share it, about
_places, _for_fisher = 1 << 15, 1 << 13  # at once; decisions that F is measured on, about
_decisions = 1 << 14  # at once


class Statistics(NamedTuple):
    """Sufficient statistics of cells, which add up."""

    n: np.ndarray  # decisions
    ones: np.ndarray  # among them
    last: np.ndarray  # the last decision, and two times the one before; 0 where there is none
    r: np.ndarray  # sum of y - p
    v: np.ndarray  # sum of p (1 - p)
    recent_r: np.ndarray  # with weights that fade
    recent_v: np.ndarray

    def then(self, after: "Statistics") -> "Statistics":
        """The statistics of what was seen first and after it, together."""
        last = np.where(after.n > 1, after.last, np.where(after.n == 1, after.last + 2 * (self.last & 1), self.last))
        fade = _fade[np.minimum(after.n, 255)]
        r, v = after.recent_r + fade * self.recent_r, after.recent_v + fade * self.recent_v
        return Statistics(self.n + after.n, self.ones + after.ones, last, self.r + after.r, self.v + after.v, r, v)


class View(NamedTuple):
    """The part of a text that a context sees."""

    training: bool = True  # the blocks before the place's own; in a text that is read later, the training text
    since: Int[np.ndarray, " L"] | None = None  # and the place's own block from this place on
    whole: bool = False  # all before a place


class Sorted(NamedTuple):
    """Decisions in the order of (cell, time), with cumulative sums from 0."""

    cell: UInt64[np.ndarray, " n"]
    time: Int[np.ndarray, " n"]  # the number of the decision
    y: Int[np.ndarray, " n"]
    b: Float32[np.ndarray, " n"]  # its base
    start: Int[np.ndarray, " n"]  # where the cell begins
    last: Int[np.ndarray, " n1"]  # the decision before, and two times the one before that, of whatever cell
    ones: Int[np.ndarray, " n1"]
    r: Float[np.ndarray, " n1"]
    v: Float[np.ndarray, " n1"]
    recent_r: Float32[np.ndarray, " n1"]
    recent_v: Float32[np.ndarray, " n1"]
    views: list[tuple[np.ndarray, np.ndarray | None]]  # intervals [begin, end) before each decision; None: up to itself

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

    A cell has 35 bits, of a hash of its context and node, the number of a decision 28, and its bit 1.
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
    """The entries of cells in a table, and fractions to the next bin."""
    zeros, ones = (_sizes.take(np.minimum(n, 121)) for n in (seen.n - seen.ones, seen.ones))
    x = np.clip(b / np.float32(_width) + np.float32(_bins // 2), 0, _bins - 1.001)
    j = x.astype(np.int32)
    return ((zeros * 12 + ones) * 4 + seen.last) * _bins + j, x - j


def evidence(seen: Statistics, b: Float32[np.ndarray, " n"], tables: np.ndarray, which: np.ndarray, least: int):
    """[n, 4] evidence over the log-odds b, and whether it is known.

    counted: log-odds of the decisions after the same counts of 0 and 1, the same last two and about the same b, less b
    residual: sum(y - p) / (sum p (1 - p) + 2), one Newton step for the cell's own correction of b
    recent: the same of the last decisions, the k-th one back with weight (7/8)^k, and .7 for 2

    tables: [T, states, bins] log-odds, of which each decision has one. least: decisions below which all is 0.
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
    """All cells of a context at the end of a text, sorted."""

    low: UInt32[np.ndarray, " U"]  # the lower 32 bits of their numbers
    first: Int[np.ndarray, " 9"]  # where numbers with 0, 1, ... 7 in the bits above begin, and U
    seen: Statistics  # in the smallest integers that hold them, and half precision where it holds them

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
    """The results of a pass over a text with one context."""

    x: Float[np.ndarray, "3 W"]
    known: Bool[np.ndarray, " W"]  # whether cells have seen enough
    table: Float32[np.ndarray, "states bins"]
    cells: Cells | None  # where they are kept
    step: Float32[np.ndarray, " _"]  # weights with which evidence was added to the base


def _within(time: Int[np.ndarray, " n"], wanted: Int[np.ndarray, "R 2"]) -> Int[np.ndarray, " n"]:
    """The number of each decision in some ascending ranges, or -1."""
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

    All decisions are sorted by (cell, time): what a cell has seen before one is an interval of that order, and each statistic a
    difference of two cumulative sums. Of a long text an eighth of the cells makes the table of states and the weights.

    h: [L] the context at each place. base: [B] log-odds. least: decisions that a cell must have seen before it says anything.
    wanted: [R, 2] first and end of ascending ranges of decisions whose evidence is returned; default, of all. table: of states;
    default, counted in this text, for each half of the cells in the other. before: cells of the training text, for a view of
    it. keep: whether to keep the cells. weights: of evidence, given [W, 3] of the decisions that are wanted, 0 of cells that
    were not read for it; the base of all decisions then changes in place.
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
        some = None if W == B or len(step) else np.flatnonzero(_within(s.time, wanted) >= 0)
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
                time = _within(time, wanted)
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


# Mixing


class Gate(NamedTuple):
    """Sets s of decisions that add `D_s . clip(U' x, +-8)` to the log-odds."""

    U: Float32[np.ndarray, "F K"]  # directions of the first F numbers of evidence
    ridge: Float32[np.ndarray, " K"]
    D: Float32[np.ndarray, "S K"]  # weights
    H: Float32[np.ndarray, "S K"]  # sums of p (1 - p) z^2, their curvature


def newton(X: Float[np.ndarray, "B F"], y: np.ndarray, start: np.ndarray, ridge: float, offset: np.ndarray | float = 0.0):
    """`argmin_w sum log(1 + exp(-+ (offset + X w))) + ridge/2 |w - start|^2`."""
    w, step, least = np.asarray(start, np.float64), np.zeros(len(start)), np.inf
    y = y.astype(np.float32)
    for _ in range(40):
        a = offset + X @ (w + step).astype(np.float32)
        loss = np.logaddexp(0, np.where(y > 0, -a, a)).sum(dtype=float) + ridge / 2 * ((w + step - start) ** 2).sum()
        if not loss <= least:
            step = step / 2
            if np.abs(step).max() < 1e-7:
                break
            continue
        w, least, p = w + step, loss, expit(a)
        g = X.T @ (p - y) + ridge * (w - start)
        v = p * (1 - p)
        F = (X * v[:, None]).T @ X
        step = -np.linalg.solve(F + ridge * np.eye(len(w)), g)
        if -g @ step < 1e-3:
            break
    return w


def log_likelihoods(bit: Integer[np.ndarray, " B"], log_odds: Float[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
    """`log p` of every decision, in nats."""
    return -np.logaddexp(0, (1 - 2 * bit.astype(np.float32)) * log_odds)


def directions(X, y, log_odds, sets, M, sets_in_all: int, size: int, ridge: float, halves: np.ndarray | None = None) -> Gate:
    """A gate of weights 0: directions in which the gradients of sets scatter.

    G_s = sum (y - p) x,  h_s = sum p (1 - p),  A = sum_s c_s^2 (G_s G_s' - F_s) / sum_s c_s^2 h_s^2,  c_s = 1 / (h_s + 3000)

    The ridge of a direction is the inverse of its variance in A (empirical Bayes), times `ridge`. With halves [B] of the text,
    0 and 1, the product of their gradients stands for the square less chance: errors of static cells repeat within a half.

    X: [F, B] evidence, of any floating type. y, log_odds, sets: [B] decisions, the mix so far, and the set of each, of
    sets_in_all. M: [F, F] whitening. size: K, directions at most.
    """
    p, half = expit(log_odds), np.zeros(len(y), int) if halves is None else halves.astype(int)
    h, M = np.bincount(sets, p * (1 - p), sets_in_all), M.astype(np.float32)
    c = 1 / (h + 3000)

    def sums(first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        G, chance = np.zeros((2 * sets_in_all, len(X))), np.zeros(M.shape)
        for at in (slice(a, min(a + _rows, end)) for a in range(first, end, _rows)):
            s, Z, error = sets[at], X[:, at].T.astype(np.float32) @ M, (y - p)[at]
            weight = (p * (1 - p))[at] * c[s] ** 2
            chance += (Z * weight.astype(np.float32)[:, None]).T @ Z
            G += csr_array((error, (half[at] * sets_in_all + s, np.arange(len(s)))), shape=(len(G), len(s))) @ Z
        return G, chance

    edges = [len(y) * part // _parts for part in range(_parts + 1)]
    found = [*threads().map(sums, edges[:-1], edges[1:])]
    G, chance = (np.sum([part[n] for part in found], axis=0) for n in range(2))
    one, two = G.reshape(2, sets_in_all, len(X)) * c[:, None]
    A = one.T @ one - chance if halves is None else 2 * (one.T @ two + two.T @ one)
    variance, U = np.linalg.eigh(A / (np.sum((c * h) ** 2) + 1e-12))
    wide, low = np.zeros((len(M), size), np.float32), np.full(size, np.inf, np.float32)  # a direction of no variance stays 0
    keep = np.flatnonzero(variance > 1e-9)[-size:]
    wide[:, : len(keep)], low[: len(keep)] = M @ U[:, keep], ridge / variance[keep]
    zeros = np.zeros((max(sets_in_all, _sets), size), np.float32)
    return Gate(wide, low, zeros, zeros)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _learn(D, H, ridge, z, log_odds, sets, y):
    """Log-odds with a gate's, and its weights after, block by block.

    `D += e z / (H + ridge)`, with e the error y - p after the step (an implicit step of Newton's method).
    """
    K = z.shape[-1]

    def step(W, block):  # W = [D, H], since a gather and a scatter cost more than all else
        z, a, s, y = block
        D, H = W[s, :K], W[s, K:]
        out = jnp.clip(a + jnp.sum(D * z, axis=1), -MOST, MOST)
        rate = z / (H + ridge[None])
        reach = jnp.sum(z * rate, axis=1)
        d = jnp.zeros_like(out)
        for _ in range(3):  # d = reach (y - sigma(out + d)), by Newton's method
            p = jax.nn.sigmoid(out + d)
            d = d - (d - reach * (y - p)) / (1 + reach * p * (1 - p))
        there = (y >= 0).astype(z.dtype)
        p, error = jax.nn.sigmoid(out), y - jax.nn.sigmoid(out + d)
        learned = (there * error)[:, None] * rate, (there * p * (1 - p))[:, None] * z * z
        return W.at[s].add(jnp.concatenate(learned, axis=1)), out

    W, out = jax.lax.scan(step, jnp.concatenate([D, H], axis=1), (z, log_odds, sets, y))
    return W[:, :K], W[:, K:], out


def blocks_of(place: Integer[np.ndarray, " B"], before: int = 0) -> Integer[np.ndarray, " B"]:
    """The block of every decision, by the first one of its token.

    >>> blocks_of(np.repeat(np.arange(20), 10))[[59, 60, 69, 70]].tolist()
    [0, 0, 0, 1]
    """
    new = np.append(True, place[1:] != place[:-1])[: len(place)]
    return (np.maximum.accumulate(np.where(new, np.arange(len(place)), 0)) + before) // BLOCK


def read_gate(
    gate: Gate, x, log_odds: np.ndarray, sets: np.ndarray, y: np.ndarray, blocks: Integer[np.ndarray, " learn"] = NO_BLOCKS
) -> tuple[np.ndarray, Gate]:
    """The log-odds of decisions with a gate's, and the gate after it has learned.

    x: [F, B] evidence, of any floating type. log_odds, sets, y: [B] before, of the gate, decisions. blocks: of the first
    decisions, `blocks_of` them.
    """
    B, learn, D, H, out = len(y), len(blocks), gate.D, gate.H, np.empty(len(y), np.float32)
    if learn:
        check_threads()
    first = np.flatnonzero(np.diff(blocks, prepend=-1))  # decision of each block
    row, column = np.repeat([np.arange(len(first)), first], np.diff(np.append(first, learn)), axis=1)
    column = np.arange(learn) - column
    wide = -(-max(column.max(initial=0) + 1, BLOCK + 1) // _wider) * _wider
    for n, e in itertools.pairwise([*first[:: _padded[-1]].tolist(), *range(learn, B, _wide), B]):
        at, parts = slice(n, e), (x[:, a : min(a + _rows, e)] for a in range(n, e, _rows))
        each = map if e - n <= _rows else threads().map
        z = np.concatenate([*each(lambda part: np.clip(part.T.astype(np.float32) @ gate.U, -CLIP, CLIP), parts)])
        if n >= learn:
            out[at] = np.clip(log_odds[at] + np.einsum("bk,bk->b", D[sets[at]], z), -MOST, MOST)
            continue
        some = row[at] - row[n], column[at]
        size = next(size for size in _padded if size > some[0][-1])
        Z, s = np.zeros((size, wide, gate.U.shape[1]), np.float32), np.zeros((size, wide), np.int32)
        a, of = np.zeros((2, size, wide), np.float32)
        Z[some], s[some], a[some], of[...], of[some] = z, sets[at], log_odds[at], -1, y[at]
        D, H, found = map(np.asarray, _learn(*map(jax.device_put, (np.array(D), np.array(H), gate.ridge, Z, a, s, of))))
        out[at] = found[some]
    return out, gate._replace(D=D, H=H)


class Described(NamedTuple):
    """Unit word vectors of tokens k back, and directions of their sums in windows."""

    table: Float32[np.ndarray, "N R"]
    offsets: tuple[int, ...]
    windows: tuple[int, ...]


class Layer(NamedTuple):
    """A softmax layer on word vectors, in closed form, and its weight `step`.

    theta_n = (h_n F_n + ridge S)^-1 G_n,      G_n = sum (y - p) z,      h_n = sum p (1 - p)

    for each node n. F_n is the mean of p (1 - p) z z' over decisions of nodes near n, per unit of p (1 - p), and S that of z z'
    over all places.
    """

    vectors: tuple[Described, ...]
    theta: Float32[np.ndarray, "nodes R"]
    step: float

    def evidence(self, text: Text, place: Integer[np.ndarray, " B"], node: Integer[np.ndarray, " B"]):
        """[B] `clip(theta_n . z, +-8)` of decisions in the order of their places."""
        out = np.empty(len(place), np.float32)
        for a in range(0, len(place), _decisions):
            at = slice(a, a + _decisions)
            new = np.append(True, np.diff(place[at]) > 0)[: len(place[at])]
            z, row = described(self.vectors, text, place[at][new]), np.cumsum(new) - 1
            out[at] = np.clip(np.einsum("br,br->b", z[row], self.theta[node[at]]), -CLIP, CLIP)
        return out


def described(vectors: tuple[Described, ...], text: Text, places: Integer[np.ndarray, " P"]) -> Float32[np.ndarray, "P R"]:
    """z of some ascending places of a text, 0 before the document."""
    found, start, ids = [], text.begin[places], text.ids
    for table, offsets, windows in vectors:
        for k in offsets:
            there = places - k > start
            found.append(table[ids[np.maximum(places - k, 0)]] * there[:, None])
        if windows:
            first = max(int(places[0]) - max(windows), 0)
            sums = np.cumsum(table[ids[first : places[-1]]], axis=0, dtype=np.float64)
            sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
            for W in (min(W, text.window or W) for W in windows):
                total = sums[places - first] - sums[np.maximum(np.maximum(start, places - W) - first, 0)]
                found.append((total / (np.linalg.norm(total, axis=1, keepdims=True) + 1e-6)).astype(np.float32))
    return np.concatenate([*found, np.full((len(places), 1), 0.3, np.float32)], axis=1)


def layer_rows(
    vectors: tuple[Described, ...], text: Text, d: Decisions, base: Float32[np.ndarray, " B"], tree: Tree
) -> Float32[np.ndarray, "blocks nodes R"]:
    """theta of the first 1, 2, ... blocks of a text."""
    R = sum(v.table.shape[1] * (len(v.offsets) + len(v.windows)) for v in vectors) + 1
    nodes, blocks = len(tree.length) - 1, int(d.block[-1]) + 1
    top, near = min(_deepest, max(len(d.bit) // _of_group, 1).bit_length() - 1), np.arange(nodes)
    for depth in range(top, tree.node.shape[1]):  # the ancestor at depth `top` of each node, which shares F
        there = tree.length > depth
        near[tree.node[there, depth]] = tree.node[there, top]
    tops, group = np.unique(near, return_inverse=True)
    every = max(1, len(d.bit) // (len(tops) * _for_fisher))
    G, h = np.zeros((blocks, nodes, R), np.float32), np.zeros((blocks, nodes))
    F, weight = np.zeros((len(tops), R, R), np.float32), np.zeros(len(tops))
    S, n = np.zeros((R, R)), 0  # G_n and h_n of each block, then of all before; F of each group times its weight
    first = np.append(np.flatnonzero(np.diff(d.place, prepend=-1)), len(d.bit))  # decision of each place
    for a in range(0, len(first) - 1, _places):
        e = min(a + _places, len(first) - 1)
        at, places = slice(first[a], first[e]), d.place[first[a:e]]
        z, p, node = described(vectors, text, places), 1 / (1 + np.exp(-base[at])), d.node[at].astype(np.int64)
        v, row = p * (1 - p), np.searchsorted(places, d.place[at])
        for block in np.unique(d.block[at]):
            some = d.block[at] == block
            error = csr_array(((d.bit[at] - p)[some], (node[some], row[some])), shape=(nodes, len(places)))
            touched = np.flatnonzero(np.diff(error.indptr))
            G[block, touched] += error[touched] @ z
            h[block] += np.bincount(node[some], v[some], nodes)
        S, n = S + z[::every].T @ z[::every], n + len(z[::every])
        own = group[node]
        measured = np.argsort(own, kind="stable")[::every]
        found, begin = np.unique(own[measured], return_index=True)
        for g, some in zip(found, np.split(measured, begin[1:]), strict=True):
            x = z[row[some]]
            F[g] += (x * v[some, None]).T @ x
            weight[g] += v[some].sum()
    S = S / n + 1e-5 * np.trace(S) / n / R * np.eye(R)
    whiten = np.linalg.inv(np.linalg.cholesky(S)).T.astype(np.float32)  # W' S W = 1
    np.cumsum(G, axis=0, out=G)
    np.cumsum(h, axis=0, out=h)
    for g in range(len(tops)):  # U' F U = diag(s) and U' S U = 1
        own = whiten.T @ (F[g] / (weight[g] + _near)) @ whiten + np.eye(R) * _near / (weight[g] + _near)
        s, turn = scipy.linalg.eigh(own, overwrite_a=True, check_finite=False)
        U, s, some = (whiten @ turn).astype(np.float32), s.astype(np.float32), np.flatnonzero(group == g)
        for k in range(blocks):
            G[k, some] = ((G[k, some] @ U) / (h[k, some, None] * s + _layer_ridge)) @ U.T
    return G


def solve_layer(
    text: Text, d: Decisions, base: Float32[np.ndarray, " B"], tree: Tree, at: Int[np.ndarray, " n"]
) -> tuple[Layer, Float32[np.ndarray, " n"]]:
    """A layer over log-odds, and evidence of decisions `at`, by the blocks before theirs.

    Its word vectors are those of pairs of neighbours, and of pairs at most ten tokens apart.
    """
    N, ids = len(tree.length), text.ids.astype(np.int64)
    C = csr_array((np.ones(len(ids) - 1, np.int64), (ids[1:], ids[:-1])), shape=(N, N))
    pairs = csr_array((N, N), dtype=np.int64)
    for k in range(1, _span + 1):
        there = (np.arange(len(ids) - k) > text.begin[k:]) & (ids[k:] != PAD) & (ids[:-k] != PAD)
        i, j = ids[k:][there], ids[:-k][there]
        pairs = pairs + csr_array((np.ones(len(i), np.int64), (i, j)), shape=(N, N))
    found = ([C, C.T.tocsr()], _rank), ([(pairs + pairs.T).tocsr()], _topic_rank)
    near, far = (word_vectors(*of).astype(np.float32) for of in found)
    near[PAD] = far[PAD] = 0
    vectors = Described(near, _offsets, ()), Described(far, (), _windows)
    theta, x, block = layer_rows(vectors, text, d, base, tree), np.zeros(len(at), np.float32), d.block[at]
    for k in range(1, len(theta)):
        some = at[block == k]
        x[block == k] = Layer(vectors, theta[k - 1], 1.0).evidence(text, d.place[some], d.node[some])
    return Layer(vectors, theta[-1].copy(), 1.0), x

"""Counts of what follows contexts, which grow as a text is read.

A context is a number (`jexplicit.lm.rows.past.keys`), and a *cell* is a context and a token that followed it, packed in 64
bits. A table is a few sorted runs of cells: what is read makes a new run, and runs of about one size are merged, so that a
token costs little however many are there. A block of positions sees the counts before each of them exactly: those of the runs,
and those of the positions before it in the block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from jexplicit.lm.tables.storage import ranges


class Run(NamedTuple):
    """Sorted cells, and how often each occurred."""

    cells: UInt64[np.ndarray, " E"]
    counts: Int[np.ndarray, " E"]  # int32


class Followers(NamedTuple):
    """What followed the context of each of B positions before it: row m has `tokens[start[m]:start[m + 1]]`, sorted.

    start: [B + 1].
    tokens, counts: [E].
    totals: [B] how often the context occurred.
    """

    start: Int[np.ndarray, " B_plus_1"]
    tokens: Int[np.ndarray, " E"]
    counts: Int[np.ndarray, " E"]
    totals: Int[np.ndarray, " B"]

    @property
    def different(self) -> Int[np.ndarray, " B"]:
        """How many different tokens followed."""
        return np.diff(self.start)

    @property
    def rows(self) -> Int[np.ndarray, " E"]:
        """The position of every entry."""
        return np.repeat(np.arange(len(self.totals)), self.different)


def token_bits(N: int) -> np.uint64:
    """The bits of a cell that are its token's."""
    return np.uint64(max(1, (N - 1).bit_length()))


def cells_of(keys: UInt64[np.ndarray, " B"], tokens: Int[np.ndarray, " B"], N: int) -> UInt64[np.ndarray, " B"]:
    """Contexts and tokens packed; of N tokens. A context keeps its high bits."""
    bits = token_bits(N)
    return keys >> bits << bits | tokens.astype(np.uint64)


def count_run(cells: UInt64[np.ndarray, " B"]) -> Run:
    """The different cells of a text, and their counts."""
    cells, counts = np.unique(cells, return_counts=True)
    return Run(cells, counts.astype(np.int32))


def add_run(runs: Sequence[Run], new: Run) -> tuple[Run, ...]:
    """The runs and a new one; the last ones are merged until each is at most half as long as the one before."""
    runs = [*runs, new]
    while len(runs) > 1 and 2 * len(runs[-1].cells) > len(runs[-2].cells):
        one, other = runs.pop(), runs.pop()
        cells, which = np.unique(np.concatenate([other.cells, one.cells]), return_inverse=True)
        runs.append(Run(cells, np.bincount(which, np.concatenate([other.counts, one.counts])).astype(np.int32)))
    return tuple(runs)


def followers(
    keys: UInt64[np.ndarray, " B"],
    tokens: Int[np.ndarray, " B"],
    N: int,
    runs: Sequence[Run] = (),
    begun: Sequence[Run] = (),
    own_keys: UInt64[np.ndarray, " B"] | None = None,
) -> Followers:
    """What followed the context of each position of a block before it, in the runs and in the block.

    Args:
        keys: [B] contexts of the positions.
        tokens: [B] what follows each; -1 for a token that is not counted.
        N: tokens.
        runs: counts of the text before the block.
        begun: counts of another text, which are added.
        own_keys: [B] keys of the same contexts in `begun`; default, `keys`.

    Example:
        >>> keys = np.array([1, 2, 1, 1], np.uint64) << np.uint64(8)
        >>> found = followers(keys, np.array([5, 6, 5, 7]), 8)  # 5 followed context 1 once, then twice
        >>> found.start.tolist(), found.tokens.tolist(), found.counts.tolist(), found.totals.tolist()
        ([0, 0, 0, 1, 2], [5, 5], [1, 2], [0, 0, 1, 2])
    """
    bits, B = token_bits(N), len(keys)
    one, counted = np.uint64(1) << bits, tokens >= 0
    distinct, some, group, often = np.unique(keys >> bits, return_index=True, return_inverse=True, return_counts=True)
    parts, before = [cells_of(keys, tokens, N)[counted]], [np.zeros(int(counted.sum()), np.int64)]
    sought = {id(run): (keys if own_keys is None else own_keys)[some] >> bits for run in begun}
    for run in (*runs, *begun):
        context = sought.get(id(run), distinct) << bits
        low, high = (
            np.searchsorted(run.cells, context),
            np.searchsorted(run.cells, context + (one - np.uint64(1)), side="right"),
        )
        own = ranges(low, high)
        parts.append(np.repeat(distinct << bits, high - low) | run.cells[own] & (one - np.uint64(1)))
        before.append(run.counts[own])
    cells, which = np.unique(np.concatenate(parts), return_inverse=True)
    at_start = np.bincount(which, np.concatenate(before), len(cells)).astype(np.int64)
    of_group = np.searchsorted(distinct, cells >> bits)
    # a column of counts for each cell, with a line for each position of its context, in the order of the text
    lines = often[of_group]
    first, begins = np.cumsum(lines) - lines, np.cumsum(often) - often
    in_order = np.argsort(group, kind="stable")
    rank = np.empty(B, np.int64)
    rank[in_order] = np.arange(B) - np.repeat(begins, often)
    later = rank[counted] + 1  # the line from which on a token has been seen
    added = np.bincount((first[which[: len(later)]] + later)[later < often[group[counted]]], minlength=int(lines.sum()))
    running = np.cumsum(added)
    counts = running - np.repeat(running[first] - added[first] - at_start, lines)
    seen = np.flatnonzero(counts)
    cell = np.repeat(np.arange(len(cells)), lines)[seen]
    position, counts = in_order[begins[of_group[cell]] + seen - first[cell]], counts[seen]
    order = np.argsort(position, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(position, minlength=B))])
    found = (cells[cell[order]] & (one - np.uint64(1))).astype(np.int64)
    return Followers(start, found, counts[order], np.bincount(position, counts, B).astype(np.int64))

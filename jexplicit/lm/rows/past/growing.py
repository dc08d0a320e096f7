"""Counts of what follows contexts, which grow as a text is read.

A context is a number (`jexplicit.lm.rows.past.keys`), and a *cell* is a context and a token that followed it, packed in 64
bits. A table is a few sorted runs of cells: what is read makes a new run, and runs of about one size are merged, so that a
token costs little however many are there. A block of positions sees the counts before each of them exactly: those of the runs,
and those of the positions before it in the block.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt64
from scipy.sparse import csr_array

from jexplicit.lm.rows.ngrams import confidence_of
from jexplicit.lm.tables.storage import SparseRows, ranges

R = TypeVar("R", bound=Any)


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


def merge_runs(one: Run, other: Run) -> Run:
    """The counts of two runs."""
    cells, which = np.unique(np.concatenate([one.cells, other.cells]), return_inverse=True)
    return Run(cells, np.bincount(which, np.concatenate([one.counts, other.counts])).astype(np.int32))


def add_run(runs: Sequence[R], new: R, merge: Callable[[R, R], R] = merge_runs) -> tuple[R, ...]:
    """The runs and a newer one; the last ones are merged until each is at most half as long as the one before.

    Args:
        runs: of any kind whose first field is their sorted numbers, the oldest first.
        new: after them.
        merge: of an older and a newer run.
    """
    runs = [*runs, new]
    while len(runs) > 1 and 2 * len(runs[-1][0]) > len(runs[-2][0]):
        newer, older = runs.pop(), runs.pop()
        runs.append(merge(older, newer))
    return tuple(runs)


def followers(
    keys: UInt64[np.ndarray, " B"],
    tokens: Int[np.ndarray, " B"],
    N: int,
    runs: Sequence[Run] = (),
    begun: Sequence[Run] = (),
    own_keys: UInt64[np.ndarray, " B"] | None = None,
    m: Int[np.ndarray, " n"] | None = None,
) -> Followers:
    """What followed the context of positions of a block before each of them, in the runs and in the block.

    Args:
        keys: [B] contexts of the positions.
        tokens: [B] what follows each; -1 for a token that is not counted.
        N: tokens.
        runs: counts of the text before the block.
        begun: counts of another text, which are added.
        own_keys: [B] keys of the same contexts in `begun`; default, `keys`.
        m: which of the positions; default, all.

    Example:
        >>> keys = np.array([1, 2, 1, 1], np.uint64) << np.uint64(8)
        >>> found = followers(keys, np.array([5, 6, 5, 7]), 8)  # 5 followed context 1 once, then twice
        >>> found.start.tolist(), found.tokens.tolist(), found.counts.tolist(), found.totals.tolist()
        ([0, 0, 0, 1, 2], [5, 5], [1, 2], [0, 0, 1, 2])
    """
    bits, m = token_bits(N), np.arange(len(keys)) if m is None else m
    distinct, some, group = np.unique(keys >> bits, return_index=True, return_inverse=True)
    before: Any = csr_array((len(distinct), N), dtype=np.int32)
    for part, contexts in ((runs, distinct), (begun, distinct if own_keys is None else own_keys[some] >> bits)):
        for run in part:
            before = before + _counts_after(run, contexts << bits, N)
    counted = np.flatnonzero(tokens >= 0)
    one_hot: Any = csr_array((np.ones(len(counted), np.int32), (counted, tokens[counted])), shape=(len(keys), N))
    in_block = (_earlier(group, m) @ one_hot).sorted_indices()
    c = before[group[m]] + in_block
    return Followers(c.indptr.astype(np.int64), c.indices, c.data, np.asarray(c.sum(axis=1), np.int64))


def _counts_after(run: Run, contexts: UInt64[np.ndarray, " n"], N: int) -> Any:
    """The counts of a run after some contexts: [n, N]."""
    of_token = (np.uint64(1) << token_bits(N)) - np.uint64(1)
    low, high = np.searchsorted(run.cells, contexts), np.searchsorted(run.cells, contexts | of_token, side="right")
    own = ranges(low, high)
    start = np.concatenate([[0], np.cumsum(high - low)])
    return csr_array((run.counts[own], (run.cells[own] & of_token).astype(np.int32), start), shape=(len(contexts), N))


def _earlier(group: Int[np.ndarray, " B"], m: Int[np.ndarray, " n"]) -> Any:
    """1 where a position of a block stands before position m and has its context: [n, B]."""
    B, order = len(group), np.argsort(group, kind="stable")
    place = np.empty(B, np.int64)  # positions by context, in the order of the text
    place[order] = np.arange(B)
    first = np.searchsorted(group[order], group[m])
    start = np.concatenate([[0], np.cumsum(place[m] - first)])
    columns = order[ranges(first, place[m])]
    return csr_array((np.ones(len(columns), np.int32), columns, start), shape=(len(m), B))


class Row(NamedTuple):
    """A row at B positions: a table, and which exponent each position takes."""

    table: Any
    bucket: Int[np.ndarray, " B"]


def counted_row(
    keys: UInt64[np.ndarray, " B"],
    tokens: Int[np.ndarray, " B"],
    N: int,
    *known: Any,
    base: Any,
    D: float,
) -> tuple[Row, tuple[np.ndarray, np.ndarray]]:
    """The row of a context over a base at positions of a block, and its own q, where tokens were seen.

    Args:
        keys, tokens, N, known: those of `followers`.
        base: [n, N] probabilities, or the q of a shorter context.
        D: the discount.
    """
    start, followed, counts, n = followers(keys, tokens, N, *known)
    d = np.diff(start).astype(np.int32)
    position = np.repeat(np.arange(len(n), dtype=np.min_scalar_type(-max(len(n), 1) * N)), d)
    entry = position * N + followed
    b = base[1][np.searchsorted(base[0], entry)] if isinstance(base, tuple) else base.reshape(-1)[entry]
    freed = np.repeat((D * d).astype(b.dtype), d) * b
    kept = np.maximum(counts - b.dtype.type(D), 0)
    rows = SparseRows(start, followed.astype(np.min_scalar_type(N - 1)), np.log1p(kept / freed))
    return Row(rows, confidence_of(n, d)), (entry, (kept + freed) / np.repeat(n.astype(b.dtype), d))


def add_block(runs: Sequence[Run], keys: UInt64[np.ndarray, " B"], tokens: Int[np.ndarray, " B"], N: int) -> tuple[Run, ...]:
    """The counts of a text with those of its next block."""
    return add_run(runs, count_run(cells_of(keys, tokens, N)[tokens >= 0]))


def joined_rows(parts: Sequence[Row]) -> tuple[Any, Int[np.ndarray, " M"], None, Int[np.ndarray, " M"]]:
    """Rows of one block after the other as one table; the row of each position, and its exponent."""
    heights = [len(part.table.start) - 1 if isinstance(part.table, SparseRows) else len(part.table) for part in parts]
    n = [len(part.bucket) for part in parts]
    rows = ranges(np.cumsum([0, *heights[:-1]]), np.cumsum([0, *heights[:-1]]) + n)
    return _joined([part.table for part in parts]), rows, None, np.concatenate([part.bucket for part in parts])


def _joined(tables: Sequence[Any]) -> Any:
    if not isinstance(tables[0], SparseRows):
        return (np if isinstance(tables[0], np.ndarray) else jnp).concatenate(tables)
    start = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(table.start) for table in tables]))])
    return SparseRows(start, *(np.concatenate([table[i] for table in tables]) for i in (1, 2)))

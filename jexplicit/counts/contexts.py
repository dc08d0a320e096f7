"""Counts of contexts of several ids, and of the contexts that they extend: one sort of the text for all lengths.

A position is one integer, its ids as digits, the first the most significant, and its target the last: in sorted order equal
contexts of every length stand side by side. The pairs (context, target) of a shorter length are made from the distinct ones of
the next longer one, of which there are fewer than positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Integer

_largest = 2**63 - 1


class Level(NamedTuple):
    """The contexts of one length, numbered in the order of their ids; those of a single id have it as their number.

    contexts: sorted keys `number of the shorter context * ids + id`; for single ids, all of them.
    totals: how often each occurred.
    keys: sorted keys `context * N + target` of the pairs that occurred.
    counts: of the longest contexts how often; of shorter ones in how many contexts that are an id longer.
    """

    contexts: Int[np.ndarray, " C"]
    totals: Int[np.ndarray, " C"]
    keys: Int[np.ndarray, " E"]
    counts: Int[np.ndarray, " E"]


def count_contexts(
    columns: Sequence[Integer[np.ndarray, " M"]], Y: Integer[np.ndarray, " M"], sizes: Sequence[int], vocab_size: int
) -> list[Level]:
    """Count the contexts of 1, 2, ... ids before the targets.

    Args:
        columns: the ids of every position, in the order in which a context grows.
        Y: [M] targets.
        sizes: how many ids each column has.
        vocab_size: N, how many targets there are.

    Example:
        >>> one, two = count_contexts([np.array([1, 1, 1]), np.array([0, 2, 2])], np.array([1, 1, 1]), (3, 3), 2)
        >>> one.keys.tolist(), one.counts.tolist()  # id 1 before target 1, in the contexts (1, 0) and (1, 2)
        ([3], [2])
        >>> two.contexts.tolist(), two.counts.tolist()
        ([3, 5], [1, 2])
    """
    N = vocab_size
    (number, *longer), y, n = _distinct(columns, Y, sizes, N)
    begins = np.concatenate([[True], number[1:] != number[:-1]])
    contexts = [np.arange(sizes[0])]
    totals = [np.bincount(number, n, minlength=sizes[0]).astype(np.int32)]
    for c, size in zip(longer, sizes[1:], strict=True):
        begins[1:] |= c[1:] != c[:-1]
        contexts.append(number[begins].astype(np.int64) * size + c[begins])
        number = np.cumsum(begins, dtype=np.int32) - 1
        totals.append(np.bincount(number, n).astype(np.int32))
    pairs = [(number.astype(np.int64) * N + y, n)]
    del number, y, n, longer, begins  # large, as is all that follows
    for level in range(len(contexts) - 1, 0, -1):
        context, y = np.divmod(pairs[-1][0], N)
        keys = (contexts[level] // sizes[level])[context]
        keys *= N
        keys += y
        del context, y
        keys, counts = np.unique(keys, return_counts=True)
        pairs.append((keys, counts.astype(np.int32)))
    return [Level(*level) for level in zip(contexts, totals, *zip(*reversed(pairs), strict=True), strict=True)]


def _distinct(
    columns: Sequence[np.ndarray], Y: np.ndarray, sizes: Sequence[int], N: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The different (ids, target) in their order, and how often each occurs."""
    key, bound, steps = columns[0].astype(np.int64), sizes[0], []
    for digit, size in (*zip(columns[1:], sizes[1:], strict=True), (Y, N)):
        if bound * size > _largest:  # the key would grow too large: its values are numbered
            values, key = np.unique(key, return_inverse=True)
            steps.append(values)
            bound = len(values)
        key, bound = key * size + digit, bound * size
        steps.append(size)
    key, n = np.unique(key, return_counts=True)
    n, digits = n.astype(np.int32), []
    for step in reversed(steps):
        if isinstance(step, np.ndarray):
            key = step[key]
        else:
            key, digit = np.divmod(key, step)
            digits.append(digit.astype(np.min_scalar_type(step)))
    *ids, y = key, *reversed(digits)
    return ids, y, n

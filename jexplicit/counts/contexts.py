"""Contexts of several tokens and shorter ones, counted by one sort.

A position is one integer, its ids as digits, the first the most significant, and its target the last: in sorted order equal
contexts of every length stand side by side. The pairs (context, target) of a shorter length are made from the distinct ones of
the next longer one, of which there are fewer than positions.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Integer

_largest = 2**63 - 1


class ContextLevel(NamedTuple):
    """The contexts of one length, numbered in the order of ids.

    contexts: sorted keys `number of the shorter context * N + id`; for single ids, all of them.
    start: the pairs of context c are start[c] .. start[c + 1] - 1.
    outputs: the target of every pair that occurred, sorted within a context.
    counts: of the longest contexts how often it did; of shorter ones in how many contexts that are an id longer.
    """

    contexts: Int[np.ndarray, " C"]
    start: Int[np.ndarray, " C_plus_1"]
    outputs: Integer[np.ndarray, " E"]
    counts: Int[np.ndarray, " E"]

    def part(self, c: slice) -> "ContextLevel":
        """Some contexts beside each other."""
        pairs = slice(self.start[c.start], self.start[c.stop])
        start = self.start[c.start : c.stop + 1] - pairs.start
        return ContextLevel(self.contexts[c], start, self.outputs[pairs], self.counts[pairs])

    def of_pairs(self, values: np.ndarray) -> np.ndarray:
        """The value of its context for every pair."""
        return np.repeat(values, np.diff(self.start))

    def keys(self, contexts: Int[np.ndarray, " C"], N: int) -> Int[np.ndarray, " E"]:
        """`context * N + target` of every pair, with other numbers for the contexts."""
        keys = self.of_pairs(np.multiply(contexts, N, dtype=np.int64))
        keys += self.outputs
        return keys


def count_contexts(X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], vocab_size: int) -> list[ContextLevel]:
    """Count the contexts of 1, 2, ... tokens before the targets.

    Args:
        X: [M, K] contexts, nearest token first.
        Y: [M] targets.
        vocab_size: N, the number of token ids.

    Example:
        >>> one, two = count_contexts(np.array([[1, 0], [1, 2], [1, 2]]), np.array([1, 1, 1]), 3)
        >>> one.start.tolist(), one.outputs.tolist(), one.counts.tolist()  # id 1 before target 1, in contexts (1, 0) and (1, 2)
        ([0, 0, 1, 1], [1], [2])
        >>> two.contexts.tolist(), two.counts.tolist()
        ([3, 5], [1, 2])
    """
    N = vocab_size
    (number, *longer), y, n = distinct_positions(X, Y, N)
    begins = np.concatenate([[True], number[1:] != number[:-1]])
    contexts, start = [np.arange(N)], starts_of(number, N)
    for c in longer:
        begins[1:] |= c[1:] != c[:-1]
        first = np.flatnonzero(begins).astype(start.dtype)
        key = number[first].astype(np.int64)
        key *= N
        key += c[first]
        contexts.append(key)
        number = np.cumsum(begins, dtype=np.int32)
        number -= 1
        start = np.append(first, start[-1:])
    pairs = [(start, y.astype(np.min_scalar_type(N - 1)), n)]
    del number, y, n, longer, begins, start  # large, as is all that follows
    for level in range(len(contexts) - 1, 0, -1):
        keys = ContextLevel(contexts[level], *pairs[-1]).keys(contexts[level] // N, N)
        pairs.append(rows_of_keys(*tally(keys), len(contexts[level - 1]), N))
    return [ContextLevel(c, *pair) for c, pair in zip(contexts, reversed(pairs), strict=True)]


def rows_of_keys(
    keys: Integer[np.ndarray, " E"], counts: Int[np.ndarray, " E"], contexts: int, vocab_size: int
) -> tuple[Int[np.ndarray, " C_plus_1"], Integer[np.ndarray, " E"], Int[np.ndarray, " E"]]:
    """Starts of contexts, targets and counts of sorted keys `context * N + target`.

    Example:
        >>> [part.tolist() for part in rows_of_keys(np.array([1, 5, 6]), np.array([4, 1, 2]), 3, 4)]
        [[0, 1, 3, 3], [1, 1, 2], [4, 1, 2]]
    """
    context, y = quotient_and_rest(keys, vocab_size)
    return starts_of(context, contexts), y.astype(np.min_scalar_type(vocab_size - 1)), counts


def starts_of(numbers: np.ndarray, n: int) -> np.ndarray:
    """Where each of n numbers starts among sorted ones."""
    start = np.zeros(n + 1, np.int32 if len(numbers) < 1 << 31 else np.int64)
    np.cumsum(np.bincount(numbers, minlength=n), out=start[1:])
    return start


def tally(keys: Integer[np.ndarray, " M"]) -> tuple[Integer[np.ndarray, " E"], Int[np.ndarray, " E"]]:
    """The different keys in order with their counts; keys are sorted in place.

    Example:
        >>> [part.tolist() for part in tally(np.array([5, 3, 5]))]
        [[3, 5], [1, 2]]
    """
    keys.sort()
    first = np.flatnonzero(np.concatenate([np.ones(min(len(keys), 1), bool), keys[1:] != keys[:-1]]))
    n = np.full(len(first), len(keys), np.int32)
    n[:-1] = first[1:]
    n -= first.astype(np.int32)
    return keys[first], n


def sum_runs(values: np.ndarray, start: Int[np.ndarray, " C_plus_1"]) -> np.ndarray:
    """`sum_e values[e]` over start[c] <= e < start[c + 1], for many short runs.

    Example:
        >>> sum_runs(np.array([1, 2, 3]), np.array([0, 2, 2, 3])).tolist()
        [3, 0, 3]
    """
    until = np.concatenate([[0], np.cumsum(values)])
    return until[start[1:]] - until[start[:-1]]


def quotient_and_rest(keys: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Quotient and remainder; NumPy's own take ten times as long."""
    quotient = keys // size
    rest = quotient * size
    return quotient, np.subtract(keys, rest, out=rest)


def distinct_positions(
    X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], N: int
) -> tuple[list[Integer[np.ndarray, " E"]], Integer[np.ndarray, " E"], Int[np.ndarray, " E"]]:
    """The different (ids, target) in their order, and how often each occurs.

    Example:
        >>> ids, y, n = distinct_positions(np.array([[2], [0], [2]]), np.array([1, 1, 1]), 3)
        >>> ids[0].tolist(), y.tolist(), n.tolist()
        ([0, 2], [1, 1], [1, 2])
    """
    key, bound, steps = X[:, 0].astype(np.int64), N, []
    for digit in (*X.T[1:], Y):
        if bound * N > _largest:  # the key would grow too large: its values are numbered
            values, key = np.unique(key, return_inverse=True)
            steps.append(values)
            bound = len(values)
        key *= N
        key += digit
        bound *= N
        steps.append(None)
    key, n = tally(key)
    digits: list[np.ndarray] = []
    for step in reversed(steps):
        if step is not None:
            key = step[key]
        else:
            key, digit = quotient_and_rest(key, N)
            digits.append(digit.astype(np.min_scalar_type(N)))
    *ids, y = key, *reversed(digits)
    return ids, y, n

"""Contexts as numbers: functions from a block of contexts [B, K], nearest token first, to 64-bit keys [B].

Equal contexts have equal keys. A new context function is a few lines: register it in CONTEXTS.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer, UInt64

Keys = UInt64[np.ndarray, " B"]
_prime, _shift = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


class Block(NamedTuple):
    """Contexts of a block, and what is known of their tokens.

    X: [B, K] token ids, nearest first.
    letters, ends: [N] which tokens are letters, or ends of lines; None where tokens are no characters.
    """

    X: Integer[np.ndarray, "B K"]
    letters: Bool[np.ndarray, " N"] | None = None
    ends: Bool[np.ndarray, " N"] | None = None


def mix(h: Keys, x: Any) -> Keys:
    """A hash of h and x."""
    h = (h ^ (np.asarray(x).astype(np.uint64) + np.uint64(1))) * _prime
    return h ^ h >> _shift


def hashed(*columns: Any) -> Keys:
    """A key of several columns of numbers."""
    h = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        h = mix(h, column)
    return mix(h, len(columns))


def last(k: int, block: Block) -> Keys:
    """The last k tokens."""
    return hashed(*block.X[:, :k].T) if k else np.zeros(len(block.X), np.uint64)


def gap(offsets: tuple[int, ...], block: Block) -> Keys:
    """The tokens at some offsets."""
    return hashed(*(block.X[:, k - 1] for k in offsets))


def word(n: int, block: Block) -> Keys:
    """The n-th word before the current one; the part of the current word for n = 0."""
    inside = _letters(block)[block.X]
    run = np.cumsum(np.diff(inside, axis=1, prepend=inside[:, :1]), axis=1) + ~inside[:, :1]  # of letters, or of others
    wanted = (run == 2 * n) & inside
    h = np.zeros(len(block.X), np.uint64)
    for t in range(block.X.shape[1]):
        h = np.where(wanted[:, t], mix(h, block.X[:, t]), h)
    return h


def since(block: Block) -> Keys:
    """What stands since the end of the last word: other characters, and the part of the word."""
    inside = _letters(block)[block.X]
    run = np.cumsum(np.diff(inside, axis=1, prepend=inside[:, :1]), axis=1) + ~inside[:, :1]
    h = np.zeros(len(block.X), np.uint64)
    for t in range(block.X.shape[1]):
        h = np.where(run[:, t] < 2, mix(h, block.X[:, t]), h)
    return h


def column(block: Block) -> Int[np.ndarray, " B"]:
    """Tokens since the end of the last line, as far as the context goes."""
    assert block.ends is not None
    return np.cumprod(~block.ends[block.X], axis=1).sum(axis=1)


def line(block: Block) -> Keys:
    """The line so far."""
    n = column(block)
    h = np.zeros(len(block.X), np.uint64)
    for t in range(block.X.shape[1]):
        h = np.where(t < n, mix(h, block.X[:, t]), h)
    return h


def _letters(block: Block) -> np.ndarray:
    if block.letters is None:
        raise ValueError("contexts of words and no letters: they are for texts of characters")
    return block.letters


def together(*functions: Callable[[Block], Any]) -> Callable[[Block], Keys]:
    """Several contexts as one."""
    return lambda block: hashed(*(f(block) for f in functions))


part, one, two = (partial(word, n) for n in range(3))
CONTEXTS: dict[str, Callable[[Block], Keys]] = {
    **{f"last {k}": partial(last, k) for k in range(33)},
    "since": since,
    "part": part,
    "word part": together(since, one),
    "words part": together(part, one, two),
    "word before": together(one, partial(last, 1)),
    "second word": together(part, two),
    "line": line,
    "column": together(column, partial(last, 1)),
    "gap 2": partial(gap, (2,)),
    "gap 2-3": partial(gap, (2, 3)),
    "gap 2-4": partial(gap, (2, 3, 4)),
    "gap 3-5": partial(gap, (3, 4, 5)),
    "gap 1, 3": partial(gap, (1, 3)),
    "gap 1, 3, 4": partial(gap, (1, 3, 4)),
}
"""Contexts by name."""

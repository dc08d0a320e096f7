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
    made: what several contexts need, by name.
    """

    X: Integer[np.ndarray, "B K"]
    letters: Bool[np.ndarray, " N"] | None
    ends: Bool[np.ndarray, " N"] | None
    made: dict[str, np.ndarray]


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
    return _where(block, f"word {n}", _runs(block) == 2 * n)


def since(block: Block) -> Keys:
    """What stands since the end of the last word: other characters, and the part of the word."""
    return _where(block, "since", _runs(block) < 2)


def _runs(block: Block) -> Int[np.ndarray, "B K"]:
    """The number of the run of letters (even) or of other characters (odd) of each token, from the place backwards."""
    if block.letters is None:
        raise ValueError("contexts of words and no letters: they are for texts of characters")
    if "runs" not in block.made:
        inside = block.letters[block.X]
        changes = np.diff(inside, axis=1, prepend=True)  # a place after another character has an empty part of a word
        block.made["runs"] = np.cumsum(changes, axis=1, dtype=np.int8)
    return block.made["runs"]


def _where(block: Block, name: str, wanted: Bool[np.ndarray, "B K"]) -> Keys:
    """A key of the tokens that are wanted, nearest first."""
    if name not in block.made:
        h = np.zeros(len(block.X), np.uint64)
        for t in np.flatnonzero(wanted.any(axis=0)):
            h = np.where(wanted[:, t], mix(h, block.X[:, t]), h)
        block.made[name] = h
    return block.made[name]


def column(block: Block) -> Int[np.ndarray, " B"]:
    """Tokens since the end of the last line, as far as the context goes."""
    assert block.ends is not None
    ended = block.ends[block.X]
    return np.where(ended.any(axis=1), ended.argmax(axis=1), ended.shape[1])


def line(block: Block) -> Keys:
    """The line so far."""
    return _where(block, "line", np.arange(block.X.shape[1]) < column(block)[:, None])


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

"""Contexts of several tokens as sparse rows: the n-gram model.

A context h of several tokens extends a shorter one h' by a token further back. Its smoothed row backs off to the row of h',

    P(i|h) = (C(h, i) - D) / C(h) + γ(h) P(i|h'),      row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),

so that the rows of h, h', ... add up to log P(i|h). An output that never followed h has row_h[i] = 0, hence a row holds only
what was seen: the table is sparse, and a context that never occurred adds nothing, which is an exact back-off.
"""

import functools
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.counts.contexts import ContextLevel, count_contexts, quotient_and_rest, starts_of, sum_runs
from jexplicit.lm.core.smoothing import counts_of_counts, discounts_of, relative_frequencies, smooth_pairs
from jexplicit.lm.tables.storage import SparseRows, find_entry

_pairs_per_block = 1 << 20


class Children(NamedTuple):
    """The contexts that extend shorter ones by a token: those of context r are start[r] .. start[r + 1] - 1, in the order of
    their tokens. The number of a one-token context is the token."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


class Ngrams(NamedTuple):
    """Smoothed rows of the contexts of one, two, ... tokens, each found in the text at the given offsets.

    offsets: of the tokens, in the order in which they are added to the context.
    children: of every level but the last.
    rows: of every level.
    lower: [N] the distribution that the first level backs off to, in the precision of the smoothing.
    log_gamma: of every level, the log of what each context leaves to the shorter one; 0 where it never occurred.
    """

    offsets: tuple[int, ...]
    children: tuple[Children, ...]
    rows: tuple[SparseRows, ...]
    lower: Any
    log_gamma: tuple[Float[Array, " _"], ...]


def context_numbers(
    children: tuple[Children, ...], offsets: tuple[int, ...], context: Integer[Array, " K"]
) -> Int[Array, " levels"]:
    """The number of the context of every level, -1 where it never occurred: a binary search per level, pure.

    Example:
        >>> X, Y = np.array([[1, 0], [2, 1]]), np.array([2, 1])
        >>> ngrams = smoothed_ngrams(X, Y, offsets=(1, 2), vocab_size=3)
        >>> [context_numbers(ngrams.children, (1, 2), jnp.array(x)).tolist() for x in ([2, 1], [2, 2])]
        [[2, 1], [2, -1]]
    """
    numbers = [context[offsets[0] - 1].astype(jnp.int32)]
    for level, offset in zip(children, offsets[1:], strict=True):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[offset - 1].astype(jnp.int32), most))
    return jnp.stack(numbers)


def smoothed_ngrams(
    X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, offsets: tuple[int, ...], vocab_size: int
) -> Ngrams:
    """Count and smooth the contexts at some offsets: modified Kneser-Ney rows of every length up to `len(offsets)`.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Args:
        X: [M, K] contexts, nearest token first.
        Y: [M] targets.
        offsets: (1, 2, 3, 4) for the n-gram model of order 5; (1, 3) for a pair with a gap. Each at most K.
        vocab_size: N.

    Raises:
        ValueError: offsets that are not different, or outside 1 .. K; no position; 2^31 different pairs.

    Example:
        >>> X, Y = np.array([[1], [1], [2]]), np.array([1, 2, 1])
        >>> rows = smoothed_ngrams(X, Y, offsets=(1,), vocab_size=3).rows[0]
        >>> rows.outputs.tolist(), rows.start.tolist()  # 1 is followed by 1 and 2; 2 by 1
        ([1, 2, 1], [0, 0, 2, 3])

    Source: Chen & Goodman 1999, Sec. 4; as additive logits, this project.
    """
    N, K = vocab_size, X.shape[1]
    if not offsets or len(set(offsets)) < len(offsets) or min(offsets) < 1 or max(offsets) > K:
        raise ValueError(f"offsets {offsets}: give different numbers of tokens back, from 1 to the {K} that contexts have")
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    levels = count_contexts([X[:, offset - 1] for offset in offsets], Y, (N,) * len(offsets), N)
    lower, small = relative_frequencies(np.bincount(levels[0].outputs, minlength=N)), np.uint16 if N <= 1 << 16 else np.int32
    children, rows, log_gammas, shorter, P = [], [], [], levels[0], lower
    while levels:
        level = levels.pop(0)  # and so no level is kept for longer than it is needed
        if (E := len(level.outputs)) >= 2**31:
            raise ValueError(f"{E} different pairs: rows of contexts number at most 2^31 - 1; fit on less text")
        if rows:
            numbers, ids = quotient_and_rest(level.contexts, N)
            children.append(Children(starts_of(numbers, len(shorter.contexts)), ids.astype(small)))
            level = level._replace(contexts=numbers.astype(np.int32))  # as the keys are large
        D = discounts_of(counts_of_counts(level.counts), modified=True)
        values, log_gamma = np.empty(E, np.float32), np.empty(len(level.contexts), np.float32)
        own_P = np.empty(E if levels else 0)  # nothing backs off to the longest contexts
        for c in _blocks(level):
            block, pairs = level.part(c), slice(level.start[c.start], level.start[c.stop])
            P_lower = _shorter_P(shorter, P, N, block) if rows else lower[block.outputs]
            sums = functools.partial(sum_runs, start=block.start)
            smoothed = smooth_pairs(block.counts, P_lower, D, sums, block.of_pairs)
            values[pairs], log_gamma[c] = smoothed.values, smoothed.log_gamma
            if levels:
                own_P[pairs] = smoothed.P
        rows.append(SparseRows(level.start, level.outputs.astype(small), values))
        log_gammas.append(log_gamma)
        shorter, P = level, own_P
    arrays = tuple(children), tuple(rows), tuple(log_gammas)
    children, rows, log_gammas = jax.device_put(arrays, may_alias=True)  # on a CPU nothing is copied
    return Ngrams(offsets, children, rows, lower, log_gammas)


def _blocks(level: ContextLevel) -> list[slice]:
    """The contexts of a level, a few at a time: what is computed of their pairs stays near the caches."""
    later = np.searchsorted(level.start, np.arange(_pairs_per_block, level.start[-1], _pairs_per_block), "right") - 1
    cuts = np.unique([0, *later, len(level.contexts)]).tolist()
    return [slice(*block) for block in pairwise(cuts)]


def _shorter_P(shorter: ContextLevel, P: np.ndarray, N: int, block: ContextLevel) -> np.ndarray:
    """`P(i|h')` of every pair (h, i) of a block, whose contexts h have the numbers of their h': what occurred after h occurred
    after h' too, and has a key there."""
    near = slice(block.contexts[0], block.contexts[-1] + 1)  # contexts stand in the order of those that they extend
    some = shorter.part(near)
    keys = some.keys(np.arange(len(some.contexts)), N)
    return P[shorter.start[near.start] :][np.searchsorted(keys, block.keys(block.contexts - near.start, N))]

"""Contexts of several tokens as sparse rows: the interpolated n-gram model.

A context h of several tokens extends a shorter one h' by a token further back. Its smoothed row backs off to the row of h',

    P(i|h) = (C(h, i) - D) / C(h) + γ(h) P(i|h'),      row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),

An output that never followed h has row_h[i] = 0, hence a row holds only what was seen: the table is sparse, and a context that
never occurred adds nothing, which is an exact back-off. The sum of rows leaves out the weights γ alone,

    log p(i|x) = log P(i) + sum_n row_n(x)[i] + sum_n log γ(h_n)

with h_n the last n tokens of x: the partition function is their product. An entry is found by binary search, no row is read.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

from jexplicit.counts.pairs import ContextLevel, count_contexts, quotient_and_rest, starts_of, sum_runs
from jexplicit.lm.core.model import TableRows
from jexplicit.lm.core.smoothing import counts_of_counts, discounts_of, unigram
from jexplicit.lm.core.tables import Dense, Sparse, SparseRows, find_entry, pytree, static

_pairs_per_block = 1 << 20


class Children(NamedTuple):
    """Contexts one token longer: `start[r] .. start[r+1] - 1` extend r."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


def context_numbers(children: tuple[Children, ...], context: Integer[Array, " K"]) -> Int[Array, " levels"]:
    """The number of the context at every level, -1 if absent: pure.

    Example:
        >>> ngrams = smoothed_ngrams(np.array([[1, 0], [2, 1]]), np.array([2, 1]), vocab_size=3)
        >>> [context_numbers(ngrams.children, jnp.array(x)).tolist() for x in ([2, 1], [2, 2])]
        [[2, 1], [2, -1]]
    """
    numbers = [context[0].astype(jnp.int32)]
    for n, level in enumerate(children, 1):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[n].astype(jnp.int32), most))
    return jnp.stack(numbers)


@pytree
class BackOffChain(TableRows):
    """The rows of an n-gram model, one for each length of context.

    base: [N] log of the distribution that the nearest token backs off to.
    children: how a context is found, level by level.
    levels: the sparse rows of contexts of one token, of two, ...; a context that never occurred has a row of zeros.
    log_gamma: [contexts] `log γ` of every level, 0 for a context that never occurred; empty where rows are of a file whose
        probabilities sum to 1 only to its digits: there the softmax normalises.
    longest: entries of the longest row of each level.
    """

    base: Any
    children: tuple[Children, ...]
    levels: tuple[SparseRows, ...]
    log_gamma: tuple[Any, ...] = ()
    longest: tuple[int, ...] = static(())

    names = property(lambda self: ("unigram", *(f"context {n}" for n in range(1, len(self.levels) + 1))))
    tokens = property(lambda self: (None, *range(1, len(self.levels) + 1)))
    radius = property(lambda self: max(1, len(self.levels)))
    vocab_size = property(lambda self: len(self.base))
    normalised = property(lambda self: bool(self.log_gamma))

    @property
    def row_tables(self):
        tables = (Sparse(rows, len(self.base), n) for rows, n in zip(self.levels, self.longest, strict=True))
        return (Dense(jnp.asarray(self.base)[None]), *tables)

    def index(self, context):
        none = jnp.zeros(1, jnp.int32)
        return jnp.concatenate([none, context_numbers(self.children, context)]) if self.levels else none

    def entry(self, context, output):
        """`log p(output | context)`; without weights γ the logit of the output."""
        log_p = super().entry(context, output)
        numbers = context_numbers(self.children, context) if self.log_gamma else ()
        for n, log_gamma in zip(numbers, self.log_gamma, strict=True):
            log_p += jnp.where(n >= 0, jnp.asarray(log_gamma)[jnp.maximum(n, 0)], 0)
        return log_p


def smoothed_ngrams(X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, vocab_size: int) -> BackOffChain:
    """The rows of the interpolated modified Kneser-Ney model up to K tokens.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Args:
        X: [M, K] contexts, nearest token first; four columns for the n-gram model of order 5.
        Y: [M] targets.
        vocab_size: N.

    Raises:
        ValueError: contexts of no token; no position; 2^31 different pairs.

    Example:
        >>> rows = smoothed_ngrams(np.array([[1], [1], [2]]), np.array([1, 2, 1]), vocab_size=3).levels[0]
        >>> rows.outputs.tolist(), rows.start.tolist()  # 1 is followed by 1 and 2; 2 by 1
        ([1, 2, 1], [0, 0, 2, 3])

    Source: Chen & Goodman 1999, Eq. 12 and 26 (interpolated) and Sec. 4; as additive logits, this project.
    """
    N, K = vocab_size, X.shape[1]
    if not K or not len(Y):
        raise ValueError(f"{len(Y)} positions with contexts of {K} tokens: give at least one of each")
    levels = count_contexts(X, Y, N)
    lower, small = unigram(np.bincount(levels[0].outputs, minlength=N)), np.uint16 if N <= 1 << 16 else np.int32
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
            kind, total = np.minimum(block.counts, 3), sum_runs(block.counts, block.start)
            freed = D @ [sum_runs(kind == n, block.start) for n in (1, 2, 3)]
            kept, backed_off = block.counts - D[kind - 1], block.of_pairs(freed) * P_lower
            values[pairs] = np.log1p(kept / backed_off)
            log_gamma[c] = np.log(np.where(total > 0, freed / np.maximum(total, 1), 1))
            if levels:
                own_P[pairs] = (kept + backed_off) / block.of_pairs(total)
        rows.append(SparseRows(level.start, level.outputs.astype(small), values))
        log_gammas.append(log_gamma)
        shorter, P = level, own_P
    arrays = np.log(lower).astype(np.float32), tuple(children), tuple(rows), tuple(log_gammas)
    longest = tuple(level.longest for level in rows)
    return BackOffChain(*jax.device_put(arrays, may_alias=True), longest)  # on a CPU nothing is copied


def _blocks(level: ContextLevel) -> list[slice]:
    """The contexts of a level in blocks whose pairs fit the caches."""
    later = np.searchsorted(level.start, np.arange(_pairs_per_block, level.start[-1], _pairs_per_block), "right") - 1
    cuts = np.unique([0, *later, len(level.contexts)]).tolist()
    return [slice(*block) for block in pairwise(cuts)]


def _shorter_P(shorter: ContextLevel, P: np.ndarray, N: int, block: ContextLevel) -> np.ndarray:
    """`P(i|h')` of every pair (h, i) of a block.

    The contexts h have the numbers of their h': each i after h occurred after h', too, and has a key there.
    """
    near = slice(block.contexts[0], block.contexts[-1] + 1)  # contexts stand in the order of those that they extend
    some = shorter.part(near)
    keys = some.keys(np.arange(len(some.contexts)), N)
    return P[shorter.start[near.start] :][np.searchsorted(keys, block.keys(block.contexts - near.start, N))]

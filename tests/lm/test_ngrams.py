"""Contexts of several tokens: their rows against Kneser-Ney from dictionaries, and how a context is found.

Tolerances: rows are float32, and so are the discounts; a row is a logarithm of at most 10, right to 1e-6, and five add up.
"""

import jax
import numpy as np
import pytest
from reference import Chain, random_documents, windows

from jexplicit.lm.rows import ngrams as ngrams_module
from jexplicit.lm.rows.ngrams import Ngrams, context_numbers, smoothed_ngrams
from jexplicit.lm.tables.storage import Sparse

N = 9
ROW, SUM = 1e-6, 5e-6  # of a row; of a sum of them

DOCUMENTS = random_documents(seed=3, number=60, vocab_size=N - 1, longest=12)
X, Y = windows(DOCUMENTS, 4)
OTHERS, _ = windows(random_documents(seed=4, number=5, vocab_size=N, longest=12), 4)  # most long contexts are new, and a token
SLOW = pytest.mark.slow
EVERY_LEVEL = pytest.mark.parametrize(
    "offsets", [(1, 2, 3, 4), (3, 1, 2), *(pytest.param(offsets, marks=SLOW) for offsets in ((1,), (1, 3)))]
)


def ngrams_of(offsets, **more):
    return smoothed_ngrams(X, Y, offsets=offsets, vocab_size=N, **more)


numbers_in_jax = jax.jit(jax.vmap(context_numbers, in_axes=(None, None, 0)), static_argnums=1)


def numbers_of(ngrams: Ngrams, contexts: np.ndarray) -> np.ndarray:
    """[M, levels] numbers of many contexts."""
    return np.asarray(numbers_in_jax(ngrams.children, ngrams.offsets, jax.device_put(contexts)))


def rows_of(ngrams: Ngrams, contexts: np.ndarray) -> np.ndarray:
    """[M, levels, N] the rows of many contexts."""
    tables = [Sparse(rows, len(ngrams.lower), rows.longest) for rows in ngrams.rows]
    of_levels = zip(tables, numbers_of(ngrams, contexts).T, strict=True)
    return np.stack([jax.jit(jax.vmap(table.row))(jax.device_put(numbers)) for table, numbers in of_levels], axis=1)


def context_of(x, offsets):
    return tuple(int(x[offset - 1]) for offset in offsets)


def assert_same_ngrams(one: Ngrams, other: Ngrams):
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@EVERY_LEVEL
def test_contexts_are_numbered_each_its_own_and_new_ones_are_not(offsets):
    ngrams, counts = ngrams_of(offsets), Chain(X, Y, offsets, N).counts
    contexts = np.concatenate([X, OTHERS])
    numbers = numbers_of(ngrams, contexts)
    assert numbers.shape == (len(contexts), len(offsets))
    for level in range(len(offsets)):
        known = {context for context, _ in counts[level + 1]}
        named = {}
        for x, number in zip(contexts, numbers[:, level], strict=True):
            context = context_of(x, offsets[: level + 1])
            if level == 0:
                assert number == context[0]  # of one token: its id, seen or not
            elif context in known:
                assert 0 <= number < len(known) and named.setdefault(int(number), context) == context
            else:
                assert number == -1
        assert level == 0 or len(named) == len(ngrams.children[level - 1].tokens) == len(known)


def test_shorter_contexts_have_continuation_counts_and_the_longest_plain_ones():
    # after token 1 came 2 four times, always behind 4; and 3 twice, behind 4 and 5
    X = np.array([[1, 4], [1, 4], [1, 4], [1, 4], [1, 4], [1, 5]])
    Y = np.array([2, 2, 2, 2, 3, 3])
    pair, single = smoothed_ngrams(X, Y, offsets=(1, 2), vocab_size=6), smoothed_ngrams(X, Y, offsets=(1,), vocab_size=6)
    np.testing.assert_allclose([pair.lower, single.lower], 1 / 6, rtol=1e-6)  # all in one context, or in none and counted so
    # plain counts 4 and 2: D = 3/2 and 1 without a count of 1, and 1 + (4 - 3/2) / (5/2 * 1/6)
    np.testing.assert_allclose(np.exp(single.rows[0].values), [7, 3.4], rtol=1e-6)
    # continuations 1 and 2: D = 1 / (1 + 2), and 1 + (1 - 1/3) / (2/3 * 1/6)
    np.testing.assert_allclose(np.exp(pair.rows[0].values), [7, 16], rtol=1e-6)


def test_a_gap_skips_the_tokens_between():
    gap = ngrams_of((1, 3))
    between = X.copy()
    between[:, 1] = np.random.default_rng(0).integers(0, N, len(X))
    between[:, 3] = 0
    assert_same_ngrams(smoothed_ngrams(between, Y, offsets=(1, 3), vocab_size=N), gap)
    side_by_side = smoothed_ngrams(X[:, [0, 2]], Y, offsets=(1, 2), vocab_size=N)
    assert_same_ngrams(gap, side_by_side._replace(offsets=(1, 3)))


@EVERY_LEVEL
def test_the_order_of_positions_changes_nothing(offsets):
    order = np.random.default_rng(0).permutation(len(Y))
    assert_same_ngrams(smoothed_ngrams(X[order], Y[order], offsets=offsets, vocab_size=N), ngrams_of(offsets))


def test_narrow_integers_do_not_overflow():
    narrow = smoothed_ngrams(X.astype(np.uint8), Y.astype(np.uint8), offsets=(1, 2, 3, 4), vocab_size=N)
    wide = ngrams_of((1, 2, 3, 4))
    assert len(wide.children[-1].tokens) * N > 255  # keys do not fit in a byte
    assert_same_ngrams(narrow, wide)
    np.testing.assert_array_equal(numbers_of(narrow, OTHERS.astype(np.uint8)), numbers_of(wide, OTHERS))


@EVERY_LEVEL
def test_rows_are_those_of_the_slow_chain_and_add_up_to_kneser_ney_probabilities(offsets):
    ngrams, slow = ngrams_of(offsets), Chain(X, Y, offsets, N)
    contexts, unseen = np.concatenate([X[:30], OTHERS]), 0
    rows = rows_of(ngrams, contexts)
    assert rows.dtype == np.float32
    for x, of_levels in zip(contexts, rows, strict=True):
        shorter = [context_of(x, offsets[: level + 1]) for level in range(len(offsets))]
        np.testing.assert_allclose(of_levels, list(map(slow.row, shorter)), rtol=0, atol=ROW)
        log_P = np.log(ngrams.lower) + of_levels.sum(axis=0) + np.log([slow.gamma(h) for h in shorter]).sum()
        np.testing.assert_allclose(log_P, np.log([slow.P(shorter[-1], i) for i in range(N)]), rtol=0, atol=SUM)
        unseen += not of_levels[-1].any()
    assert 0 < unseen < len(contexts)


@pytest.mark.parametrize("dtype, size", [(np.uint8, 256), pytest.param(np.uint16, 65_536, marks=SLOW)])
def test_the_largest_id_of_a_small_type_is_found(dtype, size):
    last = size - 1
    x = np.array([[last, last], [last, 1], [1, last], [1, 1], [last, last]], dtype)
    ngrams = smoothed_ngrams(x, np.array([last, 1, last, 2, last], dtype), offsets=(1, 2), vocab_size=size)
    assert numbers_of(ngrams, x).tolist() == [[last, 3], [last, 2], [1, 1], [1, 0], [last, 3]]
    assert numbers_of(ngrams, np.array([[last, 2], [2, last]], dtype)).tolist() == [[last, -1], [2, -1]]
    assert np.flatnonzero(rows_of(ngrams, x[:1])[0, -1]).tolist() == [last]


@EVERY_LEVEL
def test_blocks_of_a_few_pairs_are_smoothed_as_all_of_them(offsets, monkeypatch):
    whole = ngrams_of(offsets)
    monkeypatch.setattr(ngrams_module, "_pairs_per_block", 7)
    assert_same_ngrams(ngrams_of(offsets), whole)

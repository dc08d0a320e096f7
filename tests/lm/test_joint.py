"""Joint features: the chain of contexts against Kneser-Ney from dictionaries, and the rows of the recent past.

Tolerances: rows are float32, and so are the discounts; a row is a logarithm of at most 10, right to 1e-6, and five add up.
"""

import numpy as np
import pytest
from reference import PAD, Chain, random_documents, recent_counts, stream_of, windows

from jexplicit.lm import ngrams as joint
from jexplicit.lm.ngrams import JointFeature, cache_rows, context_numbers, dense_rows, joint_feature

N = 9
OFFSETS = [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 3), (2, 4), (3, 1, 2)]
ROW, SUM = 1e-6, 5e-6  # of a row; of a sum of them

X, Y = windows(random_documents(seed=3, number=60, vocab_size=N - 1, longest=12), 4)
OTHERS, _ = windows(random_documents(seed=4, number=5, vocab_size=N, longest=12), 4)  # most long contexts are new, and a token
EVERY_LEVEL = pytest.mark.parametrize("offsets", OFFSETS)


def feature_of(offsets, **more):
    return joint_feature(X, Y, offsets=offsets, vocab_size=N, **more)


def dense(feature: JointFeature) -> list[np.ndarray]:
    """Every level's rows as a table, cell by cell."""
    tables = []
    for rows in feature.rows:
        table = np.zeros((len(rows.start) - 1, N))
        for r in range(len(table)):
            for e in range(rows.start[r], rows.start[r + 1]):
                table[r, rows.outputs[e]] = rows.values[e]
        tables.append(table)
    return tables


def context_of(x, offsets):
    return tuple(int(x[offset - 1]) for offset in offsets)


def assert_same_feature(one: JointFeature, other: JointFeature):
    for a, b in zip(one.keys, other.keys, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(one.rows, other.rows, strict=True):
        for mine, theirs in zip(a, b, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(one.lower, other.lower)


# The chain


@EVERY_LEVEL
def test_exponents_1_give_the_kneser_ney_probability_of_every_output(offsets):
    feature, slow = feature_of(offsets), Chain(X, Y, offsets, N)
    tables, unseen = dense(feature), 0
    contexts = np.concatenate([X[:30], OTHERS])
    for x, numbers in zip(contexts, context_numbers(feature, contexts), strict=True):
        logits = np.log(feature.lower) + sum(table[n] for table, n in zip(tables, numbers, strict=True) if n >= 0)
        P = np.exp(logits) * np.prod([slow.gamma(context_of(x, offsets[: level + 1])) for level in range(len(offsets))])
        expected = [slow.P(context_of(x, offsets), i) for i in range(N)]
        np.testing.assert_allclose(np.log(P), np.log(expected), rtol=0, atol=SUM)
        assert np.sum(P) == pytest.approx(1, abs=SUM)
        unseen += slow.seen(context_of(x, offsets)) == []
    assert 0 < unseen < len(contexts)


@EVERY_LEVEL
def test_a_row_holds_what_followed_its_context_and_how_much_more_likely_it_is_there(offsets):
    feature, slow = feature_of(offsets), Chain(X, Y, offsets, N)
    for level, rows in enumerate(feature.rows):
        numbers = context_numbers(feature, X)[:, level]
        for number, m in zip(*np.unique(numbers, return_index=True), strict=True):
            context = context_of(X[m], offsets[: level + 1])
            entries = slice(rows.start[number], rows.start[number + 1])
            assert rows.outputs[entries].tolist() == slow.seen(context)
            backed_off = [slow.gamma(context) * slow.P(context[:-1], i) for i in slow.seen(context)]
            expected = np.log([slow.P(context, i) for i in slow.seen(context)]) - np.log(backed_off)
            np.testing.assert_allclose(rows.values[entries], expected, rtol=0, atol=ROW)


@EVERY_LEVEL
def test_contexts_are_numbered_each_its_own_and_new_ones_are_not(offsets):
    feature, counts = feature_of(offsets), Chain(X, Y, offsets, N).counts
    contexts = np.concatenate([X, OTHERS])
    numbers = context_numbers(feature, contexts)
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
        assert level == 0 or len(named) == len(feature.keys[level - 1]) == len(known)


def test_a_new_context_adds_nothing_and_neither_do_longer_ones():
    feature, tables = feature_of((1, 2, 3, 4)), dense(feature_of((1, 2, 3, 4)))
    numbers = context_numbers(feature, OTHERS)
    new = numbers < 0
    assert set(new.sum(axis=1)) == {0, 1, 2, 3}  # every length was the first to be new
    assert np.all(new[:, 1:] >= new[:, :-1])
    token = N - 1  # never in the text: its row is there, and empty
    assert token in numbers[:, 0] and not np.any(tables[0][token])


def test_shorter_contexts_have_continuation_counts_and_the_longest_plain_ones():
    # after token 1 came 2 four times, always behind 4; and 3 twice, behind 4 and 5
    X = np.array([[1, 4], [1, 4], [1, 4], [1, 4], [1, 4], [1, 5]])
    Y = np.array([2, 2, 2, 2, 3, 3])
    pair, single = joint_feature(X, Y, offsets=(1, 2), vocab_size=6), joint_feature(X, Y, offsets=(1,), vocab_size=6)
    np.testing.assert_allclose([pair.lower, single.lower], 1 / 6, rtol=1e-6)  # all in one context, or in none and counted so
    # plain counts 4 and 2: D = 1/2 without a count of 1, and 1 + (4 - 1/2) / (2/2 * 1/6)
    np.testing.assert_allclose(np.exp(single.rows[0].values), [22, 10], rtol=1e-6)
    # continuations 1 and 2: D = 1 / (1 + 2), and 1 + (1 - 1/3) / (2/3 * 1/6)
    np.testing.assert_allclose(np.exp(pair.rows[0].values), [7, 16], rtol=1e-6)


def test_a_gap_skips_the_tokens_between():
    gap = feature_of((1, 3))
    between = X.copy()
    between[:, 1] = np.random.default_rng(0).integers(0, N, len(X))
    between[:, 3] = 0
    assert_same_feature(joint_feature(between, Y, offsets=(1, 3), vocab_size=N), gap)
    side_by_side = joint_feature(X[:, [0, 2]], Y, offsets=(1, 2), vocab_size=N)
    assert_same_feature(gap, side_by_side._replace(offsets=(1, 3)))


@EVERY_LEVEL
def test_the_order_of_positions_changes_nothing(offsets):
    order = np.random.default_rng(0).permutation(len(Y))
    assert_same_feature(joint_feature(X[order], Y[order], offsets=offsets, vocab_size=N), feature_of(offsets))


def test_narrow_integers_do_not_overflow():
    narrow = joint_feature(X.astype(np.uint8), Y.astype(np.uint8), offsets=(1, 2, 3, 4), vocab_size=N)
    wide = feature_of((1, 2, 3, 4))
    assert len(wide.keys[-1]) * N > 255  # keys do not fit in a byte
    assert_same_feature(narrow, wide)
    np.testing.assert_array_equal(context_numbers(narrow, OTHERS.astype(np.uint8)), context_numbers(wide, OTHERS))


@EVERY_LEVEL
def test_dense_rows_are_the_sparse_ones(offsets):
    feature = feature_of(offsets)
    for rows, expected in zip(feature.rows, dense(feature), strict=True):
        table = dense_rows(rows, N)
        assert table.dtype == np.float32
        np.testing.assert_array_equal(table, expected)


def test_rows_are_finite_and_positive_and_the_lowest_distribution_is_one():
    feature = feature_of((1, 2, 3, 4))
    for rows in feature.rows:
        assert rows.values.dtype == np.float32 and len(rows.values) == len(rows.outputs) == rows.start[-1]
        assert np.all(np.isfinite(rows.values)) and np.all(rows.values > 0)  # what is seen is more likely than backed off
    assert feature.lower.min() > 0 and feature.lower.sum() == pytest.approx(1, abs=1e-6)


def test_the_size_is_that_of_all_keys_and_rows():
    feature = feature_of((1, 2, 3))
    entries = sum(len(rows.outputs) for rows in feature.rows)
    contexts = N + sum(len(keys) for keys in feature.keys)
    assert feature.nbytes == entries * (4 + 4) + (contexts + 3) * 8 + (contexts - N) * 8


def test_progress_counts_the_levels():
    seen = []
    feature_of((1, 2, 3), progress=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("offsets", [(), (1, 1), (0, 1), (1, 5), (-1,)])
def test_offsets_that_contexts_do_not_have_are_refused(offsets):
    with pytest.raises(ValueError, match="different numbers of tokens back, from 1 to the 4"):
        feature_of(offsets)


def test_a_text_without_positions_is_refused():
    with pytest.raises(ValueError, match="no position"):
        joint_feature(X[:0], Y[:0], offsets=(1,), vocab_size=N)


# The recent past

STREAM = stream_of(random_documents(seed=6, number=12, vocab_size=N, longest=9))
PLACES = np.arange(1, len(STREAM))  # ends of documents too
P = np.random.default_rng(1).dirichlet(np.ones(N))
CACHES = pytest.mark.parametrize("successors", [False, True])


def cache_of(places=PLACES, length=15, successors=False):
    return cache_rows(STREAM, places, np.log(P), length=length, successors=successors)


@CACHES
@pytest.mark.parametrize("length", [1, 2, 15, 1000])
def test_cache_rows_equal_their_loop(length, successors):
    rows, full = cache_of(length=length, successors=successors), 0
    for m, place in enumerate(PLACES):
        c = np.array(recent_counts(STREAM, int(place), length, N, successors=successors))
        seen = np.flatnonzero(c)
        entries = slice(rows.start[m], rows.start[m + 1])
        assert rows.outputs[entries].tolist() == seen.tolist()
        np.testing.assert_allclose(rows.values[entries], np.log(1 + c[seen] / (len(seen) * P[seen])), rtol=0, atol=ROW)
        full += len(seen) > 0
    assert full > 0 and PAD not in rows.outputs


def test_a_cache_row_is_a_dirichlet_smoothed_unigram_of_the_past_over_p():
    place = len(STREAM) - 1
    c = np.array(recent_counts(STREAM, place, 40, N, successors=False))
    rows = cache_of(np.array([place]), length=40)
    values = np.zeros(N)
    values[rows.outputs] = rows.values
    strength = np.sum(c > 0)
    smoothed = (c + strength * P) / (sum(c) + strength)  # Witten and Bell's
    np.testing.assert_allclose(P * np.exp(values) / np.sum(P * np.exp(values)), smoothed, rtol=0, atol=ROW)


@CACHES
@pytest.mark.parametrize("counters", [1, 3 * N, 5 * N + 3])
def test_positions_in_several_blocks_are_those_in_one(monkeypatch, counters, successors):
    whole = cache_of(successors=successors)
    monkeypatch.setattr(joint, "_counters", counters)
    for mine, theirs in zip(cache_of(successors=successors), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_cache_rows_follow_the_order_of_the_positions():
    some = np.array([40, 7, 40, 1, 23])
    rows, whole = cache_of(some), cache_of()
    for m, place in enumerate(some):
        mine, all_of_it = slice(*rows.start[m : m + 2]), slice(*whole.start[place - 1 : place + 1])
        np.testing.assert_array_equal(rows.outputs[mine], whole.outputs[all_of_it])
        np.testing.assert_array_equal(rows.values[mine], whole.values[all_of_it])


@pytest.mark.parametrize("length", [0, -3])
def test_a_cache_of_no_tokens_is_refused(length):
    with pytest.raises(ValueError, match="at least one"):
        cache_of(length=length)

"""Context windows. Everything here is integers, so every comparison is exact."""

import jax
import numpy as np
import pytest
from reference import random_documents, stream_of, windows

from jexplicit.data.contexts import context_columns, contexts, distinct_contexts, with_leading_pads

DOCUMENTS = random_documents(seed=0, number=40, vocab_size=9, longest=6)  # most are shorter than K = 7


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("K", [1, 2, 3, 7])
def test_contexts_equal_the_loop_over_documents(K, eos):
    X, Y = contexts(stream_of(DOCUMENTS, np.uint8), K, eos=eos)
    assert X.dtype == Y.dtype == np.uint8
    expected_X, expected_Y = windows(DOCUMENTS, K, eos=eos)
    np.testing.assert_array_equal(X, expected_X)
    np.testing.assert_array_equal(Y, expected_Y)


def test_contexts_of_two_short_documents_are_those_written_by_hand():
    X, Y = contexts(np.array([0, 5, 6, 7, 0, 8, 0], np.uint8), 3, eos=True)
    assert Y.tolist() == [5, 6, 7, 0, 8, 0]
    assert X.tolist() == [[0, 0, 0], [5, 0, 0], [6, 5, 0], [7, 6, 5], [0, 0, 0], [8, 0, 0]]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
@pytest.mark.parametrize("K", [1, 4])
def test_numpy_and_jax_give_the_same_columns_in_the_stream_s_type(K, dtype):
    x = with_leading_pads(stream_of(DOCUMENTS, dtype), K)
    on_host, compiled = context_columns(x, K), context_columns(jax.device_put(x), K)
    assert len(on_host) == len(compiled) == K
    for host, device in zip(on_host, compiled, strict=True):
        assert host.dtype == device.dtype == dtype
        np.testing.assert_array_equal(host, np.asarray(device))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_the_largest_id_of_a_type_does_not_wrap(dtype):
    last = int(np.iinfo(dtype).max)  # N = 256 and 65,536
    X, Y = contexts(np.array([0, last, last - 1, last, last - 1, last, 0], dtype), 2)
    assert X.tolist() == [[0, 0], [last, 0], [last - 1, last], [last, last - 1], [last - 1, last]]
    assert Y.tolist() == [last, last - 1, last, last - 1, last]
    for ordered, expected in ((True, [[0, 0], [last - 1, last], [last, 0], [last, last - 1]]), (False, None)):
        distinct, n = distinct_contexts(X, ordered=ordered)
        assert distinct.tolist() == (expected or [[0, 0], [0, last], [last - 1, last]])
        assert n.tolist() == ([1, 2, 1, 1] if ordered else [1, 1, 3])


@pytest.mark.parametrize("ordered", [True, False])
def test_a_row_that_stands_for_several_contexts_counts_as_often(ordered):
    X, _ = contexts(stream_of(DOCUMENTS), 3)
    times = np.arange(len(X)) % 4
    one, other = (distinct_contexts(*some, ordered=ordered) for some in ((np.repeat(X, times, axis=0),), (X, times)))
    there = other[1] > 0
    np.testing.assert_array_equal(other[0][there], one[0])
    np.testing.assert_array_equal(other[1][there], one[1])


@pytest.mark.parametrize("ordered", [True, False])
def test_distinct_contexts_and_their_counts_make_up_all_contexts(ordered):
    X, _ = contexts(stream_of(DOCUMENTS), 3)
    distinct, n = distinct_contexts(X, ordered=ordered)
    expected = {}
    for row in X.tolist():
        key = tuple(row if ordered else sorted(row))
        expected[key] = expected.get(key, 0) + 1
    assert n.sum() == len(X)
    assert len(distinct) == len(expected) < len(X)
    assert {tuple(row): count for row, count in zip(distinct.tolist(), n.tolist(), strict=True)} == expected


@pytest.mark.parametrize("dtype", [np.uint16, np.int64, np.uint64])
def test_contexts_too_many_for_one_integer_key_are_told_apart(dtype):
    K, N = 20, 2**16
    assert N**K > 2**63  # several compressions of the key on the way
    rng = np.random.default_rng(0)
    base = rng.integers(N - 500, N, (60, K))
    one_token_apart = base.copy()
    one_token_apart[np.arange(60), np.arange(60) % K] ^= 1  # a key that wrapped around would merge some of these
    X = np.concatenate([base, one_token_apart])[rng.integers(0, 120, 400)].astype(dtype)
    distinct, n = distinct_contexts(X)
    expected, expected_n = np.unique(X, axis=0, return_counts=True)
    np.testing.assert_array_equal(distinct, expected)
    np.testing.assert_array_equal(n, expected_n)
    assert [part.shape for part in distinct_contexts(X[:0])] == [(0, K), (0,)]

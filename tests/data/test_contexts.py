"""Contexts of a token stream, and documents held out of it."""

import jax
import numpy as np
import pytest
from reference import PAD, random_documents, stream_of, windows

from jexplicit.counts.pairs import count
from jexplicit.data.contexts import context_columns, contexts, cut_documents, distinct_contexts, hold_out, with_leading_pads

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


LINES = random_documents(seed=9, number=800, vocab_size=9, longest=20)
STREAM = stream_of(LINES)


def documents_of(stream):
    pads = np.flatnonzero(stream == PAD)
    return [stream[a + 1 : b].tolist() for a, b in zip(pads, pads[1:], strict=False)]


def numbered(lengths):
    """A stream of documents of given lengths (with their pad), each of its own number repeated; and what is held out of it."""
    return np.concatenate([[PAD], *([d + 1] * (length - 1) + [PAD] for d, length in enumerate(lengths))])


def held_numbers(stream, **options):
    _, held = hold_out(stream, **options)
    return [document[0] for document in documents_of(held)]


@pytest.mark.parametrize("options", [{"positions": 500}, {"positions": 10**6, "most": 0.3, "blocks": 7}, {"positions": 1}])
def test_counts_of_the_two_parts_add_up_to_those_of_the_whole(options):
    rest, held = hold_out(STREAM, **options)
    assert rest.dtype == held.dtype == STREAM.dtype
    assert len(documents_of(held)) > 0
    assert len(rest) + len(held) == len(STREAM) + 1  # both begin with a <pad>
    both = zip(*(count(part, radius=3, vocab_size=9) for part in (rest, held)), strict=True)
    for whole, (a, b) in zip(count(STREAM, radius=3, vocab_size=9), both, strict=True):
        np.testing.assert_array_equal(a + b, whole)


def test_documents_are_held_out_whole_and_in_their_order():
    stream = numbered([2 + len(document) for document in LINES])
    rest, held = hold_out(stream, positions=len(stream) // 10)
    kept, out = ([document[0] for document in documents_of(part)] for part in (rest, held))
    assert kept == sorted(kept)
    assert out == sorted(out)
    assert sorted(kept + out) == list(range(1, len(LINES) + 1))
    assert documents_of(rest) + documents_of(held) == [documents_of(stream)[d - 1] for d in kept + out]


@pytest.mark.parametrize("blocks", [1, 2, 10, 100])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_the_share_held_out_is_about_as_asked(share, blocks):
    asked = round(share * len(STREAM))
    for options in ({"positions": asked, "most": 1.0}, {"positions": len(STREAM), "most": share}):
        _, held = hold_out(STREAM, **options, blocks=blocks)
        # at the end of a block half a document too much or too little, and half a block where the stream ends before one
        assert abs(len(held) - asked) <= 21 + asked / blocks / 2


@pytest.mark.parametrize("blocks", [1, 4, 10])
def test_held_out_documents_are_neighbours_in_blocks_spread_evenly(blocks):
    out = np.array(held_numbers(numbered([10] * 1000), positions=1000, blocks=blocks)) - 1  # 100 of 1000 documents
    firsts, lasts = (out[np.flatnonzero(np.diff(out, **end) > 1)] for end in ({"prepend": -2}, {"append": 2000}))
    assert len(firsts) == blocks
    np.testing.assert_allclose(lasts - firsts + 1, 100 / blocks, atol=1)  # to a document
    # each is in the middle of its part of the stream, to a document for every block before it
    np.testing.assert_allclose((firsts + lasts) / 2, (np.arange(blocks) + 0.5) * 1000 / blocks, atol=blocks)


def test_a_document_larger_than_asked_for_stays_in_the_rest():
    # 900 of 1000 tokens are one document: a tenth is asked for
    for lengths in ([900, *[10] * 10], [*[10] * 10, 900], [*[10] * 5, 900, *[10] * 5]):
        stream = numbered(lengths)
        out = held_numbers(stream, positions=100)
        assert lengths.index(900) + 1 not in out
        assert 1 <= len(out) <= 10


def test_of_a_few_long_documents_one_is_held_out():
    assert len(held_numbers(numbered([250] * 4), positions=100)) == 1
    assert held_numbers(numbered([2, 998]), positions=100) == [1]
    assert held_numbers(numbered([998, 2]), positions=100) == [2]
    assert held_numbers(numbered([330, 2, 400, 268]), positions=100) == [4]  # nearest to 100 of those that are not tiny


def test_something_is_left_and_something_held_out_of_two_documents():
    for most in (0.01, 0.5, 1.0):
        rest, held = hold_out(numbered([5, 5]), positions=10, most=most)
        assert (len(rest), len(held)) == (6, 6)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_the_largest_id_of_a_type_is_held_out_as_any_other(dtype):
    last = int(np.iinfo(dtype).max)
    rest, held = hold_out(np.array([0, 1, 0, last, 0, last, 0, 4, 0], dtype), positions=2, most=0.25, blocks=1)
    assert (rest.tolist(), held.tolist()) == ([0, 1, 0, last, 0, 4, 0], [0, last, 0])


def test_of_a_single_document_the_last_part_is_held_out():
    rest, held = hold_out(np.array([0, *range(1, 21), 0]), positions=5, most=0.25)
    assert (rest.tolist(), held.tolist()) == ([0, *range(1, 16), 0], [0, *range(16, 21), 0])


def test_long_documents_are_split_into_nearly_equal_pieces():
    assert cut_documents(np.array([0, 1, 2, 3, 4, 5, 0, 6, 0]), 3).tolist() == [0, 1, 2, 0, 3, 4, 5, 0, 6, 0]
    pieces = documents_of(cut_documents(STREAM, 4))
    assert max(map(len, pieces)) <= 4 and sum(pieces, []) == sum(documents_of(STREAM), [])

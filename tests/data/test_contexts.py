"""Contexts of a token stream, and documents held out of it."""

import itertools

import jax
import numpy as np
from jexplicit.data.streams import context_columns, contexts, cut_documents, distinct_contexts, hold_out, with_leading_pads
from reference import PAD, random_documents, stream_of, windows

from jexplicit.counts import count

DOCUMENTS = random_documents(seed=0, number=40, vocab_size=9, longest=6)  # most are shorter than K = 7


def test_contexts_equal_the_loop_over_documents_on_the_host_and_on_devices():
    for K, eos, dtype in itertools.product((1, 3, 7), (False, True), (np.uint8, np.int32)):
        stream = stream_of(DOCUMENTS, dtype)
        for found, expected in zip(contexts(stream, K, eos=eos), windows(DOCUMENTS, K, eos=eos), strict=True):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, expected)
        x = with_leading_pads(stream, K)
        for host, device in zip(context_columns(x, K), context_columns(jax.device_put(x), K), strict=True):
            assert host.dtype == device.dtype == dtype
            np.testing.assert_array_equal(host, np.asarray(device))
    X, Y = contexts(np.array([0, 5, 6, 7, 0, 8, 0], np.uint8), 3, eos=True)
    assert Y.tolist() == [5, 6, 7, 0, 8, 0]
    assert X.tolist() == [[0, 0, 0], [5, 0, 0], [6, 5, 0], [7, 6, 5], [0, 0, 0], [8, 0, 0]]  # by hand


def test_the_largest_id_of_a_type_does_not_wrap():
    for dtype in (np.uint8, np.uint16):
        last = int(np.iinfo(dtype).max)  # N = 256 and 65,536
        X, Y = contexts(np.array([0, last, last - 1, last, last - 1, last, 0], dtype), 2)
        assert X.tolist() == [[0, 0], [last, 0], [last - 1, last], [last, last - 1], [last - 1, last]]
        assert Y.tolist() == [last, last - 1, last, last - 1, last]
        for ordered, expected in ((True, [[0, 0], [last - 1, last], [last, 0], [last, last - 1]]), (False, None)):
            distinct, n = distinct_contexts(X, ordered=ordered)
            assert distinct.tolist() == (expected or [[0, 0], [0, last], [last - 1, last]])
            assert n.tolist() == ([1, 2, 1, 1] if ordered else [1, 1, 3])
        rest, held = hold_out(np.array([0, 1, 0, last, 0, last, 0, 4, 0], dtype), positions=2, most=0.25, blocks=1)
        assert (rest.tolist(), held.tolist()) == ([0, 1, 0, last, 0, 4, 0], [0, last, 0])


def test_distinct_contexts_and_their_counts_make_up_all_contexts_however_often_a_row_stands():
    X, _ = contexts(stream_of(DOCUMENTS), 3)
    times = np.arange(len(X)) % 4
    for ordered, rows in itertools.product((True, False), (X, np.repeat(X, times, axis=0))):
        expected: dict[tuple[int, ...], int] = {}
        for row in rows.tolist():
            key = tuple(row if ordered else sorted(row))
            expected[key] = expected.get(key, 0) + 1
        distinct, n = distinct_contexts(rows, ordered=ordered)
        assert len(distinct) == len(expected) < len(rows)
        assert {tuple(row): int(count) for row, count in zip(distinct.tolist(), n, strict=True)} == expected
    repeated, weighed = distinct_contexts(np.repeat(X, times, axis=0)), distinct_contexts(X, times)
    for one, other in zip(repeated, weighed, strict=True):
        np.testing.assert_array_equal(one, other[weighed[1] > 0])


def test_contexts_too_many_for_one_integer_key_are_told_apart():
    K, N = 20, 2**16
    assert N**K > 2**63  # several compressions of the key on the way
    rng = np.random.default_rng(0)
    base = rng.integers(N - 500, N, (60, K))
    one_token_apart = base.copy()
    one_token_apart[np.arange(60), np.arange(60) % K] ^= 1  # a key that wrapped around would merge some of these
    for dtype in (np.uint16, np.int64, np.uint64):
        X = np.concatenate([base, one_token_apart])[rng.integers(0, 120, 400)].astype(dtype)
        for found, expected in zip(distinct_contexts(X), np.unique(X, axis=0, return_counts=True), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert [part.shape for part in distinct_contexts(X[:0])] == [(0, K), (0,)]


LINES = random_documents(seed=9, number=800, vocab_size=9, longest=20)
STREAM = stream_of(LINES)


def documents_of(stream):
    pads = np.flatnonzero(stream == PAD)
    return [stream[a + 1 : b].tolist() for a, b in itertools.pairwise(pads)]


def numbered(lengths):
    """A stream of documents of given lengths (with their pad), each of its own number repeated."""
    return np.concatenate([[PAD], *([d + 1] * (length - 1) + [PAD] for d, length in enumerate(lengths))])


def held_numbers(lengths, **options):
    return [document[0] for document in documents_of(hold_out(numbered(lengths), **options)[1])]


def test_documents_are_held_out_whole_and_in_their_order_and_counts_of_the_two_parts_add_up():
    for options in ({"positions": 500}, {"positions": 10**6, "most": 0.3, "blocks": 7}, {"positions": 1}):
        rest, held = hold_out(STREAM, **options)
        assert rest.dtype == held.dtype == STREAM.dtype and len(documents_of(held)) > 0
        assert len(rest) + len(held) == len(STREAM) + 1  # both begin with a <pad>
        both = zip(*(count(part, radius=3, vocab_size=9) for part in (rest, held)), strict=True)
        for whole, (a, b) in zip(count(STREAM, radius=3, vocab_size=9), both, strict=True):
            np.testing.assert_array_equal(a + b, whole)
    stream = numbered([2 + len(document) for document in LINES])
    rest, held = map(documents_of, hold_out(stream, positions=len(stream) // 10))
    kept, out = ([document[0] for document in part] for part in (rest, held))
    assert kept == sorted(kept) and out == sorted(out) and sorted(kept + out) == list(range(1, len(LINES) + 1))
    assert rest + held == [documents_of(stream)[d - 1] for d in kept + out]


def test_the_share_held_out_is_about_as_asked_in_blocks_spread_evenly():
    for blocks, share in itertools.product((1, 10, 100), (0.02, 0.5)):
        asked = round(share * len(STREAM))
        for options in ({"positions": asked, "most": 1.0}, {"positions": len(STREAM), "most": share}):
            _, held = hold_out(STREAM, **options, blocks=blocks)
            # at the end of a block half a document too much or too little, and half a block where the stream ends before one
            assert abs(len(held) - asked) <= 21 + asked / blocks / 2
    for blocks in (1, 4, 10):
        out = np.array(held_numbers([10] * 1000, positions=1000, blocks=blocks)) - 1  # 100 of 1000 documents
        firsts, lasts = (out[np.flatnonzero(np.diff(out, **end) > 1)] for end in ({"prepend": -2}, {"append": 2000}))
        np.testing.assert_allclose(lasts - firsts + 1, 100 / blocks, atol=1)  # to a document
        # each is in the middle of its part of the stream, to a document for every block before it
        np.testing.assert_allclose((firsts + lasts) / 2, (np.arange(blocks) + 0.5) * 1000 / blocks, atol=blocks)


def test_few_and_long_documents_and_a_single_one():
    # 900 of 1000 tokens are one document, which stays in the rest: a tenth is asked for
    for lengths in ([900, *[10] * 10], [*[10] * 10, 900], [*[10] * 5, 900, *[10] * 5]):
        out = held_numbers(lengths, positions=100)
        assert lengths.index(900) + 1 not in out and 1 <= len(out) <= 10
    assert len(held_numbers([250] * 4, positions=100)) == 1
    assert [held_numbers(lengths, positions=100) for lengths in ([2, 998], [998, 2])] == [[1], [2]]
    assert held_numbers([330, 2, 400, 268], positions=100) == [4]  # nearest to 100 of those that are not tiny
    for most in (0.01, 0.5, 1.0):  # something is left, and something held out
        assert list(map(len, hold_out(numbered([5, 5]), positions=10, most=most))) == [6, 6]
    rest, held = hold_out(np.array([0, *range(1, 21), 0]), positions=5, most=0.25)  # of a single one, the last part
    assert (rest.tolist(), held.tolist()) == ([0, *range(1, 16), 0], [0, *range(16, 21), 0])
    assert cut_documents(np.array([0, 1, 2, 3, 4, 5, 0, 6, 0]), 3).tolist() == [0, 1, 2, 0, 3, 4, 5, 0, 6, 0]
    pieces = documents_of(cut_documents(STREAM, 4))
    assert max(map(len, pieces)) <= 4 and sum(pieces, []) == sum(documents_of(STREAM), [])

"""Documents held out of a stream: whole, in blocks, spread evenly, about as many as asked for."""

import numpy as np
import pytest
from reference import PAD, random_documents, stream_of

from jexplicit.counts.pairs import count
from jexplicit.data.contexts import cut_documents, hold_out

DOCUMENTS = random_documents(seed=9, number=800, vocab_size=9, longest=20)
STREAM = stream_of(DOCUMENTS)


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
    stream = numbered([2 + len(document) for document in DOCUMENTS])
    rest, held = hold_out(stream, positions=len(stream) // 10)
    kept, out = ([document[0] for document in documents_of(part)] for part in (rest, held))
    assert kept == sorted(kept)
    assert out == sorted(out)
    assert sorted(kept + out) == list(range(1, len(DOCUMENTS) + 1))
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

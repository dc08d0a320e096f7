"""Counting. Counts are integers: every comparison is exact."""

import chex
import numpy as np
import pytest
from reference import cooccurrences, random_documents, stream_of, windows

from jexplicit.counts import dense
from jexplicit.counts.dense import count, merge_counts
from jexplicit.data.contexts import context_columns
from jexplicit.runs.devices import data_mesh

N, K = 7, 3
DOCUMENTS = random_documents(seed=1, number=50, vocab_size=N, longest=9)
STREAM = stream_of(DOCUMENTS)


def assert_same_counts(a, b):
    assert len(a) == len(b)
    for C, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(C, other)


@pytest.fixture(scope="module")
def counts():
    return count(STREAM, radius=K, vocab_size=N)


def test_counts_equal_the_double_loop(counts):
    assert_same_counts(counts, cooccurrences(DOCUMENTS, K, N))


def test_counts_equal_numpy_bincount_on_flat_ids(counts):
    X, Y = windows(DOCUMENTS, K, eos=True)
    assert_same_counts(counts, [np.bincount(X[:, k] * N + Y, minlength=N * N).reshape(N, N) for k in range(K)])


def test_counts_of_a_sentence_are_those_written_by_hand():
    nearest, second = count(np.array([0, 1, 2, 1, 0], np.uint8), radius=2, vocab_size=3)
    assert nearest.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert second.tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 0]]


def test_counts_sum_to_the_radius_times_the_positions(counts):
    positions = sum(len(document) + 1 for document in DOCUMENTS)  # the end of each document is one
    assert [int(C.sum()) for C in counts] == [positions] * K


def test_every_offset_counts_the_same_targets(counts):
    for C in counts:
        np.testing.assert_array_equal(C.sum(axis=0), np.bincount(STREAM[1:], minlength=N))


@pytest.mark.parametrize("chunk", [1, 7, 64, len(STREAM) - 1, 10**6])
def test_the_chunk_size_changes_no_count(counts, chunk):
    assert_same_counts(count(STREAM, radius=K, vocab_size=N, chunk=chunk), counts)


@pytest.mark.parametrize("chunk", [5, 10**6])
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_the_number_of_devices_changes_no_count(counts, devices, chunk):
    assert_same_counts(count(STREAM, radius=K, vocab_size=N, mesh=data_mesh(devices), chunk=chunk), counts)


def test_more_devices_than_positions_change_no_count():
    stream = np.array([0, 1, 2, 0], np.uint8)
    assert_same_counts(
        count(stream, radius=2, vocab_size=3, mesh=data_mesh(8)), count(stream, radius=2, vocab_size=3, mesh=data_mesh(1))
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_the_integer_type_of_the_stream_changes_no_count(counts, dtype):
    assert_same_counts(count(STREAM.astype(dtype), radius=K, vocab_size=N), counts)


def test_the_largest_id_of_uint8_does_not_wrap():
    nearest, second = count(np.array([0, 255, 255, 254, 255, 0], np.uint8), radius=2, vocab_size=256)
    pairs = {(j, i): nearest[j, i] for j, i in zip(*np.nonzero(nearest), strict=True)}
    assert pairs == {(0, 255): 1, (255, 255): 1, (255, 254): 1, (254, 255): 1, (255, 0): 1}
    assert (second[255, 254], second[255, 255], second[254, 0], second.sum()) == (1, 1, 1, 5)


def test_the_order_of_documents_changes_no_count(counts):
    assert_same_counts(count(stream_of(DOCUMENTS[::-1]), radius=K, vocab_size=N), counts)


def test_renaming_tokens_renames_rows_and_columns(counts):
    new = np.array([0, 3, 6, 1, 2, 5, 4])  # <pad> stays <pad>
    renamed = count(new[STREAM], radius=K, vocab_size=N)
    assert_same_counts([C[np.ix_(new, new)] for C in renamed], counts)


def test_a_larger_radius_leaves_the_nearer_counts_as_they_are(counts):
    assert_same_counts(count(STREAM, radius=K + 2, vocab_size=N)[:K], counts)


def test_counts_of_two_halves_merge_into_the_counts_of_the_whole(counts):
    halves = [count(stream_of(part), radius=K, vocab_size=N) for part in (DOCUMENTS[:20], DOCUMENTS[20:])]
    assert_same_counts(merge_counts(*halves), counts)


def test_the_counts_of_no_text_change_nothing(counts):
    assert_same_counts(merge_counts((), counts), counts)
    assert_same_counts(merge_counts(counts, ()), counts)
    assert merge_counts((), ()) == ()


@pytest.mark.parametrize("total, dtype", [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_merged_counts_become_int64_exactly_where_a_cell_could_pass_int32(total, dtype):
    a = (np.array([[2**30, 0], [5, 0]], np.int32),)
    b = (np.array([[total - 2**30, 1], [7, 0]], np.int32),)
    (C,) = merge_counts(a, b)
    assert C.dtype == dtype
    assert C.tolist() == [[total, 1], [12, 0]]


def test_merged_counts_stay_exact_beyond_int32():
    large = (np.array([[2**40]], np.int64),)
    assert merge_counts(large, (np.array([[2**31 - 1]], np.int32),))[0].item() == 2**40 + 2**31 - 1


def test_merging_leaves_its_arguments_alone():
    a, b = (np.ones((2, 2), np.int32),), (np.ones((2, 2), np.int32),)
    merge_counts(a, b)
    assert_same_counts(a, b)


@pytest.mark.parametrize("radius, vocab_size", [(2, 3), (1, 4)])
def test_counts_of_another_radius_or_vocabulary_do_not_merge(radius, vocab_size):
    a = (np.zeros((3, 3), np.int32),)
    b = (np.zeros((vocab_size, vocab_size), np.int32),) * radius
    with pytest.raises(ValueError, match=f"{radius} offsets and vocabulary {vocab_size}: count both with the same radius"):
        merge_counts(a, b)


@pytest.mark.parametrize("devices", [1, 8])
def test_tables_are_flushed_before_a_cell_can_overflow_and_counts_stay_exact(counts, devices, monkeypatch):
    bound, flushed = 64, []
    reduce = dense._reduce

    def observed_reduce(table, vocab_size):
        flushed.append(reduce(table, vocab_size))
        return flushed[-1]

    monkeypatch.setattr(dense, "INT32_CELLS", bound)  # instead of 2^31
    monkeypatch.setattr(dense, "_reduce", observed_reduce)
    assert_same_counts(count(STREAM, radius=K, vocab_size=N, mesh=data_mesh(devices), chunk=3), counts)
    assert len(flushed) > K * (len(STREAM) // bound)
    assert max(C.sum() for C in flushed) < bound  # so no cell, and no sum of cells, came near it


def test_a_cell_that_passes_the_bound_makes_the_table_int64(monkeypatch):
    monkeypatch.setattr(dense, "INT32_CELLS", 64)
    (C,) = count(np.array([0, *[1] * 100, 0], np.uint8), radius=1, vocab_size=3, chunk=10)
    assert C.dtype == np.int64
    assert C.tolist() == [[0, 1, 0], [1, 99, 0], [0, 0, 0]]


def test_one_run_compiles_its_step_once(monkeypatch):
    radius, vocab_size = 2, 11  # of no other test, whose compiled step would be found
    traced_once = chex.assert_max_traces(context_columns, n=1)
    monkeypatch.setattr(dense, "context_columns", traced_once)
    once = count(STREAM, radius=radius, vocab_size=vocab_size, chunk=16)  # 20 steps, the last one not full
    again = count(STREAM, radius=radius, vocab_size=vocab_size, chunk=16)
    assert_same_counts(once, again)


def test_progress_grows_to_all_positions():
    reports = []
    count(
        STREAM, radius=1, vocab_size=N, mesh=data_mesh(2), chunk=32, progress=lambda done, total: reports.append((done, total))
    )
    positions = len(STREAM) - 1
    done = [report[0] for report in reports]
    assert len(reports) == -(-positions // 64)
    assert done == sorted(set(done))
    assert reports[-1] == (positions, positions)
    assert {total for _, total in reports} == {positions}


@pytest.mark.parametrize("vocab_size", [46341, 10**6])
def test_a_vocabulary_whose_pair_ids_overflow_int32_is_refused(vocab_size):
    with pytest.raises(ValueError, match=f"vocabulary {vocab_size}.*use a vocabulary of at most 46340"):
        count(STREAM, radius=1, vocab_size=vocab_size)


def test_the_largest_vocabulary_passes_that_check():
    with pytest.raises(ValueError, match="token id 46340 in a vocabulary of 46340"):  # only the next check stops it
        count(np.array([0, 46340, 0], np.uint16), radius=1, vocab_size=46340)


@pytest.mark.parametrize("wrong", [N, N + 40, -1])
def test_a_token_id_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=f"token id {wrong} in a vocabulary of {N}.*vocab_size"):
        count(np.array([0, 1, wrong, 2, 0]), radius=1, vocab_size=N)


def test_a_radius_of_zero_is_refused():
    with pytest.raises(ValueError, match="radius K = 0.*use K >= 1"):
        count(STREAM, radius=0, vocab_size=N)


@pytest.mark.parametrize("stream", [STREAM[1:], STREAM[:-1], STREAM[:1], STREAM[None], STREAM.astype(np.float64)])
def test_a_malformed_stream_is_refused(stream):
    with pytest.raises(ValueError, match="encode_documents"):
        count(stream, radius=1, vocab_size=N)


def test_a_chunk_without_positions_is_refused():
    with pytest.raises(ValueError, match="chunk of 0 positions"):
        count(STREAM, radius=1, vocab_size=N, chunk=0)

"""Counts split by output column: one device, several, and more than there are outputs. Every comparison is exact."""

import numpy as np
import pytest
from files import shards_of
from reference import cooccurrences, random_documents, stream_of

from jexplicit.counts import sharded
from jexplicit.counts.sharded import count_sharded, places_by_frequency
from jexplicit.runs.devices import data_mesh

N, K = 7, 3  # divided by none of the numbers of devices but 1, and fewer than the largest
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 40, N, 6)]  # 5: never seen
STREAM = stream_of(DOCUMENTS)
EXPECTED = cooccurrences(DOCUMENTS, K, N)


@pytest.fixture(scope="module", params=[1, 3, 8])
def counts(request):
    return count_sharded(STREAM, radius=K, vocab_size=N, mesh=data_mesh(request.param), chunk=64)


def assert_same_counts(counts, expected):
    for C, other in zip(counts.tables, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(C)[:, counts.places], other)


def test_counts_equal_the_double_loop_on_any_number_of_devices(counts):
    assert_same_counts(counts, EXPECTED)
    np.testing.assert_array_equal(counts.f, EXPECTED[0].sum(axis=0))
    assert counts.vocab_size == N


def test_a_device_holds_its_own_columns_and_no_others(counts):
    D = counts.mesh.size
    share = -(-N // D)
    for table in counts.tables:
        assert table.shape == (N, D * share)
        assert [shard.data.shape for shard in table.addressable_shards] == [(N, share)] * D
        assert int(table.sum()) == len(STREAM) - 1  # columns without an output are empty


@pytest.mark.parametrize("chunk", [5, 10**6])
def test_the_chunk_size_changes_no_count(chunk):
    assert_same_counts(count_sharded(STREAM, radius=K, vocab_size=N, mesh=data_mesh(3), chunk=chunk), EXPECTED)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_the_integer_type_of_the_stream_changes_no_count(dtype):
    assert_same_counts(count_sharded(STREAM.astype(dtype), radius=K, vocab_size=N, mesh=data_mesh(3), chunk=64), EXPECTED)


def test_tokens_are_dealt_to_devices_in_turn_by_frequency():
    f = np.array([3, 50, 7, 7, 0, 1, 20])
    places = places_by_frequency(f, 3)
    owner, share = places // 3, -(-len(f) // 3)
    ranked = np.argsort(-f, kind="stable")
    assert owner[ranked].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert len(set(places.tolist())) == len(f)
    assert places.max() < 3 * share


def test_progress_grows_to_all_positions():
    reports = []
    count_sharded(
        STREAM, radius=1, vocab_size=N, mesh=data_mesh(1), chunk=100, progress=lambda done, total: reports.append((done, total))
    )
    positions = len(STREAM) - 1
    assert reports == [(min(done, positions), positions) for done in range(100, positions + 100, 100)]


def test_shards_are_counted_as_the_array_that_they_hold(tmp_path):
    stream = shards_of(tmp_path, DOCUMENTS, vocab_size=N)
    assert_same_counts(count_sharded(stream, radius=K, vocab_size=N, mesh=data_mesh(3), chunk=11), EXPECTED)


def test_the_largest_id_of_uint8_does_not_wrap():
    stream = np.array([0, 255, 255, 254, 255, 0], np.uint8)
    counts = count_sharded(stream, radius=2, vocab_size=256, mesh=data_mesh(8))
    nearest, second = (np.asarray(C)[:, counts.places] for C in counts.tables)
    pairs = {(j, i): nearest[j, i] for j, i in zip(*np.nonzero(nearest), strict=True)}
    assert pairs == {(0, 255): 1, (255, 255): 1, (255, 254): 1, (254, 255): 1, (255, 0): 1}
    assert (second[255, 254], second[255, 255], second[254, 0], second.sum()) == (1, 1, 1, 5)


# Refusals


@pytest.mark.parametrize("vocab_size, devices, needed", [(46_341, 1, 2), (128_000, 7, 8), (10**6, 8, 466)])
def test_a_share_whose_ids_overflow_int32_is_refused(vocab_size, devices, needed):
    with pytest.raises(ValueError, match=f"vocabulary {vocab_size} on {devices} devices.*at least {needed} devices.*sparse"):
        count_sharded(STREAM, radius=1, vocab_size=vocab_size, mesh=data_mesh(devices))


def test_a_table_larger_than_the_memory_is_refused():
    with pytest.raises(ValueError, match="tables of counts take 8 x .* GB on 8 devices"):
        count_sharded(STREAM, radius=1000, vocab_size=128_000, mesh=data_mesh(8))


def test_a_stream_whose_counts_could_overflow_int32_is_refused(monkeypatch):
    monkeypatch.setattr(sharded, "INT32_CELLS", 100)
    with pytest.raises(ValueError, match=f"{len(STREAM) - 1} positions.*use sparse counts"):
        count_sharded(STREAM, radius=1, vocab_size=N, mesh=data_mesh(1))


@pytest.mark.parametrize("wrong", [N, -1])
def test_a_token_id_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=f"token id {wrong} in a vocabulary of {N}.*vocab_size"):
        count_sharded(np.array([0, 1, wrong, 0]), radius=1, vocab_size=N)


def test_a_chunk_without_positions_is_refused():
    with pytest.raises(ValueError, match="chunk of 0 positions"):
        count_sharded(STREAM, radius=1, vocab_size=N, chunk=0)


def test_a_malformed_stream_and_a_radius_of_zero_are_refused():
    with pytest.raises(ValueError, match="encode_documents"):
        count_sharded(STREAM[1:], radius=1, vocab_size=N)
    with pytest.raises(ValueError, match="radius K = 0.*use K >= 1"):
        count_sharded(STREAM, radius=0, vocab_size=N)

"""Every way of counting gives the counts of the double loop. Counts are integers: every comparison is exact."""

import functools
import itertools

import chex
import numpy as np
import pytest
from files import shards_of
from reference import cooccurrences, random_documents, stream_of
from scipy.sparse import csr_array

from jexplicit.counts import pairs, tables
from jexplicit.counts.pairs import SparseCounter, count, count_sparse
from jexplicit.counts.tables import merge_counts
from jexplicit.data.contexts import context_columns
from jexplicit.runs.devices import data_mesh

N, K = 7, 3  # N is divided by none of the numbers of devices but 1, and less than the largest
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 50, N, 9)]  # 5: never seen
STREAM = stream_of(DOCUMENTS)
EXPECTED = cooccurrences(DOCUMENTS, K, N)


def assert_same_counts(counts, expected):
    for C, other in zip(counts, expected, strict=True):
        np.testing.assert_array_equal(C if isinstance(C, np.ndarray) else C.toarray(), other)


def dense_on(stream, *, devices, **options):
    return count(stream, mesh=data_mesh(devices), **options)


def in_windows(stream, *, radius, vocab_size, sizes, **options):
    """The tables of a SparseCounter that gets windows of these sizes, again and again."""
    counter, x, start = SparseCounter(radius, vocab_size, **options), np.append(np.zeros(radius - 1, stream.dtype), stream), 0
    for size in itertools.cycle(sizes):
        if start >= len(x) - radius:
            return counter.tables()
        counter.add(x[start : start + radius + size])
        start += size


WAYS = {
    **{
        f"dense of {chunk} on {devices}": functools.partial(dense_on, devices=devices, chunk=chunk)
        for chunk in (5, 10**6)
        for devices in (1, 2, 8)
    },
    **{f"sparse {sizes}": functools.partial(in_windows, sizes=sizes) for sizes in ((1,), (7,), (64, 1, 3), (10**6,))},
    "sparse stream": count_sparse,
}
new = np.array([0, 3, 6, 1, 2, 5, 4])
TEXTS = {  # documents, vocabulary
    "random": (DOCUMENTS, N),
    "renamed": ([[int(new[token]) for token in document] for document in DOCUMENTS[::-1]], N),
    "fewer positions than devices": ([[1, 2]], 3),
    "largest id of a type": ([[255, 255, 254, 255]], 256),
}


FEW = ("dense of 5 on 8", "dense of 1000000 on 1", "sparse (64, 1, 3)", "sparse stream")


@pytest.mark.parametrize("way", [way if way in FEW else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_every_way_of_counting_is_the_double_loop(way, monkeypatch):
    monkeypatch.setattr(pairs, "_block_positions", 50)
    for documents, vocab_size in TEXTS.values():
        counts = WAYS[way](stream_of(documents, np.uint8), radius=K, vocab_size=vocab_size)
        assert_same_counts(counts, cooccurrences(documents, K, vocab_size))


@pytest.mark.parametrize("way", ["dense of 5 on 8", "sparse stream"])
def test_shards_and_integer_types_and_radius_change_no_count(way, tmp_path):
    for dtype in (np.uint16, np.int32, np.int64):
        assert_same_counts(WAYS[way](STREAM.astype(dtype), radius=K, vocab_size=N), EXPECTED)
    assert_same_counts(WAYS[way](shards_of(tmp_path, DOCUMENTS, vocab_size=N), radius=K, vocab_size=N), EXPECTED)
    assert_same_counts(WAYS[way](STREAM, radius=K + 2, vocab_size=N)[:K], EXPECTED)


def test_counts_of_a_sentence_are_those_written_by_hand():
    nearest, second = count(np.array([0, 1, 2, 1, 0], np.uint8), radius=2, vocab_size=3)
    assert nearest.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert second.tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("way", [count, count_sparse])
def test_counts_of_parts_merge_into_the_counts_of_the_whole_in_any_order(way):
    parts = [way(stream_of(part), radius=K, vocab_size=N) for part in (DOCUMENTS[:9], DOCUMENTS[9:40], DOCUMENTS[40:])]
    for a, b, c in itertools.permutations(parts):
        for merged in (merge_counts(merge_counts(a, b), c), merge_counts(a, merge_counts(b, c)), merge_counts(a, (), b, c)):
            assert_same_counts(merged, EXPECTED)
    assert merge_counts((), parts[0]) is merge_counts(parts[0], ()) is parts[0] and merge_counts((), ()) == ()


@pytest.mark.parametrize("way", [dense_on, count_sparse])
def test_progress_grows_to_all_positions(way):
    reports, M = [], len(STREAM) - 1
    options = {} if way is count_sparse else {"devices": 1, "chunk": 32}
    way(STREAM, radius=1, vocab_size=N, **options, progress=lambda *now: reports.append(now))
    step = M if way is count_sparse else 32
    assert reports == [(min(done, M), M) for done in range(step, M + step, step)]


# Dense


@pytest.mark.parametrize("total, dtype", [(2**31 - 1, np.int32), (2**31, np.int64)])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_merged_counts_become_int64_exactly_where_a_cell_could_pass_int32(kind, total, dtype):
    a, b = (np.array([[n, 0], [5, 0]], np.int32) for n in (2**30, total - 2**30))
    (C,) = merge_counts((a,), (b,)) if kind == "dense" else merge_counts((csr_array(a),), (csr_array(b),))
    assert C.dtype == dtype
    assert_same_counts([C], [[[total, 0], [10, 0]]])
    assert a.tolist() == [[2**30, 0], [5, 0]]


@pytest.mark.parametrize("devices", [1, 8])
def test_tables_are_flushed_before_a_cell_can_overflow_and_counts_stay_exact(devices, monkeypatch):
    bound, flushed = 64, []
    reduce = pairs._reduce

    def observed_reduce(table, vocab_size):
        flushed.append(reduce(table, vocab_size))
        return flushed[-1]

    monkeypatch.setattr(pairs, "INT32_CELLS", bound)  # instead of 2^31
    monkeypatch.setattr(tables, "INT32_CELLS", bound)
    monkeypatch.setattr(pairs, "_reduce", observed_reduce)
    assert_same_counts(count(STREAM, radius=K, vocab_size=N, mesh=data_mesh(devices), chunk=3), EXPECTED)
    assert len(flushed) > K * (len(STREAM) // bound)
    assert max(C.sum() for C in flushed) < bound  # so no cell, and no sum of cells, came near it
    (C,) = count(np.array([0, *[1] * 100, 0], np.uint8), radius=1, vocab_size=3, chunk=10)
    assert C.dtype == np.int64
    assert C.tolist() == [[0, 1, 0], [1, 99, 0], [0, 0, 0]]


def test_one_run_compiles_its_step_once(monkeypatch):
    monkeypatch.setattr(pairs, "context_columns", chex.assert_max_traces(context_columns, n=1))
    for _ in range(2):  # 20 steps, the last one not full, of a vocabulary of no other test
        count(STREAM, radius=2, vocab_size=11, chunk=16)


# Refusals

KINDS = {"dense": count, "sparse": count_sparse}
STREAMS = [  # of every kind
    *((np.array([0, 1, wrong, 2, 0]), f"token id {wrong} in a vocabulary of {N}.*vocab_size") for wrong in (N, N + 40, -1)),
    *((wrong, "encode_documents") for wrong in (STREAM[1:], STREAM[:-1], STREAM[:1], STREAM[None], STREAM.astype(np.float64))),
]
OPTIONS = [
    ("dense sparse", {"radius": 0}, "radius K = 0.*use K >= 1"),
    ("dense", {"chunk": 0}, "chunk of 0 positions"),
    ("dense", {"vocab_size": 46341}, "vocabulary 46341.*use a vocabulary of at most 46340"),
    ("dense", {"vocab_size": 10**6}, f"vocabulary {10**6}.*use a vocabulary of at most 46340"),
    ("sparse", {"vocab_size": 0}, "vocabulary 0"),
    ("sparse", {"vocab_size": 2**31 + 1}, "2147483649"),
]


def test_streams_and_options_that_are_refused():
    cases = [(kind, {"stream": stream}, said) for kind in KINDS for stream, said in STREAMS]
    cases += [(kind, options, said) for kinds, options, said in OPTIONS for kind in kinds.split()]
    for kind, options, said in cases:
        given = {"stream": STREAM, "radius": 1, "vocab_size": N, **options}
        with pytest.raises(ValueError, match=said):
            KINDS[kind](given.pop("stream"), **given)


def test_the_largest_dense_vocabulary():
    with pytest.raises(ValueError, match="token id 46340 in a vocabulary of 46340"):  # only this check stops it
        count(np.array([0, 46340, 0], np.uint16), radius=1, vocab_size=46340)


@pytest.mark.parametrize("way", [count, count_sparse])
@pytest.mark.parametrize("radius, vocab_size", [(2, 3), (1, 4)])
def test_counts_of_another_radius_or_vocabulary_do_not_merge(way, radius, vocab_size):
    a, b = (way(np.array([0, 1, 0]), radius=r, vocab_size=n) for r, n in ((1, 3), (radius, vocab_size)))
    with pytest.raises(ValueError, match=f"{radius} offsets and vocabulary {vocab_size}: count both with the same radius"):
        merge_counts(a, b)

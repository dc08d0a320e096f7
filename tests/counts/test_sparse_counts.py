"""Sparse counts. Counts are integers: every comparison is exact."""

import errno
import itertools
import os
import resource
import tempfile
from typing import Any

import numpy as np
import pytest
from reference import cooccurrences, random_documents, stream_of
from scipy.sparse import csr_array

from jexplicit.counts import merging, sparse
from jexplicit.counts.dense import count
from jexplicit.counts.sparse import SparseCounter, count_sparse, merge_sparse
from jexplicit.counts.stream import Saving

N, K = 9, 3
DOCUMENTS = random_documents(seed=1, number=60, vocab_size=N, longest=9)
STREAM = stream_of(DOCUMENTS)
EXPECTED = cooccurrences(DOCUMENTS, K, N)

LARGE_N = 300
LARGE_STREAM = np.concatenate([[0], np.random.default_rng(5).zipf(1.2, 40_000) % LARGE_N, [0]]).astype(np.uint16)
LEAST_MEMORY = 2**20 + 128 * K * LARGE_N


def padded(stream):
    return np.concatenate([np.zeros(K - 1, stream.dtype), stream])


def add_windows(counter, stream, sizes):
    """Feed a stream in windows of these sizes, again and again."""
    x, start = padded(stream), 0
    for size in itertools.cycle(sizes):
        if start >= len(x) - K:
            return counter
        counter.add(x[start : start + K + size])
        start += size
    return counter


def counted(stream=STREAM, vocab_size=N, sizes=(10**6,), **options):
    return add_windows(SparseCounter(K, vocab_size, **options), stream, sizes)


def assert_same_counts(tables, expected):
    assert len(tables) == len(expected)
    for C, other in zip(tables, expected, strict=True):
        np.testing.assert_array_equal(C.toarray(), other)
        assert np.all(C.data > 0)
        ordered = C.copy()
        ordered.has_canonical_format = False  # so that it is looked at
        ordered.sum_duplicates()
        assert ordered.nnz == C.nnz
        np.testing.assert_array_equal(ordered.indices, C.indices)


@pytest.fixture(scope="module")
def large_counts():
    return count(LARGE_STREAM, radius=K, vocab_size=LARGE_N)


def test_counts_equal_the_double_loop():
    assert_same_counts(counted().tables(), EXPECTED)


def test_counts_equal_the_dense_ones():
    assert_same_counts(counted().tables(), count(STREAM, radius=K, vocab_size=N))


def test_a_stream_is_counted_and_a_killed_count_goes_on(tmp_path):
    reports = []
    for memory in (None, LEAST_MEMORY):
        options = {"radius": K, "vocab_size": N, "memory": memory, "saving": Saving(tmp_path / str(memory), -1.0)}
        tables = count_sparse(STREAM, **options, progress=lambda done, total: reports.append((done, total)))
        assert_same_counts(tables, EXPECTED)
        assert reports[-1] == (len(STREAM) - 1,) * 2
        steps = len(reports)
        assert_same_counts(count_sparse(STREAM, **options, progress=lambda *report: reports.append(report)), EXPECTED)
        assert len(reports) == steps  # all of it was saved


@pytest.mark.parametrize("sizes", [(1,), (7,), (64, 1, 3), (len(STREAM) - 1,)])
@pytest.mark.parametrize("block", [1, 5, 1000])
def test_the_sizes_of_windows_and_blocks_change_no_count(sizes, block, monkeypatch):
    monkeypatch.setattr(sparse, "_block_positions", block)
    assert_same_counts(counted(sizes=sizes).tables(), EXPECTED)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_the_integer_type_of_the_stream_changes_no_count(dtype):
    assert_same_counts(counted(STREAM.astype(dtype)).tables(), EXPECTED)


def test_keys_of_a_vocabulary_whose_square_passes_2_to_the_32_are_exact():
    large = 2**16 + 3  # 32 bits do not hold j * large + i
    stream = np.where(STREAM > 4, STREAM.astype(np.int64) + large - N, STREAM)
    old = np.where(np.arange(N) > 4, np.arange(N) + large - N, np.arange(N))
    for C, expected in zip(counted(stream, large).tables(), EXPECTED, strict=True):
        assert C.shape == (large, large)
        assert C.sum() == expected.sum()
        np.testing.assert_array_equal(C[old][:, old].toarray(), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_the_largest_id_of_a_type_does_not_wrap(dtype):
    last = int(np.iinfo(dtype).max)  # N = 256 and 65,536, the last vocabulary with keys of 32 bits
    nearest, second = count_sparse(np.array([0, last, last, last - 1, last, 0], dtype), radius=2, vocab_size=last + 1)
    cells = nearest.tocoo()
    pairs = {(j, i): n for j, i, n in zip(*cells.coords, cells.data, strict=True)}
    assert pairs == {(0, last): 1, (last, last): 1, (last, last - 1): 1, (last - 1, last): 1, (last, 0): 1}
    assert (second[last, last - 1], second[last, last], second[last - 1, 0], second.sum()) == (1, 1, 1, 5)


def test_renaming_tokens_renames_rows_and_columns():
    new = np.array([0, 3, 6, 1, 2, 5, 4, 8, 7])  # <pad> stays <pad>
    for C, expected in zip(counted(new[STREAM]).tables(), EXPECTED, strict=True):
        np.testing.assert_array_equal(C[new][:, new].toarray(), expected)


def test_counting_goes_on_after_the_tables_were_read():
    counter = counted()
    counter.tables()
    add_windows(counter, STREAM, (50,))
    assert_same_counts(counter.tables(), [2 * C for C in EXPECTED])


def test_tables_read_before_are_left_alone():
    counter = counted()
    before = counter.tables()
    add_windows(counter, STREAM, (50,))
    counter.tables()
    assert_same_counts(before, EXPECTED)


def test_the_counts_of_no_window_are_zero():
    assert_same_counts(SparseCounter(K, N).tables(), [0 * C for C in EXPECTED])


def test_a_window_of_context_only_changes_nothing():
    counter = counted()
    counter.add(STREAM[:K])
    assert_same_counts(counter.tables(), EXPECTED)


def test_tables_are_of_32_bits_where_that_is_enough():
    for C in counted().tables():
        assert (C.data.dtype, C.indices.dtype, C.indptr.dtype) == (np.int32,) * 3


@pytest.mark.parametrize("sizes", [(5000,), (700, 11_000)])
def test_counts_that_were_spilled_are_those_of_memory(large_counts, sizes, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse, "_block_positions", 3000)
    counter = counted(LARGE_STREAM, LARGE_N, sizes, memory=LEAST_MEMORY, scratch=tmp_path)
    assert_same_counts(counter.tables(), large_counts)
    assert any(tree.files for tree in counter._trees)
    assert not list(tmp_path.iterdir())  # the files have no name: nothing is left behind


def test_counting_goes_on_after_spilled_tables_were_read(large_counts, tmp_path):
    counter = counted(LARGE_STREAM, LARGE_N, (9000,), memory=LEAST_MEMORY, scratch=tmp_path)
    before = counter.tables()
    add_windows(counter, LARGE_STREAM, (20_000,))
    assert_same_counts(counter.tables(), [2 * C for C in large_counts])
    assert_same_counts(before, large_counts)


def test_spilled_cells_that_pass_the_bound_become_int64(monkeypatch, tmp_path, large_counts):
    monkeypatch.setattr(merging, "INT32_CELLS", 64)
    tables = counted(LARGE_STREAM, LARGE_N, memory=LEAST_MEMORY, scratch=tmp_path).tables()
    assert {C.dtype for C in tables} == {np.dtype(np.int64)}
    assert_same_counts(tables, large_counts)


def test_merges_are_few_and_of_like_sizes(monkeypatch):
    added, add = [], merging._add

    def observed(x, y):
        added.append(x.nnz + y.nnz)
        return add(x, y)

    monkeypatch.setattr(merging, "_add", observed)
    monkeypatch.setattr(sparse, "_block_positions", 100)
    counter = SparseCounter(1, 4000)
    stream = np.random.default_rng(0).permutation(np.repeat(np.arange(4000), 2))  # hardly a pair occurs twice
    counter.add(stream)
    counter.tables()
    assert sum(added) < len(stream) * np.log2(len(stream) / 100) * 1.5  # every pair is copied once per doubling


# States


@pytest.mark.parametrize("position", [0, 1, 100, len(STREAM) - 1])
@pytest.mark.parametrize("memory", [None, LEAST_MEMORY])
def test_a_restored_counter_counts_as_if_it_had_never_stopped(position, memory, tmp_path):
    counter = SparseCounter(K, N, memory=memory)
    x = padded(STREAM)
    if position:
        counter.add(x[: K + position])
    arrays: dict[str, Any] = counter.state()
    np.savez(tmp_path / "state.npz", **arrays)
    with np.load(tmp_path / "state.npz") as saved:
        restored = SparseCounter(K, N, memory=memory)
        restored.restore(dict(saved))
    restored.add(x[position:])
    assert_same_counts(restored.tables(), EXPECTED)


def test_a_state_larger_than_the_memory_is_spilled(large_counts):
    state = counted(LARGE_STREAM, LARGE_N).state()
    restored = SparseCounter(K, LARGE_N, memory=LEAST_MEMORY)
    restored.restore(state)
    assert any(tree.files for tree in restored._trees)
    assert_same_counts(restored.tables(), large_counts)


def test_a_state_does_not_change_with_the_counter():
    counter = counted()
    state = counter.state()
    kept = {name: array.copy() for name, array in state.items()}
    add_windows(counter, STREAM, (50,))
    counter.tables()
    for name, array in state.items():
        np.testing.assert_array_equal(array, kept[name])


# Merging


def test_counts_of_parts_merge_into_the_counts_of_the_whole_in_any_order():
    parts = [counted(stream_of(part)).tables() for part in (DOCUMENTS[:9], DOCUMENTS[9:40], DOCUMENTS[40:])]
    for a, b, c in itertools.permutations(parts):
        assert_same_counts(merge_sparse(merge_sparse(a, b), c), EXPECTED)
        assert_same_counts(merge_sparse(a, merge_sparse(b, c)), EXPECTED)


def test_the_counts_of_no_text_change_nothing():
    tables = counted().tables()
    assert merge_sparse((), tables) is tables
    assert merge_sparse(tables, ()) is tables
    assert merge_sparse((), ()) == ()


@pytest.mark.parametrize("total, dtype", [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_merged_counts_become_int64_exactly_where_a_cell_could_pass_int32(total, dtype):
    a, b = (csr_array(np.array([[n, 0], [5, 0]], np.int32)) for n in (2**30, total - 2**30))
    (C,) = merge_sparse((a,), (b,))
    assert C.dtype == dtype
    assert C.toarray().tolist() == [[total, 0], [10, 0]]


@pytest.mark.parametrize("radius, vocab_size", [(2, 3), (1, 4)])
def test_counts_of_another_radius_or_vocabulary_do_not_merge(radius, vocab_size):
    a = SparseCounter(1, 3).tables()
    b = SparseCounter(radius, vocab_size).tables()
    with pytest.raises(ValueError, match=f"{radius} offsets and vocabulary {vocab_size}: count both with the same radius"):
        merge_sparse(a, b)


# Refusals


@pytest.mark.parametrize("wrong", [N, N + 40, -1])
def test_a_token_id_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=f"token id {wrong} in a vocabulary of {N}.*vocab_size"):
        SparseCounter(K, N).add(np.array([0, 0, 0, 1, wrong, 2, 0]))


def test_a_refused_window_changes_no_count():
    counter = counted()
    with pytest.raises(ValueError):
        counter.add(np.array([0, 0, 0, 1, N]))
    assert_same_counts(counter.tables(), EXPECTED)


@pytest.mark.parametrize("window", [STREAM[: K - 1], STREAM[None], STREAM.astype(np.float64)])
def test_a_window_shorter_than_its_context_is_refused(window):
    with pytest.raises(ValueError, match="pass one axis of integers, K = 3 context tokens"):
        SparseCounter(K, N).add(window)


@pytest.mark.parametrize(
    "radius, vocab_size, said", [(0, N, "radius K = 0.*K >= 1"), (1, 0, "vocabulary 0"), (1, 2**31 + 1, "2147483649")]
)
def test_a_radius_or_a_vocabulary_out_of_range_is_refused(radius, vocab_size, said):
    with pytest.raises(ValueError, match=said):
        SparseCounter(radius, vocab_size)


def test_a_stream_that_is_malformed_is_refused():
    with pytest.raises(ValueError, match="encode_documents"):
        count_sparse(STREAM[1:], radius=1, vocab_size=N)


def test_a_memory_too_small_to_count_in_is_refused():
    with pytest.raises(ValueError, match=f"memory of 1000 bytes.*need at least {2**20 + 128 * K * N}"):
        SparseCounter(K, N, memory=1000)


def test_a_full_scratch_folder_is_named(monkeypatch, tmp_path):
    class Full:
        def close(self):
            pass

        def seek(self, *_):
            pass

        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full())
    with pytest.raises(ValueError, match=f"No space left.*{tmp_path}; use a scratch folder with more room"):
        counted(LARGE_STREAM, LARGE_N, memory=LEAST_MEMORY, scratch=tmp_path)


@pytest.mark.slow
def test_counting_stays_within_its_memory():
    """Pairs that hardly repeat, three times as many bytes as the memory: what is resident grows by no more than it."""
    memory, vocab_size = 64 << 20, 50_000
    counter = SparseCounter(2, vocab_size, memory=memory)
    rng = np.random.default_rng(0)
    counter.add(rng.integers(1, vocab_size, 1 << 16))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        counter.add(rng.integers(1, vocab_size, 1 << 16))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < memory

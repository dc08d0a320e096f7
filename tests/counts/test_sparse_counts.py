"""Sparse counts: tables of canonical form, states, and tables written and read. Every comparison is exact."""

import json
from typing import Any

import numpy as np
import pytest
from reference import cooccurrences, random_documents, stream_of
from scipy.sparse import csr_array

from jexplicit.counts import pairs, tables
from jexplicit.counts.pairs import SparseCounter, count, count_sparse
from jexplicit.counts.tables import (
    MergeTree,
    Saving,
    merge_counts,
    read_tables,
    split_columns,
    windows,
    write_tables,
    write_tables_index,
)

N, K = 9, 3
DOCUMENTS = random_documents(seed=1, number=60, vocab_size=N, longest=9)
STREAM = stream_of(DOCUMENTS)
EXPECTED = cooccurrences(DOCUMENTS, K, N)

LARGE_N = 300
LARGE_STREAM = np.concatenate([[0], np.random.default_rng(5).zipf(1.2, 40_000) % LARGE_N, [0]]).astype(np.uint16)


def counted(stream=STREAM, vocab_size=N, size=10**6, counter=None, **options):
    """A counter that was fed a stream in windows of this size."""
    counter = counter or SparseCounter(K, vocab_size, **options)
    for window in windows(stream, 1, len(stream), radius=K, span=size):
        counter.add(window)
    return counter


def assert_same_counts(tables, expected):
    for C, other in zip(tables, expected, strict=True):
        np.testing.assert_array_equal(C.toarray(), other.toarray() if isinstance(other, csr_array) else other)
        assert np.all(C.data > 0)
        ordered = C.copy()
        ordered.has_canonical_format = False  # so that it is looked at
        ordered.sum_duplicates()
        np.testing.assert_array_equal(ordered.indices, C.indices)


@pytest.fixture(scope="module")
def large_counts():
    return count(LARGE_STREAM, radius=K, vocab_size=LARGE_N)


def test_tables_are_the_double_loop_in_canonical_form_and_stay_as_they_are_while_counting_goes_on():
    counter = counted()
    before = counter.tables()
    assert {part.dtype for C in before for part in (C.data, C.indices, C.indptr)} == {np.dtype(np.int32)}
    counter.add(STREAM[:K])  # a window of context only
    state = counter.state()
    kept = {name: array.copy() for name, array in state.items()}
    assert_same_counts(counted(size=50, counter=counter).tables(), [2 * C for C in EXPECTED])
    assert_same_counts(before, EXPECTED)
    for name, array in state.items():
        np.testing.assert_array_equal(array, kept[name])
    assert_same_counts(SparseCounter(K, N).tables(), [0 * C for C in EXPECTED])


@pytest.mark.parametrize("large", [2**8, 2**16, 2**16 + 3])
def test_keys_up_to_and_beyond_32_bits_are_exact(large):
    old = np.where(np.arange(N) > 4, np.arange(N) + large - N, np.arange(N))  # the largest id is large - 1
    dtype = np.min_scalar_type(large - 1)
    for C, expected in zip(counted(old[STREAM].astype(dtype), large).tables(), EXPECTED, strict=True):
        assert C.shape == (large, large) and C.sum() == expected.sum()
        np.testing.assert_array_equal(C[old][:, old].toarray(), expected)


def test_cells_that_pass_the_bound_become_int64(monkeypatch, large_counts):
    monkeypatch.setattr(tables, "INT32_CELLS", 64)
    monkeypatch.setattr(pairs, "_block_positions", 3000)
    found = counted(LARGE_STREAM, LARGE_N).tables()
    assert {C.dtype for C in found} == {np.dtype(np.int64)}
    assert_same_counts(found, large_counts)


def test_merges_are_few_and_of_like_sizes(monkeypatch):
    added, add = [], tables.add_tables

    def observed(x, y):
        added.append(x.nnz + y.nnz)
        return add(x, y)

    monkeypatch.setattr(tables, "add_tables", observed)
    monkeypatch.setattr(pairs, "_block_positions", 100)
    counter = SparseCounter(1, 4000)
    stream = np.random.default_rng(0).permutation(np.repeat(np.arange(4000), 2))  # hardly a pair occurs twice
    counter.add(stream)
    counter.tables()
    assert sum(added) < len(stream) * np.log2(len(stream) / 100) * 1.5  # every pair is copied once per doubling


# States


def test_a_restored_counter_counts_as_if_it_had_never_stopped(tmp_path, large_counts):
    for position in (1, 100, len(STREAM) - 1):
        arrays: dict[str, Any] = counted(STREAM[: position + 1]).state()
        np.savez(tmp_path / "state.npz", **arrays)
        restored = SparseCounter(K, N)
        with np.load(tmp_path / "state.npz") as saved:
            restored.restore(dict(saved))
        restored.add(np.append(np.zeros(K - 1, STREAM.dtype), STREAM)[position:])
        assert_same_counts(restored.tables(), EXPECTED)
    restored = SparseCounter(K, LARGE_N)
    restored.restore(counted(LARGE_STREAM, LARGE_N).state())
    assert_same_counts(restored.tables(), large_counts)


def test_all_that_was_saved_is_not_counted_again(tmp_path):
    reports, options = [], {"radius": K, "vocab_size": N, "saving": Saving(tmp_path, -1.0)}
    for _ in range(2):
        tables = count_sparse(STREAM, **options, progress=lambda *now: reports.append(now))
        assert_same_counts(tables, EXPECTED)
    assert reports == [(len(STREAM) - 1,) * 2]


# Merging, and tables in files


def write(folder, counts, shards=1):
    for s, part in enumerate(split_columns(counts, shards)):
        write_tables(folder, part, shard=s, shards=shards)
    write_tables_index(folder, radius=len(counts), shards=shards, tokenizer="abc")


@pytest.mark.parametrize("shards", [1, 4])
def test_many_parts_are_split_by_column_written_and_read(tmp_path, shards):
    parts = [counted(stream_of(DOCUMENTS[n : n + 7])).tables() for n in range(0, 60, 7)]
    assert_same_counts(merge_counts(merge_counts(*parts[:3]), (), *parts[3:][::-1]), EXPECTED)  # as a runner combines them
    whole = merge_counts(*parts)
    columns = split_columns(whole, shards)
    assert all((C.indices % shards == s).all() for s, part in enumerate(columns) for C in part)
    assert_same_counts(merge_counts(*columns), EXPECTED)
    write(tmp_path, whole, shards)
    tables = read_tables(tmp_path, tokenizer="abc")
    assert_same_counts(tables, EXPECTED)
    assert {C.dtype for C in (*tables, *(C.toarray() for C in tables))} == {np.dtype(np.int32)}


def test_the_tables_of_a_merge_tree_stay_few():
    tree, parts = MergeTree(N), [counted(stream_of(random_documents(s, 60, N, 9))).tables()[:1] for s in range(20)]
    for (C,) in parts:
        tree.add(C)
        assert len(tree.tables) <= 5
    assert_same_counts((tree.total(),), merge_counts(*parts))


def test_counts_beyond_int32_and_beyond_dense_tables_are_written_and_read(tmp_path):
    C = csr_array(np.array([[0, 0, 0], [0, 2**31 - 1, 0], [0, 0, 0]], np.int32))
    write(tmp_path, merge_counts(*[(C,)] * 5))
    (D,) = (C.toarray() for C in read_tables(tmp_path))
    assert D.dtype == np.int64 and D[1, 1] == 5 * (2**31 - 1)
    n = 200_000
    write(tmp_path, count_sparse(np.array([0, n - 1, 5, 0, 5, n - 1, 5, 0], np.uint32), radius=2, vocab_size=n), shards=3)
    C, D = read_tables(tmp_path)
    assert C.shape == (n, n) and C[n - 1, 5] == 2 and C[0, n - 1] == 1 and D[5, 5] == 1 and C.sum() == D.sum() == 7


# Refusals


def test_damaged_foreign_and_unfinished_counts_are_refused(tmp_path):
    def refused(said, **options):
        with pytest.raises(ValueError, match=said):
            read_tables(tmp_path, **options)

    refused("holds no whole counts")
    counts = counted().tables()
    write(tmp_path, counts, shards=2)
    refused("counts of another tokenizer", tokenizer="xyz")
    path = tmp_path / "offset_2_00001-of-00002.npz"
    data = path.read_bytes()
    for place in range(0, len(data), 31):  # most bytes matter; with those that do not, the counts are the same
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            assert_same_counts(read_tables(tmp_path), counts)
        except ValueError as error:
            assert "offset_2_00001-of-00002.npz are missing or damaged" in str(error)
    path.write_bytes(data[:-9])
    refused(r"offset_2_00001-of-00002\.npz are missing or damaged")
    path.unlink()
    refused(r"offset_2_00001-of-00002\.npz are missing or damaged")
    index = tmp_path / "index.json"
    text = index.read_text()
    index.write_text(json.dumps({**json.loads(text), "layout": 1}))
    refused(r"of another version \(layout 1\)")
    index.write_text(text[:-9])
    refused("index .* is damaged")


@pytest.mark.parametrize("window", [STREAM[: K - 1], STREAM[None], STREAM.astype(np.float64), [0, 0, 0, 1, N]])
def test_a_refused_window_changes_no_count(window):
    counter = counted()
    with pytest.raises(ValueError, match="pass one axis of integers, K = 3 context tokens|token id 9"):
        counter.add(np.array(window))
    assert_same_counts(counter.tables(), EXPECTED)

"""Counts of parts merged, split by column and read back from files: exactly those of the dense count."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array

from jexplicit.counts.dense import count
from jexplicit.counts.files import read_tables, split_columns, write_tables, write_tables_index
from jexplicit.counts.merging import MergeTree, SparseCounts, dense_counts, merge_sparse
from jexplicit.counts.sparse import count_sparse


def some_documents(seed: int = 0, n: int = 60, N: int = 23) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.append(rng.zipf(1.5, rng.integers(0, 9)) % (N - 1) + 1, 0) for _ in range(n)]


def stream_of(documents: list[np.ndarray]) -> np.ndarray:
    """`<pad> d_1 <pad> ... <pad>`, with at least one token."""
    return np.concatenate([[0], *(document for document in documents if len(document) > 1)])


def write(folder, counts: SparseCounts, shards: int = 1) -> None:
    for s, part in enumerate(split_columns(counts, shards)):
        write_tables(folder, part, shard=s, shards=shards)
    write_tables_index(folder, radius=len(counts), shards=shards, tokenizer="abc")


def assert_same(a: SparseCounts, b: SparseCounts) -> None:
    for C, D in zip(a, b, strict=True):
        assert C.dtype == D.dtype
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(C, name), getattr(D, name))


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("shards", [1, 4])
def test_counts_of_parts_are_the_dense_count_cell_for_cell(tmp_path, K, shards):
    documents, N = some_documents(), 23
    parts = [count_sparse(stream_of(documents[n : n + 7]), radius=K, vocab_size=N) for n in range(0, 60, 7)]
    write(tmp_path, merge_sparse(*parts), shards)
    tables = read_tables(tmp_path, tokenizer="abc")
    expected = count(stream_of(documents), radius=K, vocab_size=N)
    for sparse, dense, C in zip(tables, dense_counts(tables), expected, strict=True):
        np.testing.assert_array_equal(dense, C)
        assert dense.dtype == sparse.dtype == C.dtype and sparse.nnz == np.count_nonzero(C)


def test_counts_of_parts_add_up_in_any_order():
    parts = [count_sparse(stream_of(some_documents(seed)), radius=2, vocab_size=23) for seed in range(20)]
    whole = merge_sparse(*parts)
    assert_same(merge_sparse(*parts[::-1]), whole)
    assert_same(merge_sparse(merge_sparse(*parts[:3]), (), *parts[3:]), whole)  # as a runner combines them
    assert sum(C.sum() for C in whole) == sum(C.sum() for part in parts for C in part)


def test_the_tables_of_a_merge_tree_stay_few():
    tree, parts = MergeTree(23), [count_sparse(stream_of(some_documents(seed)), radius=1, vocab_size=23) for seed in range(20)]
    for n, (C,) in enumerate(parts):
        tree.add(C)
        assert len(tree._tables) <= 5
        if n % 6 == 5:
            tree.spill()
            assert tree.nbytes == 0
    assert 1 <= tree.files <= 3
    assert_same((tree.total(),), merge_sparse(*parts))


def test_counts_beyond_int32_stay_exact(tmp_path):
    C = csr_array(np.array([[0, 0, 0], [0, 2**31 - 1, 0], [0, 0, 0]], np.int32))
    write(tmp_path, (C,))
    assert read_tables(tmp_path)[0].dtype == np.int32
    write(tmp_path, merge_sparse(*[(C,)] * 5))
    (D,) = dense_counts(read_tables(tmp_path))
    assert D.dtype == np.int64 and D[1, 1] == 5 * (2**31 - 1)


def test_a_vocabulary_beyond_dense_tables(tmp_path):
    N = 200_000
    x = np.array([0, N - 1, 5, 0, 5, N - 1, 5, 0], np.uint32)
    write(tmp_path, count_sparse(x, radius=2, vocab_size=N), shards=3)
    C, D = read_tables(tmp_path)
    assert C.shape == (N, N) and C[N - 1, 5] == 2 and C[0, N - 1] == 1 and D[5, 5] == 1 and C.sum() == D.sum() == 7


def test_columns_are_dealt_to_shards_in_turn():
    counts = count_sparse(stream_of(some_documents()), radius=2, vocab_size=23)
    parts = split_columns(counts, 4)
    assert all((C.indices % 4 == s).all() for s, part in enumerate(parts) for C in part)
    assert_same(merge_sparse(*parts), counts)


def test_damaged_foreign_and_unfinished_counts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no whole counts"):
        read_tables(tmp_path)
    counts = count_sparse(stream_of(some_documents()), radius=2, vocab_size=23)
    write(tmp_path, counts, shards=2)
    with pytest.raises(ValueError, match="counts of another tokenizer"):
        read_tables(tmp_path, tokenizer="xyz")
    path = tmp_path / "offset_2_00001-of-00002.npz"
    data = path.read_bytes()
    for place in range(0, len(data), 7):  # most bytes matter; with those that do not, the counts are the same
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            assert_same(read_tables(tmp_path), counts)
        except ValueError as error:
            assert "offset_2_00001-of-00002.npz are missing or damaged" in str(error)
    path.write_bytes(data[:-9])
    with pytest.raises(ValueError, match=r"offset_2_00001-of-00002\.npz are missing or damaged"):
        read_tables(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"offset_2_00001-of-00002\.npz are missing or damaged"):
        read_tables(tmp_path)
    index = tmp_path / "index.json"
    text = index.read_text()
    index.write_text(json.dumps({**json.loads(text), "layout": 1}))
    with pytest.raises(ValueError, match=r"of another version \(layout 1\)"):
        read_tables(tmp_path)
    index.write_text(text[:-9])
    with pytest.raises(ValueError, match="index .* is damaged"):
        read_tables(tmp_path)

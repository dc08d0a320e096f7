"""Sparse counts as sorted runs: those of the dense count, however the text is cut and the runs are merged."""

import numpy as np
import pytest

from jexplicit.counts.dense import count
from jexplicit.counts.merging import (
    Run,
    add_run,
    count_run,
    dense_counts,
    merge_runs,
    read_tables,
    split_columns,
    write_tables,
    write_tables_index,
)


def some_documents(seed: int = 0, n: int = 60, N: int = 23) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.append(rng.zipf(1.5, rng.integers(0, 9)) % (N - 1) + 1, 0) for _ in range(n)]


def stream_of(documents: list[np.ndarray]) -> np.ndarray:
    """`<pad> d_1 <pad> ... <pad>`, with at least one token."""
    return np.concatenate([[0], *(document for document in documents if len(document) > 1)])


def tables_of(folder, run: Run, K: int, N: int, shards: int = 1):
    parts = enumerate(split_columns(run, shards, vocab_size=N))
    tables = [t for s, part in parts for t in write_tables(folder, part, radius=K, vocab_size=N, shard=s, shards=shards)]
    write_tables_index(folder, tables, radius=K, vocab_size=N, tokenizer="abc")
    return read_tables(folder, tokenizer="abc")


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("shards", [1, 4])
def test_runs_of_parts_are_the_dense_count_cell_for_cell(tmp_path, K, shards):
    documents, N = some_documents(), 23
    runs = []
    for first in range(0, 60, 7):
        runs = add_run(runs, count_run(stream_of(documents[first : first + 7]), radius=K, vocab_size=N))
    tables = tables_of(tmp_path, merge_runs(runs), K, N, shards)
    expected = count(stream_of(documents), radius=K, vocab_size=N)
    for sparse, dense, C in zip(tables, dense_counts(tables), expected, strict=True):
        np.testing.assert_array_equal(dense, C)
        assert dense.dtype == C.dtype and sparse.dtype == np.int64 and sparse.nnz == np.count_nonzero(C)


def test_runs_add_up_in_any_order_and_stay_few():
    parts = [count_run(stream_of(some_documents(seed)), radius=2, vocab_size=23) for seed in range(20)]
    whole, held = merge_runs(parts), []
    for part in reversed(parts):
        held = add_run(held, part)
        assert len(held) <= 5
    for found in (merge_runs(held), merge_runs([merge_runs(parts[:3]), Run(*np.zeros((2, 0), np.int64)), *parts[3:]])):
        np.testing.assert_array_equal(found.keys, whole.keys)
        np.testing.assert_array_equal(found.counts, whole.counts)
    assert (np.diff(whole.keys) > 0).all() and whole.counts.sum() == sum(part.counts.sum() for part in parts)
    assert len(merge_runs([]).keys) == 0


def test_counts_beyond_int32_stay_exact(tmp_path):
    run = Run(np.array([4]), np.array([2**31 - 1]))
    assert dense_counts(tables_of(tmp_path, run, 1, 3))[0].dtype == np.int32
    (C,) = dense_counts(tables_of(tmp_path, merge_runs([run] * 5), 1, 3))
    assert C.dtype == np.int64 and C[1, 1] == 5 * (2**31 - 1)


def test_a_vocabulary_beyond_dense_tables(tmp_path):
    N = 200_000
    x = np.array([0, N - 1, 5, 0, 5, N - 1, 5, 0], np.uint32)
    C, D = tables_of(tmp_path, count_run(x, radius=2, vocab_size=N), 2, N, shards=3)
    assert C.shape == (N, N) and C[N - 1, 5] == 2 and C[0, N - 1] == 1 and D[5, 5] == 1 and C.sum() == D.sum() == 7
    with pytest.raises(ValueError, match="overflow int64"):
        count_run(x, radius=2, vocab_size=2**32)


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="token id 7 in a vocabulary of 5"):
        count_run(np.array([0, 7, 0]), radius=1, vocab_size=5)
    with pytest.raises(ValueError, match="radius K = 0"):
        count_run(np.array([0, 3, 0]), radius=0, vocab_size=5)


def test_damaged_foreign_and_unfinished_counts_are_refused(tmp_path):
    run = count_run(stream_of(some_documents()), radius=2, vocab_size=23)
    with pytest.raises(ValueError, match="holds no whole counts"):
        read_tables(tmp_path)
    tables_of(tmp_path, run, 2, 23, shards=2)
    with pytest.raises(ValueError, match="counts of another tokenizer"):
        read_tables(tmp_path, tokenizer="xyz")
    path = tmp_path / "offset_2_00001-of-00002.npz"
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(ValueError, match=r"offset_2_00001-of-00002\.npz are damaged \(CRC-32"):
        read_tables(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"offset_2_00001-of-00002\.npz cannot be read"):
        read_tables(tmp_path)
    index = tmp_path / "index.json"
    index.write_bytes(index.read_bytes()[:-9])
    with pytest.raises(ValueError, match="index .* is damaged"):
        read_tables(tmp_path)

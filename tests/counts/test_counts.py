"""Every way of counting gives the counts of the double loop, wherever text and tables lie. Every comparison is exact."""

import itertools
from typing import Any

import chex
import numpy as np
import pytest
from files import flipped, shards_of
from reference import cooccurrences, random_documents, stream_of
from refusals import refused
from scipy.sparse import csr_array

from jexplicit import counts as module
from jexplicit.counts import count, count_sparse, merge_counts, read_tables, write_tables
from jexplicit.data.streams import context_columns
from jexplicit.runs.devices import data_mesh

N, K = 7, 3  # N is divided by none of the numbers of devices but 1, and less than the largest
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 50, N, 9)]  # 5: never seen
STREAM = stream_of(DOCUMENTS)


def assert_same(found, expected):
    """The same counts, and sparse ones in canonical form."""
    for C, other in zip(found, expected, strict=True):
        one, two = (X if isinstance(X, np.ndarray) else X.toarray() for X in (C, other))
        np.testing.assert_array_equal(one, two)
        if not isinstance(C, np.ndarray):
            ordered = C.copy()
            ordered.has_canonical_format = False  # so that it is looked at
            ordered.sum_duplicates()
            np.testing.assert_array_equal(ordered.indices, C.indices)
            assert np.all(C.data > 0)


def counted(stream=STREAM, vocab_size=N, sizes=(10**6,), context=K):
    """Sparse counts of windows of these sizes, again and again."""
    x, start, parts = np.append(np.zeros(context - 1, stream.dtype), stream), 0, []  # any part of a text
    for size in itertools.cycle(sizes):
        parts.append(module.window_pairs(x[start : start + context + size], context, vocab_size))
        if (start := start + size) >= len(x) - context:
            break
    return module.sum_tables(parts)


def written(folder, counts):
    write_tables(folder, counts, tokenizer="abc")
    return read_tables(folder, tokenizer="abc")


def parts_of(way, documents, vocab_size):
    cuts = (documents[: len(documents) // 3], documents[len(documents) // 3 :])
    return [way(stream_of(part), context=K, vocab_size=vocab_size) for part in cuts if part]


WAYS: dict[str, Any] = {  # of documents, vocabulary, and a folder
    **{
        f"dense of {chunk} on {devices}": lambda d, N, _, c=chunk, n=devices: count(
            stream_of(d, np.uint8), context=K, vocab_size=N, chunk=c, mesh=data_mesh(n)
        )
        for chunk, devices in ((5, 8), (10**6, 2), (7, 1))
    },
    **{f"sparse of {s}": lambda d, N, _, s=s: counted(stream_of(d, np.uint8), N, s) for s in ((1,), (64, 1, 3), (10**6,))},
    "sparse stream": lambda d, N, _: count_sparse(stream_of(d, np.int64), context=K, vocab_size=N),
    "shards": lambda d, N, folder: count(shards_of(folder, d, vocab_size=N), context=K, vocab_size=N),
    "sparse shards": lambda d, N, folder: count_sparse(shards_of(folder, d, vocab_size=N), context=K, vocab_size=N),
    "dense parts": lambda d, N, _: merge_counts((), *parts_of(count, d, N)[::-1]),
    "sparse parts": lambda d, N, _: merge_counts(*parts_of(count_sparse, d, N), ()),
    "files": lambda d, N, folder: written(folder, counted(stream_of(d), N)),
}
new = np.array([0, 3, 6, 1, 2, 5, 4])
TEXTS = {  # documents, vocabulary
    "random": (DOCUMENTS, N),
    "renamed": ([[int(new[token]) for token in document] for document in DOCUMENTS[::-1]], N),
    "fewer positions than devices": ([[1, 2]], 3),
    "largest id of a type": ([[255, 255, 254, 255]], 256),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_counting_is_the_double_loop(way, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_block_positions", 50)
    for name, (documents, vocab_size) in TEXTS.items():
        found = WAYS[way](documents, vocab_size, tmp_path / name)
        assert_same(found, cooccurrences(documents, K, vocab_size))
        assert {C.dtype for C in found} == {np.dtype(np.int32)}


def test_progress_and_one_compilation_of_a_step(monkeypatch):
    M, reports = len(STREAM) - 1, []
    count(STREAM, context=1, vocab_size=N, chunk=32, mesh=data_mesh(1), progress=lambda *now: reports.append(now))
    assert reports == [(min(done, M), M) for done in range(32, M + 32, 32)]
    monkeypatch.setattr(module, "context_columns", chex.assert_max_traces(context_columns, n=1))
    for _ in range(2):  # 20 steps, the last one not full, of a vocabulary of no other test
        count(STREAM, context=2, vocab_size=11, chunk=16)


def test_counts_become_int64_exactly_where_a_cell_could_pass_int32(tmp_path):
    for total, dtype in ((2**31 - 1, np.int32), (2**31, np.int64)):
        a, b = (np.array([[n, 0], [5, 0]], np.int32) for n in (2**30, total - 2**30))
        for found in (merge_counts((a,), (b,)), merge_counts((csr_array(a),), (csr_array(b),))):
            assert found[0].dtype == dtype and a.tolist() == [[2**30, 0], [5, 0]]
            assert_same(found, [np.array([[total, 0], [10, 0]])])
    C = csr_array(np.array([[0, 0], [0, 2**31 - 1]], np.int32))
    (D,) = written(tmp_path, merge_counts(*[(C,)] * 5))
    assert D.dtype == np.int64 and D[1, 1] == 5 * (2**31 - 1)


@pytest.mark.parametrize("devices", [1, 8])
def test_tables_are_flushed_before_a_cell_can_overflow_and_counts_stay_exact(devices, monkeypatch):
    bound, flushed, fetch = 64, [], module._on_host
    monkeypatch.setattr(module, "INT32_CELLS", bound)  # instead of 2^31
    monkeypatch.setattr(module, "_on_host", lambda *given: flushed.append(fetch(*given)) or flushed[-1])
    assert_same(count(STREAM, context=K, vocab_size=N, mesh=data_mesh(devices), chunk=3), cooccurrences(DOCUMENTS, K, N))
    assert len(flushed) > len(STREAM) // bound
    assert max(C.sum() for tables in flushed for C in tables) < bound  # so no cell, and no sum of cells, came near it
    ones = np.array([0, *[1] * 100, 0], np.uint8)
    for found in (count(ones, context=1, vocab_size=3, chunk=10), counted(ones, 3, (30,), context=1)):
        assert found[0].dtype == np.int64
        assert_same(found, [np.array([[0, 1, 0], [1, 99, 0], [0, 0, 0]])])


def test_streams_options_and_counts_that_are_refused(tmp_path):
    stream = shards_of(tmp_path, DOCUMENTS, vocab_size=N)
    path = tmp_path / stream.shards[1].file
    path.write_bytes(flipped(path.read_bytes(), 3))
    for way in (count, count_sparse):
        for options, said in [
            *(({"stream": np.array([0, 1, i, 2, 0])}, f"token id {i} in a vocabulary of {N}.*vocab_size") for i in (N, -1)),
            *(({"stream": wrong}, "encode_documents") for wrong in (STREAM[1:], STREAM[None], STREAM * 1.0)),
            ({"context": 0}, "context K = 0.*use K >= 1"),
            ({"vocab_size": 2**31 + 1}, "2147483649"),
            ({"stream": stream}, r"00001\.tokens is damaged \(CRC-32"),
        ]:
            refused(said, way, **{"stream": STREAM, "context": 1, "vocab_size": N, **options})
    refused("chunk of 0 positions", count, STREAM, context=1, vocab_size=N, chunk=0)
    refused("vocabulary 46341.*use a vocabulary of at most 46340", count, STREAM, context=1, vocab_size=46341)
    said = "token id 46340 in a vocabulary of 46340"  # the largest one: only this check stops it
    refused(said, count, np.array([0, 46340, 0], np.uint16), context=1, vocab_size=46340)
    for context, size in ((2, 3), (1, 4)):
        a, b = (count_sparse(np.array([0, 1, 0]), context=r, vocab_size=n) for r, n in ((1, 3), (context, size)))
        refused(f"{context} offsets and vocabulary {size}: count both with the same context", merge_counts, a, b)
    refused("holds no whole counts", read_tables, tmp_path)
    written(tmp_path, counted())
    refused("counts of another tokenizer", read_tables, tmp_path, tokenizer="xyz")
    data = (tmp_path / "tables.npz").read_bytes()
    for damaged in (flipped(data, len(data) // 2), data[:-9], b""):
        (tmp_path / "tables.npz").write_bytes(damaged)
        refused(r"tables\.npz is damaged", read_tables, tmp_path)
    np.savez(tmp_path / "tables.npz", layout=3)
    refused(r"of another version \(layout 3\)", read_tables, tmp_path)

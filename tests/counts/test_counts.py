"""Every way of counting gives the counts of the double loop, wherever text and tables lie. Every comparison is exact."""

import itertools
import json
from collections import Counter
from typing import Any

import chex
import numpy as np
import pytest
from files import flipped, shards_of
from jexplicit.data.streams import context_columns, with_leading_pads
from reference import cooccurrences, random_documents, stream_of
from refusals import refused
from scipy.sparse import csr_array

from jexplicit.counts import (
    count,
    count_contexts,
    count_sparse,
    merge_counts,
    pairs,
    read_tables,
    sum_tables,
    tables,
    window_pairs,
    windows,
    write_table,
    write_tables_index,
)
from jexplicit.data import contexts
from jexplicit.runs.devices import data_mesh

N, K = 7, 3  # N is divided by none of the numbers of devices but 1, and less than the largest
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 50, N, 9)]  # 5: never seen
STREAM = stream_of(DOCUMENTS)
EXPECTED = cooccurrences(DOCUMENTS, K, N)


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


def counted(stream=STREAM, vocab_size=N, sizes=(10**6,), radius=K):
    """Sparse counts of windows of these sizes, again and again."""
    x, start, parts = np.append(np.zeros(radius - 1, stream.dtype), stream), 0, []  # any part of a text
    for size in itertools.cycle(sizes):
        parts.append(window_pairs(x[start : start + radius + size], radius, vocab_size))
        if (start := start + size) >= len(x) - radius:
            break
    return sum_tables(parts)


def written(folder, counts):
    folder.mkdir(parents=True, exist_ok=True)
    for k, C in enumerate(counts, 1):
        write_table(folder, k, C)
    write_tables_index(folder, radius=len(counts), tokenizer="abc")
    return read_tables(folder, tokenizer="abc")


def parts_of(way, documents, vocab_size):
    cuts = (documents[: len(documents) // 3], documents[len(documents) // 3 :])
    return [way(stream_of(part), radius=K, vocab_size=vocab_size) for part in cuts if part]


WAYS: dict[str, Any] = {  # of documents, vocabulary, and a folder
    **{
        f"dense of {chunk} on {devices}": lambda d, N, _, c=chunk, n=devices: count(
            stream_of(d, np.uint8), radius=K, vocab_size=N, chunk=c, mesh=data_mesh(n)
        )
        for chunk, devices in ((5, 8), (10**6, 2), (7, 1))
    },
    **{f"sparse of {s}": lambda d, N, _, s=s: counted(stream_of(d, np.uint8), N, s) for s in ((1,), (64, 1, 3), (10**6,))},
    "sparse stream": lambda d, N, _: count_sparse(stream_of(d, np.int64), radius=K, vocab_size=N),
    "shards": lambda d, N, folder: count(shards_of(folder, d, vocab_size=N), radius=K, vocab_size=N),
    "sparse shards": lambda d, N, folder: count_sparse(shards_of(folder, d, vocab_size=N), radius=K, vocab_size=N),
    "larger radius": lambda d, N, _: count(stream_of(d, np.int32), radius=K + 2, vocab_size=N)[:K],
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
    monkeypatch.setattr(pairs, "_block_positions", 50)
    for name, (documents, vocab_size) in TEXTS.items():
        found = WAYS[way](documents, vocab_size, tmp_path / name)
        assert_same(found, cooccurrences(documents, K, vocab_size))
        assert {C.dtype for C in found} == {np.dtype(np.int32)}


def test_counts_by_hand_and_progress_and_one_compilation_of_a_step(monkeypatch):
    nearest, second = count(np.array([0, 1, 2, 1, 0], np.uint8), radius=2, vocab_size=3)
    assert nearest.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert second.tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 0]]
    M, reports = len(STREAM) - 1, []
    count(STREAM, radius=1, vocab_size=N, chunk=32, mesh=data_mesh(1), progress=lambda *now: reports.append(now))
    assert reports == [(min(done, M), M) for done in range(32, M + 32, 32)]
    monkeypatch.setattr(pairs, "context_columns", chex.assert_max_traces(context_columns, n=1))
    for _ in range(2):  # 20 steps, the last one not full, of a vocabulary of no other test
        count(STREAM, radius=2, vocab_size=11, chunk=16)


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
    bound, flushed, reduce = 64, [], pairs._reduce
    monkeypatch.setattr(pairs, "INT32_CELLS", bound)  # instead of 2^31
    monkeypatch.setattr(tables, "INT32_CELLS", bound)
    monkeypatch.setattr(pairs, "_reduce", lambda *given: flushed.append(reduce(*given)) or flushed[-1])
    assert_same(count(STREAM, radius=K, vocab_size=N, mesh=data_mesh(devices), chunk=3), EXPECTED)
    assert len(flushed) > K * (len(STREAM) // bound)
    assert max(C.sum() for C in flushed) < bound  # so no cell, and no sum of cells, came near it
    ones = np.array([0, *[1] * 100, 0], np.uint8)
    for found in (count(ones, radius=1, vocab_size=3, chunk=10), counted(ones, 3, (30,), radius=1)):
        assert found[0].dtype == np.int64
        assert_same(found, [np.array([[0, 1, 0], [1, 99, 0], [0, 0, 0]])])


def test_windows_together_are_the_stream_each_after_its_context():
    for span, radius in itertools.product((1, 3, 50, 10**4), (1, 4)):
        padded, parts = with_leading_pads(STREAM, radius), list(windows(STREAM, 1, len(STREAM), radius=radius, span=span))
        np.testing.assert_array_equal(np.concatenate([part[radius:] for part in parts]), STREAM[1:])
        for n, part in enumerate(parts):
            np.testing.assert_array_equal(part, padded[n * span : n * span + len(part)])


# Refusals


def test_streams_options_and_counts_that_are_refused(tmp_path):
    STREAMS = [
        *((np.array([0, 1, i, 2, 0]), f"token id {i} in a vocabulary of {N}.*vocab_size") for i in (N, -1)),
        *((wrong, "encode_documents") for wrong in (STREAM[1:], STREAM[:-1], STREAM[:1], STREAM[None], STREAM * 1.0)),
    ]
    for way, (stream, said) in itertools.product((count, count_sparse), STREAMS):
        refused(said, way, stream, radius=1, vocab_size=N)
    for way, options, said in [
        (count, {"radius": 0}, "radius K = 0.*use K >= 1"),
        (count, {"chunk": 0}, "chunk of 0 positions"),
        (count, {"vocab_size": 46341}, "vocabulary 46341.*use a vocabulary of at most 46340"),
        (count_sparse, {"radius": 0}, "radius K = 0.*use K >= 1"),
        (count_sparse, {"vocab_size": 2**31 + 1}, "2147483649"),
    ]:
        refused(said, way, STREAM, **{"radius": 1, "vocab_size": N, **options})
    said = "token id 46340 in a vocabulary of 46340"  # the largest one: only this check stops it
    refused(said, count, np.array([0, 46340, 0], np.uint16), radius=1, vocab_size=46340)
    for way, (radius, size) in itertools.product((count, count_sparse), ((2, 3), (1, 4))):
        a, b = (way(np.array([0, 1, 0]), radius=r, vocab_size=n) for r, n in ((1, 3), (radius, size)))
        refused(f"{radius} offsets and vocabulary {size}: count both with the same radius", merge_counts, a, b)
    stream = shards_of(tmp_path, DOCUMENTS, vocab_size=N)
    path = tmp_path / stream.shards[1].file
    path.write_bytes(flipped(path.read_bytes(), 3))
    refused(r"00001\.tokens is damaged \(CRC-32", count, stream, radius=K, vocab_size=N)


def test_damaged_foreign_and_unfinished_counts_are_refused(tmp_path):
    refused("holds no whole counts", read_tables, tmp_path)
    written(tmp_path, counted())
    refused("counts of another tokenizer", read_tables, tmp_path, tokenizer="xyz")
    path, index = tmp_path / "offset_2.npz", tmp_path / "index.json"
    data, text = path.read_bytes(), index.read_text()
    path.write_bytes(flipped(data, len(data) // 2))
    refused(r"offset_2\.npz are missing or damaged", read_tables, tmp_path)
    path.unlink()
    refused(r"offset_2\.npz are missing or damaged", read_tables, tmp_path)
    index.write_text(json.dumps({**json.loads(text), "layout": 1}))
    refused(r"of another version \(layout 1\)", read_tables, tmp_path)
    index.write_text(text[:-9])
    refused("index .* is damaged", read_tables, tmp_path)


# Contexts of several tokens


def test_every_level_of_contexts_is_that_of_dictionaries(monkeypatch):
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, size, 300) for size in (3, 5, 4, 2)], axis=1).astype(np.uint8)
    Y, order = rng.integers(0, N, 300).astype(np.uint8), rng.permutation(300)
    X[0], Y[0] = N - 1, N - 1

    def keys_of(level, N=N):
        """`context * N + target` of every pair."""
        assert level.start[0] == 0 and level.start[-1] == len(level.outputs) == len(level.counts)
        return level.keys(np.arange(len(level.contexts)), N)

    # keys are numbered again where they would grow too large: never, once, often
    for length, largest in ((1, 2**63 - 1), (3, 40), (4, 2**63 - 1), (4, 100), (4, 40)):
        monkeypatch.setattr(contexts, "_largest", largest)
        found, again = (count_contexts(X[m, :length], Y[m], N) for m in (np.arange(300), order))
        for one, other in zip(itertools.chain(*found), itertools.chain(*again), strict=True):
            np.testing.assert_array_equal(one, other)  # the order of positions changes nothing
        positions = [(tuple(x[:length]), y) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
        numbers: dict[tuple[int, ...], int] = {(i,): i for i in range(N)}
        counts = {length: Counter(positions)}  # of the longest how often; then in how many longer ones
        for n in range(length - 1, 0, -1):
            counts[n] = Counter((context[:n], y) for context, y in counts[n + 1])
        for n, level in enumerate(found, 1):
            if n > 1:
                known = sorted({x[:n] for x, _ in positions})
                assert level.contexts.tolist() == [numbers[x[:-1]] * N + x[-1] for x in known]
                numbers = {x: number for number, x in enumerate(known)}
            assert len(level.contexts) == len(numbers)
            expected = sorted((numbers[x] * N + y, n) for (x, y), n in counts[n].items())
            assert list(zip(keys_of(level).tolist(), level.counts.tolist(), strict=True)) == expected
    monkeypatch.setattr(contexts, "_largest", 2**63 - 1)
    one, two = count_contexts(np.array([[255, 255], [255, 0]], np.uint8), np.array([255, 0], np.uint8), 256)
    assert keys_of(one, 256).tolist() == two.contexts.tolist() == [255 * 256, 255 * 256 + 255]  # they do not wrap
    assert keys_of(two, 256).tolist() == [0, 256 + 255]

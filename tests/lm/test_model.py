"""The one type of language models, and the explicit one from documents to logits, in dense tables and in sparse ones.

Tolerances: logarithms of order 10, summed over at most 3 offsets: 1e-11 is 1000 times what float64 rounds, 1e-4 of float32.
"""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import (
    PAD,
    cooccurrences,
    features,
    kneser_ney,
    language_model,
    log_softmax,
    negative_log_likelihood,
    random_documents,
    stream_of,
    windows,
)
from scipy.sparse import csr_array

from jexplicit.lm.core import model as module
from jexplicit.lm.core.model import is_token_model, logits, token_model
from jexplicit.lm.core.names import Features
from jexplicit.lm.evaluation import evaluate, log_probabilities
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.rows import (
    bigram_model,
    bigram_optimum,
    explicit_blocks,
    explicit_language_model,
    target_counts,
    unigram_model,
    with_targets,
)
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.runs.devices import data_mesh

N = 9  # of no use to 8 devices: their last columns are fillers
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 40, N, 6)]  # 5: never seen
DEV = random_documents(4, 25, N, 8)  # token 5 too, and pairs never seen
STREAM = stream_of(DOCUMENTS)
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 3, N))
SPARSE = tuple(map(csr_array, COUNTS))
STORED = ("dense", "sparse")


def fit(stored="dense", *, dtype: Any = np.float64, counts=COUNTS, **options):
    """The explicit model in dense tables or in sparse ones."""
    counts = counts if stored == "dense" else tuple(map(csr_array, counts))
    return explicit_language_model(counts, dtype=dtype, **options)


def all_log_probabilities(model, X):
    """[M, N] of every output, as the loss reads them."""
    return log_probabilities(model, np.repeat(X, N, axis=0), np.tile(np.arange(N), len(X))).reshape(-1, N)


@pytest.mark.parametrize("stored", STORED)
def test_the_model_equals_the_dense_loop_from_documents_to_logits(stored):
    assert not COUNTS[0][5].any() and (COUNTS[0][1:, 1:] == 0).any()
    cases: tuple[tuple[Features, int, bool], ...] = (("cat", 1, False), ("sum", 3, True), ("cat", 3, False))
    for kind, K, eos in cases:
        E, _, U = language_model(DOCUMENTS, K, N, kind, eos=eos)
        X, Y = windows(DEV, K, eos=eos)
        H, model = features(X, E, kind), fit(stored, features=kind, radius=K, eos=eos)
        expected = np.array([log_softmax(row) for row in H @ U])
        np.testing.assert_allclose(all_log_probabilities(model, X), expected, rtol=0, atol=1e-11)
        found = evaluate(model, stream_of(DEV))
        np.testing.assert_allclose([found.positions, found.nll], [len(Y), negative_log_likelihood(H, U, Y)], rtol=1e-12)
        one_by_one = jax.jit(jax.vmap(lambda x, m=model: jax.nn.log_softmax(m.logits(x))))(jax.device_put(X[:20]))
        np.testing.assert_allclose(one_by_one, expected[:20], rtol=0, atol=1e-11)
        assert (model.radius, model.vocab_size, model.ordered, model.eos) == (K, N, (kind, K) == ("cat", 3), eos)
        assert len(model.rows.tables) == (K if kind == "cat" else 1)
        if stored == "dense":  # the decoder below the noise
            blocks = explicit_blocks(COUNTS, features=kind, radius=K, eos=eos, dtype=jnp.float64, read=False)
            np.testing.assert_allclose(np.concatenate(blocks), U, rtol=0, atol=1e-11)
        if K > 1:
            single = fit(stored, features=kind, radius=K, eos=eos, dtype=np.float32)
            assert any(leaf.dtype == np.float32 for leaf in jax.tree.leaves(single.rows))
            atol = 1e-5 if stored == "sparse" else 1e-4
            np.testing.assert_allclose(all_log_probabilities(single, X), expected, rtol=0, atol=atol)


def test_without_noise_the_model_equals_the_dense_loop_and_sum_cat_and_the_bigrams_at_k_1():
    documents = random_documents(3, 200, 4, 9)  # every pair of tokens occurs
    X, Y = windows(documents, 2)
    E, _, U = language_model(documents, 2, 4, "sum", eos=False, noise=False)
    model = fit(counts=tuple(cooccurrences(documents, 2, 4)), features="sum", noise=False)
    nll = negative_log_likelihood(features(X, E, "sum"), U, Y)
    np.testing.assert_allclose(evaluate(model, stream_of(documents)).nll, nll, rtol=1e-12)
    (C,) = counts = tuple(cooccurrences(random_documents(3, 60, 5, 6), 1, 5))
    one, other = (fit(counts=counts, features=kind, eos=True, noise=False).tables[0] for kind in ("sum", "cat"))
    P = np.exp([log_softmax(np.asarray(row)) for row in one])
    np.testing.assert_allclose(P, C / C.sum(axis=1, keepdims=True), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(one, other)
    X, M = windows(DOCUMENTS, 1)[0], target_counts(COUNTS).sum()
    P = np.exp(all_log_probabilities(fit(features="cat", radius=1, noise=False), X))
    np.testing.assert_allclose(P[:, [PAD, 5]], 1 / (M + 2), rtol=1e-11)  # never seen: one of each, beside M others


def test_baselines_are_relative_frequencies_and_kneser_ney():
    for counts, eos in product((COUNTS, SPARSE), (False, True)):
        f, X = np.maximum(target_counts(COUNTS, eos=eos), 1), np.arange(N)[:, None]
        expected = [np.tile(f / f.sum(), (N, 1)), kneser_ney(with_targets(COUNTS[0], eos=eos))]
        for model, P in zip((unigram_model(counts, eos=eos), bigram_model(counts, eos=eos)), expected, strict=True):
            np.testing.assert_allclose(np.exp(all_log_probabilities(model, X)), P, rtol=1e-5)  # float32
            assert model.eos is eos and evaluate(model, stream_of(DEV)).positions == len(windows(DEV, 1, eos=eos)[1])


def test_delta_is_the_lowest_of_a_scan_over_positions():
    cases: tuple[tuple[Features, bool], ...] = (("sum", False), ("cat", True))
    for kind, eos in cases:
        options = Options(features=kind, radius=3, calibration_positions=10_000)
        fitted = fit_model("delta", TrainingText(STREAM, N, eos=eos), options)
        tables = explicit_language_model(COUNTS, features=kind, radius=3, eos=eos).tables
        (X, Y), log_f = windows(DOCUMENTS, 3, eos=eos), np.log(np.maximum(target_counts(COUNTS, eos=eos), 1))
        z = np.array([sum(np.asarray(U, np.float64)[j] for U, j in zip(tables, x, strict=True)) for x in X])
        scan = np.append(np.linspace(fitted.info["delta"] - 0.2, fitted.info["delta"] + 0.2, 81), [fitted.info["delta"], 0])
        losses = [-np.mean([log_softmax(row - d * log_f)[y] for row, y in zip(z, Y, strict=True)]) for d in scan]
        assert abs(scan[np.argmin(losses)] - fitted.info["delta"]) < 0.004
        found = evaluate(fitted.model, STREAM).loss
        assert found == pytest.approx(losses[-2], rel=1e-5) and found < losses[-1]  # float32
        assert fitted.info["scalars"] == 1 and fitted.model.features == kind


def test_the_optimum_of_one_token_is_the_relative_frequencies_or_the_infimum_where_pairs_never_occur():
    C = np.random.default_rng(0).integers(1, 50, (N, N))
    table, loss = bigram_optimum(C)
    entropy = -sum(c * np.log(c / row.sum()) for row in C for c in row) / C.sum()
    np.testing.assert_allclose(loss, entropy, rtol=1e-13)
    np.testing.assert_allclose(np.exp(table), C / C.sum(axis=1, keepdims=True), rtol=1e-14)
    C = np.array([[3, 0, 1, 0], [0, 5, 0, 0], [0, 0, 0, 0], [1, 0, 2, 3]])
    table, loss = bigram_optimum(C, floor=1e-6)
    above = -sum(c @ log_softmax(row) for c, row in zip(C, table, strict=True)) - loss * C.sum()
    assert np.isfinite(table).all() and 0 < above <= C.size * 1e-6
    np.testing.assert_allclose(table[2], -np.log(4), rtol=1e-14)  # a context that never occurs
    infimum = -sum(c * np.log(c / row.sum()) for row in C for c in row[row > 0])
    np.testing.assert_allclose(loss * C.sum(), infimum, rtol=1e-14)
    np.testing.assert_allclose(bigram_optimum(with_targets(np.array([[0, 2], [1, 1]])))[1], 0, atol=1e-15)  # one target alone


def test_partition_functions_and_target_logits_are_those_of_dense_features_on_any_devices_in_calls_of_any_size(monkeypatch):
    rng = np.random.default_rng(1)
    for K, M, dtype, atol in ((1, 65, np.float64, 1e-11), (3, 300, np.float32, 1e-5)):
        U, X, Y = rng.normal(size=(K, N, N)) * 2, rng.integers(0, N, (M, 3)).astype(np.uint16), rng.integers(0, N, M)
        tables = tuple(jax.device_put(np.asarray(block, dtype)) for block in U) * (3 // K)
        kind = "sum" if K == 1 else "cat"
        rows, model = features(X, np.eye(N), kind) @ np.concatenate(U), token_model(tables, kind, False)
        np.testing.assert_allclose([logits(tables, jax.device_put(x)) for x in X[:20]], rows[:20], rtol=0, atol=atol / 10)
        one, eight = (model.rows.log_partition(X, mesh=data_mesh(devices)) for devices in (1, 8))
        assert one.dtype == dtype and len(model.rows.tables) == K and model.nbytes == K * tables[0].nbytes
        np.testing.assert_allclose(one, [np.log(np.exp(row).sum()) for row in rows], rtol=0, atol=atol)
        np.testing.assert_allclose(eight, one, rtol=1e-14 if dtype == np.float64 else 1e-6)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_contexts_per_call", 7)
            np.testing.assert_allclose(model.rows.target_logits(X, Y), rows[np.arange(M), Y], rtol=0, atol=atol)


def test_only_plain_tables_are_given_out_and_offsets_share_them():
    table, other = (jax.device_put(np.full((N, N), value, np.float64)) for value in (0, 1))
    mixed, sparse = token_model([table, other, table], "cat", True), fit("sparse", features="sum")
    assert mixed.rows.table_of_offset == (0, 1, 0) and (mixed.ordered, sparse.ordered) == (True, False)
    assert all(a is b for a, b in zip(mixed.tables, (table, other, table), strict=True))
    for model in (sparse, unigram_model(COUNTS)):
        assert not is_token_model(model)
        with pytest.raises(ValueError, match="this needs plain tables"):
            _ = model.tables

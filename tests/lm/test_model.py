"""The explicit model from documents to logits, dense and sparse; noise, smoothed rows, and log-linear models of these rows.

Tolerances: logarithms of order 10, summed over at most 3 offsets: 1e-11 is 1000 times what float64 rounds, 1e-4 of float32.
Sums of at most 9 terms of one sign are right to some 30 eps: 1e-13 in float64, 1e-5 in float32. A float32 row is the logarithm
of a ratio of probabilities above 1e-4: 2e-5 in all.
"""

import functools
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
import reference as ref
import scipy
from reference import features
from scipy.sparse import csr_array

from jexplicit.lm import layers
from jexplicit.lm.evaluation import evaluate, log_probabilities
from jexplicit.lm.fit import fit_model
from jexplicit.lm.model import logits, token_model
from jexplicit.lm.names import Features, Smoothing
from jexplicit.lm.ngram import bigram_model, unigram_model
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.runs.devices import data_mesh

N = 9  # of no use to 8 devices: their last columns are fillers
DOCUMENTS = [
    [token for token in document if token != 5] or [1] for document in ref.random_documents(2, 40, N, 6)
]  # 5: never seen
DEV = ref.random_documents(4, 25, N, 8)  # token 5 too, and pairs never seen
STREAM = ref.stream_of(DOCUMENTS)
COUNTS = tuple(C.astype(np.int32) for C in ref.cooccurrences(DOCUMENTS, 3, N))
SPARSE = tuple(map(csr_array, COUNTS))
STORED = ("dense", "sparse")


def fit(stored="dense", *, dtype: Any = np.float64, counts=COUNTS, **options):
    """The explicit model in dense tables or in sparse ones."""
    counts = counts if stored == "dense" else tuple(map(csr_array, counts))
    return layers.explicit_language_model(counts, dtype=dtype, **options)


def all_log_probabilities(model, X):
    """[M, N] of every output, as the loss reads them."""
    return log_probabilities(model, np.repeat(X, N, axis=0), np.tile(np.arange(N), len(X))).reshape(-1, N)


@pytest.mark.parametrize("stored", STORED)
def test_the_model_equals_the_dense_loop_from_documents_to_logits(stored):
    assert not COUNTS[0][5].any() and (COUNTS[0][1:, 1:] == 0).any()
    cases: tuple[tuple[Features, int, bool], ...] = (("cat", 1, False), ("sum", 3, True), ("cat", 3, False))
    for kind, K, eos in cases:
        E, _, U = ref.language_model(DOCUMENTS, K, N, kind, eos=eos)
        X, Y = ref.windows(DEV, K, eos=eos)
        H, model = features(X, E, kind), fit(stored, features=kind, context=K, eos=eos)
        expected = np.array([ref.log_softmax(row) for row in H @ U])
        np.testing.assert_allclose(all_log_probabilities(model, X), expected, rtol=0, atol=1e-11)
        found = evaluate(model, ref.stream_of(DEV))
        np.testing.assert_allclose([found.positions, found.nll], [len(Y), ref.negative_log_likelihood(H, U, Y)], rtol=1e-12)
        one_by_one = jax.jit(jax.vmap(lambda x, m=model: jax.nn.log_softmax(m.logits(x))))(jax.device_put(X[:20]))
        np.testing.assert_allclose(one_by_one, expected[:20], rtol=0, atol=1e-11)
        assert (model.context, model.vocab_size, model.ordered, model.eos) == (K, N, (kind, K) == ("cat", 3), eos)
        single = fit(stored, features=kind, context=K, eos=eos, dtype=np.float32)
        assert any(leaf.dtype == np.float32 for leaf in jax.tree.leaves(single.rows))
        atol = 1e-5 if stored == "sparse" else 1e-4
        np.testing.assert_allclose(all_log_probabilities(single, X), expected, rtol=0, atol=atol)


def test_without_noise_the_model_equals_the_dense_loop_and_sum_cat_and_the_bigrams_at_k_1():
    documents = ref.random_documents(3, 200, 4, 9)  # every pair of tokens occurs
    X, Y = ref.windows(documents, 2)
    E, _, U = ref.language_model(documents, 2, 4, "sum", eos=False, noise=False)
    model = fit(counts=tuple(ref.cooccurrences(documents, 2, 4)), features="sum", noise=False)
    nll = ref.negative_log_likelihood(features(X, E, "sum"), U, Y)
    np.testing.assert_allclose(evaluate(model, ref.stream_of(documents)).nll, nll, rtol=1e-12)
    (C,) = counts = tuple(ref.cooccurrences(ref.random_documents(3, 60, 5, 6), 1, 5))
    one, other = (fit(counts=counts, features=kind, eos=True, noise=False).tables[0] for kind in ("sum", "cat"))
    P = np.exp([ref.log_softmax(np.asarray(row)) for row in one])
    np.testing.assert_allclose(P, C / C.sum(axis=1, keepdims=True), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(one, other)
    X, M = ref.windows(DOCUMENTS, 1)[0], layers.target_counts(COUNTS).sum()
    P = np.exp(all_log_probabilities(fit(features="cat", context=1, noise=False), X))
    np.testing.assert_allclose(P[:, [ref.PAD, 5]], 1 / (M + 2), rtol=1e-11)  # never seen: one of each, beside M others


def test_the_optimum_of_one_token_is_the_relative_frequencies_up_to_a_floor_where_pairs_never_occur():
    (table,) = fit_model("optimum", TrainingText(STREAM, N, eos=True)).model.tables
    C, log_P = COUNTS[0], np.array([ref.log_softmax(np.asarray(row, np.float64)) for row in table])
    seen = C > 0
    np.testing.assert_allclose(np.exp(log_P)[seen], (C / np.maximum(C.sum(axis=1, keepdims=True), 1))[seen], rtol=1e-5)
    assert np.exp(log_P)[~seen & (C.sum(axis=1, keepdims=True) > 0)].max() <= 1e-9
    np.testing.assert_allclose(table[5], -np.log(N), rtol=1e-6)  # a context that never occurs


def test_baselines_are_relative_frequencies_and_kneser_ney():
    for counts, eos in product((COUNTS, SPARSE), (False, True)):
        f, X = np.maximum(layers.target_counts(COUNTS, eos=eos), 1), np.arange(N)[:, None]
        expected = [np.tile(f / f.sum(), (N, 1)), ref.kneser_ney(layers.with_targets(COUNTS[0], eos=eos))]
        for model, P in zip((unigram_model(counts, eos=eos), bigram_model(counts, eos=eos)), expected, strict=True):
            np.testing.assert_allclose(np.exp(all_log_probabilities(model, X)), P, rtol=1e-5)  # float32
            assert model.eos is eos and evaluate(model, ref.stream_of(DEV)).positions == len(ref.windows(DEV, 1, eos=eos)[1])


def test_delta_is_the_minimum_of_scipy():
    cases: tuple[tuple[Features, bool], ...] = (("sum", False), ("cat", True))
    for kind, eos in cases:
        options = Options(features=kind, context=3, calibration_positions=10_000)
        fitted = fit_model("delta", TrainingText(STREAM, N, eos=eos), options)
        tables = layers.explicit_language_model(COUNTS, features=kind, context=3, eos=eos).tables
        (X, Y), log_f = ref.windows(DOCUMENTS, 3, eos=eos), np.log(np.maximum(layers.target_counts(COUNTS, eos=eos), 1))
        z = np.array([sum(np.asarray(U, np.float64)[j] for U, j in zip(tables, x, strict=True)) for x in X])

        def loss(d, z=z, Y=Y, log_f=log_f):
            return -np.mean(ref.log_softmax(z - d * log_f[None], axis=1)[np.arange(len(Y)), Y])

        assert abs(scipy.optimize.minimize_scalar(loss).x - fitted.info["delta"]) < 0.004
        found = evaluate(fitted.model, STREAM).loss
        assert found == pytest.approx(loss(fitted.info["delta"]), rel=1e-5) and found < loss(0)  # float32


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
            patch.setattr("jexplicit.lm.model._contexts_per_call", 7)
            np.testing.assert_allclose(model.rows.target_logits(X, Y), rows[np.arange(M), Y], rtol=0, atol=atol)


# Noise, smoothing, and log-linear models

TEXTS = ref.random_documents(seed=3, number=30, vocab_size=N, longest=8)
(PAIRS,) = ref.cooccurrences(TEXTS, 1, N)
F_TOKENS = PAIRS.sum(axis=0)
NOISE = layers.noise_model(F_TOKENS)
TOLERANCE = ((np.float64, 1e-13), (np.float32, 1e-5))

compiled_kneser_ney = jax.jit(layers.kneser_ney)


def test_noisy_counts_and_rows_equal_dense_products_with_the_embedding_and_are_adjoint():
    assert np.any(PAIRS == 0) and np.all(F_TOKENS > 0)  # E has no inverse where two tokens were never seen
    (X, Y), E = ref.windows(TEXTS, 1, eos=True), ref.noisy_embedding(F_TOKENS)
    U, V = np.random.default_rng(4).normal(size=(2, N, 6)) * 5
    for dtype, tolerance in TOLERANCE:
        F = layers.noisy_counts(jax.device_put(np.asarray(PAIRS, dtype)), NOISE)
        slow = ref.generalized_cooccurrences(features(X, E, "cat"), ref.one_hot(Y, N))  # a loop over 160 positions
        np.testing.assert_allclose(F, slow, rtol=max(tolerance, 1e-12))
        np.testing.assert_allclose(F.sum(axis=0), PAIRS.sum(axis=0), rtol=tolerance)  # they move between rows
        rows = layers.noisy_rows(jax.device_put(np.asarray(U, dtype)), NOISE)
        assert F.dtype == rows.dtype == dtype and np.all(np.asarray(F) > 0)
        np.testing.assert_allclose(rows, E @ U, rtol=0, atol=tolerance * np.abs(U).max())  # sums of both signs may cancel
    left, right = np.vdot(layers.noisy_counts(jax.device_put(U), NOISE), V), np.vdot(U, layers.noisy_rows(V, NOISE))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12 * np.abs(U).sum())  # <EᵀC, U> = <C, E U>


def test_kneser_ney_rows_equal_their_loop_for_any_counts():
    never = PAIRS.copy()
    never[3, :] = never[:, 4] = 0  # a context and an output never seen
    for C in (PAIRS, never, 3 * PAIRS, np.where(PAIRS == 2, 3, PAIRS), np.zeros((N, N), np.int64)):  # of D = 1/2, 1, ...
        for dtype, tolerance in TOLERANCE:
            P = np.asarray(compiled_kneser_ney(jax.device_put(C.astype(dtype))))
            assert P.dtype == dtype and np.all(P > 0)
            np.testing.assert_allclose(P, ref.kneser_ney(C), rtol=tolerance)


def test_modified_discounts_are_those_worked_by_hand():
    for counts, D in [
        # D = 8 / (8 + 2 * 4) = 1/2; 1 - 2 D 4/8, 2 - 3 D 2/4, 3 - 4 D 1/2
        ({1: 8, 2: 4, 3: 2, 4: 1, 9: 3}, [1 / 2, 5 / 4, 2]),
        # none counted four times: D = 2 / (2 + 2 * 1) for all
        ({1: 2, 2: 1, 3: 5, 7: 1}, [1 / 2, 1 / 2, 1 / 2]),
        # none counted twice, or once: KenLM's fallback
        *((counts, [1 / 2, 1, 3 / 2]) for counts in ({1: 2, 3: 5, 4: 1}, {2: 2, 3: 5, 4: 1})),
        # D = 4 / (4 + 2 * 2) = 1/2; 3 - 4 D 3/1 < 0 is no discount, and D stands in; 1 - 2 D 2/4, 2 - 3 D 1/2
        ({1: 4, 2: 2, 3: 1, 4: 3}, [1 / 2, 5 / 4, 1 / 2]),
    ]:
        C = np.concatenate([[c] * n for c, n in counts.items()] + [[0] * (N * N - sum(counts.values()))]).reshape(N, N)
        n = layers.counts_of_counts(C)
        compiled = jax.jit(layers.discounts_of, static_argnames="modified")(jax.device_put(np.asarray(n, float)), modified=True)
        for found in (layers.discounts_of(n, modified=True), compiled, ref.modified_discounts(C.reshape(-1).tolist())[1:]):
            np.testing.assert_allclose(found, D, rtol=1e-14)


K, ATOL = 3, 2e-5
LINES = ref.random_documents(21, 60, N - 1, 12)  # token 8 never occurs
HELD_X, HELD_Y = ref.windows(ref.random_documents(22, 12, N, 12), K)
TABLES = tuple(C.astype(np.int32) for C in ref.cooccurrences(LINES, K, N))


def targets(C, eos):
    """Counts without the column of document ends, unless they are predicted."""
    return np.array(C) * np.where(np.arange(N) == 0, eos, 1)


@functools.cache
def rows_of(features: Any = "cat", smoothing: Smoothing = "kneser-ney", **options):
    return layers.offset_rows(TABLES, features=features, smoothing=smoothing, **options)


def test_rows_of_cat_are_smoothed_counts_over_the_unigram_and_rows_of_sum_one_mixture_read_with_attention():
    for smoothing, eos in (("kneser-ney", True), ("add-alpha", False)):
        own = ref.kneser_ney if smoothing == "kneser-ney" else lambda C: (C + 1) / (C + 1).sum(axis=1, keepdims=True)
        f = np.maximum(targets(TABLES[0], eos).sum(axis=0), 1)
        p, P = f / f.sum(), [own(targets(C, eos)) for C in TABLES]
        cat, rows = (rows_of(kind, smoothing, eos=eos) for kind in ("cat", "sum"))
        np.testing.assert_allclose(np.asarray(cat.log_p)[0], np.log(p), rtol=0, atol=ATOL)
        np.testing.assert_allclose(cat.tables, np.log(P) - np.log(p), rtol=0, atol=ATOL)
        assert (cat.features, cat.eos, rows.features) == ("cat", eos, "sum") and rows.attention is not None
        for j in range(N):
            information = [sum(P_k[j, i] * np.log(P_k[j, i] / p[i]) for i in range(N)) for P_k in P]
            if max(information) < 1e-12:  # a token that never occurred, where rows fall back to the unigram
                np.testing.assert_allclose([table[j] for table in rows.tables], 0, rtol=0, atol=ATOL)
                continue
            weights = np.array(information) ** 4 / sum(np.array(information) ** 4)
            mixed = sum(w * P_k[j] for w, P_k in zip(weights, P, strict=True))
            assert min(information) > 5e-3
            for k in range(K):
                expected = information[k] / information[0] * np.log(mixed / p)
                # information is a sum of nine terms of either sign, right to 1e-6, which is 2e-4 of it
                np.testing.assert_allclose(rows.tables[k][j], expected, rtol=5e-4, atol=ATOL)
    even = tuple(np.ones((N, N), np.int64) * 5 for _ in range(2))  # tokens say nothing
    np.testing.assert_allclose(layers.offset_rows(even, features="sum", eos=True).tables, 0, rtol=0, atol=ATOL)


def slow_log_p(rows, weights, X):
    """[M, N] of every position, one by one."""
    log_p, tables = np.asarray(rows.log_p, np.float64)[0], [np.asarray(table, np.float64) for table in rows.tables]
    read = ([log_p, *(table[j] for table, j in zip(tables, x, strict=True))] for x in X)
    return np.array([ref.log_softmax(np.sum([a * row for a, row in zip(weights, of_x, strict=True)], axis=0)) for of_x in read])


def test_the_minimum_is_that_of_scipy_on_any_number_of_devices():
    rows, start, own = rows_of(), np.array([1, *(1 / k for k in range(1, K + 1))]), (np.arange(len(HELD_Y)), HELD_Y)
    ridge = max(1e-4, 1.5 / len(HELD_Y), 25 / len(HELD_Y) ** 2)

    def loss(a, ridge=ridge):
        return -slow_log_p(rows, a, HELD_X)[own].mean() + ridge / 2 * np.sum((a - start) ** 2)

    fitted, three = (layers.fit_weights(rows, HELD_X, HELD_Y, tolerance=2e-6, mesh=data_mesh(n)) for n in (1, 3))
    best = scipy.optimize.minimize(loss, np.ones(K + 1), tol=1e-9)
    np.testing.assert_allclose(fitted.weights, best.x, rtol=0, atol=2e-3)  # where the loss is flat: 1e-6 above its minimum
    assert loss(fitted.weights) <= best.fun + 1e-6
    assert fitted.loss == pytest.approx(loss(fitted.weights, 0), abs=ATOL)
    assert fitted.gradient < 2e-6
    np.testing.assert_allclose(three.weights, fitted.weights, rtol=0, atol=1e-5)
    for X, Y in ((np.zeros((0, K), int), np.zeros(0, int)), (np.ones((2, K + 1), int), np.ones(2, int))):
        with pytest.raises(ValueError, match="hold out more of the text"):
            layers.fit_weights(rows, X, Y)


def test_the_language_model_is_the_log_linear_one_and_at_k_1_the_bigrams():
    for kind, eos in (("sum", False), ("cat", True)):
        rows, weights = rows_of(kind, eos=eos), np.array([0.7, 0.8, 0.4, -0.2])
        X, Y = ref.windows(LINES, K, eos=eos)
        slow, model = slow_log_p(rows, weights, X)[np.arange(len(Y)), Y], layers.log_linear_model(rows, weights)
        np.testing.assert_allclose(log_probabilities(model, X, Y), slow, rtol=0, atol=ATOL)
        assert evaluate(model, ref.stream_of(LINES)).loss == pytest.approx(-np.mean(slow), abs=ATOL)
        ours, bigrams = layers.log_linear_model(rows_of("cat", context=1, eos=eos), np.ones(2)), bigram_model(TABLES, eos=eos)
        for one in range(N):
            row = ref.log_softmax(np.asarray(bigrams.logits(jax.device_put(np.array([one])))))
            np.testing.assert_allclose(ours.tables[0][one], row, rtol=0, atol=ATOL)

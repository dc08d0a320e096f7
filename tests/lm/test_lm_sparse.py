"""The model on sparse counts against the dense loop over documents, and against the dense model.

Tolerances: as for the dense model, 1e-11 nats is 1000 times what float64 rounds; float32 corrections may be off by some eps of
their size, of order 10 per offset: 1e-5 nats.
"""

import dataclasses
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
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

from jexplicit.counts.sparse import count_sparse
from jexplicit.data.contexts import contexts
from jexplicit.lm import evaluation
from jexplicit.lm.core.model import LanguageModel, is_token_model, token_model, unit_exponents
from jexplicit.lm.core.smoothing import SMOOTHINGS
from jexplicit.lm.evaluation import evaluate, score
from jexplicit.lm.evaluation import log_probabilities as log_probabilities_of_targets
from jexplicit.lm.fits.log_linear import offset_rows
from jexplicit.lm.generation import next_token
from jexplicit.lm.rows.explicit import bigram_model, explicit_language_model, unigram_model, with_targets
from jexplicit.lm.rows.sparse import (
    smoothed_offset_rows,
    sparse_bigram_model,
    sparse_language_model,
    sparse_unigram_model,
)
from jexplicit.lm.tables import sparse_partition
from jexplicit.lm.tables.sparse_partition import sparse_log_partition, sparse_target_logits
from jexplicit.lm.tables.storage import take_dense

N = 8
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 40, N, 6)]  # 5: never seen
DEV = random_documents(4, 25, N, 8)  # token 5 too
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 3, N))
SPARSE = tuple(csr_array(C) for C in COUNTS)
ALL = pytest.mark.parametrize("kind, K, eos", list(product(["sum", "cat"], [1, 2, 3], [False, True])))
EOS = pytest.mark.parametrize("eos", [False, True])


def fit(counts=SPARSE, *, dtype: Any = np.float64, **options):
    return sparse_language_model(counts, dtype=dtype, **options)


def all_contexts(K):
    return np.array(list(product(range(N), repeat=K)))


def log_probabilities(model, X):
    """Of all outputs after every context, from the functions that the loss is made of."""
    every = np.tile(np.arange(N), len(X))
    logits = sparse_target_logits(model.rows[0], np.repeat(X, N, axis=0), every).reshape(-1, N)
    return logits - sparse_log_partition(model.rows[0], X)[:, None]


def next_log_probabilities(model, x):
    """Of all outputs after one context, from its logits."""
    return jax.nn.log_softmax(model.logits(jnp.asarray(x)))


@ALL
def test_the_model_equals_the_dense_loop_from_documents_to_logits(kind, K, eos):
    E, _, U = language_model(DOCUMENTS, K, N, kind, eos=eos)
    X, _ = windows(DOCUMENTS, K, eos=eos)
    expected = np.array([log_softmax(row) for row in features(X, E, kind) @ U])
    model = fit(features=kind, radius=K, eos=eos)
    np.testing.assert_allclose(log_probabilities(model, X), expected, rtol=0, atol=1e-11)


@ALL
def test_the_perplexity_of_another_text_equals_the_dense_loop(kind, K, eos):
    E, _, U = language_model(DOCUMENTS, K, N, kind, eos=eos)
    X, Y = windows(DEV, K, eos=eos)
    evaluation = evaluate(fit(features=kind, radius=K, eos=eos), stream_of(DEV))
    assert evaluation.positions == len(Y)
    np.testing.assert_allclose(evaluation.nll, negative_log_likelihood(features(X, E, kind), U, Y), rtol=1e-12)


@ALL
def test_the_next_token_has_the_probabilities_of_the_loss(kind, K, eos):
    model = fit(features=kind, radius=K, eos=eos)
    X = all_contexts(K)[:: 3 ** (K - 1)]
    P = np.exp(jax.jit(jax.vmap(lambda x: next_log_probabilities(model, x)))(X))
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.log(P), log_probabilities(model, X), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind, K", [("sum", 3), ("cat", 2)])
def test_the_perplexity_equals_that_of_the_dense_model(kind, K):
    stream = stream_of(DEV)
    dense = evaluate(explicit_language_model(COUNTS, features=kind, radius=K, dtype=np.float64), stream)
    np.testing.assert_allclose(evaluate(fit(features=kind, radius=K), stream).nll, dense.nll, rtol=1e-12)
    sampled = evaluate(explicit_language_model(COUNTS, features=kind, radius=K, dtype=np.float64), stream, sample=20, seed=3)
    assert evaluate(fit(features=kind, radius=K), stream, sample=20, seed=3).nll == pytest.approx(sampled.nll, rel=1e-12)


def test_a_model_of_radius_1_is_evaluated_on_every_position():
    model = fit(features="cat", radius=1)
    assert evaluate(model, stream_of(DEV), sample=5) == evaluate(model, stream_of(DEV))


def test_a_model_of_radius_1_is_evaluated_from_distinct_pairs_alone(monkeypatch):
    def positions(*_, **__):
        raise AssertionError("every position was listed")

    monkeypatch.setattr(evaluation, "sampled_positions", positions)
    dense = evaluate(explicit_language_model(COUNTS, features="cat", radius=1, dtype=np.float64), stream_of(DEV))
    found = evaluate(fit(features="cat", radius=1), stream_of(DEV))
    assert found.positions == dense.positions
    np.testing.assert_allclose(found.nll, dense.nll, rtol=1e-12)


@ALL
def test_float32_corrections_agree_with_float64_ones(kind, K, eos):
    model = fit(features=kind, radius=K, eos=eos, dtype=np.float32)
    assert model.rows[0].corrections[0].values.dtype == np.float32
    X = all_contexts(K)[:100]
    exact = log_probabilities(fit(features=kind, radius=K, eos=eos), X)
    np.testing.assert_allclose(log_probabilities(model, X), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_renaming_tokens_renames_the_model(kind):
    new = np.array([0, 3, 6, 1, 2, 7, 5, 4])  # <pad> stays <pad>
    old = np.argsort(new)
    renamed = fit(tuple(csr_array(C[np.ix_(old, old)]) for C in COUNTS), features=kind, radius=2)
    X = all_contexts(2)
    expected = log_probabilities(fit(features=kind, radius=2), X)
    np.testing.assert_allclose(log_probabilities(renamed, new[X])[:, new], expected, rtol=0, atol=1e-11)


@EOS
@pytest.mark.parametrize("dense, sparse", [(unigram_model, sparse_unigram_model), (bigram_model, sparse_bigram_model)])
def test_baselines_have_the_perplexity_of_the_dense_ones(dense, sparse, eos):
    expected = evaluate(dense(COUNTS, eos=eos), stream_of(DEV))
    evaluation = evaluate(sparse(SPARSE, eos=eos), stream_of(DEV))
    assert evaluation.positions == expected.positions
    np.testing.assert_allclose(evaluation.nll, expected.nll, rtol=1e-5)  # the dense ones are float32


def bigram_of_float64(eos):
    rows = smoothed_offset_rows(SPARSE[:1], eos=eos, dtype=np.float64)
    return LanguageModel((rows,), unit_exponents((rows,), np.float64), "none", eos)


@EOS
def test_the_bigram_model_gives_kneser_ney_probabilities(eos):
    P = np.exp(log_probabilities(bigram_of_float64(eos), np.arange(N)[:, None]))
    np.testing.assert_allclose(P, kneser_ney(with_targets(COUNTS[0], eos=eos)), rtol=1e-11)


def test_a_text_in_which_every_output_is_seen_has_the_dense_perplexity():
    documents = random_documents(3, 60, 4, 6)
    counts, stream = cooccurrences(documents, 2, 4), stream_of(documents)
    model = fit(tuple(csr_array(C) for C in counts), features="cat", eos=True)
    assert np.all(np.isfinite(model.rows[0].bases))
    dense = explicit_language_model(tuple(counts), features="cat", eos=True, dtype=np.float64)
    np.testing.assert_allclose(evaluate(model, stream).nll, evaluate(dense, stream).nll, rtol=1e-12)


@pytest.mark.parametrize("product_bytes", [1, 8 * N * 3, 1 << 20])
@pytest.mark.parametrize("cells", [1, 1 << 20])
def test_the_sizes_of_blocks_change_the_loss_by_rounding_alone(product_bytes, cells, monkeypatch):
    model = fit(features="cat", radius=3)
    expected = evaluate(model, stream_of(DEV)).nll
    monkeypatch.setattr(sparse_partition, "_product_bytes", product_bytes)
    monkeypatch.setattr(sparse_partition, "_cells_at_once", cells)
    assert evaluate(model, stream_of(DEV)).nll == pytest.approx(expected, rel=1e-13)


def test_contexts_in_any_order_have_the_same_partition_functions():
    model = fit(features="cat", radius=3)
    X, _ = contexts(stream_of(DEV), 3)
    order = np.random.default_rng(0).permutation(len(X))
    rows = model.rows[0]
    np.testing.assert_allclose(sparse_log_partition(rows, X[order]), sparse_log_partition(rows, X)[order], rtol=0, atol=1e-13)


@pytest.mark.parametrize("largest", [0.0, 0.3, 2.0, 11.0])
def test_interpolated_exponentials_are_exact_to_rounding(largest):
    slopes = np.linspace(0, largest, 7)
    t = np.append(np.linspace(0, 1, 23), 1 / 3)
    coefficients = sparse_partition._chebyshev_coefficients(slopes)
    found = np.polynomial.chebyshev.chebval(2 * t - 1, coefficients)
    # rounding is that of the largest exponential: eps * exp(largest), times the number of terms
    np.testing.assert_allclose(found, np.exp(np.outer(slopes, t)), rtol=0, atol=1e-14 * np.exp(largest))


def test_a_sum_model_holds_one_table_whatever_its_radius():
    sum_model, cat_model = fit(features="sum"), fit(features="cat")
    assert len(sum_model.rows[0].corrections) == 1 and sum_model.rows[0].table_of_offset == (0, 0, 0)
    assert len(cat_model.rows[0].corrections) == 3 and cat_model.rows[0].table_of_offset == (0, 1, 2)
    assert (sum_model.radius, sum_model.vocab_size, sum_model.ordered, sum_model.eos) == (3, N, False, False)
    assert (cat_model.radius, cat_model.vocab_size, cat_model.ordered) == (3, N, True)


def test_corrections_are_as_sparse_as_the_counts():
    model = fit(features="cat", eos=True)
    for correction, C in zip(model.rows[0].corrections, SPARSE, strict=True):
        assert len(correction.values) == len(correction.outputs) == C.nnz
        assert correction.outputs.dtype == np.uint16 and correction.start.dtype == np.int32
        np.testing.assert_array_equal(correction.outputs, C.indices)
        np.testing.assert_array_equal(correction.start, C.indptr)


def test_progress_grows_to_all_contexts(monkeypatch):
    reports = []
    monkeypatch.setattr(sparse_partition, "_product_bytes", 1)
    evaluate(fit(features="cat", radius=2), stream_of(DEV), progress=lambda done, total: reports.append((done, total)))
    done = [report[0] for report in reports]
    assert done == sorted(set(done))
    assert reports[-1][0] == reports[-1][1]


@pytest.mark.parametrize("radius", [0, -1, 4])
def test_a_radius_that_was_not_counted_is_refused(radius):
    with pytest.raises(ValueError, match=f"radius {radius} with counts of offsets 1..3"):
        fit(features="cat", radius=radius)


def test_unknown_features_are_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    with pytest.raises(ValueError, match="features 'mean': choose sum .* or cat"):
        fit(features="mean")


def test_a_text_without_tokens_is_refused():
    with pytest.raises(ValueError, match="no position to predict"):
        evaluate(fit(features="cat"), np.array([PAD, PAD, PAD]))


def test_a_token_that_the_model_does_not_have_is_refused():
    with pytest.raises(ValueError, match=f"token id {N} and a model of {N}"):
        evaluate(fit(features="cat"), np.array([0, N, 0]))
    with pytest.raises(ValueError, match=f"token ids {N} .. {N}: the model has {N} tokens"):
        next_token(fit(features="cat", radius=1), np.array([N]))


def test_a_context_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"contexts of shape \(1, 2\) for 1 targets and a model of radius 3"):
        log_probabilities_of_targets(fit(features="cat"), np.array([[1, 2]]), np.array([1]))


def test_logits_beyond_the_range_of_exponentials_are_refused():
    model = fit(features="cat", radius=2)
    rows = model.rows[0]
    rows = dataclasses.replace(rows, bases=(np.where(np.arange(N) == 3, -800, rows.bases[0]), rows.bases[1]))
    far = dataclasses.replace(model, rows=(rows,))
    with pytest.raises(ValueError, match="nats.*use a smaller radius"):
        evaluate(far, stream_of(DEV))


# Rows of every kind


@ALL
def test_dense_tables_of_the_same_rows_are_the_same_model(kind, K, eos):
    model = fit(features=kind, radius=K, eos=eos)
    tables = [take_dense(table, np.arange(N)).rows for table in model.rows[0].row_tables]
    dense = token_model(tables, model.features, eos)
    assert is_token_model(dense) and not is_token_model(model)
    X = all_contexts(K)[:: 3 ** (K - 1)]
    found = [next_log_probabilities(dense, x) for x in X]
    np.testing.assert_allclose(found, log_probabilities(model, X), rtol=0, atol=1e-11)


@EOS
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_smoothed_rows_are_the_dense_ones_up_to_a_constant_of_the_row(smoothing, eos):
    """As distributions: rows over the unigram, with it, and rows over nothing.

    A dense row is a float32 logarithm of a ratio of probabilities above 1e-4, each right to some eps of float32, so to some
    20 eps of its size of at most 10: 2e-5. What never occurs (5; without ends of documents, `<pad>` as an output) has rows too.
    """
    dense = offset_rows(COUNTS, features="cat", eos=eos, smoothing=smoothing)
    log_p = np.asarray(dense.log_p[0], np.float64)
    over, plain = (smoothed_offset_rows(SPARSE, eos=eos, smoothing=smoothing, over=o) for o in (log_p, None))
    read_both = jax.jit(lambda context: (over.read(context), plain.read(context)))
    assert over.names == plain.names == ("offset 1", "offset 2", "offset 3") and not COUNTS[0][5].any()
    for j in range(N):
        for table, row, own in zip(dense.tables, *read_both(jnp.full(3, j)), strict=True):
            expected = log_softmax(np.asarray(table[j], np.float64) + log_p)
            assert row.dtype == own.dtype == np.float32
            np.testing.assert_allclose(log_softmax(np.asarray(row, np.float64) + log_p), expected, rtol=0, atol=2e-5)
            np.testing.assert_allclose(log_softmax(np.asarray(own, np.float64)), expected, rtol=0, atol=2e-5)


def test_another_smoothing_is_refused():
    with pytest.raises(ValueError, match="smoothing 'good-turing': choose kneser-ney"):
        smoothed_offset_rows(SPARSE, smoothing="good-turing")


# Small types of token ids


@pytest.mark.parametrize("dtype, size", [(np.uint8, 256), (np.uint16, 65_536)])
@pytest.mark.parametrize("kind, K", [("cat", 1), ("sum", 2), ("cat", 2)])
def test_ids_of_a_small_type_are_the_same_up_to_the_largest(kind, K, dtype, size):
    last = size - 1
    rng = np.random.default_rng(0)
    documents = [[last, *rng.integers(1, size, 30).tolist(), last, last] for _ in range(4)] + [[1, last, 2]]
    small, wide = stream_of(documents, dtype), stream_of(documents, np.int64)
    assert small.max() == np.iinfo(dtype).max
    models = [sparse_language_model(count_sparse(stream, radius=K, vocab_size=size), features=kind) for stream in (small, wide)]
    assert jax.tree.structure(models[0]) == jax.tree.structure(models[1])
    for one, other in zip(jax.tree.leaves(models[0]), jax.tree.leaves(models[1]), strict=True):
        np.testing.assert_array_equal(one, other)
    model = models[0]
    assert evaluate(model, small) == evaluate(model, wide)
    scores = score(model, wide)
    np.testing.assert_array_equal(score(model, small), scores)
    assert -scores.sum() == pytest.approx(evaluate(model, wide).nll, rel=1e-12)
    x, y = (part[-1] for part in contexts(small, K))  # after the largest id came 2
    assert x[0] == last and y == 2
    np.testing.assert_allclose(next_log_probabilities(model, x)[int(y)], scores[-1], rtol=0, atol=1e-5)  # logits are float32

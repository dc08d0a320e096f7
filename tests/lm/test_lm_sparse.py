"""What sparse tables have of their own, beside the dense loop over documents (test_explicit_language_model.py).

Tolerances: as for the dense model, 1e-11 nats is 1000 times what float64 rounds.
"""

from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from reference import cooccurrences, log_softmax, random_documents, stream_of
from scipy.sparse import csr_array

from jexplicit.counts.pairs import count_sparse
from jexplicit.data.contexts import contexts
from jexplicit.lm import evaluation, rows
from jexplicit.lm.core.model import is_token_model, token_model
from jexplicit.lm.evaluation import evaluate, score
from jexplicit.lm.fits.log_linear import offset_rows
from jexplicit.lm.rows import explicit_language_model, smoothed_offset_rows, sparse_language_model

N = 9
SLOW = pytest.mark.slow
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 40, N, 6)]  # 5: never seen
DEV = stream_of(random_documents(4, 25, N, 8))  # token 5 too
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 3, N))
SPARSE = tuple(csr_array(C) for C in COUNTS)


def fit(counts=SPARSE, *, dtype: Any = np.float64, **options):
    return sparse_language_model(counts, dtype=dtype, **options)


def test_a_model_of_radius_1_is_evaluated_from_distinct_pairs_alone(monkeypatch):
    def positions(*_, **__):
        raise AssertionError("every position was listed")

    monkeypatch.setattr(evaluation, "sampled_positions", positions)
    found = evaluate(fit(features="cat", radius=1), DEV, sample=5)
    dense = evaluate(explicit_language_model(COUNTS, features="cat", radius=1, dtype=np.float64), DEV)
    assert found.positions == dense.positions and found.nll == pytest.approx(dense.nll, rel=1e-12)


@pytest.mark.parametrize("largest", [0.0, 0.3, 2.0, 11.0])
def test_interpolated_exponentials_are_exact_to_rounding(largest):
    slopes, t = np.linspace(0, largest, 7), np.append(np.linspace(0, 1, 23), 1 / 3)
    found = np.polynomial.chebyshev.chebval(2 * t - 1, rows._chebyshev_coefficients(slopes))
    # rounding is that of the largest exponential: eps * exp(largest), times the number of terms
    np.testing.assert_allclose(found, np.exp(np.outer(slopes, t)), rtol=0, atol=1e-14 * np.exp(largest))


def test_corrections_are_as_sparse_as_the_counts():
    model = fit(features="cat", eos=True)
    for correction, C in zip(model.rows.corrections, SPARSE, strict=True):
        assert len(correction.values) == len(correction.outputs) == C.nnz
        assert correction.outputs.dtype == np.uint16 and correction.start.dtype == np.int32
        np.testing.assert_array_equal(correction.outputs, C.indices)
        np.testing.assert_array_equal(correction.start, C.indptr)


@pytest.mark.parametrize("kind, K", [("cat", 3), pytest.param("sum", 2, marks=SLOW)])
def test_dense_tables_of_the_same_rows_are_the_same_model(kind, K):
    model = fit(features=kind, radius=K, eos=True)
    dense = token_model([model.rows.dense(t) for t in model.rows.table_of_offset], kind, True)
    assert is_token_model(dense) and not is_token_model(model)
    X = jax.device_put(np.array(list(product(range(N), repeat=K))[::9]))
    found, expected = (jax.jit(jax.vmap(lambda x, m=m: jax.nn.log_softmax(m.logits(x))))(X) for m in (dense, model))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("smoothing, eos", [("kneser-ney", False), ("add-alpha", True)])
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
        for table, row, own in zip(dense.tables, *read_both(jax.device_put(np.full(3, j))), strict=True):
            expected = log_softmax(np.asarray(table[j], np.float64) + log_p)
            assert row.dtype == own.dtype == np.float32
            np.testing.assert_allclose(log_softmax(np.asarray(row, np.float64) + log_p), expected, rtol=0, atol=2e-5)
            np.testing.assert_allclose(log_softmax(np.asarray(own, np.float64)), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype, size", [(np.uint8, 256), pytest.param(np.uint16, 65_536, marks=SLOW)])
def test_ids_of_a_small_type_are_the_same_up_to_the_largest(dtype, size):
    K, last = 2, size - 1
    rng = np.random.default_rng(0)
    documents = [[last, *rng.integers(1, size, 30).tolist(), last, last] for _ in range(4)] + [[1, last, 2]]
    small, wide = stream_of(documents, dtype), stream_of(documents, np.int64)
    assert small.max() == np.iinfo(dtype).max
    models = [
        sparse_language_model(count_sparse(stream, radius=K, vocab_size=size), features="cat") for stream in (small, wide)
    ]
    for one, other in zip(*map(jax.tree.leaves, models), strict=True):
        np.testing.assert_array_equal(one, other)
    model, scores = models[0], score(models[0], wide)
    np.testing.assert_array_equal(score(model, small), scores)
    assert -scores.sum() == pytest.approx(evaluate(model, small).nll, rel=1e-12)
    x, y = (part[-1] for part in contexts(small, K))  # after the largest id came 2
    assert x[0] == last and y == 2
    log_p = jax.jit(lambda x: jax.nn.log_softmax(model.logits(x)))(jax.device_put(x))
    np.testing.assert_allclose(np.asarray(log_p)[int(y)], scores[-1], rtol=0, atol=1e-5)  # logits are float32

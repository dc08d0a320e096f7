"""Log-linear models of single tokens: smoothed rows over the unigram, the attention of Sum, and exponents.

Tolerances: tables are float32. A row is the logarithm of a ratio of probabilities above 1e-4, each right to some eps, so to
2e-5 in all; a logit adds up four of them, and a probability is right to as much.
"""

import functools
from typing import Any

import numpy as np
import pytest
import scipy
from reference import cooccurrences, log_softmax, random_documents, rows_of_smoothing, stream_of, windows

from jexplicit import evaluate
from jexplicit.lm.core.names import Smoothing
from jexplicit.lm.evaluation import log_probabilities
from jexplicit.lm.fits.log_linear import fit_exponents, implied_slope, log_linear_model, offset_rows
from jexplicit.lm.rows import bigram_model
from jexplicit.runs.devices import data_mesh

N, K = 9, 3
ATOL = 2e-5
DOCUMENTS = random_documents(21, 60, N - 1, 12)  # token 8 never occurs
HELD_X, HELD_Y = windows(random_documents(22, 12, N, 12), K)
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, K, N))


def targets(C, eos):
    """Counts without the column of document ends, unless they are predicted."""
    return np.array(C) * np.where(np.arange(N) == 0, eos, 1)


def slow_unigram(eos):
    f = np.maximum(targets(COUNTS[0], eos).sum(axis=0), 1)
    return f / f.sum()


@functools.cache
def rows_of(features: Any = "cat", smoothing: Smoothing = "kneser-ney", radius=K, eos=False):
    return offset_rows(COUNTS, features=features, radius=radius, eos=eos, smoothing=smoothing)


def test_rows_of_cat_are_smoothed_counts_over_the_unigram_and_rows_of_sum_one_mixture_read_with_attention():
    for smoothing, eos in (("kneser-ney", True), ("add-alpha", False)):
        p, P = slow_unigram(eos), [rows_of_smoothing(targets(C, eos), smoothing) for C in COUNTS]
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
    np.testing.assert_array_equal(rows_of("sum", radius=1).tables, rows_of("cat", radius=1).tables)
    even = tuple(np.ones((N, N), np.int64) * 5 for _ in range(2))  # tokens say nothing
    np.testing.assert_allclose(offset_rows(even, features="sum", eos=True).tables, 0, rtol=0, atol=ATOL)


# Exponents and models


def slow_log_p(rows, exponents, X):
    """[M, N] of every position, one by one."""
    log_p, tables = np.asarray(rows.log_p, np.float64)[0], [np.asarray(table, np.float64) for table in rows.tables]
    read = ([log_p, *(table[j] for table, j in zip(tables, x, strict=True))] for x in X)
    return np.array([log_softmax(np.sum([a * row for a, row in zip(exponents, of_x, strict=True)], axis=0)) for of_x in read])


def test_the_minimum_is_that_of_scipy_on_any_number_of_devices():
    rows, start, own = rows_of("cat"), np.array([1, *(1 / k for k in range(1, K + 1))]), (np.arange(len(HELD_Y)), HELD_Y)
    ridge = max(1e-4, 1.5 / len(HELD_Y), 25 / len(HELD_Y) ** 2)

    def loss(a, ridge=ridge):
        return -slow_log_p(rows, a, HELD_X)[own].mean() + ridge / 2 * np.sum((a - start) ** 2)

    fitted, three = (fit_exponents(rows, HELD_X, HELD_Y, tolerance=2e-6, mesh=data_mesh(n)) for n in (1, 3))
    best = scipy.optimize.minimize(loss, np.ones(K + 1), tol=1e-9)
    np.testing.assert_allclose(fitted.exponents, best.x, rtol=0, atol=2e-3)  # where the loss is flat: 1e-6 above its minimum
    assert loss(fitted.exponents) <= best.fun + 1e-6
    assert fitted.loss == pytest.approx(loss(fitted.exponents, 0), abs=ATOL)
    assert fitted.gradient < 2e-6 and 2 <= fitted.passes < 20
    np.testing.assert_allclose(three.exponents, fitted.exponents, rtol=0, atol=1e-5)
    for X, Y in ((np.zeros((0, K), int), np.zeros(0, int)), (np.ones((2, K + 1), int), np.ones(2, int))):
        with pytest.raises(ValueError, match="hold out more of the text"):
            fit_exponents(rows, X, Y)


def test_the_language_model_is_the_log_linear_one_and_at_its_ends_the_unigram_and_the_bigrams():
    for features, eos in (("sum", False), ("cat", True)):
        rows, exponents = rows_of(features, eos=eos), np.array([0.7, 0.8, 0.4, -0.2])
        X, Y = windows(DOCUMENTS, K, eos=eos)
        slow, model = slow_log_p(rows, exponents, X)[np.arange(len(Y)), Y], log_linear_model(rows, exponents)
        np.testing.assert_allclose(log_probabilities(model, X, Y), slow, rtol=0, atol=ATOL)
        assert evaluate(model, stream_of(DOCUMENTS)).loss == pytest.approx(-np.mean(slow), abs=ATOL)
        assert (model.features, model.radius, model.eos, model.ordered) == (rows.features, K, eos, True)
        ours, bigrams = log_linear_model(rows_of("cat", radius=1, eos=eos), np.ones(2)), bigram_model(COUNTS, eos=eos).rows
        np.testing.assert_allclose(ours.tables[0], [log_softmax(row) for row in bigrams.dense(0)], rtol=0, atol=ATOL)
    model, (X, Y) = log_linear_model(rows_of("cat"), np.array([1.0, 0, 0, 0])), windows(DOCUMENTS, K)
    np.testing.assert_allclose(log_probabilities(model, X, Y), np.log(slow_unigram(False))[Y], rtol=0, atol=ATOL)


def test_the_implied_slope_is_what_is_subtracted_from_whole_logarithms_of_counts():
    assert implied_slope(np.array([1.0, 0.3, 0.6])) == pytest.approx(1, abs=1e-15)  # the unigram keeps its exponent
    assert implied_slope(np.array([1.5, 0.3, 0.2])) == pytest.approx(0, abs=1e-15)  # all of log f is kept: mu = 1 + sum lambda
    for mu, *lambdas in ((0.8, 0.9, 0.2), (1.2, 0.5, 0.4), (0.3, 1.0, -0.1)):
        # logits of log f: mu - sum lambda here, 1 - delta sum lambda in the derivation
        slope = implied_slope(np.array([mu, *lambdas]))
        assert 1 - slope * sum(lambdas) == pytest.approx(mu - sum(lambdas), abs=1e-14)

"""Log-linear models of single tokens: smoothed rows over the unigram, the attention of Sum, and exponents.

Tolerances: tables are float32. A row is the logarithm of a ratio of probabilities above 1e-4, each right to some eps, so to
2e-5 in all; a logit adds up four of them, and a probability is right to as much.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from reference import cooccurrences, log_softmax, random_documents, rows_of_smoothing, stream_of, windows

from jexplicit import evaluate
from jexplicit.lm.core.names import Smoothing
from jexplicit.lm.evaluation import log_probabilities
from jexplicit.lm.fits.log_linear import OffsetRows, fit_exponents, implied_slope, log_linear_model, offset_rows
from jexplicit.lm.rows import bigram_model
from jexplicit.runs.devices import data_mesh

N, K = 9, 3
ATOL = 2e-5
DOCUMENTS = random_documents(21, 60, N - 1, 12)  # token 8 never occurs
STREAM, HELD = stream_of(DOCUMENTS), stream_of(random_documents(22, 40, N, 12))
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, K, N))
SMOOTHINGS = pytest.mark.parametrize("smoothing, eos", [("kneser-ney", True), ("add-alpha", False)])
SLOW = pytest.mark.slow
EOS = pytest.mark.parametrize("eos", [True, pytest.param(False, marks=SLOW)])


def targets(C, eos):
    """Counts without the column of document ends, unless they are predicted."""
    C = np.array(C)
    if not eos:
        C[:, 0] = 0
    return C


def slow_unigram(counts, eos):
    f = np.maximum(targets(counts[0], eos).sum(axis=0), 1)
    return f / f.sum()


def probabilities(rows):
    """[N, N] the rows of each table times the unigram."""
    return [np.exp(np.asarray(table, np.float64) + np.asarray(rows.log_p, np.float64)) for table in rows.tables]


@functools.cache
def rows_of(features: Any = "cat", smoothing: Smoothing = "kneser-ney", radius=K, eos=False):
    return offset_rows(COUNTS, features=features, radius=radius, eos=eos, smoothing=smoothing)


# Rows


@SMOOTHINGS
def test_rows_of_cat_are_the_smoothed_counts_over_the_unigram(smoothing, eos):
    rows, p = rows_of("cat", smoothing, eos=eos), slow_unigram(COUNTS, eos)
    np.testing.assert_allclose(np.asarray(rows.log_p)[0], np.log(p), rtol=0, atol=ATOL)
    assert (rows.features, rows.eos, len(rows.tables)) == ("cat", eos, K)
    for C, table in zip(COUNTS, rows.tables, strict=True):
        expected = np.log(rows_of_smoothing(targets(C, eos), smoothing)) - np.log(p)
        np.testing.assert_allclose(table, expected, rtol=0, atol=ATOL)


@SMOOTHINGS
def test_rows_of_sum_are_one_mixture_read_with_attention(smoothing, eos):
    p = slow_unigram(COUNTS, eos)
    P = [rows_of_smoothing(targets(C, eos), smoothing) for C in COUNTS]
    rows = rows_of("sum", smoothing, eos=eos)
    assert rows.features == "sum" and rows.attention is not None
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


def test_attention_is_1_at_the_nearest_offset_and_of_one_offset_alone():
    one, two = rows_of("sum", radius=1), rows_of("cat", radius=1)
    np.testing.assert_array_equal(one.tables[0], two.tables[0])
    assert one.features == "sum" and len(one.tables) == 1
    nearest = probabilities(rows_of("sum"))[0]
    np.testing.assert_allclose(nearest.sum(axis=1), 1, rtol=0, atol=ATOL)  # the mixture itself


def test_tokens_that_say_nothing_get_finite_rows():
    even = tuple(np.ones((N, N), np.int64) * 5 for _ in range(2))
    rows = offset_rows(even, features="sum", eos=True)
    for table in rows.tables:
        np.testing.assert_allclose(table, 0, rtol=0, atol=ATOL)


# Exponents and models


def slow_log_p(rows, exponents, X):
    """[M, N] of every position, one by one."""
    log_p, tables = np.asarray(rows.log_p, np.float64)[0], [np.asarray(table, np.float64) for table in rows.tables]
    read = ([log_p, *(table[j] for table, j in zip(tables, x, strict=True))] for x in X)
    return np.array([log_softmax(np.sum([a * row for a, row in zip(exponents, of_x, strict=True)], axis=0)) for of_x in read])


def penalised(rows, X, Y, ridge):
    """The loss that a fit minimises, as a function of the exponents."""
    start = np.array([1, *(1 / k for k in range(1, K + 1))])
    own = np.arange(len(Y)), Y
    return lambda a: -slow_log_p(rows, a, X)[own].mean() + ridge / 2 * np.sum((a - start) ** 2)


@pytest.mark.parametrize("features, ridge", [("cat", None), pytest.param("sum", 0.1, marks=SLOW)])
def test_the_minimum_is_that_of_scipy(features, ridge):
    X, Y = windows(random_documents(22, 12, N, 12), K)
    rows = rows_of(features)
    fitted = fit_exponents(rows, X, Y, ridge=ridge, tolerance=2e-6)
    loss = penalised(rows, X, Y, max(1e-4, 1.5 / len(Y), 25 / len(Y) ** 2) if ridge is None else ridge)
    best = scipy.optimize.minimize(loss, np.ones(K + 1), tol=1e-9)
    np.testing.assert_allclose(fitted.exponents, best.x, rtol=0, atol=2e-3)  # where the loss is flat: 1e-6 above its minimum
    assert loss(fitted.exponents) <= best.fun + 1e-6
    assert fitted.loss == pytest.approx(-slow_log_p(rows, fitted.exponents, X)[np.arange(len(Y)), Y].mean(), abs=ATOL)
    assert fitted.gradient < 2e-6 and 2 <= fitted.passes < 20


def test_an_exponent_of_a_coin_is_that_worked_by_hand():
    coin = OffsetRows(jnp.zeros((1, 2)), (jnp.log(jnp.array([[0.8, 0.2]] * 2)),), "cat", False)
    X, Y = np.ones((3, 1), int), np.array([0, 0, 1])  # 4 to 1 in a text, 2 to 1 in another: log 2 / log 4
    fitted = fit_exponents(coin, X, Y, ridge=0)
    assert fitted.exponents[1] == pytest.approx(0.5, abs=1e-4)
    assert fitted.exponents[0] == 1  # a constant row moves nothing
    assert fitted.loss == pytest.approx(-(2 * np.log(2 / 3) + np.log(1 / 3)) / 3, abs=1e-6)
    strong = fit_exponents(coin, X, Y, ridge=1e6)
    np.testing.assert_allclose(strong.exponents, [1, 1], rtol=0, atol=1e-5)


@SLOW
def test_known_exponents_are_found_again_from_sampled_targets():
    rng, known = np.random.default_rng(3), np.array([0.8, 0.9, 0.4, -0.3])
    X = np.repeat(windows(DOCUMENTS, K)[0], 60, axis=0)
    p = np.exp(slow_log_p(rows_of("cat"), known, X))
    Y = (p.cumsum(axis=1) > rng.random((len(X), 1))).argmax(axis=1)
    assert len(X) > 15_000  # a standard error of some 0.02
    np.testing.assert_allclose(fit_exponents(rows_of("cat"), X, Y).exponents, known, rtol=0, atol=0.08)


@SLOW
def test_exponents_are_the_same_on_three_devices():
    X, Y = windows(random_documents(22, 12, N, 12), K)
    one, three = (fit_exponents(rows_of("cat"), X, Y, mesh=data_mesh(devices)) for devices in (1, 3))
    np.testing.assert_allclose(one.exponents, three.exponents, rtol=0, atol=1e-5)


def test_positions_that_do_not_fit_the_rows_are_refused():
    for X, Y in ((np.zeros((0, K), int), np.zeros(0, int)), (np.ones((2, K + 1), int), np.ones(2, int))):
        with pytest.raises(ValueError, match="hold out more of the text"):
            fit_exponents(rows_of("cat"), X, Y)


@pytest.mark.parametrize("features, eos", [("sum", False), pytest.param("cat", True, marks=SLOW)])
def test_the_language_model_is_the_log_linear_one(features, eos):
    rows = rows_of(features, eos=eos)
    exponents = np.array([0.7, 0.8, 0.4, -0.2])
    X, Y = windows(DOCUMENTS, K, eos=eos)
    slow = slow_log_p(rows, exponents, X)[np.arange(len(Y)), Y]
    model = log_linear_model(rows, exponents)
    np.testing.assert_allclose(log_probabilities(model, X, Y), slow, rtol=0, atol=ATOL)
    assert evaluate(model, STREAM).loss == pytest.approx(-np.mean(slow), abs=ATOL)
    assert (model.features, model.radius, model.eos) == (rows.features, K, eos)
    assert model.ordered


@EOS
def test_at_radius_1_exponents_1_are_the_bigram_baseline(eos):
    ours = log_linear_model(rows_of("cat", "kneser-ney", 1, eos), np.ones(2))
    rows: Any = bigram_model(COUNTS, eos=eos).rows
    np.testing.assert_allclose(ours.tables[0], [log_softmax(row) for row in rows.dense(0)], rtol=0, atol=ATOL)


def test_without_offsets_the_model_is_the_unigram():
    model = log_linear_model(rows_of("cat"), np.array([1.0, 0, 0, 0]))
    X, Y = windows(DOCUMENTS, K)
    np.testing.assert_allclose(log_probabilities(model, X, Y), np.log(slow_unigram(COUNTS, False))[Y], rtol=0, atol=ATOL)


def test_the_implied_slope_is_what_is_subtracted_from_whole_logarithms_of_counts():
    assert implied_slope(np.array([1.0, 0.3, 0.6])) == pytest.approx(1, abs=1e-15)  # the unigram keeps its exponent
    assert implied_slope(np.array([1.5, 0.3, 0.2])) == pytest.approx(0, abs=1e-15)  # all of log f is kept: mu = 1 + sum lambda
    assert implied_slope(np.array([1.1, 0.5])) == pytest.approx(0.8, abs=1e-15)
    # logits of log f: mu - sum lambda here, 1 - delta sum lambda in the derivation
    for mu, *lambdas in ((0.8, 0.9, 0.2), (1.2, 0.5, 0.4), (0.3, 1.0, -0.1)):
        slope = implied_slope(np.array([mu, *lambdas]))
        assert 1 - slope * sum(lambdas) == pytest.approx(mu - sum(lambdas), abs=1e-14)

"""Log-linear models of single tokens: smoothed rows over the unigram, the attention of Sum, one left out, and exponents.

Tolerances: tables are float32. A row is the logarithm of a ratio of probabilities above 1e-4, each right to some eps, so to
2e-5 in all; a logit adds up four of them, and a probability is right to as much.
"""

import functools
from typing import Any

import numpy as np
import pytest
from reference import (
    cooccurrences,
    log_linear,
    log_softmax,
    modified_discounts,
    noise_model_rows,
    random_documents,
    rows_of_smoothing,
    single_discount,
    stream_of,
    windows,
)

from jexplicit import bigram_model, count, evaluate, explicit_language_model
from jexplicit.lm.evaluation import log_probabilities as tables_log_probabilities
from jexplicit.lm.fits.log_linear import (
    Smoothing,
    implied_slope,
    initial_exponents,
    leave_one_out_positions,
    leave_one_out_rows,
    log_linear_model,
    offset_positions,
    offset_rows,
)
from jexplicit.lm.tables.reader import log_probabilities

N, K = 9, 3
ATOL = 2e-5
DOCUMENTS = random_documents(21, 60, N - 1, 12)  # token 8 never occurs
STREAM, HELD = stream_of(DOCUMENTS), stream_of(random_documents(22, 40, N, 12))
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, K, N))
ROW_BY_ROW = ("kneser-ney", "modified-kneser-ney", "absolute-discount", "dirichlet", "add-alpha")
SMOOTHINGS = [(s, n % 2 == 0) for n, s in enumerate([*ROW_BY_ROW, "noise", "noise"])]
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


def slow_P(counts, C, smoothing, eos):
    """[N, N] smoothed rows of one table of counts, cell by cell."""
    C = targets(C, eos)
    if smoothing == "noise":
        f = C.sum(axis=0)
        C = np.where(f == 0, C.sum(axis=1, keepdims=True) / f.sum(), C)
        return noise_model_rows(C, counts[0].sum(axis=0))
    return rows_of_smoothing(C, smoothing)


def probabilities(rows):
    """[N, N] the rows of each table times the unigram."""
    return [np.exp(np.asarray(table, np.float64) + np.asarray(rows.log_p, np.float64)) for table in rows.tables]


@functools.cache
def rows_of(features: Any = "cat", smoothing: Smoothing = "kneser-ney", radius=K, eos=False):
    return offset_rows(COUNTS, features=features, radius=radius, eos=eos, smoothing=smoothing)


# Rows


@pytest.mark.parametrize("smoothing, eos", [*SMOOTHINGS[:-1], pytest.param(*SMOOTHINGS[-1], marks=SLOW)])
def test_rows_of_cat_are_the_smoothed_counts_over_the_unigram(smoothing, eos):
    rows, p = rows_of("cat", smoothing, eos=eos), slow_unigram(COUNTS, eos)
    np.testing.assert_allclose(np.asarray(rows.log_p)[0], np.log(p), rtol=0, atol=ATOL)
    assert (rows.features, rows.eos, len(rows.tables)) == ("cat", eos, K)
    for C, table in zip(COUNTS, rows.tables, strict=True):
        expected = np.log(slow_P(COUNTS, C, smoothing, eos)) - np.log(p)
        np.testing.assert_allclose(table, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize(
    "smoothing, eos", [SMOOTHINGS[1], *(pytest.param(*c, marks=SLOW) for c in SMOOTHINGS if c != SMOOTHINGS[1])]
)
def test_rows_of_sum_are_one_mixture_read_with_attention(smoothing, eos):
    p = slow_unigram(COUNTS, eos)
    P = [slow_P(COUNTS, C, smoothing, eos) for C in COUNTS]
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


# One left out


def slow_left_out(C, x, y, smoothing):
    """The row of x, one (x, y) less; discounts and lower distribution from all counts."""
    row, f = C[x].copy(), np.maximum(C.sum(axis=0), 1)
    row[y] -= 1
    if smoothing == "add-alpha":
        return (row + 1) / (sum(row) + N)
    if smoothing == "dirichlet":
        n = max(sum(c > 0 for c in row), 1)
        return (row + n * f / sum(f)) / (sum(row) + n)
    followed = np.maximum((C > 0).sum(axis=0), 1)
    lower = (f if smoothing == "absolute-discount" else followed) / sum(f if smoothing == "absolute-discount" else followed)
    counts = [int(c) for c in C.flat]
    D = modified_discounts(counts) if smoothing.startswith("modified") else [0.0, *[single_discount(counts)] * 3]
    taken = np.array([D[min(c, 3)] for c in row])
    return (row - taken + sum(taken) * lower) / sum(row) if sum(row) else lower


@pytest.mark.slow
@pytest.mark.parametrize("smoothing, eos", [(s, n % 2 > 0) for n, s in enumerate(ROW_BY_ROW)])
def test_left_out_rows_have_one_pair_less(smoothing, eos):
    X, Y = windows(DOCUMENTS, K, eos=eos)
    some = slice(0, 150)
    rows = leave_one_out_rows(COUNTS, X[some], Y[some], eos=eos, smoothing=smoothing)
    assert len(rows.tables) == K and rows.tables[0].shape == (150, N) and rows.eos == eos
    np.testing.assert_array_equal(rows.log_p, rows_of(eos=eos).log_p)
    ones = 0
    for C, x, P in zip(COUNTS, X.T, probabilities(rows), strict=True):
        C = targets(C, eos)
        expected = [slow_left_out(C, j, i, smoothing) for j, i in zip(x[some], Y[some], strict=True)]
        np.testing.assert_allclose(np.log(P), np.log(expected), rtol=0, atol=ATOL)
        ones += sum(C[j, i] == 1 for j, i in zip(x[some], Y[some], strict=True))
    assert ones > 5  # pairs that are new once they are left out


@pytest.mark.slow
def test_a_context_seen_once_falls_back_when_it_is_left_out():
    counts = count(stream_of([[1, 2, 2], [2, 3]]), radius=1, vocab_size=4)
    assert counts[0][1].tolist() == [0, 0, 1, 0]
    at = np.array([[1]]), np.array([2])
    P_cont = np.array([1, 1, 3, 1]) / 6  # <pad> and 1 once each; 2 after <pad>, 1 and 2; 3 after 2
    for smoothing in ("kneser-ney", "modified-kneser-ney"):
        rows = leave_one_out_rows(counts, *at, smoothing=smoothing)
        np.testing.assert_allclose(probabilities(rows)[0][0], P_cont, rtol=0, atol=ATOL)
    rows = leave_one_out_rows(counts, *at, smoothing="add-alpha")
    np.testing.assert_allclose(probabilities(rows)[0][0], 1 / 4, rtol=0, atol=ATOL)


@pytest.mark.slow
def test_left_out_add_alpha_is_that_of_the_smaller_counts():
    X, Y = windows(DOCUMENTS, K)
    rows = probabilities(leave_one_out_rows(COUNTS, X[:5], Y[:5], smoothing="add-alpha"))
    for m in range(5):
        less = tuple(C - (np.eye(N)[X[m, k]][:, None] * np.eye(N)[Y[m]]).astype(C.dtype) for k, C in enumerate(COUNTS))
        again = probabilities(offset_rows(less, features="cat", smoothing="add-alpha"))
        np.testing.assert_allclose([P[m] for P in rows], [P[x] for P, x in zip(again, X[m], strict=True)], rtol=ATOL)


@pytest.mark.slow
def test_every_position_reads_its_own_left_out_rows():
    X, Y = windows(DOCUMENTS, K)
    X, Y, exponents = X[:70], Y[:70], np.array([0.9, 0.8, 0.4, 0.2])  # more than a block
    rows = leave_one_out_rows(COUNTS, X, Y)
    tables = [np.asarray(table, np.float64) for table in rows.of_features]
    expected = [
        log_softmax(exponents[0] * tables[0][0] + sum(exponents[k] * tables[k][m] for k in (1, 2, 3)))[Y[m]] for m in range(70)
    ]
    found = log_probabilities(rows.of_features, exponents, leave_one_out_positions(70, K), Y)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL)


# Exponents and models


def test_a_fit_starts_at_exponents_that_fall_off():
    np.testing.assert_allclose(initial_exponents(rows_of("cat")), [1, 1, 1 / 2, 1 / 3])
    np.testing.assert_allclose(initial_exponents(rows_of("sum")), [1, 1, 1 / 2, 1 / 3])


@pytest.mark.parametrize("features, eos", [("sum", False), pytest.param("cat", True, marks=SLOW)])
def test_the_language_model_is_the_log_linear_one(features, eos):
    rows = rows_of(features, eos=eos)
    exponents = np.array([0.7, 0.8, 0.4, -0.2])
    X, Y = windows(DOCUMENTS, K, eos=eos)
    positions = offset_positions(rows, X)
    log_p = log_probabilities(rows.of_features, exponents, positions, Y)
    tables = [np.asarray(table, np.float64) for table in rows.of_features]
    slow = log_linear(tables, exponents, *positions)[np.arange(len(Y)), Y]
    np.testing.assert_allclose(log_p, slow, rtol=0, atol=ATOL)
    model = log_linear_model(rows, exponents)
    np.testing.assert_allclose(tables_log_probabilities(model, X, Y), slow, rtol=0, atol=ATOL)
    assert evaluate(model, STREAM).loss == pytest.approx(-np.mean(slow), abs=ATOL)
    assert (model.features, model.radius, model.eos) == (rows.features, K, eos)
    assert model.ordered


@pytest.mark.parametrize("radius, eos", [(3, False), pytest.param(1, True, marks=SLOW)])
def test_the_papers_cat_is_the_noise_model_with_exponents_1(radius, eos):
    X, Y = windows(DOCUMENTS, radius, eos=eos)
    ours = log_linear_model(rows_of("cat", "noise", radius, eos), np.ones(1 + radius))
    papers = explicit_language_model(COUNTS, features="cat", radius=radius, eos=eos)
    mine, theirs = (tables_log_probabilities(model, X, Y) for model in (ours, papers))
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=ATOL)


@EOS
def test_at_radius_1_exponents_1_are_the_bigram_baseline(eos):
    ours = log_linear_model(rows_of("cat", "kneser-ney", 1, eos), np.ones(2))
    np.testing.assert_allclose(ours.tables[0], bigram_model(COUNTS, eos=eos).tables[0], rtol=0, atol=ATOL)


def test_without_offsets_the_model_is_the_unigram():
    model = log_linear_model(rows_of("cat"), np.array([1.0, 0, 0, 0]))
    X, Y = windows(DOCUMENTS, K)
    np.testing.assert_allclose(tables_log_probabilities(model, X, Y), np.log(slow_unigram(COUNTS, False))[Y], rtol=0, atol=ATOL)


def test_the_implied_slope_is_what_is_subtracted_from_whole_logarithms_of_counts():
    assert implied_slope(np.array([1.0, 0.3, 0.6])) == pytest.approx(1, abs=1e-15)  # the unigram keeps its exponent
    assert implied_slope(np.array([1.5, 0.3, 0.2])) == pytest.approx(0, abs=1e-15)  # all of log f is kept: mu = 1 + sum lambda
    assert implied_slope(np.array([1.1, 0.5])) == pytest.approx(0.8, abs=1e-15)
    # logits of log f: mu - sum lambda here, 1 - delta sum lambda in the derivation
    for mu, *lambdas in ((0.8, 0.9, 0.2), (1.2, 0.5, 0.4), (0.3, 1.0, -0.1)):
        slope = implied_slope(np.array([mu, *lambdas]))
        assert 1 - slope * sum(lambdas) == pytest.approx(mu - sum(lambdas), abs=1e-14)

"""Perplexity, attribution, the scaling assumption.

Tolerances: as for the loss, 1e-11 relative in float64; in float32 an evaluation may be off by some eps of its logits, 1e-5.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import PAD, cooccurrences, features, language_model, log_softmax, random_documents, stream_of, windows
from reference import log_mean_cooccurrences as log_mean_cooccurrences_loop
from scipy.sparse import csr_array
from scipy.stats import linregress

from jexplicit.lm.attribution import explain
from jexplicit.lm.core.model import token_model
from jexplicit.lm.evaluation import Evaluation, Past, evaluate, histories, log_probabilities, read_text
from jexplicit.lm.rows import Features, explicit_language_model, target_counts, unigram_model
from jexplicit.lm.scaling_assumption import fit_scaling, log_mean_cooccurrences, partition_spread

N = 9
TRAIN, DEV = random_documents(3, 40, N, 6), random_documents(4, 20, N, 8)
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(TRAIN, 3, N))
TOLERANCE = {np.float64: 1e-11, np.float32: 1e-5}
SLOW = pytest.mark.slow


def fit(K=2, kind: Features = "cat", eos=False, dtype=np.float64):
    return explicit_language_model(COUNTS, features=kind, radius=K, eos=eos, dtype=dtype)


def log_probabilities_of_all(model, X):
    rows = [np.sum([np.asarray(table)[j] for table, j in zip(model.tables, x, strict=True)], axis=0) for x in X]
    return np.array([log_softmax(row) for row in rows])


# Perplexity


def test_perplexity_is_the_exponential_of_the_mean_loss():
    assert Evaluation(nll=3 * np.log(5), positions=3).perplexity == pytest.approx(5, rel=1e-15)


@pytest.mark.parametrize("K", [1, 2])
def test_a_model_that_knows_nothing_has_the_vocabulary_as_its_perplexity(K):
    model = token_model((jax.device_put(np.zeros((N, N))),) * K, "sum", True)
    assert evaluate(model, stream_of(DEV)).perplexity == pytest.approx(N, rel=1e-12)


def test_the_unigram_model_s_perplexity_on_its_text_is_that_of_the_entropy():
    f = target_counts(COUNTS)
    p = np.maximum(f, 1) / np.maximum(f, 1).sum()  # <pad> is never a target and counts once
    entropy = -sum(f[i] * np.log(p[i]) for i in range(N)) / f.sum()
    assert evaluate(unigram_model(COUNTS), stream_of(TRAIN)).perplexity == pytest.approx(np.exp(entropy), rel=1e-5)  # float32


def test_at_k_1_counts_at_hand_are_as_good_as_the_text():
    model, stream = fit(K=1), stream_of(TRAIN)
    assert evaluate(model, stream, counts=COUNTS) == evaluate(model, stream)
    assert evaluate(model, stream, counts=tuple(map(csr_array, COUNTS))) == evaluate(model, stream)


def test_relative_frequencies_have_the_conditional_entropy_and_a_pair_without_a_chance_costs_infinitely_much():
    with np.errstate(divide="ignore"):
        tables = [jax.device_put(np.log(C)) for C in (COUNTS[0], np.where(COUNTS[0] == 1, 0, COUNTS[0]))]
    C = COUNTS[0].astype(float)
    entropy = -sum(c * np.log(c / row.sum()) for row in C for c in row[row > 0])
    one, none = (evaluate(token_model([table], "cat", True), stream_of(TRAIN)) for table in tables)
    assert one.nll == pytest.approx(entropy, rel=1e-12) and none.nll == np.inf


def test_a_sample_is_drawn_by_its_seed_and_holds_no_position_twice():
    model, stream = fit(), stream_of(DEV)
    exact = evaluate(model, stream)
    assert evaluate(model, stream, sample=exact.positions) == evaluate(model, stream, sample=10**9) == exact
    first, again, other = (evaluate(model, stream, sample=30, seed=seed) for seed in (5, 5, 6))
    assert first == again and first.nll != other.nll and first.positions == other.positions == 30
    # all but one position: the loss that is left out is that of one position, whichever it is
    left_out = exact.nll - evaluate(model, stream, sample=exact.positions - 1).nll
    X, Y = windows(DEV, 2)
    losses = -log_probabilities_of_all(model, X)[np.arange(len(Y)), Y]
    assert np.min(np.abs(losses - left_out)) < 1e-10


def test_the_order_of_documents_does_not_change_an_evaluation():
    one, other = evaluate(fit(2), stream_of(DEV)), evaluate(fit(2), stream_of(DEV[::-1]))
    np.testing.assert_allclose(one.nll, other.nll, rtol=1e-13)


# A text, position by position


@pytest.mark.parametrize("eos", [False, True])
def test_a_text_is_read_in_its_order_and_says_where_its_positions_stand(eos):
    stream = stream_of(DEV)
    text = read_text(stream, 3, eos=eos)
    X, Y = windows(DEV, 3, eos=eos)
    np.testing.assert_array_equal(text.X, X)
    np.testing.assert_array_equal(text.Y, Y)
    np.testing.assert_array_equal(stream[text.past.places], Y)
    assert np.all(np.diff(text.past.places) > 0) and (PAD in text.Y) == eos
    some = text.past.take(np.array([5, 2]))
    assert some.places.tolist() == text.past.places[[5, 2]].tolist() and some.stream is stream


def test_histories_are_the_tokens_before_across_documents_and_nothing_before_the_text():
    stream = stream_of(DEV, np.uint8)
    places = np.array([1, 2, 7, len(stream) - 1, 3])
    found = histories(Past(stream, places), 6)
    assert found.shape == (5, 6)
    for row, place in zip(found, places, strict=True):
        assert row.tolist() == [int(stream[place - w]) if place >= w else -1 for w in range(1, 7)]
    assert (found == -1).any() and (found[3] == PAD).any()


# What is refused


def test_no_positions_have_no_log_probabilities():
    assert log_probabilities(fit(2), np.zeros((0, 2), int), np.zeros(0, int)).shape == (0,)


# Attribution


@pytest.mark.slow
@pytest.mark.parametrize("kind, dtype", [("cat", np.float64), ("sum", np.float32), ("sum", np.float64), ("cat", np.float32)])
def test_attribution_equals_the_loop_over_context_tokens(kind, dtype):
    model, exact = fit(3, kind, dtype=dtype), fit(3, kind)
    X, Y = windows(DEV, 3)
    why = explain(model, X, Y)
    log_P = log_probabilities_of_all(exact, X)
    for m, (x, y) in enumerate(zip(X, Y, strict=True)):
        for k in range(3):
            row = np.asarray(exact.tables[k])[x[k]]
            tolerance = 30 * TOLERANCE[dtype]  # logits of order 10, three of them
            assert why.logits[m, k] == pytest.approx(row[y], abs=tolerance)
            assert why.evidence[m, k] == pytest.approx(row[y] - sum(np.exp(log_P[m]) * row), abs=tolerance)
        assert why.log_probability[m] == pytest.approx(log_P[m, y], abs=30 * TOLERANCE[dtype])


@pytest.mark.slow
def test_the_attribution_of_a_context_of_two_is_that_worked_by_hand():
    # logits (log 3, 0) + (0, 0): probabilities (3/4, 1/4); the farther token says nothing
    table = jax.device_put(np.log([[3.0, 1.0], [1.0, 1.0]]))
    why = explain(token_model((table, table), "sum", True), np.array([[0, 1]]), np.array([0]))
    np.testing.assert_allclose(why.logits, [[np.log(3), 0]], rtol=1e-14)
    np.testing.assert_allclose(why.evidence, [[np.log(3) / 4, 0]], rtol=1e-14)
    np.testing.assert_allclose(why.log_probability, [np.log(3 / 4)], rtol=1e-14)


@pytest.mark.slow
def test_adding_a_constant_to_a_row_changes_logits_but_no_evidence():
    model = fit(2)
    X, Y = windows(DEV, 2)
    shifted = token_model(
        (jax.device_put(np.asarray(model.tables[0]) + 4.0 * np.eye(N)[:, 1:2]), model.tables[1]), "cat", False
    )
    before, after = explain(model, X, Y), explain(shifted, X, Y)
    np.testing.assert_allclose(after.logits[:, 0] - before.logits[:, 0], 4.0 * (X[:, 0] == 1), rtol=0, atol=1e-11)
    np.testing.assert_allclose(after.evidence, before.evidence, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_evidence_is_zero_on_average_over_the_model_s_own_predictions():
    model = fit(2)
    x = np.array([2, 1])
    why = explain(model, np.tile(x, (N, 1)), np.arange(N))
    np.testing.assert_allclose(np.exp(why.log_probability) @ why.evidence, 0, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_evidence_is_summed_by_token_and_a_row_that_no_token_changes_is_of_no_token():
    why = explain(fit(3), *windows(DEV, 3))
    by_token = why.by_token(3)
    assert (why.names, why.tokens) == (("offset 1", "offset 2", "offset 3"), (1, 2, 3))
    assert (by_token.names, by_token.tokens) == (("1 back", "2 back", "3 back"), (1, 2, 3))
    np.testing.assert_array_equal(by_token.logits, why.logits)
    np.testing.assert_array_equal(by_token.evidence, why.evidence)

    why = explain(unigram_model(COUNTS), *windows(DEV, 1))
    assert (why.names, why.tokens) == (("unigram",), (None,))
    by_token = why.by_token(1)
    assert by_token.names == ("1 back", "no token")
    np.testing.assert_array_equal(by_token.logits[:, 0], 0)
    np.testing.assert_array_equal(by_token.logits[:, 1], why.logits[:, 0])


# The scaling assumption


@pytest.mark.parametrize(
    "kind, K, eos, dtype",
    [
        ("sum", 2, False, np.float64),
        ("cat", 3, True, np.float32),
        *(pytest.param(*c, marks=SLOW) for c in (("cat", 1, False, np.float64), ("cat", 3, True, np.float64))),
    ],
)
def test_mean_cooccurrences_equal_the_loop_of_equations_11_to_13(kind, K, eos, dtype):
    E, F, _ = language_model(TRAIN, K, N, kind, eos=eos)
    X, _ = windows(TRAIN, K, eos=eos)
    fast = log_mean_cooccurrences(fit(K, kind, eos, dtype), target_counts(COUNTS, eos=eos), X)
    assert fast.dtype == dtype
    slow = log_mean_cooccurrences_loop(features(X, E, kind), F, K)
    np.testing.assert_allclose(fast, slow, rtol=0, atol=10 * TOLERANCE[dtype])


def test_mean_cooccurrences_at_k_1_without_noise_are_the_mean_rows_of_the_counts():
    C = np.array([[2, 1, 3], [4, 1, 1], [1, 5, 2]], np.int32)
    model = explicit_language_model((C,), features="cat", eos=True, noise=False, dtype=jnp.float64)
    X = np.array([[0], [1], [1], [1]])
    np.testing.assert_allclose(np.exp(log_mean_cooccurrences(model, C.sum(axis=0), X)), (C[0] + 3 * C[1]) / 4, rtol=1e-13)


def test_the_spread_of_partition_functions_at_k_1_is_that_of_the_counts_of_tokens():
    C = np.array([[2, 1, 3], [4, 1, 1], [1, 5, 6]], np.int32)
    model = explicit_language_model((C,), features="cat", eos=True, noise=False, dtype=jnp.float64)
    X, n = np.array([[0], [1], [2]]), np.array([1, 4, 2])
    expected = np.repeat(np.log(C.sum(axis=1)), n).std()
    np.testing.assert_allclose(partition_spread(model, X, n), expected, rtol=1e-12)
    np.testing.assert_allclose(partition_spread(model, np.repeat(X, n, axis=0)), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_the_spread_of_partition_functions_equals_the_loop_over_contexts(kind):
    model, (X, _) = fit(3, kind), windows(TRAIN, 3)
    log_Z = [np.log(sum(np.exp(sum(float(model.tables[k][x[k], i]) for k in range(3))) for i in range(N))) for x in X]
    np.testing.assert_allclose(partition_spread(model, X), np.std(log_Z), rtol=1e-9)


def test_mean_cooccurrences_do_not_depend_on_the_order_of_more_contexts_than_a_block_holds():
    rng = np.random.default_rng(5)
    tables = tuple(jax.device_put(rng.normal(size=(12, 12))) for _ in range(3))
    model, f = token_model(tables, "cat", True), np.sum(np.exp(tables), axis=(0, 1)) / 3
    X = rng.integers(0, 12, (2000, 3))
    assert len(np.unique(X, axis=0)) > 2 * 512
    mean = np.mean([np.exp(sum(np.asarray(t)[j] for t, j in zip(tables, x, strict=True))) for x in X], axis=0)
    expected = (np.log(mean) + 2 * np.log(3 * f)) / 3
    for contexts in (X, X[::-1]):
        np.testing.assert_allclose(log_mean_cooccurrences(model, f, contexts), expected, rtol=0, atol=1e-12)


def scattered_points():
    rng = np.random.default_rng(6)
    f = rng.integers(1, 5000, 60)
    return f, 0.8 * np.log(f) + 1.5 + rng.normal(size=60)


def test_the_fitted_line_is_scipy_s():
    f, log_means = scattered_points()
    expected: Any = linregress(np.log(f), log_means)
    line = fit_scaling(f, log_means)
    # two least-squares routines on 60 points of condition number 10
    np.testing.assert_allclose(line, [expected.slope, expected.intercept, expected.rvalue], rtol=1e-10)
    np.testing.assert_allclose(fit_scaling(f, log_means.astype(np.float32)), line, rtol=1e-5)


def test_outputs_never_seen_are_no_points_of_the_line():
    f, log_means = scattered_points()
    with_unseen = fit_scaling(np.append(f, [0, 0]), np.append(log_means, [99.0, -np.inf]))
    np.testing.assert_allclose(with_unseen, fit_scaling(f, log_means), rtol=1e-14)


def test_a_larger_text_moves_the_line_but_keeps_its_slope():
    f, log_means = scattered_points()
    line, larger = fit_scaling(f, log_means), fit_scaling(10 * f, log_means + np.log(10))
    np.testing.assert_allclose([larger.slope, larger.correlation], [line.slope, line.correlation], rtol=1e-10)
    np.testing.assert_allclose(larger.intercept, line.intercept + (1 - line.slope) * np.log(10), rtol=1e-10)

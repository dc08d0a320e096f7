"""The optimum of the training loss, against loops over positions, autodiff, iterative scaling, scikit-learn and SciPy.

Tolerances: losses and gradients per position are sums of 600 numbers of order 1, divided by 600: 1e-13 leaves a factor of 400
over eps in float64. Where two minimisations are compared, the loss above the optimum is of second order in the gradient:
a KKT residual of 1e-8 leaves less than 1e-12, and probabilities agree to some 1e-6.
"""

import dataclasses
import functools
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from reference import (
    features,
    gradient_of_loss,
    log_softmax,
    misplaced_cooccurrences,
    negative_log_likelihood,
    random_documents,
    scaling_sweep,
    stream_of,
    windows,
)
from sklearn.linear_model import LogisticRegression

from jexplicit import contexts, count, evaluate, explicit_language_model, token_model
from jexplicit.lm.core.softmax import negative_log_likelihood_from_counts
from jexplicit.lm.fits.gradient import kkt_residual
from jexplicit.lm.fits.optimum import (
    bigram_optimum,
    context_pairs,
    find_optimum,
    initial_state,
    loss_and_gradient,
    make_problem,
    minimization_step,
)
from jexplicit.runs.devices import data_mesh

pytestmark = pytest.mark.slow

N, M = 4, 600
KINDS = pytest.mark.parametrize("kind", ["sum", "cat"])


@functools.cache
def positions():
    """Contexts and targets in which every token occurs with every other, so that the optimum is finite."""
    rng = np.random.default_rng(0)
    X = rng.choice(N, (M, 2), p=[0.4, 0.3, 0.2, 0.1])
    Y = (X[:, 0] * X[:, 1] + rng.choice(N, M, p=[0.4, 0.3, 0.2, 0.1])) % N  # depends on both tokens, and not additively
    return X, Y


@functools.cache
def counted():
    """Counts and context pairs of the positions."""
    X, Y = positions()
    counts = tuple(table_of(X[:, k], Y) for k in range(2))
    assert min(C.min() for C in counts) > 0
    return counts, table_of(X[:, 0], X[:, 1])


def table_of(a, b):
    return np.bincount(a * N + b, minlength=N * N).reshape(N, N)


def random_model(kind, K=2, seed=0, scale=1.0, dtype: Any = np.float64):
    U = [np.random.default_rng(seed + k).normal(size=(N, N)) * scale for k in range(1 if kind == "sum" else K)]
    tables = tuple(jnp.asarray(block, dtype) for block in U)
    return token_model(tables * K if kind == "sum" else tables, kind, True)


def dense(model):
    """Features of the positions and the decoder U that the model's tables are the blocks of."""
    X, Y = positions()
    H = features(X[:, : model.radius], np.eye(N), model.features)
    return H, np.concatenate(unique_tables(model)), Y


def unique_tables(model):
    return model.tables[:1] if model.features == "sum" else model.tables


def probabilities(model):
    H, U, _ = dense(model)
    return np.exp([log_softmax(row) for row in H @ U])


@functools.cache
def found(kind, K: Any = 2, **options):
    return find_optimum(random_model(kind, K), *counted(), **{"iterations": 300, "tolerance": 1e-8} | options)


@pytest.mark.parametrize("eos", [False, True])
def test_context_pairs_equal_the_loop_over_positions(eos):
    documents = random_documents(0, 30, 6, 9)
    expected = np.zeros((6, 6), int)
    for x in windows(documents, 2, eos=eos)[0]:
        expected[x[0], x[1]] += 1
    np.testing.assert_array_equal(context_pairs(stream_of(documents), 6, eos=eos), expected)


@pytest.mark.parametrize(
    "kind, K, dtype, tolerance",  # float32: 16 eps
    [*product(["sum", "cat"], [1, 2], [np.float64], [1e-13]), ("sum", 2, np.float32, 2e-6), ("cat", 2, np.float32, 2e-6)],
)
def test_loss_and_gradient_equal_the_loop_over_positions_and_automatic_differentiation(kind, K, dtype, tolerance):
    model = random_model(kind, K, dtype=dtype)
    loss, G = loss_and_gradient(make_problem(model, *counted()), unique_tables(model))
    H, U, Y = dense(model)

    def mean_loss(U):
        return -jax.nn.log_softmax(jnp.asarray(H) @ U)[np.arange(M), Y].mean()

    assert loss.dtype == G[0].dtype == dtype
    np.testing.assert_allclose(loss, negative_log_likelihood(H, U, Y) / M, rtol=tolerance)
    for expected in (gradient_of_loss(H, U, Y) / M, jax.jit(jax.grad(mean_loss))(jnp.asarray(U, np.float64))):
        np.testing.assert_allclose(np.concatenate(G), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind, K, eos", [("sum", 1, True), ("sum", 2, False), ("cat", 2, True)])
def test_loss_and_residual_equal_those_of_the_text(kind, K, eos):
    stream = stream_of(random_documents(1, 40, 6, 9))
    counts = count(stream, radius=2, vocab_size=6)
    start = explicit_language_model(counts, features=kind, radius=K, eos=eos, dtype=jnp.float64)
    measured = find_optimum(start, counts, context_pairs(stream, 6, eos=eos), iterations=0)
    X, Y = contexts(stream, K, eos=eos)
    text = evaluate(start, stream)
    np.testing.assert_allclose(measured.loss, text.nll / text.positions, rtol=1e-13)
    np.testing.assert_allclose(measured.kkt_residual, kkt_residual(start, X, Y, mesh=data_mesh(1)), rtol=1e-12)
    assert measured.iterations == 0


def test_sum_is_cat_with_its_tables_tied_and_a_constant_of_a_row_changes_nothing():
    model = random_model("sum")
    loss, (G,) = loss_and_gradient(make_problem(model, *counted()), model.tables[:1])
    tied = dataclasses.replace(model, features="cat")
    loss_of_cat, G_of_cat = loss_and_gradient(make_problem(tied, *counted()), tied.tables)
    np.testing.assert_allclose(loss, loss_of_cat, rtol=1e-14)
    np.testing.assert_allclose(G, G_of_cat[0] + G_of_cat[1], rtol=0, atol=1e-15)
    model = random_model("cat")
    problem = make_problem(model, *counted())
    loss, G = loss_and_gradient(problem, model.tables)
    shifted_loss, shifted_G = loss_and_gradient(problem, (model.tables[0].at[2].add(500.0), model.tables[1]))
    np.testing.assert_allclose(shifted_loss, loss, rtol=1e-11)  # 500 eps
    np.testing.assert_allclose(np.stack(shifted_G), np.stack(G), rtol=0, atol=1e-12)


@KINDS
def test_at_the_optimum_the_gradient_over_positions_is_zero(kind):
    best = found(kind)
    assert best.kkt_residual <= 1e-8
    H, U, Y = dense(best.model)
    assert misplaced_cooccurrences(H, U, Y, 2) <= 1.001e-8


@KINDS
def test_the_optimum_does_not_depend_on_the_start(kind):
    other = find_optimum(random_model(kind, seed=5, scale=4.0), *counted(), iterations=300, tolerance=1e-8)
    np.testing.assert_allclose(other.loss, found(kind).loss, rtol=0, atol=1e-12)
    np.testing.assert_allclose(probabilities(other.model), probabilities(found(kind).model), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found(kind, memory=10).loss, found(kind).loss, rtol=0, atol=1e-12)


@KINDS
def test_iterative_scaling_descends_to_the_same_optimum(kind):
    H, U, Y = dense(random_model(kind))
    losses = [negative_log_likelihood(H, U, Y) / M]
    for _ in range(40):
        U = scaling_sweep(H, U, Y, 2)
        losses.append(negative_log_likelihood(H, U, Y) / M)
    assert np.all(np.diff(losses) < 1e-14)  # every sweep lowers the loss, up to its rounding
    best = found(kind).loss
    assert best - 1e-12 < losses[-1] < best + 1e-4  # 40 sweeps have converged to some digits, and never get below


@KINDS
def test_logistic_regression_of_scikit_learn_has_the_same_optimum(kind):
    H, _, Y = dense(random_model(kind))
    library = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(H, Y)
    log_p = library.predict_log_proba(H)
    best = found(kind)
    np.testing.assert_allclose(-log_p[np.arange(M), Y].mean(), best.loss, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.exp(log_p), probabilities(best.model), rtol=0, atol=1e-5)  # sqrt of the loss's tolerance


@KINDS
def test_lbfgs_of_scipy_has_the_same_optimum(kind):
    H, U, Y = dense(random_model(kind))

    def loss_and_gradient_of(u):
        log_p = [log_softmax(row) for row in H @ u.reshape(U.shape)]
        residual = np.exp(log_p)
        residual[np.arange(M), Y] -= 1
        return -np.array(log_p)[np.arange(M), Y].mean(), (H.T @ residual).ravel() / M

    library = scipy.optimize.minimize(loss_and_gradient_of, U.ravel(), jac=True, method="L-BFGS-B", options={"gtol": 1e-8})
    np.testing.assert_allclose(library.fun, found(kind).loss, rtol=0, atol=1e-9)  # it stops at a relative change of 2e-9


def test_at_radius_1_the_optimum_is_the_conditional_relative_frequencies():
    counts, _ = counted()
    C = counts[0]
    closed, iterated = bigram_optimum(counts, eos=True, dtype=jnp.float64), found("cat", K=1)
    entropy = -sum(c * np.log(c / row.sum()) for row in C for c in row) / M
    np.testing.assert_allclose(closed.loss, entropy, rtol=1e-13)
    np.testing.assert_allclose(iterated.loss, entropy, rtol=0, atol=1e-12)
    np.testing.assert_allclose(probabilities(closed.model), probabilities(iterated.model), rtol=0, atol=1e-6)
    np.testing.assert_allclose(jnp.exp(closed.model.tables[0]), C / C.sum(axis=1, keepdims=True), rtol=1e-14)
    assert (closed.kkt_residual, closed.iterations) == (0, 0)


def test_the_bigram_optimum_is_the_infimum_where_pairs_never_occur():
    C = np.array([[3, 0, 1, 0], [0, 5, 0, 0], [0, 0, 0, 0], [1, 0, 2, 3]])
    best = bigram_optimum((C,), eos=True, floor=1e-6, dtype=jnp.float64)
    assert np.isfinite(best.model.tables[0]).all()
    above = negative_log_likelihood_from_counts(best.model.tables[0], C) - best.loss * C.sum()
    assert 0 < above <= N**2 * 1e-6
    np.testing.assert_allclose(best.model.tables[0][2], -np.log(N), rtol=1e-14)  # a context that never occurs
    infimum = [best.loss * C.sum(), negative_log_likelihood_from_counts(jnp.log(jnp.asarray(C, float)), C)]
    np.testing.assert_allclose(*infimum, rtol=1e-14)


def test_the_bigram_optimum_predicts_ends_of_documents_on_request():
    counts = (np.array([[0, 2], [1, 1]]),)
    np.testing.assert_allclose(bigram_optimum(counts).loss, 0, atol=1e-15)  # token 1 is the only target
    np.testing.assert_allclose(bigram_optimum(counts, eos=True).loss, 2 * np.log(2) / 4, rtol=1e-14)


def test_where_pairs_never_occur_the_infimum_is_approached_from_above():
    stream = stream_of(random_documents(2, 40, N, 6))
    counts, pairs = count(stream, radius=2, vocab_size=N), context_pairs(stream, N)
    start = explicit_language_model(counts, features="cat", dtype=jnp.float64)
    history = []
    end = find_optimum(start, counts, pairs, iterations=60, tolerance=0, on_iteration=history.append)
    losses = [entry["loss"] for entry in history]
    assert np.all(np.diff(losses) < 1e-14)
    assert end.kkt_residual < history[0]["kkt_residual"] / 1000
    p_pad = np.exp([log_softmax(row)[0] for row in np.array(end.model.tables[0] + end.model.tables[1])])
    assert p_pad.max() < 1e-4  # without eos, `<pad>` never occurs
    assert np.isfinite(np.stack(end.model.tables)).all()


def test_a_minimisation_stops_at_its_tolerance_or_its_last_iteration_and_reports_on_the_way():
    history, reports = [], []
    watch: Any = {"on_iteration": history.append, "progress": lambda *report: reports.append(report)}
    best = find_optimum(random_model("cat"), *counted(), iterations=300, tolerance=1e-3, **watch)
    assert 1 < best.iterations < 300
    assert [entry["iteration"] for entry in history] == list(range(best.iterations + 1))
    assert (best.loss, best.kkt_residual) == (history[-1]["loss"], history[-1]["kkt_residual"])
    assert best.kkt_residual <= 1e-3 < history[-2]["kkt_residual"]
    assert reports == [(done, 300) for done in range(1, best.iterations + 1)]
    assert found("cat", iterations=3).iterations == 3


def test_float32_tables_stay_float32_and_end_where_rounding_hides_what_they_gain():
    best, rounded = (
        find_optimum(random_model("cat", dtype=np.float32), *counted(), iterations=10_000, tolerance=t) for t in (1e-6, 0)
    )
    assert all(table.dtype == jnp.float32 for table in best.model.tables) and best.kkt_residual <= 1e-6
    np.testing.assert_allclose(best.loss, found("cat").loss, rtol=1e-6)  # 8 eps
    assert rounded.iterations < 10_000 and rounded.loss == pytest.approx(found("cat").loss, rel=1e-5)


def test_a_step_compiles_once_and_leaves_the_start_as_it_was():
    step: Any = minimization_step
    model = random_model("cat", seed=9)
    problem = make_problem(model, *counted())
    state, info = initial_state(problem, model.tables, memory=5)  # a memory of its own: nothing is compiled for it yet
    compiled = step._cache_size()
    for _ in range(3):
        state, info = step(problem, state, memory=5)
    assert step._cache_size() == compiled + 1
    np.testing.assert_array_equal(np.stack(model.tables), np.stack(random_model("cat", seed=9).tables))
    loss, _ = loss_and_gradient(problem, state.blocks)
    np.testing.assert_allclose(info["loss"], loss, rtol=1e-14)


def test_tokens_of_a_context_that_agree_on_no_output_are_refused_in_float32():
    far = np.eye(N) * 100  # exp(-100) is below the range of float32
    tables = [jnp.asarray(np.roll(far, shift, axis=1)) for shift in range(2)]
    start = token_model(tuple(tables), "cat", True)
    H, U, Y = dense(start)
    loss = find_optimum(start, *counted(), iterations=0).loss
    np.testing.assert_allclose(loss, negative_log_likelihood(H, U, Y) / M, rtol=1e-13)
    with pytest.raises(FloatingPointError, match="agree on no output.*float32.*float64"):
        find_optimum(token_model([table.astype(jnp.float32) for table in tables], "cat", True), *counted())

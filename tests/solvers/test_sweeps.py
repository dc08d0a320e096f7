"""Sweeps of iterative scaling, and with a bound on the curvature."""

import functools

import jax
import numpy as np
import pytest
import reference
from interruption import resumed_after
from sklearn.linear_model import LogisticRegression

from jexplicit.solvers.sweeps import ScalingProblem, curvature_bound_sweeps, iterative_scaling_sweeps, scaling_sweep

M, D, N = 300, 6, 3
SLOW, REST = pytest.mark.slow, [(1.0, np.float64), (5.0, np.float32)]
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}


def problem(K=None, *, seed=0, M=M):
    """Positive features, of norm K or of norms that differ, and labels that no layer predicts perfectly."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(M) % N)
    H = rng.gamma(1.0, 1.0, (M, D)) + 0.5 * rng.random((N, D))[labels] + 0.05
    if K is not None:
        H *= K / H.sum(axis=1, keepdims=True)
    return H, reference.one_hot(labels, N), labels


def start(H, Y, K=2.0):
    return jax.device_put(reference.explicit_solution(np.asarray(H).T @ np.asarray(Y), K))


def log_predictions(logits):
    return np.array([reference.log_softmax(row) for row in np.asarray(logits)])


@pytest.mark.parametrize(
    "K, dtype", [(5.0, np.float64), (1.0, np.float32), *(pytest.param(*case, marks=SLOW) for case in REST)]
)
def test_a_sweep_is_the_loop_over_examples(K, dtype):
    H, Y, labels = problem(K)
    U = np.random.default_rng(1).normal(size=(D, N))
    expected = reference.scaling_sweep(H, U, labels, K)
    F = H.T @ Y
    H, Y, U, F = (jax.device_put(x.astype(dtype)) for x in (H, Y, U, F))
    problem_now = ScalingProblem(H, Y, F, K)
    np.testing.assert_allclose(scaling_sweep(U, problem_now)[0], expected, rtol=0, atol=TOLERANCE[dtype])
    fitted = iterative_scaling_sweeps(H, Y, U, sweeps=1)
    assert fitted.U.dtype == dtype
    np.testing.assert_allclose(fitted.U, expected, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(fitted.intercept, 0)  # rows of one norm leave nothing for a slack feature


def test_a_sweep_with_the_slack_feature_is_a_sweep_of_features_with_one_more():
    H, Y, labels = problem()
    U, wide = np.random.default_rng(1).normal(size=(D, N)), reference.slack_feature(H)
    K = max(H.sum(axis=1))
    U_wide = reference.scaling_sweep(wide, np.vstack([U, np.zeros((1, N))]), labels, K)
    fitted = iterative_scaling_sweeps(jax.device_put(H), jax.device_put(Y), jax.device_put(U), sweeps=1)
    np.testing.assert_allclose(
        log_predictions(fitted.logits(jax.device_put(H))), log_predictions(wide @ U_wide), rtol=0, atol=1e-11
    )
    np.testing.assert_allclose(fitted.intercept, K * U_wide[-1], rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "K, begin",
    [(None, "explicit"), *(pytest.param(*c, marks=SLOW) for c in ((None, "random"), (4.0, "explicit"), (4.0, "random")))],
)
def test_every_sweep_lowers_the_loss(K, begin):
    H, Y, _ = map(jax.device_put, problem(K))
    U = {"explicit": start(H, Y), "random": jax.device_put(np.random.default_rng(2).normal(size=(D, N)))}
    losses = iterative_scaling_sweeps(H, Y, U[begin], sweeps=100).losses
    assert len(losses) == 101 and np.all(np.diff(losses) <= 1e-13)
    assert losses[-1] < losses[0] - 1e-3  # and it does fall


@pytest.mark.parametrize("begin", ["zeros", pytest.param("explicit", marks=SLOW)])
def test_scaling_reaches_scikit_learns_logistic_regression(begin):
    H, Y, labels = problem()
    U = jax.device_put(np.zeros((D, N))) if begin == "zeros" else start(H, Y)
    fitted = iterative_scaling_sweeps(jax.device_put(H), jax.device_put(Y), U, sweeps=6_000)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(H, labels)
    ours = log_predictions(fitted.logits(jax.device_put(H)))
    np.testing.assert_allclose(ours, oracle.predict_log_proba(H), rtol=0, atol=1e-4)  # from 0.1 to 1 apart at the start
    best = -oracle.predict_log_proba(H)[np.arange(M), labels].mean()
    assert fitted.losses[-1] == pytest.approx(best, abs=1e-8)  # quadratic in the distance


def signed(dtype=np.float64):
    """Features of both signs and of very different sizes, with a constant."""
    rng = np.random.default_rng(4)
    labels = rng.permutation(np.arange(M) % N)
    X = rng.normal(size=(M, D)) + 0.7 * rng.normal(size=(N, D))[labels]
    X = np.concatenate([X * np.logspace(-1, 1, D), np.ones((M, 1))], axis=1)
    return jax.device_put(np.asarray(X, dtype)), jax.device_put(np.asarray(reference.one_hot(labels, N), dtype)), labels


def test_a_sweep_is_the_formula():
    X, Y, _ = signed()
    ridge, U = 0.01, np.random.default_rng(5).normal(size=(D + 1, N))
    A = np.asarray(X.T @ X) / M
    penalty = ridge * np.trace(A) / (D + 1)
    P = np.exp(log_predictions(np.asarray(X) @ U))
    uphill = np.asarray(X).T @ (np.asarray(Y) - P) / M - penalty * U
    expected = U + 2 * np.linalg.inv(A + 2 * penalty * np.eye(D + 1)) @ uphill
    fitted = curvature_bound_sweeps(X, Y, jax.device_put(U), sweeps=1, ridge=ridge)
    np.testing.assert_allclose(fitted.U, expected, rtol=0, atol=1e-10)  # a condition number of about 100
    loss = -(np.asarray(Y) * np.log(P)).sum() / M + penalty / 2 * (U**2).sum()
    np.testing.assert_allclose(fitted.losses[0], loss, rtol=1e-12)
    least_squares = np.linalg.lstsq(np.asarray(X), 2 * (np.asarray(Y) - 1 / N), rcond=None)[0]
    first = curvature_bound_sweeps(X, Y, sweeps=1, ridge=1e-12)  # from zero
    np.testing.assert_allclose(first.U, least_squares, rtol=0, atol=1e-7)  # the ridge moves it by about 1e-8


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float64, 1e-13), (np.float32, 1e-6)])
@pytest.mark.parametrize("ridge", [1e-4, 1e-1])
def test_every_sweep_with_the_bound_lowers_the_loss(dtype, rounding, ridge):
    X, Y, _ = signed(dtype)
    begin = 3 * np.random.default_rng(6).normal(size=(D + 1, N))
    losses = curvature_bound_sweeps(X, Y, jax.device_put(np.asarray(begin, dtype)), sweeps=100, ridge=ridge).losses
    assert np.all(np.diff(losses) <= rounding * losses[0]) and losses[-1] < losses[0] / 2


def test_sweeps_reach_scikit_learns_logistic_regression():
    X, Y, labels = signed()
    fitted = curvature_bound_sweeps(X, Y, sweeps=3000, ridge=1e-12)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(np.asarray(X[:, :-1]), labels)
    expected = oracle.predict_log_proba(np.asarray(X[:, :-1]))
    # where probabilities are 1e-20 logarithms say little; all of them are compared as probabilities
    np.testing.assert_allclose(np.exp(log_predictions(fitted.logits(X))), np.exp(expected), rtol=0, atol=1e-5)


def test_interrupted_sweeps_continue_to_the_same_bits(tmp_path):
    run = functools.partial(curvature_bound_sweeps, *signed()[:2], sweeps=6)
    resumed, whole = resumed_after(4, run, tmp_path, "on_sweep"), run()
    np.testing.assert_array_equal(resumed.U, whole.U)
    np.testing.assert_array_equal(resumed.losses, whole.losses)

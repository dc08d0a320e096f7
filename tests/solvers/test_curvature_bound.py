"""Sweeps with the curvature bound: one sweep by the formula, monotone, and the known optimum. float64 but where it says so."""

import functools

import jax
import numpy as np
import pytest
import reference
from interruption import resumed_after
from sklearn.linear_model import LogisticRegression

from jexplicit.solvers.sweeps import curvature_bound_sweeps

M, D, N = 300, 6, 3


def log_predictions(logits):
    return np.array([reference.log_softmax(row) for row in np.asarray(logits)])


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
def test_every_sweep_lowers_the_loss(dtype, rounding, ridge):
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

"""Sweeps and least squares, in memory and in blocks: formulas, scikit-learn and SciPy; one device and eight.

Tolerances: sums over some hundred products of order 1 keep 6 digits in float32 and 12 in float64.
"""

import functools

import jax
import numpy as np
import pytest
import reference
from interruption import resumed_after
from scipy.special import log_softmax
from sklearn.linear_model import Ridge

from jexplicit.features import fourier_directions, fourier_features
from jexplicit.runs.devices import data_mesh
from jexplicit.solvers.sweeps import (
    choose_ridge,
    curvature_bound_sweeps,
    gram_least_squares,
    gram_matrix,
    gram_softmax_sweeps,
    iterative_scaling_sweeps,
    split_examples,
    streamed_logits,
    tempered,
)

M, D, N = 300, 6, 3
IDENTITY = jax.tree_util.Partial(lambda X: X)
device = jax.device_put


def problem(K=None):
    """Positive features, of norm K or of norms that differ, and labels that no layer predicts perfectly."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(M) % N)
    H = rng.gamma(1.0, 1.0, (M, D)) + 0.5 * rng.random((N, D))[labels] + 0.05
    if K is not None:
        H *= K / H.sum(axis=1, keepdims=True)
    return H, reference.one_hot(labels, N), labels


def log_predictions(logits):
    return log_softmax(np.asarray(logits), axis=1)


@pytest.mark.parametrize("K, dtype, atol", [(5.0, np.float64, 1e-12), (1.0, np.float32, 1e-5)])
def test_a_sweep_of_scaling_is_the_loop_over_examples(K, dtype, atol):
    H, Y, labels = problem(K)
    U = np.random.default_rng(1).normal(size=(D, N))
    fitted = iterative_scaling_sweeps(*(device(x.astype(dtype)) for x in (H, Y, U)), sweeps=1)
    assert fitted.U.dtype == dtype
    np.testing.assert_allclose(fitted.U, reference.scaling_sweep(H, U, labels, K), rtol=0, atol=atol)
    np.testing.assert_array_equal(fitted.intercept, 0)  # rows of one norm leave nothing for a slack feature


def test_a_sweep_with_the_slack_feature_is_a_sweep_of_features_with_one_more():
    H, Y, labels = problem()
    U, K = np.random.default_rng(1).normal(size=(D, N)), max(H.sum(axis=1))
    wide = np.hstack([H, K - H.sum(axis=1, keepdims=True)])  # rows of one norm
    U_wide = reference.scaling_sweep(wide, np.vstack([U, np.zeros((1, N))]), labels, K)
    fitted = iterative_scaling_sweeps(*map(device, (H, Y, U)), sweeps=1)
    found, expected = log_predictions(fitted.logits(device(H))), log_predictions(wide @ U_wide)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(fitted.intercept, K * U_wide[-1], rtol=0, atol=1e-11)
    losses = [-log_P[np.arange(M), labels].mean() for log_P in (log_predictions(H @ U), expected)]
    np.testing.assert_allclose(fitted.losses, losses, rtol=1e-12)
    assert losses[1] < losses[0]


def signed():
    """Features of both signs and of very different sizes, with a constant."""
    rng = np.random.default_rng(4)
    labels = rng.permutation(np.arange(M) % N)
    X = rng.normal(size=(M, D)) + 0.7 * rng.normal(size=(N, D))[labels]
    X = np.concatenate([X * np.logspace(-1, 1, D), np.ones((M, 1))], axis=1)
    return device(X), device(np.asarray(reference.one_hot(labels, N), float))


def test_a_sweep_with_the_bound_is_the_formula():
    X, Y = signed()
    ridge, U = 0.01, np.random.default_rng(5).normal(size=(D + 1, N))
    A = np.asarray(X.T @ X) / M
    penalty = ridge * np.trace(A) / (D + 1)
    P = np.exp(log_predictions(np.asarray(X) @ U))
    uphill = np.asarray(X).T @ (np.asarray(Y) - P) / M - penalty * U
    expected = U + 2 * np.linalg.inv(A + 2 * penalty * np.eye(D + 1)) @ uphill
    fitted = curvature_bound_sweeps(X, Y, device(U), sweeps=1, ridge=ridge)
    np.testing.assert_allclose(fitted.U, expected, rtol=0, atol=1e-10)  # a condition number of about 100
    loss = -(np.asarray(Y) * np.log(P)).sum() / M + penalty / 2 * (U**2).sum()
    np.testing.assert_allclose(fitted.losses[0], loss, rtol=1e-12)
    least_squares = np.linalg.lstsq(np.asarray(X), 2 * (np.asarray(Y) - 1 / N), rcond=None)[0]
    first = curvature_bound_sweeps(X, Y, sweeps=1, ridge=1e-12)  # from zero
    np.testing.assert_allclose(first.U, least_squares, rtol=0, atol=1e-7)  # the ridge moves it by about 1e-8


def test_interrupted_sweeps_continue_to_the_same_bits(tmp_path):
    run = functools.partial(curvature_bound_sweeps, *signed(), sweeps=6)
    resumed, whole = resumed_after(4, run, tmp_path, "on_sweep"), run()
    np.testing.assert_array_equal(resumed.U, whole.U)
    np.testing.assert_array_equal(resumed.losses, whole.losses)


# Examples in blocks


def some_examples(M=64, r=4):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, N, M)
    return rng.normal(size=(M, r)) + np.eye(N, r)[labels], np.eye(N)[labels]


def gram_and_blocks(X, Y, **options):
    blocks = split_examples(X, Y, **options)
    return gram_matrix(blocks, IDENTITY), blocks, IDENTITY


def test_the_streamed_gram_is_the_dense_one(devices=8, block=5):
    X, Y = some_examples()
    features = jax.tree_util.Partial(fourier_features, W=fourier_directions(jax.random.key(1), 4, 9).astype(float))
    H, done = np.asarray(features(device(X))), list[tuple[int, int]]()
    blocks = split_examples(X, Y, block=block, mesh=data_mesh(devices))
    gram = gram_matrix(blocks, features, progress=lambda *now: done.append(now))
    assert blocks.X.shape[2] <= block and done[-1] == (blocks.X.shape[1],) * 2
    assert [shard.data.shape[0] for shard in blocks.X.addressable_shards] == [1] * devices  # each on its device
    np.testing.assert_allclose(np.tril(gram.HH), np.tril(H.T @ H), rtol=0, atol=1e-12)
    for part, dense in ((gram.HY, H.T @ Y), (gram.h, H.sum(0)), (gram.y, Y.sum(0)), (gram.M, 64)):
        np.testing.assert_allclose(part, dense, rtol=0, atol=1e-12)


def test_least_squares_are_scikit_learn_s_ridge():
    X, Y = some_examples()
    fit = gram_least_squares(gram_and_blocks(X, Y)[0], ridge=0.3)
    peer = Ridge(alpha=0.3 * np.mean((X - X.mean(0)) ** 2) * len(X)).fit(X, Y)
    np.testing.assert_allclose(fit.U, peer.coef_.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fit.intercept, peer.intercept_, rtol=0, atol=1e-12)


def test_the_ridge_is_that_of_the_lowest_held_out_error():
    """By NumPy, one ridge after the other; a ridge that float32 cannot factorise is passed over."""
    X, Y = some_examples(M=60, r=12)
    H, rest = np.pad(X, [(0, 0), (0, 30)], "wrap"), slice(20, None)  # of 42 features 30 are copies
    C, ridges = np.cov(H[rest].T, bias=True), (1e-12, 1e-4, 0.1, 1.0, 30.0)
    errors = []
    for ridge in ridges:
        centred = H[rest] - H[rest].mean(0)
        U = np.linalg.solve(C + ridge * np.trace(C) / len(C) * np.eye(len(C)), centred.T @ Y[rest] / len(centred))
        errors.append(np.mean((H[:20] @ U + Y[rest].mean(0) - H[rest].mean(0) @ U - Y[:20]) ** 2))
    H, Y = H.astype(np.float32), Y.astype(np.float32)
    gram = gram_and_blocks(H[rest], Y[rest])[0]
    ridge, fit = choose_ridge(gram, ridges, H[:20], Y[:20], IDENTITY)
    assert ridge == ridges[np.argmin(errors)] and 0 < np.argmin(errors) < len(ridges) - 1
    np.testing.assert_array_equal(fit.U, gram_least_squares(gram, ridge=ridge).U)
    for nothing, message in (((), "no ridges"), ((1e-12,), "cannot be factorised with ridge 1e-12")):
        with pytest.raises(ValueError, match=message):
            choose_ridge(gram, nothing, H[:20], Y[:20], IDENTITY)


def test_a_streamed_sweep_is_the_formula_and_sweeps_go_on_from_where_they_start_and_lower_the_loss():
    X, Y = some_examples()
    given = gram_and_blocks(X, Y, block=3, mesh=data_mesh(8))
    whole, first = (gram_softmax_sweeps(*given, sweeps=sweeps) for sweeps in (7, 3))
    rest = gram_softmax_sweeps(*given, first, sweeps=4)
    np.testing.assert_allclose(rest.U, whole.U, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rest.losses, whole.losses[3:], rtol=1e-12)
    assert np.all(np.diff(whole.losses) <= 1e-15)
    centred = X - X.mean(axis=0)
    U, C = np.asarray(first.U), centred.T @ centred / len(X)
    b = np.asarray(first.intercept) + X.mean(axis=0) @ U
    penalty, log_P = 1e-4 * np.trace(C) / len(C), log_softmax(centred @ U + b, axis=1)
    np.testing.assert_allclose(streamed_logits(first, X, IDENTITY), centred @ U + b, rtol=0, atol=1e-12)
    loss = -np.mean(np.sum(Y * log_P, axis=1)) + penalty / 2 * np.sum(U**2)
    assert first.losses[-1] == pytest.approx(loss, rel=1e-12)
    R = Y - np.exp(log_P)
    U = U + 2 * np.linalg.solve(C + 2 * penalty * np.eye(len(C)), centred.T @ R / len(X) - penalty * U)
    fourth = gram_softmax_sweeps(*given, first, sweeps=1)
    np.testing.assert_allclose(fourth.U, U, rtol=0, atol=1e-12)
    cooler, ridge = tempered(first, 0.3, 0.05)  # whose logits are divided, and whose ridge weighs the same
    np.testing.assert_allclose(streamed_logits(cooler, X, IDENTITY), (centred @ np.asarray(first.U) + b) / 0.3, atol=1e-12)
    assert ridge * np.sum(np.square(cooler.U)) == pytest.approx(0.05 * np.sum(np.square(first.U)))
    np.testing.assert_allclose(fourth.intercept, b + 2 * R.mean(axis=0) - X.mean(axis=0) @ U, rtol=0, atol=1e-12)

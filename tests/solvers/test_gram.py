"""Streamed sums, least squares and sweeps: the same as with all features in memory, on one device and on eight.

Tolerances: float32 sums over some hundred products of order 1 keep 6 digits; float64 keeps 12.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from jexplicit.features.random import fourier_directions, fourier_features
from jexplicit.runs.devices import data_mesh
from jexplicit.solvers.sweeps import (
    SoftmaxFit,
    choose_ridge,
    gram_least_squares,
    gram_matrix,
    gram_softmax_sweeps,
    split_examples,
    streamed_logits,
    tempered,
)

SLOW = pytest.mark.slow
IDENTITY = jax.tree_util.Partial(lambda X: X)


def some_examples(M=64, r=4, N=3, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, N, M)
    X = rng.normal(size=(M, r)) + np.eye(N, r)[labels]
    return X.astype(dtype), np.eye(N, dtype=dtype)[labels]


def fourier(r=4, n=9, dtype=jnp.float64):
    return jax.tree_util.Partial(fourier_features, W=fourier_directions(jax.random.key(1), r, n, dtype=dtype))


@pytest.mark.parametrize(
    ("devices", "block"), [(8, 5), *(pytest.param(*case, marks=SLOW) for case in ((None, 1000), (None, 1), (3, 5), (8, 64)))]
)
def test_the_streamed_gram_is_the_dense_one(devices, block):
    X, Y = some_examples()
    features = fourier()
    H = np.asarray(features(jax.device_put(X)))
    done: list[tuple[int, int]] = []
    blocks = split_examples(X, Y, block=block, mesh=data_mesh(devices) if devices else None)
    gram = gram_matrix(blocks, features, progress=lambda *now: done.append(now))
    assert blocks.X.shape[2] <= block and done[-1] == (blocks.X.shape[1],) * 2
    assert [shard.data.shape[0] for shard in blocks.X.addressable_shards] == [1] * (devices or 1)  # each on its device
    np.testing.assert_allclose(np.tril(gram.HH), np.tril(H.T @ H), rtol=0, atol=1e-12)
    for part, dense in ((gram.HY, H.T @ Y), (gram.h, H.sum(0)), (gram.y, Y.sum(0)), (gram.M, 64)):
        np.testing.assert_allclose(part, dense, rtol=0, atol=1e-12)


def test_least_squares_are_scikit_learn_s_ridge():
    from sklearn.linear_model import Ridge

    X, Y = some_examples()
    fit = gram_least_squares(gram_matrix(split_examples(X, Y), IDENTITY), ridge=0.3)
    alpha = 0.3 * np.mean((X - X.mean(0)) ** 2) * len(X)
    peer = Ridge(alpha=alpha).fit(X, Y)
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
    gram = gram_matrix(split_examples(H[rest].astype(np.float32), Y[rest].astype(np.float32)), IDENTITY)
    held_out = H[:20].astype(np.float32), Y[:20].astype(np.float32)
    ridge, fit = choose_ridge(gram, ridges, *held_out, IDENTITY)
    assert ridge == ridges[np.argmin(errors)] and 0 < np.argmin(errors) < len(ridges) - 1
    np.testing.assert_array_equal(fit.U, gram_least_squares(gram, ridge=ridge).U)
    for nothing, message in (((), "no ridges"), ((1e-12,), "cannot be factorised with ridge 1e-12")):
        with pytest.raises(ValueError, match=message):
            choose_ridge(gram, nothing, *held_out, IDENTITY)


def test_a_tempered_layer_is_the_optimum_of_its_ridge_where_the_layer_is_that_of_softmax_of_logits_over_t():
    X, Y = some_examples(M=80)
    T, ridge, blocks = 0.3, 0.05, split_examples(X, Y)
    penalty = ridge * np.mean((X - X.mean(0)) ** 2)

    def loss(flat):
        U, b = flat[:12].reshape(4, 3), flat[12:]
        return -np.mean(np.sum(Y * log_softmax((X @ U + b) / T, axis=1), axis=1)) + penalty / 2 * np.sum(U**2)

    found = minimize(loss, np.zeros(15), tol=1e-10).x
    start, start_ridge = tempered(
        SoftmaxFit(jax.device_put(found[:12].reshape(4, 3)), jax.device_put(found[12:]), ()), T, ridge
    )
    swept = gram_softmax_sweeps(gram_matrix(blocks, IDENTITY), blocks, IDENTITY, start, sweeps=200, ridge=start_ridge)
    np.testing.assert_allclose(swept.U, start.U, rtol=0, atol=1e-4)  # of differences of the loss, by BFGS
    np.testing.assert_allclose(np.ptp(swept.intercept - start.intercept), 0, atol=1e-4)
    np.testing.assert_allclose(streamed_logits(start, X, IDENTITY), (X @ found[:12].reshape(4, 3) + found[12:]) / T)


@pytest.mark.parametrize("devices", [8, pytest.param(None, marks=SLOW)])
def test_sweeps_lower_the_loss_every_time_and_reach_the_optimum(devices):
    X, Y = some_examples(M=200)
    blocks = split_examples(X, Y, block=16, mesh=data_mesh(devices) if devices else None)
    gram = gram_matrix(blocks, IDENTITY)
    fit = gram_softmax_sweeps(gram, blocks, IDENTITY, sweeps=300, ridge=0.01)
    assert np.all(np.diff(fit.losses) <= 1e-15)
    penalty = 0.01 * np.mean((X - X.mean(0)) ** 2)
    U, log_P = np.asarray(fit.U), log_softmax(np.asarray(streamed_logits(fit, X, IDENTITY)), axis=1)
    expected = -np.mean(np.sum(Y * log_P, axis=1)) + penalty / 2 * np.sum(U**2)
    assert fit.losses[-1] == pytest.approx(expected, rel=1e-12)
    R = Y - np.exp(log_P)
    np.testing.assert_allclose(X.T @ R / len(X) - penalty * U, 0, rtol=0, atol=1e-8)
    np.testing.assert_allclose(R.mean(axis=0), 0, rtol=0, atol=1e-8)  # the intercept is not penalised


def test_a_sweep_is_the_formula_and_sweeps_go_on_from_where_they_start():
    X, Y = some_examples()
    blocks = split_examples(X, Y, block=10)
    gram = gram_matrix(blocks, IDENTITY)
    whole = gram_softmax_sweeps(gram, blocks, IDENTITY, sweeps=7)
    first = gram_softmax_sweeps(gram, blocks, IDENTITY, sweeps=3)
    rest = gram_softmax_sweeps(gram, blocks, IDENTITY, first, sweeps=4)
    np.testing.assert_allclose(rest.U, whole.U, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rest.losses, whole.losses[3:], rtol=1e-12)
    centred = X - X.mean(axis=0)
    U, C = np.asarray(first.U), centred.T @ centred / len(X)
    b = np.asarray(first.intercept) + X.mean(axis=0) @ U
    penalty = 1e-4 * np.trace(C) / len(C)
    R = Y - np.exp(log_softmax(centred @ U + b, axis=1))
    U = U + 2 * np.linalg.solve(C + 2 * penalty * np.eye(len(C)), centred.T @ R / len(X) - penalty * U)
    fourth = gram_softmax_sweeps(gram, blocks, IDENTITY, first, sweeps=1)
    np.testing.assert_allclose(fourth.U, U, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fourth.intercept, b + 2 * R.mean(axis=0) - X.mean(axis=0) @ U, rtol=0, atol=1e-12)

"""Iterative scaling and its sister with a bound on the curvature: one sweep by hand, monotone, and the known optimum.

Tolerances: one sweep is some tens of operations in float64, 1e-12. A loss may rise by the rounding of a mean of M terms, 1e-13.
Thousands of sweeps approach the optimum linearly; scikit-learn's own tolerance is set to 1e-10.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from sklearn.linear_model import LogisticRegression

from jexplicit.counts.dense import dense_cooccurrence
from jexplicit.nn.dense import layer_gradient
from jexplicit.solvers.curvature_bound import quadratic_sweeps
from jexplicit.solvers.explicit import explicit_solution
from jexplicit.solvers.iterative_scaling import scaling_sweep, scaling_sweeps

M, D, N = 300, 6, 3
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
    return explicit_solution(dense_cooccurrence(jnp.asarray(H), jnp.asarray(Y)), K)


def log_predictions(logits):
    return np.array([reference.log_softmax(row) for row in np.asarray(logits)])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("K", [1.0, 5.0])
def test_a_sweep_is_the_loop_over_examples(K, dtype):
    H, Y, labels = problem(K)
    U = np.random.default_rng(1).normal(size=(D, N))
    expected = reference.scaling_sweep(H, U, labels, K)
    H, Y, U = (jnp.asarray(x, dtype) for x in (H, Y, U))
    np.testing.assert_allclose(scaling_sweep(H, Y, U, K), expected, rtol=0, atol=TOLERANCE[dtype])
    fitted = scaling_sweeps(H, Y, U, sweeps=1)
    assert fitted.U.dtype == dtype
    np.testing.assert_allclose(fitted.U, expected, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(fitted.intercept, 0)  # rows of one norm leave nothing for a slack feature


def test_a_sweep_with_the_slack_feature_is_a_sweep_of_features_with_one_more():
    H, Y, labels = problem()
    U, wide = np.random.default_rng(1).normal(size=(D, N)), reference.slack_feature(H)
    K = max(H.sum(axis=1))
    U_wide = reference.scaling_sweep(wide, np.vstack([U, np.zeros((1, N))]), labels, K)
    fitted = scaling_sweeps(jnp.asarray(H), jnp.asarray(Y), jnp.asarray(U), sweeps=1)
    np.testing.assert_allclose(
        log_predictions(fitted.logits(jnp.asarray(H))), log_predictions(wide @ U_wide), rtol=0, atol=1e-11
    )
    np.testing.assert_allclose(fitted.intercept, K * U_wide[-1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("begin", ["zeros", "explicit", "random"])
@pytest.mark.parametrize("K", [None, 4.0])
@pytest.mark.parametrize("slack", [None, False])
def test_every_sweep_lowers_the_loss(K, slack, begin):
    H, Y, _ = map(jnp.asarray, problem(K))
    U = {
        "zeros": jnp.zeros((D, N)),
        "explicit": start(H, Y),
        "random": jnp.asarray(np.random.default_rng(2).normal(size=(D, N))),
    }
    losses = scaling_sweeps(H, Y, U[begin], sweeps=100, slack=slack).losses
    assert len(losses) == 101 and np.all(np.diff(losses) <= 1e-13)
    assert losses[-1] < losses[0] - 1e-3  # and it does fall


def test_more_than_the_condition_allows_is_not_monotone():
    """The sweep's 1/K is needed: with ten times the step the loss rises somewhere."""
    H, Y, _ = map(jnp.asarray, problem(4.0))
    U, losses = jnp.zeros((D, N)), []
    for _ in range(30):
        losses.append(-float(jnp.sum(Y * jax.nn.log_softmax(H @ U))))
        U = scaling_sweep(H, Y, U, 0.04)
    assert np.any(np.diff(losses) > 0)


@pytest.mark.parametrize("begin", ["zeros", "explicit"])
def test_scaling_with_slack_reaches_scikit_learns_logistic_regression(begin):
    H, Y, labels = problem()
    U = jnp.zeros((D, N)) if begin == "zeros" else start(H, Y)
    fitted = scaling_sweeps(jnp.asarray(H), jnp.asarray(Y), U, sweeps=6_000)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(H, labels)
    ours = log_predictions(fitted.logits(jnp.asarray(H)))
    np.testing.assert_allclose(ours, oracle.predict_log_proba(H), rtol=0, atol=1e-4)  # from 0.1 to 1 apart at the start
    best = -oracle.predict_log_proba(H)[np.arange(M), labels].mean()
    assert fitted.losses[-1] == pytest.approx(best, abs=1e-8)  # quadratic in the distance


def test_scaling_without_slack_reaches_the_best_layer_without_an_intercept():
    H, Y, labels = problem()
    fitted = scaling_sweeps(jnp.asarray(H), jnp.asarray(Y), jnp.zeros((D, N)), sweeps=6_000, slack=False)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000, fit_intercept=False).fit(H, labels)
    np.testing.assert_allclose(log_predictions(H @ np.asarray(fitted.U)), oracle.predict_log_proba(H), rtol=0, atol=1e-4)


def test_at_the_optimum_the_model_has_the_cooccurrences_of_the_data():
    H, Y, _ = map(jnp.asarray, problem(3.0))
    fitted = scaling_sweeps(H, Y, start(H, Y), sweeps=5000)
    _, (residual,) = layer_gradient((fitted.U,), (H, Y))
    assert float(jnp.abs(residual / dense_cooccurrence(H, Y)).max()) < 1e-5


def test_units_of_the_features_do_not_matter():
    H, Y, _ = map(jnp.asarray, problem())
    one = scaling_sweeps(H, Y, jnp.zeros((D, N)), sweeps=30)
    other = scaling_sweeps(8.0 * H, Y, jnp.zeros((D, N)), sweeps=30)
    np.testing.assert_allclose(one.logits(H), other.logits(8.0 * H), rtol=0, atol=1e-12)


def test_frozen_logits_are_added():
    H, Y, _ = map(jnp.asarray, problem())
    U = start(H, Y)
    added = scaling_sweeps(H, Y, jnp.zeros((D, N)), sweeps=20, slack=False, offsets=H @ U)
    whole = scaling_sweeps(H, Y, U, sweeps=20, slack=False)
    np.testing.assert_allclose(U + added.U, whole.U, rtol=0, atol=1e-12)
    np.testing.assert_allclose(added.losses, whole.losses, rtol=1e-12)


def test_a_feature_that_never_occurs_stays_where_it_is():
    H, Y, _ = map(jnp.asarray, problem())
    H = H.at[:, 2].set(0.0)
    U = jnp.full((D, N), 0.25)
    fitted = scaling_sweeps(H, Y, U, sweeps=5, slack=False)
    np.testing.assert_array_equal(fitted.U[2], U[2])
    assert np.isfinite(fitted.U).all()


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 7])
def test_interrupted_sweeps_continue_to_the_same_bits(tmp_path, after):
    H, Y, _ = map(jnp.asarray, problem())

    def interrupt(sweep, loss):
        if sweep == after:
            raise Interrupted

    options = {"sweeps": 12, "checkpoints": tmp_path / "state", "checkpoint_seconds": 0.0}
    with pytest.raises(Interrupted):
        scaling_sweeps(H, Y, start(H, Y), on_sweep=interrupt, **options)
    done: list[int] = []
    resumed = scaling_sweeps(H, Y, start(H, Y), on_sweep=lambda sweep, loss: done.append(sweep), **options)
    assert done == list(range(after, 13))  # nothing is done twice but the sweep that was cut short
    whole = scaling_sweeps(H, Y, start(H, Y), sweeps=12)
    np.testing.assert_array_equal(resumed.U, whole.U)
    np.testing.assert_array_equal(resumed.intercept, whole.intercept)
    assert resumed.losses == whole.losses


def test_bad_input_to_scaling_is_refused():
    H, Y, _ = map(jnp.asarray, problem())
    U = jnp.zeros((D, N))
    with pytest.raises(ValueError, match="split signed features"):
        scaling_sweeps(-H, Y, U, sweeps=1)
    with pytest.raises(ValueError, match="-1 sweeps"):
        scaling_sweeps(H, Y, U, sweeps=-1)
    with pytest.raises(ValueError, match=r"U \(2, 3\)"):
        scaling_sweeps(H, Y, U[:2], sweeps=1)
    with pytest.raises(ValueError, match="feature 4 never meets output 1"):
        scaling_sweeps(jnp.where((Y[:, 1:2] > 0) & (jnp.arange(D) == 4)[None, :], 0, H), Y, U, sweeps=1)
    with pytest.raises(FloatingPointError, match="finite parameters"):
        scaling_sweeps(H, Y, U.at[0, 0].set(jnp.nan), sweeps=1)


def signed(dtype=np.float64):
    """Features of both signs and of very different sizes, with a constant."""
    rng = np.random.default_rng(4)
    labels = rng.permutation(np.arange(M) % N)
    X = rng.normal(size=(M, D)) + 0.7 * rng.normal(size=(N, D))[labels]
    X = np.concatenate([X * np.logspace(-1, 1, D), np.ones((M, 1))], axis=1)
    return jnp.asarray(X, dtype), jnp.asarray(reference.one_hot(labels, N), dtype), labels


def test_a_quadratic_sweep_is_the_formula():
    X, Y, _ = signed()
    ridge, U = 0.01, np.random.default_rng(5).normal(size=(D + 1, N))
    A = np.asarray(X.T @ X) / M
    penalty = ridge * np.trace(A) / (D + 1)
    P = np.exp(log_predictions(np.asarray(X) @ U))
    uphill = np.asarray(X).T @ (np.asarray(Y) - P) / M - penalty * U
    expected = U + 2 * np.linalg.inv(A + 2 * penalty * np.eye(D + 1)) @ uphill
    fitted = quadratic_sweeps(X, Y, jnp.asarray(U), sweeps=1, ridge=ridge)
    np.testing.assert_allclose(fitted.U, expected, rtol=0, atol=1e-10)  # a condition number of about 100
    loss = -(np.asarray(Y) * np.log(P)).sum() / M + penalty / 2 * (U**2).sum()
    np.testing.assert_allclose(fitted.losses[0], loss, rtol=1e-12)


def test_the_first_quadratic_sweep_from_zero_is_least_squares():
    X, Y, _ = signed()
    fitted = quadratic_sweeps(X, Y, sweeps=1, ridge=1e-12)
    centred = 2 * (np.asarray(Y) - 1 / N)
    expected = np.linalg.lstsq(np.asarray(X), centred, rcond=None)[0]
    np.testing.assert_allclose(fitted.U, expected, rtol=0, atol=1e-7)  # the ridge moves it by about 1e-8


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float64, 1e-13), (np.float32, 1e-6)])
@pytest.mark.parametrize("ridge", [1e-4, 1e-1])
def test_every_quadratic_sweep_lowers_the_loss(dtype, rounding, ridge):
    X, Y, _ = signed(dtype)
    begin = 3 * np.random.default_rng(6).normal(size=(D + 1, N))
    losses = quadratic_sweeps(X, Y, jnp.asarray(begin, dtype), sweeps=100, ridge=ridge).losses
    assert np.all(np.diff(losses) <= rounding * losses[0]) and losses[-1] < losses[0] / 2


def test_quadratic_sweeps_reach_scikit_learns_logistic_regression():
    X, Y, labels = signed()
    fitted = quadratic_sweeps(X, Y, sweeps=3000, ridge=1e-12)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(np.asarray(X[:, :-1]), labels)
    expected = oracle.predict_log_proba(np.asarray(X[:, :-1]))
    # where probabilities are 1e-20 logarithms say little; all of them are compared as probabilities
    np.testing.assert_allclose(np.exp(log_predictions(fitted.logits(X))), np.exp(expected), rtol=0, atol=1e-5)


def test_bad_input_to_quadratic_sweeps_is_refused():
    X, Y, _ = signed()
    with pytest.raises(ValueError, match="ridge 0.0"):
        quadratic_sweeps(X, Y, sweeps=1, ridge=0.0)
    with pytest.raises(ValueError, match=r"U \(2, 3\)"):
        quadratic_sweeps(X, Y, jnp.zeros((2, N)), sweeps=1)
    with pytest.raises(ValueError, match="cannot be factorised.*finite"):
        quadratic_sweeps(X.at[0, 0].set(jnp.nan), Y, sweeps=1)

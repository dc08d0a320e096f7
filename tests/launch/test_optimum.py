"""launch.digits.optimum: four ways to the minimum of one convex loss, beside scikit-learn's."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import cholesky
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from launch.digits.config import Config
from launch.digits.optimum import SOLVERS, Task, gradient

M, D, N, PENALTY = 90, 4, 3, 0.05


@pytest.fixture(scope="module")
def task() -> Task:
    """Three overlapping classes of centred features in float32, so that losses are exact to about 1e-7."""
    random = np.random.default_rng(0)
    labels = np.arange(M) % N
    H = random.normal(size=(M, D)) + random.normal(size=(N, D))[labels]
    H -= H.mean(axis=0)
    factor = cholesky(H.T @ H / M + 2 * PENALTY * np.eye(D), lower=True)
    H, Y, b, mean = (jnp.asarray(part, jnp.float32) for part in (H, np.eye(N)[labels], np.log(np.full(N, 1 / N)), np.zeros(D)))
    return Task(H, Y, b, mean, factor, PENALTY, 0.0)


def loss(task: Task, U: np.ndarray, b: np.ndarray) -> float:
    H, Y = np.asarray(task.H, float), np.asarray(task.Y, float)
    return -np.mean((Y * log_softmax(H @ U + b, axis=1)).sum(axis=1)) + PENALTY / 2 * (U**2).sum()


def test_the_gradient_is_a_difference_of_losses(task):
    random = np.random.default_rng(1)
    U, b, seen = random.normal(size=(D, N)), random.normal(size=N), []
    value, dU, db = gradient(task, seen.append, U, b)
    assert seen == [value] and value == pytest.approx(loss(task, U, b), rel=1e-6)
    V, c = random.normal(size=U.shape), random.normal(size=N)
    slope = (loss(task, U + 1e-5 * V, b + 1e-5 * c) - loss(task, U - 1e-5 * V, b - 1e-5 * c)) / 2e-5
    assert (dU * V).sum() + (db * c).sum() == pytest.approx(slope, rel=1e-5)  # float32 gradients


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_ends_at_the_minimum_of_scikit_learn(task, solver):
    losses, passes = list[float](), 300 if solver == "adam" else 240  # Adam has a batch an epoch here
    config = Config("", epochs=passes, rates=(1e-2, 1e-1))
    points = SOLVERS[solver](task, lambda value, **about: losses.append(value), config)
    U, b = min(points.values(), key=lambda point: loss(task, *map(np.asarray, point)))
    labels = np.asarray(task.Y).argmax(axis=1)
    model = LogisticRegression(C=1 / (PENALTY * M), tol=1e-10, max_iter=1000).fit(np.asarray(task.H, float), labels)
    best = loss(task, model.coef_.T, model.intercept_)
    # the others are exact in float32
    assert best - 1e-6 < loss(task, np.asarray(U), np.asarray(b)) < best + (1e-3 if solver == "adam" else 1e-5)
    assert 0 < len(losses) <= 2 * passes + 20 and losses[-1] < losses[0]
    if solver == "sweeps":
        assert np.all(np.diff(losses) < 1e-6)  # they never raise the loss, but by rounding
    if solver.startswith("lbfgs"):
        assert len(losses) < 100

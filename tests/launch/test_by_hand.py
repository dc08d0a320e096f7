"""What experiments compute on the host, by hand or beside another library; and that their presets are valid."""

import dataclasses
import pkgutil
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import cholesky
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from jexplicit.runs.files import check_bounds
from launch import digits, networks
from launch.blur import config as blur
from launch.blur.train import mean_and_spread
from launch.digits.solved import check, most_accurate
from launch.digits.trained import SOLVERS, Task
from launch.feature_machine import circulant_share, modular_table
from launch.icl import config as icl

M, D, N, PENALTY = 90, 4, 3, 0.05


def test_presets_are_valid_configurations():
    for preset in digits.PRESETS.values():
        check_bounds(preset.config)
        check(preset.config)
    for command in {**icl.COMMANDS, **networks.COMMANDS, **blur.COMMANDS}.values():
        experiment: Any = pkgutil.resolve_name(str(command.run))
        assert "tiny" in command.presets
        for preset in command.presets.values():
            files = {"train": ("input.txt",)} if getattr(preset.config, "corpus", "docs") == "text" else {}
            check_bounds(preset.config)
            getattr(experiment, "EXPERIMENT", experiment).check(dataclasses.replace(preset.config, **files))
            assert preset.note and preset.config.out.startswith("runs/")


def test_of_equally_accurate_models_the_lower_held_out_loss_wins():
    rows = [{"dev_accuracy": a, "dev_loss": loss} for a, loss in ((None, None), (0.9, 1.5), (0.9, 0.2), (0.8, 0.1))]
    damaged = [{"dev_accuracy": a, "dev_loss": loss} for a, loss in ((float("nan"), 0.1), ("high", 0.1), (0.9, float("nan")))]
    assert most_accurate(rows)["dev_loss"] == most_accurate([*damaged, *rows])["dev_loss"] == 0.2


def test_the_table_is_that_of_the_operation_and_circulant_shares_are_1_or_little():
    for name, f in (("add", lambda a, b: a + b), ("subtract", lambda a, b: a - b), ("multiply", lambda a, b: a * b)):
        for x, result in zip(*modular_table(5, name), strict=True):
            assert x.sum() == 2 and result == f(int(x[:5].argmax()), int(x[5:].argmax())) % 5
    random = np.random.default_rng(0).normal(size=(10, 9))
    assert circulant_share(np.stack([np.roll(random[9], n) for n in range(9)])) == pytest.approx(1)
    assert circulant_share(random[:9]) < 0.4 and circulant_share(np.zeros((9, 9))) == 0  # 8 of 80 degrees of freedom


def test_equal_numbers_of_correct_examples_are_ties():
    """Means of single-precision fractions are not."""
    one, other = (np.array(correct, np.float32) / np.float32(29) for correct in ((3, 7, 20), (10, 10, 10)))
    assert one.mean() != other.mean() or one.astype(float).mean() != other.astype(float).mean()
    assert mean_and_spread(one, 29)[0] == mean_and_spread(other, 29)[0] == pytest.approx(10 / 29, abs=1e-15)
    assert mean_and_spread(one, 29)[1] == pytest.approx(one.std(), rel=1e-6) and mean_and_spread(other, 29)[1] == 0


# Four ways to the minimum of one convex loss.


@pytest.fixture(scope="module")
def task() -> Task:
    """Three overlapping classes of centred features in float32, so that losses are exact to about 1e-7."""
    random = np.random.default_rng(0)
    labels = np.arange(M) % N
    H = random.normal(size=(M, D)) + random.normal(size=(N, D))[labels]
    H -= H.mean(axis=0)
    factor = cholesky(H.T @ H / M + 2 * PENALTY * np.eye(D), lower=True)
    H, Y, b, mean = (jnp.asarray(part, jnp.float32) for part in (H, np.eye(N)[labels], np.log(np.full(N, 1 / N)), np.zeros(D)))
    return Task(H, Y, b, mean, factor, PENALTY)


def loss(task: Task, U: np.ndarray, b: np.ndarray) -> float:
    H, Y = np.asarray(task.H, float), np.asarray(task.Y, float)
    return -np.mean((Y * log_softmax(H @ U + b, axis=1)).sum(axis=1)) + PENALTY / 2 * (U**2).sum()


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_ends_at_the_minimum_of_scikit_learn(task, solver):
    losses, passes = list[float](), 300 if solver == "adam" else 240  # Adam has a batch an epoch here
    config = digits.Config("", epochs=passes, rates=(1e-2, 1e-1))
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

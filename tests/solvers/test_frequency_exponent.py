"""The delta-corrected exponent: scans, loops and the cases with known answers."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from jexplicit.solvers.explicit import explicit_solution
from jexplicit.solvers.priming import (
    delta_intercept,
    fit_delta,
    fit_image_delta,
    fit_intercept,
    intercept_logits,
    log_intercept,
)

RNG = np.random.default_rng(0)
M, D, N = 300, 6, 3
LABELS = RNG.choice(N, M, p=[0.6, 0.3, 0.1])
H = RNG.uniform(0.1, 1, (M, D)) + 0.6 * np.eye(D)[LABELS]
Y = np.eye(N)[LABELS]
F, f, K = H.T @ Y, Y.sum(axis=0), float(H.sum(axis=1).mean())


def compiled(function, *arguments, **options):
    """A function of arrays and numbers as one program."""
    given = dict(enumerate(arguments))
    arrays = {n: jax.device_put(a) for n, a in given.items() if isinstance(a, (np.ndarray, jax.Array))}
    return jax.jit(lambda arrays: function(*(given | arrays).values(), **options))(arrays)


def loss(delta):
    z = H @ np.log(F) + H.sum(axis=1)[:, None] * (-(K - 1) / K * np.log(F.sum(axis=0)) - delta / K * np.log(f))[None, :]
    return float(-(Y * log_softmax(z, axis=1)).sum(axis=1).mean())


@functools.cache
def fitted():
    X, y, counts, totals = map(jax.device_put, (H, LABELS, F, f))
    return fit_image_delta(X, y, counts, totals, K)


def test_delta_is_the_lowest_of_a_scan():
    fit = fitted()
    scan = np.linspace(fit.delta - 0.5, fit.delta + 0.5, 101)
    assert abs(scan[np.argmin([loss(delta) for delta in scan])] - fit.delta) < 0.006  # half a step of the scan
    assert fit.first_loss == pytest.approx(loss(0.0), rel=1e-9) and fit.loss == pytest.approx(loss(fit.delta), rel=1e-9)
    assert fit.loss < fit.first_loss and abs(fit.delta) > 0.01


def test_at_delta_the_mean_log_count_of_the_model_is_that_of_the_targets():
    intercept = compiled(delta_intercept, F, f, K, fitted().delta)
    z = np.asarray(compiled(intercept_logits, H, F, intercept))
    u = H.sum(axis=1) / K
    assert u @ (softmax(z, axis=1) @ np.log(f)) == pytest.approx(u @ np.log(f)[LABELS], rel=1e-4)


def test_the_best_intercept_is_at_least_as_good():
    """δ moves along one direction of what `intercept` is free to move."""
    swept = compiled(fit_intercept, H, Y, F, K=K, sweeps=400)
    assert swept.losses[-1] <= fitted().loss + 1e-6


def test_outputs_that_are_equally_frequent_need_no_delta():
    zeros, ones, labels, threes = np.zeros((4, 2)), np.ones(4), np.array([0, 0, 1, 1]), np.full(2, 3.0)
    fit = fit_delta(lambda x: x, *map(jax.device_put, (zeros, ones, labels, threes)))
    assert fit.delta == 0 and fit.loss == fit.first_loss == pytest.approx(np.log(2))


def test_the_intercept_gives_the_logits_of_the_explicit_solution():
    explicit = compiled(log_intercept, F, K)
    logits = compiled(intercept_logits, H, F, explicit)
    np.testing.assert_allclose(H @ np.asarray(compiled(explicit_solution, F, K)), logits, rtol=1e-10)

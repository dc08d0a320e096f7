"""The priming scan against a loop, the solution as a separate intercept, and the delta-corrected exponent.

Tolerances: float64 sums of some tens of logarithms of order 10, 1e-11; accuracies are counts and must be equal.
"""

import jax
import numpy as np
import pytest
import reference
from scipy.special import log_softmax, softmax

from jexplicit.nn.training import objective
from jexplicit.solvers.explicit import (
    delta_intercept,
    fit_delta,
    fit_image_delta,
    intercept_logits,
    priming_scan,
)

GOAL = objective("softmax_cross_entropy")
M, D, N = 700, 6, 3  # more images than one block of the scan


def problem(seed=0, M=M):
    """Positive features of differing norms, and labels that they say something of."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(N, M, p=[0.5, 0.3, 0.2])
    centres = np.random.default_rng(99).gamma(1.0, 2.0, (N, D))
    H = centres[labels] * rng.gamma(1.0, 1.0, (M, D)) + 0.1
    Y = reference.one_hot(labels, N)
    return H, Y, labels, H.T @ Y


@pytest.mark.parametrize(
    "images, dtype",
    [(M, np.float64), (3, np.float32), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((M, np.float32), (3, np.float64)))],
)
def test_the_scan_is_the_loop_over_k(images, dtype):
    H, _, labels, F = problem(M=images)
    F, K = F + 0.1 * (images == 3), np.array([1.0, 1.5, 2, 5, 17, 100])  # three images do not show all classes
    scan = priming_scan(
        jax.device_put(np.asarray(H, dtype)), jax.device_put(np.asarray(F, dtype)), jax.device_put(labels), jax.device_put(K)
    )
    loop = [reference.accuracy(H @ reference.explicit_solution(F, k), labels) for k in K]
    assert len(set(loop)) > 2 or images == 3  # K matters here
    assert scan.accuracy.dtype == dtype
    if dtype == np.float64:
        np.testing.assert_array_equal(scan.accuracy, loop)
    np.testing.assert_array_equal(scan.K, K)


def test_delta_is_the_lowest_of_a_scan_where_the_mean_log_count_of_the_model_is_that_of_the_targets():
    H, Y, labels, F = problem(M=300)
    f, K = Y.sum(axis=0), float(H.sum(axis=1).mean())
    on_device = jax.device_put(H), jax.device_put(F), jax.device_put(f)
    delta = fit_image_delta(on_device[0], jax.device_put(labels), *on_device[1:], K)

    def logits(delta):
        return H @ np.log(F) + H.sum(axis=1)[:, None] * (-(K - 1) / K * np.log(F.sum(axis=0)) - delta / K * np.log(f))[None, :]

    def loss(delta):
        return float(-(Y * log_softmax(logits(delta), axis=1)).sum(axis=1).mean())

    scan = np.linspace(delta - 0.5, delta + 0.5, 101)
    assert abs(scan[np.argmin([loss(delta) for delta in scan])] - delta) < 0.006  # half a step of the scan
    assert loss(delta) < loss(0) and abs(delta) > 0.01
    z = np.asarray(intercept_logits(*on_device[:2], delta_intercept(*on_device[1:], K, delta)))
    np.testing.assert_allclose(z, logits(delta), rtol=1e-10)
    u = H.sum(axis=1) / K
    assert u @ (softmax(z, axis=1) @ np.log(f)) == pytest.approx(u @ np.log(f)[labels], rel=1e-4)
    given = np.zeros((4, 2)), np.ones(4), np.array([0, 0, 1, 1]), np.full(2, 3.0)
    assert fit_delta(lambda x: x, *jax.device_put(given)) == 0  # outputs that are equally frequent

"""The delta-corrected exponent and the weights from mean co-occurrences: scans, loops and the cases with known answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import log_mean_cooccurrences as log_mean_cooccurrences_loop

from jexplicit.solvers.explicit import explicit_solution
from jexplicit.solvers.frequency_exponent import fit_delta
from jexplicit.solvers.priming import (
    delta_intercept,
    fit_image_delta,
    fit_intercept,
    intercept_logits,
    log_intercept,
    log_mean_cooccurrences,
    mean_cooccurrence_intercept,
)

RNG = np.random.default_rng(0)
M, D, N = 90, 6, 4
LABELS = jnp.asarray(RNG.choice(N, M, p=[0.5, 0.3, 0.15, 0.05]))
H = jnp.asarray(RNG.uniform(0.1, 1, (M, D)) + 0.6 * np.eye(D)[np.asarray(LABELS)])
Y = jax.nn.one_hot(LABELS, N, dtype=H.dtype)
F, f, K = H.T @ Y, Y.sum(axis=0), float(H.sum(axis=1).mean())


def loss(delta):
    z = H @ jnp.log(F) + H.sum(axis=1)[:, None] * (-(K - 1) / K * jnp.log(F.sum(axis=0)) - delta / K * jnp.log(f))[None, :]
    return float(-(Y * jax.nn.log_softmax(z)).sum(axis=1).mean())


def test_delta_is_the_lowest_of_a_scan():
    fit = fit_image_delta(H, LABELS, F, f, K)
    scan = np.linspace(fit.delta - 0.5, fit.delta + 0.5, 101)
    assert abs(scan[np.argmin([loss(delta) for delta in scan])] - fit.delta) < 0.006  # half a step of the scan
    assert fit.first_loss == pytest.approx(loss(0.0), rel=1e-9) and fit.loss == pytest.approx(loss(fit.delta), rel=1e-9)
    assert fit.loss < fit.first_loss and abs(fit.delta) > 0.01


def test_at_delta_the_mean_log_count_of_the_model_is_that_of_the_targets():
    fit = fit_image_delta(H, LABELS, F, f, K)
    z = intercept_logits(H, F, delta_intercept(F, f, K, fit.delta))
    u = H.sum(axis=1) / K
    assert float(u @ (jax.nn.softmax(z) @ jnp.log(f))) == pytest.approx(float(u @ jnp.log(f)[LABELS]), rel=1e-4)


def test_the_best_intercept_is_at_least_as_good():
    """δ moves along one direction of what `intercept` is free to move."""
    swept = fit_intercept(H, Y, F, K=K, sweeps=400)
    assert swept.losses[-1] <= fit_image_delta(H, LABELS, F, f, K).loss + 1e-6


def test_outputs_that_are_equally_frequent_need_no_delta():
    fit = fit_delta(lambda x: x, jnp.zeros((4, 2)), jnp.ones(4), jnp.array([0, 0, 1, 1]), jnp.full(2, 3.0))
    assert fit.delta == 0 and fit.loss == fit.first_loss == pytest.approx(np.log(2))


def test_mean_cooccurrences_are_the_loop_over_examples():
    found = log_mean_cooccurrences(H, F, K)
    for i in range(N):
        means = [np.prod([float(F[d, i]) ** float(h[d] / h.sum()) for d in range(D)]) for h in H]
        assert found[i] == pytest.approx(np.log(np.mean(np.array(means) ** K)) / K, rel=1e-10)
    as_printed = log_mean_cooccurrences(H, F, K, own_norms=False)
    np.testing.assert_allclose(as_printed, log_mean_cooccurrences_loop(np.asarray(H), np.asarray(F), K), rtol=1e-10)


def test_both_mean_cooccurrences_are_one_where_every_norm_is_k():
    same = H / H.sum(axis=1, keepdims=True) * K
    np.testing.assert_allclose(
        log_mean_cooccurrences(same, F, K), log_mean_cooccurrences(same, F, K, own_norms=False), rtol=1e-12
    )


def test_where_they_grow_as_counts_the_weights_are_the_explicit_ones():
    """F[d, i] = a_d f_i: <E_G[F_i]> ∝ f_i exactly, and Eq. 14's last step is no approximation."""
    F = jnp.asarray(RNG.uniform(1, 2, D))[:, None] * f[None, :]
    difference = mean_cooccurrence_intercept(H, F, f, K) - log_intercept(F, K)
    np.testing.assert_allclose(difference, difference[0], rtol=1e-10)
    U = explicit_solution(F, K)
    logits = intercept_logits(H, F, log_intercept(F, K))
    np.testing.assert_allclose(H @ U, logits, rtol=1e-10)

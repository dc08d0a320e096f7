"""Newton's iteration as a polynomial: matrices, the steps that a layer is worth, and looped layers with preconditioners."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from icl import Tasks
from icl.solvers.newton import equivalent_steps, newton_residual, residual_loss, steps_per_layer
from icl.solvers.polynomials import optimal_polynomials, residual
from icl.solvers.spectrum import spectral_law, weighted_eigenvalues


def test_the_residual_is_that_of_the_iteration():
    X = np.random.default_rng(0).normal(size=(7, 4))
    A = X.T @ X
    values, U = np.linalg.eigh(A)
    residuals = jax.jit(lambda values, k: [newton_residual(values, k, power=power) for power in (0, 1)])
    found = [residuals(values, float(k)) for k in range(8)]
    for power in (0, 1):
        M = np.linalg.matrix_power(A, power) / values[-1] ** (power + 1)
        for k in range(8):
            np.testing.assert_allclose(U @ np.diag(np.asarray(found[k][power])) @ U.T, np.eye(4) - M @ A, atol=1e-12)
            M = 2 * M - M @ A @ M


@pytest.mark.slow
def test_a_layer_at_chebyshev_rates_is_worth_log_9_steps():
    """Contexts with as many pairs as inputs, whose eigenvalues have no gap: the slope from the fourth layer on."""
    tasks = Tasks(dim=6, context=6, inputs="normal")
    with jax.enable_x64(True):
        values, weights = map(jax.device_put, weighted_eigenvalues(jax.random.key(1), tasks, 5_000))
        losses = [float(jnp.mean(jnp.sum(weights * newton_residual(values, float(k)) ** 2, axis=1))) for k in range(40)]
        steps = []
        for p in optimal_polynomials(spectral_law(jax.random.key(0), tasks, 5_000), tasks, layers=7, tied=False)[3:]:
            r = residual(values, jax.device_put(p.eta), jax.device_put(p.gamma), 6)
            steps.append(equivalent_steps(np.array(losses), float(jnp.mean(jnp.sum(weights * r**2, axis=1)))))
    assert np.diff(np.array(steps, float)) == pytest.approx(np.log2(9), rel=0.1)  # of 5,000 contexts


def test_equivalent_steps_interpolate_logarithms():
    losses = np.array([1.0, 0.1, 0.001])
    assert equivalent_steps(losses, 0.01) == pytest.approx(1.5) and equivalent_steps(losses, 1e-4) is None


def test_the_loss_is_a_mean_over_contexts_and_the_slope_that_of_least_squares():
    weights, r = np.random.default_rng(0).normal(size=(2, 5, 3))
    expected = sum(w * x**2 for context in zip(weights, r, strict=True) for w, x in zip(*context, strict=True)) / 10
    assert float(jax.jit(residual_loss)(weights, r)) == pytest.approx(expected, rel=1e-12)
    K, steps = np.arange(2, 6), np.array([5.0, 9.0, 11.0, 15.0])
    slope = ((K - K.mean()) * (steps - steps.mean())).sum() / ((K - K.mean()) ** 2).sum()
    assert steps_per_layer([1, *K.tolist(), 6], [99.0, *steps.tolist(), None]) == pytest.approx(slope, rel=1e-12)
    assert np.isnan(steps_per_layer([1, 2], [3.0, 6.0]))


def test_the_best_looped_preconditioner_is_the_inverse_covariance():
    """Gatmiry et al. 2024: x ~ N(0, Λ), w ~ N(0, Λ⁻¹); a search over all A ends at η Λ⁻¹ with the solved η."""
    std, loops = np.array([1.0, 0.5]), 3
    X = std * np.random.default_rng(0).normal(size=(4_000, 6, 2))
    S, covariance = X.swapaxes(1, 2) @ X, np.diag(std**2)

    @jax.jit
    @jax.value_and_grad
    def loss(A: jax.Array) -> jax.Array:
        E = jnp.linalg.matrix_power(jnp.eye(2)[None] - S @ A.reshape(1, 2, 2), loops)  # of x_q, on the right of w
        return jnp.trace(jnp.mean(E.mT @ np.linalg.inv(covariance)[None] @ E, axis=0) @ covariance) / 2

    A = np.random.default_rng(0).normal(size=(2, 2)) * 0.01 + 0.02 * np.eye(2)
    found = minimize(lambda a: tuple(np.asarray(part) for part in loss(a)), A.ravel(), jac=True).x.reshape(2, 2)
    isotropic = Tasks(dim=2, context=6, inputs="normal", input_range=12**0.5)  # variance 1
    law = spectral_law(jax.random.key(1), isotropic, 20_000)
    eta = optimal_polynomials(law, isotropic, layers=loops, tied=True, plus_plus=False)[-1].eta[0] / 6
    np.testing.assert_allclose(found @ covariance, eta * np.eye(2), atol=0.06 * eta)  # of 4,000 contexts

"""Recursive feature machines: kernels, gradients and solutions against loops, jax.grad and scikit-learn.

Tolerances: float64. Gradients add n terms in another order than reverse mode does: 1e-9 of their size.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

from jexplicit.solvers.feature_machine import (
    KERNELS,
    FeatureMachine,
    agop,
    feature_machine,
    kernel_and_slope,
    metric_power,
    predict,
    solve,
)

RNG = np.random.default_rng(0)
X, Z, Y = (jnp.asarray(RNG.normal(size=shape)) for shape in ((30, 5), (7, 5), (30, 3)))
ROOT = RNG.normal(size=(5, 5))
M = jnp.asarray(ROOT @ ROOT.T / 5)
L = 1.3
ALL = pytest.mark.parametrize("kernel", KERNELS)
OF_LOOPS = {
    "quadratic": lambda x, z: (x @ M @ z) ** 2,
    "gaussian": lambda x, z: np.exp(-((x - z) @ M @ (x - z)) / (2 * L**2)),
    "laplace": lambda x, z: np.exp(-np.sqrt((x - z) @ M @ (x - z)) / L),
}


@ALL
def test_predictions_are_sums_of_kernels_and_solve_the_regression(kernel):
    machine = solve(X, Y, M, kernel=kernel, bandwidth=L, ridge=1e-3)
    K = np.array([[OF_LOOPS[kernel](x, z) for z in np.asarray(X)] for x in np.asarray(X)])
    alpha = np.linalg.solve(K + 1e-3 * np.trace(K) / len(X) * np.eye(len(X)), Y)
    np.testing.assert_allclose(machine.alpha, alpha, rtol=1e-6)  # the condition of K times float64
    wanted = [sum(OF_LOOPS[kernel](x, z) * a for z, a in zip(np.asarray(X), alpha, strict=True)) for x in np.asarray(Z)]
    np.testing.assert_allclose(predict(machine, Z, kernel=kernel), wanted, rtol=1e-6)


@ALL
def test_the_slopes_are_the_gradients_of_jax(kernel):
    x = Z[0]

    def one(x, z):
        return kernel_and_slope(x, z[None], M, kernel, L)[0][0]

    _, slope = kernel_and_slope(x, X, M, kernel, L)
    direction = X if kernel == "quadratic" else X - x[None]
    wanted = jax.vmap(jax.grad(one), in_axes=(None, 0))(x, X)
    np.testing.assert_allclose(slope[:, None] * (direction @ M), wanted, rtol=1e-9, atol=1e-12)


@ALL
def test_the_gradient_outer_product_is_that_of_the_jacobians(kernel):
    machine = FeatureMachine(X, Y, M, L)

    def f(x):
        return jnp.stack([kernel_and_slope(x, X, M, kernel, L)[0]]) @ Y

    J = jax.vmap(jax.jacrev(lambda x: f(x)[0]))(X)
    np.testing.assert_allclose(agop(machine, kernel=kernel), jnp.einsum("ncd,nce->de", J, J) / len(X), rtol=1e-9)


def test_blocks_of_examples_change_nothing(monkeypatch):
    whole = agop(FeatureMachine(X, Y, M, L), kernel="laplace")
    monkeypatch.setattr("jexplicit.solvers.feature_machine._block", 7)
    jax.clear_caches()
    np.testing.assert_allclose(agop(FeatureMachine(X, Y, M, L), kernel="laplace"), whole, rtol=1e-10)


def test_the_first_solve_is_scikit_learn_s_kernel_ridge():
    machine, history = feature_machine(X, Y, solves=1, kernel="gaussian", bandwidth=L, ridge=0.1)
    square = np.mean((np.asarray(X)[:, None] - np.asarray(X)[None]) ** 2, axis=(0, 1)).sum()  # of the distances
    alpha: Any = 0.1
    ridge = KernelRidge(alpha=alpha, kernel="rbf", gamma=1 / (2 * L**2 * square)).fit(X, Y)
    np.testing.assert_allclose(predict(machine, Z, kernel="gaussian"), ridge.predict(Z), rtol=1e-9)
    assert [entry["solve"] for entry in history] == [1]


def test_a_power_of_a_metric_is_that_of_its_eigenvalues():
    for power in (0.5, 1.0):
        raised = metric_power(M, power)
        assert float(jnp.abs(raised).max()) == pytest.approx(1)
        twice = raised @ raised if power == 0.5 else raised
        np.testing.assert_allclose(twice / jnp.trace(twice), M / jnp.trace(M), rtol=1e-9, atol=1e-12)
    assert not metric_power(jnp.zeros((3, 3)), 0.5).any()  # of a constant predictor


def test_it_finds_the_coordinates_that_matter():
    X = jax.random.normal(jax.random.key(0), (200, 6))
    y = (X[:, 0] * X[:, 1])[:, None]
    for kernel, ridge in itertools.product(("quadratic", "gaussian"), (1e-3,)):
        machine, history = feature_machine(X, y, solves=4, kernel=kernel, ridge=ridge, power=1.0)
        weight = jnp.diagonal(machine.M)
        assert weight[2:].max() < 0.1 * weight[:2].min() and len(history) == 4


def test_an_interrupted_machine_resumes_with_the_same_bits(tmp_path):
    class Stop(Exception):
        pass

    def stop(entry):
        if entry["solve"] == 2:
            raise Stop

    options = {"solves": 4, "ridge": 1e-3, "checkpoints": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(Stop):
        feature_machine(X, Y, callback=stop, **options)
    resumed, history = feature_machine(X, Y, **options)
    whole, _ = feature_machine(X, Y, solves=4, ridge=1e-3)
    assert [entry["solve"] for entry in history] == [1, 2, 3, 4]
    for one, other in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_constant_duplicate_and_single_examples_have_finite_machines():
    for inputs in (jnp.ones((4, 2)), jnp.zeros((4, 2)) + jnp.array([[1.0, 0.0]]), jnp.ones((1, 2))):
        for kernel in KERNELS:
            machine, _ = feature_machine(inputs, jnp.ones((len(inputs), 1)), solves=3, kernel=kernel, ridge=1e-2)
            assert bool(jnp.isfinite(predict(machine, inputs, kernel=kernel)).all())


@pytest.mark.parametrize(
    "given, message",
    [
        ({"X": X[:3]}, r"examples \(3, 5\), targets \(30, 3\): give \[n, d\] and \[n, c\]"),
        ({"X": X.at[0, 0].set(jnp.nan)}, "not finite: clean them first"),
        ({"solves": 0}, "0 solves"),
        ({"kernel": "cubic"}, "kernel 'cubic'.* quadratic or gaussian or laplace"),
        ({"ridge": 0.0}, "ridge 0.0"),
        ({"power": float("nan")}, "power nan"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        feature_machine(**{"X": X, "Y": Y, "solves": 2, **given})


def test_a_solution_that_is_not_finite_says_which_solve():
    with pytest.raises(FloatingPointError, match="solve . is not finite: use a ridge above"):
        feature_machine(1e200 * X, Y, solves=2)

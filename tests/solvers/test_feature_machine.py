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

from jexplicit.runs.devices import data_mesh
from jexplicit.solvers.feature_machine import (
    KERNELS,
    FeatureMachine,
    agop,
    feature_machine,
    kernel_and_slope,
    metric_power,
    predict,
    solve,
    solve_on_landmarks,
)
from jexplicit.solvers.gram import split_examples

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


def of_loops(A: Any, B: Any, kernel: str) -> np.ndarray:
    return np.array([[OF_LOOPS[kernel](x, z) for z in np.asarray(B)] for x in np.asarray(A)])


@ALL
def test_predictions_are_sums_of_kernels_and_solve_the_regression(kernel):
    machine = solve(X, Y, M, kernel=kernel, bandwidth=L, ridge=1e-3)
    K = of_loops(X, X, kernel)
    alpha = np.linalg.solve(K + 1e-3 * np.trace(K) / len(X) * np.eye(len(X)), Y)
    np.testing.assert_allclose(machine.alpha, alpha, rtol=1e-6)  # the condition of K times float64
    np.testing.assert_allclose(predict(machine, Z, kernel=kernel), of_loops(Z, X, kernel) @ alpha, rtol=1e-6)


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
        ({"landmarks": 0}, "0 landmarks: use .* numbers above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        feature_machine(**{"X": X, "Y": Y, "solves": 2, **given})


def test_a_solution_that_is_not_finite_says_which_solve():
    with pytest.raises(FloatingPointError, match="solve . is not finite: use a ridge above"):
        feature_machine(1e200 * X, Y, solves=2)


@ALL
def test_landmarks_are_the_least_squares_of_their_kernels(kernel):
    blocks, ridge, few = split_examples(X, Y, block=4), 1e-2, X[:9]
    machine = solve_on_landmarks(blocks, few, M, kernel=kernel, bandwidth=L, ridge=ridge)
    Kxz, Kzz = of_loops(X, few, kernel), of_loops(few, few, kernel)
    alpha = np.linalg.solve(Kxz.T @ Kxz + ridge * np.trace(Kzz) / 9 * Kzz, Kxz.T @ np.asarray(Y))
    # the diagonal of K_M(Z, Z) has 9 roundings more: times its condition, 1e-7 of the predictions
    np.testing.assert_allclose(predict(machine, Z, kernel=kernel), of_loops(Z, few, kernel) @ alpha, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
def test_all_examples_as_landmarks_are_the_whole_regression(kernel):
    options: Any = {"kernel": kernel, "bandwidth": L, "ridge": 1e-2}
    some, whole = solve_on_landmarks(split_examples(X, Y), X, M, **options), solve(X, Y, M, **options)
    np.testing.assert_allclose(predict(some, Z, kernel=kernel), predict(whole, Z, kernel=kernel), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("devices", [3, 8])
@ALL
def test_devices_change_nothing(kernel, devices):
    options: Any = {"solves": 3, "kernel": kernel, "ridge": 1e-2, "landmarks": 11}
    one, _ = feature_machine(X, Y, mesh=data_mesh(1), **options)
    several, _ = feature_machine(X, Y, mesh=data_mesh(devices), **options)
    assert one.X.shape == (11, 5) and (np.asarray(one.X)[:, None] == np.asarray(X)[None]).all(axis=2).any(axis=1).all()
    for a, b in zip(one, several, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)  # sums in another order, twice through a solve


@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
def test_landmarks_find_the_coordinates_that_matter_in_float32(kernel):
    with jax.enable_x64(False):
        X = jax.random.normal(jax.random.key(0), (3000, 6), jnp.float32)
        y = (X[:, 0] * X[:, 1])[:, None]
        machine, _ = feature_machine(X[:2500], y[:2500], solves=4, kernel=kernel, ridge=1e-3, power=1.0, landmarks=300)
        error = jnp.mean((predict(machine, X[2500:], kernel=kernel) - y[2500:]) ** 2) / jnp.mean(y[2500:] ** 2)
        weight = jnp.diagonal(machine.M)
    assert machine.alpha.dtype == jnp.float32 and weight[2:].max() < 0.01 * weight[:2].min()
    assert error < 0.05  # of the variance; by the identity as metric, five times as much

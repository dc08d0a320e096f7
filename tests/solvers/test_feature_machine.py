"""Recursive feature machines, against loops, jax.grad and scikit-learn; and the estimators of scikit-learn by its own checks.

Tolerances: float64. Gradients add n terms in another order than reverse mode does: 1e-9 of their size.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from interruption import resumed_after
from reference import explicit_solution
from refusals import refused
from sklearn.kernel_ridge import KernelRidge
from sklearn.utils.estimator_checks import parametrize_with_checks

from jexplicit.runs.devices import data_mesh
from jexplicit.sklearn import ExplicitClassifier, FeatureMachineClassifier, FeatureMachineRegressor
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
from jexplicit.solvers.sweeps import split_examples

RNG = np.random.default_rng(0)
X, Z, Y = (RNG.normal(size=shape) for shape in ((30, 5), (7, 5), (30, 3)))
ROOT = RNG.normal(size=(5, 5))
M = ROOT @ ROOT.T / 5
L = 1.3
ALL, SLOW = pytest.mark.parametrize("kernel", KERNELS), pytest.mark.slow
OF_LOOPS = {
    "quadratic": lambda x, z: (x @ M @ z) ** 2,
    "gaussian": lambda x, z: np.exp(-((x - z) @ M @ (x - z)) / (2 * L**2)),
    "laplace": lambda x, z: np.exp(-np.sqrt((x - z) @ M @ (x - z)) / L),
}


def of_loops(A: Any, B: Any, kernel: str) -> np.ndarray:
    return np.array([[OF_LOOPS[kernel](x, z) for z in np.asarray(B)] for x in np.asarray(A)])


@functools.cache
def arrays():
    """X, Z, Y and M on the device."""
    return tuple(map(jax.device_put, (X, Z, Y, M)))


@ALL
def test_predictions_are_sums_of_kernels_and_solve_the_regression(kernel):
    X_, Z_, Y_, M_ = arrays()
    machine = solve(X_, Y_, M_, kernel=kernel, bandwidth=L, ridge=1e-3)
    K = of_loops(X, X, kernel)
    alpha = np.linalg.solve(K + 1e-3 * np.trace(K) / len(X) * np.eye(len(X)), Y)
    np.testing.assert_allclose(machine.alpha, alpha, rtol=1e-6)  # the condition of K times float64
    np.testing.assert_allclose(predict(machine, Z_, kernel=kernel), of_loops(Z, X, kernel) @ alpha, rtol=1e-6)


@ALL
def test_slopes_and_the_gradient_outer_product_are_those_of_the_gradients_of_jax_on_any_devices(kernel):
    X_, Z_, Y_, M_ = arrays()

    @jax.jit
    def slopes_and_jacobians(x, X, M):
        def one(x, z):
            return kernel_and_slope(x, z[None], M, kernel, L)[0][0]

        of_all = jax.vmap(jax.grad(one), in_axes=(None, 0))
        return kernel_and_slope(x, X, M, kernel, L)[1], of_all(x, X), jax.vmap(of_all, in_axes=(0, None))(X, X)

    slope, wanted, gradients = map(np.asarray, slopes_and_jacobians(Z_[0], X_, M_))
    direction = X if kernel == "quadratic" else X - Z[0]
    np.testing.assert_allclose(slope[:, None] * (direction @ M), wanted, rtol=1e-9, atol=1e-12)
    J = np.einsum("nid,ic->ncd", gradients, Y)
    for examples in (None, split_examples(X, Y, block=2, mesh=data_mesh(8))):
        found = agop(FeatureMachine(X_, Y_, M_, L), examples, kernel=kernel)
        np.testing.assert_allclose(found, np.einsum("ncd,nce->de", J, J) / len(X), rtol=1e-9)


def test_the_first_solve_is_scikit_learn_s_kernel_ridge():
    X_, Z_, Y_, _ = arrays()
    machine, _ = feature_machine(X_, Y_, solves=1, kernel="gaussian", bandwidth=L, ridge=0.1)
    square = np.mean((X[:, None] - X[None]) ** 2, axis=(0, 1)).sum()  # of the distances
    alpha: Any = 0.1
    ridge = KernelRidge(alpha=alpha, kernel="rbf", gamma=1 / (2 * L**2 * square)).fit(X, Y)
    np.testing.assert_allclose(predict(machine, Z_, kernel="gaussian"), ridge.predict(Z), rtol=1e-9)


def test_a_power_of_a_metric_is_that_of_its_eigenvalues():
    for power in (0.5, 1.0):
        raised = np.asarray(metric_power(jax.device_put(M), power))
        assert np.abs(raised).max() == pytest.approx(1)
        twice = raised @ raised if power == 0.5 else raised
        np.testing.assert_allclose(twice / np.trace(twice), M / np.trace(M), rtol=1e-9, atol=1e-12)
    assert not np.asarray(metric_power(jax.device_put(0 * M), 0.5)).any()  # of a constant predictor


@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
def test_examples_far_from_zero_are_as_good_as_centred_ones(kernel):
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(120, 2)), 2).astype(np.float32)  # two digits, so that float32 has them at 1000, too, to 6e-5
    Y = jax.device_put(np.sin(2 * X[:, :1]) + X[:, 1:])
    near, far = (
        predict(feature_machine(Z[:80], Y[:80], solves=2, kernel=kernel, ridge=1e-3)[0], Z[80:], kernel=kernel)
        for Z in map(jax.device_put, (X, X + np.float32(1000)))
    )
    np.testing.assert_allclose(far, near, atol=0.02)  # of outputs of size 1, from inputs that are right to 6e-5


def test_an_interrupted_machine_resumes_with_the_same_bits(tmp_path):
    X_, _, Y_, _ = arrays()
    run = functools.partial(feature_machine, X_, Y_, solves=4, ridge=1e-3, landmarks=11)
    (resumed, history), (whole, _) = resumed_after(2, run, tmp_path, "callback"), run()
    assert [entry["solve"] for entry in history] == [1, 2, 3, 4]
    assert whole.X.shape == (11, 5) and (np.asarray(whole.X)[:, None] == X[None]).all(axis=2).any(axis=1).all()
    for one, other in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kernel", ["laplace", pytest.param("quadratic", marks=SLOW)])
def test_landmarks_are_the_least_squares_of_their_kernels(kernel):
    _, Z_, _, M_ = arrays()
    blocks, ridge, few = split_examples(X, Y, block=2, mesh=data_mesh(8)), 1e-2, X[:11]
    machine = solve_on_landmarks(blocks, jax.device_put(few), M_, kernel=kernel, bandwidth=L, ridge=ridge)
    Kxz, Kzz = of_loops(X, few, kernel), of_loops(few, few, kernel)
    alpha = np.linalg.solve(Kxz.T @ Kxz + ridge * np.trace(Kzz) / 11 * Kzz, Kxz.T @ Y)
    # the diagonal of K_M(Z, Z) has 11 roundings more: times its condition, 1e-7 of the predictions
    np.testing.assert_allclose(predict(machine, Z_, kernel=kernel), of_loops(Z, few, kernel) @ alpha, rtol=1e-6, atol=1e-7)


# Estimators of scikit-learn


@pytest.fixture
def of_users():
    """The settings that users have: those of the tests refuse what a conversion at the edge allows."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.usefixtures("of_users")
@pytest.mark.slow
@parametrize_with_checks([FeatureMachineRegressor(solves=2), FeatureMachineClassifier(solves=2), ExplicitClassifier()])
def test_an_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.usefixtures("of_users")
def test_counts_of_parts_are_those_of_the_whole_and_give_the_explicit_solution():
    X, y = np.random.default_rng(0).poisson(1.0, (64, 11)).astype(float), np.arange(64) % 3
    whole, parts = ExplicitClassifier().fit(X, y), ExplicitClassifier()
    with pytest.raises(ValueError, match="Negative values"):
        parts.partial_fit(-X, y)  # the next call is again the first
    for part in (slice(0, 40), slice(40, 64)):
        parts.partial_fit(X[part], y[part], classes=np.arange(3))
    F = whole.cooccurrences_ + 1e-3
    np.testing.assert_allclose(whole.cooccurrences_, X.T @ np.eye(3)[y], rtol=1e-12)
    np.testing.assert_allclose(whole.coef_, explicit_solution(F, F.sum() / 64), rtol=1e-9, atol=1e-9)
    for options, labels, message in (
        ({"classes": [0, 1]}, y, "give the same ones"),
        ({}, y + 9, r"labels \[ 9 10 11\] that were not among the classes"),
    ):
        refused(message, parts.partial_fit, X, labels, **options)
    np.testing.assert_allclose(parts.cooccurrences_, whole.cooccurrences_, rtol=1e-12)  # whatever was refused
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-9, atol=1e-9)
    for smoothing in (0, -1.0, float("nan")):
        refused("use a number above 0, such as 1e-3", ExplicitClassifier(smoothing=smoothing).fit, X, y)


@pytest.mark.usefixtures("of_users")
def test_the_feature_machine_takes_the_number_of_solves_with_the_least_held_out_error(monkeypatch):
    calls, rng = [], np.random.default_rng(0)

    def solved(X, Y, *, solves, **options):
        calls.append((X.shape, solves, options["landmarks"]))
        return FeatureMachine(X, Y, jax.device_put(np.eye(11))), [{"held_out_error": error} for error in (3.0, 1.0, 2.0)]

    monkeypatch.setattr("jexplicit.sklearn.feature_machine", solved)
    X, y = rng.normal(size=(64, 11)), rng.normal(size=64)
    fitted = FeatureMachineRegressor(solves=3, landmarks=40, validation_fraction=0.25, random_state=0).fit(X, y)
    assert fitted.solves_ == 2 and calls == [((48, 11), 3, 40), ((64, 11), 2, 40)]
    gaps = np.sqrt(((X[:, None] - X[None]) ** 2).sum(axis=2))
    np.testing.assert_allclose(fitted.predict(X), np.exp(-gaps) @ (y - y.mean()) + y.mean(), rtol=1e-5)

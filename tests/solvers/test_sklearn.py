"""The estimators of scikit-learn: its own checks, and that they are the functions of this package."""

import jax
import numpy as np
import pytest
from reference import explicit_solution
from sklearn.utils.estimator_checks import parametrize_with_checks

from jexplicit.sklearn import ExplicitClassifier, FeatureMachineClassifier, FeatureMachineRegressor
from jexplicit.solvers.feature_machine import FeatureMachine

ESTIMATORS = [
    FeatureMachineRegressor(solves=2),
    FeatureMachineClassifier(solves=2),
    ExplicitClassifier(),
]


@pytest.fixture(autouse=True)
def of_users():
    """The settings that users have: those of the tests refuse what a conversion at the edge allows."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS)
def test_an_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


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
        with pytest.raises(ValueError, match=message):
            parts.partial_fit(X, labels, **options)
    np.testing.assert_allclose(parts.cooccurrences_, whole.cooccurrences_, rtol=1e-12)  # whatever was refused
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-9, atol=1e-9)
    for smoothing in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="use a number above 0, such as 1e-3"):
            ExplicitClassifier(smoothing=smoothing).fit(X, y)


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

"""The estimators of scikit-learn: its own checks, and that they are the functions of this package."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from jexplicit.sklearn import CurvatureBoundClassifier, ExplicitClassifier, FeatureMachineClassifier, FeatureMachineRegressor
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution
from jexplicit.solvers.feature_machine import feature_machine, predict

ESTIMATORS = [
    FeatureMachineRegressor(solves=2),
    FeatureMachineClassifier(solves=2),
    ExplicitClassifier(),
    CurvatureBoundClassifier(sweeps=50),
]


def of(load: Any) -> Any:
    return load(return_X_y=True)


@pytest.fixture(autouse=True)
def of_users():
    """The settings that users have: those of the tests refuse what a conversion at the edge allows."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@parametrize_with_checks(ESTIMATORS)
def test_an_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_counts_of_parts_are_those_of_the_whole_and_give_the_explicit_solution():
    X, y = of(load_digits)
    whole, parts = ExplicitClassifier().fit(X, y), ExplicitClassifier()
    for n in range(0, len(X), 500):
        parts.partial_fit(X[n : n + 500], y[n : n + 500], classes=np.arange(10))
    np.testing.assert_allclose(parts.cooccurrences_, whole.cooccurrences_, rtol=1e-12)
    F = dense_cooccurrence(jnp.asarray(X), jnp.asarray(y), 10) + 1e-3
    np.testing.assert_allclose(whole.coef_, explicit_solution(F, F.sum() / len(X)), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"labels \[11\] that were not among the classes"):
        parts.partial_fit(X[:1], [11])


def test_the_feature_machine_is_that_of_the_solvers_with_the_best_number_of_solves():
    X, y = of(load_diabetes)
    X = StandardScaler().fit_transform(X)
    fitted = FeatureMachineRegressor(solves=4, random_state=0).fit(X[:300], y[:300])
    errors = [entry["held_out_error"] for entry in fitted.history_]
    assert fitted.solves_ == 1 + int(np.argmin(errors)) and len(errors) == 4
    Y = jnp.asarray(y[:300, None] - y[:300].mean())
    machine, _ = feature_machine(jnp.asarray(X[:300]), Y, solves=fitted.solves_, kernel="laplace", ridge=1e-3, power=1.0)
    wanted = predict(machine, jnp.asarray(X[300:]), kernel="laplace")[:, 0] + y[:300].mean()
    np.testing.assert_allclose(fitted.predict(X[300:]), wanted, rtol=1e-7)


def test_with_fewer_landmarks_than_examples_the_machine_is_smaller_and_as_good():
    X = np.random.default_rng(0).normal(size=(1500, 6))
    y = X[:, 0] * X[:, 1]
    machines = (FeatureMachineRegressor(kernel="gaussian", landmarks=m, random_state=0) for m in (5000, 200))
    whole, some = (machine.fit(X[:1200], y[:1200]) for machine in machines)
    assert whole.machine_.X.shape == (1200, 6) and some.machine_.X.shape == (200, 6)
    assert some.score(X[1200:], y[1200:]) > 0.99 < whole.score(X[1200:], y[1200:])


def test_they_work_in_pipelines_and_grid_search():
    X, y = of(load_breast_cancer)
    search: Any = GridSearchCV(
        make_pipeline(StandardScaler(), FeatureMachineClassifier(solves=2, random_state=0)),
        {"featuremachineclassifier__ridge": [1e-3, 1e-1]},
        cv=2,
    ).fit(X[:300], y[:300])
    assert search.score(X[300:], y[300:]) > 0.93


def test_the_curvature_bound_ends_where_logistic_regression_does():
    X, y = of(load_breast_cancer)
    X = StandardScaler().fit_transform(X)
    ours = CurvatureBoundClassifier(sweeps=3000, ridge=1e-2).fit(X, y)
    M, t = len(X), (X**2).mean() * X.shape[1] / (X.shape[1] + 1) + 1 / (X.shape[1] + 1)
    theirs = LogisticRegression(C=1 / (M * 1e-2 * t), fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(np.concatenate([X, np.ones((M, 1))], axis=1), y)
    # two logits u, -u of a symmetric ridge: half of it counts for their difference
    difference = ours.decision_function(X)
    assert np.corrcoef(difference, theirs.decision_function(np.concatenate([X, np.ones((M, 1))], axis=1)))[0, 1] > 0.99
    assert ours.losses_[-1] <= ours.losses_[-2] + 1e-12

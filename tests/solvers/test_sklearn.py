"""The estimators of scikit-learn: its own checks, and that they are the functions of this package."""

from typing import Any

import jax
import numpy as np
import pytest
from reference import explicit_solution
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

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


# which compile little
CHEAP = {
    f"check_{name}"
    for name in (
        "estimators_unfitted no_attributes_set_in_init estimator_cloneable get_params_invariance set_params valid_tag_types "
        "parameters_default_constructible complex_data fit1d estimators_empty_data_messages supervised_y_no_nan "
        "requires_y_none classifiers_regression_target fit_non_negative estimator_sparse_array"
    ).split()
}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_an_estimator_passes_the_checks_of_scikit_learn_that_compile_little(estimator):
    every: Any = estimator_checks_generator(estimator)
    checks = [check for _, check in every if check.func.__name__ in CHEAP]
    assert len(checks) >= len(CHEAP) - 2  # some are of classifiers or of counts alone
    for check in checks:
        check(clone(estimator))


@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS)
def test_an_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_counts_of_parts_are_those_of_the_whole_and_give_the_explicit_solution():
    X, y = np.random.default_rng(0).poisson(1.0, (64, 11)).astype(float), np.arange(64) % 3
    whole, parts = ExplicitClassifier().fit(X, y), ExplicitClassifier()
    for part in (slice(0, 40), slice(40, 64)):
        parts.partial_fit(X[part], y[part], classes=np.arange(3))
    np.testing.assert_allclose(parts.cooccurrences_, whole.cooccurrences_, rtol=1e-12)
    np.testing.assert_allclose(whole.cooccurrences_, X.T @ np.eye(3)[y], rtol=1e-12)
    F = whole.cooccurrences_ + 1e-3
    np.testing.assert_allclose(whole.coef_, explicit_solution(F, F.sum() / 64), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"labels \[11\] that were not among the classes"):
        parts.partial_fit(X[:1], [11])


def test_parts_that_do_not_go_together_are_refused_and_leave_the_estimator_as_it_was():
    X, y = np.array([[3.0, 1.0], [1.0, 3.0]]), ["a", "b"]
    model = ExplicitClassifier()
    with pytest.raises(ValueError, match="Negative values"):
        model.partial_fit(-X, y)
    model.partial_fit(X, y, classes=["a", "b", "c"])  # the first call again
    before = model.cooccurrences_.copy()
    for classes, labels, message in ((["a", "b"], y, "give the same ones"), (None, ["a", "d"], "not among the classes")):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, labels, classes=classes)
        np.testing.assert_array_equal(model.cooccurrences_, before)
    model.partial_fit(2 * X, y)
    assert model.examples_ == 4 and model.K_ == pytest.approx((4 * 2 + 8 * 2) / 4 + 6e-3 / 4)  # 6 cells, smoothed by .001
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

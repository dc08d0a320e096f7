"""Estimators of scikit-learn on the solvers, in JAX's float type.

make_pipeline(StandardScaler(), FeatureMachineRegressor()).fit(X, y).score(X_new, y_new)
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from jexplicit.solvers.explicit import explicit_solution
from jexplicit.solvers.feature_machine import FeatureMachine, feature_machine, predict

_floats = [np.float64, np.float32]


class _Estimator(BaseEstimator):
    """Checks of inputs."""

    def _inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return np.asarray(validate_data(cast(Any, self), X, reset=False, dtype=_floats))

    def _examples(self, X: Any, y: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        return cast(Any, validate_data(cast(Any, self), X, y, dtype=_floats, **options))


class _Classifier(ClassifierMixin, _Estimator):
    """A classifier by its logits."""

    classes_: np.ndarray

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of all classes."""
        return softmax(self._logits(X).astype(np.float64), axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class."""
        best = self._logits(X).argmax(axis=1)  # first: without a fit there are no classes
        return self.classes_[best]

    def _logits(self, X: Any) -> np.ndarray:
        raise NotImplementedError


class _FeatureMachine(_Estimator):
    """A feature machine with a held-out choice of the number of solves."""

    def __init__(
        self,
        solves: Any = 5,
        *,
        kernel: Any = "laplace",
        bandwidth: Any = 1.0,
        ridge: Any = 1e-3,
        power: Any = 1.0,
        landmarks: Any = 5000,
        validation_fraction: Any = 0.1,
        random_state: Any = None,
    ):
        self.solves, self.kernel, self.bandwidth, self.ridge, self.power = solves, kernel, bandwidth, ridge, power
        self.landmarks, self.validation_fraction, self.random_state = landmarks, validation_fraction, random_state

    def _fit(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Solve as often as is best for a held-out part, then of all examples."""
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction {self.validation_fraction}: use 0 for none, or a number below 1")
        size = float(np.sqrt(np.mean(np.square(X, dtype=np.float64))))
        self.unit_ = 2.0 ** round(np.log2(size)) if 0 < size < np.inf else 1.0  # squares of inputs neither over- nor underflow
        self.offset_ = Y.mean(axis=0)
        X, Y = X / X.dtype.type(self.unit_), Y - self.offset_
        draws = check_random_state(self.random_state)
        held = draws.permutation(len(X))[: round(self.validation_fraction * len(X))]
        rest = np.setdiff1d(np.arange(len(X)), held)
        options: Any = {name: getattr(self, name) for name in ("kernel", "bandwidth", "ridge", "power", "landmarks")}
        options["seed"] = int(draws.randint(2**31))

        def error(machine: FeatureMachine) -> dict[str, float]:
            found = predict(machine, jnp.asarray(X[held]), kernel=self.kernel)
            return {"held_out_error": float(jnp.mean((found - Y[held]) ** 2))}

        self.history_, self.solves_ = [], self.solves
        if len(held) and self.solves > 1:
            part = jnp.asarray(X[rest]), jnp.asarray(Y[rest])
            self.history_ = feature_machine(*part, solves=self.solves, measure=error, **options)[1]
            self.solves_ = 1 + int(np.argmin([entry["held_out_error"] for entry in self.history_]))
        machine, _ = feature_machine(jnp.asarray(X), jnp.asarray(Y), solves=self.solves_, **options)
        self.machine_ = jax.tree.map(np.asarray, machine)
        self.metric_ = self.machine_.M

    def _logits(self, X: Any) -> np.ndarray:
        X = jnp.asarray((self._inputs(X) / self.unit_).astype(self.machine_.X.dtype))
        return np.asarray(predict(jax.tree.map(jnp.asarray, self.machine_), X, kernel=self.kernel)) + self.offset_


class FeatureMachineRegressor(RegressorMixin, _FeatureMachine):
    """Kernel regression that learns its metric (`jexplicit.solvers.feature_machine`).

    Args:
        solves: at most how many; `solves_` is the best number for a held-out part.
        kernel, bandwidth, ridge, power, landmarks: of `feature_machine`.
        validation_fraction: of the examples that are held out to choose the number of solves; 0 for none.
        random_state: of the held-out part and the landmarks.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 5))
        >>> FeatureMachineRegressor(random_state=0).fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.9
        True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> "FeatureMachineRegressor":
        """Fit to examples."""
        X, y = self._examples(X, y, multi_output=True, y_numeric=True)
        self._flat = y.ndim == 1
        self._fit(X, np.asarray(y, X.dtype).reshape(len(X), -1))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The predicted targets."""
        found = self._logits(X)
        return found[:, 0] if self._flat else found


class FeatureMachineClassifier(_FeatureMachine, _Classifier):
    """`FeatureMachineRegressor` of one-hot targets; probabilities are not calibrated."""

    def fit(self, X: Any, y: Any) -> "FeatureMachineClassifier":
        """Fit to labelled examples."""
        X, y = self._examples(X, y)
        check_classification_targets(y)
        self.classes_ = unique_labels(y)
        self._fit(X, np.asarray(y[:, None] == self.classes_[None], X.dtype))
        return self


class ExplicitClassifier(_Classifier):
    """The explicit solution of a softmax layer from co-occurrences (`jexplicit.solvers.explicit`), for features >= 0.

    Args:
        smoothing: added to every co-occurrence, in units of a feature.

    Example:
        >>> model = ExplicitClassifier().fit(np.array([[3.0, 1.0], [1.0, 3.0]]), ["a", "b"])
        >>> model.predict([[2.0, 1.0]]).tolist()
        ['a']
    """

    def __init__(self, *, smoothing: Any = 1e-3):
        self.smoothing = smoothing

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.classifier_tags.poor_score = True  # as scikit-learn's multinomial naive Bayes: positions of points are no counts
        return tags

    def fit(self, X: Any, y: Any) -> "ExplicitClassifier":
        """Count labelled examples."""
        return self._count(X, y, None, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "ExplicitClassifier":
        """Count more examples; the first call names the classes that it lacks."""
        return self._count(X, y, classes, first=not hasattr(self, "classes_"))

    def _count(self, X: Any, y: Any, classes: Any, *, first: bool) -> "ExplicitClassifier":
        X, y = self._examples(X, y, reset=first)
        check_classification_targets(y)
        if not isinstance(self.smoothing, float | int | np.number) or not np.float32(self.smoothing) > 0:
            raise ValueError(f"smoothing {self.smoothing!r}: use a number above 0, such as 1e-3; log 0 makes outputs of NaN")
        given = unique_labels(y) if classes is None else np.unique(classes)
        known = given if first else self.classes_
        if not first and classes is not None and not np.array_equal(given, known):
            raise ValueError(f"classes {given} after {known}: give the same ones at every partial_fit, or none")
        if len(unknown := np.setdiff1d(y, known)):
            raise ValueError(f"labels {unknown} that were not among the classes: give all classes at the first partial_fit")
        self._check_positive(X)
        labels = np.searchsorted(known, y)
        counted = X.T.astype(np.float64) @ np.eye(len(known))[labels]
        self.classes_ = known
        self.cooccurrences_ = counted if first else self.cooccurrences_ + counted
        self.examples_ = len(X) if first else self.examples_ + len(X)
        F = self.cooccurrences_ + self.smoothing
        self.K_ = max(1.0, float(F.sum()) / self.examples_)  # the mean norm of the features
        self.coef_ = np.asarray(explicit_solution(F, self.K_), np.float64)
        return self

    def _logits(self, X: Any) -> np.ndarray:
        X = self._inputs(X)
        self._check_positive(X)
        return X @ self.coef_

    def _check_positive(self, X: np.ndarray) -> None:
        if X.min() < 0:
            raise ValueError("Negative values in data passed to ExplicitClassifier: split signed features by positive_parts")

"""Classifiers of scikit-learn on the examples that a learner has seen: what else could have been made of them.

Their regularisation is chosen on these examples alone: that of ridge regression by leaving one out, that of logistic regression
by the accuracy on up to five parts, each left out in turn.
"""

import functools
import warnings
from typing import Any, Literal, get_args

import numpy as np

from icl.blur.data import Examples
from icl.blur.learning import minibatches

Classifier = Literal["nearest neighbour", "logistic regression", "ridge regression"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)

_ridges = tuple(np.logspace(-3, 5, 9).tolist())  # λ of |W|² beside a sum of squared errors
_strengths = tuple(np.logspace(-3, 1, 5).tolist())  # C, in front of a sum of losses
_parts, _iterations, _tolerance = 5, 1000, 1e-3


def fit_classifier(name: Classifier, train: Examples) -> Any:
    """A fitted estimator of scikit-learn, whose classes are the outputs; inputs are as they are for a learner.

    With a single class, or for logistic regression with fewer than two classes of two examples, nothing can be left out: the
    nearest neighbour then stands in, or C = 1.
    """
    from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.neighbors import KNeighborsClassifier

    X, labels = np.asarray(train.X, np.float64), np.asarray(train.Y).argmax(axis=1)
    counts = np.sort(np.bincount(labels, minlength=2))[::-1]
    if name == "nearest neighbour" or counts[1] == 0:
        return KNeighborsClassifier(n_neighbors=1).fit(X, labels)
    if name == "ridge regression":
        return RidgeClassifierCV(alphas=_ridges).fit(X, labels)
    logistic, parts = LogisticRegression(max_iter=_iterations, tol=_tolerance), min(_parts, int(counts[1]))
    if parts < 2:
        return logistic.fit(X, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class of fewer examples than parts; hard cases that do not converge
        return GridSearchCV(logistic, {"C": _strengths}, cv=StratifiedKFold(parts)).fit(X, labels)


def classifier_accuracies(
    name: Classifier, train: Examples, test: Examples, *, at: tuple[int, ...], batch_size: int, seeds: tuple[int, ...]
) -> np.ndarray:
    """[seeds, at] accuracies on `test` of a classifier of the examples in the first n minibatches of a learner, n of `at`."""

    @functools.cache
    def accuracy(seen: tuple[int, ...]) -> float:  # once they are all examples, they are the same for all learners
        rows = list(seen)
        fitted = fit_classifier(name, Examples(train.X[rows], train.Y[rows]))
        return float(fitted.score(np.asarray(test.X, np.float64), np.asarray(test.Y).argmax(axis=1)))

    def accuracies(seed: int) -> list[float]:
        batches = minibatches(seed, len(train.X), steps=max(at), batch_size=batch_size)
        return [accuracy(tuple(np.unique(batches[:n]).tolist())) for n in at]

    return np.array([accuracies(seed) for seed in seeds])

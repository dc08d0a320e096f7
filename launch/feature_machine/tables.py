"""Tables of scikit-learn by a feature machine, kernels and gradient boosting.

Every model chooses its settings from a grid of its own, by cross-validation within the examples that it is fitted to.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.base import BaseEstimator, is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from jexplicit.runs.progress import stage
from jexplicit.sklearn import FeatureMachineClassifier, FeatureMachineRegressor
from launch.feature_machine.config import TablesConfig
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Results, Row, Table, groups


class Model(NamedTuple):
    """An estimator, and the values of its parameters to choose from."""

    estimator: BaseEstimator
    grid: dict[str, list[Any]]


def read_table(name: str, seed: int, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets in random order."""
    loaders: dict[str, Callable[[], Any]] = {
        "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
        "friedman": lambda: datasets.make_friedman1(1000, noise=1.0, random_state=seed),
        "breast-cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
        "wine": lambda: datasets.load_wine(return_X_y=True),
    }
    X, y = loaders[name]()
    order = np.random.default_rng(seed).permutation(len(X))[:limit]
    return X[order], y[order]


def models(classes: bool, inputs: int, seed: int) -> dict[str, Model]:
    """The models of a table, by name."""
    ridges, scales = [1e-3, 1e-2, 1e-1, 1.0], [0.5, 1.0, 2.0]
    machine = FeatureMachineClassifier if classes else FeatureMachineRegressor
    boosting = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    of_machine = {"ridge": ridges, "bandwidth": scales}
    gammas = {"gamma": [scale / inputs for scale in (0.25, 1.0, 4.0)]}  # of inputs of variance 1
    kernel = Model(SVC(), {"C": [0.1, 1.0, 10.0, 100.0], **gammas}) if classes else None
    kernel = kernel or Model(KernelRidge(), {"alpha": ridges, "kernel": ["rbf", "laplacian"], **gammas})
    scales_of_inputs: Any = np.ones(inputs)
    process = GaussianProcessRegressor(1.0 * RBF(scales_of_inputs) + WhiteKernel(), normalize_y=True, random_state=seed)
    return {
        "feature machine": Model(machine(random_state=seed), of_machine),
        "the same, one solve": Model(machine(solves=1), of_machine),
        "support vectors" if classes else "kernel ridge": kernel,
        **({} if classes else {"Gaussian process, a scale for each input": Model(process, {})}),
        "gradient boosting": Model(
            boosting(random_state=seed), {"learning_rate": [0.03, 0.1, 0.3], "max_leaf_nodes": [4, 8, 16, 31]}
        ),
    }


def check(config: TablesConfig) -> None:
    """Refuse flags that leave nothing to do."""
    if not config.data:
        raise ValueError("--data needs at least one table, such as diabetes")


def measure(config: TablesConfig, folder: RunFolder) -> Iterator[Part]:
    """Every model on every fold of every table."""
    for data in config.data:
        X, y = read_table(data, config.seed, config.limit)
        classes = y.dtype.kind in "iu"
        for method in models(classes, X.shape[1], config.seed):
            yield {"data": data, "method": method}, lambda t=(X, y), name=method: _measured(config, *t, name)


def _measured(config: TablesConfig, X: np.ndarray, y: np.ndarray, method: str) -> list[Row]:
    estimator, grid = models(y.dtype.kind in "iu", X.shape[1], config.seed)[method]
    folds = (StratifiedKFold if is_classifier(estimator) else KFold)(config.folds, shuffle=True, random_state=config.seed)
    own = {f"{type(estimator).__name__.lower()}__{name}": values for name, values in grid.items()}
    rows = []
    with stage(method, "folds") as progress:
        for fold, (train, test) in enumerate(folds.split(X, y)):
            start, used = time.perf_counter(), time.process_time()
            search = GridSearchCV(make_pipeline(StandardScaler(), estimator), own, cv=config.inner_folds)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the scale of an input that does not matter has no limit
                search.fit(X[train], y[train])
            chosen = {name.split("__")[1]: value for name, value in search.best_params_.items()}
            fitted: Any = search.best_estimator_[-1]
            score = {"score": search.score(X[test], y[test]), "measure": "accuracy" if is_classifier(estimator) else "R2"}
            costs = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - used}
            sizes = {"examples": len(X), "inputs": X.shape[1], "fold": fold}
            solves = {"solve": fitted.solves_} if hasattr(fitted, "solves_") else {}
            rows.append({**sizes, **score, **chosen, **solves, **costs})
            progress(fold + 1, config.folds)
    return rows


def _means(results: Results) -> list[Row]:
    """Of every model on every table, the mean over folds, and the standard deviation."""
    found, tables = [], groups(results.rows, ["data"]).values()
    for rows in (rows for table in tables for rows in groups(table, ["method"]).values()):
        scores, solves = [row["score"] for row in rows], ", ".join(str(row["solve"]) for row in rows if "solve" in row)
        of_all = {"score": float(np.mean(scores)), "spread": float(np.std(scores)), "solves": solves}
        found.append({**rows[0], **of_all, "cpu_seconds": sum(row["cpu_seconds"] for row in rows)})
    return found


RESULTS = Table(
    [
        *(Column("table", "data"), Column("examples", "examples", ",d"), Column("inputs", "inputs", "d")),
        *(Column("model", "method"), Column("measure", "measure"), Column("of new examples", "score", ".3f")),
        *(Column("± folds", "spread", ".3f"), Column("solves, by fold", "solves"), Column("CPU s", "cpu_seconds", ",.0f")),
    ],
    rows=_means,
    note="Means over folds of R² or accuracy, and standard deviations. Every model chose its settings by cross-validation "
    "within the other folds; *feature machine* has the Laplace kernel, and *one solve* is kernel regression with it. CPU "
    "seconds are those of all folds with the choice.",
)
_about: Any = {"extend": ("data",), "title": "launch.feature_machine tables: is a learned metric of use?"}
EXPERIMENT = Experiment("feature-machine", TablesConfig, measure, [RESULTS], check=check, **_about)

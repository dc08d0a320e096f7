"""Methods without backpropagation: closed forms and sweeps on pixels, on explicit features and on a trained first layer.

scikit-learn's logistic regression is here for comparison.
"""

import functools
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import pixel_features
from jexplicit.features.patches import Filters, patch_features, patch_filters
from jexplicit.features.positive import random_directions, random_features, unit_rows
from jexplicit.runs.devices import full_precision
from jexplicit.runs.progress import stage
from jexplicit.solvers.calibration import calibration_error, fit_temperature
from jexplicit.solvers.curvature_bound import curvature_bound_sweeps
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution, priming_number
from jexplicit.solvers.iterative_scaling import iterative_scaling_sweeps
from jexplicit.solvers.layerwise import SoftmaxLayer, solve_layers, stack_logits
from jexplicit.solvers.metrics import mean_loss
from jexplicit.solvers.priming import delta_intercept, fit_image_delta, intercept_logits
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.base import (
    Parts,
    Problem,
    Split,
    dev_scores,
    held_out_tenth,
    keep,
    load_model,
    log_reliability,
    make_key,
    model_name,
    row_name,
    save_model,
)
from launch.digits.config import Config
from launch.kit.rows import Row, where

PIXELS = {
    "explicit": "explicit",
    "delta": "explicit",
    "scaling": "scaling",
    "quadratic": "quadratic",
    "logistic_regression": "lbfgs",
}
"""Methods on pixels, with their solvers."""
_floor = 0.01  # of the mean rectified unit, added to all: every unit meets every class, as the 1 in (X + 1)/256 does for pixels


class Inputs(NamedTuple):
    """What a layer reads.

    K: priming number.
    fields: of the row.
    seconds: that the features took.
    params: saved with the layer.
    """

    train: Split
    test: Split
    K: float | None
    fields: Row = {}
    seconds: float = 0.0
    params: Mapping[str, Any] = {}


class Model(NamedTuple):
    """What is saved of a model, its logits of features, and fields of its row."""

    params: Any
    logits: Callable[[Array], Array]
    fields: Row = {}


def pixels(problem: Problem, method: str) -> Parts:
    """A method on pixels; the explicit solution has a row for every number of layers."""
    solver, sweeps = PIXELS[method], {"scaling": problem.config.sweeps, "quadratic": problem.config.quadratic_sweeps}
    inputs = Inputs(problem.train, problem.test, None if solver in ("quadratic", "lbfgs") else problem.K)
    for layers in problem.config.layers if method == "explicit" else (1,):
        key = make_key(method, solver, layers=layers)
        yield key, functools.partial(_measure, problem, key, sweeps.get(solver, 0), lambda: inputs)


def features(problem: Problem) -> Parts:
    """Layers on explicit features of each kind: the explicit solution, iterative scaling and the bound on the curvature."""
    sweeps = {"explicit": 0, "scaling": problem.config.feature_sweeps, "quadratic": problem.config.quadratic_sweeps}
    for kind in problem.config.featurizers:
        inputs = functools.cache(functools.partial(_featurize, problem, kind))
        for solver, number in sweeps.items():
            key = make_key("features", solver, features=kind)
            yield key, functools.partial(_measure, problem, key, number, inputs)


def _featurize(problem: Problem, kind: str) -> Inputs:
    """Positive features with rows of norm 1; their filters are saved."""
    config, images, start = problem.config, problem.images, time.perf_counter()
    X, levels = images.train_images, images.levels
    with stage(f"{kind} features", "images") as progress:
        if kind == "random":
            weights = {"W": random_directions(jax.random.key(config.seed), problem.train.H.shape[1], config.directions)}
        else:
            size, _ = patch_sizes(config, min(X.shape[1:]))
            weights = patch_filters(X, levels, size=size, number=config.filters, seed=config.seed)._asdict()
        save_model(problem, kind, weights)
        both = (explicit_features(x, levels, weights, config, progress=progress) for x in (X, images.test_images))
        H, H_test = map(jax.block_until_ready, both)
    seconds = time.perf_counter() - start
    fields = {"dimensions": H.shape[1], "feature_seconds": seconds}
    return Inputs(problem.train._replace(H=H), problem.test._replace(H=H_test), 1.0, fields, seconds)


def explicit_features(X: np.ndarray, levels: int, weights: Mapping[str, Array], config: Config, **options: Any) -> Array:
    """Features of images [M, height, width], of filters W and b of patches or of directions W in pixel space."""
    if "b" not in weights:
        return unit_rows(random_features(jnp.asarray(pixel_features(X, levels)), weights["W"], threshold=config.threshold))
    filters = Filters(**weights)
    grid = config.grid or _cells(min(X.shape[1:]) - filters.size() + 1)
    return unit_rows(patch_features(X, levels, filters, grid=grid, threshold=config.threshold, **options))


def patch_sizes(config: Config, side: int) -> tuple[int, int]:
    """Pixels along a filter, and cells along the grid of its responses, for images of this side."""
    size = config.patch or max(3, round(side / 4.5))
    return size, config.grid or _cells(side - size + 1)


def _cells(responses: int) -> int:
    return max(3, round(responses / 6))


def second(problem: Problem) -> Parts:
    """A second layer over the first layer of every trained model: the explicit solution, and the bound on the curvature."""
    for first, name in first_layers(problem.config).items():
        inputs = functools.cache(functools.partial(_first_layer, problem, first, name))
        for solver, sweeps in (("explicit", 0), ("quadratic", problem.config.quadratic_sweeps)):
            key = make_key("solved_second", solver, layers=2, features=first)
            yield key, functools.partial(_measure, problem, key, sweeps, inputs)


def first_layers(config: Config) -> dict[str, str]:
    """The trained models whose first layer a run can keep, and their checkpoints."""
    stacks = {name: f"{name}_1" for name in ("cold", "warm") if 1 in config.layers}
    return {name: path for name, path in (stacks | {"network": "network_2"}).items() if name in config.methods}


def _first_layer(problem: Problem, first: str, name: str) -> Inputs:
    params = load_model(problem.folder.path / "checkpoints" / name)
    floor = (_floor if first == "network" else 0.0) * first_outputs(first, params, problem.train.H).mean()
    train, test = (s._replace(H=first_outputs(first, params, s.H) + floor) for s in (problem.train, problem.test))
    seconds = max(row["seconds"] for row in problem.folder.rows() if model_name(row) == name)
    K = max(1.0, float(priming_number(train.H)))
    return Inputs(train, test, K, {"backprop_free": False}, seconds, {"first": params, "floor": floor})


@full_precision
def first_outputs(first: str, params: Any, H: Array) -> Array:
    """Outputs of a trained first layer: a softmax, or rectified units."""
    if first == "network":
        dense = params["hidden_1"]["Dense_0"]
        return jax.nn.relu(H @ dense["kernel"] + dense["bias"][None, :])
    return jax.nn.softmax(H @ params["layer_1"]["kernel"])


def layer_inputs(row: Row, H: Array) -> Array:
    """Features, and a constant 1 where sweeps with the bound on the curvature read features without one."""
    constant = row["solver"] == "quadratic" and row["method"] != "features"
    return jnp.pad(H, ((0, 0), (0, 1)), constant_values=1) if constant else H


def _measure(problem: Problem, key: Row, sweeps: int, make_inputs: Callable[[], Inputs]) -> list[Row]:
    """The row of a model; interrupted sweeps continue."""
    inputs, about = make_inputs(), {"features": key["features"], "solver": key["solver"]}
    train, test = (split._replace(H=layer_inputs(key, split.H)) for split in (inputs.train, inputs.test))
    checkpoints = problem.folder.path / "checkpoints" / f"{row_name(key)}.partial"
    earlier = where(problem.folder.events("sweep"), **about) if checkpoints.exists() else []
    start = time.perf_counter() - (earlier[-1]["seconds"] if earlier else 0.0)

    def on_sweep(sweep: int, loss: float) -> None:
        problem.folder.log(event="sweep", **about, sweep=sweep, loss=loss, seconds=time.perf_counter() - start)

    with stage(row_name(key), "sweeps") as progress:
        options = {"sweeps": sweeps, "checkpoints": checkpoints, "on_sweep": on_sweep, "progress": progress}
        params, logits, fields = _solve(problem.config, key, train, inputs.K, options)
        jax.block_until_ready(params)
    seconds = time.perf_counter() - start + inputs.seconds
    both, tenth = (logits(train.H), logits(test.H)), held_out_tenth(problem)
    unseen = key["method"] != "solved_second" or problem.config.stop_on == "held_out"  # by a trained first layer
    part = _solve(problem.config, key, train.rows(~tenth), inputs.K, {"sweeps": sweeps})
    dev = part.logits(train.H[tenth])
    if key["method"] == "explicit":
        fields = _calibrated(problem, key, dev, both[1])
    fields = {**fields, **(dev_scores(problem, dev) if unseen else {"dev_accuracy": None, "dev_loss": None})}
    row: Any = {"epochs": sweeps, "priming_number": inputs.K, **inputs.fields, **fields, "seconds": seconds}
    return [keep(problem, key, {**inputs.params, **params} if inputs.params else params, *both, **row)]


def _solve(config: Config, key: Row, split: Split, K: Any, options: Any) -> Model:
    """The model of a row, fitted to some images; the options are those of sweeps."""
    H, Y, labels = split
    match key["method"], key["solver"]:
        case "explicit", _:
            decoders = explicit_decoders(split, K, key["layers"])
            return Model(list(decoders), functools.partial(stack_logits, decoders))
        case "logistic_regression", _:
            return _logistic_regression(split, config.logistic_iterations)
        case _, "quadratic":
            return linear(curvature_bound_sweeps(H, Y, ridge=config.ridge, **options))
    F, f = dense_cooccurrence(H, Y), Y.sum(axis=0)
    if key["method"] == "delta":
        delta = fit_image_delta(H, labels, F, f, K).delta
        log_w = delta_intercept(F, f, K, delta)
        params = {"U": jnp.log(F) + log_w[None, :], "intercept": jnp.zeros_like(log_w)}
        return Model(params, functools.partial(intercept_logits, F=F, log_w=log_w), {"delta": delta})
    U = explicit_solution(F, K)
    if key["solver"] == "scaling":
        return linear(iterative_scaling_sweeps(H, Y, U, **options))
    return linear(SoftmaxFit(U, jnp.zeros_like(U[0]), ()))


def explicit_decoders(split: Split, K: float, layers: int) -> tuple[Array, ...]:
    """The decoders of a stack, solved layer by layer on some images."""
    return solve_layers(split.H, split.Y, [SoftmaxLayer(K=K), *[SoftmaxLayer()] * (layers - 1)]).params


def linear(fit: SoftmaxFit, **fields: Any) -> Model:
    """A softmax layer with an intercept."""
    return Model({"U": fit.U, "intercept": fit.intercept}, fit.logits, fields)


def _logistic_regression(split: Split, iterations: int) -> Model:
    """scikit-learn's multinomial logistic regression, without regularisation."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is a flag, and in the row
        model = LogisticRegression(C=np.inf, max_iter=iterations).fit(np.asarray(split.H), np.asarray(split.labels))
    U, b = model.coef_.T, model.intercept_
    if U.shape[1] == 1:  # two classes
        U, b = np.concatenate([-U / 2, U / 2], axis=1), np.concatenate([-b / 2, b / 2])
    fit = SoftmaxFit(jnp.asarray(U, split.H.dtype), jnp.asarray(b, split.H.dtype), ())
    return linear(fit, epochs=int(model.n_iter_.max()), backprop_free=False)


def _calibrated(problem: Problem, key: Row, dev: Array, test: Array) -> Row:
    """What one temperature makes of an explicit solution: that of the solution of nine tenths on the held-out tenth."""
    temperature = fit_temperature(dev, problem.train.labels[held_out_tenth(problem)])
    cooled = test / temperature
    log_reliability(problem, f"{row_name(key)}, one temperature", cooled)
    loss, error = mean_loss(cooled, problem.test.Y), calibration_error(cooled, problem.test.labels)
    return {"temperature": temperature, "calibrated_loss": loss, "calibrated_error": error}

"""The methods of launch.digits that need no backpropagation, and scikit-learn's logistic regression for comparison."""

import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images, pixel_features
from jexplicit.features.patches import Filters, patch_features, patch_filters
from jexplicit.features.positive import random_directions, random_features, unit_rows
from jexplicit.runs.checkpoints import load_checkpoint, save_checkpoint
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import stage
from jexplicit.solvers.calibration import calibration_error, fit_temperature, reliability
from jexplicit.solvers.curvature_bound import curvature_bound_sweeps
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution
from jexplicit.solvers.iterative_scaling import iterative_scaling_sweeps
from jexplicit.solvers.layerwise import SoftmaxLayer, solve_layers, stack_logits
from jexplicit.solvers.metrics import accuracy, mean_loss
from jexplicit.solvers.priming import (
    fit_image_delta,
    fit_intercept,
    intercept_logits,
    log_intercept,
    mean_cooccurrence_intercept,
)
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.config import Config
from launch.digits.report import row_name


class Part(NamedTuple):
    """Features, one-hot targets and labels of some images."""

    H: Array
    Y: Array
    labels: Array


class Job(NamedTuple):
    """What every method needs. K is the priming number of the pixels; about: fields that all rows share."""

    config: Config
    folder: RunFolder
    images: Images
    train: Part
    test: Part
    K: float
    about: dict[str, Any]


def new_row(method: str, solver: str, **fields: Any) -> dict[str, Any]:
    """The row of a method before it is measured."""
    row = {"method": method, "layers": 1, "features": "pixels", "solver": solver, "epochs": 0, "priming_number": None}
    return row | {"backprop_free": True} | fields


def has_row(job: Job, row: dict[str, Any]) -> bool:
    """Whether the run has measured this row already."""
    return row_name(row) in map(row_name, job.folder.rows())


def scores(job: Job, train: Array, test: Array) -> dict[str, float]:
    """Accuracy and loss of logits on the train and the test images."""
    parts = {"test": (test, job.test), "train": (train, job.train)}
    return {f"{name}_accuracy": accuracy(logits, part.labels) for name, (logits, part) in parts.items()} | {
        f"{name}_loss": mean_loss(logits, part.Y) for name, (logits, part) in parts.items()
    }


def add_row(job: Job, row: dict[str, Any], train: Array, test: Array, params: Any) -> None:
    """Add a row from the logits on the train and the test images; keep the model's parameters and its guesses."""
    save_model(job, checkpoint_name(row), params)
    save_guesses(job, row, test)
    measured = {**scores(job, train, test), "calibration_error": calibration_error(test, job.test.labels)}
    job.folder.add_row({**row, **measured, **job.about})


def log_reliability(job: Job, name: str, test: Array) -> None:
    """Keep the confidence and the accuracy of a model on the test images, by bin."""
    curve = reliability(test, job.test.labels)
    job.folder.log(event="reliability", name=name, **{field: part.tolist() for field, part in curve._asdict().items()})


def save_guesses(job: Job, row: dict[str, Any], test: Array) -> None:
    """Keep the class that a row's model gives each test image, and how far its confidence can be believed."""
    log_reliability(job, row_name(row), test)
    path = guesses_path(job.folder.path, row)
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.asarray(test.argmax(axis=1), np.uint8))


def guesses_path(out: Path, row: dict[str, Any]) -> Path:
    """Where a run keeps the class that a row's model gives each test image."""
    return out / "guesses" / f"{row_name(row)}.npy"


def checkpoint_name(row: Mapping[str, Any]) -> str:
    """The checkpoint of a row's model; rows that differ in when training stopped share one."""
    return (
        f"{row['features']}_{row['solver']}"
        if row["method"] in ("features", "kernel", "solved_second")
        else f"{row['method']}_{row['layers']}"
    )


def model_path(job: Job, name: str) -> Path:
    """Where a run keeps the parameters of a model."""
    return job.folder.path / "checkpoints" / name


def save_model(job: Job, name: str, params: Any) -> None:
    """Write the parameters of a model to its checkpoint."""
    save_checkpoint(model_path(job, name), {"params": jax.tree.map(np.asarray, params)})


def first_layer(job: Job, name: str) -> Array | None:
    """The first array of a saved model, U⁽¹⁾ of a stack of softmax layers; None if the run has no such model."""
    path = model_path(job, name)
    return jax.tree.leaves(load_checkpoint(path)["params"])[0] if path.is_dir() else None


def held_out_tenth(job: Job) -> np.ndarray:
    """Which training images choose ridges and temperatures: a drawn tenth, since labels may come in order."""
    chosen = np.zeros(len(job.train.labels), bool)
    order = np.random.default_rng(job.config.seed).permutation(len(chosen))
    chosen[order[: max(1, len(chosen) // 10)]] = True
    return chosen


def measure_explicit(job: Job) -> None:
    """The explicit solution of every number of layers, and what one temperature makes of its probabilities."""
    for layers in job.config.layers:
        row = new_row("explicit", "explicit", layers=layers, priming_number=job.K)
        if has_row(job, row):
            continue
        start = time.perf_counter()
        with stage(row_name(row)):
            decoders = jax.block_until_ready(explicit_decoders(job.train, job.K, layers))
        row["seconds"] = time.perf_counter() - start
        train, test = (stack_logits(decoders, part.H) for part in (job.train, job.test))
        temperature = _explicit_temperature(job, layers)
        log_reliability(job, f"{row_name(row)}, one temperature", test / temperature)
        row |= {"temperature": temperature, "calibrated_loss": mean_loss(test / temperature, job.test.Y)}
        row |= {"calibrated_error": calibration_error(test / temperature, job.test.labels)}
        add_row(job, row, train, test, list(decoders))


def _explicit_temperature(job: Job, layers: int) -> float:
    """The temperature on the held-out tenth of the solution of the others: an exponent of F, with one layer."""
    tenth = held_out_tenth(job)
    rest, held_out = (Part(*(x[rows] for x in job.train)) for rows in (~tenth, tenth))
    return fit_temperature(stack_logits(explicit_decoders(rest, job.K, layers), held_out.H), held_out.labels)


def explicit_decoders(part: Part, K: float, layers: int) -> tuple[Array, ...]:
    """The decoders of a stack, solved layer by layer on some images."""
    return solve_layers(part.H, part.Y, [SoftmaxLayer(K=K), *[SoftmaxLayer()] * (layers - 1)]).params


def measure_delta(job: Job) -> None:
    """The delta-corrected exponent: one number, with the lowest loss on the training images."""

    def solve(F: Array, f: Array) -> tuple[Array, dict[str, float]]:
        delta = fit_image_delta(job.train.H, job.train.labels, F, f, job.K).delta
        return log_intercept(F, job.K) - delta / job.K * jnp.log(f), {"delta": delta}

    _measure_weights(job, "delta", solve)


def measure_mean_cooccurrence(job: Job) -> None:
    """The weights of Eq. 14, from the mean co-occurrences themselves."""
    _measure_weights(job, "mean_cooccurrence", lambda F, f: (mean_cooccurrence_intercept(job.train.H, F, f, job.K), {}))


def _measure_weights(job: Job, method: str, solve: Callable[[Array, Array], tuple[Array, dict[str, float]]]) -> None:
    """The explicit solution with other column weights. solve: `(F, f) -> log w, fields of the row`."""
    row = new_row(method, "explicit", priming_number=job.K)
    if has_row(job, row):
        return
    start = time.perf_counter()
    with stage(method):
        F, f = dense_cooccurrence(job.train.H, job.train.Y), job.train.Y.sum(axis=0)
        log_w, more = solve(F, f)
    row |= {"seconds": time.perf_counter() - start, **more}
    train, test = (intercept_logits(part.H, F, log_w) for part in (job.train, job.test))
    add_row(job, row, train, test, {"U": jnp.log(F) + log_w[None, :], "intercept": jnp.zeros_like(log_w)})


def measure_intercept(job: Job) -> None:
    """The best intercept w for a frozen log F."""
    row = new_row("intercept", "scaling", epochs=job.config.sweeps, priming_number=job.K)
    if has_row(job, row):
        return
    start = time.perf_counter()
    with stage("intercept"):
        F = dense_cooccurrence(job.train.H, job.train.Y)
        fit = fit_intercept(job.train.H, job.train.Y, F, K=job.K, sweeps=job.config.sweeps)
    row["seconds"] = time.perf_counter() - start
    add_row(job, row, fit.logits(job.train.H), fit.logits(job.test.H), linear_params(fit))


def linear_params(fit: SoftmaxFit) -> dict[str, Array]:
    """What is saved of a softmax layer."""
    return {"U": fit.U, "intercept": fit.intercept}


def measure_scaling(job: Job) -> None:
    """Iterative scaling on pixels, from the explicit solution."""
    row = new_row("scaling", "scaling", epochs=job.config.sweeps, priming_number=job.K)
    measure_fit(job, row, job.train, job.test)


def measure_quadratic(job: Job) -> None:
    """Sweeps with the curvature bound, on pixels and a constant."""
    parts = (part._replace(H=with_constant(part.H)) for part in (job.train, job.test))
    measure_fit(job, new_row("quadratic", "quadratic", epochs=job.config.quadratic_sweeps), *parts)


def with_constant(H: Array) -> Array:
    """Features and a constant 1."""
    return jnp.pad(H, ((0, 0), (0, 1)), constant_values=1)


def measure_features(job: Job) -> None:
    """Explicit features of each kind, with the explicit solution, iterative scaling and the curvature bound as readouts."""
    sweeps = {"explicit": 0, "scaling": job.config.feature_sweeps, "quadratic": job.config.quadratic_sweeps}
    for kind in job.config.featurizers:
        rows = [new_row("features", solver, features=kind, epochs=n, priming_number=1.0) for solver, n in sweeps.items()]
        if all(has_row(job, row) for row in rows):
            continue
        start = time.perf_counter()
        features = jax.block_until_ready(featurize(job, kind))
        seconds = time.perf_counter() - start
        train, test = (part._replace(H=H) for part, H in zip((job.train, job.test), features, strict=True))
        for row in rows:
            measure_fit(job, {**row, "dimensions": train.H.shape[1], "feature_seconds": seconds}, train, test)


def patch_sizes(config: Config, side: int) -> tuple[int, int]:
    """Pixels along a filter, and cells along the grid of its responses, for images of this side.

    Raises:
        ValueError: filters larger than the images, or more cells than responses.
    """
    size = config.patch or max(3, round(side / 4.5))
    grid = config.grid or max(3, round((side - size + 1) / 6))
    if size > side:
        raise ValueError(f"--patch {size} of images {side} pixels wide: use at most {side}")
    if grid > side - size + 1:
        raise ValueError(f"--grid {grid} of {side - size + 1} responses along a side: use at most that, or a smaller --patch")
    return size, grid


def featurize(job: Job, kind: str) -> tuple[Array, Array]:
    """Positive features with rows of norm 1, of the train and the test images; their filters are kept."""
    config, images = job.config, job.images
    with stage(f"{kind} features", "images") as progress:
        if kind == "random":
            weights = {"W": random_directions(jax.random.key(config.seed), job.train.H.shape[1], config.directions)}
        else:
            size, _ = patch_sizes(config, min(images.train_images.shape[1:]))
            filters = patch_filters(images.train_images, images.levels, size=size, number=config.filters, seed=config.seed)
            weights = filters._asdict()
        save_model(job, kind, weights)
        both, options = (images.train_images, images.test_images), (config.grid, config.threshold)
        train, test = (explicit_features(X, images.levels, weights, *options, progress=progress) for X in both)
    return train, test


def explicit_features(
    X: np.ndarray, levels: int, weights: dict[str, Array], grid: int | None, threshold: float, **options: Any
) -> Array:
    """Features of images: of filters W and b of patches, or of directions W in pixel space.

    Args:
        X: [M, height, width] grey levels 0 .. levels - 1.
        weights: what `featurize` keeps.
        grid, threshold: as in the config.
        options: of `patch_features`.
    """
    if "b" not in weights:
        H = jnp.asarray(pixel_features(X, levels))
        return unit_rows(random_features(H, weights["W"], threshold=threshold))
    filters = Filters(weights["W"], weights["b"])
    grid = grid or max(3, round((min(X.shape[1:]) - filters.size() + 1) / 6))
    return unit_rows(patch_features(X, levels, filters, grid=grid, threshold=threshold, **options))


def measure_fit(job: Job, row: dict[str, Any], train: Part, test: Part) -> None:
    """Fit the softmax layer that a row describes, and add the row; interrupted sweeps continue."""
    if has_row(job, row):
        return
    name, about = row_name(row), {"features": row["features"], "solver": row["solver"]}
    checkpoints = model_path(job, f"{name}.partial")
    earlier = [event["seconds"] for event in job.folder.events("sweep") if about.items() <= event.items()]
    start = time.perf_counter() - (earlier[-1] if earlier else 0.0)

    def on_sweep(sweep: int, loss: float) -> None:
        job.folder.log(event="sweep", **about, sweep=sweep, loss=loss, seconds=time.perf_counter() - start)

    with stage(name, "sweeps") as progress:
        fit = solve(job, row, train, checkpoints=checkpoints, on_sweep=on_sweep, progress=progress)
        jax.block_until_ready(fit.U)
    row = {**row, "seconds": time.perf_counter() - start + row.get("feature_seconds", 0.0)}
    add_row(job, row, fit.logits(train.H), fit.logits(test.H), linear_params(fit))
    shutil.rmtree(checkpoints, ignore_errors=True)


def solve(job: Job, row: dict[str, Any], train: Part, **options: Any) -> SoftmaxFit:
    """The softmax layer of a row: explicit, by iterative scaling from there, or by the curvature bound from zeros."""
    H, Y, sweeps = train.H, train.Y, row["epochs"]
    if row["solver"] == "quadratic":
        return curvature_bound_sweeps(H, Y, sweeps=sweeps, ridge=job.config.ridge, **options)
    U = explicit_solution(dense_cooccurrence(H, Y), row["priming_number"])
    if row["solver"] == "scaling":
        return iterative_scaling_sweeps(H, Y, U, sweeps=sweeps, **options)
    return SoftmaxFit(U, jnp.zeros_like(U[0]), np.zeros(0))


def measure_logistic_regression(job: Job) -> None:
    """scikit-learn's multinomial logistic regression on pixels, without regularisation."""
    row = new_row("logistic_regression", "lbfgs", backprop_free=False)
    if has_row(job, row):
        return
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with stage("logistic regression"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is a flag, and in the row
        start = time.perf_counter()
        model = LogisticRegression(C=np.inf, max_iter=job.config.logistic_iterations)
        model.fit(np.asarray(job.train.H), np.asarray(job.train.labels))
        row |= {"seconds": time.perf_counter() - start, "epochs": int(model.n_iter_.max())}

    U, intercept = model.coef_.T, model.intercept_
    if U.shape[1] == 1:  # two classes
        U, intercept = np.concatenate([-U / 2, U / 2], axis=1), np.concatenate([-intercept / 2, intercept / 2])
    dtype = job.train.H.dtype
    fit = SoftmaxFit(jnp.asarray(U, dtype), jnp.asarray(intercept, dtype), np.zeros(0))
    add_row(job, row, fit.logits(job.train.H), fit.logits(job.test.H), linear_params(fit))

"""The models of launch.digits that need no backpropagation, and scikit-learn's logistic regression beside them."""

import shutil
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.counts.dense import dense_cooccurrence
from jexplicit.data.images import Images
from jexplicit.runs.checkpoints import load_checkpoint, save_checkpoint
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import stage
from jexplicit.solvers.curvature_bound import quadratic_sweeps
from jexplicit.solvers.explicit import explicit_solution
from jexplicit.solvers.features import patch_features, patch_filters, random_directions, random_features, unit_rows
from jexplicit.solvers.iterative_scaling import Scaled, scaling_sweeps
from jexplicit.solvers.layerwise import Layer, accuracy, solve_layers, stack_logits
from jexplicit.solvers.priming import fit_intercept
from launch.digits.config import Config
from launch.digits.report import row_name


class Part(NamedTuple):
    """Features, one-hot targets and labels of the train or test images."""

    H: Array
    Y: Array
    labels: Array


class Job(NamedTuple):
    """What every measured model needs. K is the priming number of the pixels."""

    config: Config
    folder: RunFolder
    images: Images
    train: Part
    test: Part
    K: float
    about: dict[str, Any]  # fields that all rows share


def has_row(job: Job, **wanted: Any) -> bool:
    """Whether the run has measured a model already."""
    return any(all(row.get(name) == value for name, value in wanted.items()) for row in job.folder.rows())


def add_row(job: Job, row: dict[str, Any]) -> None:
    """Add a row to results.json, with the fields that all share."""
    job.folder.add_row({**row, **job.about})


def add_measured(job: Job, method: str, solver: str, logits: tuple[Array, Array], **more: Any) -> None:
    """Add the row of a model from its logits on the train and the test images, and keep its guesses for the pictures."""
    train, test = logits
    row = {
        "method": method,
        "layers": 1,
        "features": "pixels",
        "solver": solver,
        "test_accuracy": accuracy(test, job.test.labels),
        "train_accuracy": accuracy(train, job.train.labels),
        "test_loss": mean_loss(test, job.test.Y),
        "train_loss": mean_loss(train, job.train.Y),
        "epochs": 0,
        "seconds": None,
        "priming_number": None,
        "backprop_free": True,
    } | more
    path = guesses_path(job.folder.path, row)
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.asarray(test.argmax(axis=1), np.uint8))
    add_row(job, row)


def guesses_path(out: Path, row: dict[str, Any]) -> Path:
    """Where a run keeps the class that a model of a row says of every test image."""
    return out / "guesses" / f"{row_name(row)}.npy"


def mean_loss(logits: Array, Y: Array) -> float:
    """Mean negative log-likelihood in nats."""
    return float(-jnp.mean(jnp.sum(Y * jax.nn.log_softmax(logits), axis=1)))


def model_path(job: Job, name: str) -> Path:
    """Where a run keeps the parameters of a model."""
    return job.folder.path / "checkpoints" / name


def save_model(job: Job, name: str, model: Any) -> None:
    """Write the parameters of a model to its checkpoint."""
    save_checkpoint(model_path(job, name), jax.tree.map(np.asarray, model))


def measure_explicit(job: Job) -> None:
    """The explicit solution of every number of layers."""
    for layers in job.config.layers:
        if has_row(job, method="explicit", layers=layers):
            continue
        with stage(f"explicit, {layers} layer{'s' * (layers > 1)}"):
            start = time.perf_counter()
            solved = explicit_layers(job, job.train, layers)
            jax.block_until_ready(solved)
            seconds = time.perf_counter() - start
        save_model(job, f"explicit_{layers}", {"params": list(solved)})
        logits = stack_logits(solved, job.train.H), stack_logits(solved, job.test.H)
        add_measured(job, "explicit", "explicit", logits, layers=layers, seconds=seconds, priming_number=job.K)


def explicit_layers(job: Job, part: Part, layers: int) -> tuple[Array, ...]:
    """The decoders of a stack, solved layer by layer on some images."""
    return solve_layers(part.H, part.Y, [Layer(K=job.K), *[Layer()] * (layers - 1)]).params


def measure_intercept(job: Job) -> None:
    """log F frozen, the best intercept w."""
    if has_row(job, method="intercept"):
        return
    with stage("intercept"):
        start = time.perf_counter()
        F = dense_cooccurrence(job.train.H, job.train.Y)
        fitted = fit_intercept(job.train.H, job.train.Y, F, K=job.K, sweeps=job.config.sweeps)
        seconds = time.perf_counter() - start
    logits = fitted.logits(job.train.H), fitted.logits(job.test.H)
    add_measured(job, "intercept", "scaling", logits, epochs=job.config.sweeps, seconds=seconds, priming_number=job.K)


def measure_scaling(job: Job) -> None:
    """Iterative scaling on pixels, from the explicit solution."""
    if has_row(job, method="scaling"):
        return
    start = time.perf_counter()
    U = jax.block_until_ready(explicit_layers(job, job.train, 1)[0])
    solving = time.perf_counter() - start
    fitted, seconds = _scale(job, "scaling on pixels", job.train, U, job.config.sweeps, "pixels")
    save_model(job, "scaling_1", {"params": [fitted.U], "intercept": fitted.intercept})
    logits = fitted.logits(job.train.H), fitted.logits(job.test.H)
    more = {"epochs": job.config.sweeps, "seconds": solving + seconds, "priming_number": job.K}
    add_measured(job, "scaling", "scaling", logits, **more)


def measure_quadratic(job: Job) -> None:
    """Sweeps by the bound on the curvature, on pixels and a constant."""
    if has_row(job, method="quadratic"):
        return
    start = time.perf_counter()
    train, test = (jnp.concatenate([part.H, jnp.ones_like(part.H[:, :1])], axis=1) for part in (job.train, job.test))
    fitted = _bound(job, "quadratic bound on pixels", train, "pixels")
    seconds = time.perf_counter() - start
    logits = fitted.logits(train), fitted.logits(test)
    add_measured(job, "quadratic", "quadratic", logits, epochs=job.config.quadratic_sweeps, seconds=seconds)


def measure_features(job: Job, kind: str) -> None:
    """Explicit features of one kind, read out by the explicit solution, by scaling and by the bound on the curvature."""
    if all(has_row(job, method="features", features=kind, solver=solver) for solver in ("explicit", "scaling", "quadratic")):
        return
    start = time.perf_counter()
    train, test = (Part(H, part.Y, part.labels) for H, part in zip(featurize(job, kind), (job.train, job.test), strict=True))
    jax.block_until_ready((train.H, test.H))
    featurizing = time.perf_counter() - start

    def add(solver: str, fitted: Scaled, **more: Any) -> None:
        save_model(job, f"{kind}_{solver}", {"params": [fitted.U], "intercept": fitted.intercept})
        logits = fitted.logits(train.H), fitted.logits(test.H)
        more = {"features": kind, "dimensions": train.H.shape[1], "priming_number": 1.0, **more}
        add_measured(job, "features", solver, logits, feature_seconds=featurizing, **more)

    begin = time.perf_counter()
    U = explicit_solution(dense_cooccurrence(train.H, train.Y), 1.0)  # rows of norm 1
    solving = time.perf_counter() - begin
    if not has_row(job, method="features", features=kind, solver="explicit"):
        add("explicit", Scaled(U, jnp.zeros(train.Y.shape[1], U.dtype), []), seconds=featurizing + solving)
    if not has_row(job, method="features", features=kind, solver="scaling"):
        fitted, seconds = _scale(job, f"scaling on {kind}", train, U, job.config.feature_sweeps, kind)
        add("scaling", fitted, epochs=job.config.feature_sweeps, seconds=featurizing + solving + seconds)
    if not has_row(job, method="features", features=kind, solver="quadratic"):
        begin = time.perf_counter()
        fitted = _bound(job, f"quadratic bound on {kind}", train.H, kind)
        seconds = time.perf_counter() - begin
        add("quadratic", fitted, epochs=job.config.quadratic_sweeps, seconds=featurizing + seconds)


def featurize(job: Job, kind: str) -> tuple[Array, Array]:
    """Positive features with rows of norm 1, of the train and the test images."""
    config, images = job.config, job.images
    both = images.train_images, images.test_images
    if kind == "random":
        with stage("random features"):
            W = random_directions(jax.random.key(config.seed), job.train.H.shape[1], config.directions)
            train, test = (unit_rows(random_features(part.H, W, threshold=config.threshold)) for part in (job.train, job.test))
        return train, test
    height = min(images.train_images.shape[1:])
    size = config.patch or max(3, round(height / 4.5))
    grid = config.grid or max(3, round((height - size + 1) / 6))
    with stage("patch features", "images") as progress:
        filters = patch_filters(both[0], images.levels, size=size, number=config.filters, seed=config.seed)
        options: dict[str, Any] = {"grid": grid, "threshold": config.threshold, "progress": progress}
        train, test = (unit_rows(patch_features(part, images.levels, filters, **options)) for part in both)
    return train, test


def measure_logistic_regression(job: Job) -> None:
    """scikit-learn's multinomial logistic regression on pixels, without regularisation."""
    if has_row(job, method="logistic_regression"):
        return
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with stage("logistic regression"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is a choice, and in the row
        start = time.perf_counter()
        model = LogisticRegression(C=np.inf, max_iter=job.config.logistic_iterations)
        model.fit(np.asarray(job.train.H), np.asarray(job.train.labels))
        seconds = time.perf_counter() - start
    logits = _decision(model, job.train), _decision(model, job.test)
    epochs = int(model.n_iter_.max())
    add_measured(job, "logistic_regression", "lbfgs", logits, epochs=epochs, seconds=seconds, backprop_free=False)


def _decision(model: Any, part: Part) -> Array:
    """[M, N] logits; scikit-learn gives two classes one number."""
    logits = model.decision_function(np.asarray(part.H))
    return jnp.asarray(logits if logits.ndim == 2 else np.stack([-logits / 2, logits / 2], axis=1), part.H.dtype)


def _scale(job: Job, name: str, part: Part, U: Array, sweeps: int, kind: str) -> tuple[Scaled, float]:
    """Scaling that continues where it was interrupted, and the seconds of all its parts."""
    checkpoints = model_path(job, f"scaling_{kind}.partial")
    earlier = [e["seconds"] for e in job.folder.events("sweep") if (e["features"], e["solver"]) == (kind, "scaling")]
    start = time.perf_counter() - (earlier[-1] if earlier else 0.0)

    def on_sweep(sweep: int, loss: float) -> None:
        seconds = time.perf_counter() - start
        job.folder.log(event="sweep", features=kind, solver="scaling", sweep=sweep, loss=loss, seconds=seconds)

    with stage(name, "sweeps") as progress:
        fitted = scaling_sweeps(part.H, part.Y, U, sweeps=sweeps, checkpoints=checkpoints, on_sweep=on_sweep, progress=progress)
    seconds = time.perf_counter() - start
    shutil.rmtree(checkpoints, ignore_errors=True)
    return fitted, seconds


def _bound(job: Job, name: str, H: Array, kind: str) -> Scaled:
    start = time.perf_counter()

    def on_sweep(sweep: int, loss: float) -> None:
        seconds = time.perf_counter() - start
        job.folder.log(event="sweep", features=kind, solver="quadratic", sweep=sweep, loss=loss, seconds=seconds)

    with stage(name):
        return quadratic_sweeps(H, job.train.Y, sweeps=job.config.quadratic_sweeps, ridge=job.config.ridge, on_sweep=on_sweep)


def saved_params(job: Job, name: str) -> Any:
    """The parameters of a model that the run measured, or None."""
    path = model_path(job, name)
    return load_checkpoint(path)["params"] if path.is_dir() else None

"""Images as a problem, classifiers of pixels and simple features without backpropagation, views.

A method is a function of a `Problem` that yields parts: the fields that identify a row, and what computes the rest of it.
"""

import functools
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.runs.bounds import refuses
from jexplicit.runs.files import host_bytes, is_measured
from jexplicit.runs.loop import load_checkpoint, save_checkpoint
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.explicit import (
    SoftmaxLayer,
    accuracy,
    calibration_error,
    dense_cooccurrence,
    explicit_solution,
    fit_temperature,
    mean_loss,
    priming_number,
    solve_layers,
    stack_logits,
)
from jexplicit.solvers.sweeps import SoftmaxFit, curvature_bound_sweeps, iterative_scaling_sweeps
from launch.digits.config import Config
from launch.kit.experiment import Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Section, Table, View, where

Parts = Iterator[Part]
Method = Callable[["Problem", str], Parts]
# methods whose features have weights of their own, in a checkpoint by the name of the features
WITH_FEATURES = ("kernel", "trained_readout", "optimum")


class Split(NamedTuple):
    """Features, one-hot targets and labels of some images."""

    H: Array
    Y: Array
    labels: Array

    def rows(self, chosen: Any) -> "Split":
        """Some of the images."""
        return Split(*(part[chosen] for part in self))


class Problem(NamedTuple):
    """The input of every method. K is the mean L1 norm of the pixels."""

    config: Config
    folder: RunFolder
    images: Images
    train: Split
    test: Split
    K: float


@functools.lru_cache(maxsize=1)
def read(config: Config) -> Images:
    """The images that the flags name."""
    with stage("reading"):
        return read_images(config.data, config.data_dir, limit=config.limit, resize=config.resize, seed=config.seed)


def make_problem(config: Config, folder: RunFolder) -> Problem:
    """The images of the flags as features and targets."""
    images = read(config)

    def split(X: np.ndarray, labels: np.ndarray) -> Split:
        H, Y = pixel_features(X, images.levels), one_hot(labels, images.outputs)
        return Split(jnp.asarray(H), jnp.asarray(Y), jnp.asarray(labels, jnp.int32))

    train, test = split(images.train_images, images.train_labels), split(images.test_images, images.test_labels)
    return Problem(config, folder, images, train, test, float(priming_number(train.H)))


def about(problem: Problem) -> Row:
    """The fields of all rows: what they were measured on."""
    images, (height, width) = problem.images, problem.images.train_images.shape[1:]
    about = {name: getattr(images, name) for name in ("sha256", "outputs", "levels")}
    about |= {"data": images.name, "height": height, "width": width, "mean_norm": problem.K}
    about |= {"train_images": len(images.train_labels), "test_images": len(images.test_labels)}
    return about | ({"classes": list(images.classes)} if images.classes else {})


def make_key(method: str, solver: str, *, layers: int = 1, features: str = "pixels") -> Row:
    """The fields that identify the row of a model."""
    return {"method": method, "layers": layers, "features": features, "solver": solver}


def row_name(row: Row) -> str:
    """The name of a row in tables and figures, unique within a run.

    Example:
        >>> row_name({"method": "warm", "layers": 2, "features": "pixels", "solver": "adagrad"})
        'warm, 2 layers'
    """
    if row["method"] in ("kernel", "optimum"):
        return f"{row['method']}, {row['solver'].replace('_', ' ')}"
    layers = f", {row['layers']} layer{'s' * (row['layers'] > 1)}" if row["method"] in ("explicit", "cold", "warm") else ""
    return row["method"].replace("_", " ") + layers


def model_name(row: Row) -> str:
    """The checkpoint of a row's model."""
    several = row["method"] in ("kernel", "optimum")
    return f"{row['method']}_{row['solver'] if several else row['layers']}"


def save_model(problem: Problem, name: str, params: Any) -> None:
    """Write the parameters of a model to its checkpoint."""
    save_checkpoint(problem.folder.path / "checkpoints" / name, {"params": jax.tree.map(np.asarray, params)})


def load_model(path: Any) -> Any:
    """The parameters in a checkpoint."""
    return jax.tree.map(jnp.asarray, load_checkpoint(path)["params"])


def stored(problem: Problem, row: Row) -> dict[str, int]:
    """The number of fitted parameters, and the bytes a model needs to classify."""
    names = [model_name(row), *([row["features"]] if row["method"] in WITH_FEATURES else [])]
    models = [jax.tree.leaves(load_model(problem.folder.path / "checkpoints" / name)) for name in names]
    return {"parameters": sum(leaf.size for leaf in models[0]), "bytes": sum(leaf.nbytes for leaf in sum(models, []))}


def keep(problem: Problem, key: Row, params: Any, train: Array, test: Array, **fields: Any) -> Row:
    """The row of a model from its logits; parameters and guesses are saved."""
    save_model(problem, model_name(key), params)
    path = problem.folder.path / "guesses" / f"{row_name(key)}.npy"
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.asarray(test.argmax(axis=1), np.uint8))
    for part, logits, split in (("test", test, problem.test), ("train", train, problem.train)):
        fields |= {f"{part}_accuracy": accuracy(logits, split.labels), f"{part}_loss": mean_loss(logits, split.Y)}
    return {**key, **fields, "calibration_error": calibration_error(test, problem.test.labels)}


def dev_scores(problem: Problem, held_out: Array) -> dict[str, float]:
    """Accuracy and loss on the held-out tenth, by which models are chosen."""
    split = problem.train.rows(held_out_tenth(problem))
    return {"dev_accuracy": accuracy(held_out, split.labels), "dev_loss": mean_loss(held_out, split.Y)}


def most_accurate(rows: Sequence[Row]) -> Row:
    """The row with the highest held-out accuracy, then the lowest loss there."""
    worst = {"dev_accuracy": 0.0, "dev_loss": math.inf}
    known = [worst | {name: row[name] for name in worst if is_measured(row.get(name))} for row in rows]
    return rows[max(range(len(rows)), key=lambda n: (known[n]["dev_accuracy"], -known[n]["dev_loss"]))]


def held_out_tenth(problem: Problem) -> np.ndarray:
    """A drawn tenth of the training images, which chooses models and settings."""
    chosen = np.zeros(len(problem.train.labels), bool)
    order = np.random.default_rng(problem.config.seed).permutation(len(chosen))
    chosen[order[: max(1, len(chosen) // 10)]] = True
    return chosen


def grid_cells(config: Config, side: int) -> int:
    """Cells along a side: as asked for, or near a quarter of it."""
    return config.grid or max(4, round(side / 4))


def most_octaves(side: int) -> int:
    """Octaves whose coarsest wavelet is at most half an image wide."""
    return side.bit_length() - 2


_ridge = 1e-4  # of the sweeps with a bound on the curvature, in units of the features' mean square


class Model(NamedTuple):
    """The saved arrays of a model, and its logits."""

    params: Any
    logits: Callable[[Array], Array]


def pixels(problem: Problem, method: str) -> Parts:
    """A method on pixels; the explicit solution has a row per depth."""
    for layers in problem.config.layers if method == "explicit" else (1,):
        key = make_key(method, method, layers=layers)
        yield key, functools.partial(_measure, problem, key)


def layer_inputs(row: Row, H: Array) -> Array:
    """Pixels, with a constant 1 if sweeps need it."""
    return jnp.pad(H, ((0, 0), (0, 1)), constant_values=1) if row["solver"] == "quadratic" else H


def _measure(problem: Problem, key: Row) -> list[Row]:
    """The row of a model; interrupted sweeps continue."""
    config, method, tenth = problem.config, key["method"], held_out_tenth(problem)
    sweeps = {"scaling": config.sweeps, "quadratic": config.quadratic_sweeps}.get(method, 0)
    K = None if method == "quadratic" else problem.K
    train, test = (split._replace(H=layer_inputs(key, split.H)) for split in (problem.train, problem.test))
    checkpoints = problem.folder.path / "checkpoints" / f"{row_name(key)}.partial"
    earlier = where(problem.folder.events("sweep"), solver=key["solver"]) if checkpoints.exists() else []
    start = time.perf_counter() - (earlier[-1]["seconds"] if earlier else 0.0)

    def on_sweep(sweep: int, loss: float, state: Any) -> None:
        seconds = time.perf_counter() - start
        problem.folder.log(event="sweep", solver=key["solver"], sweep=sweep, loss=loss, seconds=seconds)

    with stage(row_name(key), "sweeps") as progress:
        options = {"sweeps": sweeps, "checkpoints": checkpoints, "on_sweep": on_sweep, "progress": progress}
        params, logits = _solve(key, train, K, options)
        jax.block_until_ready(params)
    seconds = time.perf_counter() - start
    both = (logits(train.H), logits(test.H))
    part = _solve(key, train.rows(~tenth), K, {"sweeps": sweeps})  # which has not seen the held-out tenth
    dev = part.logits(train.H[tenth])
    row: Row = {"epochs": sweeps, "priming_number": K, "seconds": seconds, **dev_scores(problem, dev)}
    if method == "explicit":
        temperature = fit_temperature(dev, problem.train.labels[tenth])
        cooled = both[1] / temperature
        row |= {"temperature": temperature, "calibrated_loss": mean_loss(cooled, problem.test.Y)}
        row |= {"calibrated_error": calibration_error(cooled, problem.test.labels)}
    return [keep(problem, key, params, *both, **row)]


def _solve(key: Row, split: Split, K: Any, options: Any) -> Model:
    """The model of a row, fitted to images with options of sweeps."""
    H, Y, _ = split
    if key["method"] == "explicit":
        decoders = explicit_decoders(split, K, key["layers"])
        return Model(list(decoders), functools.partial(stack_logits, decoders))
    if key["method"] == "quadratic":
        return linear(curvature_bound_sweeps(H, Y, ridge=_ridge, **options))
    return linear(iterative_scaling_sweeps(H, Y, explicit_solution(dense_cooccurrence(H, Y), K), **options))


def explicit_decoders(split: Split, K: float, layers: int) -> tuple[Array, ...]:
    """The decoders of a stack, solved layer by layer on some images."""
    return solve_layers(split.H, split.Y, [SoftmaxLayer(K=K), *[SoftmaxLayer()] * (layers - 1)]).params


def linear(fit: SoftmaxFit) -> Model:
    """A softmax layer with an intercept."""
    return Model({"U": fit.U, "intercept": fit.intercept}, fit.logits)


def epochs(row: Row) -> str:
    """Sweeps or epochs; a plus where training reached its last epoch before it stopped."""
    unit = " sweeps" * (row["solver"] in ("scaling", "quadratic", "softmax"))
    return f"{row['epochs']}{unit}{'+' * (not row.get('stopped', True))}" if row["epochs"] else ""


COLUMNS = (
    Column("method", row_name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("test %", "test_accuracy", ".2f", 100),
    Column("train %", "train_accuracy", ".2f", 100),
    Column("test loss, nats", "test_loss", ".4f"),
    Column("calibration error, %", "calibration_error", ".2f", 100),
    Column("epochs", epochs),
    Column("D", "dimensions", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("seconds", "seconds", ".1f"),
)
# Models that are all fitted to the same nine tenths of the training images, and those fitted to all images after that.
FAIR = (
    Column("method", row_name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("held-out loss, nats", "dev_loss", ".4f"),
    Column("test %", lambda row: row.get("part_test_accuracy") or row["test_accuracy"], ".2f", 100),
    Column("test %, all images", lambda row: row["test_accuracy"] if "part_test_accuracy" in row else None, ".2f", 100),
    Column("fitted numbers", "parameters", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("TFLOP", "flops", ".2f", 1e-12),
)


def patient(rows: Sequence[Row]) -> list[Row]:
    """Without the rows of `rise`, a rule of stopping of earlier versions."""
    return [row for row in rows if row.get("stop") != "rise"]


def table(**fields: Any) -> Table:
    """A table of the rows with these values."""
    return Table(COLUMNS, lambda results: where(patient(results.rows), **fields))


ALL = Table(COLUMNS, lambda results: sorted(results.rows, key=lambda row: row["test_accuracy"]))
PAPER = table(method=("explicit", "cold", "warm"))
_FITTED = ("kernel", "trained_readout", "cnn", "network")
OPPONENTS = Table(FAIR, lambda results: where(patient(results.rows), method=_FITTED))


_errors = {"xscale": "log", "yscale": "log", "ylabel": "test error (%)"}
METHODS = Lines(
    "methods", "seconds", lambda row: max(100 * (1 - row["test_accuracy"]), 1e-2), row_name, axes=_errors, legend="right"
)


def data_lines(results: Results) -> list[str]:
    """What the rows were measured on."""
    row = results.rows[0]
    return [
        f"Data `{row['data']}`: {row['train_images']:,} train and {row['test_images']:,} test images of {row['height']} x "
        f"{row['width']}, {row['outputs']} classes, mean L1 norm {row['mean_norm']:.2f}, sha256 `{row['sha256'][:16]}`.",
        "",
    ]


_fair = "Fitted to the same nine tenths of the training images; the solved ones then to all of them."
VIEWS: Sequence[View] = [
    data_lines,
    ALL,
    OPPONENTS._replace(note=_fair),
    METHODS,
    Section("Explicit, cold and warm", [PAPER]),
]
_shared = {"epochs": 0, "priming_number": None, "backprop_free": True}  # of rows whose methods have no others
_matrices = 4  # of D x D numbers: sums, a covariance, its factor, and what LAPACK copies


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other."""
    methods = set(config.methods)
    yield not (methods and config.layers), "--methods and --layers need at least one value each"
    yield (
        "optimum" in methods and not config.rates,
        "--rates without a value: give at least one, e.g. 0.01",
    )


@refuses
def check_images(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other or the images."""
    check(config)
    side = min(read(config).train_images.shape[1:])
    halved = f"--methods cnn of images {side} pixels wide, which it halves twice: use images of at least 4, or leave it out"
    yield "cnn" in config.methods and side < 4, halved
    if not {*WITH_FEATURES} & set(config.methods):
        return
    octaves, wide = most_octaves(side), f"of images {side} pixels wide"
    yield (config.octaves or 0) > octaves, f"--octaves {config.octaves} {wide}: use at most {octaves}"
    yield grid_cells(config, side) > side, f"--grid {config.grid} {wide}: use at most {side} cells"
    D, present = 2 * config.frequencies, host_bytes()
    held = 8 * D * len(read(config).train_images)  # the features of all training images, and of nine tenths
    yield (
        "optimum" in config.methods and held > present,
        (
            f"--methods optimum keeps {held / 1e9:,.0f} GB of features, and {present / 1e9:,.0f} GB are here: use fewer "
            "--frequencies, or --limit"
        ),
    )
    needed, matrices = 4 * _matrices * D**2, f"{_matrices} matrices of {D} x {D} numbers"
    machine = f"this machine has {present / 1e9:,.0f} GB; use at most {int((present / 4 / _matrices) ** 0.5 / 2)}"
    taken = f"{matrices} take {needed / 1e9:,.0f} GB, and {machine}"
    yield needed > present, f"--frequencies {config.frequencies}: {taken}"


def measure(others: Mapping[str, Method], config: Config, folder: RunFolder) -> Parts:
    """Every method; the functions of those that are not here are given by name."""
    problem = make_problem(config, folder)
    images, data = problem.images, about(problem)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    for method in config.methods:
        for key, part in others.get(method, pixels)(problem, method):
            yield key, functools.partial(_complete, problem, part, data)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)


def _complete(problem: Problem, part: Callable[[], Iterable[Row]], data: Row) -> list[Row]:
    return [{**_shared, **row, **stored(problem, row), **data} for row in part()]

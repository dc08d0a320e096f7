"""Images as a problem, classifiers without backpropagation, and the tables of all classifiers.

A method is a function of a `Problem` that yields parts: the fields that identify a row, and what computes the rest of it.
"""

import functools
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.features import Axes, describe, fit_axes, fourier_directions, fourier_features, scattering_pools, wavelets
from jexplicit.runs.devices import data_mesh, key_of_seed, load_checkpoint, save_checkpoint
from jexplicit.runs.files import host_bytes, is_measured, peak_bytes, refuses
from jexplicit.runs.progress import console, stage
from jexplicit.solvers import sweeps
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
from jexplicit.solvers.sweeps import SoftmaxFit, streamed_logits, tempered
from launch.digits.config import Config
from launch.kit.experiment import Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, View, section, where

Parts = Iterator[Part]
Method = Callable[["Problem", str], Parts]
WITH_FEATURES = ("kernel", "trained_readout", "optimum")  # methods whose features have weights, in a checkpoint of their own


class Split(NamedTuple):
    """Features, one-hot targets and labels of some images."""

    H: Array
    Y: Array
    labels: Array

    def rows(self, chosen: Any) -> "Split":
        """Some of the images."""
        return Split(*(part[chosen] for part in self))


class Problem(NamedTuple):
    """The input of every method.

    held_out: which training images choose models and settings, a drawn tenth. K: the mean L1 norm of the pixels.
    """

    config: Config
    folder: RunFolder
    images: Images
    train: Split
    test: Split
    held_out: np.ndarray
    K: float


@functools.lru_cache(maxsize=1)
def read(config: Config) -> Images:
    """The images that the flags name."""
    with stage("reading"):
        return read_images(config.data, config.data_dir, limit=config.limit, resize=config.resize, seed=config.seed)


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
    return f"{row['method']}_{row['solver'] if row['method'] in ('kernel', 'optimum') else row['layers']}"


def load_model(path: Any) -> Any:
    """The parameters in a checkpoint."""
    return jax.tree.map(jnp.asarray, load_checkpoint(path)["params"])


def keep(
    problem: Problem, key: Row, params: Any, train: Array, test: Array, *, weights: Row | None = None, **fields: Any
) -> Row:
    """The row of a model from its logits; its arrays and guesses are saved."""
    images, (height, width) = problem.images, problem.images.train_images.shape[1:]
    for name, saved in ((model_name(key), params), *([(key["features"], dict(weights))] if weights else [])):
        save_checkpoint(problem.folder.path / "checkpoints" / name, {"params": jax.tree.map(np.asarray, saved)})
    path = problem.folder.path / "guesses" / f"{row_name(key)}.npy"
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.asarray(test.argmax(axis=1), np.uint8))
    for part, logits, split in (("test", test, problem.test), ("train", train, problem.train)):
        fields |= {f"{part}_accuracy": accuracy(logits, split.labels), f"{part}_loss": mean_loss(logits, split.Y)}
    return {
        "epochs": 0, "priming_number": None, "backprop_free": True,  # of methods that have no others
        **{**key, **fields, "calibration_error": calibration_error(test, problem.test.labels)},
        "parameters": sum(np.size(leaf) for leaf in jax.tree.leaves(params)),
        "bytes": sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves((params, weights))),
        **{name: getattr(images, name) for name in ("sha256", "outputs", "levels")},
        "data": images.name, "height": height, "width": width, "mean_norm": problem.K,
        "train_images": len(images.train_labels), "test_images": len(images.test_labels),
        **({"classes": list(images.classes)} if images.classes else {}),
    }  # fmt: skip


def dev_scores(problem: Problem, logits: Array) -> dict[str, float]:
    """Accuracy and loss on the held-out tenth, by which models are chosen."""
    split = problem.train.rows(problem.held_out)
    return {"dev_accuracy": accuracy(logits, split.labels), "dev_loss": mean_loss(logits, split.Y)}


def most_accurate(rows: Sequence[Row]) -> Row:
    """The row with the highest held-out accuracy, then the lowest loss there."""
    worst = {"dev_accuracy": 0.0, "dev_loss": math.inf}
    known = [worst | {name: row[name] for name in worst if is_measured(row.get(name))} for row in rows]
    return rows[max(range(len(rows)), key=lambda n: (known[n]["dev_accuracy"], -known[n]["dev_loss"]))]


# --- pixels --------------------------------------------------------------------------------------------------------------

_ridge = 1e-4  # of the sweeps with a bound on the curvature, in units of the features' mean square
_quadratic_sweeps = 30
Model = tuple[Any, Callable[[Array], Array]]  # the saved arrays, and the logits of features


def _pixels(problem: Problem, method: str) -> Parts:
    """A method on pixels; the explicit solution has a row per depth."""
    for layers in problem.config.layers if method == "explicit" else (1,):
        key = make_key(method, method, layers=layers)
        yield key, functools.partial(_measure, problem, key)


def layer_inputs(row: Row, H: Array) -> Array:
    """Pixels, with a constant 1 if sweeps need it."""
    return jnp.pad(H, ((0, 0), (0, 1)), constant_values=1) if row["solver"] == "quadratic" else H


def _measure(problem: Problem, key: Row) -> list[Row]:
    """The row of a model; interrupted sweeps continue."""
    method, held_out = key["method"], problem.held_out
    number = {"scaling": problem.config.sweeps, "quadratic": _quadratic_sweeps}.get(method, 0)
    K = None if method == "quadratic" else problem.K
    train, test = (split._replace(H=layer_inputs(key, split.H)) for split in (problem.train, problem.test))
    checkpoints = problem.folder.path / "checkpoints" / f"{row_name(key)}.partial"
    earlier = where(problem.folder.events("sweep"), solver=key["solver"]) if checkpoints.exists() else []
    start = time.perf_counter() - (earlier[-1]["seconds"] if earlier else 0.0)

    def on_sweep(sweep: int, loss: float, state: Any) -> None:
        seconds = time.perf_counter() - start
        problem.folder.log(event="sweep", solver=key["solver"], sweep=sweep, loss=loss, seconds=seconds)

    with stage(row_name(key), "sweeps") as progress:
        options = {"sweeps": number, "checkpoints": checkpoints, "on_sweep": on_sweep, "progress": progress}
        params, logits = _solve(key, train, K, options)
        jax.block_until_ready(params)
    seconds = time.perf_counter() - start
    both = (logits(train.H), logits(test.H))
    _, of_part = _solve(key, train.rows(~held_out), K, {"sweeps": number})  # which has not seen the held-out tenth
    dev = of_part(train.H[held_out])
    row: Row = {"epochs": number, "priming_number": K, "seconds": seconds, **dev_scores(problem, dev)}
    if method == "explicit":
        temperature = fit_temperature(dev, problem.train.labels[held_out])
        cooled = both[1] / temperature
        row |= {"temperature": temperature, "calibrated_loss": mean_loss(cooled, problem.test.Y)}
        row |= {"calibrated_error": calibration_error(cooled, problem.test.labels)}
    return [keep(problem, key, params, *both, **row)]


def _solve(key: Row, split: Split, K: Any, options: Any) -> Model:
    """The model of a row, fitted to images with options of sweeps."""
    H, Y, _ = split
    if key["method"] == "explicit":
        decoders = explicit_decoders(split, K, key["layers"])
        return list(decoders), functools.partial(stack_logits, decoders)
    if key["method"] == "quadratic":
        return linear(sweeps.curvature_bound_sweeps(H, Y, ridge=_ridge, **options))
    return linear(sweeps.iterative_scaling_sweeps(H, Y, explicit_solution(dense_cooccurrence(H, Y), K), **options))


def explicit_decoders(split: Split, K: float, layers: int) -> tuple[Array, ...]:
    """The decoders of a stack, solved layer by layer on some images."""
    return solve_layers(split.H, split.Y, [SoftmaxLayer(K=K), *[SoftmaxLayer()] * (layers - 1)]).params


def linear(fit: SoftmaxFit) -> Model:
    """A softmax layer with an intercept."""
    return {"U": fit.U, "intercept": fit.intercept}, fit.logits


# --- least squares and a softmax layer on random Fourier features of scattering ----------------------------------------------
# Descriptors of some hundred numbers become thousands of cosines, a block of images at a time, and only `HᵀH` and `HᵀY` are
# kept of those. The held-out tenth chooses the ridge and a temperature for each readout; both are then fitted to all images.

_scale = 0.7  # of the frequencies; the kernel is `exp(-scale² d²/2)`, d in units of the root mean square of the descriptors
_axes = 400  # principal components of the averages in a descriptor
_kernel_sweeps = 6  # with the bound on the curvature: on nine tenths from the least-squares solution, then as many on all
_ridges = (1e-4, 1e-3, 1e-2, 1e-1)  # to choose from by the squared error on the held-out tenth
_least_ridge = 1e-4  # with less, HᵀH of fewer images than features cannot be factorised in float32
_matrices = 4  # of D x D numbers: sums, a covariance, its factor, and what LAPACK copies


def flops(function: Callable, *inputs: Any) -> float:
    """Floating-point operations of a call on arrays of these shapes, by XLA."""
    return float((jax.jit(function).lower(*inputs).cost_analysis() or {}).get("flops", 0.0))


def _pools(shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Averages of moduli of wavelets over a grid: images to [m, D]."""
    side = min(shape[1:])  # the coarsest wavelet is at most half an image wide
    bank = wavelets(shape[1:], octaves=min(3, side.bit_length() - 2), angles=6, grid=max(4, round(side / 4)))  # 4 pixels a cell
    return functools.partial(scattering_pools, bank=bank)


class Described(NamedTuple):
    """Descriptors of training and test images, weights of features, and their cost."""

    train: Array
    test: Array
    weights: dict[str, Any]
    seconds: float
    flops: float


@functools.lru_cache(maxsize=1)
def describe_images(config: Config) -> Described:
    """The descriptors of the images, shared by all linear classifiers of a run."""
    images, start = read(config), time.perf_counter()
    X, levels = images.train_images, images.levels
    with stage("descriptors", "images") as progress:
        axes = fit_axes(_pools(X.shape), X, levels, dimensions=_axes, seed=config.seed)
        train, test = (describe(_pools(x.shape), axes, x, levels, progress=progress) for x in (X, images.test_images))
    W = fourier_directions(key_of_seed(config.seed), train.shape[1], config.frequencies, scale=_scale)
    seconds, image = time.perf_counter() - start, jax.ShapeDtypeStruct((1, *X.shape[1:]), train.dtype)
    weights = {**axes._asdict(), "W": W}
    cost = flops(_pools(image.shape), image) + 2 * weights["axes"].size  # of pooled responses and axes
    return Described(train, test, weights, seconds, cost * len(train))


def kernel_features(weights: Mapping[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def kernel_logits(weights: Mapping[str, Any], params: Mapping[str, Array], X: np.ndarray, levels: int) -> Array:
    """Logits of images [M, height, width] from a run's saved arrays."""
    Z = describe(_pools(X.shape), Axes(weights["mean"], weights["axes"]), X, levels)
    return streamed_logits(SoftmaxFit(params["U"], params["intercept"], ()), Z, kernel_features(weights))


Readout = tuple[SoftmaxFit, SoftmaxFit, float, float]  # for all images, for nine tenths, the temperature and seconds


def _kernel(problem: Problem, method: str) -> Parts:
    """Least squares and a softmax layer on the same features, a row for each."""
    key = {"method": method, "layers": 1, "features": method}
    yield key, functools.partial(_both_readouts, problem, key)


def _both_readouts(problem: Problem, key: Row) -> list[Row]:
    config, (train, test, weights, feature_seconds, feature_flops) = problem.config, describe_images(problem.config)
    features, (n, D, N) = kernel_features(weights), (config.frequencies, 2 * config.frequencies, problem.images.outputs)
    about: Any = {"dimensions": D, "feature_seconds": feature_seconds, "weights": weights}
    ridge, readouts = _fit(problem, train, features)
    about |= {"ridge": ridge, "peak_bytes": peak_bytes()}
    # of features, `HᵀH`, ridges and sweeps, by matrix products
    H, factor, products = 2.0 * _axes * n, D**3 / 3, 2.0 * D * N
    squares = len(train) * (H + D**2 * (1 + 1 / 8) + products) + (len(_ridges) + 1) * factor
    softmax = 1.9 * _kernel_sweeps * len(train) * (H + 2 * products) + 2 * factor  # over nine tenths, and over all
    rows = []
    for solver, (fit, part, temperature, seconds) in readouts.items():
        fit, part = (tempered(each, temperature, ridge)[0] for each in (fit, part))
        fields = {"epochs": _kernel_sweeps if solver == "softmax" else 0, "temperature": temperature, **about}
        fields |= {"solve_seconds": seconds, "seconds": feature_seconds + seconds}
        fields |= {"flops": feature_flops + squares + softmax * (solver == "softmax")}
        fields |= dev_scores(problem, streamed_logits(part, train[problem.held_out], features))
        fields["part_test_accuracy"] = accuracy(streamed_logits(part, test, features), problem.test.labels)
        logits = (streamed_logits(fit, Z, features) for Z in (train, test))
        rows.append(keep(problem, {**key, "solver": solver}, linear(fit)[0], *logits, **fields))
    return rows


def _fit(problem: Problem, train: Array, features: Any) -> tuple[float, dict[str, Readout]]:
    """The ridge that a held-out tenth chooses, and the classifier by solver."""
    held_out, laps = problem.held_out, [time.perf_counter()]
    Y, labels, rest = problem.train.Y, problem.train.labels[held_out], train[held_out]
    chosen = (~held_out, held_out, slice(None))
    part, other, whole = (sweeps.split_examples(train[rows], Y[rows], mesh=data_mesh()) for rows in chosen)

    def sums(blocks: Any, name: str) -> sweeps.Gram:
        with stage(name, "blocks") as progress:
            return jax.block_until_ready(sweeps.gram_matrix(blocks, features, progress=progress))

    def softmax_sweeps(gram: sweeps.Gram, blocks: Any, begun: SoftmaxFit, ridge: float, name: str) -> SoftmaxFit:
        def on_sweep(sweep: int, loss: float, state: Any) -> None:
            problem.folder.log(event="kernel_sweep", part=name, sweep=sweep, loss=loss)

        with stage(name, "sweeps") as progress:
            options: Any = {"sweeps": _kernel_sweeps, "on_sweep": on_sweep, "progress": progress}
            return sweeps.gram_softmax_sweeps(gram, blocks, features, begun, ridge=ridge, **options)

    gram = sums(part, "nine tenths of HᵀH")
    with stage("ridge"):
        ridge, squares = sweeps.choose_ridge(gram, _ridges, rest, Y[held_out], features)
    temperature = fit_temperature(streamed_logits(squares, rest, features), labels)
    laps.append(time.perf_counter())
    begun, softmax_ridge = tempered(squares, temperature, ridge)
    softmax_ridge = max(softmax_ridge, _least_ridge)
    softmax = softmax_sweeps(gram, part, begun, softmax_ridge, "softmax, nine tenths")
    softmax_temperature = fit_temperature(streamed_logits(softmax, rest, features), labels)
    laps.append(time.perf_counter())
    gram = sweeps.add_grams(gram, sums(other, "a tenth of HᵀH"))
    all_squares = jax.block_until_ready(sweeps.gram_least_squares(gram, ridge=ridge))
    laps.append(time.perf_counter())
    all_softmax = jax.block_until_ready(softmax_sweeps(gram, whole, softmax, softmax_ridge, "softmax, all images"))
    first, middle, last, end = np.diff([*laps, time.perf_counter()]).tolist()
    return ridge, {
        "least_squares": (all_squares, squares, temperature, first + last),
        "softmax": (all_softmax, softmax, softmax_temperature, first + middle + last + end),
    }


# --- the experiment and its views ----------------------------------------------------------------------------------------

METHODS: dict[str, Method] = {**dict.fromkeys(("explicit", "scaling", "quadratic"), _pixels), "kernel": _kernel}


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other."""
    yield not (config.methods and config.layers), "--methods and --layers need at least one value each"
    yield "optimum" in config.methods and not config.rates, "--rates without a value: give at least one, e.g. 0.01"


@refuses
def check_images(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other or the images."""
    check(config)
    side, D, present = min(read(config).train_images.shape[1:]), 2 * config.frequencies, host_bytes()
    small = ", ".join(method for method in config.methods if method in ("cnn", *WITH_FEATURES))
    yield small and side < 4, f"--methods {small} of images {side} pixels wide: use images of at least 4, or leave it out"
    if not {*WITH_FEATURES} & set(config.methods):
        return
    held = 8 * D * len(read(config).train_images)  # the features of all training images, and of nine tenths
    needed, most = 4 * _matrices * D**2, int((present / 4 / _matrices) ** 0.5 / 2)
    here = f"{present / 1e9:,.0f} GB are here"
    keeps = f"--methods optimum keeps {held / 1e9:,.0f} GB of features, and {here}: use fewer --frequencies, or --limit"
    yield "optimum" in config.methods and held > present, keeps
    taken = f"{_matrices} matrices of {D} x {D} numbers take {needed / 1e9:,.0f} GB, and {here}; use at most {most}"
    yield needed > present, f"--frequencies {config.frequencies}: {taken}"


def measure(methods: Mapping[str, Method], config: Config, folder: RunFolder) -> Parts:
    """Every method that the flags name."""
    images = read(config)

    def split(X: np.ndarray, labels: np.ndarray) -> Split:
        H, Y = pixel_features(X, images.levels), one_hot(labels, images.outputs)
        return Split(jnp.asarray(H), jnp.asarray(Y), jnp.asarray(labels, jnp.int32))

    train, test = split(images.train_images, images.train_labels), split(images.test_images, images.test_labels)
    held_out, order = np.zeros(len(train.labels), bool), np.random.default_rng(config.seed).permutation(len(train.labels))
    held_out[order[: max(1, len(order) // 10)]] = True
    problem = Problem(config, folder, images, train, test, held_out, float(priming_number(train.H)))
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    for method in config.methods:
        yield from methods[method](problem, method)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)


def _epochs(row: Row) -> str:
    """Sweeps or epochs; a plus where training reached its last epoch before it stopped."""
    unit = " sweeps" * (row["solver"] in ("scaling", "quadratic", "softmax"))
    return f"{row['epochs']}{unit}{'+' * (not row.get('stopped', True))}" if row["epochs"] else ""


_columns = (
    Column("method", row_name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("test %", "test_accuracy", ".2f", 100),
    Column("train %", "train_accuracy", ".2f", 100),
    Column("test loss, nats", "test_loss", ".4f"),
    Column("calibration error, %", "calibration_error", ".2f", 100),
    Column("epochs", _epochs),
    Column("D", "dimensions", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("seconds", "seconds", ".1f"),
)
# Models that are all fitted to the same nine tenths of the training images, and those fitted to all images after that.
_fair = (
    *_columns[:2],
    Column("held-out loss, nats", "dev_loss", ".4f"),
    Column("test %", lambda row: row.get("part_test_accuracy") or row["test_accuracy"], ".2f", 100),
    Column("test %, all images", lambda row: row["test_accuracy"] if "part_test_accuracy" in row else None, ".2f", 100),
    Column("fitted numbers", "parameters", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("TFLOP", "flops", ".2f", 1e-12),
)


def _patient(*methods: str) -> Callable[[Results], list[Row]]:
    """Rows of methods, without the stopping rule `rise` of earlier versions."""
    return lambda results: [row for row in where(results.rows, method=methods) if row.get("stop") != "rise"]


_all = Table(_columns, lambda results: sorted(results.rows, key=lambda row: row["test_accuracy"]))
PAPER = Table(_columns, _patient("explicit", "cold", "warm"))
OPPONENTS = Table(_fair, _patient("kernel", "trained_readout", "cnn", "network"))
_error = lambda row: max(100 * (1 - row["test_accuracy"]), 1e-2)  # noqa: E731
_log = {"xscale": "log", "yscale": "log", "ylabel": "test error (%)"}


def _data_lines(results: Results) -> list[str]:
    """What the rows were measured on."""
    row = results.rows[0]
    return [
        f"Data `{row['data']}`: {row['train_images']:,} train and {row['test_images']:,} test images of {row['height']} x "
        f"{row['width']}, {row['outputs']} classes, mean L1 norm {row['mean_norm']:.2f}, sha256 `{row['sha256'][:16]}`.",
        "",
    ]


_fair_note = "Fitted to the same nine tenths of the training images; the solved ones then to all of them."
VIEWS: Sequence[View] = [
    _data_lines,
    _all,
    OPPONENTS._replace(note=_fair_note),
    Lines("methods", "seconds", _error, row_name, axes=_log),
    section("Explicit, cold and warm", PAPER),
]

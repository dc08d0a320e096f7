"""Images as a problem, and classifiers without backpropagation; tables of all classifiers.

A method is a function of a `Problem` and the fields that identify a row; it computes the rest of it.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.features import describe, fit_axes, fourier_directions, fourier_features, scattering_pools, wavelets
from jexplicit.runs.devices import data_mesh, key_of_seed, save_checkpoint
from jexplicit.runs.files import host_bytes, is_measured, peak_bytes, refuses
from jexplicit.runs.progress import console, stage
from jexplicit.solvers import explicit, sweeps
from jexplicit.solvers.sweeps import SoftmaxFit, streamed_logits, tempered
from launch.digits.config import Config
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, View, section, where

_several = ("explicit", "cold", "warm")  # methods with a model for each number of layers


class Split(NamedTuple):
    """Inputs, one-hot targets and labels of some images."""

    H: Array
    Y: Array
    labels: Array

    def rows(self, chosen: Any) -> "Split":
        """Some of the images."""
        return Split(*(part[chosen] for part in self))


class Problem(NamedTuple):
    """The input of every method.

    held_out: which training images choose models and settings, a drawn tenth. K: the mean L1 norm of the pixels. described:
    the problem of descriptors in place of pixels, weights of their features, seconds and operations, made once.
    """

    config: Config
    folder: RunFolder
    images: Images
    train: Split
    test: Split
    held_out: np.ndarray
    K: float
    described: Callable[[], tuple["Problem", dict[str, Array], float, float]]


@functools.lru_cache(maxsize=1)  # checked before there is a run folder, then used
def read(config: Config) -> Images:
    """The images that the flags name."""
    with stage("reading"):
        return read_images(config.data, config.data_dir, limit=config.limit, resize=config.resize, seed=config.seed)


def read_problem(config: Config, folder: RunFolder) -> Problem:
    """The images that the flags name, with a held-out tenth."""
    images = read(config)

    def split(X: np.ndarray, labels: np.ndarray) -> Split:
        H, Y = pixel_features(X, images.levels), one_hot(labels, images.outputs)
        return Split(jnp.asarray(H), jnp.asarray(Y), jnp.asarray(labels, jnp.int32))

    train, test = split(images.train_images, images.train_labels), split(images.test_images, images.test_labels)
    held_out, order = np.zeros(len(train.labels), bool), np.random.default_rng(config.seed).permutation(len(train.labels))
    held_out[order[: max(1, len(order) // 10)]] = True
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    K, described = float(explicit.priming_number(train.H)), functools.cache(lambda: _describe(problem))
    problem = Problem(config, folder, images, train, test, held_out, K, described)
    return problem


def keys_of(config: Config, method: str) -> Iterator[Row]:
    """The fields that identify the rows of a method; the kernel has one part."""
    solvers = {
        "optimum": ("lbfgs_metric", "lbfgs", "sweeps", "adam"),
        "trained_readout": ("adamw",),
        "network": ("adam",),
        "cnn": ("adamw",),
        "cold": ("adagrad",),
        "warm": ("adagrad",),
    }
    layers = config.layers if method in _several else {"network": (2,), "cnn": (4,)}.get(method, (1,))
    features = "kernel" if method in ("kernel", "trained_readout", "optimum") else "pixels"
    for depth, solver in itertools.product(layers, solvers.get(method, (method,))):
        key = {"method": method, "layers": depth, "features": features}
        yield key if method == "kernel" else {**key, "solver": solver}


def row_name(row: Row) -> str:
    """The name of a row in tables and figures, unique within a run.

    Example:
        >>> row_name({"method": "warm", "layers": 2, "features": "pixels", "solver": "adagrad"})
        'warm, 2 layers'
    """
    if row["method"] in ("kernel", "optimum"):
        return f"{row['method']}, {row['solver'].replace('_', ' ')}"
    layers = f", {row['layers']} layer{'s' * (row['layers'] > 1)}" if row["method"] in _several else ""
    return row["method"].replace("_", " ") + layers


def model_name(row: Row) -> str:
    """The checkpoint of a row's model."""
    return f"{row['method']}_{row['solver'] if row['method'] in ('kernel', 'optimum') else row['layers']}"


def logits_of(params: Any, weights: Row) -> Callable[[Any], Array]:
    """The logits [M, N] of a solved model, of pixels or descriptors [M, D]."""
    if "U" not in params:
        return functools.partial(explicit.stack_logits, params)
    fit = SoftmaxFit(params["U"], params["intercept"], ())
    return functools.partial(streamed_logits, fit, features=kernel_features(weights)) if weights else fit.logits


def linear(fit: SoftmaxFit) -> dict[str, Array]:
    """The saved arrays of a softmax layer with an intercept."""
    return {"U": fit.U, "intercept": fit.intercept}


def keep(
    problem: Problem,
    key: Row,
    params: Any,
    weights: Row | None = None,
    logits: Callable[[Any], Array] | None = None,
    **fields: Any,
) -> Row:
    """The row of a model, whose arrays are saved.

    weights: of the descriptors and features that it reads in place of pixels. logits: of a trained network, a function.
    """
    images, weights, checkpoints = problem.images, dict(weights or {}), problem.folder.path / "checkpoints"
    height, width = images.train_images.shape[1:]
    about = {**key, **{name: getattr(images, name) for name in ("sha256", "outputs", "levels")}}
    about |= {"data": images.name, "height": height, "width": width, "mean_norm": problem.K}
    logits = logits or logits_of(params, weights)
    for part, split in (("train", problem.train), ("test", problem.test)):
        z = logits(split.H)
        fields |= {f"{part}_accuracy": explicit.accuracy(z, split.labels), f"{part}_loss": explicit.mean_loss(z, split.Y)}
        fields[f"{part}_images"] = len(z)
    for name, saved in ((model_name(key), params), *([(key["features"], weights)] if weights else [])):
        save_checkpoint(checkpoints / name, {"params": jax.tree.map(np.asarray, saved)})
    return {
        "epochs": 0, "priming_number": None, "backprop_free": True,  # of methods that have no others
        **about, **fields, "calibration_error": explicit.calibration_error(z, problem.test.labels),
        "parameters": sum(np.size(leaf) for leaf in jax.tree.leaves(params)),
        "bytes": sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves((params, weights))),
        **({"classes": list(images.classes)} if images.classes else {}),
    }  # fmt: skip


def dev_scores(problem: Problem, logits: Array) -> dict[str, float]:
    """Accuracy and loss on the held-out tenth, by which models are chosen."""
    split = problem.train.rows(problem.held_out)
    return {"dev_accuracy": explicit.accuracy(logits, split.labels), "dev_loss": explicit.mean_loss(logits, split.Y)}


def most_accurate(rows: Sequence[Row]) -> Row:
    """The row with the highest held-out accuracy, then the lowest loss there."""
    worst = {"dev_accuracy": 0.0, "dev_loss": math.inf}
    known = [worst | {name: row[name] for name in worst if is_measured(row.get(name))} for row in rows]
    return rows[max(range(len(rows)), key=lambda n: (known[n]["dev_accuracy"], -known[n]["dev_loss"]))]


# --- pixels --------------------------------------------------------------------------------------------------------------

_ridge = 1e-4  # of the sweeps with a bound on the curvature, in units of the features' mean square
_quadratic_sweeps = 30


def _on_pixels(problem: Problem, key: Row) -> list[Row]:
    """The row of a model solved on pixels."""
    method, held_out, start = key["method"], problem.held_out, time.perf_counter()
    number = {"scaling": problem.config.sweeps, "quadratic": _quadratic_sweeps}.get(method, 0)
    with stage(row_name(key), "sweeps") as progress:
        params = jax.block_until_ready(_solve(key, problem.train, problem.K, sweeps=number, progress=progress))
    seconds = time.perf_counter() - start
    part = _solve(key, problem.train.rows(~held_out), problem.K, sweeps=number)  # which has not seen the held-out tenth
    dev = logits_of(part, {})(problem.train.H[held_out])
    row: dict[str, Any] = {"epochs": number, "priming_number": None if method == "quadratic" else problem.K}
    row |= {"seconds": seconds, **dev_scores(problem, dev)}
    if method == "explicit":
        temperature = explicit.fit_temperature(dev, problem.train.labels[held_out])
        cooled = explicit.stack_logits(params, problem.test.H) / temperature
        row |= {"temperature": temperature, "calibrated_loss": explicit.mean_loss(cooled, problem.test.Y)}
        row |= {"calibrated_error": explicit.calibration_error(cooled, problem.test.labels)}
    return [keep(problem, key, params, **row)]


def _solve(key: Row, split: Split, K: float, **options: Any) -> Any:
    """The arrays of a row's model, fitted to images; options: of sweeps."""
    H, Y, _ = split
    if key["method"] == "explicit":
        return list(explicit_decoders(split, K, key["layers"]))
    if key["method"] == "scaling":
        (U,) = explicit_decoders(split, K, 1)
        return linear(sweeps.iterative_scaling_sweeps(H, Y, U, **options))
    with_ones = jnp.pad(H, ((0, 0), (0, 1)), constant_values=1)
    U = sweeps.curvature_bound_sweeps(with_ones, Y, ridge=_ridge, **options).U
    return {"U": U[:-1], "intercept": U[-1]}


def explicit_decoders(split: Split, K: float, layers: int) -> tuple[Array, ...]:
    """The decoders of a stack, solved layer by layer on some images."""
    settings = [explicit.SoftmaxLayer(K=K), *[explicit.SoftmaxLayer()] * (layers - 1)]
    return explicit.solve_layers(split.H, split.Y, settings).params


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


def pools(shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Averages of moduli of wavelets over a grid: images to [m, D]."""
    side = min(shape[1:])  # the coarsest wavelet is at most half an image wide
    bank = wavelets(shape[1:], octaves=min(3, side.bit_length() - 2), angles=6, grid=max(4, round(side / 4)))  # 4 pixels a cell
    return functools.partial(scattering_pools, bank=bank)


def _describe(problem: Problem) -> tuple[Problem, dict[str, Array], float, float]:
    """The problem of descriptors, which all linear classifiers of a run share."""
    config, images, start = problem.config, problem.images, time.perf_counter()
    X, levels = images.train_images, images.levels
    with stage("descriptors", "images") as progress:
        axes = fit_axes(pools(X.shape), X, levels, dimensions=_axes, seed=config.seed)
        Z, Z_test = (describe(pools(x.shape), axes, x, levels, progress=progress) for x in (X, images.test_images))
    W = fourier_directions(key_of_seed(config.seed), Z.shape[1], config.frequencies, scale=_scale)
    seconds, image = time.perf_counter() - start, jax.ShapeDtypeStruct((1, *X.shape[1:]), Z.dtype)
    cost = flops(pools(image.shape), image) + 2 * axes.axes.size  # of pooled responses and axes
    described = problem._replace(train=problem.train._replace(H=Z), test=problem.test._replace(H=Z_test))
    return described, {**axes._asdict(), "W": W}, seconds, cost * len(Z)


def kernel_features(weights: Mapping[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def _readouts(problem: Problem, key: Row) -> list[Row]:
    """Both readouts: fitted to nine tenths, chosen on the other, then fitted to all."""
    problem, weights, feature_seconds, feature_flops = problem.described()
    (Z, Y, labels), held_out, features = problem.train, problem.held_out, kernel_features(weights)
    part, other, whole = (sweeps.split_examples(Z[m], Y[m], mesh=data_mesh()) for m in (~held_out, held_out, slice(None)))
    laps = [time.perf_counter()]

    def sums(name: str, blocks: Any) -> sweeps.Gram:
        with stage(f"{name} of HᵀH", "blocks") as progress:
            return jax.block_until_ready(sweeps.gram_matrix(blocks, features, progress=progress))

    def temperature_of(fit: SoftmaxFit) -> float:
        return explicit.fit_temperature(streamed_logits(fit, Z[held_out], features), labels[held_out])

    def softmax_sweeps(name: str, gram: sweeps.Gram, blocks: Any, begun: SoftmaxFit) -> SoftmaxFit:
        with stage(f"softmax, {name}", "sweeps") as progress:
            options: Any = {"sweeps": _kernel_sweeps, "ridge": softmax_ridge, "progress": progress}
            return jax.block_until_ready(sweeps.gram_softmax_sweeps(gram, blocks, features, begun, **options))

    gram = sums("nine tenths", part)
    with stage("ridge"):
        ridge, squares = sweeps.choose_ridge(gram, _ridges, Z[held_out], Y[held_out], features)
    temperature = temperature_of(squares)
    laps.append(time.perf_counter())
    begun, softmax_ridge = tempered(squares, temperature, ridge)
    softmax_ridge = max(softmax_ridge, _least_ridge)
    softmax = softmax_sweeps("nine tenths", gram, part, begun)
    softmax_temperature = temperature_of(softmax)
    laps.append(time.perf_counter())
    gram = jax.tree.map(jnp.add, gram, sums("a tenth", other))
    all_squares = jax.block_until_ready(sweeps.gram_least_squares(gram, ridge=ridge))
    laps.append(time.perf_counter())
    all_softmax = softmax_sweeps("all images", gram, whole, softmax)
    first, middle, last, end = np.diff([*laps, time.perf_counter()]).tolist()

    n, N = problem.config.frequencies, problem.images.outputs
    D = 2 * n  # operations of features, `HᵀH`, ridges and sweeps, by matrix products:
    H, factor, products = 2.0 * _axes * n, D**3 / 3, 2.0 * D * N
    operations = feature_flops + len(Z) * (H + D**2 * (1 + 1 / 8) + products) + (len(_ridges) + 1) * factor
    more = 1.9 * _kernel_sweeps * len(Z) * (H + 2 * products) + 2 * factor  # over nine tenths, and over all
    about: Any = {"dimensions": D, "feature_seconds": feature_seconds, "ridge": ridge, "peak_bytes": peak_bytes()}
    rows = []
    for solver, fit, part, T, seconds, cost in (
        ("least_squares", all_squares, squares, temperature, first + last, operations),
        ("softmax", all_softmax, softmax, softmax_temperature, first + middle + last + end, operations + more),
    ):
        fit, part = (tempered(each, T, ridge)[0] for each in (fit, part))
        fields = {**about, **dev_scores(problem, streamed_logits(part, Z[held_out], features)), "temperature": T}
        fields["part_test_accuracy"] = explicit.accuracy(streamed_logits(part, problem.test.H, features), problem.test.labels)
        fields |= {"epochs": _kernel_sweeps if solver == "softmax" else 0, "flops": cost}
        fields |= {"solve_seconds": seconds, "seconds": feature_seconds + seconds}
        rows.append(keep(problem, {**key, "solver": solver}, linear(fit), weights, **fields))
    return rows


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other or the machine."""
    yield not (config.methods and config.layers), "--methods and --layers need at least one value each"
    yield "optimum" in config.methods and not config.rates, "--rates without a value: give at least one, e.g. 0.01"
    D, present = 2 * config.frequencies, host_bytes()
    needed, most = 4 * _matrices * D**2, int((present / 4 / _matrices) ** 0.5 / 2)
    taken = f"{_matrices} matrices of {D} x {D} numbers take {needed / 1e9:,.0f} GB, and {present / 1e9:,.0f} GB are here"
    large = {"kernel", "trained_readout", "optimum"} & set(config.methods) and needed > present
    yield large, f"--frequencies {config.frequencies}: {taken}; use at most {most}"


@refuses
def check_images(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other, the machine or the images."""
    check(config)
    side = min(read(config).train_images.shape[1:])
    small = ", ".join(method for method in config.methods if method in ("cnn", "kernel", "trained_readout", "optimum"))
    yield small and side < 4, f"--methods {small} of images {side} pixels wide: use images of at least 4, or leave it out"


METHODS: dict[str, Callable[[Problem, Row], list[Row]]] = {
    **dict.fromkeys(("explicit", "scaling", "quadratic"), _on_pixels),
    "kernel": _readouts,
}


# --- views --------------------------------------------------------------------------------------------------------------


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

"""Images as a problem, classifiers without backpropagation, and the experiment of all.

A method is a function of a `Problem` and the fields that identify a row; it computes the rest of it.
"""

import dataclasses
import functools
import itertools
import math
import pkgutil
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images, check_grey_levels, one_hot, pixel_features, read_grey_images, read_images, size
from jexplicit.runs.devices import data_mesh, is_checkpoint, key_of_seed, load_checkpoint, save_checkpoint
from jexplicit.runs.files import config_of, host_bytes, is_measured, local_path, peak_bytes, read_run, refuses
from jexplicit.runs.progress import console, show, stage
from jexplicit.solvers import explicit
from launch.digits import PRESETS, Config
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, View, groups, means, section, where

_several = ("explicit", "cold", "warm")  # methods with a model for each number of layers
_of_features = ("kernel", "trained_readout", "optimum")  # methods that read descriptors of images
_methods = {  # imported where they are named: the solved models do not wait for flax and optax
    **dict.fromkeys(("explicit", "scaling", "quadratic"), "solved:on_pixels"),
    **dict.fromkeys(("network", "cnn", "cold", "warm"), "trained:on_pixels"),
    **{"kernel": "solved:readouts", "trained_readout": "trained:readout", "optimum": "trained:optimum"},
}
_solvers = {
    **{"optimum": ("lbfgs_metric", "lbfgs", "sweeps", "adam"), "trained_readout": ("adamw",), "network": ("adam",)},
    **{"cnn": ("adamw",), "cold": ("adagrad",), "warm": ("adagrad",)},
}
_matrices = 4  # of D x D numbers that a fit of D features holds: sums, a covariance, its factor, and what LAPACK copies
SHOWN_PASSES = (3, 10, 30, 100, 300)  # after which the table of optimisers has the loss


class Split(NamedTuple):
    """Inputs, one-hot targets and labels of some images."""

    H: Array
    Y: Array
    labels: Array

    def rows(self, chosen: Any) -> "Split":
        """Some of the images."""
        return Split(*(part[chosen] for part in self))


class Problem(NamedTuple):
    """The input of every method."""

    config: Config
    folder: RunFolder
    images: Images
    train: Split
    test: Split
    held_out: np.ndarray  # the training images, a drawn tenth, that choose models and settings
    K: float  # the mean L1 norm of the pixels
    # the problem of descriptors in place of pixels, weights of their features, seconds and operations, made once
    described: Callable[[], tuple["Problem", dict[str, Array], float, float]]


@functools.lru_cache(maxsize=1)  # checked before there is a run folder, then used
def read(config: Config) -> Images:
    """The images that the flags name."""
    with stage("reading"):
        return read_images(config.data, config.data_dir, limit=config.limit, resize=config.resize, seed=config.seed)


def _read_problem(config: Config, folder: RunFolder) -> Problem:
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


def _keys_of(config: Config, method: str) -> Iterator[Row]:
    """The fields that identify the rows of a method; the kernel has one part."""
    layers = config.layers if method in _several else {"network": (2,), "cnn": (4,)}.get(method, (1,))
    features = "kernel" if method in _of_features else "pixels"
    for depth, solver in itertools.product(layers, _solvers.get(method, (method,))):
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
    from jexplicit.solvers.sweeps import SoftmaxFit, streamed_logits

    fit = SoftmaxFit(params["U"], params["intercept"], ())
    return functools.partial(streamed_logits, fit, features=features_of(weights)) if weights else fit.logits


def features_of(weights: Mapping[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    from jexplicit.features import fourier_features

    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def linear(fit: Any) -> dict[str, Array]:
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


# --- pixels ---------------------------------------------------------------------------------------------------------------

_ridge = 1e-4  # of the sweeps with a bound on the curvature, in units of the features' mean square
_quadratic_sweeps = 30


def on_pixels(problem: Problem, key: Row) -> list[Row]:
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
        row["temperature"] = T = explicit.fit_temperature(dev, problem.train.labels[held_out])
        cooled = explicit.stack_logits(params, problem.test.H) / T
        row |= {"calibrated_loss": explicit.mean_loss(cooled, problem.test.Y)}
        row |= {"calibrated_error": explicit.calibration_error(cooled, problem.test.labels)}
    return [keep(problem, key, params, **row)]


def _solve(key: Row, split: Split, K: float, **options: Any) -> Any:
    """The arrays of a row's model, fitted to images; options: of sweeps."""
    if key["method"] == "explicit":
        return list(explicit_decoders(split, K, key["layers"]))
    from jexplicit.solvers import sweeps

    H, Y, _ = split
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


def flops(function: Callable, *inputs: Any) -> float:
    """Floating-point operations of a call on arrays of these shapes, by XLA."""
    return float((jax.jit(function).lower(*inputs).cost_analysis() or {}).get("flops", 0.0))


def pools(shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Averages of moduli of wavelets over a grid: images to [m, D]."""
    from jexplicit.features import scattering_pools, wavelets

    side = min(shape[1:])  # the coarsest wavelet is at most half an image wide
    bank = wavelets(shape[1:], octaves=min(3, side.bit_length() - 2), angles=6, grid=max(4, round(side / 4)))  # 4 pixels a cell
    return functools.partial(scattering_pools, bank=bank)


def _describe(problem: Problem) -> tuple[Problem, dict[str, Array], float, float]:
    """The problem of descriptors, which all linear classifiers of a run share."""
    from jexplicit.features import describe, fit_axes, fourier_directions

    config, images, start = problem.config, problem.images, time.perf_counter()
    X, levels = images.train_images, images.levels
    with stage("descriptors", "images") as progress:
        axes = fit_axes(pools(X.shape), X, levels, dimensions=_axes, seed=config.seed)
        Z, Z_test = (describe(pools(x.shape), axes, x, levels, progress=progress) for x in (X, images.test_images))
    W = fourier_directions(key_of_seed(config.seed), Z.shape[1], config.frequencies, scale=_scale)
    seconds, image = time.perf_counter() - start, jax.ShapeDtypeStruct((1, *X.shape[1:]), Z.dtype)
    cost = flops(pools(image.shape), image) + 2 * axes.axes.size  # of pooled responses and axes
    of_descriptors = problem._replace(train=problem.train._replace(H=Z), test=problem.test._replace(H=Z_test))
    return of_descriptors, {**axes._asdict(), "W": W}, seconds, cost * len(Z)


def readouts(problem: Problem, key: Row) -> list[Row]:
    """Both readouts: fitted to nine tenths, chosen on the other, then fitted to all."""
    from jexplicit.solvers import sweeps
    from jexplicit.solvers.sweeps import SoftmaxFit, streamed_logits, tempered

    problem, weights, feature_seconds, feature_flops = problem.described()
    (Z, Y, labels), held_out, features = problem.train, problem.held_out, features_of(weights)
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
    large = {*_of_features} & set(config.methods) and needed > present
    yield large, f"--frequencies {config.frequencies}: {taken}; use at most {most}"


@refuses
def check_images(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other, the machine or the images."""
    check(config)
    side = min(read(config).train_images.shape[1:])
    small = ", ".join(method for method in config.methods if method in ("cnn", *_of_features))
    yield small and side < 4, f"--methods {small} of images {side} pixels wide: use images of at least 4, or leave it out"


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """Every method that the flags name."""
    problem = _read_problem(config, folder)
    for method in config.methods:
        rows_of = pkgutil.resolve_name(f"launch.digits.{_methods[method]}")
        for key in _keys_of(config, method):
            yield key, functools.partial(rows_of, problem, key)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)


# --- views ----------------------------------------------------------------------------------------------------------------


def _epochs(row: Row) -> str:
    """Sweeps or epochs; a plus where training reached its last epoch before it stopped."""
    unit = " sweeps" * (row["solver"] in ("scaling", "quadratic", "softmax"))
    return f"{row['epochs']}{unit}{'+' * (not row.get('stopped', True))}" if row["epochs"] else ""


_columns = (
    Column("method", row_name), Column("held-out %", "dev_accuracy", ".2f", 100), Column("test %", "test_accuracy", ".2f", 100),
    Column("train %", "train_accuracy", ".2f", 100), Column("test loss, nats", "test_loss", ".4f"),
    Column("calibration error, %", "calibration_error", ".2f", 100), Column("epochs", _epochs), Column("D", "dimensions", ",d"),
    Column("MB", "bytes", ".2f", 1e-6), Column("seconds", "seconds", ".1f"),
)  # fmt: skip
# Models that are all fitted to the same nine tenths of the training images, and those fitted to all images after that.
_fair = (
    *_columns[:2],
    Column("held-out loss, nats", "dev_loss", ".4f"),
    Column("test %", lambda row: row.get("part_test_accuracy") or row["test_accuracy"], ".2f", 100),
    Column("test %, all images", lambda row: row["test_accuracy"] if "part_test_accuracy" in row else None, ".2f", 100),
    Column("fitted numbers", "parameters", ",d"), Column("MB", "bytes", ".2f", 1e-6), Column("TFLOP", "flops", ".2f", 1e-12),
)  # fmt: skip


def _patient(*methods: str) -> Callable[[Results], list[Row]]:
    """Rows of methods, without the stopping rule `rise` of earlier versions."""
    return lambda results: [row for row in where(results.rows, method=methods) if row.get("stop") != "rise"]


_all = Table(_columns, lambda results: sorted(results.rows, key=lambda row: row["test_accuracy"]))
PAPER = Table(_columns, _patient("explicit", "cold", "warm"))
OPPONENTS = Table(_fair, _patient("kernel", "trained_readout", "cnn", "network"))
_error = lambda row: max(100 * (1 - row["test_accuracy"]), 1e-2)  # noqa: E731
_log = {"xscale": "log", "yscale": "log", "ylabel": "test error (%)"}


def _above_lowest(results: Results) -> list[Row]:
    """Means over seeds; losses are those above the lowest of the seed."""
    lines = []
    for own in groups(where(results.rows, method="optimum"), ["seed"]).values():
        lowest, losses = min(row["loss"] for row in own), ("loss", *(f"loss_{n}" for n in SHOWN_PASSES))
        lines += [{**row, **{f"{name} above": row[name] - lowest for name in losses if name in row}} for row in own]
    return means(lines, ["solver"])


OPTIMUM = Table(
    (
        Column("solver", lambda row: row["solver"].replace("_", ", ")), Column("loss, nats", "loss", ".5f"),
        *(Column(f"above the lowest after {n}", f"loss_{n} above", ".1e") for n in SHOWN_PASSES),
        Column("at the end", "loss above", ".1e"), Column("passes", "passes", ".0f"), Column("TFLOP", "flops", ".2f", 1e-12),
        Column("held-out loss", "dev_loss", ".4f"), Column("held-out %", "dev_accuracy", ".2f", 100),
        Column("test %", "test_accuracy", ".2f", 100), Column("seeds", "number", "d"),
    ),
    _above_lowest,
    "Means over seeds; losses on nine tenths of the training images. Adam has its best rate, which the first seed searched; "
    "the passes of Adam include the search.",
)  # fmt: skip
_fair_note = "Fitted to the same nine tenths of the training images; the solved ones then to all of them."
_views: Sequence[View] = [
    _all,
    OPPONENTS._replace(note=_fair_note),
    Lines("methods", "seconds", _error, row_name, axes=_log),
    section("Explicit, cold and warm", PAPER),
    section("One loss, four optimisers", OPTIMUM, method="optimum"),
]
EXPERIMENT = Experiment(
    "digits", Config, measure, _views, PRESETS, check_images, ("methods", "layers"), "Digits: solved and trained"
)


# --- new images -----------------------------------------------------------------------------------------------------------

_images_per_call = 1000


class Classifier(NamedTuple):
    """A model of a run: its row, labels and logits [M, N] of images."""

    row: Row
    classes: tuple[str, ...]
    logits: Callable[[np.ndarray], Array]


def load_classifier(run: str, **wanted: Any) -> Classifier:
    """The most accurate of the wanted models of a run."""
    stored, rows = read_run(run, "digits")
    if set(stored) != {field.name for field in dataclasses.fields(Config)}:
        raise ValueError(f"{run} is a run of another version: fit its models again, by jexplicit digits with another --out")
    config_of(Config, stored, f"restore it in {run}, or give another run")
    folder = local_path(run, "--run") / "checkpoints"
    saved = [row for row in rows if is_checkpoint(folder / model_name(row))]
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not (fitting := where(saved, **wanted)):
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items()) or "--run"
        there = "; ".join(map(row_name, saved)) or "none that was saved"
        raise ValueError(f"{asked}: {run} has no such model; it has {there}")
    row = most_accurate(fitting)
    names = [model_name(row), *([row["features"]] if row["features"] != "pixels" else [])]
    params, *described = (jax.tree.map(jnp.asarray, load_checkpoint(folder / name)["params"]) for name in names)
    weights = described[0] if described else {}
    if row["method"] in ("network", "cnn", "cold", "warm"):
        trained: Any = pkgutil.resolve_name("launch.digits.trained")
        logits: Callable[[Any], Array] = functools.partial(trained.network_logits(trained.network_of(row)), params)
    else:
        logits = logits_of(params, weights)

    def of_images(X: np.ndarray) -> Array:
        if not weights:
            return logits(jnp.asarray(pixel_features(X, row["levels"])))
        from jexplicit.features import Axes, describe

        return logits(describe(pools(X.shape), Axes(weights["mean"], weights["axes"]), X, row["levels"]))

    return Classifier(row, tuple(row.get("classes") or map(str, range(row["outputs"]))), of_images)


def classify(config: Any) -> dict[str, Any]:
    """launch.classify: load the model, read the images, print a line for each."""
    if not config.images:
        raise ValueError("--images needs at least one file or folder")
    wanted = {name: getattr(config, name) for name in ("method", "layers", "features", "solver")}
    model = load_classifier(config.run, **wanted)
    row, name = model.row, row_name(model.row)
    console.print(f"model {name} of {config.run}, test accuracy {100 * row['test_accuracy']:.2f} %", soft_wrap=True)
    shape, resize = (row["height"], row["width"]), read_run(config.run, "digits")[0]["resize"]
    given = list(read_grey_images(config.images, row["levels"], resize))
    for image, pixels in given:
        if pixels.shape != shape:
            remedy = f"resize it, with Pillow: image.resize({shape[::-1]})"
            raise ValueError(f"{image} is {size(pixels.shape)}, but the models of {config.run} read {size(shape)}: {remedy}")
    names, X = [image for image, _ in given], np.stack([pixels for _, pixels in given])
    check_grey_levels(X, row["levels"], f"images such as {names[int(X.max(axis=(1, 2)).argmax())]}")
    blocks = (X[m : m + _images_per_call] for m in range(0, len(X), _images_per_call))
    P = np.concatenate([np.asarray(jax.nn.softmax(model.logits(block))) for block in blocks])
    found = []
    for image, p in zip(names, P, strict=True):
        top = [{"label": model.classes[i], "probability": float(p[i])} for i in np.argsort(-p, kind="stable")[: config.top]]
        found.append({"image": image, **top[0], "top": top})
        show(f"{image}: " + ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in top))
    return {"model": name, "test_accuracy": row["test_accuracy"], "images": found}

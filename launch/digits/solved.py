"""Images as a problem, and its classifiers without backpropagation.

A method is a function of a `Problem` that yields parts: the fields that identify a row, and what computes the rest of it.

The kernel is least squares and a softmax layer on random Fourier features, the most accurate model. Descriptors of some hundred
numbers become thousands of cosines, a block of images at a time, and only `HᵀH` and `HᵀY` are kept of those. A tenth of the
training images, drawn at random, chooses the ridge and a temperature for each readout; both are then fitted to all of them.
scikit-learn's logistic regression is here for comparison.
"""

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.features.images import (
    Axes,
    Filters,
    describe,
    fit_axes,
    patch_features,
    patch_filters,
    scattering_pools,
    wavelets,
)
from jexplicit.features.random import fourier_directions, fourier_features, random_directions, random_features, unit_rows
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.files import is_measured, peak_bytes
from jexplicit.runs.loop import load_checkpoint, save_checkpoint
from jexplicit.runs.progress import stage
from jexplicit.solvers.explicit import (
    SoftmaxLayer,
    delta_intercept,
    dense_cooccurrence,
    explicit_solution,
    fit_image_delta,
    intercept_logits,
    priming_number,
    solve_layers,
    stack_logits,
)
from jexplicit.solvers.feature_machine import FeatureMachine, feature_machine, matrix_power, predict
from jexplicit.solvers.metrics import accuracy, calibration_error, fit_temperature, mean_loss, reliability
from jexplicit.solvers.sweeps import (
    Gram,
    SoftmaxFit,
    add_grams,
    choose_ridge,
    curvature_bound_sweeps,
    gram_least_squares,
    gram_matrix,
    gram_softmax_sweeps,
    iterative_scaling_sweeps,
    split_examples,
    streamed_logits,
    tempered,
)
from launch.digits.config import Config
from launch.kit.experiment import Part, RunFolder
from launch.kit.views import Row, where

Parts = Iterator[Part]
# methods whose features have weights of their own, in a checkpoint by the name of the features
WITH_FEATURES = ("features", "kernel", "feature-machine", "trained_readout", "optimum")


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
    if row["method"] in ("kernel", "feature-machine", "optimum"):
        return f"{row['method']}, {row['solver'].replace('_', ' ')}"
    if row["method"] == "features":
        return f"{row['solver']} on {row['features']}"
    layers = f", {row['layers']} layer{'s' * (row['layers'] > 1)}" if row["method"] in ("explicit", "cold", "warm") else ""
    return row["method"].replace("_", " ") + layers


def model_name(row: Row) -> str:
    """The checkpoint of a row's model."""
    several = row["method"] in ("features", "kernel", "feature-machine")
    return f"{row['features']}_{row['solver']}" if several else f"{row['method']}_{row['layers']}"


def save_model(problem: Problem, name: str, params: Any) -> None:
    """Write the parameters of a model to its checkpoint."""
    save_checkpoint(problem.folder.path / "checkpoints" / name, {"params": jax.tree.map(np.asarray, params)})


def load_model(path: Any) -> Any:
    """The parameters in a checkpoint."""
    return jax.tree.map(jnp.asarray, load_checkpoint(path)["params"])


def flops(function: Callable, *inputs: Any) -> float:
    """Floating-point operations of a call on arrays of these shapes, by XLA."""
    return float((jax.jit(function).lower(*inputs).cost_analysis() or {}).get("flops", 0.0))


def stored(problem: Problem, row: Row) -> dict[str, int]:
    """The number of fitted parameters, and the bytes a model needs to classify."""
    names = [model_name(row), *([row["features"]] if row["method"] in WITH_FEATURES else [])]
    models = [jax.tree.leaves(load_model(problem.folder.path / "checkpoints" / name)) for name in names]
    return {"parameters": sum(leaf.size for leaf in models[0]), "bytes": sum(leaf.nbytes for leaf in sum(models, []))}


def keep(problem: Problem, key: Row, params: Any, train: Array, test: Array, **fields: Any) -> Row:
    """The row of a model from its logits; parameters and guesses are saved."""
    save_model(problem, model_name(key), params)
    log_reliability(problem, row_name(key), test)
    path = problem.folder.path / "guesses" / f"{row_name(key)}.npy"
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.asarray(test.argmax(axis=1), np.uint8))
    for part, logits, split in (("test", test, problem.test), ("train", train, problem.train)):
        fields |= {f"{part}_accuracy": accuracy(logits, split.labels), f"{part}_loss": mean_loss(logits, split.Y)}
    return {**key, **fields, "calibration_error": calibration_error(test, problem.test.labels)}


def log_reliability(problem: Problem, name: str, test: Array) -> None:
    """Log the confidence and the accuracy of logits on the test images, by bin."""
    curve = reliability(test, problem.test.labels)
    problem.folder.log(event="reliability", name=name, **{field: part.tolist() for field, part in curve._asdict().items()})


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


def fit_descriptors(config: Config, images: Images) -> tuple[Array, Array, dict[str, Any]]:
    """Descriptors of the train and of the test images, and the weights they need."""
    X, levels = images.train_images, images.levels
    with stage("descriptors", "images") as progress:
        axes = fit_axes(pools(config, X.shape), X, levels, dimensions=config.axes, seed=config.seed)
        weights = axes._asdict()
        train, test = (descriptors(config, weights, x, levels, progress=progress) for x in (X, images.test_images))
    return train, test, weights


def descriptors(config: Config, weights: Mapping[str, Any], X: np.ndarray, levels: int, **options: Any) -> Array:
    """Descriptors of images [M, height, width], with weights that a run keeps."""
    return describe(pools(config, X.shape), Axes(weights["mean"], weights["axes"]), X, levels, **options)


def pools(config: Config, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Averages of moduli of wavelets over a grid: images to [m, D]."""
    side = min(shape[1:])
    octaves = config.octaves or min(3, most_octaves(side))
    bank = wavelets(shape[1:], octaves=octaves, angles=config.angles, grid=grid_cells(config, side))
    return functools.partial(scattering_pools, bank=bank)


def grid_cells(config: Config, side: int) -> int:
    """Cells along a side: as asked for, or near a quarter of it."""
    return config.grid or max(4, round(side / 4))


def most_octaves(side: int) -> int:
    """Octaves whose coarsest wavelet is at most half an image wide."""
    return side.bit_length() - 2


_ridge = 1e-4  # of the sweeps with a bound on the curvature, in units of the features' mean square
_threshold = 1.0  # responses below this many standard deviations are set to 0, so that features are sparse
_iterations = 200  # of L-BFGS, at most
_scale = 0.7  # of the frequencies; the kernel is `exp(-scale² d²/2)`, d in units of the root mean square of the descriptors
_metric_ridge = 1e-3
_least_ridge = 1e-4  # with less, HᵀH of fewer images than features cannot be factorised in float32


class Inputs(NamedTuple):
    """Features of a layer, the priming number K, fields, and seconds."""

    train: Split
    test: Split
    K: float | None
    fields: Row = {}
    seconds: float = 0.0


class Model(NamedTuple):
    """The saved arrays of a model, its logits, and fields of its row."""

    params: Any
    logits: Callable[[Array], Array]
    fields: Row = {}


def pixels(problem: Problem, method: str) -> Parts:
    """A method on pixels; the explicit solution has a row per depth."""
    solver = {"delta": "explicit", "logistic_regression": "lbfgs"}.get(method, method)
    sweeps = {"scaling": problem.config.sweeps, "quadratic": problem.config.quadratic_sweeps}.get(method, 0)
    inputs = Inputs(problem.train, problem.test, None if solver in ("quadratic", "lbfgs") else problem.K)
    for layers in problem.config.layers if method == "explicit" else (1,):
        key = make_key(method, solver, layers=layers)
        yield key, functools.partial(_measure, problem, key, sweeps, lambda: inputs)


def features(problem: Problem) -> Parts:
    """Layers on explicit features: closed form, iterative scaling, bound on the curvature."""
    sweeps = {"explicit": 0, "scaling": problem.config.feature_sweeps, "quadratic": problem.config.quadratic_sweeps}
    for kind in ("patches", "random"):
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
            weights = {"W": random_directions(key_of_seed(config.seed), problem.train.H.shape[1], config.directions)}
        else:
            size = max(3, round(min(X.shape[1:]) / 4.5))
            weights = patch_filters(X, levels, size=size, number=config.filters, seed=config.seed)._asdict()
        save_model(problem, kind, weights)
        both = (explicit_features(x, levels, weights, progress=progress) for x in (X, images.test_images))
        H, H_test = map(jax.block_until_ready, both)
    seconds = time.perf_counter() - start
    fields = {"dimensions": H.shape[1], "feature_seconds": seconds}
    return Inputs(problem.train._replace(H=H), problem.test._replace(H=H_test), 1.0, fields, seconds)


def explicit_features(X: np.ndarray, levels: int, weights: Mapping[str, Array], **options: Any) -> Array:
    """Features of images by filters W, b of patches or directions W."""
    if "b" not in weights:
        return unit_rows(random_features(jnp.asarray(pixel_features(X, levels)), weights["W"], threshold=_threshold))
    filters = Filters(**weights)
    grid = max(3, round((min(X.shape[1:]) - filters.size() + 1) / 6))
    return unit_rows(patch_features(X, levels, filters, grid=grid, threshold=_threshold, **options))


def layer_inputs(row: Row, H: Array) -> Array:
    """Features, with a constant 1 if sweeps need it."""
    constant = row["solver"] == "quadratic" and row["method"] != "features"
    return jnp.pad(H, ((0, 0), (0, 1)), constant_values=1) if constant else H


def _measure(problem: Problem, key: Row, sweeps: int, make_inputs: Callable[[], Inputs]) -> list[Row]:
    """The row of a model; interrupted sweeps continue."""
    inputs, about = make_inputs(), {"features": key["features"], "solver": key["solver"]}
    train, test = (split._replace(H=layer_inputs(key, split.H)) for split in (inputs.train, inputs.test))
    checkpoints = problem.folder.path / "checkpoints" / f"{row_name(key)}.partial"
    earlier = where(problem.folder.events("sweep"), **about) if checkpoints.exists() else []
    start = time.perf_counter() - (earlier[-1]["seconds"] if earlier else 0.0)

    def on_sweep(sweep: int, loss: float, state: Any) -> None:
        problem.folder.log(event="sweep", **about, sweep=sweep, loss=loss, seconds=time.perf_counter() - start)

    with stage(row_name(key), "sweeps") as progress:
        options = {"sweeps": sweeps, "checkpoints": checkpoints, "on_sweep": on_sweep, "progress": progress}
        params, logits, fields = _solve(key, train, inputs.K, options)
        jax.block_until_ready(params)
    seconds = time.perf_counter() - start + inputs.seconds
    both, tenth = (logits(train.H), logits(test.H)), held_out_tenth(problem)
    part = _solve(key, train.rows(~tenth), inputs.K, {"sweeps": sweeps})  # which has not seen the held-out tenth
    dev = part.logits(train.H[tenth])
    if key["method"] == "explicit":
        fields = _calibrated(problem, key, dev, both[1])
    row: Row = {"epochs": sweeps, "priming_number": inputs.K, **inputs.fields, **fields, **dev_scores(problem, dev)}
    return [keep(problem, key, params, *both, **row, seconds=seconds)]


def _solve(key: Row, split: Split, K: Any, options: Any) -> Model:
    """The model of a row, fitted to images with options of sweeps."""
    H, Y, labels = split
    match key["method"], key["solver"]:
        case "explicit", _:
            decoders = explicit_decoders(split, K, key["layers"])
            return Model(list(decoders), functools.partial(stack_logits, decoders))
        case "logistic_regression", _:
            return _logistic_regression(split)
        case _, "quadratic":
            return linear(curvature_bound_sweeps(H, Y, ridge=_ridge, **options))
    F, f = dense_cooccurrence(H, Y), Y.sum(axis=0)
    if key["method"] == "delta":
        delta = fit_image_delta(H, labels, F, f, K)
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


def _logistic_regression(split: Split) -> Model:
    """scikit-learn's multinomial logistic regression, without regularisation."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is in the row
        model = LogisticRegression(C=np.inf, max_iter=_iterations).fit(np.asarray(split.H), np.asarray(split.labels))
    U, b = model.coef_.T, model.intercept_
    if U.shape[1] == 1:  # two classes
        U, b = np.concatenate([-U / 2, U / 2], axis=1), np.concatenate([-b / 2, b / 2])
    fit = SoftmaxFit(jnp.asarray(U, split.H.dtype), jnp.asarray(b, split.H.dtype), ())
    return linear(fit, epochs=int(model.n_iter_.max()), backprop_free=False)


def _calibrated(problem: Problem, key: Row, dev: Array, test: Array) -> Row:
    """The explicit solution with the temperature of a held-out tenth."""
    temperature = fit_temperature(dev, problem.train.labels[held_out_tenth(problem)])
    cooled = test / temperature
    log_reliability(problem, f"{row_name(key)}, one temperature", cooled)
    loss, error = mean_loss(cooled, problem.test.Y), calibration_error(cooled, problem.test.labels)
    return {"temperature": temperature, "calibrated_loss": loss, "calibrated_error": error}


class Described(NamedTuple):
    """Descriptors of training and test images, weights of features, and their cost."""

    train: Array
    test: Array
    weights: dict[str, Any]
    seconds: float
    flops: float


class Readout(NamedTuple):
    """A layer for all images, one for nine tenths, and one temperature."""

    fit: SoftmaxFit
    part: SoftmaxFit
    temperature: float
    seconds: float


def kernel(problem: Problem, method: str = "kernel") -> Parts:
    """Least squares and a softmax layer on the same features, a row for each.

    method: kernel, or feature-machine, whose kernel has a learned metric.
    """
    key = {"method": method, "layers": 1, "features": method}
    yield key, functools.partial(_both_readouts, problem, key)


def _both_readouts(problem: Problem, key: Row) -> list[Row]:
    config, described = problem.config, describe_images(problem.config)
    about: Any = {}
    if key["method"] == "feature-machine":
        described, about = with_metric(problem, described)
    train, test, weights, feature_seconds, _ = described
    save_model(problem, key["features"], weights)
    features, tenth = kernel_features(weights), held_out_tenth(problem)
    about |= {"dimensions": 2 * config.frequencies, "feature_seconds": feature_seconds}
    ridge, readouts = _fit(problem, train, features)
    about |= {"ridge": ridge, "peak_bytes": peak_bytes()}
    rows = []
    for solver, (*fits, temperature, seconds) in readouts.items():
        fit, part = (tempered(each, temperature, ridge)[0] for each in fits)
        fields = {"epochs": config.kernel_sweeps if solver == "softmax" else 0, "temperature": temperature, **about}
        fields |= {"solve_seconds": seconds, "seconds": feature_seconds + seconds}
        fields |= {"flops": described.flops + _solve_flops(config, len(train), solver)}
        fields |= dev_scores(problem, streamed_logits(part, train[tenth], features))
        fields["part_test_accuracy"] = accuracy(streamed_logits(part, test, features), problem.test.labels)
        logits = (streamed_logits(fit, Z, features) for Z in (train, test))
        rows.append(keep(problem, {**key, "solver": solver}, linear(fit).params, *logits, **fields))
    return rows


@functools.lru_cache(maxsize=1)
def describe_images(config: Config) -> Described:
    """The descriptors of the images, shared by all linear classifiers of a run."""
    images, start = read(config), time.perf_counter()
    train, test, weights = fit_descriptors(config, images)
    W = fourier_directions(key_of_seed(config.seed), train.shape[1], config.frequencies, scale=_scale)
    seconds, image = time.perf_counter() - start, jax.ShapeDtypeStruct((1, *images.train_images.shape[1:]), train.dtype)
    products = 2 * weights["axes"].size  # of pooled responses and axes
    cost = flops(pools(config, image.shape), image) + products
    return Described(train, test, {**weights, "W": W}, seconds, cost * len(train))


def with_metric(problem: Problem, described: Described) -> tuple[Described, Row]:
    """The same with the metric of a feature machine, `W <- M^(1/2) W`.

    The machine reads nine tenths of the training images; the others choose the number of solves and the power.
    """
    config, tenth, start = problem.config, held_out_tenth(problem), time.perf_counter()
    X, Y = described.train, problem.train.Y - problem.train.Y[~tenth].mean(axis=0)[None]
    found: list[tuple[Row, Array]] = []

    def measure(machine: FeatureMachine) -> Row:
        guess = predict(machine, X[tenth], kernel="gaussian")
        right = accuracy(guess, problem.train.labels[tenth])
        entry = {"power": power, "held_out_error": float(jnp.mean((guess - Y[tenth]) ** 2)), "dev_accuracy": right}
        found.append((entry, machine.M))
        return entry

    for power in config.powers:
        with stage(f"metric, power {power:g}", "solves") as progress:

            def report(entry: Any, progress: Any = progress) -> None:
                problem.folder.log(event="metric", **entry)
                progress(entry["solve"], config.solves)

            options: Any = {"power": power, "landmarks": config.landmarks, "seed": config.seed, "measure": measure}
            options |= {"solves": config.solves, "kernel": "gaussian", "ridge": _metric_ridge, "mesh": data_mesh()}
            feature_machine(X[~tenth], Y[~tenth], callback=report, **options)
    best = min(range(len(found)), key=lambda n: found[n][0]["held_out_error"])
    entry, M = found[best]
    C = jnp.cov(X[~tenth].T, bias=True)
    M = M * jnp.trace(C) / jnp.sum(M * C)  # distances as large as they were
    weights = {**described.weights, "W": matrix_power(M, 0.5) @ described.weights["W"]}
    seconds, (n, d) = time.perf_counter() - start, X[~tenth].shape
    m, c = min(config.landmarks, n), problem.images.outputs
    regression = n * (2 * m * d + m**2 * (2 + 1 / 8)) + m**3
    cost = len(found) * regression + (len(found) - len(config.powers)) * n * 2 * m * d * (1 + c)
    both = described._replace(weights=weights, seconds=described.seconds + seconds, flops=described.flops + cost)
    return both, {"solve": best % config.solves + 1, "power": entry["power"], "metric_seconds": seconds}


def _solve_flops(config: Config, examples: int, solver: str) -> float:
    """FLOPs of features, `HᵀH`, ridges and sweeps, by matrix products."""
    n, D, N = config.frequencies, 2 * config.frequencies, read(config).outputs
    H, factor, products = 2.0 * config.axes * n, D**3 / 3, 2.0 * D * N
    squares = examples * (H + D**2 * (1 + 1 / 8) + products) + (len(config.ridges) + 1) * factor
    passes = 1.9 * config.kernel_sweeps * examples * (solver == "softmax")  # over nine tenths, and over all
    return squares + passes * (H + 2 * products) + 2 * factor * (solver == "softmax")


def kernel_features(weights: Mapping[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def kernel_logits(config: Config, weights: Mapping[str, Any], params: Mapping[str, Array], X: np.ndarray, levels: int) -> Array:
    """Logits of images [M, height, width] from a run's saved arrays."""
    fit = SoftmaxFit(params["U"], params["intercept"], ())
    return streamed_logits(fit, descriptors(config, weights, X, levels), kernel_features(weights))


def _fit(problem: Problem, train: Array, features: Any) -> tuple[float, dict[str, Readout]]:
    """The ridge that a held-out tenth chooses, and the classifier by solver."""
    held_out, laps = held_out_tenth(problem), [time.perf_counter()]
    Y, labels, rest = problem.train.Y, problem.train.labels[held_out], train[held_out]
    chosen = (~held_out, held_out, slice(None))
    part, other, whole = (split_examples(train[rows], Y[rows], mesh=data_mesh()) for rows in chosen)

    def sums(blocks: Any, name: str) -> Gram:
        with stage(name, "blocks") as progress:
            return jax.block_until_ready(gram_matrix(blocks, features, progress=progress))

    def sweeps(gram: Gram, blocks: Any, begun: SoftmaxFit, ridge: float, name: str) -> SoftmaxFit:
        def on_sweep(sweep: int, loss: float, state: Any) -> None:
            problem.folder.log(event="kernel_sweep", part=name, sweep=sweep, loss=loss)

        with stage(name, "sweeps") as progress:
            options: Any = {"sweeps": problem.config.kernel_sweeps, "on_sweep": on_sweep, "progress": progress}
            return gram_softmax_sweeps(gram, blocks, features, begun, ridge=ridge, **options)

    gram = sums(part, "nine tenths of HᵀH")
    with stage("ridge", "ridges") as progress:
        ridge, squares = choose_ridge(gram, problem.config.ridges, rest, Y[held_out], features, progress=progress)
    temperature = fit_temperature(streamed_logits(squares, rest, features), labels)
    laps.append(time.perf_counter())
    begun, softmax_ridge = tempered(squares, temperature, ridge)
    softmax_ridge = max(softmax_ridge, _least_ridge)
    softmax = sweeps(gram, part, begun, softmax_ridge, "softmax, nine tenths")
    softmax_temperature = fit_temperature(streamed_logits(softmax, rest, features), labels)
    laps.append(time.perf_counter())
    gram = add_grams(gram, sums(other, "a tenth of HᵀH"))
    all_squares = jax.block_until_ready(gram_least_squares(gram, ridge=ridge))
    laps.append(time.perf_counter())
    all_softmax = jax.block_until_ready(sweeps(gram, whole, softmax, softmax_ridge, "softmax, all images"))
    first, middle, last, end = np.diff([*laps, time.perf_counter()]).tolist()
    return ridge, {
        "least_squares": Readout(all_squares, squares, temperature, first + last),
        "softmax": Readout(all_softmax, softmax, softmax_temperature, first + middle + last + end),
    }

"""Kernel least squares and a softmax layer on random Fourier features: the most accurate model without backpropagation.

Descriptors of some hundred numbers become thousands of cosines, a block of images at a time, and only `HᵀH` and `HᵀY` are kept
of those. A tenth of the training images, drawn at random, chooses the ridge and a temperature for each readout; both are then
fitted to all of them.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.features.fourier import fourier_directions, fourier_features
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.host import peak_bytes
from jexplicit.runs.progress import stage
from jexplicit.solvers.calibration import fit_temperature
from jexplicit.solvers.feature_machine import FeatureMachine, feature_machine, matrix_power, predict
from jexplicit.solvers.gram import Gram, add_grams, gram_matrix, split_examples
from jexplicit.solvers.metrics import accuracy
from jexplicit.solvers.streamed import choose_ridge, gram_least_squares, gram_softmax_sweeps, streamed_logits, tempered
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.base import Parts, Problem, dev_scores, flops, held_out_tenth, keep, read, save_model
from launch.digits.config import Config
from launch.digits.descriptors import descriptors, fit_descriptors, pools
from launch.digits.solved import linear
from launch.kit.rows import Row

_metric_ridge = 1e-3
_least_ridge = 1e-4  # with less, HᵀH of fewer images than features cannot be factorised in float32


class Described(NamedTuple):
    """Descriptors of the training and of the test images, and the weights of all features.

    seconds, flops: that they took.
    """

    train: Array
    test: Array
    weights: dict[str, Any]
    seconds: float
    flops: float


class Readout(NamedTuple):
    """A layer fitted to all images, and one fitted to nine tenths of them, whose temperature serves both."""

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
        fields |= {
            "flops": described.flops + _solve_flops(config, len(train), solver),
            **dev_scores(problem, streamed_logits(part, train[tenth], features)),
        }
        fields["part_test_accuracy"] = accuracy(streamed_logits(part, test, features), problem.test.labels)
        logits = (streamed_logits(fit, Z, features) for Z in (train, test))
        rows.append(keep(problem, {**key, "solver": solver}, linear(fit).params, *logits, **fields))
    return rows


@functools.lru_cache(maxsize=1)
def describe_images(config: Config) -> Described:
    """The descriptors of the images of the flags, which all readouts of a run share."""
    images, start = read(config), time.perf_counter()
    train, test, weights = fit_descriptors(config, images)
    W = fourier_directions(jax.random.key(config.seed), train.shape[1], config.frequencies, scale=config.scale)
    seconds, image = time.perf_counter() - start, jax.ShapeDtypeStruct((1, *images.train_images.shape[1:]), train.dtype)
    products = 2 * weights["axes"].size  # of pooled responses and axes
    cost = flops(pools(config, image.shape, weights), image) + products
    return Described(train, test, {**weights, "W": W}, seconds, cost * len(train))


def with_metric(problem: Problem, described: Described) -> tuple[Described, Row]:
    """The same with the frequencies of a kernel whose metric a feature machine has learned, `W <- M^(1/2) W`.

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
    """Of matrix products and factorisations: features, `HᵀH` by strips of its lower triangle, ridges; then the sweeps."""
    n, D, N = config.frequencies, 2 * config.frequencies, read(config).outputs
    H, factor, products = 2.0 * config.axes * n, D**3 / 3, 2.0 * D * N
    squares = examples * (H + D**2 * (1 + 1 / 8) + products) + (len(config.ridges) + 1) * factor
    passes = 1.9 * config.kernel_sweeps * examples * (solver == "softmax")  # over nine tenths, and over all
    return squares + passes * (H + 2 * products) + 2 * factor * (solver == "softmax")


def kernel_features(weights: Mapping[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def kernel_logits(config: Config, weights: Mapping[str, Any], params: Mapping[str, Array], X: np.ndarray, levels: int) -> Array:
    """Logits of images [M, height, width], from what a run keeps: weights of the features, params of a readout."""
    fit = SoftmaxFit(params["U"], params["intercept"], ())
    return streamed_logits(fit, descriptors(config, weights, X, levels), kernel_features(weights))


def _fit(problem: Problem, train: Array, features: Any) -> tuple[float, dict[str, Readout]]:
    """The ridge that a held-out tenth chooses, and the readout by solver. Temperatures are of nine tenths."""
    held_out, laps = held_out_tenth(problem), [time.perf_counter()]
    Y, labels, rest = problem.train.Y, problem.train.labels[held_out], train[held_out]
    chosen = (~held_out, held_out, slice(None))
    part, other, whole = (split_examples(train[rows], Y[rows], mesh=data_mesh()) for rows in chosen)

    def sums(blocks: Any, name: str) -> Gram:
        with stage(name, "blocks") as progress:
            return jax.block_until_ready(gram_matrix(blocks, features, progress=progress))

    def sweeps(gram: Gram, blocks: Any, begun: SoftmaxFit, ridge: float, name: str) -> SoftmaxFit:
        def on_sweep(sweep: int, loss: float) -> None:
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

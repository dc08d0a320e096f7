"""Least squares and a softmax layer on random Fourier features of scattering.

Descriptors of some hundred numbers become thousands of cosines, a block of images at a time, and only `HᵀH` and `HᵀY` are kept
of those. A tenth of the training images, drawn at random, chooses the ridge and a temperature for each readout; both are then
fitted to all of them.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jexplicit.features import Axes, describe, fit_axes, fourier_directions, fourier_features, scattering_pools, wavelets
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.files import peak_bytes
from jexplicit.runs.progress import stage
from jexplicit.solvers.explicit import accuracy, fit_temperature
from jexplicit.solvers.sweeps import (
    Gram,
    SoftmaxFit,
    add_grams,
    choose_ridge,
    gram_least_squares,
    gram_matrix,
    gram_softmax_sweeps,
    split_examples,
    streamed_logits,
    tempered,
)
from launch.digits.config import Config
from launch.digits.solved import (
    Parts,
    Problem,
    dev_scores,
    grid_cells,
    held_out_tenth,
    keep,
    linear,
    most_octaves,
    read,
    save_model,
)
from launch.kit.views import Row

_scale = 0.7  # of the frequencies; the kernel is `exp(-scale² d²/2)`, d in units of the root mean square of the descriptors
_ridges = (1e-4, 1e-3, 1e-2, 1e-1)  # to choose from by the squared error on a held-out tenth
_least_ridge = 1e-4  # with less, HᵀH of fewer images than features cannot be factorised in float32


def flops(function: Callable, *inputs: Any) -> float:
    """Floating-point operations of a call on arrays of these shapes, by XLA."""
    return float((jax.jit(function).lower(*inputs).cost_analysis() or {}).get("flops", 0.0))


def pools(config: Config, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Averages of moduli of wavelets over a grid: images to [m, D]."""
    side = min(shape[1:])
    octaves = config.octaves or min(3, most_octaves(side))
    bank = wavelets(shape[1:], octaves=octaves, angles=config.angles, grid=grid_cells(config, side))
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
        axes = fit_axes(pools(config, X.shape), X, levels, dimensions=config.axes, seed=config.seed)
        train, test = (describe(pools(config, x.shape), axes, x, levels, progress=progress) for x in (X, images.test_images))
    W = fourier_directions(key_of_seed(config.seed), train.shape[1], config.frequencies, scale=_scale)
    seconds, image = time.perf_counter() - start, jax.ShapeDtypeStruct((1, *X.shape[1:]), train.dtype)
    weights = {**axes._asdict(), "W": W}
    cost = flops(pools(config, image.shape), image) + 2 * weights["axes"].size  # of pooled responses and axes
    return Described(train, test, weights, seconds, cost * len(train))


def kernel_features(weights: Mapping[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def kernel_logits(config: Config, weights: Mapping[str, Any], params: Mapping[str, Array], X: np.ndarray, levels: int) -> Array:
    """Logits of images [M, height, width] from a run's saved arrays."""
    Z = describe(pools(config, X.shape), Axes(weights["mean"], weights["axes"]), X, levels)
    return streamed_logits(SoftmaxFit(params["U"], params["intercept"], ()), Z, kernel_features(weights))


class Readout(NamedTuple):
    """A layer for all images, one for nine tenths, and one temperature."""

    fit: SoftmaxFit
    part: SoftmaxFit
    temperature: float
    seconds: float


def kernel(problem: Problem, method: str) -> Parts:
    """Least squares and a softmax layer on the same features, a row for each."""
    key = {"method": method, "layers": 1, "features": method}
    yield key, functools.partial(_both_readouts, problem, key)


def _both_readouts(problem: Problem, key: Row) -> list[Row]:
    config, described = problem.config, describe_images(problem.config)
    train, test, weights, feature_seconds, _ = described
    save_model(problem, key["features"], weights)
    features, tenth = kernel_features(weights), held_out_tenth(problem)
    about: Any = {"dimensions": 2 * config.frequencies, "feature_seconds": feature_seconds}
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


def _solve_flops(config: Config, examples: int, solver: str) -> float:
    """FLOPs of features, `HᵀH`, ridges and sweeps, by matrix products."""
    n, D, N = config.frequencies, 2 * config.frequencies, read(config).outputs
    H, factor, products = 2.0 * config.axes * n, D**3 / 3, 2.0 * D * N
    squares = examples * (H + D**2 * (1 + 1 / 8) + products) + (len(_ridges) + 1) * factor
    passes = 1.9 * config.kernel_sweeps * examples * (solver == "softmax")  # over nine tenths, and over all
    return squares + passes * (H + 2 * products) + 2 * factor * (solver == "softmax")


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
    with stage("ridge"):
        ridge, squares = choose_ridge(gram, _ridges, rest, Y[held_out], features)
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

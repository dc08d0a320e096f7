"""Kernel least squares and a softmax layer on random Fourier features: the most accurate model without gradients.

Descriptors of some hundred numbers become thousands of cosines, a block of images at a time, and only `HᵀH` and `HᵀY` are kept
of those. A tenth of the training images, drawn at random, chooses the ridge and a temperature for each readout; both are then
fitted to all of them.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.experiments.rows import Row
from jexplicit.features.fourier import fourier_directions, fourier_features
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.host import peak_bytes
from jexplicit.runs.progress import stage
from jexplicit.solvers.calibration import fit_temperature
from jexplicit.solvers.gram import Gram, add_grams, gram_matrix, split_examples
from jexplicit.solvers.streamed import choose_ridge, gram_least_squares, gram_softmax_sweeps, streamed_logits, tempered
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.base import Parts, Problem, held_out_tenth, keep, save_model
from launch.digits.config import Config
from launch.digits.descriptors import descriptors, fit_descriptors
from launch.digits.solved import linear

_least_ridge = 1e-4  # with less, HᵀH of fewer images than features cannot be factorised in float32


def kernel(problem: Problem) -> Parts:
    """Least squares and a softmax layer on the same features, a row for each."""
    key = {"method": "kernel", "layers": 1, "features": "kernel"}
    yield key, functools.partial(_both_readouts, problem, key)


def _both_readouts(problem: Problem, key: Row) -> list[Row]:
    config, start = problem.config, time.perf_counter()
    train, test, weights = fit_descriptors(config, problem.images)
    weights["W"] = fourier_directions(jax.random.key(config.seed), train.shape[1], config.frequencies, scale=config.scale)
    save_model(problem, "kernel", weights)
    features = kernel_features(weights)
    about: Any = {"dimensions": 2 * config.frequencies, "feature_seconds": time.perf_counter() - start}
    ridge, readouts = _fit(problem, train, features)
    about |= {"ridge": ridge, "peak_bytes": peak_bytes()}
    rows = []
    for solver, (fit, temperature, seconds) in readouts.items():
        fit, _ = tempered(fit, temperature, ridge)
        fields = {"epochs": config.kernel_sweeps if solver == "softmax" else 0, "temperature": temperature, **about}
        fields |= {"solve_seconds": seconds, "seconds": about["feature_seconds"] + seconds}
        logits = (streamed_logits(fit, Z, features) for Z in (train[: len(problem.train.labels)], test))
        rows.append(keep(problem, {**key, "solver": solver}, linear(fit).params, *logits, **fields))
    return rows


def kernel_features(weights: Mapping[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def kernel_logits(config: Config, weights: Mapping[str, Any], params: Mapping[str, Array], X: np.ndarray, levels: int) -> Array:
    """Logits of images [M, height, width], from what a run keeps: weights of the features, params of a readout."""
    fit = SoftmaxFit(params["U"], params["intercept"], ())
    return streamed_logits(fit, descriptors(config, weights, X, levels), kernel_features(weights))


def _fit(problem: Problem, train: Array, features: Any) -> tuple[float, dict[str, tuple[SoftmaxFit, float, float]]]:
    """The ridge that a held-out tenth chooses, and by solver the layer fitted to all images, its temperature and its seconds.

    Temperatures are of nine tenths. Copies of held-out images are held out, too, and choose nothing.
    """
    tenth, laps = held_out_tenth(problem), [time.perf_counter()]
    held_out, M, copies = np.resize(tenth, len(train)), len(tenth), len(train) // len(tenth)
    Y, labels = jnp.tile(problem.train.Y, (copies, 1)), problem.train.labels[tenth]
    chosen = (~held_out, held_out, slice(None))
    part, copied, whole = (split_examples(train[rows], Y[rows], mesh=data_mesh()) for rows in chosen)
    rest = train[:M][tenth]

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
        Y_rest = problem.train.Y[tenth]
        ridge, squares = choose_ridge(gram, problem.config.ridges, rest, Y_rest, features, progress=progress)
    temperature = fit_temperature(streamed_logits(squares, rest, features), labels)
    laps.append(time.perf_counter())
    begun, softmax_ridge = tempered(squares, temperature, ridge)
    softmax_ridge = max(softmax_ridge, _least_ridge)
    softmax = sweeps(gram, part, begun, softmax_ridge, "softmax, nine tenths")
    softmax_temperature = fit_temperature(streamed_logits(softmax, rest, features), labels)
    laps.append(time.perf_counter())
    gram = add_grams(gram, sums(copied, "a tenth of HᵀH"))
    squares = jax.block_until_ready(gram_least_squares(gram, ridge=ridge))
    laps.append(time.perf_counter())
    softmax = jax.block_until_ready(sweeps(gram, whole, softmax, softmax_ridge, "softmax, all images"))
    first, middle, last, end = np.diff([*laps, time.perf_counter()]).tolist()
    return ridge, {
        "least_squares": (squares, temperature, first + last),
        "softmax": (softmax, softmax_temperature, first + middle + last + end),
    }

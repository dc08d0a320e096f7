"""Kernel least squares and a softmax layer on random Fourier features: the most accurate model without gradients.

Images and drawn copies of them become descriptors of some hundred numbers, descriptors become thousands of cosines, a block of
images at a time, and what is kept of those is `HᵀH` and `HᵀY`. A tenth of the training images, drawn at random, chooses the
ridge and a temperature for each readout; both are then fitted to all of them.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.features.copies import draw_copies
from jexplicit.features.descriptors import Axes, describe, fit_axes
from jexplicit.features.fourier import fourier_directions, fourier_features
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.host import host_bytes, peak_bytes
from jexplicit.runs.progress import stage
from jexplicit.solvers.calibration import fit_temperature
from jexplicit.solvers.gram import Blocks, Gram, add_grams, gram_matrix, split_examples
from jexplicit.solvers.streamed import gram_least_squares, gram_softmax_sweeps, streamed_logits
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.config import Config
from launch.digits.methods import Job, add_row, has_row, held_out_tenth, linear_params, new_row, save_model
from launch.digits.pools import check_pools, fit_bank, image_pools

_matrices = 4  # of D x D numbers: sums, a covariance, its factor, and what LAPACK copies
_least_ridge = 1e-4  # with less, HᵀH of fewer images than features cannot be factorised in float32


class Examples(NamedTuple):
    """Some images: descriptors and labels, and both descriptors and targets in blocks."""

    Z: Array
    labels: Array
    blocks: Blocks


class Readout(NamedTuple):
    """A fitted layer whose logits are divided by a temperature, and the seconds that it took after the features."""

    fit: SoftmaxFit
    temperature: float
    seconds: float


def check_kernel(config: Config, side: int) -> None:
    """Refuse sizes that do not fit images of this side, or the memory.

    Raises:
        ValueError: naming the flag.
    """
    check_pools(config, side)
    D, present = 2 * config.frequencies, host_bytes()
    if (needed := _matrices * 4 * D**2) > present:
        raise ValueError(
            f"--frequencies {config.frequencies}: {_matrices} matrices of {D} x {D} numbers take {needed / 1e9:,.0f} GB, and "
            f"this machine has {present / 1e9:,.0f} GB; use at most {int((present / 4 / _matrices) ** 0.5 / 2)}"
        )


def measure_kernel(job: Job) -> None:
    """Least squares and a softmax layer on the same features, a row for each."""
    config, M = job.config, len(job.train.labels)
    rows = [new_row("kernel", solver, features="kernel") for solver in ("least_squares", "softmax")]
    if all(has_row(job, row) for row in rows):
        return
    start = time.perf_counter()
    train, test, weights = _descriptors(job)
    features = kernel_features(weights)
    about: Any = {"dimensions": 2 * config.frequencies, "feature_seconds": time.perf_counter() - start}
    ridge, readouts = _fit_readouts(job, train, features)
    about |= {"ridge": ridge, "peak_bytes": peak_bytes()}
    for row, (fit, temperature, solve_seconds), sweeps in zip(rows, readouts, (0, config.kernel_sweeps), strict=True):
        if has_row(job, row):
            continue
        fit = _divide(fit, temperature)
        about |= {"solve_seconds": solve_seconds, "seconds": about["feature_seconds"] + solve_seconds}
        row = row | {"epochs": sweeps, "temperature": temperature} | about
        add_row(job, row, streamed_logits(fit, train[:M], features), streamed_logits(fit, test, features), linear_params(fit))


def _descriptors(job: Job) -> tuple[Array, Array, dict[str, Any]]:
    """Descriptors of the train images and their copies and of the test images, and what computes them, which is kept."""
    config, images = job.config, job.images
    with stage("descriptors", "images") as progress:
        bank = fit_bank(config, images)
        pools = image_pools(config, images.train_images.shape, bank)
        axes = fit_axes(pools, images.train_images, images.levels, dimensions=config.axes, seed=config.seed)
        both = (_with_copies(images.train_images, config), images.test_images)
        train, test = (describe(pools, axes, X, images.levels, progress=progress) for X in both)
    W = fourier_directions(jax.random.key(config.seed), train.shape[1], config.frequencies, scale=config.scale)
    weights = axes._asdict() | {"W": W} | bank
    save_model(job, "kernel", weights)
    return train, test, weights


def _with_copies(X: np.ndarray, config: Config) -> np.ndarray:
    """Images, and after them as many copies of all as asked for."""
    keys = jax.random.split(jax.random.key(config.seed), config.copies)
    return np.concatenate([X, *(draw_copies(key, X) for key in keys)])


def kernel_features(weights: dict[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def kernel_logits(X: np.ndarray, levels: int, weights: dict[str, Any], params: dict[str, Array], config: Config) -> Array:
    """Logits of images [M, height, width], from what a run keeps: weights of the features, params of a readout."""
    Z = describe(image_pools(config, X.shape, weights), Axes(weights["mean"], weights["axes"]), X, levels)
    return streamed_logits(SoftmaxFit(params["U"], params["intercept"], ()), Z, kernel_features(weights))


def _fit_readouts(job: Job, train: Array, features: Any) -> tuple[float, tuple[Readout, Readout]]:
    """The ridge that a held-out tenth chooses, and both readouts, fitted to all images; temperatures are of nine tenths.

    Copies of held-out images are held out, too, and judge nothing.
    """
    start = time.perf_counter()
    tenth = held_out_tenth(job)
    M, held_out = len(tenth), np.resize(tenth, len(train))
    part, copied, whole = (_examples(job, train, rows) for rows in (~held_out, held_out, slice(None)))
    rest = _examples(job, train[:M], tenth)
    gram = _gram(part, features, "nine tenths of HᵀH")
    ridge, squares = best_ridge(job.config.ridges, gram, rest, features)
    temperature = fit_temperature(streamed_logits(squares, rest.Z, features), rest.labels)
    squares_seconds, start = time.perf_counter() - start, time.perf_counter()
    softmax_ridge = max(ridge * temperature**2, _least_ridge)  # ridge on scores u is ridge T² on u/T
    softmax = _softmax(job, part, gram, features, _divide(squares, temperature), softmax_ridge, "softmax, nine tenths")
    softmax_temperature = fit_temperature(streamed_logits(softmax, rest.Z, features), rest.labels)
    softmax_seconds, start = time.perf_counter() - start, time.perf_counter()

    gram = add_grams(gram, _gram(copied, features, "a tenth of HᵀH"))
    squares = jax.block_until_ready(gram_least_squares(gram, ridge=ridge))
    squares_seconds, start = squares_seconds + time.perf_counter() - start, time.perf_counter()
    softmax = _softmax(job, whole, gram, features, softmax, softmax_ridge, "softmax, all images")
    softmax_seconds += squares_seconds + time.perf_counter() - start
    one, other = Readout(squares, temperature, squares_seconds), Readout(softmax, softmax_temperature, softmax_seconds)
    return ridge, (one, other)


def _examples(job: Job, train: Array, rows: Any) -> Examples:
    Z, copies = train[rows], len(train) // len(job.train.labels)
    labels, Y = jnp.tile(job.train.labels, copies)[rows], jnp.tile(job.train.Y, (copies, 1))[rows]
    return Examples(Z, labels, split_examples(Z, Y, mesh=data_mesh()))


def _gram(examples: Examples, features: Any, name: str) -> Gram:
    with stage(name, "blocks") as progress:
        return jax.block_until_ready(gram_matrix(examples.blocks, features, progress=progress))


def best_ridge(ridges: Sequence[float], gram: Gram, rest: Examples, features: Any) -> tuple[float, SoftmaxFit]:
    """The ridge whose least squares have the smallest squared error on held-out images, and those least squares.

    Raises:
        ValueError: every ridge is too small for the precision of the sums.
    """
    found, errors = [], []
    with stage("ridge", "ridges") as progress:
        for n, ridge in enumerate(ridges):
            try:
                fit = gram_least_squares(gram, ridge=ridge)
            except ValueError as error:  # too small for this one alone
                errors.append(error)
            else:
                scores = streamed_logits(fit, rest.Z, features)
                misses = scores - jax.nn.one_hot(rest.labels, scores.shape[1], dtype=scores.dtype)
                found.append((float(jnp.mean(misses**2)), ridge, fit))
            progress(n + 1, len(ridges))
    if not found:
        raise errors[-1]
    return min(found, key=lambda each: each[0])[1:]


def _softmax(job: Job, examples: Examples, gram: Gram, features: Any, begun: SoftmaxFit, ridge: float, name: str) -> SoftmaxFit:
    """Sweeps from a layer that is near: least squares divided by their temperature, or the fit to nine tenths."""

    def on_sweep(sweep: int, loss: float) -> None:
        job.folder.log(event="kernel_sweep", part=name, sweep=sweep, loss=loss)

    with stage(name, "sweeps") as progress:
        options: Any = {"sweeps": job.config.kernel_sweeps, "ridge": ridge, "on_sweep": on_sweep, "progress": progress}
        return gram_softmax_sweeps(gram, examples.blocks, features, begun, **options)


def _divide(fit: SoftmaxFit, temperature: float) -> SoftmaxFit:
    """The layer whose logits are those of another divided by a temperature."""
    return fit._replace(U=fit.U / temperature, intercept=fit.intercept / temperature)

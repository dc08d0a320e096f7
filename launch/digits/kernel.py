"""Kernel least squares and a softmax layer on random Fourier features: the most accurate model without gradients.

Images become descriptors of some hundred numbers, descriptors become thousands of cosines, a block of images at a time, and
what is kept of those is `HᵀH` and `HᵀY`. A tenth of the training images, drawn at random, chooses the ridge and a temperature
for each readout; both are then fitted to all of them.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.features.descriptors import Descriptor, describe, fit_descriptor
from jexplicit.features.fourier import fourier_directions, fourier_features
from jexplicit.features.patches import Filters
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.host import host_bytes, peak_bytes
from jexplicit.runs.progress import stage
from jexplicit.solvers.calibration import fit_temperature
from jexplicit.solvers.gram import Blocks, Gram, add_grams, gram_matrix, split_examples
from jexplicit.solvers.streamed import gram_least_squares, gram_softmax_sweeps, streamed_logits
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.config import Config
from launch.digits.methods import Job, add_row, has_row, held_out_tenth, linear_params, new_row, save_model

_matrices = 5  # of D x D numbers: two sums, their sum, the covariance and its factor
_least_ridge = 1e-4  # with less, HᵀH of fewer images than features cannot be factorised in float32


class Examples(NamedTuple):
    """Some images: descriptors and labels, both with the targets in blocks, and the sums over their features."""

    Z: Array
    labels: Array
    blocks: Blocks
    gram: Gram


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
    sizes, grid = config.patch_sizes or default_sizes(side), default_grid(config.grid, side)
    if not 2 <= min(sizes) <= max(sizes) <= side:
        raise ValueError(f"--patch-sizes {' '.join(map(str, sizes))} of images {side} pixels wide: use 2 to {side}")
    if grid > side:
        raise ValueError(f"--grid {grid} of images {side} pixels wide: use at most {side} cells")
    D, present = 2 * config.frequencies, host_bytes()
    if (needed := _matrices * 4 * D**2) > present:
        raise ValueError(
            f"--frequencies {config.frequencies}: five matrices of {D} x {D} numbers take {needed / 1e9:,.0f} GB, and this "
            f"machine has {present / 1e9:,.0f} GB; use at most {int((present / 4 / _matrices) ** 0.5 / 2)}"
        )


def measure_kernel(job: Job) -> None:
    """Least squares and a softmax layer on the same features, a row for each."""
    config = job.config
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
        add_row(job, row, streamed_logits(fit, train, features), streamed_logits(fit, test, features), linear_params(fit))


def _descriptors(job: Job) -> tuple[Array, Array, dict[str, Any]]:
    """Descriptors of the train and the test images, and what computes them and their features, which is kept."""
    config, images = job.config, job.images
    side = min(images.train_images.shape[1:])
    options: Any = {"grid": default_grid(config.grid, side), "threshold": config.threshold}
    with stage("descriptors", "images") as progress:
        descriptor = fit_descriptor(
            images.train_images,
            images.levels,
            sizes=config.patch_sizes or default_sizes(side),
            number=config.filters,
            dimensions=config.axes,
            seed=config.seed,
            **options,
        )
        train, test = (
            describe(X, images.levels, descriptor, **options, progress=progress)
            for X in (images.train_images, images.test_images)
        )
    W = fourier_directions(jax.random.key(config.seed), train.shape[1], config.frequencies, scale=config.scale)
    weights = {
        "filters": [bank._asdict() for bank in descriptor.filters],
        "mean": descriptor.mean,
        "axes": descriptor.axes,
        "W": W,
    }
    save_model(job, "kernel", weights)
    return train, test, weights


def default_sizes(side: int) -> tuple[int, ...]:
    """Odd widths of patches near a sixth, a quarter and a third of a side, at least 3.

    Example:
        >>> default_sizes(28), default_sizes(8)
        ((5, 7, 9), (3,))
    """
    return tuple(sorted({max(3, 2 * round((side / part - 1) / 2) + 1) for part in (6, 4, 3)}))


def kernel_features(weights: dict[str, Any]) -> jax.tree_util.Partial:
    """The features of descriptors, as a function that `jit` can take."""
    return jax.tree_util.Partial(fourier_features, W=weights["W"])


def kernel_logits(
    X: np.ndarray, levels: int, weights: dict[str, Any], params: dict[str, Array], grid: int | None, threshold: float
) -> Array:
    """Logits of images [M, height, width], from what a run keeps: weights of the features, params of a readout."""
    banks = tuple(Filters(bank["W"], bank["b"]) for bank in weights["filters"])
    descriptor = Descriptor(banks, weights["mean"], weights["axes"])
    Z = describe(X, levels, descriptor, grid=default_grid(grid, min(X.shape[1:])), threshold=threshold)
    return streamed_logits(SoftmaxFit(params["U"], params["intercept"], ()), Z, kernel_features(weights))


def default_grid(grid: int | None, side: int) -> int:
    """Cells along a side of images: as asked for, or near a seventh of it, at least 3."""
    return grid or max(3, round(side / 7))


def _fit_readouts(job: Job, train: Array, features: Any) -> tuple[float, tuple[Readout, Readout]]:
    """The ridge that a held-out tenth chooses, and both readouts, fitted to all images; temperatures are of nine tenths."""
    start = time.perf_counter()
    held_out = held_out_tenth(job)
    part = _examples(job, train, ~held_out, features, "nine tenths of HᵀH")
    rest = _examples(job, train, held_out, features, "a tenth of HᵀH")
    ridge, squares = best_ridge(job.config.ridges, part.gram, rest, features)
    temperature = fit_temperature(streamed_logits(squares, rest.Z, features), rest.labels)
    squares_seconds, start = time.perf_counter() - start, time.perf_counter()
    softmax = _softmax(job, part, features, squares, temperature, ridge, "softmax, nine tenths")
    softmax_temperature = fit_temperature(streamed_logits(softmax, rest.Z, features), rest.labels)
    softmax_seconds, start = time.perf_counter() - start, time.perf_counter()

    whole = Examples(
        train, job.train.labels, split_examples(train, job.train.Y, mesh=data_mesh()), add_grams(part.gram, rest.gram)
    )
    squares = jax.block_until_ready(gram_least_squares(whole.gram, ridge=ridge))
    squares_seconds, start = squares_seconds + time.perf_counter() - start, time.perf_counter()
    softmax = _softmax(job, whole, features, squares, temperature, ridge, "softmax, all images")
    softmax_seconds += squares_seconds + time.perf_counter() - start
    one, other = Readout(squares, temperature, squares_seconds), Readout(softmax, softmax_temperature, softmax_seconds)
    return ridge, (one, other)


def _examples(job: Job, train: Array, rows: np.ndarray, features: Any, name: str) -> Examples:
    Z, labels = train[rows], job.train.labels[rows]
    blocks = split_examples(Z, job.train.Y[rows], mesh=data_mesh())
    with stage(name, "blocks") as progress:
        return Examples(Z, labels, blocks, jax.block_until_ready(gram_matrix(blocks, features, progress=progress)))


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


def _softmax(
    job: Job, examples: Examples, features: Any, squares: SoftmaxFit, temperature: float, ridge: float, name: str
) -> SoftmaxFit:
    """Sweeps from least squares divided by their temperature T; a penalty of ridge on scores u is one of ridge T² on u/T."""

    def on_sweep(sweep: int, loss: float) -> None:
        job.folder.log(event="kernel_sweep", part=name, sweep=sweep, loss=loss)

    with stage(name, "sweeps") as progress:
        sweeps = job.config.kernel_sweeps
        softmax_ridge = max(ridge * temperature**2, _least_ridge)
        options: Any = {"sweeps": sweeps, "ridge": softmax_ridge, "on_sweep": on_sweep, "progress": progress}
        return gram_softmax_sweeps(examples.gram, examples.blocks, features, _divide(squares, temperature), **options)


def _divide(fit: SoftmaxFit, temperature: float) -> SoftmaxFit:
    """The layer whose logits are those of another divided by a temperature."""
    return fit._replace(U=fit.U / temperature, intercept=fit.intercept / temperature)

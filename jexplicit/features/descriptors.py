"""Descriptors of images: whitened patches in one or two stages, pooled, with the contrast of an image divided out, and rotated.

One vector of some hundred numbers stands for an image; distances between them compare shapes and tolerate small shifts. They
are the inputs of random Fourier features. Nothing is trained: filters are clusters of patches of training images and of their
maps, axes are eigenvectors.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.features.patches import Filters, of_images, patch_filters, pool, responses
from jexplicit.features.second_stage import SecondStage, fit_second_stage, second_responses
from jexplicit.runs.devices import full_precision

_images_for_axes = 10_000
_images_for_maps = 1_000
_channels = 48  # principal axes of the maps, inputs of the second stage


class Descriptor(NamedTuple):
    """Filters of several sizes and of their maps, and the mean and the principal axes of all pooled responses.

    axes: scaled so that descriptors of the training images have a mean square norm of 1.
    second: None without a second stage.
    """

    filters: tuple[Filters, ...]
    second: SecondStage | None
    mean: Float[Array, " D"]
    axes: Float[Array, "D r"]


def fit_descriptor(
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    *,
    sizes: Sequence[int],
    number: int,
    grid: int,
    threshold: float,
    dimensions: int,
    second: int = 0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Descriptor:
    """Filters that patches of some images and of their maps cluster around, and the principal axes of the pooled responses.

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1; a sample of them gives the axes.
        levels: 256 for bytes.
        sizes: height and width of the patches, in pixels.
        number: of filters of each size.
        grid: cells along each side of an image.
        threshold: responses of smaller magnitude become 0; in standard deviations of a patch.
        dimensions: r; fewer where there are fewer pooled responses.
        second: filters of the second stage; 0 leaves it out.
        seed: of the choice of patches and images.
        progress: called with (images done, images in all).

    Raises:
        ValueError: no sizes; patches larger than an image; more cells than pixels, or, with a second stage, than half of them;
            fewer than 1 dimension; a negative number of filters.
    """
    side = min(images.shape[1:]) // (2 if second else 1)
    if not sizes or not 1 <= grid <= side or dimensions < 1 or second < 0:
        asked = f"patches of the sizes {tuple(sizes)}, a {grid} x {grid} grid, {dimensions} dimensions, {second} second filters"
        raise ValueError(f"{asked}: use at least one size, 1 to {side} cells along a side, at least 1 dimension and 0 filters")
    options: Any = {"number": number, "seed": seed, "clusters": True}
    filters = tuple(patch_filters(images, levels, size=size, **options) for size in sizes)
    order = np.random.default_rng(seed).permutation(len(images))
    sample, few = (images[np.sort(order[:most])] for most in (_images_for_axes, _images_for_maps))
    stage = None
    if second:
        maps = of_images(lambda X: _fine_maps(X, filters, threshold=threshold).reshape(len(X), -1), few, levels)
        fine = _fine_grid(images.shape)
        stage = fit_second_stage(
            np.asarray(maps).reshape(len(few), fine, fine, -1), number=second, channels=_channels, seed=seed
        )
    H = of_images(lambda X: _normalised_pools(X, filters, stage, grid=grid, threshold=threshold), sample, levels, progress)
    mean, axes = _principal_axes(H, min(dimensions, H.shape[1]))
    return Descriptor(filters, stage, mean, axes)


def describe(
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    descriptor: Descriptor,
    *,
    grid: int,
    threshold: float,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Array, "M r"]:
    """Descriptors `(s/||s|| - mean) axes` of images, where s are the square roots of the pooled responses; of two stages, both
    `s/||s||` side by side, divided by √2.

    The root tempers strokes that fill a cell, and the norm divides out an image's contrast. The arguments are those of
    `fit_descriptor`.
    """
    return of_images(lambda X: _descriptors(X, descriptor, grid=grid, threshold=threshold), images, levels, progress)


@functools.partial(jax.jit, static_argnames=("threshold",))
@full_precision
def _fine_maps(X: Array, filters: tuple[Filters, ...], threshold: float) -> Array:
    """Square roots of the positive responses in cells of about 2 x 2 pixels: [m, rows, columns, filters and signs]."""
    return _maps(_bank_responses(X, filters), _fine_grid(X.shape), threshold)


def _fine_grid(shape: tuple[int, ...]) -> int:
    """Cells along a side of the maps of images [M, height, width]."""
    return min(shape[1:]) // 2


@functools.partial(jax.jit, static_argnames=("grid", "threshold"))
@full_precision
def _normalised_pools(X: Array, filters: tuple[Filters, ...], second: SecondStage | None, grid: int, threshold: float) -> Array:
    """Square roots of the pooled responses of each stage, rows of norm 1."""
    z = _bank_responses(X, filters)
    stages = [_maps(z, grid, threshold)]
    if second:
        maps = _maps(z, _fine_grid(X.shape), threshold)
        stages.append(_maps([second_responses(maps, second)], grid, threshold))
    rows = jnp.concatenate([_unit(part.reshape(len(X), -1)) for part in stages], axis=1)
    return rows / math.sqrt(len(stages))


def _bank_responses(X: Array, filters: tuple[Filters, ...]) -> list[Array]:
    """Responses to filters of every size around every pixel; borders are repeated."""
    found = []
    for bank in filters:
        before, after = (bank.size() - 1) // 2, bank.size() // 2
        padded = jnp.pad(X, ((0, 0), (before, after), (before, after)), mode="edge")
        found.append(responses(padded[..., None], bank))
    return found


def _maps(z: list[Array], grid: int, threshold: float) -> Array:
    """Square roots of the positive parts of responses, summed over the cells of a grid: [m, grid, grid, channels]."""
    return jnp.sqrt(jnp.concatenate([pool(part, grid, threshold) for part in z], axis=3))


def _unit(rows: Array) -> Array:
    norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
    return rows / jnp.where(norms > 0, norms, 1)


@functools.partial(jax.jit, static_argnames=("grid", "threshold"))
@full_precision
def _descriptors(X: Array, descriptor: Descriptor, grid: int, threshold: float) -> Array:
    roots = _normalised_pools(X, descriptor.filters, descriptor.second, grid, threshold)
    return (roots - descriptor.mean[None, :]) @ descriptor.axes


@full_precision
def _principal_axes(H: Float[Array, "M D"], dimensions: int) -> tuple[Any, Any]:
    """Mean, and the axes of largest variance divided by the root of the variance along all of them."""
    mean = H.mean(axis=0)
    centred = H - mean[None, :]
    variances, axes = jnp.linalg.eigh(centred.T @ centred / len(H))
    return mean, axes[:, -dimensions:] / jnp.sqrt(variances[-dimensions:].sum())

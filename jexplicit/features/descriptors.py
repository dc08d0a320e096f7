"""Descriptors of images: whitened patches of several sizes, pooled, with the contrast of an image divided out, and rotated.

One vector of some hundred numbers stands for an image; distances between them compare shapes and tolerate small shifts. They
are the inputs of random Fourier features. Nothing is trained: filters are clusters of patches of training
images, axes are eigenvectors.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.features.patches import Filters, of_images, patch_filters, pool, responses
from jexplicit.runs.devices import full_precision

_images_for_axes = 10_000


class Descriptor(NamedTuple):
    """Filters of several sizes, and the mean and the principal axes of their pooled responses.

    axes: scaled so that descriptors of the training images have a mean square norm of 1.
    """

    filters: tuple[Filters, ...]
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
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Descriptor:
    """Filters that patches of some images cluster around, and the principal axes of their pooled responses.

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1; a sample of them gives the axes.
        levels: 256 for bytes.
        sizes: height and width of the patches, in pixels.
        number: of filters of each size.
        grid: cells along each side of an image.
        threshold: responses of smaller magnitude become 0; in standard deviations of a patch.
        dimensions: r; fewer where there are fewer pooled responses.
        seed: of the choice of patches and images.
        progress: called with (images done, images in all).

    Raises:
        ValueError: no sizes; patches larger than an image; more cells than pixels; fewer than 1 dimension.
    """
    side = min(images.shape[1:])
    if not sizes or not 1 <= grid <= side or dimensions < 1:
        asked = f"patches of the sizes {tuple(sizes)}, a grid of {grid} x {grid}, {dimensions} dimensions"
        raise ValueError(f"{asked}: use at least one size, 1 to {side} cells along a side, and at least 1 dimension")
    options: Any = {"number": number, "seed": seed, "clusters": True}
    filters = tuple(patch_filters(images, levels, size=size, **options) for size in sizes)
    sample = np.random.default_rng(seed).permutation(len(images))[:_images_for_axes]
    H = of_images(
        lambda X: _normalised_pools(X, filters, grid=grid, threshold=threshold), images[np.sort(sample)], levels, progress
    )
    mean, axes = _principal_axes(H, min(dimensions, H.shape[1]))
    return Descriptor(filters, mean, axes)


def describe(
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    descriptor: Descriptor,
    *,
    grid: int,
    threshold: float,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Array, "M r"]:
    """Descriptors `(s/||s|| - mean) axes` of images, where s are the square roots of the pooled responses.

    The root tempers strokes that fill a cell, and the norm divides out an image's contrast. The arguments are those of
    `fit_descriptor`.
    """
    return of_images(lambda X: _descriptors(X, descriptor, grid=grid, threshold=threshold), images, levels, progress)


@functools.partial(jax.jit, static_argnames=("grid", "threshold"))
@full_precision
def _normalised_pools(X: Array, filters: tuple[Filters, ...], grid: int, threshold: float) -> Array:
    """Square roots of the pooled responses to filters of every size, rows of norm 1; borders are repeated."""
    blocks = []
    for bank in filters:
        before, after = (bank.size - 1) // 2, bank.size // 2
        padded = jnp.pad(X, ((0, 0), (before, after), (before, after)), mode="edge")
        blocks.append(pool(responses(padded, bank), grid, threshold).reshape(len(X), -1))
    roots = jnp.sqrt(jnp.concatenate(blocks, axis=1))
    norms = jnp.linalg.norm(roots, axis=1, keepdims=True)
    return roots / jnp.where(norms > 0, norms, 1)


@functools.partial(jax.jit, static_argnames=("grid", "threshold"))
@full_precision
def _descriptors(X: Array, descriptor: Descriptor, grid: int, threshold: float) -> Array:
    roots = _normalised_pools(X, descriptor.filters, grid, threshold)
    return (roots - descriptor.mean[None, :]) @ descriptor.axes


@full_precision
def _principal_axes(H: Float[Array, "M D"], dimensions: int) -> tuple[Any, Any]:
    """Mean, and the axes of largest variance divided by the root of the variance along all of them."""
    mean = H.mean(axis=0)
    centred = H - mean[None, :]
    variances, axes = jnp.linalg.eigh(centred.T @ centred / len(H))
    return mean, axes[:, -dimensions:] / jnp.sqrt(variances[-dimensions:].sum())

"""Descriptors of images: principal components of responses pooled over a grid.

A descriptor has some hundred dimensions; distances between descriptors compare shapes and tolerate small shifts. They are the
inputs of random Fourier features.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.features.patches import of_images
from jexplicit.runs.devices import full_precision

_images_for_axes = 10_000


class Axes(NamedTuple):
    """Mean and scaled principal axes of pooled responses."""

    mean: Float[Array, " D"]
    axes: Float[Array, "D r"]


def fit_axes(
    pools: Callable[[Array], Array],
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    *,
    dimensions: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Axes:
    """The principal axes of pooled responses of some images.

    Args:
        pools: of grey levels between 0 and 1, [m, height, width] -> [m, D], e.g. `scattering_pools` of some wavelets.
        images: [M, height, width] grey levels 0 .. levels - 1; the axes are fitted to a sample of them.
        dimensions: r; fewer if there are fewer pooled responses.
        progress: called with (images done, total images).

    Raises:
        ValueError: fewer than 1 dimension; no images, or other grey levels than these; images that are all alike.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
        >>> fit_axes(lambda X: X.reshape(len(X), -1), images, 17, dimensions=3).axes.shape
        (64, 3)
    """
    if dimensions < 1:
        raise ValueError(f"{dimensions} dimensions: use at least 1")
    order = np.random.default_rng(seed).permutation(len(images))
    H = of_images(pools, images[np.sort(order[:_images_for_axes])], levels, progress)
    if bool((H == H[:1]).all()):
        raise ValueError(f"{len(H)} images without variance: principal axes need images that differ")
    return _principal_axes(H, min(dimensions, H.shape[1]))


def describe(
    pools: Callable[[Array], Array],
    axes: Axes,
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Array, "M r"]:
    """Descriptors `(s - mean) axes` of images with pooled responses s.

    Args:
        pools, images, levels, progress: as in `fit_axes`; the images may differ.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
        >>> pools = jax.tree_util.Partial(lambda X: X.reshape(len(X), -1))
        >>> H = describe(pools, fit_axes(pools, images, 17, dimensions=3), images, 17)
        >>> H.shape, round(float((H**2).sum(axis=1).mean()), 3)
        ((20, 3), 1.0)
    """
    return of_images(lambda X: _project(pools(X), axes), images, levels, progress)


def unit_roots(parts: Sequence[Float[Array, "m ..."]]) -> Float[Array, "m D"]:
    """Square roots of numbers >= 0 as rows of norm 1, parts alike."""
    roots = [jnp.sqrt(part.reshape(len(part), -1)) for part in parts]
    norms = [jnp.linalg.norm(rows, axis=1, keepdims=True) for rows in roots]
    units = [rows / jnp.where(norm > 0, norm, 1) for rows, norm in zip(roots, norms, strict=True)]
    return jnp.concatenate(units, axis=1) / math.sqrt(len(parts))


@jax.jit
@full_precision
def _project(rows: Array, axes: Axes) -> Array:
    return (rows - axes.mean[None, :]) @ axes.axes


@full_precision
def _principal_axes(H: Float[Array, "M D"], dimensions: int) -> Axes:
    """The mean, and the axes of largest variance, scaled."""
    mean = H.mean(axis=0)
    centred = H - mean[None, :]
    variances, axes = jnp.linalg.eigh(centred.T @ centred / len(H))
    return Axes(mean, axes[:, -dimensions:] / jnp.sqrt(variances[-dimensions:].sum()))

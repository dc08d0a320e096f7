"""Whitened patches as filters (Coates & Ng 2011), as positive pooled features."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.features.positive import positive_parts
from jexplicit.runs.devices import full_precision

_patches_per_filter = 200
_least_contrast = 0.1  # least standard deviation of a patch's grey levels, which range from 0 to 1
_images_per_call = 500


class Filters(NamedTuple):
    """Linear filters `z = x W - b` of patches x [size * size]."""

    W: Float[Array, "P filters"]
    b: Float[Array, " filters"]

    def size(self) -> int:
        """Height and width of a patch, in pixels."""
        return math.isqrt(len(self.W))


def patch_filters(
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    *,
    size: int,
    number: int,
    seed: int = 0,
    noise: float = 0.01,
    clusters: bool = False,
) -> Filters:
    """Random patches of training images, whitened, as filters of unit norm.

    With mean μ and covariance C of patches and `V = (C + noise)^(-1/2)`, the response of patch x to the filter of patch a is
    `⟨(x - μ)V, (a - μ)V⟩ / ||(a - μ)V||`. Patches without contrast are excluded.

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: 256 for bytes.
        noise: variance added before whitening; grey levels lie between 0 and 1.
        clusters: cluster directions of whitened patches, instead of random patches.

    Raises:
        ValueError: no images, or other grey levels than these; a patch larger than an image; fewer than 1 filter; too few
            patches with any contrast; a noise too small to whiten them.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
        >>> patch_filters(images, 17, size=3, number=4).W.shape
        (9, 4)

    Source: Coates & Ng, The importance of encoding versus training with sparse coding and vector quantization, 2011.
    """
    check_levels(images, levels)
    M, height, width = images.shape
    if not 2 <= size <= min(height, width) or number < 1:
        raise ValueError(
            f"{number} patches of {size} x {size} in images of {height} x {width}: 2 <= size <= {min(height, width)}"
        )
    rng = np.random.default_rng(seed)
    drawn = max(_patches_per_filter * number, 10 * size * size)
    m, row, column = (rng.integers(0, end, drawn) for end in (M, height - size + 1, width - size + 1))
    offsets = np.arange(size)
    rows, columns = row[:, None, None] + offsets[None, :, None], column[:, None, None] + offsets[None, None, :]
    patches = images[m[:, None, None], rows, columns].reshape(drawn, -1) / (levels - 1)
    patches = patches[patches.std(axis=1) > _least_contrast]
    if len(patches) < number:
        raise ValueError(
            f"{len(patches)} of {drawn} patches have any contrast, for {number} filters: use fewer filters or larger patches"
        )
    mean, covariance = patches.mean(axis=0), np.cov(patches.T)
    variances, axes = np.linalg.eigh(covariance)
    if not variances[0] + noise > 0:
        raise ValueError(f"noise {noise}: patches of this covariance cannot be whitened; use a number above 0, e.g. 0.01")
    V = (axes / np.sqrt(variances + noise)) @ axes.T
    if clusters:
        directions = spherical_kmeans((patches - mean) @ V, number, seed=seed)
    else:
        chosen = (patches[:number] - mean) @ V
        directions = chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
    W = V @ directions.T
    return Filters(jnp.asarray(W, jnp.float32), jnp.asarray(mean @ W, jnp.float32))


def patch_features(
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    filters: Filters,
    *,
    grid: int,
    threshold: float,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Array, "M D"]:
    """Positive parts of filter responses, summed over a grid: D = 2 n grid².

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: 256 for bytes.
        grid: cells along each side.
        threshold: responses of smaller magnitude become 0; in standard deviations of a patch.
        progress: called with (images done, total images).

    Raises:
        ValueError: no images, or other grey levels than these; more cells along a side than positions of a patch; a threshold
            that is NaN.

    Example:
        >>> filters = Filters(jnp.ones((9, 4), "f4"), jnp.zeros(4, "f4"))
        >>> patch_features(np.zeros((5, 8, 8), np.uint8), 17, filters, grid=2, threshold=1.0).shape
        (5, 32)
    """
    if np.isnan(threshold):
        raise ValueError("threshold NaN: use a number")
    positions = min(images.shape[1:]) - filters.size() + 1
    if not 1 <= grid <= positions:
        raise ValueError(f"a grid of {grid} x {grid} over {positions} x {positions} positions: use 1 to {positions} cells")
    return of_images(lambda X: _pooled_responses(X, filters, threshold, grid), images, levels, progress)


def check_levels(images: np.ndarray, levels: int) -> None:
    """Refuse no images, fewer than 2 grey levels, and other levels."""
    if not len(images) or levels < 2 or not 0 <= images.min() <= images.max() <= levels - 1:
        span = f" from {images.min()} to {images.max()}" if images.size else ""
        raise ValueError(f"{len(images)} images{span}, of {levels} grey levels: give at least one, with levels 0 .. levels - 1")


def of_images(
    f: Callable[[Array], Array],
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Array, "M D"]:
    """f of grey levels between 0 and 1, in batches of images."""
    check_levels(images, levels)
    blocks = []
    for m in range(0, len(images), _images_per_call):
        blocks.append(f(jnp.asarray(images[m : m + _images_per_call], jnp.float32) / (levels - 1)))
        if progress:
            progress(min(m + _images_per_call, len(images)), len(images))
    return jnp.concatenate(blocks)


@functools.partial(jax.jit, static_argnames=("threshold", "grid"))
@full_precision
def _pooled_responses(X: Array, filters: Filters, threshold: float, grid: int) -> Array:
    return pool(responses(X, filters), grid, threshold).reshape(len(X), -1)


def responses(X: Float[Array, "m height width"], filters: Filters) -> Float[Array, "m rows columns n"]:
    """The response of every filter at every position of images."""
    kernel = filters.W.reshape(filters.size(), filters.size(), 1, -1)
    z = jax.lax.conv_general_dilated(X[..., None], kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return z - filters.b[None, None, None, :]


def pool(z: Float[Array, "m rows columns n"], grid: int, threshold: float) -> Float[Array, "m grid grid nn"]:
    """Positive parts of responses, summed over the cells of a grid.

    The sum runs over one row of all cells at a time, several times as fast on a CPU as a sum over an axis.
    """
    rows = _cells(z, 1, grid)
    z = functools.reduce(jnp.add, (positive_parts(rows[:, :, i], threshold) for i in range(rows.shape[2])))
    columns = _cells(z, 2, grid)
    return functools.reduce(jnp.add, (columns[:, :, :, j] for j in range(columns.shape[3])))


def _cells(z: Array, axis: int, grid: int) -> Array:
    """An axis split into [grid, largest cell], padded with 0."""
    begin = -(-np.arange(grid + 1) * z.shape[axis] // grid)
    places = begin[:-1, None] + np.arange(np.diff(begin).max())
    if (places < begin[1:, None]).all():
        return z.reshape(*z.shape[:axis], *places.shape, *z.shape[axis + 1 :])
    zeros = jnp.pad(z, [(0, int(n == axis)) for n in range(z.ndim)])
    return jnp.take(zeros, jnp.asarray(np.where(places < begin[1:, None], places, z.shape[axis])), axis=axis)


def spherical_kmeans(
    X: Float[np.ndarray, "M P"], number: int, *, iterations: int = 10, seed: int = 0
) -> Float[np.ndarray, "number P"]:
    """Unit vectors C [number, P], directions of sums of rows of X.

    Each sums the rows x with which it has the largest `⟨x, c⟩`. Neither step lowers the sum of these inner products; longer
    vectors count more. Directions without vectors are unchanged.
    Source: Coates & Ng, Learning feature representations with k-means, 2012.
    """
    if not 1 <= number <= len(X) or iterations < 0:
        raise ValueError(
            f"{number} directions of {len(X)} vectors in {iterations} iterations: use 1 to {len(X)}, and at least 0"
        )
    if not (lengths := np.linalg.norm(X, axis=1)).all():
        raise ValueError(f"vector {int(lengths.argmin())} is zero and has no direction: remove it")
    chosen = np.random.default_rng(seed).choice(len(X), number, replace=False)
    C = X[chosen] / lengths[chosen, None]
    for _ in range(iterations):
        nearest = (X @ C.T).argmax(axis=1)
        sums = np.eye(number, dtype=X.dtype)[nearest].T @ X
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        C = np.where(norms > 0, sums / np.where(norms > 0, norms, 1), C)
    return C

"""Explicit featurisers: positive features of images, without training.

The solution and its sweeps need positive features, best with rows of one L1 norm. Signed numbers become positive when they are
split into `relu(x)` and `relu(-x)`; rows get norm K when each is divided by its sum. Two sources of useful numbers: random
directions in pixel space, and convolutions with *whitened patches of the training images* (Coates & Ng 2011), summed over a
coarse grid. Neither uses a gradient.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.runs.checks import check_key, concrete
from jexplicit.runs.devices import full_precision

_patches_per_filter = 200
_least_contrast = 0.1  # standard deviation of a patch's grey levels, which range over 1
_images_per_call = 500


class Filters(NamedTuple):
    """Linear filters `z = x W - b` of patches x [size * size] of grey levels between 0 and 1."""

    W: Float[Array, "P filters"]
    b: Float[Array, " filters"]

    @property
    def size(self) -> int:
        """Height and width of a patch, in pixels."""
        return int(np.sqrt(len(self.W)))


def positive_parts(x: Float[Array, "... D"], threshold: float = 0.0) -> Float[Array, "... DD"]:
    """`[relu(x - t), relu(-x - t)]`: twice as many features, none negative; at t = 0 no information is lost.

    Example:
        >>> positive_parts(jnp.array([1.0, -2.0])).tolist()
        [1.0, 0.0, 0.0, 2.0]
    """
    return jnp.concatenate([jax.nn.relu(x - threshold), jax.nn.relu(-x - threshold)], axis=-1)


def unit_rows(H: Float[Array, "M D"], *, K: float = 1.0, floor: float = 0.01) -> Float[Array, "M D"]:
    """Strictly positive features whose rows all have L1 norm K: `K (h/||h||_1 + floor/D) / (1 + floor)`.

    The floor does what the 1 in (X + 1)/256 does for pixels: every feature meets every output.

    Args:
        H: [M, D] features, at least 0.
        K: norm of the rows.
        floor: mass spread evenly over a row, relative to its features; above 0.

    Raises:
        ValueError: a negative or non-finite feature, a row of zeros, a floor or K that is not above 0; under jit, vmap and grad
            features are not checked.

    Example:
        >>> unit_rows(jnp.array([[3.0, 1.0]]), K=2.0, floor=1.0).tolist()
        [[1.25, 0.75]]
    """
    if not floor > 0 or not K > 0:
        raise ValueError(f"floor {floor}, K {K}: both must be above 0")
    norms = H.sum(axis=1, keepdims=True)
    if concrete(H):
        _check_norms(float(H.min()), norms)
    return (H / norms + floor / H.shape[1]) * (K / (1 + floor))


def _check_norms(lowest: float, norms: Array) -> None:
    if not lowest >= 0 or not bool(jnp.isfinite(norms).all()):
        raise ValueError(f"features down to {lowest}: rows of one norm need finite features >= 0; split them by positive_parts")
    if not float(norms.min()) > 0:
        raise ValueError(f"row {int(norms.argmin())} has no feature above 0, and so no norm to divide by: drop that example")


def random_directions(key: Any, inputs: int, number: int, dtype=jnp.float32) -> Float[Array, "inputs number"]:
    """Directions on the unit sphere, uniformly at random.

    Example:
        >>> random_directions(jax.random.key(0), 3, 5).shape
        (3, 5)
    """
    check_key(key)
    W = jax.random.normal(key, (inputs, number), dtype)
    return W / jnp.linalg.norm(W, axis=0, keepdims=True)


@full_precision
def random_features(X: Float[Array, "M P"], W: Float[Array, "P n"], *, threshold: float = 0.0) -> Float[Array, "M nn"]:
    """Random positive features: the positive parts of standardised random projections.

    `positive_parts(z / std(z), t)` with `z = (x - mean(x)) W`, for each row x; mean over its pixels, std over its projections.

    Args:
        X: [M, P] numbers per example.
        W: [P, n] directions.
        threshold: in standard deviations; above 0 the features are sparse.
    """
    z = (X - X.mean(axis=1, keepdims=True)) @ W
    spread = jnp.sqrt(jnp.mean(z**2, axis=1, keepdims=True))
    return positive_parts(z / jnp.where(spread > 0, spread, 1), threshold)


def patch_filters(
    images: UInt8[np.ndarray, "M height width"], levels: int, *, size: int, number: int, seed: int = 0, noise: float = 0.01
) -> Filters:
    """Random patches of training images, whitened, as filters of unit norm in the whitened space.

    With mean μ and covariance C of patches and `V = (C + noise)^(-1/2)`, the response of patch x to the filter of patch a is
    `⟨(x - μ)V, (a - μ)V⟩ / ||(a - μ)V||`. Patches without contrast are left out.

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: 256 for bytes.
        size: height and width of a patch.
        number: of filters.
        seed: of the choice of patches.
        noise: variance added before whitening; grey levels lie between 0 and 1.

    Raises:
        ValueError: a patch larger than an image; fewer than 1 filter; too few patches with any contrast.

    Source: Coates & Ng, The importance of encoding versus training with sparse coding and vector quantization, 2011.
    """
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
    V = (axes / np.sqrt(variances + noise)) @ axes.T
    chosen = (patches[:number] - mean) @ V
    W = V @ (chosen / np.linalg.norm(chosen, axis=1, keepdims=True)).T
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
    """Positive parts of every filter's response at every position, summed over the cells of a grid: D = 2 n grid².

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: 256 for bytes.
        filters: of `patch_filters`.
        grid: cells along each side.
        threshold: responses of smaller magnitude become 0; in standard deviations of a patch.
        progress: called with (images done, images in all).

    Raises:
        ValueError: more cells along a side than positions of a patch.
    """
    positions = min(images.shape[1:]) - filters.size + 1
    if not 1 <= grid <= positions:
        raise ValueError(f"a grid of {grid} x {grid} over {positions} x {positions} positions: use 1 to {positions} cells")
    blocks = []
    for m in range(0, len(images), _images_per_call):
        X = jnp.asarray(images[m : m + _images_per_call], filters.W.dtype) / (levels - 1)
        blocks.append(_pooled_responses(X, filters, threshold, grid))
        if progress:
            progress(min(m + _images_per_call, len(images)), len(images))
    return jnp.concatenate(blocks)


@functools.partial(jax.jit, static_argnames=("threshold", "grid"))
@full_precision
def _pooled_responses(X: Array, filters: Filters, threshold: float, grid: int) -> Array:
    kernel = filters.W.reshape(filters.size, filters.size, 1, -1)
    z = jax.lax.conv_general_dilated(X[..., None], kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = positive_parts(z - filters.b[None, None, None, :], threshold)
    for axis in (1, 2):  # cells as even as possible: cell c begins at position floor(c positions / grid)
        cell = (np.arange(h.shape[axis]) * grid // h.shape[axis])[:, None] == np.arange(grid)[None, :]
        h = jnp.moveaxis(jnp.tensordot(h, jnp.asarray(cell, h.dtype), axes=(axis, 0)), -1, axis)
    return h.reshape(len(X), -1)

"""Explicit featurisers: positive features of images that nobody trained.

The solution and its sweeps want features that are positive, with rows of one L1 norm. Signed numbers become positive by
splitting them into `relu(x)` and `relu(-x)`; rows become of norm K by dividing each by its sum. Two ways to get useful
numbers: random directions in pixel space, and convolutions with *whitened patches of the training images* (Coates & Ng 2011),
summed over a coarse grid. Neither has a gradient anywhere.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

_patches_per_filter = 200
_flat = 0.1  # patches whose grey levels (of a range of 1) deviate less than this say nothing
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
    """`[relu(x - t), relu(-x - t)]`: signed features as twice as many that are not negative; at t = 0 nothing is lost.

    Example:
        >>> positive_parts(jnp.array([1.0, -2.0])).tolist()
        [1.0, 0.0, 0.0, 2.0]
    """
    return jnp.concatenate([jax.nn.relu(x - threshold), jax.nn.relu(-x - threshold)], axis=-1)


def unit_rows(H: Float[Array, "M D"], *, K: float = 1.0, floor: float = 0.01) -> Float[Array, "M D"]:
    """Strictly positive features whose rows all have L1 norm K: `K (h/||h||_1 + floor/D) / (1 + floor)`.

    The floor, spread evenly, is to these features what the 1 in (X + 1)/256 is to pixels: every feature meets every output.

    Args:
        H: [M, D] features, at least 0.
        K: norm of the rows.
        floor: share of the floor in a row, above 0.

    Raises:
        ValueError: a negative or non-finite feature, a row that is zero everywhere, a floor that is not above 0.

    Example:
        >>> unit_rows(jnp.array([[3.0, 1.0]]), K=2.0, floor=1.0).tolist()
        [[1.25, 0.75]]
    """
    lowest, norms = float(H.min()), H.sum(axis=1, keepdims=True)
    if not lowest >= 0 or not bool(jnp.isfinite(norms).all()):
        raise ValueError(f"features down to {lowest}: rows of one norm need finite features >= 0; split them by positive_parts")
    if not float(norms.min()) > 0:
        raise ValueError(f"row {int(norms.argmin())} has no feature above 0, and so no norm to divide by: drop that example")
    if not floor > 0 or not K > 0:
        raise ValueError(f"floor {floor}, K {K}: both must be above 0")
    return (H / norms + floor / H.shape[1]) * (K / (1 + floor))


def random_directions(key: Array, inputs: int, number: int, dtype=jnp.float32) -> Float[Array, "inputs number"]:
    """Directions on the unit sphere, uniformly at random.

    Example:
        >>> random_directions(jax.random.key(0), 3, 5).shape
        (3, 5)
    """
    W = jax.random.normal(key, (inputs, number), dtype)
    return W / jnp.linalg.norm(W, axis=0, keepdims=True)


def random_features(X: Float[Array, "M P"], W: Float[Array, "P n"], *, threshold: float = 0.0) -> Float[Array, "M nn"]:
    """Random positive features: the positive parts of the projections of centred rows, in units of their own deviation.

    `positive_parts(z / std(z), t)` with `z = (x - mean(x)) W`, means over the pixels of a row.

    Args:
        X: [M, P] numbers per example.
        W: [P, n] directions.
        threshold: in standard deviations of a row's projections; above 0 the features are sparse.
    """
    z = (X - X.mean(axis=1, keepdims=True)) @ W
    spread = jnp.sqrt(jnp.mean(z**2, axis=1, keepdims=True))
    return positive_parts(z / jnp.where(spread > 0, spread, 1), threshold)


def patch_filters(
    images: UInt8[np.ndarray, "M height width"], levels: int, *, size: int, number: int, seed: int = 0, noise: float = 0.01
) -> Filters:
    """Whitened patches of training images, drawn at random, as filters of unit norm in the whitened space.

    With mean μ and covariance C of patches, `V = (C + noise)^(-1/2)`: a patch x answers to the patch a by
    `⟨(x - μ)V, (a - μ)V⟩ / ||(a - μ)V||`. Patches without contrast are left out.

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: 256 for bytes.
        size: height and width of a patch.
        number: of filters.
        seed: of the patches drawn.
        noise: variance added before whitening, of grey levels between 0 and 1.

    Raises:
        ValueError: a patch larger than an image; fewer than 1 filter; images with too few patches of any contrast.

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
    patches = patches[patches.std(axis=1) > _flat]
    if len(patches) < number:
        raise ValueError(
            f"{len(patches)} of {drawn} patches have any contrast, {number} are wanted: use fewer or larger --patch"
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
    """Positive parts of every filter's answer at every place, summed over the cells of a grid: D = 2 n grid².

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: 256 for bytes.
        filters: of patches of these images.
        grid: cells along each side.
        threshold: answers below it, of either sign, count as none; they are in standard deviations of a patch.
        progress: called with (images done, images in all).

    Raises:
        ValueError: a grid finer than the places of a patch.
    """
    places = min(images.shape[1:]) - filters.size + 1
    if not 1 <= grid <= places:
        raise ValueError(f"a grid of {grid} x {grid} over {places} x {places} places of a patch: use 1 to {places} cells")
    parts = []
    for m in range(0, len(images), _images_per_call):
        block = jnp.asarray(images[m : m + _images_per_call], filters.W.dtype) / (levels - 1)
        parts.append(_pooled(block, filters.W, filters.b, threshold, filters.size, grid))
        if progress:
            progress(min(m + _images_per_call, len(images)), len(images))
    return jnp.concatenate(parts)


def _pooled_block(X: Array, W: Array, b: Array, threshold: float, size: int, grid: int) -> Array:
    kernel = W.reshape(size, size, 1, -1)
    z = jax.lax.conv_general_dilated(X[..., None], kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = positive_parts(z - b[None, None, None, :], threshold)
    for axis in (1, 2):  # cells as even as they can be: cell c begins at place floor(c places / grid)
        cell = (np.arange(h.shape[axis]) * grid // h.shape[axis])[:, None] == np.arange(grid)[None, :]
        h = jnp.moveaxis(jnp.tensordot(h, jnp.asarray(cell, h.dtype), axes=(axis, 0)), -1, axis)
    return h.reshape(len(X), -1)


_pooled = jax.jit(_pooled_block, static_argnums=(3, 4, 5))

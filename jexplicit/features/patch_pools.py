"""Whitened patches of several sizes, pooled over a grid and normalised.

Filters are clusters of patches of training images, without gradient training.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.features.descriptors import unit_roots
from jexplicit.features.patches import Filters, patch_filters, pool, responses
from jexplicit.runs.devices import full_precision


def fit_patch_bank(
    images: UInt8[np.ndarray, "M height width"], levels: int, *, sizes: Sequence[int], number: int, seed: int = 0
) -> tuple[Filters, ...]:
    """Filters of several sizes from clusters of patches of images.

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        sizes: heights and widths of patches, in pixels.
        number: of filters of each size; twice as many responses, positive and negative parts.

    Raises:
        ValueError: no sizes; patches larger than an image; fewer than 1 filter.
    """
    if not sizes:
        raise ValueError("patches of no size: use at least one size")
    return tuple(patch_filters(images, levels, size=size, number=number, seed=seed, clusters=True) for size in sizes)


@functools.partial(jax.jit, static_argnames=("grid", "threshold"))
@full_precision
def patch_pools(
    X: Float[Array, "m rows columns"], bank: tuple[Filters, ...], *, grid: int, threshold: float
) -> Float[Array, "m D"]:
    """Square roots of filter responses, summed over a grid, rows of norm 1.

    The root reduces the weight of strokes that fill a cell, and the norm that of the contrast of an image. Patches lie around
    every pixel; borders are repeated.

    Raises:
        ValueError: more cells than pixels.

    Args:
        X: grey levels between 0 and 1.
        grid: cells along each side.
        threshold: responses of smaller magnitude become 0; in standard deviations of a patch.
    """
    side = min(X.shape[1:])
    if not 1 <= grid <= side:
        raise ValueError(f"a {grid} x {grid} grid: use 1 to {side} cells along a side")
    cells = []
    for filters in bank:
        before, after = (filters.size() - 1) // 2, filters.size() // 2
        padded = jnp.pad(X, ((0, 0), (before, after), (before, after)), mode="edge")
        cells.append(pool(responses(padded, filters), grid, threshold))
    return unit_roots([jnp.concatenate(cells, axis=3)])

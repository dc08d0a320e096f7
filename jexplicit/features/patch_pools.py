"""Whitened patches of several sizes, in one or two stages, pooled over a grid, normalised by the contrast of an image.

Filters are clusters of patches of training images and of their maps, without gradient training.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.features.descriptors import unit_roots
from jexplicit.features.patches import Filters, of_images, patch_filters, pool, responses
from jexplicit.features.second_stage import SecondStage, fit_second_stage, second_responses
from jexplicit.runs.devices import full_precision

_images_for_maps = 1_000
_channels = 48  # principal axes of the maps: inputs of the second stage


class PatchBank(NamedTuple):
    """Filters of several sizes, and the second stage on their maps or None."""

    filters: tuple[Filters, ...]
    second: SecondStage | None


def fit_patch_bank(
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    *,
    sizes: Sequence[int],
    number: int,
    threshold: float,
    second: int = 0,
    seed: int = 0,
) -> PatchBank:
    """Filters from clusters of patches of images and of their maps.

    Args:
        images: [M, height, width] grey levels 0 .. levels - 1.
        levels: number of possible grey levels.
        sizes: heights and widths of patches, in pixels.
        number: of filters of each size; twice as many responses, positive and negative parts.
        threshold: responses of smaller magnitude become 0; in standard deviations of a patch.
        second: filters of the second stage; 0 for none.
        seed: of the choice of patches and images.

    Raises:
        ValueError: no sizes; patches larger than an image; a negative number of filters.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
        >>> bank = fit_patch_bank(images, 17, sizes=(3, 5), number=4, threshold=1.0)
        >>> [filters.W.shape for filters in bank.filters]
        [(9, 4), (25, 4)]
    """
    if not sizes or second < 0:
        raise ValueError(f"patches of the sizes {tuple(sizes)}, {second} second filters: use at least one size and 0 filters")
    options: Any = {"number": number, "seed": seed, "clusters": True}
    filters = tuple(patch_filters(images, levels, size=size, **options) for size in sizes)
    if not second:
        return PatchBank(filters, None)
    order = np.random.default_rng(seed).permutation(len(images))
    few, fine = images[np.sort(order[:_images_for_maps])], _fine_grid(images.shape)
    maps = np.asarray(of_images(lambda X: _fine_maps(X, filters, threshold=threshold).reshape(len(X), -1), few, levels))
    maps = maps.reshape(len(few), fine, fine, -1)
    return PatchBank(filters, fit_second_stage(maps, number=second, channels=_channels, seed=seed))


@functools.partial(jax.jit, static_argnames=("grid", "threshold"))
@full_precision
def patch_pools(X: Float[Array, "m rows columns"], bank: PatchBank, *, grid: int, threshold: float) -> Float[Array, "m D"]:
    """Square roots of the responses of each stage, summed over the cells of a grid, as rows of norm 1.

    The root reduces the weight of strokes that fill a cell, and the norm that of the contrast of an image.

    Raises:
        ValueError: more cells than pixels, or than half the pixels with a second stage.

    Args:
        X: grey levels between 0 and 1.
        bank: of `fit_patch_bank`.
        grid: cells along each side.
        threshold: responses of smaller magnitude become 0; in standard deviations of a patch.

    Example:
        >>> bank = PatchBank((Filters(jnp.ones((9, 4)), jnp.zeros(4)),), None)
        >>> patch_pools(jnp.ones((5, 8, 8)), bank, grid=2, threshold=1.0).shape  # positive and negative parts in 2 x 2 cells
        (5, 32)
    """
    side = _fine_grid(X.shape) if bank.second else min(X.shape[1:])
    if not 1 <= grid <= side:
        raise ValueError(f"a {grid} x {grid} grid: use 1 to {side} cells along a side")
    z = _bank_responses(X, bank.filters)
    stages = [_cells(z, grid, threshold)]
    if bank.second:
        maps = _maps(z, _fine_grid(X.shape), threshold)
        stages.append(_cells([second_responses(maps, bank.second)], grid, threshold))
    return unit_roots(stages)


@functools.partial(jax.jit, static_argnames=("threshold",))
@full_precision
def _fine_maps(X: Array, filters: tuple[Filters, ...], threshold: float) -> Array:
    """Square roots of the positive responses in cells of about 2 x 2 pixels: [m, rows, columns, filters and signs]."""
    return _maps(_bank_responses(X, filters), _fine_grid(X.shape), threshold)


def _fine_grid(shape: tuple[int, ...]) -> int:
    """Cells along a side of the maps of images [M, height, width]."""
    return min(shape[1:]) // 2


def _bank_responses(X: Array, filters: tuple[Filters, ...]) -> list[Array]:
    """Responses to filters of every size around every pixel; borders are repeated."""
    found = []
    for bank in filters:
        before, after = (bank.size() - 1) // 2, bank.size() // 2
        padded = jnp.pad(X, ((0, 0), (before, after), (before, after)), mode="edge")
        found.append(responses(padded[..., None], bank))
    return found


def _cells(z: list[Array], grid: int, threshold: float) -> Array:
    """Positive parts of responses, summed over the cells of a grid: [m, grid, grid, channels]."""
    return jnp.concatenate([pool(part, grid, threshold) for part in z], axis=3)


def _maps(z: list[Array], grid: int, threshold: float) -> Array:
    return jnp.sqrt(_cells(z, grid, threshold))

"""Descriptors of images for the kernel: moduli of wavelets, or responses to clustered patches, on their principal axes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images
from jexplicit.features.descriptors import Axes, describe, fit_axes
from jexplicit.features.patch_pools import fit_patch_bank, patch_pools
from jexplicit.features.patches import Filters
from jexplicit.features.scattering import scattering_pools, wavelets
from jexplicit.runs.progress import stage
from launch.digits.config import Config


def fit_descriptors(config: Config, images: Images) -> tuple[Array, Array, dict[str, Any]]:
    """Descriptors of the train and of the test images, and the weights they need."""
    X, levels = images.train_images, images.levels
    with stage("descriptors", "images") as progress:
        bank = _fit_bank(config, X, levels)
        axes = fit_axes(pools(config, X.shape, bank), X, levels, dimensions=config.axes, seed=config.seed)
        weights = axes._asdict() | bank
        train, test = (descriptors(config, weights, x, levels, progress=progress) for x in (X, images.test_images))
    return train, test, weights


def descriptors(config: Config, weights: Mapping[str, Any], X: np.ndarray, levels: int, **options: Any) -> Array:
    """Descriptors of images [M, height, width], with weights that a run keeps."""
    axes = Axes(weights["mean"], weights["axes"])
    return describe(pools(config, X.shape, weights), axes, X, levels, **options)


def _fit_bank(config: Config, X: np.ndarray, levels: int) -> dict[str, Any]:
    """Clusters of patches of the train images; wavelets are not fitted."""
    if config.descriptor == "scattering":
        return {}
    sizes = config.patch_sizes or default_sizes(min(X.shape[1:]))
    bank = fit_patch_bank(X, levels, sizes=sizes, number=config.filters, seed=config.seed)
    return {"filters": [filters._asdict() for filters in bank]}


def pools(config: Config, shape: tuple[int, ...], weights: Mapping[str, Any]) -> Callable[[Array], Array]:
    """What is pooled from images [m, height, width]."""
    side = min(shape[1:])
    if config.descriptor == "scattering":
        octaves = config.octaves or min(3, most_octaves(side))
        bank = wavelets(shape[1:], octaves=octaves, angles=config.angles, grid=grid_cells(config, side))
        return functools.partial(scattering_pools, bank=bank)
    bank = tuple(Filters(**filters) for filters in weights["filters"])
    return functools.partial(patch_pools, bank=bank, grid=grid_cells(config, side), threshold=config.threshold)


def default_sizes(side: int) -> tuple[int, ...]:
    """Odd widths of patches near a sixth, a quarter and a third of a side, at least 3.

    Example:
        >>> default_sizes(28), default_sizes(8)
        ((5, 7, 9), (3,))
    """
    return tuple(sorted({max(3, 2 * round((side / part - 1) / 2) + 1) for part in (6, 4, 3)}))


def grid_cells(config: Config, side: int) -> int:
    """Cells along a side: as asked for, or near a quarter of it for moduli and a seventh for patches."""
    return config.grid or (max(4, round(side / 4)) if config.descriptor == "scattering" else max(3, round(side / 7)))


def most_octaves(side: int) -> int:
    """Octaves whose coarsest wavelet is at most half as wide as an image; below 16 pixels, fewer than 3."""
    return side.bit_length() - 2

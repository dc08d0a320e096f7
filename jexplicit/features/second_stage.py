"""A second stage of patches: joint responses of the first stage's filters in neighbouring cells of a fine grid.

The first stage's positive responses, pooled over a fine grid, are maps with a channel for each filter and sign. Inputs are
their principal components per cell; filters are cluster directions of whitened patches of neighbouring cells.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.features.patches import Filters, responses, whitened_filters

SIZE = 3  # cells along a patch
_drawn = 60_000
_least_spread = 0.3  # share of excluded patches, those of least variance
_noise = 0.1  # variance added before whitening, relative to the mean variance


class SecondStage(NamedTuple):
    """Mean and principal axes of the channels of maps, and filters of patches of their principal components."""

    mean: Float[Array, " C"]
    axes: Float[Array, "C c"]
    filters: Filters


def fit_second_stage(maps: Float[np.ndarray, "M rows columns C"], *, number: int, channels: int, seed: int = 0) -> SecondStage:
    """Principal axes of the channels of maps of training images, and filters from clusters of patches of 3 x 3 cells."""
    if number < 1 or channels < 1:
        raise ValueError(f"{number} filters of {channels} channels: use at least 1 of each")
    cells = maps.reshape(-1, maps.shape[3])
    mean = cells.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(cells.T))
    axes = axes[:, -channels:]
    inputs = np.pad((maps - mean) @ axes, _borders)
    patches = _draw_patches(inputs, maps.shape[:3], np.random.default_rng(seed))
    spread = patches.std(axis=1)
    patches = patches[spread > np.quantile(spread, _least_spread)]
    if len(patches) < number:
        raise ValueError(f"{len(patches)} patches of maps differ, for {number} filters: use fewer filters")
    filters = whitened_filters(patches, number, seed=seed, noise=_noise * float(patches.var(axis=0).mean()), clusters=True)
    return SecondStage(jnp.asarray(mean, jnp.float32), jnp.asarray(axes, jnp.float32), filters)


def second_responses(maps: Float[Array, "m rows columns C"], stage: SecondStage) -> Float[Array, "m rows columns n"]:
    """The response `⟨patch, w⟩ - b` of every filter around every cell; beyond the borders the inputs are 0, their mean."""
    inputs = (maps - stage.mean[None, None, None, :]) @ stage.axes
    return responses(jnp.pad(inputs, _borders), stage.filters)


_borders = ((0, 0), (SIZE // 2, SIZE // 2), (SIZE // 2, SIZE // 2), (0, 0))


def _draw_patches(inputs: Any, places: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Patches of padded inputs around random cells of all maps."""
    m, row, column = (rng.integers(0, end, _drawn) for end in places)
    offsets = np.arange(SIZE)
    rows, columns = row[:, None, None] + offsets[None, :, None], column[:, None, None] + offsets[None, None, :]
    return inputs[m[:, None, None], rows, columns].reshape(_drawn, -1)

"""What a configuration pools from images before their principal axes: moduli of wavelets, or responses to clustered patches."""

import functools
from collections.abc import Callable
from typing import Any

from jaxtyping import Array

from jexplicit.data.images import Images
from jexplicit.features.patch_pools import PatchBank, fit_patch_bank, patch_pools
from jexplicit.features.patches import Filters
from jexplicit.features.scattering import scattering_pools, wavelets
from jexplicit.features.second_stage import SecondStage
from launch.digits.config import Config


def check_pools(config: Config, side: int) -> None:
    """Refuse sizes that do not fit images of this side.

    Raises:
        ValueError: naming the flag.
    """
    sizes, most, wide = config.patch_sizes or default_sizes(side), side, f"of images {side} pixels wide"
    if config.descriptor == "patches":
        if not 2 <= min(sizes) <= max(sizes) <= side:
            raise ValueError(f"--patch-sizes {' '.join(map(str, sizes))} {wide}: use 2 to {side}")
        if config.second_filters:
            most, wide = side // 2, f"{wide} with --second-filters"
    elif config.second_filters or config.patch_sizes:
        raise ValueError("--second-filters and --patch-sizes need --descriptor patches")
    elif default_octaves(config, side) > (octaves := _most_octaves(side)):
        raise ValueError(f"--octaves {config.octaves} {wide}: use at most {octaves}")
    if default_grid(config, side) > most:
        raise ValueError(f"--grid {config.grid} {wide}: use at most {most} cells")


def fit_bank(config: Config, images: Images) -> dict[str, Any]:
    """What a run keeps of filters that are fitted to images: clusters of patches; wavelets are not fitted."""
    if config.descriptor == "scattering":
        return {}
    bank = fit_patch_bank(
        images.train_images,
        images.levels,
        sizes=config.patch_sizes or default_sizes(min(images.train_images.shape[1:])),
        number=config.filters,
        threshold=config.threshold,
        second=config.second_filters,
        seed=config.seed,
    )
    second = {"second": bank.second._asdict() | {"filters": bank.second.filters._asdict()}} if bank.second else {}
    return {"filters": [filters._asdict() for filters in bank.filters]} | second


def image_pools(config: Config, shape: tuple[int, ...], weights: dict[str, Any]) -> Callable[[Array], Array]:
    """What is pooled from images [m, height, width], with the filters that a run keeps."""
    side = min(shape[1:])
    grid = default_grid(config, side)
    if config.descriptor == "scattering":
        bank = wavelets(shape[1:], octaves=default_octaves(config, side), angles=config.angles, grid=grid)
        return functools.partial(scattering_pools, bank=bank)

    def filters(weights: dict[str, Array]) -> Filters:
        return Filters(weights["W"], weights["b"])

    second = weights.get("second")
    stage = SecondStage(second["mean"], second["axes"], filters(second["filters"])) if second else None
    bank = PatchBank(tuple(map(filters, weights["filters"])), stage)
    return functools.partial(patch_pools, bank=bank, grid=grid, threshold=config.threshold)


def default_sizes(side: int) -> tuple[int, ...]:
    """Odd widths of patches near a sixth, a quarter and a third of a side, at least 3.

    Example:
        >>> default_sizes(28), default_sizes(8)
        ((5, 7, 9), (3,))
    """
    return tuple(sorted({max(3, 2 * round((side / part - 1) / 2) + 1) for part in (6, 4, 3)}))


def default_grid(config: Config, side: int) -> int:
    """Cells along a side: as asked for, or near a quarter of it for moduli and a seventh for patches."""
    return config.grid or (max(4, round(side / 4)) if config.descriptor == "scattering" else max(3, round(side / 7)))


def default_octaves(config: Config, side: int) -> int:
    """Octaves of wavelets: as asked for, or 3, and fewer for images below 16 pixels."""
    return config.octaves or min(3, _most_octaves(side))


def _most_octaves(side: int) -> int:
    """Octaves whose coarsest wavelet is at most half as wide as an image."""
    return side.bit_length() - 2

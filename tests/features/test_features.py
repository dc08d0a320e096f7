"""What holds for all features of images: the seed alone decides, blocks change nothing, and what is refused."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.features import patches
from jexplicit.features.descriptors import describe, fit_axes
from jexplicit.features.fourier import fourier_directions
from jexplicit.features.patch_pools import fit_patch_bank, patch_pools
from jexplicit.features.patches import Filters, patch_features, patch_filters, spherical_kmeans
from jexplicit.features.positive import unit_rows
from jexplicit.features.scattering import scattering_pools, wavelets

ROWS = np.ones((3, 4))
IMAGES = np.random.default_rng(0).integers(0, 256, (40, 9, 7), np.uint8)


def random_key():
    return jax.random.key(0)


@functools.cache
def some_filters():
    return patch_filters(IMAGES, 256, size=3, number=4)


def bank(sizes=(3, 4), **options):
    return fit_patch_bank(IMAGES, 256, sizes=sizes, number=5, **options)


def axes_of(seed=0, dimensions=10):
    pools = functools.partial(patch_pools, bank=bank(seed=seed), grid=2, threshold=0.5)
    return pools, fit_axes(pools, IMAGES, 256, dimensions=dimensions)


SEEDED = {
    "patches": lambda seed: patch_filters(IMAGES, 256, size=3, number=4, seed=seed).W,
    "descriptors": lambda seed: axes_of(seed)[1].axes,
}


@pytest.mark.parametrize("name", SEEDED)
def test_the_seed_alone_decides(name):
    one, same, other = map(SEEDED[name], (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(np.asarray(one) - np.asarray(other)).max() > 0.01


IN_BLOCKS: dict[str, Any] = {
    "patches": lambda images, told: patch_features(images, 256, some_filters(), grid=2, threshold=0.5, progress=told),
    "descriptors": lambda images, told: describe(*axes_of(), images, 256, progress=told),
}


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_the_number_of_images_per_call_changes_nothing(name, monkeypatch):
    function, done = IN_BLOCKS[name], []
    whole = function(IMAGES[:11], None)
    monkeypatch.setattr(patches, "_images_per_call", 3)
    blocks = function(IMAGES[:11], lambda *now: done.append(now))
    np.testing.assert_allclose(blocks, whole, rtol=0, atol=1e-5)  # another order of float32 sums
    assert done[-4:] == [(3, 11), (6, 11), (9, 11), (11, 11)]


def pools_of_cells(grid):
    return patch_pools(jnp.zeros((2, 9, 7), jnp.float32), bank(), grid=grid, threshold=0.5)


def rows_with(value: float, place: Any = 2):
    """Rows of ones, but for some numbers of row 1."""
    rows = ROWS.copy()
    rows[1, place] = value
    return jax.device_put(rows)


WAVELETS = r"images of 9 x 12: use 1 to 2 octaves, at least 1 angle and 1 to 9 cells"
REFUSALS = [
    (lambda: spherical_kmeans(np.ones((3, 2)), 4), "4 directions of 3 vectors"),
    (lambda: spherical_kmeans(np.eye(2, 3)[:, :1], 1), "vector 1 is zero"),
    (lambda: bank(sizes=()), "at least one size"),
    (lambda: bank(sizes=(8,)), "patches of 8 x 8"),
    (lambda: axes_of(dimensions=0), "0 dimensions"),
    (lambda: pools_of_cells(9), "a 9 x 9 grid: use 1 to 7"),
    (lambda: fourier_directions(random_key(), 3, 5, scale=0.0), "scale 0.0"),
    (lambda: fourier_directions(random_key(), 3, 0), "0 directions"),
    (lambda: fourier_directions(7, 3, 5), "pass jax.random.key"),
    (lambda: unit_rows(rows_with(0.0, slice(None))), "row 1 has no feature above 0"),
    (lambda: unit_rows(rows_with(-1.0)), "features down to -1.0.*positive_parts"),
    (lambda: unit_rows(rows_with(np.inf)), "finite features"),
    (lambda: unit_rows(jax.device_put(ROWS), floor=0.0), "floor 0.0"),
    (lambda: patch_filters(IMAGES, 256, size=8, number=4), "8 x 8 in images of 9 x 7"),
    (lambda: patch_filters(IMAGES, 256, size=3, number=0), "0 patches"),
    (lambda: patch_filters(0 * IMAGES + 9, 256, size=3, number=4), "0 of 800 patches have any contrast"),
    (
        lambda: patch_features(IMAGES, 256, Filters(jnp.ones((9, 2)), jnp.zeros(2)), grid=6, threshold=0.0),
        "a grid of 6 x 6 over 5 x 5",
    ),
    (lambda: wavelets((9, 12), octaves=0, angles=3, grid=2), WAVELETS),
    (lambda: wavelets((9, 12), octaves=3, angles=3, grid=2), WAVELETS),
    (lambda: wavelets((9, 12), octaves=2, angles=0, grid=2), WAVELETS),
    (lambda: wavelets((9, 12), octaves=2, angles=3, grid=10), WAVELETS),
    (  # 26 x 26 pixels become 36 x 36 with their margins, too
        lambda: scattering_pools(jnp.ones((2, 26, 26), jnp.float32), wavelets((28, 28), octaves=2, angles=2, grid=3)),
        r"an image of \(26, 26\) and wavelets for \(28, 28\)",
    ),
]


@pytest.mark.parametrize("call, said", REFUSALS)
def test_what_does_not_fit_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()

"""What holds for all features of images: the seed alone decides, blocks change nothing, and what is refused."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jexplicit.data.images import read_images
from jexplicit.features import images as module
from jexplicit.features.images import (
    Filters,
    describe,
    fit_axes,
    fit_patch_bank,
    patch_features,
    patch_filters,
    patch_pools,
    scattering_pools,
    spherical_kmeans,
    wavelets,
)
from jexplicit.features.random import fourier_directions, positive_parts, random_directions, random_features, unit_rows

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
    monkeypatch.setattr(module, "_images_per_call", 3)
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


# Positive parts, patches and clusters


def some_images(M=40, height=9, width=7, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (M, height, width), np.uint8)


def test_positive_parts_lose_nothing_but_a_threshold_and_are_not_negative():
    x = np.linspace(-2, 2, 41)
    for threshold in (0.0, 0.3, 1.0):
        both = np.asarray(positive_parts(jax.device_put(x), threshold))
        np.testing.assert_allclose(both[:41], np.maximum(x - threshold, 0), rtol=0, atol=1e-15)
        np.testing.assert_allclose(both[41:], np.maximum(-x - threshold, 0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("K, dtype, rounding", [(7.5, np.float64, 1e-14), (1.0, np.float32, 1e-6)])
def test_rows_get_one_norm_and_no_zero(K, dtype, rounding):
    H = np.maximum(np.random.default_rng(1).normal(size=(20, 30)), 0).astype(dtype)
    rows = np.asarray(unit_rows(jax.device_put(H), K=K, floor=0.05))
    assert rows.dtype == dtype and rows.min() > 0
    np.testing.assert_allclose(rows.sum(axis=1), K, rtol=rounding)
    np.testing.assert_allclose(rows, K * (H / H.sum(axis=1, keepdims=True) + 0.05 / 30) / 1.05, rtol=10 * rounding)


def test_random_directions_are_unit_vectors_of_no_preferred_direction():
    W = np.asarray(random_directions(jax.random.key(0), 3, 20_000, jnp.float64))
    np.testing.assert_allclose(np.linalg.norm(W, axis=0), 1, rtol=1e-14)
    # second moments are 1/3 with a deviation of sqrt(4/45 / 20000) = 0.0021 on the diagonal, 0.0018 beside it: 5 deviations
    np.testing.assert_allclose(W @ W.T / W.shape[1], np.eye(3) / 3, rtol=0, atol=0.011)


def test_random_features_are_positive_parts_of_standardised_projections():
    X, W = np.random.default_rng(2).random((6, 10)), np.asarray(random_directions(jax.random.key(1), 10, 15, jnp.float64))
    H = np.asarray(random_features(jax.device_put(X), jax.device_put(W), threshold=0.5))
    for row, x in zip(H, X, strict=True):
        z = (x - x.mean()) @ W
        z = z / np.sqrt((z**2).mean())
        np.testing.assert_allclose(row, np.concatenate([np.maximum(z - 0.5, 0), np.maximum(-z - 0.5, 0)]), rtol=0, atol=1e-12)
    brighter = random_features(jax.device_put(2 * X + 1), jax.device_put(W), threshold=0.5)
    np.testing.assert_allclose(brighter, H, rtol=0, atol=1e-12)  # contrast and brightness say nothing


@pytest.mark.parametrize(
    "grid, threshold",
    [
        *((2, 0.7), (3, 0.0)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0.0), (1, 0.7), (2, 0.0), (3, 0.7))),
    ],
)
def test_patch_features_are_the_loop_over_places(grid, threshold):
    images = some_images(3)
    filters = patch_filters(some_images(), 256, size=3, number=4)
    H = patch_features(images, 256, filters, grid=grid, threshold=threshold)
    W, b = (np.asarray(part, np.float64) for part in filters)
    loop = [reference.patch_answers(image / 255, W, b, threshold, grid).reshape(-1) for image in images]
    np.testing.assert_allclose(H, loop, rtol=0, atol=1e-4)
    assert H.shape == (3, 2 * 4 * grid**2)


def test_filters_answer_in_standard_deviations_of_a_whitened_patch():
    """The answers of random filters to random patches of the same images have mean 0 and variance about 1."""
    images = read_images("digits").train_images
    filters = patch_filters(images, 17, size=3, number=40, noise=1e-6)
    every = np.concatenate([images[:, i : i + 3, j : j + 3].reshape(len(images), -1) / 16 for i in range(6) for j in range(6)])
    z = every[every.std(axis=1) > 0.1] @ np.asarray(filters.W) - np.asarray(filters.b)
    # a sample of 8000 patches estimates 81 covariances: to some per cent
    np.testing.assert_allclose(z.mean(axis=0), 0, rtol=0, atol=0.1)
    np.testing.assert_allclose((z**2).mean(axis=0), 1, rtol=0.15)
    assert filters.size() == 3


def around(directions, M=200, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(1, 3, (M, 1)) * directions[rng.integers(0, len(directions), M)] + noise * rng.normal(
        size=(M, directions.shape[1])
    )


def test_clusters_that_lie_apart_are_found():
    axes = np.eye(3)
    C = spherical_kmeans(around(axes, M=300), 3, iterations=20, seed=2)
    nearest = (C @ axes.T).max(axis=1)
    assert sorted((C @ axes.T).argmax(axis=1)) == [0, 1, 2] and nearest.min() > 0.99


def test_a_round_is_the_loop_over_vectors():
    X = around(np.random.default_rng(1).normal(size=(4, 5)))
    before, after = (spherical_kmeans(X, 4, iterations=n) for n in (3, 4))
    sums = np.zeros_like(before)
    for x in X:
        sums[max(range(4), key=lambda n: x @ before[n])] += x
    np.testing.assert_allclose(after, [s / np.sqrt(s @ s) for s in sums], rtol=0, atol=1e-12)


def test_no_round_lowers_the_sum_of_largest_products_and_directions_have_norm_1():
    X = np.random.default_rng(3).normal(size=(300, 6))
    rounds = [spherical_kmeans(X, 9, iterations=n) for n in range(8)]
    sums = [(X @ C.T).max(axis=1).sum() for C in rounds]
    assert np.all(np.diff(sums) >= -1e-9) and sums[-1] > sums[0] + 1
    np.testing.assert_allclose([np.linalg.norm(C, axis=1) for C in rounds], 1, rtol=1e-12)

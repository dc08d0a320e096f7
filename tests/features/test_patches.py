"""Explicit featurisers: positive parts, rows of one norm, whitened patches and their pooled answers.

Tolerances: filters are float32, and an answer is a sum of some tens of products of order 1, then some tens of answers: 1e-4.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jexplicit.data.images import read_images
from jexplicit.features.patches import patch_features, patch_filters, spherical_kmeans
from jexplicit.features.positive import positive_parts, random_directions, random_features, unit_rows


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

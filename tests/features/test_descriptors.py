"""Descriptors and random Fourier features: slow loops, kernels that are known, and what should not change them.

Tolerances: responses are float32, and a descriptor is a sum of some hundred of them of order 0.1: 1e-4.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jexplicit.data.images import read_images
from jexplicit.features.images import describe, fit_axes, fit_patch_bank, patch_pools, unit_roots
from jexplicit.features.random import cos_sin, fourier_directions, fourier_features

OPTIONS = {"grid": 2, "threshold": 0.5}


def some_images(M=60, height=9, width=7, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (M, height, width), np.uint8)


@functools.cache
def some_bank(sizes=(3, 4)):
    return fit_patch_bank(some_images(), 256, sizes=sizes, number=5)


@functools.cache
def some_axes(sizes=(3, 4), dimensions=10):
    """Pools of the images, and their axes."""
    pools = functools.partial(patch_pools, bank=some_bank(sizes), **OPTIONS)
    return pools, fit_axes(pools, some_images(), 256, dimensions=dimensions)


def slow_roots(image, bank, grid, threshold):
    parts = []
    for W, b in bank:
        size = int(np.sqrt(len(W)))
        padded = np.pad(image / 255, ((size - 1) // 2, size // 2), mode="edge")
        parts.append(reference.patch_answers(padded, np.asarray(W), np.asarray(b), threshold, grid))
    roots = np.sqrt(np.concatenate(parts, axis=2)).reshape(-1)
    return roots / np.linalg.norm(roots)


def test_descriptors_are_the_loop_over_images_sizes_and_places():
    images, (pools, axes) = some_images(), some_axes()
    Z = np.asarray(describe(pools, axes, images, 256))
    slow = np.array([slow_roots(image, some_bank(), **OPTIONS) for image in images])
    np.testing.assert_allclose(Z, (slow - slow.mean(0)) @ np.asarray(axes.axes), rtol=0, atol=1e-4)
    assert Z.shape == (60, 10)


def test_axes_are_principal_and_have_one_scale():
    pools, axes = some_axes()
    Z = np.asarray(describe(pools, axes, some_images(), 256), np.float64)
    assert np.mean(np.sum(Z**2, axis=1)) == pytest.approx(1, rel=1e-4)
    covariance = Z.T @ Z / len(Z)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), rtol=0, atol=1e-5)
    assert np.all(np.diff(np.diag(covariance)) >= -1e-6)
    _, few = some_axes(sizes=(3,), dimensions=1000)  # more than responses: all of them
    assert few.axes.shape == (2 * 5 * 4, 40)


def test_contrast_says_little_where_nothing_is_cut_off():
    """At threshold 0 the responses of darker images are smaller in proportion, but for the mean patch, which is taken away."""
    images = read_images("digits").train_images[:60]
    bank = fit_patch_bank(images, 17, sizes=(3,), number=8)
    bank = tuple(each._replace(b=jnp.zeros_like(each.b)) for each in bank)
    bright, dark = (
        patch_pools(jax.device_put(np.asarray(images, np.float32)) / top, bank, grid=2, threshold=0.0) for top in (16, 32)
    )
    np.testing.assert_allclose(dark, bright, rtol=0, atol=1e-5)


def test_parts_have_one_norm_and_zeros_stay_zeros():
    parts = [np.array([[[9.0], [16.0]], [[0.0], [0.0]]]), np.array([[4.0], [1.0]])]
    rows = np.asarray(jax.jit(unit_roots)(list(map(jax.device_put, parts))))
    np.testing.assert_allclose(rows * np.sqrt(2), [[0.6, 0.8, 1], [0, 0, 1]], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-6), (np.float64, 2e-7)])
def test_cosines_and_sines_by_series(dtype, error):
    x = np.linspace(-40, 40, 10_001).astype(dtype)  # float32 has angles of 40 to 4e-6, and NumPy sees the same ones
    for part, exact in zip(jax.jit(cos_sin)(jax.device_put(x)), (np.cos, np.sin), strict=True):
        assert part.dtype == dtype
        # whole turns are taken away in the precision of x: 40 / 2 pi turns in float32 keep 2 pi 4e-7
        np.testing.assert_allclose(part, exact(x.astype(np.float64)), rtol=0, atol=max(error, 40 * np.finfo(dtype).eps))


def test_inner_products_approach_the_gaussian_kernel_and_rows_have_norm_1():
    X = np.random.default_rng(0).normal(size=(6, 3))
    W = fourier_directions(jax.random.key(0), 3, 40_000, scale=0.7, dtype=jnp.float64)
    H = np.asarray(fourier_features(jax.device_put(X), W))
    kernel = np.exp(-(0.7**2) * np.sum((X[:, None] - X[None]) ** 2, axis=2) / 2)
    np.testing.assert_allclose(H @ H.T, kernel, rtol=0, atol=0.02)  # a mean of 40,000 cosines: 0.005, four deviations
    np.testing.assert_allclose(np.sum(H**2, axis=1), 1, rtol=1e-6)
    shifted = np.asarray(fourier_features(jax.device_put(X + 1.7), W))  # of all inputs, which changes no inner product
    np.testing.assert_allclose(shifted @ shifted.T, H @ H.T, rtol=0, atol=1e-6)

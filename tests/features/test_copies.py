"""Drawn copies: an outside library, maps whose result is known, and what a draw may do.

Tolerances: bilinear weights of float64 places are exact to some 1e-13.
"""

from typing import Any

import jax
import numpy as np
import pytest
from scipy import ndimage

from jexplicit.features.copies import SHIFT, STRETCH, TURN, draw_affine, draw_copies, warp


def some_image(height=9, width=7, seed=0):
    return np.random.default_rng(seed).random((height, width))


compiled_warp, compiled_draw = jax.jit(warp), jax.jit(draw_affine, static_argnums=1)


def warped(image, A, t):
    return np.asarray(compiled_warp(*map(jax.device_put, (image, A, t))))


def test_nothing_changes_by_the_identity_and_whole_shifts_move_pixels():
    image = some_image()
    np.testing.assert_allclose(warped(image, np.eye(2), np.zeros(2)), image, rtol=0, atol=1e-12)
    shifted = warped(image, np.eye(2), np.array([2.0, -1.0]))
    np.testing.assert_allclose(shifted[:-2, 1:], image[2:, :-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(shifted[-1, 1:], image[-1, :-1], rtol=0, atol=1e-12)  # the border goes on
    turned = warped(image[:7], np.array([[0.0, 1.0], [-1.0, 0.0]]), np.zeros(2))
    np.testing.assert_allclose(turned, np.rot90(image[:7]), rtol=0, atol=1e-12)


def test_warps_are_those_of_scipy():
    image = some_image()
    for seed in range(5):
        A, t = compiled_draw(jax.random.key(seed), 9)
        centre = (np.array(image.shape) - 1) / 2
        offset: Any = centre - np.asarray(A) @ centre + np.asarray(t)
        expected = ndimage.affine_transform(image, np.asarray(A), offset, order=1, mode="nearest")
        np.testing.assert_allclose(warped(image, A, t), expected, rtol=0, atol=1e-12)


def test_draws_stay_within_their_bounds_and_fill_them():
    draws = jax.jit(jax.vmap(lambda key: draw_affine(key, 28)))(jax.random.split(jax.random.key(0), 2000))
    A, t = (np.asarray(part, np.float64) for part in draws)
    assert SHIFT * 28 * 0.99 < np.abs(t).max() <= SHIFT * 28
    # a rotation does not change the singular values of 1 + change, and these lie within the change's largest norm
    values = np.linalg.svd(A, compute_uv=False)
    assert 1 - 2 * STRETCH <= values.min() < 1 - STRETCH and 1 + STRETCH < values.max() <= 1 + 2 * STRETCH
    angles = np.arctan2(A[:, 1, 0] - A[:, 0, 1], A[:, 0, 0] + A[:, 1, 1])  # of the nearest rotation
    assert TURN < np.abs(angles).max() <= TURN + np.arctan2(STRETCH, 1 - STRETCH)


@pytest.mark.parametrize("M", [5, *(pytest.param(M, marks=pytest.mark.slow) for M in (0, 1))])
def test_copies_are_warps_of_their_images(M):
    images = np.random.default_rng(0).integers(0, 256, (M, 8, 8), np.uint8)
    whole = draw_copies(jax.random.key(0), images)
    assert whole.shape == images.shape and whole.dtype == np.uint8
    for key, image, copy in zip(jax.random.split(jax.random.key(0), M), images, whole, strict=True):
        expected = warped(image.astype(np.float64), *compiled_draw(key, 8))
        assert np.abs(copy - expected).max() <= 0.5 + 1e-3  # rounded; places are float32 there
    if M:
        assert np.abs(whole.astype(int) - images).max() > 0


def test_the_extremes_of_grey_stay():
    images = np.full((5, 8, 8), 255, np.uint8)
    np.testing.assert_array_equal(draw_copies(jax.random.key(0), images), images)

"""Scattering: slow loops in space, what shifts and constants change, and wavelets whose moments are known.

Tolerances: float32 sums of some thousand products of order 1e-3: 1e-5.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.features.images import Wavelets, scattering, scattering_pools, wavelets

SHAPE = (9, 12)


compiled = jax.jit(scattering)


def some_image(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random(shape)


def circular(x, psi):
    """`x * ψ` at every place of a periodic image, one product at a time; psi is the wavelet's spectrum."""
    kernel = np.fft.ifft2(psi)
    rows, columns = x.shape
    found = np.zeros(x.shape, complex)
    for i in range(rows):
        for j in range(columns):
            found[i, j] = np.sum(x * kernel[(i - np.arange(rows)[:, None]) % rows, (j - np.arange(columns)) % columns])
    return found


def slow_average(moduli, i, octaves, grid, shape=SHAPE):
    """Means with Gaussian weights around the centres of cells; moduli lie at every 2ⁱ-th pixel of a margin and the image."""
    weights = []
    for n, places in zip(shape, moduli.shape, strict=True):
        p = np.arange(places) * 2**i - 2**octaves
        w = np.array([np.exp(-((p - ((g + 0.5) * n / grid - 0.5)) ** 2) / 2 / (0.8 * n / grid) ** 2) for g in range(grid)])
        weights.append(w / w.sum(axis=1, keepdims=True))
    return weights[0] @ moduli @ weights[1].T


def slow_scattering(x, bank, octaves, angles, grid):
    margin = 2**octaves
    N = bank.psi[0].shape[2:]
    x = np.pad(x, [(margin, N[d] - x.shape[d] - margin) for d in (0, 1)], mode="edge")
    zero, first, second = [slow_average(x, 0, octaves, grid)], [], []
    for j in range(octaves):
        for a in range(angles):
            U = np.abs(circular(x, np.asarray(bank.psi[0][j, a])))[:: 2**j, :: 2**j]
            first.append(slow_average(U, j, octaves, grid))
            for k in range(j + 1, octaves):
                for b in range(angles):
                    V = np.abs(circular(U, np.asarray(bank.psi[j][k, b])))[:: 2 ** (k - j), :: 2 ** (k - j)]
                    second.append(((j, k, a, b), slow_average(V, k, octaves, grid)))
    second = [average for _, average in sorted(second, key=lambda path: path[0])]
    return np.array(zero), np.array(first), np.array(second)


def test_the_orders_are_the_loop_over_places_and_paths():
    bank = wavelets(SHAPE, octaves=2, angles=3, grid=2)
    x = some_image()
    for found, slow in zip(
        compiled(jax.device_put(np.asarray(x, np.float32)), bank), slow_scattering(x, bank, 2, 3, 2), strict=True
    ):
        assert found.shape == slow.shape
        np.testing.assert_allclose(found, slow, rtol=0, atol=1e-5)


def test_wavelets_of_a_later_octave_are_those_of_the_image_at_fewer_places():
    """Kernels of an octave's moduli are those of images at every second row and column, times the 4 places that one stands for.

    The coarsest wavelet has no frequencies near those that a second place hides: to 2 per cent of its largest number.
    """
    bank = wavelets((32, 32), octaves=3, angles=4, grid=4)
    of_images, of_moduli = (np.fft.ifft2(np.asarray(bank.psi[i][2], np.float64)) for i in (0, 1))
    np.testing.assert_allclose(of_moduli, 4 * of_images[:, ::2, ::2], rtol=0, atol=0.02 * np.abs(of_moduli).max())


def test_wavelets_have_no_mean_and_lie_at_their_frequencies():
    bank = wavelets((64, 64), octaves=3, angles=8, grid=4)
    psi = np.asarray(bank.psi[0], np.float64)
    frequencies = 2 * np.pi * np.fft.fftfreq(psi.shape[2])
    np.testing.assert_allclose(psi[:, :, 0, 0], 0, rtol=0, atol=1e-6)
    for j in range(3):
        for a in range(8):
            row, column = np.unravel_index(psi[j, a].argmax(), psi[j, a].shape)
            xi = 3 * math.pi / 4 / 2**j * np.array([math.cos(math.pi * a / 8), math.sin(math.pi * a / 8)])
            # to a step of the frequencies, and what taking away the mean shifts the largest value by
            np.testing.assert_allclose([frequencies[row], frequencies[column]], xi, rtol=0, atol=0.15)


def test_moduli_ignore_constants_and_follow_contrast():
    bank = wavelets(SHAPE, octaves=2, angles=3, grid=2)
    x = some_image().astype(np.float32)
    orders, inverted, bright, flat = (
        list(map(np.asarray, compiled(jax.device_put(image), bank)))
        for image in (x, 1 - x, 3 * x, np.full(SHAPE, 0.25, np.float32))
    )
    for n in (1, 2):
        np.testing.assert_allclose(inverted[n], orders[n], rtol=0, atol=1e-5)
    for order, more in zip(orders, bright, strict=True):
        np.testing.assert_allclose(more, 3 * order, rtol=1e-4, atol=1e-5)
    for order, level in zip(flat, (0.25, 0, 0), strict=True):  # it has its level and no moduli
        np.testing.assert_allclose(order, level, rtol=1e-6, atol=1e-6 * (not level))
    rows = np.asarray(scattering_pools(jax.device_put(np.stack([x, 3 * x])), bank))
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.sum(rows**2, axis=1), 1, rtol=1e-5)


def test_a_quarter_turn_turns_the_cells_and_exchanges_the_angles():
    """Of a square image with moduli at every pixel: octave 0 alone."""
    bank = wavelets((8, 8), octaves=1, angles=4, grid=2)
    x = np.pad(some_image((4, 4)), 2)
    x[3, 3] = 2.0
    first, turned = (
        np.asarray(compiled(jax.device_put(np.asarray(image, np.float32)), bank)[1]) for image in (x, np.rot90(x).copy())
    )
    expected = np.rot90(first, axes=(1, 2))[[2, 3, 0, 1]]  # angle 0 looks along rows, and π/2 along columns
    np.testing.assert_allclose(turned, expected, rtol=0, atol=1e-5)


def test_a_small_shift_moves_moduli_less_than_pixels():
    x = np.pad(some_image((12, 12)), 8)
    shifted = np.roll(x, 1, axis=1)
    images = jax.device_put(np.stack([x, shifted]).astype(np.float32))
    rows = np.asarray(scattering_pools(images, wavelets((28, 28), octaves=3, angles=4, grid=7)))
    moved = np.linalg.norm(rows[0] - rows[1])
    assert moved < 0.5 * np.linalg.norm(x - shifted) / np.linalg.norm(x)


@pytest.mark.parametrize("octaves", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_one_octave_has_no_second_order_and_jit_and_grad_pass(octaves):
    bank = wavelets((16, 16), octaves=octaves, angles=2, grid=3)
    X = jax.device_put(some_image((3, 16, 16)).astype(np.float32))
    rows = scattering_pools(X, bank)
    paths = 1 + 2 * octaves + 4 * octaves * (octaves - 1) // 2
    assert rows.shape == (3, paths * 9) and isinstance(bank, Wavelets)
    slope = np.asarray(jax.jit(jax.grad(lambda X: jnp.sum(scattering(X[0], bank)[1])))(X))
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0

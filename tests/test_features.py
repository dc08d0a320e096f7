"""Features of images: formulas, loops, and refusals."""

import functools
import math

import jax
import numpy as np
import pytest

from jexplicit import features as module
from jexplicit.features import describe, fit_axes, fourier_directions, scattering_pools, wavelets

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 9, 7), np.uint8)


@functools.cache
def axes_of(dimensions=10):
    """Pools of images, and their axes."""
    pools = functools.partial(scattering_pools, bank=wavelets(IMAGES.shape[1:], octaves=1, angles=3, grid=2))
    return pools, fit_axes(pools, IMAGES, 256, dimensions=dimensions)


def test_the_number_of_images_per_call_changes_nothing(monkeypatch):
    done: list[tuple[int, int]] = []
    whole = describe(*axes_of(), IMAGES[:11], 256)
    monkeypatch.setattr(module, "_images_per_call", 3)
    parts = describe(*axes_of(), IMAGES[:11], 256, progress=lambda *now: done.append(now))
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5)  # another order of float32 sums
    assert done == [(3, 11), (6, 11), (9, 11), (11, 11)]


def test_descriptors_are_pools_along_principal_axes_of_one_scale():
    pools, axes = axes_of()
    Z, H = np.asarray(describe(pools, axes, IMAGES, 256), float), np.asarray(pools(jax.device_put(np.float32(IMAGES / 255))))
    np.testing.assert_allclose(Z, (H - H.mean(axis=0)) @ np.asarray(axes.axes), rtol=0, atol=1e-4)
    assert Z.shape == (40, 10) and np.mean(np.sum(Z**2, axis=1)) == pytest.approx(1, rel=1e-4)
    covariance = Z.T @ Z / len(Z)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), rtol=0, atol=1e-5)
    assert np.all(np.diff(np.diag(covariance)) >= -1e-6)
    assert axes_of(1000)[1].axes.shape == (H.shape[1], H.shape[1])  # more than responses: all of them


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-6), (np.float64, 2e-7)])
def test_cosines_and_sines_by_series(dtype, error):
    x = np.linspace(-40, 40, 10_001).astype(dtype)  # float32 has angles of 40 to 4e-6, and NumPy sees the same ones
    for part, exact in zip(jax.jit(module.cos_sin)(jax.device_put(x)), (np.cos, np.sin), strict=True):
        assert part.dtype == dtype
        # whole turns are taken away in the precision of x: 40 / 2 pi turns in float32 keep 2 pi 4e-7
        np.testing.assert_allclose(part, exact(x.astype(np.float64)), rtol=0, atol=max(error, 40 * np.finfo(dtype).eps))


def test_inner_products_approach_the_gaussian_kernel_and_rows_have_norm_1():
    X = np.random.default_rng(0).normal(size=(6, 3))
    W = fourier_directions(jax.random.key(0), 3, 40_000, scale=0.7).astype(float)
    H = np.asarray(module.fourier_features(jax.device_put(X), W))
    kernel = np.exp(-(0.7**2) * np.sum((X[:, None] - X[None]) ** 2, axis=2) / 2)
    np.testing.assert_allclose(H @ H.T, kernel, rtol=0, atol=0.02)  # a mean of 40,000 cosines: 0.005, four deviations
    np.testing.assert_allclose(np.sum(H**2, axis=1), 1, rtol=1e-6)


SHAPE = (9, 12)


def circular(x, psi):
    """`x * ψ` at every place of a periodic image, one product at a time; psi is the wavelet's spectrum."""
    kernel = np.fft.ifft2(psi)
    rows, columns = x.shape
    found = np.zeros(x.shape, complex)
    for i in range(rows):
        for j in range(columns):
            found[i, j] = np.sum(x * kernel[(i - np.arange(rows)[:, None]) % rows, (j - np.arange(columns)) % columns])
    return found


def slow_average(moduli, i, octaves, grid):
    """Means with Gaussian weights around the centres of cells; moduli lie at every 2ⁱ-th pixel of a margin and the image."""
    weights = []
    for n, places in zip(SHAPE, moduli.shape, strict=True):
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
    x = np.random.default_rng(0).random(SHAPE)
    orders = jax.jit(module.scattering)(jax.device_put(np.asarray(x, np.float32)), bank)
    for found, slow in zip(orders, slow_scattering(x, bank, 2, 3, 2), strict=True):
        assert found.shape == slow.shape
        np.testing.assert_allclose(found, slow, rtol=0, atol=1e-5)


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

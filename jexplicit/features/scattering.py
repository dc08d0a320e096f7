"""Scattering: moduli of wavelet responses, of two orders, averaged over a grid.

    orders 0, 1, 2:    φ * x,    φ * |x * ψ|,    φ * ||x * ψ| * ψ'|

ψ are Morlet wavelets of several octaves and angles, φ a Gaussian window. Moduli are invariant to the position of a stroke
within a cell; the second order recovers information lost by averaging the first. Nothing is fitted to images.

Source: Bruna & Mallat, Invariant scattering convolution networks, 2013.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.features.descriptors import unit_roots
from jexplicit.runs.checks import as_float, is_concrete
from jexplicit.runs.devices import full_precision

_finest = 3 * math.pi / 4  # frequency of the wavelets of octave 0, radians per pixel
_width = 0.8  # standard deviation of their envelopes, in pixels, and of the windows, in cells


@functools.partial(jax.tree_util.register_dataclass, data_fields=["psi", "rows", "columns"], meta_fields=["shape"])
@dataclass(frozen=True)
class Wavelets:
    """Spectra of wavelets on images with a margin, and windows of cells.

    shape: height and width of the images.
    psi: [octaves, angles, rows, columns] for images, and for their moduli of each octave but the last, each with every second
        row and column of the octave before.
    rows, columns: [grid, rows] and [grid, columns], windows over the moduli of each octave.
    """

    shape: tuple[int, int]
    psi: tuple[Float[Array, "J L _ _"], ...]
    rows: tuple[Float[Array, "g _"], ...]
    columns: tuple[Float[Array, "g _"], ...]


def wavelets(shape: Sequence[int], *, octaves: int, angles: int, grid: int) -> Wavelets:
    """Morlet wavelets of octaves j and angles π l/L.
    `ψ̂(ω) = ĝ(ω - ξ) - κ ĝ(ω)`, with κ such that `ψ̂(0) = 0`.

    ξ has length 3π/4 2⁻ʲ and the direction of the angle; ĝ is a Gaussian of standard deviation 1/(0.8 2ʲ) along it, and 4/L as
    much across.

    Args:
        octaves: J.
        angles: L.
        grid: cells along each side; windows have a standard deviation of 0.8 cells.

    Raises:
        ValueError: fewer than one octave, angle or cell, octaves of more pixels than half of an image, or more cells than
            pixels.

    Example:
        >>> [spectra.shape for spectra in wavelets((28, 28), octaves=2, angles=8, grid=7).psi]
        [(2, 8, 36, 36)]
    """
    side = min(shape)
    if not (octaves >= 1 and 2**octaves <= side / 2) or angles < 1 or not 1 <= grid <= side:
        most = f"1 to {side.bit_length() - 2} octaves, at least 1 angle and 1 to {side} cells"
        raise ValueError(
            f"{octaves} octaves, {angles} angles and a grid of {grid} x {grid} for images of {shape[0]} x {shape[1]}: use "
            f"{most if side >= 4 else '4 x 4 pixels or more'}"
        )
    padded = [_padded(n, octaves) for n in shape]
    turns, levels = np.arange(angles) / angles, range(max(1, octaves - 1))
    psi = [
        np.array([[_morlet(padded, i, j, math.pi * turn, 4 / angles) for turn in turns] for j in range(octaves)])
        for i in levels
    ]
    rows, columns = ([_windows(n, octaves, i, grid) for i in range(octaves)] for n in shape)
    arrays = (tuple(jnp.asarray(part, jnp.float32) for part in parts) for parts in (psi, rows, columns))
    return Wavelets((shape[0], shape[1]), *arrays)


def scattering(x: Float[Array, "rows columns"], bank: Wavelets) -> tuple[Float[Array, "_ g g"], ...]:
    """Orders 0, 1 and 2 of the scattering of one image.
    Shapes are [1, g, g], [J L, g, g] and [J (J - 1)/2 L², g, g].

    Moduli of octave j are computed at every 2ʲ-th pixel; edges are extended by 2ᴶ pixels.
    """
    if x.shape != bank.shape:
        raise ValueError(f"an image of {x.shape} and wavelets for {bank.shape}: make wavelets for the shape of the image")
    octaves = len(bank.rows)
    margin = 2**octaves
    x = jnp.pad(x, [(margin, N - n - margin) for N, n in zip(bank.psi[0].shape[2:], x.shape, strict=True)], mode="edge")

    def average(moduli: Array, i: int) -> Array:
        rows, columns = (windows[i].astype(x.dtype) for windows in (bank.rows, bank.columns))
        return jnp.einsum("gr,prc,hc->pgh", rows, moduli, columns)

    zero = average(x[None], 0)
    first, second = [], [jnp.zeros((0, *zero.shape[1:]), x.dtype)]
    for j in range(octaves):
        U = _moduli(x[None], bank.psi[0][j], 2**j)
        first.append(average(U, j))
        second += [average(_moduli(U, bank.psi[j][k], 2 ** (k - j)), k) for k in range(j + 1, octaves)]
    return zero, jnp.concatenate(first), jnp.concatenate(second)


def scattering_pools(X: Float[Array, "m rows columns"], bank: Wavelets) -> Float[Array, "m D"]:
    """Square roots of the averages as rows of norm 1.

    Args:
        X: grey levels between 0 and 1.
        bank: `wavelets` of images of this size.

    Raises:
        ValueError: no images; grey levels that are negative or not finite (not checked under jit, vmap and grad).

    Example:
        >>> bank = wavelets((8, 8), octaves=2, angles=2, grid=2)
        >>> jax.eval_shape(scattering_pools, jnp.ones((5, 8, 8), "f4"), bank).shape  # (1 + 4 + 4) orders in 2 x 2 cells
        (5, 36)
    """
    X = as_float(X)
    if not len(X) or (is_concrete(X) and not (float(X.min()) >= 0 and bool(jnp.isfinite(X).all()))):
        raise ValueError(f"images {X.shape}: give at least one, of finite grey levels of at least 0")
    return _scattering_pools(X, bank)


@jax.jit
@full_precision
def _scattering_pools(X: Array, bank: Wavelets) -> Array:
    zero, first, second = jax.vmap(scattering, (0, None))(X, bank)
    return unit_roots([jnp.concatenate([zero, first], axis=1), second])


def _moduli(x: Float[Array, "m r c"], psi: Float[Array, "L r c"], step: int) -> Float[Array, "mL _ _"]:
    """`|x * ψ|` at every step-th row and column, by aliasing."""
    spectra = jnp.fft.fft2(x)
    product = spectra[:, None] * psi[None].astype(spectra.dtype)
    rows, columns = psi.shape[1] // step, psi.shape[2] // step
    aliases = product.reshape(-1, step, rows, step, columns)
    return jnp.abs(jnp.fft.ifft2(aliases.mean(axis=(1, 3))))


def _padded(n: int, octaves: int) -> int:
    """Pixels with a margin of 2ᴶ at both ends, a multiple of 2ᴶ."""
    return -(-(n + 2 * 2**octaves) // 2**octaves) * 2**octaves


def _morlet(shape: Sequence[int], i: int, j: int, angle: float, slant: float) -> np.ndarray:
    """The spectrum of a wavelet of octave j on every 2ⁱ-th pixel."""
    frequencies = [2 * math.pi * np.fft.fftfreq(n // 2**i) / 2**i for n in shape]

    def gaussian(centre: float) -> np.ndarray:
        """The sum over aliased frequencies, up to errors of 1e-7."""
        turns = 2 * math.pi * np.arange(-2, 3) / 2**i
        u, v = (f[:, None] + turns[None, :] for f in frequencies)
        u, v = u[:, None, :, None], v[None, :, None, :]
        along, across = u * math.cos(angle) + v * math.sin(angle), v * math.cos(angle) - u * math.sin(angle)
        exponent = (along - centre) ** 2 + (across / slant) ** 2
        return np.exp(-((_width * 2**j) ** 2) / 2 * exponent).sum(axis=(2, 3))

    wave, mean = gaussian(_finest / 2**j), gaussian(0.0)
    return wave - wave[0, 0] / mean[0, 0] * mean


def _windows(n: int, octaves: int, i: int, grid: int) -> np.ndarray:
    """Gaussians around the centres of cells, each with sum 1."""
    places = np.arange(0, _padded(n, octaves), 2**i) - 2**octaves
    centres = (np.arange(grid) + 0.5) * n / grid - 0.5
    distances = (places[None, :] - centres[:, None]) / (_width * n / grid)
    phi = np.exp(-(distances**2) / 2)
    return phi / phi.sum(axis=1, keepdims=True)

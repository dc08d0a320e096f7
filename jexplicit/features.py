"""Features without training: positive parts, random Fourier features, scattering and its principal components.

Scattering (Bruna & Mallat 2013), of Morlet wavelets ψ and Gaussian windows φ: `φ * x`, `φ * |x * ψ|`, `φ * ||x * ψ| * ψ'|`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.runs.devices import as_float, checked, full_precision, key_of_seed

_images_per_call = 500
_images_for_axes = 10_000
_finest = 3 * math.pi / 4  # frequency of the wavelets of octave 0, radians per pixel
_width = 0.8  # standard deviation of their envelopes, in pixels, and of the windows, in cells
_terms = 7  # of the two Taylor series: errors below 6e-8 up to a quarter turn


@jax.jit
def positive_parts(x: Float[Array, "... D"]) -> Float[Array, "... DD"]:
    """`[relu(x), relu(-x)]`: twice as many features, none negative.

    >>> positive_parts(jnp.array([1.0, -2.0])).tolist()
    [1.0, 0.0, 0.0, 2.0]
    """
    x = as_float(x)  # -x of unsigned integers wraps
    return jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)], axis=-1)


def fourier_directions(key: Any, inputs: int, number: int, *, scale: float = 1.0) -> Float[Array, "inputs number"]:
    """Directions W for the kernel `exp(-scale² ||x - y||² / 2)`, from N(0, scale²).

    >>> fourier_directions(jax.random.key(0), 3, 5).shape
    (3, 5)
    """
    if not 0 < scale < math.inf or number < 1:
        raise ValueError(f"{number} directions of scale {scale}: use at least one, and a scale above 0")
    return scale * jax.random.normal(key_of_seed(key), (inputs, number), jnp.float32)


def _check_phases(X: Float[Array, "M r"], W: Float[Array, "r n"]) -> None:
    most = float(jnp.linalg.norm(X, axis=1).max(initial=0) * jnp.linalg.norm(W, axis=0).max(initial=0))
    if not most * jnp.finfo(jnp.result_type(X, W)).eps < 1:
        raise ValueError(f"phases up to {most}: scale X to the order of 1")


@checked(_check_phases)
@full_precision
def fourier_features(X: Float[Array, "M r"], W: Float[Array, "r n"]) -> Float[Array, "M nn"]:
    """`[cos XW, sin XW] / sqrt(n)`: inner products approximate the kernel.

    Errors are 1e-6 in float32. Products XW that are not finite, or whose type has no fraction of a turn, are refused outside of
    jit, vmap and grad. Source: Rahimi & Recht 2007.

    >>> fourier_features(jnp.zeros((1, 2)), jnp.ones((2, 4))).tolist()
    [[0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]]
    """
    return jnp.concatenate(cos_sin(X @ W), axis=1) / math.sqrt(W.shape[1])


def cos_sin(x: Array) -> tuple[Array, Array]:
    """The cosine and sine by Taylor series, faster than XLA on CPUs."""
    half = math.pi * (x / (2 * math.pi) - jnp.round(x / (2 * math.pi)))
    square = half**2
    cosine = sine = jnp.zeros_like(x)
    for n in reversed(range(_terms)):  # Horner's rule
        cosine = cosine * square + (-1) ** n / math.factorial(2 * n)
        sine = sine * square + (-1) ** n / math.factorial(2 * n + 1)
    sine = sine * half
    return 1 - 2 * sine**2, 2 * sine * cosine


def _of_images(
    f: Callable[[Array], Array],
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Array, "M D"]:
    """f of grey levels between 0 and 1, in batches of images."""
    if not len(images) or levels < 2 or not 0 <= images.min() <= images.max() <= levels - 1:
        span = f" from {images.min()} to {images.max()}" if images.size else ""
        raise ValueError(f"{len(images)} images{span}, of {levels} grey levels: give at least one, with levels 0 .. levels - 1")
    blocks = []
    for m in range(0, len(images), _images_per_call):
        blocks.append(f(jnp.asarray(images[m : m + _images_per_call], jnp.float32) / (levels - 1)))
        if progress:
            progress(min(m + _images_per_call, len(images)), len(images))
    return jnp.concatenate(blocks)


class Axes(NamedTuple):
    """Mean and scaled principal axes of pooled responses."""

    mean: Float[Array, " D"]
    axes: Float[Array, "D r"]


def fit_axes(
    pools: Callable[[Array], Array], images: UInt8[np.ndarray, "M height width"], levels: int, *, dimensions: int, seed: int = 0
) -> Axes:
    """The principal axes of pooled responses of some images.

    pools: of grey levels between 0 and 1, [m, height, width] -> [m, D], e.g. `scattering_pools` of some wavelets. images: [M,
    height, width] grey levels 0 .. levels - 1; a sample is used. dimensions: r, or as many as there are responses.

    >>> images = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
    >>> fit_axes(lambda X: X.reshape(len(X), -1), images, 17, dimensions=3).axes.shape
    (64, 3)
    """
    if dimensions < 1:
        raise ValueError(f"{dimensions} dimensions: use at least 1")
    order = np.random.default_rng(seed).permutation(len(images))
    H = _of_images(pools, images[np.sort(order[:_images_for_axes])], levels)
    if bool((H == H[:1]).all()):
        raise ValueError(f"{len(H)} images without variance: principal axes need images that differ")
    mean = H.mean(axis=0)
    centred = H - mean[None, :]
    variances, axes = jnp.linalg.eigh(full_precision(jnp.matmul)(centred.T, centred) / len(H))
    r = min(dimensions, len(variances))
    return Axes(mean, axes[:, -r:] / jnp.sqrt(variances[-r:].sum()))


def describe(
    pools: Callable[[Array], Array],
    axes: Axes,
    images: UInt8[np.ndarray, "M height width"],
    levels: int,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Array, "M r"]:
    """Descriptors `(s - mean) axes` of images with pooled responses s.

    >>> images = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
    >>> pools = jax.tree_util.Partial(lambda X: X.reshape(len(X), -1))
    >>> describe(pools, fit_axes(pools, images, 17, dimensions=3), images, 17).shape
    (20, 3)
    """
    return _of_images(lambda X: _project(pools(X), axes), images, levels, progress)


@jax.jit
@full_precision
def _project(rows: Array, axes: Axes) -> Array:
    return (rows - axes.mean[None, :]) @ axes.axes


@functools.partial(jax.tree_util.register_dataclass, data_fields=["psi", "rows", "columns"], meta_fields=["shape"])
@dataclass(frozen=True)
class Wavelets:
    """Spectra of wavelets, for images and moduli of each octave; windows of cells."""

    shape: tuple[int, int]
    psi: tuple[Float[Array, "J L _ _"], ...]
    rows: tuple[Float[Array, "g _"], ...]
    columns: tuple[Float[Array, "g _"], ...]


def wavelets(shape: Sequence[int], *, octaves: int, angles: int, grid: int) -> Wavelets:
    """Morlet wavelets of octaves j and angles π l/L.
    `ψ̂(ω) = ĝ(ω - ξ) - κ ĝ(ω)`, with κ such that `ψ̂(0) = 0`.

    ξ has length 3π/4 2⁻ʲ and the direction of the angle; ĝ is a Gaussian of standard deviation 1/(0.8 2ʲ) along it, and 4/L as
    much across.

    octaves, angles: J, L. grid: cells along each side; windows have a standard deviation of 0.8 cells.

    >>> [spectra.shape for spectra in wavelets((28, 28), octaves=2, angles=8, grid=7).psi]
    [(2, 8, 36, 36)]
    """
    side = min(shape)
    if not (octaves >= 1 and 2**octaves <= side / 2) or angles < 1 or not 1 <= grid <= side:
        most = f"1 to {side.bit_length() - 2} octaves, at least 1 angle and 1 to {side} cells"
        found = f"{octaves} octaves, {angles} angles and a grid of {grid} x {grid} for images of {shape[0]} x {shape[1]}"
        raise ValueError(f"{found}: use {most if side >= 4 else '4 x 4 pixels or more'}")
    padded = [_padded(n, octaves) for n in shape]
    turns, levels = np.arange(angles) / angles, range(max(1, octaves - 1))
    psi = [[[_morlet(padded, i, j, math.pi * turn, 4 / angles) for turn in turns] for j in range(octaves)] for i in levels]
    rows, columns = ([_windows(n, octaves, i, grid) for i in range(octaves)] for n in shape)
    arrays = (tuple(jnp.asarray(np.array(part), jnp.float32) for part in parts) for parts in (psi, rows, columns))
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


def _check_images(X: Array, bank: Wavelets) -> None:
    if not len(X) or not (float(X.min()) >= 0 and bool(jnp.isfinite(X).all())):
        raise ValueError(f"images {X.shape}: give at least one, of finite grey levels of at least 0")


@checked(_check_images)
@full_precision
def scattering_pools(X: Float[Array, "m rows columns"], bank: Wavelets) -> Float[Array, "m D"]:
    """Square roots of the averages as rows of norm 1.

    >>> bank = wavelets((8, 8), octaves=2, angles=2, grid=2)
    >>> jax.eval_shape(scattering_pools, jnp.ones((5, 8, 8), "f4"), bank).shape  # (1 + 4 + 4) orders in 2 x 2 cells
    (5, 36)
    """
    X = as_float(X)
    zero, first, second = jax.vmap(scattering, (0, None))(X, bank)
    roots = [jnp.sqrt(part.reshape(len(X), -1)) for part in (jnp.concatenate([zero, first], axis=1), second)]
    norms = [jnp.linalg.norm(rows, axis=1, keepdims=True) for rows in roots]
    units = [rows / jnp.where(norm > 0, norm, 1) for rows, norm in zip(roots, norms, strict=True)]  # both orders alike
    return jnp.concatenate(units, axis=1) / math.sqrt(2)


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

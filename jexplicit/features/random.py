"""Random features: positive ones of equal L1 norm, and Fourier's (Gaussian kernel)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_float, check_key, checked
from jexplicit.runs.devices import full_precision


@checked(lambda x, threshold=0.0: _check_threshold(threshold))
def positive_parts(x: Float[Array, "... D"], threshold: float | Float[Array, ""] = 0.0) -> Float[Array, "... DD"]:
    """`[relu(x - t), relu(-x - t)]`: twice as many features, none negative.

    >>> positive_parts(jnp.array([1.0, -2.0])).tolist()
    [1.0, 0.0, 0.0, 2.0]
    """
    x = as_float(x)  # -x of unsigned integers wraps
    return jnp.concatenate([jax.nn.relu(x - threshold), jax.nn.relu(-x - threshold)], axis=-1)


def _check_threshold(threshold: Any) -> None:
    if bool(jnp.isnan(threshold)):
        raise ValueError("threshold NaN: use a number")


@checked(lambda H, *, K=1.0, floor=0.01: _check_norms(H), static=("K", "floor"))
def unit_rows(H: Float[Array, "M D"], *, K: float = 1.0, floor: float = 0.01) -> Float[Array, "M D"]:
    """`K (h/||h||_1 + floor/D) / (1 + floor)`: positive rows of L1 norm K.

    With the floor, a mass spread evenly over a row, every feature co-occurs with every output, as with the 1 in (X + 1)/256.

    Raises:
        ValueError: no features, a negative or non-finite one, a row of zeros (unchecked under jit, vmap and grad), a floor or
            norm K that is not above 0 and finite.

    Example:
        >>> unit_rows(jnp.array([[3.0, 1.0]]), K=2.0, floor=1.0).tolist()
        [[1.25, 0.75]]
    """
    if not 0 < floor < math.inf or not 0 < K < math.inf:
        raise ValueError(f"floor {floor}, K {K}: both must be above 0 and finite")
    if 0 in H.shape:
        raise ValueError(f"features {H.shape}: give at least one example and one feature")
    H = as_float(H)
    return (H / H.sum(axis=1, keepdims=True) + floor / H.shape[1]) * (K / (1 + floor))


def _check_norms(H: Float[Array, "M D"]) -> None:
    if 0 in H.shape:
        return  # it has a message of its own
    lowest, norms = float(H.min()), as_float(H).sum(axis=1)
    if not lowest >= 0 or not bool(jnp.isfinite(norms).all()):
        remedy = "split them by positive_parts, or scale them"
        raise ValueError(f"features down to {lowest}: rows of equal norm need finite features >= 0, with finite sums; {remedy}")
    if not float(norms.min()) > 0:
        raise ValueError(f"row {int(norms.argmin())} has no feature above 0, and so cannot be normalised: drop this example")


def random_directions(key: Any, inputs: int, number: int, dtype=jnp.float32) -> Float[Array, "inputs number"]:
    """Uniformly random directions on the unit sphere."""
    check_key(key)
    W = jax.random.normal(key, (inputs, number), dtype)
    return W / jnp.linalg.norm(W, axis=0, keepdims=True)


@checked(
    lambda X, W, *, threshold=0.0: _refuse_rows(threshold), fine=lambda X, W, *, threshold=0.0: _have_spread(X, W, threshold)
)
@full_precision
def random_features(
    X: Float[Array, "M P"], W: Float[Array, "P n"], *, threshold: float | Float[Array, ""] = 0.0
) -> Float[Array, "M nn"]:
    """Random positive features: positive parts of standardised random projections.

    `positive_parts(z / std(z), t)` with `z = (x - mean(x)) W`, for each row x; mean over its pixels, std over its projections.

    The threshold is in standard deviations; above 0 the features are sparse. A row of equal numbers has no feature above 0.
    Values that are not finite, or whose squares are not, are refused outside of jit, vmap and grad.
    """
    z, spread = _projections(X, W)
    return positive_parts(z / jnp.where(spread > 0, spread, 1), threshold)


def _projections(X: Float[Array, "M P"], W: Float[Array, "P n"]) -> tuple[Float[Array, "M n"], Float[Array, "M 1"]]:
    """The projections of each row less its mean, and their standard deviation."""
    X = as_float(X)
    centred = X - X.mean(axis=1, keepdims=True)
    size, rounding = jnp.abs(X).max(axis=1, keepdims=True, initial=0), jnp.finfo(X.dtype).eps * X.shape[1] ** 0.5
    flat = jnp.abs(centred).max(axis=1, keepdims=True, initial=0) <= rounding * size
    z = jnp.where(flat, 0, centred) @ W
    return z, jnp.sqrt(jnp.mean(z**2, axis=1, keepdims=True))


@full_precision
def _have_spread(X: Float[Array, "M P"], W: Float[Array, "P n"], threshold: Any) -> Array:
    z, spread = _projections(X, W)
    known = jnp.isfinite(spread) & ((spread > 0) == (z != 0).any(axis=1, keepdims=True))
    return known.all() & ~jnp.isnan(threshold)


def _refuse_rows(threshold: Any) -> None:
    _check_threshold(threshold)
    raise ValueError("rows without a finite standard deviation: give finite numbers, of the order of 1")


_terms = 7  # of the two Taylor series: errors below 6e-8 up to a quarter turn


def fourier_directions(
    key: Any, inputs: int, number: int, *, scale: float = 1.0, dtype=jnp.float32
) -> Float[Array, "inputs number"]:
    """Directions W for the kernel `exp(-scale² ||x - y||² / 2)`, from N(0, scale²).

    >>> fourier_directions(jax.random.key(0), 3, 5).shape
    (3, 5)
    """
    check_key(key)
    if not 0 < scale < math.inf or number < 1:
        raise ValueError(f"{number} directions of scale {scale}: use at least one, and a scale above 0")
    return scale * jax.random.normal(key, (inputs, number), dtype)


@checked(lambda X, W: _refuse_phases(X, W), fine=lambda X, W: _largest(X, W) * jnp.finfo(jnp.result_type(X, W)).eps < 1)
@full_precision
def fourier_features(X: Float[Array, "M r"], W: Float[Array, "r n"]) -> Float[Array, "M nn"]:
    """`[cos XW, sin XW] / sqrt(n)`: inner products approximate the kernel.

    Errors are 1e-6 in float32. Products XW that are not finite, or whose type has no fraction of a turn, are refused outside of
    jit, vmap and grad. Source: Rahimi & Recht, Random features for large-scale kernel machines, 2007.

    >>> fourier_features(jnp.zeros((1, 2)), jnp.ones((2, 4))).tolist()
    [[0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]]
    """
    return jnp.concatenate(cos_sin(X @ W), axis=1) / math.sqrt(W.shape[1])


@full_precision
def _largest(X: Float[Array, "M r"], W: Float[Array, "r n"]) -> Float[Array, ""]:
    return jnp.abs(X @ W).max(initial=0)


def _refuse_phases(X: Float[Array, "M r"], W: Float[Array, "r n"]) -> None:
    raise ValueError(f"phases up to {float(_largest(X, W))}: scale X to the order of 1")


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

"""Random Fourier features: a Gaussian kernel as an inner product."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.checks import check_key, checked
from jexplicit.runs.devices import full_precision

_terms = 7  # of the two Taylor series: errors below 6e-8 up to a quarter turn


def fourier_directions(
    key: Any, inputs: int, number: int, *, scale: float = 1.0, dtype=jnp.float32
) -> Float[Array, "inputs number"]:
    """Directions W for the kernel `exp(-scale² ||x - y||² / 2)`, from N(0, scale²).

    Raises:
        ValueError: a scale that is not above 0, or fewer than one direction.

    Example:
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

    Args:
        X: [M, r] numbers per example.
        W: [r, n] of `fourier_directions`.

    Returns:
        [M, 2n] features, with errors of 1e-6 in float32.

    Raises:
        ValueError: products XW that are not finite, or so large that their type has no fraction of a turn; under jit, vmap and
            grad nothing is checked.

    Example:
        >>> fourier_features(jnp.zeros((1, 2)), jnp.ones((2, 4))).tolist()
        [[0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]]

    Source: Rahimi & Recht, Random features for large-scale kernel machines, 2007.
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

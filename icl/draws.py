"""Random numbers, drawn as one vector."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array


def draw(sampler: Callable[..., Array], key: Array, shape: tuple[int, ...], **options: Any) -> Array:
    """`sampler(key, shape=shape, **options)`, number for number: XLA compiles a vector of them in half the time or less.

    Example:
        >>> bool((draw(jax.random.normal, jax.random.key(0), (3, 2)) == jax.random.normal(jax.random.key(0), (3, 2))).all())
        True
    """
    return sampler(key, shape=(math.prod(shape),), **options).reshape(shape)


def truncated_weights(key: Array, shape: tuple[int, ...], std: Any, dtype: Any) -> Array:
    """`std` times numbers from N(0, 1) truncated at -2 and 2."""
    return std * draw(jax.random.truncated_normal, key, shape, lower=-2, upper=2, dtype=dtype)


def truncated_std(variance: float, dtype: Any) -> Any:
    """The factor of `truncated_weights` that gives them a variance, as flax and haiku have it."""
    return np.sqrt(dtype.type(variance)) / dtype.type(0.87962566103423978)  # the standard deviation of those numbers

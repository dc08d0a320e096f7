"""Random numbers, drawn as one vector."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array


def draw(sampler: Callable[..., Array], key: Array, shape: tuple[int, ...], **options: Any) -> Array:
    """`sampler(key, shape=shape, **options)`, drawn as one vector for faster compilation."""
    return sampler(key, shape=(math.prod(shape),), **options).reshape(shape)


def truncated_weights(key: Array, shape: tuple[int, ...], std: Any, dtype: Any) -> Array:
    """`std` times numbers from N(0, 1) truncated at -2 and 2."""
    return std * draw(jax.random.truncated_normal, key, shape, lower=-2, upper=2, dtype=dtype)


def truncated_std(variance: float, dtype: Any) -> Any:
    """The factor of `truncated_weights` for a given variance, as in flax and haiku."""
    return np.sqrt(dtype.type(variance)) / dtype.type(0.87962566103423978)  # the standard deviation of those numbers

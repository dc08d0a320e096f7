"""Checks of arguments; values are not checked under jit, vmap and grad."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer


def check_key(key: Any) -> None:
    """Refuse a random key that is not an array."""
    if not hasattr(key, "dtype"):
        raise ValueError(f"random key {key!r}: pass jax.random.key({key if isinstance(key, int) else 0})")


def is_concrete(*trees: Any) -> bool:
    """Whether all arrays of some pytrees are concrete, so that checks can read their values."""
    return not any(isinstance(leaf, Tracer) for leaf in (jnp.zeros(()), *jax.tree.leaves(trees)))  # zeros: under jit

"""Checks of arguments; values are not checked under jit, vmap and grad."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer


def check_key(key: Any) -> None:
    """Refuse a random key that is not an array."""
    if not hasattr(key, "dtype"):
        raise ValueError(f"random key {key!r}: pass jax.random.key({key if isinstance(key, int) else 0})")


def check_labels(labels: Any, outputs: int) -> None:
    """Refuse labels that are not 0 .. outputs - 1."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < outputs:
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise ValueError(f"label {wrong} with {outputs} outputs: labels are 0 .. {outputs - 1}")


def is_concrete(*trees: Any) -> bool:
    """Whether all arrays of some pytrees are concrete, so that checks can read their values."""
    return not any(isinstance(leaf, Tracer) for leaf in (jnp.zeros(()), *jax.tree.leaves(trees)))  # zeros: under jit

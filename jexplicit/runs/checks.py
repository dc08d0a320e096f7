"""Checks of arguments. Under jit, vmap and grad values are not known yet, and are not checked."""

from typing import Any

import jax
from jax.core import Tracer


def check_key(key: Any) -> None:
    """Raise ValueError where a random key is no array.

    Example:
        >>> check_key(0)
        Traceback (most recent call last):
        ...
        ValueError: random key 0: pass jax.random.key(0)
    """
    if not hasattr(key, "dtype"):
        raise ValueError(f"random key {key!r}: pass jax.random.key({key if isinstance(key, int) else 0})")


def concrete(*trees: Any) -> bool:
    """Whether every array in some pytrees has values, so that a check may read them.

    Example:
        >>> concrete(1.0, jax.numpy.ones(2)), jax.jit(lambda x: x if concrete(x) else -x)(3).item()
        (True, -3)
    """
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))

"""Checks of arguments; values are not checked under jit, vmap and grad."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

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


def checked(
    before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None, *, static: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """A decorator: the function compiled by `jax.jit`, and checks of values outside of it.

    Args:
        before: called with the arguments; raises ValueError.
        after: called with the result and the arguments; raises ValueError.
        static: names of arguments that are no arrays.

    Example:
        >>> def check(x):
        ...     if not x > 0:
        ...         raise ValueError(f"x = {x}: use a number above 0")
        >>> root = checked(check)(jnp.sqrt)
        >>> float(root(4.0)), float(jax.jit(root)(4.0))
        (2.0, 2.0)
    """

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(f, static_argnames=static)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            known = is_concrete(args, kwargs)
            if before and known:
                before(*args, **kwargs)
            result = compiled(*args, **kwargs)
            if after and known:
                after(result, *args, **kwargs)
            return result

        cast(Any, call).lower = compiled.lower
        return call

    return decorate

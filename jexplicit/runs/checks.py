"""Checks of arguments; values are not checked under jit, vmap and grad."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array


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


def as_float(x: Any) -> Array:
    """An array of integers in JAX's own precision, so that no sum or product of them wraps; floats as they are."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.zeros(()).dtype)


def check_logits(logits: Any) -> None:
    """Refuse no examples, NaN, and rows of which no softmax is taken: infinite, or -inf alone."""
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"logits {logits.shape}: expected [M, N], of at least one example and one output")
    if not is_concrete(logits):
        return
    if share := float(jnp.isnan(logits).mean()):
        raise ValueError(f"{share:.1%} of the logits are NaN: check the features and the parameters for NaN and infinity")
    highest = jnp.max(logits, axis=1)
    if not bool(jnp.isfinite(highest).all()):
        m = int(jnp.isfinite(highest).argmin())
        raise ValueError(
            f"the largest logit of example {m} is {highest[m]}: check the features and the parameters for infinity"
        )


def check_labels_of(labels: Any, shape: tuple[int, ...]) -> None:
    """Refuse labels that are not M whole numbers 0 .. N - 1, for logits [M, N]."""
    M, N = shape
    if jnp.shape(labels) != (M,):
        raise ValueError(
            f"labels {jnp.shape(labels)} for {M} examples: give one number each (of one-hot rows, Y.argmax(axis=1))"
        )
    if is_concrete(labels):
        known = np.asarray(labels)
        wrong = ~((known >= 0) & (known < N) & (known % 1 == 0))
        if wrong.any():
            raise ValueError(f"label {known[wrong][0]} for {N} outputs: labels are the numbers 0 .. {N - 1}; renumber them")


def check_targets(Y: Any, shape: tuple[int, ...]) -> None:
    """Refuse targets of another shape, and rows that are no distribution."""
    if jnp.shape(Y) != shape:
        raise ValueError(
            f"targets {jnp.shape(Y)}: expected {shape}, one-hot or a distribution per row (jax.nn.one_hot of labels)"
        )
    if is_concrete(Y):
        lowest, off = float(jnp.min(Y)), float(jnp.max(jnp.abs(jnp.sum(as_float(Y), axis=1) - 1)))
        if not (lowest >= 0 and off < 1e-2):
            raise ValueError(
                f"targets down to {lowest}, and rows with sums up to {off:g} from 1: give one-hot rows, or divide each row "
                "of numbers >= 0 by its sum"
            )


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

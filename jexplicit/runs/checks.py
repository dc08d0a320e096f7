"""Checks of arguments; values are not checked under jit, vmap and grad."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jexplicit.runs.devices import check_threads


def check_key(key: Any) -> None:
    """Refuse a random key that is not an array."""
    if not hasattr(key, "dtype"):
        raise ValueError(f"random key {key!r}: pass jax.random.key({key if isinstance(key, int) else 0})")


def check_seed(seed: Any) -> None:
    """Refuse a seed that is no whole number 0 .. 2^63 - 1."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed {seed!r}: use a whole number from 0 to 2^63 - 1")


def key_of_seed(seed: int | np.integer | Array) -> Array:
    """The random key of a seed; a key stays itself.

    JAX takes 32 bits of a number: the bits above are folded into the key of the bits below. An array of one whole number, also
    a traced one, has 32 bits.
    """
    if isinstance(seed, Array):
        return jax.random.key(seed) if seed.ndim == 0 and jnp.issubdtype(seed.dtype, jnp.integer) else seed
    check_seed(seed)
    check_threads()
    high, low = divmod(int(seed), 2**32)
    return jax.random.fold_in(jax.random.key(low), high) if high else jax.random.key(low)


def is_concrete(*trees: Any) -> bool:
    """Whether all arrays of some pytrees are concrete."""
    return not any(isinstance(leaf, Tracer) for leaf in (_zero(), *jax.tree.leaves(trees)))


@jax.jit
def _zero() -> Array:
    """A number that is traced under jit, whatever the arguments are."""
    return jnp.zeros(())


def as_float(x: Any) -> Array:
    """An array in floats that sum without wrapping or stalling."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    return x.astype(jnp.zeros(()).dtype)


def check_logits(logits: Any) -> None:
    """Refuse no examples, NaN, and rows without a softmax."""
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"logits {logits.shape}: expected [M, N], of at least one example and one output")
    if is_concrete(logits) and not (finite := np.isfinite(highest := np.max(np.asarray(logits), axis=1))).all():
        wrong = f"the largest logit of example {(m := int(finite.argmin()))} is {highest[m]}"
        raise ValueError(f"{wrong}: check the features and the parameters for NaN and infinity")


def logits_are_fine(logits: Any) -> Array:
    """Whether values pass `check_logits`: pure."""
    return jnp.isfinite(jnp.max(logits, axis=1)).all()  # NaN is the largest


def check_labels_of(labels: Any, shape: tuple[int, ...]) -> None:
    """Refuse labels that are not M integers 0 .. N - 1."""
    M, N = shape
    if jnp.shape(labels) != (M,):
        remedy = "give one number each (of one-hot rows, Y.argmax(axis=1))"
        raise ValueError(f"labels {jnp.shape(labels)} for {M} examples: {remedy}")
    if is_concrete(labels):
        known = np.asarray(labels)
        wrong = ~((known >= 0) & (known < N) & (known % 1 == 0))
        if wrong.any():
            raise ValueError(f"label {known[wrong][0]} for {N} outputs: labels are the numbers 0 .. {N - 1}; renumber them")


def as_labels(Y: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Labels [M], also of one-hot rows, for logits [M, N]."""
    (check_labels_of if jnp.ndim(Y) == 1 else check_targets)(Y, shape)
    return np.asarray(Y).astype(int) if jnp.ndim(Y) == 1 else np.asarray(Y).argmax(axis=1)


def as_targets(Y: Any, outputs: int | None = None) -> Any:
    """Targets [M, N], one-hot of labels [M]; default N from the labels."""
    if jnp.ndim(Y) != 1:
        return Y
    if outputs is None and not is_concrete(Y):
        raise ValueError("labels without the number of outputs, under jit: give one-hot rows")
    outputs = outputs or 1 + int(jnp.max(Y))
    check_labels_of(Y, (len(Y), outputs))
    return jax.nn.one_hot(jnp.asarray(Y).astype(int), outputs)


def labels_are_fine(labels: Any, outputs: int) -> Array:
    """Whether values pass `check_labels_of`: pure."""
    labels = as_float(labels)  # no number of outputs overflows its type
    return ((labels >= 0) & (labels < outputs) & (labels % 1 == 0)).all()


def check_targets(Y: Any, shape: tuple[int, ...]) -> None:
    """Refuse targets of another shape, and rows that are no distribution."""
    if jnp.shape(Y) != shape:
        remedy = "one-hot or a distribution per row (jax.nn.one_hot of labels)"
        raise ValueError(f"targets {jnp.shape(Y)}: expected {shape}, {remedy}")
    if is_concrete(Y) and not bool(targets_are_fine(Y)):
        off = np.abs(np.asarray(Y).sum(axis=1, dtype=np.float64) - 1).max()
        found = f"targets down to {float(jnp.min(Y))}, and rows with sums up to {off:g} from 1"
        raise ValueError(f"{found}: give one-hot rows, or divide each row of numbers >= 0 by its sum")


@jax.jit
def targets_are_fine(Y: Any) -> Array:
    """Whether values pass `check_targets`: pure."""
    return (jnp.min(Y) >= 0) & (jnp.max(jnp.abs(jnp.sum(as_float(Y), axis=1) - 1)) < 1e-2)


def checked(
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
    *,
    fine: Callable[..., Any] | None = None,
    static: Sequence[str] = (),
) -> Callable[[Any], Any]:
    """A decorator: the function compiled by `jax.jit`, and checks of values outside of it.

    before, after: called with the arguments, or the result and the arguments; raise ValueError.
    fine: whether arguments are allowed, a pure function: it is compiled into the same program, which shares its values with the
        function, and `before` is called for others alone, to say what is wrong with them.
    static: names of arguments that are no arrays.
    """

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(f, static_argnames=static)

        @functools.partial(jax.jit, static_argnames=static)
        @functools.wraps(f)
        def judged(*args: Any, **kwargs: Any) -> Any:
            return f(*args, **kwargs), cast(Any, fine)(*args, **kwargs)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_threads()
            known = is_concrete(args, kwargs)
            if not known or not fine:
                if before and known:
                    before(*args, **kwargs)
                result = compiled(*args, **kwargs)
            else:
                result, allowed = judged(*args, **kwargs)
                if before and not allowed:
                    before(*args, **kwargs)
            if after and known:
                after(result, *args, **kwargs)
            return result

        cast(Any, call).lower = compiled.lower
        return call

    return decorate

"""Checks of what a softmax layer is fitted to and measured on; under jit, vmap and grad only shapes are checked."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.runs.checks import is_concrete


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


def check_labels(labels: Any, shape: tuple[int, ...]) -> None:
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

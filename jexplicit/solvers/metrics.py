"""Loss and accuracy of logits."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from jexplicit.runs.checks import is_concrete


def mean_loss(logits: Float[Array, "M N"], Y: Float[Array, "M N"]) -> Any:
    """Mean negative log-likelihood of targets Y, one-hot or a distribution per row, in nats: a float, an array under jit.

    Raises:
        ValueError: a logit that is NaN; under jit, vmap and grad nothing is checked.

    Example:
        >>> round(mean_loss(jnp.zeros((1, 2)), jnp.array([[0.0, 1.0]])), 4)
        0.6931
    """
    return _measure(-jnp.mean(jnp.sum(Y * jax.nn.log_softmax(logits), axis=1)), logits)


def accuracy(logits: Float[Array, "M N"], labels: Array) -> Any:
    """The fraction of rows whose largest logit is that of their label: a float, an array under jit.

    Raises:
        ValueError: a logit that is NaN; under jit, vmap and grad nothing is checked.

    Example:
        >>> accuracy(jnp.array([[0.0, 1.0], [0.0, 1.0]]), jnp.array([0, 1]))
        0.5
    """
    guesses = jnp.argmax(logits, axis=1)
    return _measure(jnp.mean((guesses == jnp.asarray(labels, guesses.dtype)).astype(logits.dtype)), logits)


def _measure(value: Array, logits: Array) -> Any:
    """A measure of logits as a number; an array under jit, vmap and grad."""
    if not is_concrete(value, logits):
        return value
    check_not_nan(logits)
    return float(value)


def check_not_nan(logits: Array) -> None:
    """Raise ValueError where logits are NaN, whose largest is none."""
    if share := float(jnp.isnan(logits).mean()):
        raise ValueError(f"{share:.1%} of the logits are NaN: check the features and the parameters for NaN and infinity")


def recall_by_class(guesses: Integer[Array, " M"], labels: Integer[Array, " M"], classes: int) -> Float[Array, " classes"]:
    """The share of correctly classified examples of each class; NaN for a class without examples."""
    of_class = jax.nn.one_hot(labels, classes)
    right = (guesses == labels.astype(guesses.dtype)).astype(of_class.dtype)
    return right @ of_class / of_class.sum(axis=0)

"""Loss and accuracy of logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer


def mean_loss(logits: Float[Array, "M N"], Y: Float[Array, "M N"]) -> float:
    """Mean negative log-likelihood of targets Y, one-hot or a distribution per row, in nats.

    Example:
        >>> round(mean_loss(jnp.zeros((1, 2)), jnp.array([[0.0, 1.0]])), 4)
        0.6931
    """
    return float(-jnp.mean(jnp.sum(Y * jax.nn.log_softmax(logits), axis=1)))


def accuracy(logits: Float[Array, "M N"], labels: Array) -> float:
    """The fraction of rows whose largest logit is that of their label.

    Example:
        >>> accuracy(jnp.array([[0.0, 1.0], [0.0, 1.0]]), jnp.array([0, 1]))
        0.5
    """
    guesses = jnp.argmax(logits, axis=1)
    return float(jnp.mean((guesses == jnp.asarray(labels, guesses.dtype)).astype(logits.dtype)))


def recall_by_class(guesses: Integer[Array, " M"], labels: Integer[Array, " M"], classes: int) -> Float[Array, " classes"]:
    """The share of correctly classified examples of each class; NaN for a class without examples."""
    of_class = jax.nn.one_hot(labels, classes)
    right = (guesses == labels.astype(guesses.dtype)).astype(of_class.dtype)
    return right @ of_class / of_class.sum(axis=0)

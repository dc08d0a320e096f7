"""Loss and accuracy of logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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

"""Autoencoders: linear ones in closed form, anomaly detection, and over-parameterised ones as associative memories.

With the examples as rows of X, a linear autoencoder is `f(x) = A B x` with B [k, D] and A [D, k]. The best of width k projects
on the first k right singular vectors of X (Eckart & Young 1936; Baldi & Hornik 1989). Beyond the rank of X, the identity is but
one of many solutions; `A = (XᵀX)†, B = XᵀX` projects on the span of the examples: it reproduces every example and maps vectors
orthogonal to all of them to 0.

Nonlinear autoencoders wider than their input do not learn the identity either. Training makes them contract around the
examples, so that iterating the map leads back to one: an associative memory (Radhakrishnan, Belkin & Uhler 2020).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jexplicit.runs.devices import full_precision

Map = Callable[[Float[Array, " D"]], Float[Array, " D"]]


class LinearAutoencoder(NamedTuple):
    """`f(x) = A B x`: B [k, D] encodes, A [D, k] decodes."""

    A: Float[Array, "D k"]
    B: Float[Array, "k D"]

    @full_precision
    def __call__(self, X: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Reconstructions of the rows of X."""
        return X @ self.B.T @ self.A.T


def linear_autoencoder(X: Float[Array, "M D"], k: int) -> LinearAutoencoder:
    """The linear autoencoder of width k with the lowest squared error: `B = V_kᵀ, A = V_k` with X = U S Vᵀ.

    With centred X these are the principal components.

    Args:
        X: [M, D] examples.
        k: width, 1 .. min(M, D).

    Raises:
        ValueError: no examples, or a width out of range.

    Example:
        >>> X = jnp.array([[1.0, 2.0], [2.0, 4.0]])  # on a line
        >>> jnp.allclose(linear_autoencoder(X, 1)(X), X, atol=1e-5).item()
        True
    """
    if not 1 <= k <= min(X.shape):
        raise ValueError(f"width {k} for {X.shape[0]} examples of {X.shape[1]} features: use 1 .. {min(X.shape)}")
    V = jnp.linalg.svd(X, full_matrices=False)[2][:k].T
    return LinearAutoencoder(V, V.T)


@full_precision
def pseudo_inverse_autoencoder(X: Float[Array, "M D"]) -> LinearAutoencoder:
    """The projection on the span of the examples, `A = (XᵀX)†, B = XᵀX`, of width D.

    Raises:
        ValueError: no examples.

    Example:
        >>> f = pseudo_inverse_autoencoder(jnp.array([[1.0, 1.0, 0.0]]))
        >>> f(jnp.array([[2.0, 2.0, 0.0], [0.0, 0.0, 5.0]])).round(4).tolist()
        [[2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]

    Source: Radhakrishnan 2024, Example 3.
    """
    if 0 in X.shape:
        raise ValueError(f"examples of shape {X.shape}: give at least one, with at least one feature")
    gram = X.T @ X
    return LinearAutoencoder(jnp.linalg.pinv(gram, hermitian=True, rtol=X.shape[1] * jnp.finfo(X.dtype).eps), gram)


def reconstruction_errors(outputs: Float[Array, "M D"], X: Float[Array, "M D"]) -> Float[Array, " M"]:
    """`½ ||x - f(x)||²` per example: large for examples unlike the training data.

    Example:
        >>> reconstruction_errors(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 0.0]])).tolist()
        [0.5]
    """
    return jnp.sum((X - outputs) ** 2, axis=1) / 2


def anomaly_auc(normal: Float[Array, " M"], anomalous: Float[Array, " T"]) -> float:
    """The probability that an anomaly has a higher reconstruction error than a normal example: the area under the ROC curve.

    Raises:
        ValueError: no normal or no anomalous examples.

    Example:
        >>> anomaly_auc(jnp.array([0.1, 0.2]), jnp.array([0.15, 0.3]))
        0.75
    """
    from sklearn.metrics import roc_auc_score

    if not len(normal) or not len(anomalous):
        raise ValueError(f"{len(normal)} normal and {len(anomalous)} anomalous examples: at least one of each is needed")
    errors = np.concatenate([np.asarray(normal, np.float64), np.asarray(anomalous, np.float64)])
    return float(roc_auc_score(np.arange(len(errors)) >= len(normal), errors))


class Contraction(NamedTuple):
    """The Jacobian of a map at M points: its largest singular value and its spectral radius.

    A fixed point is an attractor where the spectral radius is below 1. Where the largest singular value is below 1, every
    single step shrinks distances.
    """

    singular: Float[np.ndarray, " M"]
    spectral_radius: Float[np.ndarray, " M"]


def contraction(f: Map, X: Float[Array, "M D"]) -> Contraction:
    """How much a map R^D -> R^D expands or contracts around each point.

    Args:
        f: the map of one point.
        X: [M, D] points.

    Example:
        >>> contraction(lambda x: x @ jnp.array([[0.5, 0.0], [2.0, 0.25]]), jnp.zeros((1, 2))).spectral_radius.tolist()
        [0.5]
    """
    J = np.asarray(jax.jit(lambda X: jax.lax.map(jax.jacrev(f), X))(X), np.float64)
    return Contraction(np.linalg.norm(J, ord=2, axis=(1, 2)), np.abs(np.linalg.eigvals(J)).max(axis=1))


def iterate_map(f: Map, X: Float[Array, "M D"], steps: int) -> Float[Array, "M D"]:
    """`f(f(... f(x)))`, `steps` times, from every point.

    Raises:
        ValueError: a negative number of steps.

    Example:
        >>> iterate_map(lambda x: x / 2, jnp.array([[8.0]]), 3).tolist()
        [[1.0]]
    """
    if steps < 0:
        raise ValueError(f"{steps} iterations of a map: use 0 or more")
    return jax.jit(lambda X: jax.lax.fori_loop(0, steps, lambda _, X: jax.vmap(f)(X), X))(X)


def recall(ends: Float[Array, "T D"], memories: Float[Array, "M D"], *, tolerance: float = 1e-2) -> Bool[np.ndarray, "T M"]:
    """Which memory each iterated point ended in: nearer than `tolerance` times the memory's norm.

    Example:
        >>> recall(jnp.array([[1.0, 0.001], [0.0, 0.5]]), jnp.eye(2)).tolist()
        [[True, False], [False, False]]
    """
    distance = np.linalg.norm(np.asarray(ends)[:, None] - np.asarray(memories)[None], axis=2)
    return distance <= tolerance * np.linalg.norm(np.asarray(memories), axis=1)[None]


def add_noise(key: Array, X: Float[Array, "M D"], noise: float, copies: int) -> Float[Array, "copies_M D"]:
    """`copies` noisy copies of every point, in order: Gaussian noise of `noise` standard deviations of the data."""
    points = jnp.repeat(X, copies, axis=0)
    return points + noise * X.std() * jax.random.normal(key, points.shape, X.dtype)

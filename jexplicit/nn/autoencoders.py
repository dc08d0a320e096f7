"""Autoencoders: linear ones in closed form, anomalies by reconstruction error, and what over-parameterised ones remember.

With the examples as rows of X, a linear autoencoder is `f(x) = A B x` with B [k, D] and A [D, k]. The best of width k is the
projection on the first k right singular vectors of X (Eckart & Young 1936; Baldi & Hornik 1989). Beyond the rank of X the
identity is one solution of many; `A = (XᵀX)†, B = XᵀX` is the projection on the span of the examples instead, which gives back
every example and takes what is orthogonal to them to 0.

Nonlinear autoencoders that are wider than their input do not learn the identity either: training makes them contract around the
examples, so that iterating the map leads back to them: an associative memory (Radhakrishnan, Belkin & Uhler 2020).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Map = Callable[[Float[Array, " D"]], Float[Array, " D"]]


class LinearAutoencoder(NamedTuple):
    """`f(x) = A B x`: B [k, D] encodes, A [D, k] decodes."""

    A: Float[Array, "D k"]
    B: Float[Array, "k D"]

    def __call__(self, X: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Reconstructions of the rows of X."""
        return X @ self.B.T @ self.A.T


def linear_autoencoder(X: Float[Array, "M D"], k: int) -> LinearAutoencoder:
    """The linear autoencoder of width k with the lowest squared error, `B = V_kᵀ, A = V_k` with X = U S Vᵀ.

    Centre X first for principal components.

    Args:
        X: [M, D] examples.
        k: width, 1 .. min(M, D).

    Raises:
        ValueError: a width outside of that, or no examples.

    Example:
        >>> X = jnp.array([[1.0, 2.0], [2.0, 4.0]])  # on a line
        >>> jnp.allclose(linear_autoencoder(X, 1)(X), X, atol=1e-5).item()
        True
    """
    if not 1 <= k <= min(X.shape):
        raise ValueError(f"width {k} for {X.shape[0]} examples of {X.shape[1]} features: use 1 .. {min(X.shape)}")
    V = jnp.linalg.svd(X, full_matrices=False)[2][:k].T
    return LinearAutoencoder(V, V.T)


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
    """`½ ||x - f(x)||²` of every example: high for what is unlike the training examples.

    Example:
        >>> reconstruction_errors(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 0.0]])).tolist()
        [0.5]
    """
    return jnp.sum((X - outputs) ** 2, axis=1) / 2


def anomaly_auc(normal: Float[Array, " M"], anomalous: Float[Array, " T"]) -> float:
    """The probability that an anomaly has the higher reconstruction error, the area under the ROC curve.

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
    """The Jacobian of a map at some points: its largest singular value, and the largest modulus of its eigenvalues.

    A map is a contraction near a fixed point, and so an attractor, where the second is below 1; the first below 1 makes every
    single step shrink distances.
    """

    singular: Float[np.ndarray, " M"]
    spectral_radius: Float[np.ndarray, " M"]


def contraction(f: Map, X: Float[Array, "M D"]) -> Contraction:
    """How a map R^D -> R^D stretches or contracts around each point.

    Args:
        f: the map, for one point.
        X: [M, D] points.

    Example:
        >>> contraction(lambda x: x @ jnp.array([[0.5, 0.0], [2.0, 0.25]]), jnp.zeros((1, 2))).spectral_radius.tolist()
        [0.5]
    """
    J = np.asarray(jax.jit(lambda X: jax.lax.map(jax.jacrev(f), X))(X), np.float64)
    return Contraction(np.linalg.norm(J, ord=2, axis=(1, 2)), np.abs(np.linalg.eigvals(J)).max(axis=1))


def iterate_map(f: Map, X: Float[Array, "M D"], steps: int) -> Float[Array, "M D"]:
    """`f(f(... f(x)))` from every point, so many times.

    Example:
        >>> iterate_map(lambda x: x / 2, jnp.array([[8.0]]), 3).tolist()
        [[1.0]]
    """
    if steps < 0:
        raise ValueError(f"{steps} iterations of a map: use 0 or more")
    every = jax.vmap(f)
    return jax.jit(lambda X: jax.lax.fori_loop(0, steps, lambda _, X: every(X), X))(X)


def recalled(ends: Float[Array, "T D"], memories: Float[Array, "M D"], *, tolerance: float = 1e-2) -> Bool[np.ndarray, "T M"]:
    """Which memory each iterated point has come to: within `tolerance` of its norm.

    Example:
        >>> recalled(jnp.array([[1.0, 0.001], [0.0, 0.5]]), jnp.eye(2)).tolist()
        [[True, False], [False, False]]
    """
    distance = np.linalg.norm(np.asarray(ends)[:, None] - np.asarray(memories)[None], axis=2)
    return distance <= tolerance * np.linalg.norm(np.asarray(memories), axis=1)[None]


def corrupted(key: Array, X: Float[Array, "M D"], noise: float, copies: int) -> Float[Array, "copies_M D"]:
    """Copies of every point with Gaussian noise of this share of the data's standard deviation, in the order of the points."""
    points: Any = jnp.repeat(X, copies, axis=0)
    return points + noise * X.std() * jax.random.normal(key, points.shape, X.dtype)

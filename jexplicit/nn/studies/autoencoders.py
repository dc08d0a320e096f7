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


@full_precision
def descend_linear(f: LinearAutoencoder, X: Float[Array, "M D"], steps: int) -> LinearAutoencoder:
    """Where gradient descent on the mean of `½ ||x - A B x||²` takes a linear autoencoder.

    Its rate is `1/(4 s² (1 + ||A||² + ||B||²))` at the start, with s² the largest eigenvalue of XᵀX/M: small enough for the
    loss to fall. Where k >= D, every `A B` that is the identity on the span of the examples has a loss of 0, and which of them
    is found depends on the start. Directions orthogonal to all examples get no gradient in B, so what B does to them stays.

    Args:
        f: where to start.
        X: [M, D] examples.
        steps: of descent.

    Raises:
        ValueError: a negative number of steps, or examples that are all 0.

    Example:
        >>> X, start = jnp.array([[1.0, 0.0]]), LinearAutoencoder(0.1 * jnp.eye(2), 0.1 * jnp.eye(2))
        >>> f = descend_linear(start, X, 200)
        >>> [round(x, 4) for x in jnp.diag(f.A @ f.B).tolist()]  # the other direction keeps 0.1 * 0.1
        [1.0, 0.01]

    Source: Radhakrishnan 2024, Sec. 4.
    """
    s = float(jnp.linalg.norm(X, ord=2))
    if steps < 0 or not s:
        raise ValueError(f"{steps} steps of descent on examples of norm {s:g}: use 0 or more, and examples that are not 0")
    rate = len(X) / (4 * s**2 * (1 + float(jnp.linalg.norm(f.A, ord=2)) ** 2 + float(jnp.linalg.norm(f.B, ord=2)) ** 2))

    def loss(f: LinearAutoencoder) -> Array:
        return reconstruction_errors(f(X), X).mean()

    def step(f: LinearAutoencoder, _: None) -> tuple[LinearAutoencoder, None]:
        return jax.tree.map(lambda W, g: W - rate * g, f, jax.grad(loss)(f)), None

    return jax.jit(lambda f: jax.lax.scan(step, f, length=steps)[0])(f)


@full_precision
def off_span_gain(f: LinearAutoencoder, X: Float[Array, "M D"]) -> float:
    """`||A B (I - P)||_F / ||I - P||_F`: what is left of vectors orthogonal to the examples; P projects on their span.

    0 for the projection on the span, 1 for the identity.

    Raises:
        ValueError: examples that span the space.

    Example:
        >>> off_span_gain(LinearAutoencoder(jnp.eye(2), jnp.eye(2)), jnp.array([[1.0, 0.0]]))
        1.0
    """
    basis = jnp.linalg.svd(X, full_matrices=True)[2][int(jnp.linalg.matrix_rank(X)) :]
    if not len(basis):
        raise ValueError(f"{len(X)} examples span all {X.shape[1]} dimensions: nothing is orthogonal to them; use fewer")
    return float(jnp.sqrt((f(basis) ** 2).sum() / len(basis)))


def cluster_agreement(codes: Float[np.ndarray, "M k"], labels: np.ndarray, *, clusters: int, seed: int) -> float:
    """The adjusted Rand index between k-means clusters of codes and the labels: 1 for the same groups, 0 by chance.

    Raises:
        ValueError: fewer examples than clusters.

    Example:
        >>> cluster_agreement(np.array([[0.0], [0.1], [5.0], [5.1]]), np.array([3, 3, 7, 7]), clusters=2, seed=0)
        1.0

    Source: Hubert & Arabie 1985.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    if len(codes) < clusters:
        raise ValueError(f"{clusters} clusters of {len(codes)} examples: use at most as many")
    kmeans = KMeans(clusters, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    found = kmeans.fit_predict(np.asarray(codes, np.float64))
    return float(adjusted_rand_score(labels, found))


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

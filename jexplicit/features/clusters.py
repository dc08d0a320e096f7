"""Spherical k-means: directions that vectors cluster around, found by counting and adding."""

import numpy as np
from jaxtyping import Float


def spherical_kmeans(
    X: Float[np.ndarray, "M P"], number: int, *, iterations: int = 10, seed: int = 0
) -> Float[np.ndarray, "number P"]:
    """Unit vectors C: each is the direction of the sum of the vectors x that have their largest `⟨x, c⟩` with it.

    Neither step lowers the sum of these largest inner products. A direction that no vector belongs to stays as it is.

    Args:
        X: [M, P] vectors; longer ones count more.
        number: of directions.
        iterations: rounds of assigning and adding.
        seed: of the vectors to start from.

    Raises:
        ValueError: fewer vectors than directions, fewer than 1 direction, fewer than 0 iterations, or a vector of zeros.

    Example:
        >>> X = np.array([[2.0, 0.1], [1.0, -0.1], [0.0, 3.0]])
        >>> spherical_kmeans(X, 2).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    Source: Coates & Ng, Learning feature representations with k-means, 2012.
    """
    if not 1 <= number <= len(X) or iterations < 0:
        raise ValueError(
            f"{number} directions of {len(X)} vectors in {iterations} iterations: use 1 to {len(X)}, and at least 0"
        )
    if not (lengths := np.linalg.norm(X, axis=1)).all():
        raise ValueError(f"vector {int(lengths.argmin())} is zero and has no direction: leave it out")
    chosen = np.random.default_rng(seed).choice(len(X), number, replace=False)
    C = X[chosen] / lengths[chosen, None]
    for _ in range(iterations):
        nearest = (X @ C.T).argmax(axis=1)
        sums = np.eye(number, dtype=X.dtype)[nearest].T @ X
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        C = np.where(norms > 0, sums / np.where(norms > 0, norms, 1), C)
    return C

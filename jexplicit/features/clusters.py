"""Spherical k-means: cluster directions of vectors."""

import numpy as np
from jaxtyping import Float


def spherical_kmeans(
    X: Float[np.ndarray, "M P"], number: int, *, iterations: int = 10, seed: int = 0
) -> Float[np.ndarray, "number P"]:
    """Unit vectors C [number, P]: directions of the sums of their nearest rows.

    Neither step lowers the sum of these inner products; longer vectors count more. Directions without vectors are unchanged.
    Source: Coates & Ng, Learning feature representations with k-means, 2012.
    """
    if not 1 <= number <= len(X) or iterations < 0:
        raise ValueError(
            f"{number} directions of {len(X)} vectors in {iterations} iterations: use 1 to {len(X)}, and at least 0"
        )
    if not (lengths := np.linalg.norm(X, axis=1)).all():
        raise ValueError(f"vector {int(lengths.argmin())} is zero and has no direction: remove it")
    chosen = np.random.default_rng(seed).choice(len(X), number, replace=False)
    C = X[chosen] / lengths[chosen, None]
    for _ in range(iterations):
        nearest = (X @ C.T).argmax(axis=1)
        sums = np.eye(number, dtype=X.dtype)[nearest].T @ X
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        C = np.where(norms > 0, sums / np.where(norms > 0, norms, 1), C)
    return C

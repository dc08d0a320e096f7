"""Examples that several test files learn from, and the comparison of a sample's mean with an expectation."""

from typing import Any

import jax
import numpy as np

from icl.blur.learning import Examples


def two_classes(examples: int = 40, seed: int = 0, dtype: Any = np.float32) -> Examples:
    """Two classes in three dimensions that a line almost parts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(examples, 3))
    labels = (X[:, 0] + 0.3 * rng.normal(size=examples) > 0).astype(int)
    return Examples(X.astype(dtype), np.eye(2, dtype=dtype)[labels])


def within_error(losses: np.ndarray | jax.Array, expected: Any, errors: float = 4) -> bool:
    """Whether a mean of independent losses is within so many standard errors; 4 fail by chance once in 16,000."""
    losses = np.asarray(losses)
    return bool(abs(losses.mean() - float(expected)) <= errors * losses.std() / np.sqrt(len(losses)))

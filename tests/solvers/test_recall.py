"""Recall by class against a loop."""

import jax.numpy as jnp
import numpy as np

from jexplicit.solvers.metrics import recall_by_class


def test_recall_is_counted_class_by_class():
    rng = np.random.default_rng(0)
    guesses, labels = rng.integers(0, 4, 50), rng.integers(0, 3, 50)  # nothing is of class 3
    found = np.asarray(recall_by_class(jnp.asarray(guesses), jnp.asarray(labels, jnp.uint8), 4))
    for c in range(3):
        of_class = [g for g, y in zip(guesses, labels, strict=True) if y == c]
        assert found[c] == sum(g == c for g in of_class) / len(of_class)
    assert np.isnan(found[3])

"""Accuracy, mean loss and recall by class against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jexplicit.solvers.metrics import accuracy, closeness, mean_loss, recall_by_class


def test_accuracy_and_mean_loss_are_the_loops():
    rng = np.random.default_rng(0)
    H, U, labels = rng.normal(size=(60, 5)), rng.normal(size=(5, 3)), rng.integers(0, 3, 60)
    Z, Y = jax.device_put(H @ U), jax.device_put(reference.one_hot(labels, 3))
    assert accuracy(Z, jax.device_put(labels)) == pytest.approx(reference.accuracy(H @ U, labels), rel=1e-15)
    assert mean_loss(Z, Y) == mean_loss(Z, labels) and accuracy(Z, Y) == accuracy(Z, labels)
    assert mean_loss(Z, Y) == pytest.approx(reference.negative_log_likelihood(H, U, labels) / 60, rel=1e-12)


def test_narrow_floats_lose_no_example():
    logits = jnp.zeros((3001, 2), jnp.bfloat16).at[:, 1].set(1)
    labels = np.ones(3001, int)
    labels[0] = 0
    assert accuracy(logits, labels) == pytest.approx(3000 / 3001, abs=1e-7)  # float32
    Y = jax.nn.one_hot(labels, 2, dtype=jnp.float32)
    assert mean_loss(logits, Y) == pytest.approx(np.log(1 + np.exp(-1)) + 1 / 3001, abs=1e-6)


def test_closeness_is_the_loop_and_ignores_what_all_outputs_share():
    rng = np.random.default_rng(0)
    U, V, H = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.normal(size=(40, 5))
    centred = [np.array([row - sum(row) / 3 for row in W]).ravel() for W in (U, V)]
    dots = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in centred] for x in centred]
    same = sum((h @ U).argmax() == (h @ V).argmax() for h in H) / 40
    distance = np.sqrt((dots[0][0] - 2 * dots[0][1] + dots[1][1]) / dots[1][1])
    found = closeness(*map(jax.device_put, (U + rng.normal(size=(5, 1)), V, H)))
    assert found == pytest.approx((distance, dots[0][1] / np.sqrt(dots[0][0] * dots[1][1]), same), rel=1e-12)


def test_recall_is_counted_class_by_class():
    rng = np.random.default_rng(0)
    guesses, labels = rng.integers(0, 4, 50), rng.integers(0, 3, 50)  # nothing is of class 3
    found = np.asarray(recall_by_class(jax.device_put(guesses), jax.device_put(np.asarray(labels, np.uint8)), 4))
    for c in range(3):
        of_class = [g for g, y in zip(guesses, labels, strict=True) if y == c]
        assert found[c] == sum(g == c for g in of_class) / len(of_class)
    assert np.isnan(found[3])

"""Loss, accuracy and calibration of logits."""

import jax
import numpy as np
import pytest
import reference

from jexplicit.solvers.metrics import (
    accuracy,
    calibration_error,
    closeness,
    fit_temperature,
    mean_loss,
    reliability,
)


def test_accuracy_and_mean_loss_are_the_loops():
    rng = np.random.default_rng(0)
    H, U, labels = rng.normal(size=(60, 5)), rng.normal(size=(5, 3)), rng.integers(0, 3, 60)
    Z, Y = jax.device_put(H @ U), jax.device_put(reference.one_hot(labels, 3))
    assert accuracy(Z, jax.device_put(labels)) == pytest.approx(reference.accuracy(H @ U, labels), rel=1e-15)
    assert mean_loss(Z, Y) == mean_loss(Z, labels) and accuracy(Z, Y) == accuracy(Z, labels)
    assert mean_loss(Z, Y) == pytest.approx(reference.negative_log_likelihood(H, U, labels) / 60, rel=1e-12)


def test_closeness_is_the_loop_and_ignores_what_all_outputs_share():
    rng = np.random.default_rng(0)
    U, V, H = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.normal(size=(40, 5))
    centred = [np.array([row - sum(row) / 3 for row in W]).ravel() for W in (U, V)]
    dots = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in centred] for x in centred]
    same = sum((h @ U).argmax() == (h @ V).argmax() for h in H) / 40
    distance = np.sqrt((dots[0][0] - 2 * dots[0][1] + dots[1][1]) / dots[1][1])
    found = closeness(*map(jax.device_put, (U + rng.normal(size=(5, 1)), V, H)))
    assert found == pytest.approx((distance, dots[0][1] / np.sqrt(dots[0][0] * dots[1][1]), same), rel=1e-12)


def drawn(M=20_000, N=4, temperature=1.0, seed=0):
    """Logits, and labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(M, N))
    return logits, (logits / temperature + rng.gumbel(size=(M, N))).argmax(axis=1)


def slow_reliability(logits, labels, bins):
    """Mean confidence, share of right guesses and share of the examples of every bin, one example at a time."""
    P = np.exp(logits - logits.max(1, keepdims=True))
    P /= P.sum(1, keepdims=True)
    found = []
    for n in range(bins):
        inside = [m for m in range(len(P)) if min(int(P[m].max() * bins), bins - 1) == n]
        right = [P[m].argmax() == labels[m] for m in inside]
        found.append((np.mean([P[m].max() for m in inside]), np.mean(right), len(inside) / len(P)) if inside else (0, 0, 0))
    return np.array(found, float).T


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_reliability_and_the_error_are_the_loop_over_bins(bins):
    logits, labels = drawn(M=300)
    expected = slow_reliability(logits, labels, bins)
    given = jax.device_put(logits), jax.device_put(labels)
    np.testing.assert_allclose(reliability(*given, bins=bins), expected, rtol=0, atol=1e-12)
    confidence, right, share = expected
    assert calibration_error(*given, bins=bins) == pytest.approx(np.sum(share * np.abs(right - confidence)), abs=1e-12)
    assert share.sum() == pytest.approx(1) and (bins < 15 or share.min() == 0)  # four classes: no confidence below a quarter


def test_the_temperature_of_the_draw_is_found():
    for temperature in (0.25, 1.0, 3.0):
        logits, labels = drawn(temperature=temperature)
        found = fit_temperature(jax.device_put(logits), jax.device_put(labels))
        assert found == pytest.approx(temperature, rel=0.05)  # 20,000 labels: 1 to 2 per cent
        assert calibration_error(jax.device_put(logits / found), jax.device_put(labels)) < 0.02
        assert fit_temperature(jax.device_put(7 * logits), jax.device_put(labels)) == pytest.approx(7 * found, rel=1e-4)


def test_few_guesses_that_are_all_right_are_not_taken_for_certain():
    found = fit_temperature(jax.device_put(2 * np.eye(3)), jax.device_put(np.arange(3)))
    # of 4 labels one is any class: (3 + 1/3)/4 = 5/6 of them right, and 5/6 = e^(2/T) / (e^(2/T) + 2)
    assert found == pytest.approx(2 / np.log(10), rel=1e-4)

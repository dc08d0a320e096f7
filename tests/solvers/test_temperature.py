"""Calibration: known gaps between confidence and accuracy, and temperatures that are known."""

import jax
import numpy as np
import pytest

from jexplicit.solvers.metrics import calibration_error, fit_temperature, reliability


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


def test_sure_and_wrong_is_an_error_of_one():
    logits = jax.device_put(np.array([[1e4, 0.0]] * 5))
    for label in (1, 0):
        assert calibration_error(logits, jax.device_put(np.full(5, label))) == label


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

"""The range test of learning rates, on quadratics whose stable rates are known: below 2/λ_max."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.studies.learning_rate import pick_rate, range_test, smooth, sweep_schedule

CURVATURES = np.array([4.0, 0.3, 0.01])  # stable below 0.5


def descent(rate, noise=0.0):
    """Gradient descent on ½ Σ λ w² with noisy gradients; the batch is the noise."""
    schedule = rate if callable(rate) else lambda _: rate

    def step(state, batch):
        w, s = state
        return (w - schedule(s) * (CURVATURES * w + noise * batch), s + 1), jnp.sum(CURVATURES * w**2) / 2

    return step


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_range_test_picks_a_stable_rate(noise):
    batches = jax.device_put(np.random.default_rng(0).normal(size=(600, 3)))
    step = descent(sweep_schedule(1e-4, 10.0, 600), noise)
    test = range_test(step, (jax.device_put(np.ones(3)), 0), batches, lowest=1e-4, highest=10.0)
    assert 0.005 < test.rate < 0.5  # noise makes the lowest loss come earlier
    assert len(test.rates) == 600 and test.rates[0] == 1e-4 and test.losses[-1] > 1e3
    schedule = sweep_schedule(1e-4, 10.0, 600)
    np.testing.assert_allclose(test.rates, jax.jit(jax.vmap(schedule))(np.arange(600)), rtol=1e-9)


def test_smoothing_keeps_a_straight_line_and_ends_where_losses_do():
    line = np.arange(100.0)
    np.testing.assert_allclose(smooth(line)[5:-5], line[5:-5])
    line[80] = np.nan
    assert np.isfinite(smooth(line)[:80]).all() and np.isinf(smooth(line)[80:]).all()


def test_a_pick_is_never_below_the_sweep():
    assert pick_rate(np.array([0.1, 0.2]), np.array([1.0, 2.0])) == 0.1

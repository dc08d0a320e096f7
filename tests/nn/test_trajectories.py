"""Paths of optimisers against hand-written recurrences. float32: 1e-4 of the distance after 20 steps."""

import jax
import numpy as np
import pytest

from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.studies.trajectories import SURFACES, trajectory

GRADIENTS = {
    "ravine": lambda w: np.array([w[0], 20 * w[1]]),
    "saddle": lambda w: np.array([w[0], -w[1] + w[1] ** 3]),
}


@pytest.mark.parametrize("name", sorted(SURFACES))
def test_a_path_is_its_recurrence(name):
    # compiled whole, which takes less time than compiling every operation
    optimizers = {momentum: make_optimizer("momentum", 0.05, momentum=momentum) for momentum in (0.0, 0.9)}
    paths = jax.jit(lambda: {alpha: trajectory(optimizer, SURFACES[name], 20) for alpha, optimizer in optimizers.items()})
    for momentum, path in paths().items():
        w, m = np.array(SURFACES[name].start), np.zeros(2)
        expected = [w]
        for _ in range(20):
            m = momentum * m + GRADIENTS[name](w)
            w = w - 0.05 * m
            expected.append(w)
        np.testing.assert_allclose(path, expected, atol=1e-4)


@pytest.mark.parametrize("name", sorted(SURFACES))
def test_nothing_is_below_the_lowest_value(name):
    w = np.stack(np.meshgrid(np.linspace(-5, 5, 201), np.linspace(-2, 2, 201)))
    values = np.asarray(SURFACES[name].f(w))  # pyright: ignore[reportArgumentType]
    assert values.min() == pytest.approx(SURFACES[name].lowest, abs=1e-12)

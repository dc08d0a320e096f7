"""The noise of mini-batch gradients: the formula against all batches, draws against the formula."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.studies.gradient_noise import gradient_noise

RNG = np.random.default_rng(0)
X, Y = jnp.asarray(RNG.normal(size=(7, 3))), jnp.asarray(RNG.normal(size=7))
PARAMS = {"w": jnp.asarray(RNG.normal(size=3)), "b": jnp.asarray(0.3)}


def loss(params, x, y):
    return (jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2


def all_gradients():
    slope = 1 - np.tanh(np.asarray(X) @ np.asarray(PARAMS["w"])) ** 2
    error = np.tanh(np.asarray(X) @ np.asarray(PARAMS["w"])) + 0.3 - np.asarray(Y)
    return np.concatenate([2 * error[:, None], (2 * error * slope)[:, None] * np.asarray(X)], axis=1)  # b before w


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_formula_is_the_mean_over_all_batches(size):
    g = all_gradients()
    mean = g.mean(axis=0)
    squares = [((g[list(batch)].mean(axis=0) - mean) ** 2).sum() for batch in itertools.combinations(range(7), size)]
    found = gradient_noise(loss, PARAMS, X, Y, jax.random.key(0), sizes=[size], draws=2)
    assert found.predicted[0] == pytest.approx(np.sqrt(np.mean(squares)) / np.linalg.norm(mean), abs=1e-7)
    assert found.scale == pytest.approx(g.var(axis=0).sum() / (mean @ mean), rel=1e-9)


def test_draws_come_to_the_formula():
    """4,000 draws: the mean of squares is known to about 2 %, its root to 1 %; three of these."""
    found = gradient_noise(loss, PARAMS, X, Y, jax.random.key(0), sizes=[1, 2, 4], draws=4000)
    np.testing.assert_allclose(found.errors, found.predicted, rtol=0.04)
    assert (np.diff(found.errors) < 0).all() and (np.diff(found.cosines) > 0).all()


def test_the_gradients_of_all_examples_have_no_noise():
    found = gradient_noise(loss, PARAMS, X, Y, jax.random.key(0), sizes=[7], draws=3)
    assert found.errors[0] < 1e-12 and found.predicted[0] == 0 and found.cosines[0] == pytest.approx(1, abs=1e-12)

"""The noise of mini-batch gradients: the formula against all batches, draws against the formula."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.studies.gradient_noise import gradient_noise

RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(7, 3)), RNG.normal(size=7), RNG.normal(size=3)


def loss(params, x, y):
    return (jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2


def found(sizes, draws):
    params = {"w": jax.device_put(W), "b": jax.device_put(0.3)}
    return gradient_noise(loss, params, jax.device_put(X), jax.device_put(Y), jax.random.key(0), sizes=sizes, draws=draws)


def all_gradients():
    error, slope = np.tanh(X @ W) + 0.3 - Y, 1 - np.tanh(X @ W) ** 2
    return np.concatenate([2 * error[:, None], (2 * error * slope)[:, None] * X], axis=1)  # b before w


def test_the_formula_is_the_mean_over_all_batches_and_draws_come_to_it():
    """4,000 draws: the mean of squares is known to about 2 %, its root to 1 %; three of these."""
    g, sizes = all_gradients(), [1, 3, 7]
    noise, mean = found(sizes, 4000), g.mean(axis=0)
    for size, predicted in zip(sizes, noise.predicted, strict=True):
        squares = [((g[list(batch)].mean(axis=0) - mean) ** 2).sum() for batch in itertools.combinations(range(7), size)]
        assert predicted == pytest.approx(np.sqrt(np.mean(squares)) / np.linalg.norm(mean), abs=1e-7)
    assert noise.scale == pytest.approx(g.var(axis=0).sum() / (mean @ mean), rel=1e-9)
    np.testing.assert_allclose(noise.errors[:2], noise.predicted[:2], rtol=0.04)
    assert (np.diff(noise.errors) < 0).all() and (np.diff(noise.cosines) > 0).all()
    # all examples have no noise
    assert noise.errors[2] < 1e-12 and noise.predicted[2] == 0 and noise.cosines[2] == pytest.approx(1, abs=1e-12)

"""Initialisers: the variance that theory says, within what chance allows.

The sample variance of n normal numbers has the relative standard deviation √(2/n), of uniform ones √(0.8/n); five of them are
allowed, with n = 60,000: 3 %.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.parts.activations import ACTIVATIONS
from jexplicit.nn.parts.initializers import initializer, standard_scale
from jexplicit.nn.parts.names import InitializerName

SHAPE = n_in, n_out = 300, 200


NAMES = [name for name in InitializerName.__args__ if name != "zeros"]
TABLE = {"tanh": 1.0, "sigmoid": 4.0, "relu": 2**0.5, "silu": 2**0.5}  # the lecture's gains


@pytest.fixture(scope="module")
def drawn():
    """The weights of every initializer before every activation; drawn from one key, in one program."""
    made = jax.jit(lambda key: {(n, phi): initializer(n, phi)(key, SHAPE, np.float64) for n in NAMES for phi in TABLE})
    standard_scale.cache_clear()  # it is then asked for under jit
    return jax.tree.map(np.asarray, made(jax.random.key(0)))


@pytest.mark.parametrize("name", NAMES)
def test_the_variance_is_what_theory_says(drawn, name):
    for activation, gain in TABLE.items():
        W = drawn[name, activation]
        expected = {
            "glorot": gain**2 * 2 / (n_in + n_out),
            "he": gain**2 / n_in,
            "backward": gain**2 / n_out,
            "fan": 1 / 3 / n_in,
            "standard": standard_scale(activation) / n_in,
        }[name.split("_")[0]]
        assert W.var() == pytest.approx(expected, rel=0.03)
        assert abs(W.mean()) < 5 * (expected / W.size) ** 0.5
        if name.endswith("uniform"):
            bound = (3 * expected) ** 0.5  # for Glorot gain √(6/(n_in + n_out)), as printed
            assert 0.999 * bound < np.abs(W).max() <= bound
        else:
            assert np.abs(W).max() > 3.5 * expected**0.5  # not cut off


def test_the_standard_scheme_s_constant():
    """c E[φ(z)²] = 1: by hand for ReLU (2) and the identity (1), by a million draws elsewhere (relative error 0.5 %)."""
    assert standard_scale("relu") == pytest.approx(2, rel=1e-9) and standard_scale("linear") == pytest.approx(1, rel=1e-9)
    names = "tanh", "sigmoid", "relu_tanh", "silu", "leaky_relu"
    squares = jax.jit(lambda z: {name: jnp.mean(ACTIVATIONS[name](z) ** 2) for name in names})
    for name, mean_square in squares(np.random.default_rng(0).normal(size=1_000_000)).items():
        assert standard_scale(name) * float(mean_square) == pytest.approx(1, rel=0.005)


def test_zeros_are_zeros_for_every_activation():
    made = jax.jit(lambda key: [initializer("zeros", activation)(key, SHAPE, np.float32) for activation in ACTIVATIONS])
    assert not any(np.asarray(W).any() for W in made(jax.random.key(0)))

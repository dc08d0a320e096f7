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


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "silu"])
@pytest.mark.parametrize("name", [name for name in InitializerName.__args__ if name != "zeros"])
def test_the_variance_is_what_theory_says(name, activation):
    W = np.asarray(initializer(name, activation)(jax.random.key(0), SHAPE, np.float64))
    gain = {"tanh": 1.0, "sigmoid": 4.0, "relu": 2**0.5, "silu": 2**0.5}[activation]  # the lecture's table
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
    z = np.random.default_rng(0).normal(size=1_000_000)
    for name in ("tanh", "sigmoid", "relu_tanh", "silu", "leaky_relu"):
        mean_square = np.mean(np.asarray(ACTIVATIONS[name](jnp.asarray(z))) ** 2)
        assert standard_scale(name) * mean_square == pytest.approx(1, rel=0.005)


def test_initialisers_serve_under_jit_and_for_every_activation():
    standard_scale.cache_clear()
    W = jax.jit(lambda key: initializer("standard", "silu")(key, SHAPE, np.float64))(jax.random.key(0))
    assert float(W.var()) * n_in == pytest.approx(standard_scale("silu"), rel=0.03)
    for activation in ACTIVATIONS:
        assert not initializer("zeros", activation)(jax.random.key(0), SHAPE, np.float32).any()

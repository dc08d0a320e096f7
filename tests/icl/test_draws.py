"""Numbers drawn as a vector are those that JAX draws in the shape wanted, and so are initial weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl.draws import draw
from icl.models.attention import init_layers
from icl.problems.sine_waves import init_network

KEY = functools.cache(lambda: jax.random.key(3))


@pytest.mark.parametrize("shape", [(), (2, 3, 7)])
def test_a_vector_has_the_numbers_of_any_shape(shape):
    samplers = jax.random.uniform, jax.random.normal, jax.random.laplace, jax.random.exponential

    @jax.jit
    def both(key):
        return [(draw(f, key, shape, dtype=jnp.float32), f(key, shape, jnp.float32)) for f in samplers]

    for ours, theirs in both(KEY()):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_initial_weights_are_those_of_variance_scaling(dtype):
    shape, scale = (2, 3, 4, 4), 0.01

    @jax.jit
    def theirs(key):
        init = jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal", batch_axis=(0, 1))
        keys = jax.random.split(key, 4)
        of_mlp = jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal", in_axis=-1, out_axis=-2)
        return [init(keys[n], shape, dtype) for n in range(4)], of_mlp(keys[1], (7, 5), dtype)

    weights, W1 = theirs(KEY())
    layers = init_layers(KEY(), 4, layers=2, heads=3, scale=scale, dtype=dtype)
    rounding = 4 * float(np.finfo(dtype).eps)  # a product of two roundings, in either order
    for ours, expected in zip(layers, weights, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=rounding)
    W = jax.jit(lambda key: init_network(key, channels=5, hidden=7, scale=scale, layers=0, dtype=dtype).encoder.W1)(KEY())
    np.testing.assert_allclose(W, W1, rtol=rounding)

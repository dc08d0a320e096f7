"""Numbers drawn as a vector are those that JAX draws in the shape wanted, and so are initial weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl.draws import draw
from icl.models.attention import init_layers
from icl.problems.sine_waves import init_network

KEY = jax.random.key(3)


@pytest.mark.parametrize("sampler", [jax.random.uniform, jax.random.normal, jax.random.laplace, jax.random.exponential])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 7)])
def test_a_vector_has_the_numbers_of_any_shape(sampler, shape):
    np.testing.assert_array_equal(draw(sampler, KEY, shape, dtype=jnp.float32), sampler(KEY, shape, jnp.float32))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_initial_weights_are_those_of_variance_scaling(dtype):
    shape, scale = (2, 3, 4, 4), 0.01
    init = jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal", batch_axis=(0, 1))
    layers = init_layers(KEY, 4, layers=2, heads=3, scale=scale, dtype=dtype)
    rounding = 4 * float(jnp.finfo(dtype).eps)  # a product of two roundings, in either order
    for weights, key in zip(layers, jax.random.split(KEY, 4), strict=True):
        np.testing.assert_allclose(weights, init(key, shape, dtype), rtol=rounding)
    W = init_network(KEY, channels=5, hidden=7, scale=scale, dtype=dtype).encoder.W1
    init = jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal", in_axis=-1, out_axis=-2)
    np.testing.assert_allclose(W, init(jax.random.split(KEY, 4)[1], (7, 5), dtype), rtol=rounding)

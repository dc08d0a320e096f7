"""The convolutional network against loops over pixels, filters and offsets."""

import jax
import jax.numpy as jnp
import numpy as np
from drawn_weights import drawn_variables, outputs

from jexplicit.nn.networks import ConvolutionalNetwork, init_variables
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import initial_state, network_step

RNG = np.random.default_rng(0)
SHAPE, X = (5, 6), RNG.uniform(size=(3, 30))
MODEL = ConvolutionalNetwork(SHAPE, 4, channels=(2, 3), hidden=5, dtype=jnp.float64)


def convolved(x, W):
    """`z[i, j, f] = sum W[a, b, c, f] x[i + a - 1, j + b - 1, c]`, zeros outside of the image."""
    height, width, channels = x.shape
    z = np.zeros((height, width, W.shape[-1]))
    for i, j, f in np.ndindex(z.shape):
        for a, b, c in np.ndindex(3, 3, channels):
            row, column = i + a - 1, j + b - 1
            if 0 <= row < height and 0 <= column < width:
                z[i, j, f] += W[a, b, c, f] * x[row, column, c]
    return z


def test_the_network_is_what_loops_compute():
    with jax.numpy_dtype_promotion("standard"):  # flax keeps running statistics in float32
        variables = drawn_variables(MODEL, X)
        found = np.asarray(outputs(MODEL, variables, X))
    params, running = jax.tree.map(lambda leaf: np.asarray(leaf, float), (variables["params"], variables["batch_stats"]))
    for m, x in enumerate(X):
        x = x.reshape(*SHAPE, 1)
        for n in (1, 2):
            z, norm, mean = convolved(x, params[f"convolution_{n}"]["kernel"]), params[f"norm_{n}"], running[f"norm_{n}"]
            z = norm["scale"] * (z - mean["mean"]) / np.sqrt(mean["var"] + 1e-5) + norm["bias"]
            x = np.zeros((z.shape[0] // 2, z.shape[1] // 2, z.shape[2]))
            for i, j, f in np.ndindex(x.shape):
                x[i, j, f] = max(0, z[2 * i : 2 * i + 2, 2 * j : 2 * j + 2, f].max())
        hidden = np.maximum(x.ravel() @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
        expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
        np.testing.assert_allclose(found[m], expected, rtol=1e-12)


def test_steps_lower_the_loss_and_dropout_depends_on_the_step_alone():
    with jax.numpy_dtype_promotion("standard"):
        optimizer = make_optimizer("adamw", 0.01)
        variables, Y = init_variables(MODEL, jax.random.key(0), X), np.eye(4)[[0, 1, 2]]
        state = jax.jit(lambda variables: initial_state(variables, optimizer))(variables)
        step, losses = jax.jit(network_step(MODEL, objective("softmax_cross_entropy"), optimizer, seed=1)), []
        again = step(state, (X, Y))[1]
        for _ in range(100):
            state, loss = step(state, (X, Y))
            losses.append(float(loss))
    assert losses[0] == float(again) and losses[-1] < losses[0] / 2

"""Backpropagation written out: against automatic differentiation and loops over units, and what saturation does to it.

Float64: 1e-10 is what remains of a few dozen products of numbers of order 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.activations import ACTIVATIONS, activation_slope
from jexplicit.nn.backpropagation import Layer, backpropagation, layers_of
from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.objectives import OBJECTIVES, objective

RNG = np.random.default_rng(0)
SIZES = (4, 5, 3, 2)
LAYERS = [
    Layer(jnp.asarray(RNG.normal(size=(n_out, n_in))), jnp.asarray(RNG.normal(size=n_out)))
    for n_in, n_out in zip(SIZES, SIZES[1:], strict=False)
]
X, Y = jnp.asarray(RNG.normal(size=(6, 4))), jnp.asarray(np.eye(2)[RNG.integers(0, 2, 6)])


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slopes_are_the_derivatives(name):
    z = jnp.asarray(np.linspace(-6, 6, 40))  # without 0, where a ReLU has none
    by_autodiff = jax.jit(jax.vmap(jax.grad(ACTIVATIONS[name])))(z)
    np.testing.assert_allclose(activation_slope(name, z), by_autodiff, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("goal", OBJECTIVES)
@pytest.mark.parametrize("phi", sorted(ACTIVATIONS))
def test_it_is_automatic_differentiation(phi, goal):
    chosen = objective(goal)

    def loss(layers, x, y):
        a = x
        for n, (W, b) in enumerate(layers):
            z = W @ a + b
            a = ACTIVATIONS[phi](z) if n < len(layers) - 1 else z
        return chosen.loss(a[None], y[None])[0]

    found = jax.jit(jax.vmap(lambda x, y: backpropagation(LAYERS, phi, chosen, x, y)))(X, Y)
    losses, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0, 0)))(LAYERS, X, Y)
    np.testing.assert_allclose(found.loss, losses, rtol=1e-10)
    for ours, theirs in zip(found.gradients, gradients, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), ours, theirs)


def test_it_is_the_sum_over_units():
    """v_j = φ'(z_j) Σ_i W_ij v_i and dJ/dW_ij = v_i a_j, unit by unit."""
    x, y = np.asarray(X[0]), np.asarray(Y[0])
    inputs: list[Any] = [x]
    outputs: list[Any] = []
    for W, b in LAYERS:
        outputs.append([sum(float(W[i, j]) * inputs[-1][j] for j in range(W.shape[1])) + float(b[i]) for i in range(len(b))])
        inputs.append([np.tanh(z) for z in outputs[-1]])
    v = [[z - t for z, t in zip(outputs[-1], y, strict=True)]]
    for n in (2, 1):
        W = np.asarray(LAYERS[n].W)
        back = [sum(W[i, j] * v[0][i] for i in range(len(W))) for j in range(W.shape[1])]
        v.insert(0, [(1 - np.tanh(z) ** 2) * s for z, s in zip(outputs[n - 1], back, strict=True)])
    found = backpropagation(LAYERS, "tanh", objective("squared_error"), X[0], Y[0])
    for n in range(3):
        np.testing.assert_allclose(found.sensitivities[n], v[n], rtol=1e-10)
        expected = [[v[n][i] * inputs[n][j] for j in range(SIZES[n])] for i in range(SIZES[n + 1])]
        np.testing.assert_allclose(found.gradients[n].W, expected, rtol=1e-10)
        np.testing.assert_allclose(found.gradients[n].b, v[n], rtol=1e-10)


def test_saturated_outputs_pass_back_a_cross_entropy_and_no_squared_error():
    """With z = 10 where the target is 0, a (1 - a) = 4.5e-5 takes the squared error away; a - y = 1 is left of the other."""
    layers, y = [Layer(jnp.zeros((2, 4)), jnp.array([10.0, -10.0]))], jnp.array([0.0, 1.0])
    squared, entropy = (
        backpropagation(layers, "tanh", objective(name), X[0], y).sensitivities[-1]
        for name in ("sigmoid_squared_error", "binary_cross_entropy")
    )
    np.testing.assert_allclose(entropy, [1, -1], atol=1e-4)
    np.testing.assert_allclose(squared, [9.08e-5, -9.08e-5], rtol=1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_the_layers_of_a_network_compute_what_it_computes(bias):
    network = FullyConnected((3,) * 10, 2, "tanh", bias=bias, dtype=jnp.float64)  # ten: hidden_10 sorts after hidden_9
    variables = init_variables(network, jax.random.key(0), X)
    a = X.T
    for n, (W, b) in enumerate(layers_of(variables["params"])):
        a = np.asarray(W) @ a + np.asarray(b)[:, None]
        a = np.tanh(a) if n < 10 else a
    np.testing.assert_allclose(a.T, network_outputs(network, variables, X), rtol=1e-10)


def test_what_has_no_layers_is_refused():
    with pytest.raises(ValueError, match="no layers"):
        backpropagation([], "tanh", objective("squared_error"), X[0], Y[0])
    with pytest.raises(ValueError, match="'gelu': choose one of"):
        backpropagation(LAYERS, "gelu", objective("squared_error"), X[0], Y[0])
    normalised = init_variables(FullyConnected((3,), 2, norm="layer"), jax.random.key(0), np.ones((1, 4), np.float32))
    with pytest.raises(ValueError, match="hidden_1 has a norm"):
        layers_of(normalised["params"])

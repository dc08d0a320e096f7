"""Losses from their formulas, backpropagation by hand against automatic differentiation, optimisers by their recurrences.

Float64: 1e-10 is what remains of a dozen operations where 1 - a is small.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jexplicit.nn import optimizers
from jexplicit.nn.diagnostics import hidden_layers
from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.optimizers import make_optimizer, make_schedule
from jexplicit.nn.parts.activations import ACTIVATIONS
from jexplicit.nn.parts.names import OptimizerName, ScheduleName
from jexplicit.nn.parts.objectives import OBJECTIVES, objective

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(5, 3)) * 3
TARGETS = np.eye(3)[RNG.integers(0, 3, 5)]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def softmax(z):
    return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


LOSSES = {
    "squared_error": lambda z, y: np.sum((y - z) ** 2, axis=1) / 2,
    "sigmoid_squared_error": lambda z, y: np.sum((y - sigmoid(z)) ** 2, axis=1),
    "binary_cross_entropy": lambda z, y: -np.sum(y * np.log(sigmoid(z)) + (1 - y) * np.log(1 - sigmoid(z)), axis=1),
    "softmax_cross_entropy": lambda z, y: -np.sum(y * np.log(softmax(z)), axis=1),
}
SENSITIVITIES = {  # dJ/dz
    "squared_error": lambda z, y: z - y,
    "sigmoid_squared_error": lambda z, y: -2 * (y - sigmoid(z)) * sigmoid(z) * (1 - sigmoid(z)),
    "binary_cross_entropy": lambda z, y: sigmoid(z) - y,
    "softmax_cross_entropy": lambda z, y: softmax(z) - y,
}
SLOPES = {  # φ'(z), with a = φ(z)
    "relu": lambda z, a: z > 0,
    "leaky_relu": lambda z, a: np.where(z > 0, 1, 0.01),
    "tanh": lambda z, a: 1 - a**2,
    "sigmoid": lambda z, a: a * (1 - a),
    "relu_tanh": lambda z, a: (z > 0) * (1 - a**2),
    "silu": lambda z, a: a + sigmoid(z) * (1 - a),
    "linear": lambda z, a: np.ones_like(z),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_and_their_gradients_are_the_formulas(name):
    z, y, loss = jnp.asarray(Z), jnp.asarray(TARGETS), objective(name)
    np.testing.assert_allclose(loss(z, y), LOSSES[name](Z, TARGETS), rtol=1e-10)
    gradient = jax.jit(jax.grad(lambda z: loss(z, y).sum()))(z)
    np.testing.assert_allclose(gradient, SENSITIVITIES[name](Z, TARGETS), rtol=1e-10, atol=1e-14)


def test_labels_are_one_hot_targets():
    loss, labels = objective("softmax_cross_entropy"), jnp.asarray(TARGETS.argmax(axis=1))
    np.testing.assert_allclose(loss(jnp.asarray(Z), labels), loss(jnp.asarray(Z), jnp.asarray(TARGETS)), rtol=1e-12)


@pytest.mark.parametrize(
    ("phi", "goal"),
    [*((phi, "softmax_cross_entropy") for phi in ACTIVATIONS), *(("tanh", goal) for goal in list(OBJECTIVES)[:3])],
)
def test_backpropagation_by_hand_is_automatic_differentiation(phi, goal):
    """v⁽ᴸ⁾ = dJ/dz⁽ᴸ⁾, v⁽ˡ⁾ = φ'(z⁽ˡ⁾) ⊙ W⁽ˡ⁺¹⁾ᵀ v⁽ˡ⁺¹⁾, dJ/dW⁽ˡ⁾ = v⁽ˡ⁾ a⁽ˡ⁻¹⁾ᵀ, dJ/db⁽ˡ⁾ = v⁽ˡ⁾: lecture notes, bp-5."""
    network = FullyConnected((5, 4), 3, activation=phi, dtype=jnp.float64)
    X = RNG.normal(size=(5, 4))
    variables = init_variables(network, jax.random.key(0), X)
    kernels = [variables["params"][name]["Dense_0"]["kernel"] for name in ("hidden_1", "hidden_2")]
    kernels = [np.asarray(W) for W in (*kernels, variables["params"]["output"]["kernel"])]
    inputs, zs = [X], []
    for W in kernels:
        zs.append(inputs[-1] @ W)
        inputs.append(np.asarray(ACTIVATIONS[phi](jnp.asarray(zs[-1]))))
    v = [SENSITIVITIES[goal](zs[-1], TARGETS)]
    for W, z, a in zip(kernels[:0:-1], zs[-2::-1], inputs[-2:0:-1], strict=True):
        v.insert(0, SLOPES[phi](z, a) * (v[0] @ W.T))
    found = hidden_layers(network, variables, objective(goal), jnp.asarray(X), jnp.asarray(TARGETS))
    for n, layer in enumerate(found.values()):
        np.testing.assert_allclose(layer.z, zs[n], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(5 * layer.gradient, v[n], rtol=1e-10, atol=1e-14)

    def loss(params):
        return objective(goal)(network_outputs(network, {"params": params}, X), jnp.asarray(TARGETS)).sum()

    gradient = jax.jit(jax.grad(loss))(variables["params"])
    layers = [gradient["hidden_1"]["Dense_0"], gradient["hidden_2"]["Dense_0"], gradient["output"]]
    for layer, sensitivity, a in zip(layers, v, inputs[:-1], strict=True):
        np.testing.assert_allclose(layer["kernel"], a.T @ sensitivity, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(layer["bias"], sensitivity.sum(axis=0), rtol=1e-9, atol=1e-12)


def descend(optimizer, gradients):
    """Where W = 0 goes under these gradients."""
    W = jnp.zeros(())
    state = optimizer.init(W)
    with jax.numpy_dtype_promotion("standard"):
        for g in gradients:
            update, state = optimizer.update(jnp.asarray(g), state, W)
            W = optax.apply_updates(W, update)
    return float(np.asarray(W))


GRADIENTS = [0.5, -1.0, 2.0, 0.25]


def momentum(gradients, rate):
    W = M = 0.0
    for g in gradients:
        M = 0.9 * M + g
        W -= rate * M
    return W


def adagrad(gradients, rate, accumulator=0.0, eps=0.0):
    W, G = 0.0, accumulator
    for g in gradients:
        G += g * g
        W -= rate * g / np.sqrt(G + eps)
    return W


def rmsprop(gradients, rate):
    W = V = 0.0
    for g in gradients:
        V = 0.9 * V + 0.1 * g * g
        W -= rate * g / np.sqrt(V + 1e-8)
    return W


def adadelta(gradients, rate):
    """Zeiler 2012, Algorithm 1."""
    W = V = D = 0.0
    for g in gradients:
        V = 0.9 * V + 0.1 * g * g
        change = -np.sqrt(D + 1e-6) / np.sqrt(V + 1e-6) * g
        D = 0.9 * D + 0.1 * change * change
        W += rate * change
    return W


def adam(gradients, rate):
    W = M = V = 0.0
    for k, g in enumerate(gradients, 1):
        M, V = 0.9 * M + 0.1 * g, 0.999 * V + 0.001 * g * g
        W -= rate * M / (1 - 0.9**k) / (np.sqrt(V / (1 - 0.999**k)) + 1e-8)
    return W


@pytest.mark.parametrize("by_hand", [momentum, adagrad, rmsprop, adadelta, adam])
def test_optimisers_follow_their_recurrences(by_hand):
    expected = by_hand(GRADIENTS, 0.1)
    found = descend(make_optimizer(by_hand.__name__, 0.1), GRADIENTS)
    assert found == pytest.approx(expected, rel=1e-6)  # float32 powers of β in optax


@pytest.mark.parametrize(("accumulator", "eps"), [(0.0, 1e-30), (0.1, 1e-7), (2.0, 0.5)])
def test_adagrad_starts_from_its_accumulator(accumulator, eps):
    found = descend(optimizers.adagrad(0.1, accumulator=accumulator, eps=eps), GRADIENTS)
    assert found == pytest.approx(adagrad(GRADIENTS, 0.1, accumulator, eps), rel=1e-12)


@pytest.mark.parametrize("name", OptimizerName.__args__)
def test_every_optimiser_descends_and_its_rate_may_be_traced(name):
    def first_update(rate):
        optimizer, W = make_optimizer(name, rate), jnp.ones(2)
        with jax.numpy_dtype_promotion("standard"):
            return jnp.asarray(optimizer.update(jnp.array([0.5, 2.0]), optimizer.init(W), W)[0])

    rates = jnp.array([0.01, 0.1])
    with jax.numpy_dtype_promotion("standard"):  # the rate of weight decay
        together = jax.jit(jax.vmap(first_update))(rates)
    np.testing.assert_allclose(together, [first_update(float(rate)) for rate in rates], rtol=1e-6)
    assert (np.asarray(together) < 0).all()


@pytest.mark.parametrize("name", ScheduleName.__args__)
def test_rates_cool_down(name):
    rates = [float(np.asarray(make_schedule(name, 0.3, 90)(k))) for k in range(91)]
    assert rates[0] == pytest.approx(0.3, rel=1e-6) and all(a >= b for a, b in zip(rates, rates[1:], strict=False))
    last = {"constant": 0.3, "step": 0.03, "exponential": 0.003, "linear": 0, "cosine": 0}[name]
    assert rates[-1] == pytest.approx(last, abs=1e-7)

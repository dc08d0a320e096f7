"""Losses from their formulas, backpropagation by hand against automatic differentiation, optimisers by their recurrences.

Float64: 1e-10 is what remains of a dozen operations where 1 - a is small.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawn_weights import drawn_variables

from jexplicit.nn import training
from jexplicit.nn.names import InitializerName, OptimizerName, ScheduleName
from jexplicit.nn.networks import ACTIVATIONS, FullyConnected, hidden_layers, initializer, network_outputs, standard_scale
from jexplicit.nn.training import OBJECTIVES, make_optimizer, make_schedule, objective

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
PHI = {
    "tanh": np.tanh,
    "relu_tanh": lambda z: np.maximum(np.tanh(z), 0),
    "silu": lambda z: z * sigmoid(z),
    "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
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


def test_losses_and_their_gradients_are_the_formulas_and_labels_are_one_hot_targets():
    # compiled whole, which takes less time than compiling every operation
    losses = {name: objective(name) for name in OBJECTIVES}

    @jax.jit
    def found(z, y, labels):
        slopes = {name: jax.grad(lambda z, loss=loss: loss(z, y).sum())(z) for name, loss in losses.items()}
        return {name: loss(z, y) for name, loss in losses.items()}, slopes, losses["softmax_cross_entropy"](z, labels)

    values, slopes, of_labels = found(Z, TARGETS, TARGETS.argmax(axis=1))
    for name in OBJECTIVES:
        np.testing.assert_allclose(values[name], LOSSES[name](Z, TARGETS), rtol=1e-10)
        np.testing.assert_allclose(slopes[name], SENSITIVITIES[name](Z, TARGETS), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(of_labels, values["softmax_cross_entropy"], rtol=1e-12)


def test_slopes_of_activations_are_the_formulas():
    elementwise = lambda phi, z: (phi(z), jax.vmap(jax.grad(phi))(z.ravel()).reshape(z.shape))  # noqa: E731
    slope = jax.jit(lambda z: {name: elementwise(phi, z) for name, phi in ACTIVATIONS.items()})
    for name, (a, found) in jax.tree.map(np.asarray, slope(Z)).items():
        np.testing.assert_allclose(found, SLOPES[name](Z, a), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("phi", "goal"),
    list(zip(("tanh", "relu_tanh", "silu", "leaky_relu"), LOSSES, strict=True)),
    ids=("tanh", "relu", "silu", "leaky"),
)
def test_backpropagation_by_hand_is_automatic_differentiation(phi, goal):
    """v⁽ᴸ⁾ = dJ/dz⁽ᴸ⁾, v⁽ˡ⁾ = φ'(z⁽ˡ⁾) ⊙ W⁽ˡ⁺¹⁾ᵀ v⁽ˡ⁺¹⁾, dJ/dW⁽ˡ⁾ = v⁽ˡ⁾ a⁽ˡ⁻¹⁾ᵀ, dJ/db⁽ˡ⁾ = v⁽ˡ⁾: lecture notes, bp-5."""
    network = FullyConnected((5, 4), 3, activation=phi, dtype=jnp.float64)
    X = np.random.default_rng(2).normal(size=(5, 4))
    variables = drawn_variables(network, X)
    params = jax.tree.map(np.asarray, variables["params"])
    layers = [params["hidden_1"]["Dense_0"], params["hidden_2"]["Dense_0"], params["output"]]
    inputs, zs = [X], []
    for layer in layers:
        zs.append(inputs[-1] @ layer["kernel"] + layer["bias"])
        inputs.append(PHI[phi](zs[-1]))
    v = [SENSITIVITIES[goal](zs[-1], TARGETS)]
    for layer, z, a in zip(layers[:0:-1], zs[-2::-1], inputs[-2:0:-1], strict=True):
        v.insert(0, SLOPES[phi](z, a) * (v[0] @ layer["kernel"].T))
    found = hidden_layers(network, variables, objective(goal), jax.device_put(X), jax.device_put(TARGETS))
    for n, layer in enumerate(found.values()):
        np.testing.assert_allclose(layer.z, zs[n], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(5 * np.asarray(layer.gradient), v[n], rtol=1e-10, atol=1e-14)

    def loss(params):
        return objective(goal)(network_outputs(network, {"params": params}, X), jax.device_put(TARGETS)).sum()

    gradient = jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(variables["params"]))
    slopes = [gradient["hidden_1"]["Dense_0"], gradient["hidden_2"]["Dense_0"], gradient["output"]]
    for slope, sensitivity, a in zip(slopes, v, inputs[:-1], strict=True):
        np.testing.assert_allclose(slope["kernel"], a.T @ sensitivity, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(slope["bias"], sensitivity.sum(axis=0), rtol=1e-9, atol=1e-12)


def descend(optimizer, gradients):
    """Where W = 0 goes under these gradients."""
    W = jnp.zeros((), float)
    state = optimizer.init(W)
    with jax.numpy_dtype_promotion("standard"):
        for g in gradients:
            update, state = optimizer.update(jax.device_put(g), state, W)
            W = optax.apply_updates(W, update)
    return W


GRADIENTS = [0.5, -1.0, 2.0, 0.25]


def adagrad(gradients, rate, accumulator=0.0, eps=0.0):
    W, G = 0.0, accumulator
    for g in gradients:
        G += g * g
        W -= rate * g / np.sqrt(G + eps)
    return W


def test_adagrad_follows_its_recurrence_from_0():
    """The others are optax's own."""
    starts = (0.0, 1e-30), (0.1, 1e-7), (2.0, 0.5)

    @jax.jit
    def found():
        made = [make_optimizer("adagrad", 0.1), *(training.adagrad(0.1, accumulator=a, eps=eps) for a, eps in starts)]
        return [descend(optimizer, GRADIENTS) for optimizer in made]

    for end, (accumulator, eps) in zip(found(), (starts[0], *starts), strict=True):
        assert float(end) == pytest.approx(adagrad(GRADIENTS, 0.1, accumulator, eps), rel=1e-12)


def test_every_optimiser_descends_and_its_rate_may_be_traced():
    def first_update(name, rate):
        optimizer, W = make_optimizer(name, rate), jnp.ones(2)
        return jax.device_put(optimizer.update(jax.device_put(np.array([0.5, 2.0])), optimizer.init(W), W)[0])

    @jax.jit
    def found(rates):
        with jax.numpy_dtype_promotion("standard"):  # the rate of weight decay
            traced = {name: jax.vmap(functools.partial(first_update, name))(rates) for name in OptimizerName.__args__}
            return traced, {name: [first_update(name, rate) for rate in (0.01, 0.1)] for name in OptimizerName.__args__}

    together, alone = found(np.array([0.01, 0.1]))
    for name, updates in together.items():
        np.testing.assert_allclose(updates, alone[name], rtol=1e-6)
        assert (np.asarray(updates) < 0).all()


def test_rates_cool_down():
    schedules = {name: make_schedule(name, 0.3, 90) for name in ScheduleName.__args__}
    found = jax.jit(lambda k: {name: k * 0.0 + jax.vmap(schedule)(k) for name, schedule in schedules.items()})
    with jax.numpy_dtype_promotion("standard"):
        rates = jax.tree.map(np.asarray, found(np.arange(91)))
    for name, of_steps in rates.items():
        assert of_steps[0] == pytest.approx(0.3, rel=1e-6) and (np.diff(of_steps) <= 0).all()
        last = {"constant": 0.3, "step": 0.03, "exponential": 0.003, "linear": 0, "cosine": 0}[name]
        assert of_steps[-1] == pytest.approx(last, abs=1e-7)


# Initial weights

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

"""Objectives: losses from their formulas in NumPy, sensitivities against autodiff, and optimisers against their recurrences.

Float64: 1e-10 is what remains of a dozen operations where 1 - a is small.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jexplicit.nn import optimizers
from jexplicit.nn.objectives import OBJECTIVES, objective
from jexplicit.nn.optimizers import OPTIMIZERS, SCHEDULES, make_optimizer, make_schedule

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(5, 3)) * 3
TARGETS = np.eye(3)[RNG.integers(0, 3, 5)]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_their_formulas(name):
    a, e = sigmoid(Z), np.exp(Z)
    expected = {
        "squared_error": np.sum((TARGETS - Z) ** 2, axis=1) / 2,
        "sigmoid_squared_error": np.sum((TARGETS - a) ** 2, axis=1),
        "binary_cross_entropy": -np.sum(TARGETS * np.log(a) + (1 - TARGETS) * np.log(1 - a), axis=1),
        "softmax_cross_entropy": -np.sum(TARGETS * np.log(e / e.sum(axis=1, keepdims=True)), axis=1),
    }[name]
    np.testing.assert_allclose(objective(name).loss(jnp.asarray(Z), jnp.asarray(TARGETS)), expected, rtol=1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_sensitivities_are_the_gradients(name):
    chosen = objective(name)
    gradient = jax.jit(jax.grad(lambda z: chosen.loss(z, jnp.asarray(TARGETS)).sum()))(jnp.asarray(Z))
    np.testing.assert_allclose(chosen.sensitivity(jnp.asarray(Z), jnp.asarray(TARGETS)), gradient, rtol=1e-10, atol=1e-14)


def test_labels_are_one_hot_targets():
    chosen, labels = objective("softmax_cross_entropy"), jnp.asarray(TARGETS.argmax(axis=1))
    for of in (chosen.loss, chosen.sensitivity):
        np.testing.assert_allclose(of(jnp.asarray(Z), labels), of(jnp.asarray(Z), jnp.asarray(TARGETS)), rtol=1e-12)


def test_a_saturated_sigmoid_learns_by_cross_entropy_and_not_by_squared_error():
    z, y = jnp.array([[-8.0]]), jnp.array([[1.0]])
    assert abs(objective("sigmoid_squared_error").sensitivity(z, y).item()) < 1e-3
    assert objective("binary_cross_entropy").sensitivity(z, y).item() == pytest.approx(-1, abs=1e-3)


def descend(name, rate, gradients):
    """Where W = 0 goes under these gradients."""
    optimizer, W = make_optimizer(name, rate), jnp.zeros(())
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


def adagrad(gradients, rate):
    W = G = 0.0
    for g in gradients:
        G += g * g
        W -= rate * g / np.sqrt(G)
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
    assert descend(by_hand.__name__, 0.1, GRADIENTS) == pytest.approx(expected, rel=1e-6)  # float32 powers of β in optax


@pytest.mark.parametrize(("accumulator", "eps"), [(0.0, 1e-30), (0.1, 1e-7), (2.0, 0.5)])
def test_adagrad_starts_from_its_accumulator(accumulator, eps):
    optimizer = optimizers.adagrad(0.1, accumulator=accumulator, eps=eps)
    W, G, expected = jnp.zeros(()), accumulator, 0.0
    state = optimizer.init(W)
    for g in GRADIENTS:
        update, state = optimizer.update(jnp.asarray(g), state)
        W, G = jnp.asarray(optax.apply_updates(W, update)), G + g * g
        expected -= 0.1 * g / np.sqrt(G + eps)
    assert float(W) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adamw"])
def test_rates_may_be_traced_and_vmapped(name):
    rates = jnp.array([0.01, 0.1])

    def first_update(rate):
        optimizer, W = make_optimizer(name, rate), jnp.ones(2)
        with jax.numpy_dtype_promotion("standard"):
            return jnp.asarray(optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(W), W)[0])

    together = jax.jit(jax.vmap(first_update))(rates)
    np.testing.assert_allclose(together, [first_update(float(rate)) for rate in rates], rtol=1e-6)


def test_the_lecture_s_adadelta_is_adam_without_its_correction():
    """M/√V with decaying means of one decay is not Zeiler's method, whose first steps are tiny."""
    W = M = V = 0.0
    for g in GRADIENTS:
        M, V = 0.9 * M + 0.1 * g, 0.9 * V + 0.1 * g * g
        W -= 0.1 * M / np.sqrt(V + 1e-6)
    assert abs(descend("adadelta", 0.1, GRADIENTS)) < abs(W) / 100


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_descends(name):
    rate = {"adadelta": 10.0}.get(name, 0.1)
    assert descend(name, rate, [1.0] * 5) < 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_cool_down(name):
    rates = [float(np.asarray(make_schedule(name, 0.3, 90)(k))) for k in range(91)]
    assert rates[0] == pytest.approx(0.3, rel=1e-6) and all(a >= b for a, b in zip(rates, rates[1:], strict=False))
    last = {"constant": 0.3, "step": 0.03, "exponential": 0.003, "linear": 0, "cosine": 0}[name]
    assert rates[-1] == pytest.approx(last, abs=1e-7)


def test_unknown_names_and_rates_are_refused():
    with pytest.raises(ValueError, match="'hinge': choose one of squared_error"):
        objective("hinge")
    with pytest.raises(ValueError, match="'lion': choose one of sgd"):
        make_optimizer("lion", 0.1)
    with pytest.raises(ValueError, match="'warm': choose one of constant"):
        make_schedule("warm", 0.1, 10)
    for rate, steps in ((0.0, 10), (float("nan"), 10), (0.1, 0)):
        with pytest.raises(ValueError, match="both must be positive"):
            make_schedule("cosine", rate, steps)

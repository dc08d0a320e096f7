"""Diagnostics: statistics by hand, and what they say of explicit models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.diagnostics import (
    LayerValues,
    hidden_layers,
    hockey_stick,
    layer_statistics,
    leaf_names,
    update_to_data,
)
from jexplicit.nn.networks import FullyConnected, MLPLanguageModel, init_variables
from jexplicit.nn.parts.objectives import objective
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution, priming_number

RNG = np.random.default_rng(0)


def test_the_layers_of_a_language_model_are_found():
    tokens, targets = RNG.integers(0, 5, (4, 2)), RNG.integers(0, 5, 4)
    model = MLPLanguageModel(5, 2, (3, 3), norm="batch")
    variables = init_variables(model, jax.random.key(0), tokens)
    layers = hidden_layers(model, variables, objective("softmax_cross_entropy"), jnp.asarray(tokens), jnp.asarray(targets))
    assert list(layers) == ["hidden_1", "hidden_2"] and layers["hidden_1"].z.shape == (4, 3)
    np.testing.assert_allclose(layers["hidden_1"].z.mean(axis=0), 0, atol=1e-6)  # BatchNorm in training, float32


def test_a_network_without_hidden_layers_has_nothing_to_show():
    model, X = FullyConnected((), 2, dtype=jnp.float64), jnp.ones((3, 2))
    assert hidden_layers(model, init_variables(model, jax.random.key(0), X), objective("squared_error"), X, X) == {}


def test_statistics_count_saturated_and_dead_units():
    z = jnp.array([[5.0, 0.0, -6.0], [-5.0, 1.0, 4.0]])
    numbers = layer_statistics(LayerValues(z, jnp.ones_like(z) / 2), "tanh")
    assert numbers.saturated == pytest.approx(4 / 6) and numbers.dead == pytest.approx(2 / 3)
    assert numbers.mean == pytest.approx(float(np.tanh(z).mean())) and numbers.std == pytest.approx(float(np.tanh(z).std()))
    assert numbers.gradient_std == 0  # all gradients alike


def test_large_weights_saturate_and_small_ones_do_not():
    X = RNG.normal(size=(50, 20))
    goal, Y = objective("squared_error"), jnp.zeros((50, 1))
    model = FullyConnected((30,), 1, activation="tanh", dtype=jnp.float64)
    made = init_variables(model, jax.random.key(0), X)
    saturated = []
    for factor in (0.1, 1, 10):
        scaled = jax.tree.map(lambda W, factor=factor: W * factor, made)
        numbers = layer_statistics(hidden_layers(model, scaled, goal, jnp.asarray(X), Y)["hidden_1"], "tanh")
        saturated.append(numbers.saturated)
    assert saturated[0] == 0 and saturated[0] < saturated[1] < 0.2 and saturated[2] > 0.7


def test_update_to_data_ratio_is_that_of_norms():
    params, updates = RNG.normal(size=(2, 3, 4))
    ratio = update_to_data({"W": jnp.asarray(updates)}, {"W": jnp.asarray(params)})["W"]
    assert float(ratio) == pytest.approx(np.linalg.norm(updates) / np.linalg.norm(params))
    assert float(update_to_data(jnp.ones(2), jnp.zeros(2))) == 0


def test_hockey_sticks_are_measured_against_log_n():
    assert hockey_stick(np.log(27), 27).excess == pytest.approx(0)
    assert [hockey_stick(loss, 27).detected for loss in (1.09 * np.log(27), 1.11 * np.log(27), np.inf)] == [False, True, True]


def test_an_explicit_model_is_diagnosed_alike():
    """At K = 1 the solution is the optimum: its gradient by the logits sums to 0 over the examples of equal features."""
    H, Y = jnp.eye(3)[RNG.integers(0, 3, 90)], jnp.eye(2)[RNG.integers(0, 2, 90)]
    U = explicit_solution(dense_cooccurrence(H, Y), float(priming_number(H)))
    goal, z = objective("softmax_cross_entropy"), H @ U
    sensitivity = jax.grad(lambda z: goal(z, Y).sum())(z)
    np.testing.assert_allclose(H.T @ sensitivity, 0, atol=1e-12)
    numbers = layer_statistics(LayerValues(z, sensitivity / len(z)), "linear")
    assert numbers.dead == 0 and 0 < numbers.gradient_std < 1
    assert not hockey_stick(float(goal(z, Y).mean()), 2).detected


def test_names_are_in_the_order_of_leaves():
    tree = {"b": {"kernel": 1, "bias": 2}, "a": 3}
    assert leaf_names(tree) == ["a", "b/bias", "b/kernel"] and jax.tree.leaves(tree) == [3, 2, 1]

"""Diagnostics: statistics by hand, and what they say of explicit models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_weights import drawn_variables

from jexplicit.nn.diagnostics import LayerValues, hidden_layers, hockey_stick, layer_statistics
from jexplicit.nn.networks import FullyConnected, MLPLanguageModel
from jexplicit.nn.parts.objectives import objective
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution

RNG = np.random.default_rng(0)


def test_the_layers_of_a_language_model_are_found():
    tokens, targets = RNG.integers(0, 5, (4, 2)), RNG.integers(0, 5, 4)
    model = MLPLanguageModel(5, 2, (3, 3), norm="batch")
    variables = drawn_variables(model, tokens)
    layers = hidden_layers(
        model, variables, objective("softmax_cross_entropy"), jax.device_put(tokens), jax.device_put(targets)
    )
    assert list(layers) == ["hidden_1", "hidden_2"] and layers["hidden_1"].z.shape == (4, 3)
    shift = variables["params"]["network"]["hidden_1"]["BatchNorm_0"]["bias"]
    means = np.asarray(layers["hidden_1"].z).mean(axis=0)
    np.testing.assert_allclose(means, shift, atol=1e-6)  # BatchNorm in training, float32


def test_a_network_without_hidden_layers_has_nothing_to_show():
    model, X = FullyConnected((), 2, dtype=jnp.float64), jax.device_put(np.ones((3, 2)))
    assert hidden_layers(model, drawn_variables(model, X), objective("squared_error"), X, X) == {}


def test_statistics_count_saturated_and_dead_units():
    z = np.array([[5.0, 0.0, -6.0], [-5.0, 1.0, 4.0]])
    numbers = layer_statistics(LayerValues(jax.device_put(z), jax.device_put(np.full((2, 3), 0.5))), "tanh")
    assert numbers.saturated == pytest.approx(4 / 6) and numbers.dead == pytest.approx(2 / 3)
    assert numbers.mean == pytest.approx(float(np.tanh(z).mean())) and numbers.std == pytest.approx(float(np.tanh(z).std()))
    assert numbers.gradient_std == 0  # all gradients alike
    gradient = np.arange(6.0).reshape(2, 3)
    apart = layer_statistics(LayerValues(jax.device_put(z), jax.device_put(gradient)), "tanh")
    assert apart.gradient_std == pytest.approx(2 * gradient.std())


def test_large_weights_saturate_and_small_ones_do_not():
    X = RNG.normal(size=(50, 20))
    W = RNG.normal(size=(20, 30)) / 20**0.5
    layers = [LayerValues(jax.device_put(factor * X @ W), jax.device_put(X @ W)) for factor in (0.1, 1, 10)]
    saturated = [layer_statistics(layer, "tanh").saturated for layer in layers]
    assert saturated[0] == 0 and saturated[0] < saturated[1] < 0.2 and saturated[2] > 0.7


def test_hockey_sticks_are_measured_against_log_n():
    assert hockey_stick(np.log(27), 27).excess == pytest.approx(0)
    assert [hockey_stick(loss, 27).detected for loss in (1.09 * np.log(27), 1.11 * np.log(27), np.inf)] == [False, True, True]


def test_an_explicit_model_is_diagnosed_alike():
    """At K = 1 the solution is the optimum: its gradient by the logits sums to 0 over the examples of equal features."""
    H, Y = np.eye(3)[RNG.integers(0, 3, 90)], np.eye(2)[RNG.integers(0, 2, 90)]
    goal = objective("softmax_cross_entropy")

    @jax.jit
    def diagnosed(H, Y):
        z = H @ explicit_solution(dense_cooccurrence(H, Y), 1.0)
        return z, jax.grad(lambda z: goal(z, Y).sum())(z), goal(z, Y).mean()

    z, sensitivity, loss = diagnosed(H, Y)
    np.testing.assert_allclose(H.T @ np.asarray(sensitivity), 0, atol=1e-12)
    numbers = layer_statistics(LayerValues(z, jax.device_put(np.asarray(sensitivity) / 90)), "linear")
    assert numbers.dead == 0 and 0 < numbers.gradient_std < 1
    assert not hockey_stick(float(loss), 2).detected

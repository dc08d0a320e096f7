"""Diagnostics: statistics by hand, and what they say of explicit models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_weights import drawn_variables

from jexplicit.nn.diagnostics import hidden_layers, hockey_stick
from jexplicit.nn.networks import FullyConnected, MLPLanguageModel
from jexplicit.nn.parts.objectives import objective

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


def test_hockey_sticks_are_measured_against_log_n():
    assert hockey_stick(np.log(27), 27).excess == pytest.approx(0)
    assert [hockey_stick(loss, 27).detected for loss in (1.09 * np.log(27), 1.11 * np.log(27), np.inf)] == [False, True, True]

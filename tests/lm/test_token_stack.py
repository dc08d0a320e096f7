"""Stacks of softmax layers on tokens: what they compute, and the start that is solved from the bottom up.

Float64 and loops over positions: 1e-10.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.counts.dense import count
from jexplicit.data.contexts import contexts
from jexplicit.data.tokenizers import train_tokenizer
from jexplicit.lm.checkpoints import export_model, import_model
from jexplicit.lm.evaluation import log_probabilities
from jexplicit.lm.fits.network_starts import stack_start
from jexplicit.lm.rows.explicit import explicit_language_model
from jexplicit.lm.rows.network import network_model
from jexplicit.lm.text_model import TextModel
from jexplicit.nn.networks import TokenStack, init_variables, network_outputs

N, K = 6, 2
RNG = np.random.default_rng(0)
STREAM = np.concatenate([[0], *([*RNG.integers(1, N - 1, 7), 0] for _ in range(30))]).astype(np.uint8)  # N - 1 never occurs
X, Y = contexts(STREAM, K, eos=True)


@functools.cache
def solved():
    return explicit_language_model(count(STREAM, radius=K, vocab_size=N), features="cat", eos=True, dtype=jnp.float64)


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def start(layers):
    network = TokenStack(N, layers, dtype=jnp.float64)
    variables = init_variables(network, jax.random.key(0), X[:1])
    return network, variables, stack_start(network, variables, solved(), X, Y)


def test_a_stack_is_its_formula():
    network = TokenStack(N, 3, dtype=jnp.float64)
    variables = init_variables(network, jax.random.key(0), X[:1])
    params = jax.tree.map(np.asarray, variables["params"])
    z = network_outputs(network, variables, jax.device_put(X))
    for x, found in zip(X[:20], z, strict=False):
        expected = params["layer_1"][0][x[0]] + params["layer_1"][1][x[1]]
        for n in (2, 3):
            expected = softmax(expected) @ params[f"layer_{n}"]["kernel"]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert np.abs(params["layer_1"]).max() <= 1 / np.sqrt(K * N) and params["layer_1"].min() < 0


@pytest.mark.slow
def test_layers_are_solved_from_the_bottom_up(layers=3):
    """`U⁽¹⁾` the explicit tables, `U⁽ˡ⁾ = log F` with `F = sum_m H⁽ˡ⁾_m ⊗ y_m`, position by position."""
    _, _, found = start(layers)
    tables = np.asarray(solved().tables)
    np.testing.assert_allclose(found["params"]["layer_1"], tables, rtol=1e-12)
    H = [softmax(tables[0][x[0]] + tables[1][x[1]]) for x in X]
    for n in range(2, layers + 1):
        F = np.zeros((N, N))
        for h, y in zip(H, Y, strict=True):
            F[:, y] += h
        F[:, N - 1] = F.sum(axis=1) / len(Y)  # never a target: as if seen once
        U = np.log(F)
        np.testing.assert_allclose(found["params"][f"layer_{n}"]["kernel"], U, rtol=1e-9)
        H = [softmax(h @ U) for h in H]


@pytest.mark.slow
def test_one_layer_is_the_explicit_language_model_and_is_saved_and_loaded(tmp_path):
    network, _, found = start(1)
    model = network_model(network, found, context=K)
    np.testing.assert_allclose(log_probabilities(model, X, Y), log_probabilities(solved(), X, Y), rtol=1e-5)
    export_model(tmp_path / "stack.safetensors", TextModel(model, train_tokenizer(["abcd"], kind="char"), {}))
    again = import_model(tmp_path / "stack.safetensors").model
    np.testing.assert_allclose(again.logits(jax.device_put(X[3])), model.logits(jax.device_put(X[3])), rtol=1e-6)

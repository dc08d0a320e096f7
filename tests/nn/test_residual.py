"""Networks over a base: what they are without a base, and without a network. Equal arithmetic: equal bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.lstm import LSTM
from jexplicit.nn.networks import init_variables
from jexplicit.nn.residual import Residual, network_of_residual
from jexplicit.nn.sequences import stream_log_probabilities, window_batch
from jexplicit.nn.transformer import Transformer

pytestmark = pytest.mark.slow
N, T = 7, 12
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, N, (3, T)).astype(np.int32)
BASE = np.log(RNG.dirichlet(np.ones(N), (3, T))).astype(np.float32)
SIZES: Any = {"vocab_size": N, "width": 8, "layers": 1, "window": T}


@pytest.mark.parametrize("network", [Transformer(heads=2, **SIZES), LSTM(**SIZES)])
def test_without_a_base_it_is_the_network_and_without_a_network_the_base(network):
    residual = Residual(network=network)
    variables = init_variables(residual, jax.random.key(0), (TOKENS, BASE))
    own, exponent = network_of_residual(variables)
    assert exponent == 1
    np.testing.assert_array_equal(residual.apply(variables, (TOKENS, 0 * BASE)), network.apply(own, TOKENS))
    nothing = jax.tree.map(jnp.zeros_like, variables)
    nothing["params"]["exponent"] = jnp.ones((), jnp.float32)
    np.testing.assert_array_equal(residual.apply(nothing, (TOKENS, BASE)), BASE)


def test_a_batch_has_the_base_of_the_tokens_that_it_predicts():
    stream = RNG.integers(0, N, 60)
    base = RNG.normal(size=(60, N)).astype(np.float16)
    starts = np.array([0, 17, 60 - T - 1])
    (X, own), Y = window_batch(stream, T, base=base.__getitem__)(starts)
    tokens, targets = window_batch(stream, T)(starts)
    np.testing.assert_array_equal(X, tokens)
    np.testing.assert_array_equal(Y, targets)
    for start, rows, y in zip(starts, own, Y, strict=True):
        np.testing.assert_array_equal(rows, base[start + 1 : start + T + 1])
        np.testing.assert_array_equal(y, stream[start + 1 : start + T + 1])


def test_a_text_is_scored_over_a_base_and_a_last_window_that_ends_early():
    network = Residual(network=Transformer(heads=2, **SIZES))
    variables = init_variables(network, jax.random.key(0), (TOKENS, BASE))
    stream, base = (
        RNG.integers(1, N, 2 * T + 5).astype(np.int32),
        np.log(RNG.dirichlet(np.ones(N), 2 * T + 5)).astype(np.float32),
    )
    found = stream_log_probabilities(network, variables, stream, window=T, stride=T, base=base.__getitem__)
    for first in (0, T, 2 * T):
        tokens, own = stream[first : first + T], base[first + 1 : first + 1 + T]
        z = np.asarray(network.apply(variables, (tokens[None, : len(own)], own[None])))[0]
        log_p = z - np.logaddexp.reduce(z, axis=1)[:, None]
        Y = stream[first + 1 : first + 1 + T]
        np.testing.assert_allclose(found[first : first + len(Y)], log_p[np.arange(len(Y)), Y], atol=1e-5)  # float32

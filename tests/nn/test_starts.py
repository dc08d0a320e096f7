"""Starts of a transformer: what each computes before training, against its closed form."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.data.contexts import PAD
from jexplicit.nn.networks import init_variables
from jexplicit.nn.sequences import Transformer, bigram_start, embedding_start, induction_start, output_start, sequence_loss

pytestmark = pytest.mark.slow
N, T = 10, 48
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, N, (3, T)).astype(np.int32)
SIZES: Any = {"vocab_size": N, "width": 64, "heads": 2, "layers": 2, "window": T, "positions": "learned", "tied": False}


def network_and_variables(**options: Any):
    network = Transformer(**{**SIZES, **options})
    return network, init_variables(network, jax.random.key(0), TOKENS[:1])


def copied(tokens: np.ndarray, match: float, gain: float) -> np.ndarray:
    """The logits of a loop: the tokens that followed the last one, in the document, weighed by exp(match)."""
    out = np.zeros((len(tokens), N))
    for t in range(len(tokens)):
        first = max((s for s in range(t + 1) if tokens[s] == PAD), default=0)
        weights = np.array([np.exp(match * (tokens[max(s - 1, first)] == tokens[t])) for s in range(first, t + 1)])
        p = np.bincount(tokens[first : t + 1], weights / weights.sum(), minlength=N)
        out[t] = gain * p * 2 / np.sqrt(3 + (p**2).sum())
    return out


def test_induction_heads_copy_what_followed_the_last_token():
    network, variables = network_and_variables()
    z = np.asarray(network.apply(induction_start(network, variables), TOKENS))
    expected = np.stack([copied(tokens, 16.0, 4.0) for tokens in TOKENS])
    # another place than the one before has a weight below e^-15 in the first layer; LayerNorm adds 1e-6 to variances of 0.03
    np.testing.assert_allclose(z, expected, atol=1e-3)


def test_induction_heads_of_many_tokens_find_the_one_that_occurred():
    network, variables = network_and_variables(vocab_size=400)
    tokens = np.concatenate([np.arange(100, 124), [107]])[None].astype(np.int32)
    z = np.asarray(network.apply(induction_start(network, variables), tokens))
    assert z[0, -1].argmax() == 108


@pytest.mark.parametrize("options", [{"layers": 1}, {"positions": "rotary"}, {"tied": True}, {"width": 8}, {"heads": 32}])
def test_induction_heads_need_room_and_learned_positions(options):
    network, variables = network_and_variables(**options)
    with pytest.raises(ValueError, match="two layers or more, 16 wide or more"):
        induction_start(network, variables)


def test_a_direct_connection_begins_as_the_bigram_model():
    network, variables = network_and_variables(direct=True)
    log_p = np.log(RNG.dirichlet(np.ones(N), N)).astype(np.float32)
    started = bigram_start(variables, log_p)
    started["params"]["output"] = jax.tree.map(jnp.zeros_like, started["params"]["output"])
    np.testing.assert_array_equal(network.apply(started, TOKENS), log_p[TOKENS])  # equal arithmetic
    np.testing.assert_array_equal(  # and of zeros it is the network without one
        network.apply(variables, TOKENS),
        network.clone(direct=False).apply({"params": {k: v for k, v in variables["params"].items() if k != "direct"}}, TOKENS),
    )
    with pytest.raises(ValueError, match="direct=True"):
        bigram_start(network_and_variables()[1], log_p)


def test_embeddings_from_vectors_have_their_directions_and_the_random_scale():
    _, variables = network_and_variables()
    V = RNG.normal(size=(N, 5)) * 7
    E, random = (np.asarray(v["params"]["embedding"]["embedding"]) for v in (embedding_start(variables, V), variables))
    np.testing.assert_allclose(E[:, :5] / np.linalg.norm(E[:, :5]), V / np.linalg.norm(V), atol=1e-6)  # float32
    assert np.isclose(E[:, :5].std(), random[:, :5].std(), rtol=1e-5)
    np.testing.assert_array_equal(E[:, 5:], random[:, 5:])
    with pytest.raises(ValueError, match="at most 64"):
        embedding_start(variables, np.ones((N, 65)))


def test_the_solved_output_layer_is_the_best_one_for_its_features():
    network, variables = network_and_variables(width=16)
    stream = np.tile([2, 3, 4, 3, 5, 6, 2, 7], 100).astype(np.int32)
    started = output_start(network, variables, stream)
    X, Y = stream[: 4 * T].reshape(4, T), stream[1 : 4 * T + 1].reshape(4, T)
    loss = lambda W: sequence_loss(True)(  # noqa: E731
        jnp.asarray(network.apply({"params": {**started["params"], "output": {"kernel": W}}}, X)), jnp.asarray(Y)
    ).mean()
    W = started["params"]["output"]["kernel"]
    cold = loss(variables["params"]["output"]["kernel"])
    assert loss(W) < cold - 0.5
    step = jax.grad(loss)(W)
    assert loss(W) - loss(W - 10 * step) < 0.02 * (cold - loss(W))  # near its minimum, which has a small ridge
    tied, of_tied = network_and_variables(tied=True)
    with pytest.raises(ValueError, match="tied=False"):
        output_start(tied, of_tied, stream)

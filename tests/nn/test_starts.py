"""A transformer's constructed start against its closed form."""

from typing import Any

import jax
import numpy as np
import pytest

from jexplicit.data.contexts import PAD
from jexplicit.nn.networks import init_variables
from jexplicit.nn.sequences import Transformer, induction_start

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

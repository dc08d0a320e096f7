"""Generating from a neural language model, and the split of a text in three."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.data.corpora import split_in_three
from jexplicit.lm.generation import generate
from jexplicit.lm.rows import network_model
from jexplicit.nn.networks import MLPLanguageModel, init_variables, network_outputs

pytestmark = pytest.mark.slow

N, K = 7, 2
START = np.zeros(0, np.int64)  # of a document


def test_sampling_has_the_model_s_probabilities():
    """The first token of 4000 documents: frequencies within 5 standard deviations, √(p (1 - p)/4000) < 0.008."""
    model = MLPLanguageModel(N, 2, (6,), dtype=jnp.float64, output_scale=3.0)
    made = init_variables(model, jax.random.key(0), np.zeros((1, K), np.int32))
    drawn = generate(jax.random.key(1), network_model(model, made, context=K), [START] * 4000, 1)
    p = jax.nn.softmax(network_outputs(model, made, jnp.zeros((1, K), int)))[0]
    np.testing.assert_allclose(np.bincount(drawn[:, 0], minlength=N) / 4000, p, atol=0.04)


def test_a_text_is_split_in_three():
    documents = [str(n) for n in range(103)]
    parts = split_in_three(documents, seed=1)
    assert [len(part) for part in parts] == [83, 10, 10] and sorted(sum(parts, [])) == sorted(documents)
    assert split_in_three(documents, seed=1) == parts != split_in_three(documents, seed=2)
    assert [len(part) for part in split_in_three(documents[:3])] == [1, 1, 1]
    with pytest.raises(ValueError, match="3 or more lines"):
        split_in_three(documents[:2])

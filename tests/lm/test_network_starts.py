"""Explicit warm starts of the neural language model, generating from it, and the split of a text in three."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import random_documents, stream_of

from jexplicit.counts.dense import count
from jexplicit.data.contexts import contexts
from jexplicit.data.corpora import split_in_three
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.network_starts import direct_start, output_start
from jexplicit.lm.generation import generate
from jexplicit.lm.rows.explicit import explicit_language_model
from jexplicit.lm.rows.network import network_model
from jexplicit.nn.networks import Direct, MLPLanguageModel, init_variables, network_outputs
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import scorer
from jexplicit.solvers.explicit import explicit_solution

pytestmark = pytest.mark.slow

N, K = 7, 2
STREAM = stream_of(random_documents(0, 60, N, 9))
X, Y = (part.astype(np.int32) for part in contexts(STREAM, K, eos=True))
GOAL = objective("softmax_cross_entropy")
START = np.zeros(0, np.int64)  # of a document


def network(direct: Direct = "tokens", **changes: Any):
    model = MLPLanguageModel(N, 2, (6,), direct, dtype=jnp.float64, **changes)
    return model, init_variables(model, jax.random.key(0), X)


def test_a_direct_start_is_the_explicit_model():
    solved = explicit_language_model(count(STREAM, radius=K, vocab_size=N), features="cat", eos=True, dtype=jnp.float64)
    model, made = network()
    start = direct_start(made, solved)
    assert scorer(model, GOAL)(start, X, Y).loss == pytest.approx(evaluate(solved, STREAM).loss, rel=1e-12)
    hidden = [v["params"]["network"]["hidden_1"]["Dense_0"]["kernel"] for v in (made, start)]
    assert (hidden[0] == hidden[1]).all() and hidden[0].any()  # random: it learns from the first step on


def test_an_output_start_is_the_explicit_solution_of_the_hidden_features():
    """By a loop over positions: F = Σ φ yᵀ, one observation of the mean features per output on top; then Eq. 3."""
    model, made = network("none")
    start = output_start(model, made, X, Y)
    params = jax.tree.map(np.asarray, made["params"])
    C, kernel = params["embedding"]["embedding"], params["network"]["hidden_1"]["Dense_0"]["kernel"]
    h = np.array([np.tanh(np.concatenate([C[token] for token in context]) @ kernel) for context in X])
    phi = h - h.min(axis=0)
    phi = phi * start.K / phi.sum(axis=1).mean()
    F = np.zeros((6, N))
    for features, target in zip(phi, Y, strict=True):
        F[:, target] += features
    U = explicit_solution(jnp.asarray(F + phi.mean(axis=0)[:, None]), start.K)
    expected = phi @ U
    logits = np.asarray(model.apply(start.variables, X))
    np.testing.assert_allclose(logits, expected, rtol=1e-9)
    score = scorer(model, GOAL)
    assert score(start.variables, X, Y).loss == pytest.approx(start.loss) and start.loss < score(made, X, Y).loss
    with pytest.raises(ValueError, match="no positions"):
        output_start(model, made, X[:0], Y[:0])


def test_sampling_has_the_model_s_probabilities():
    """The first token of 4000 documents: frequencies within 5 standard deviations, √(p (1 - p)/4000) < 0.008."""
    model, made = network("none", output_scale=3.0)
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

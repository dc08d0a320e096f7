"""Two models in one mix."""

import jax
import numpy as np
import pytest
from counted_models import fitted, stream, tokenizer

import jexplicit
from jexplicit.lm.core.model import token_model
from jexplicit.lm.counted.combine import combine, mass_log_odds
from jexplicit.lm.evaluation import evaluate, score
from jexplicit.lm.generation import generate, next_token
from jexplicit.lm.reading import init, load_state, predict, read, save_state

HELD, TEST = stream(6, 5), stream(3, 7)


def loss(model):
    return evaluate(model, TEST).loss


def test_a_node_has_the_odds_of_its_leaves():
    model, rng = fitted(), np.random.default_rng(0)
    log_p = np.log(rng.dirichlet(np.ones(model.vocab_size), 2))
    node = np.arange(model.vocab_size - 1)
    found = np.stack([mass_log_odds(model, log_p, np.full(len(node), row), node) for row in (0, 1)])
    np.testing.assert_allclose(model.tree.log_probabilities(found), log_p, atol=1e-6)
    assert model.tree.depths[0] == 0 and len(model.tree.depths) == len(node)


def test_a_copy_leaves_the_loss():
    model = fitted()
    assert loss(combine(model, model, HELD)) == pytest.approx(loss(model), abs=0.05)


def test_a_model_that_knows_more_helps_and_each_prediction_is_normalised():
    """Pairs of a text that the counted model has not seen; and one whose own weights are halved."""
    first = fitted()
    table = np.full((first.vocab_size, first.vocab_size), -3.0, np.float32)
    rows = np.zeros_like(table)
    np.add.at(rows, (HELD[:-1], HELD[1:]), 1)  # which the counted model has not seen
    other = token_model([jax.device_put(np.log(np.exp(table) + rows))], "cat", False)
    broken = first._replace(weights=0.5 * first.weights)
    for model in (first, broken):
        both = combine(model, other, stream(8, 9))
        assert loss(both) < min(loss(model), loss(other)) + 0.02
    assert loss(both) < min(loss(broken), loss(other)) - 0.02
    state = read(both, init(both), TEST[1:20])[1]
    log_p = predict(both, state)
    np.testing.assert_allclose(np.exp(log_p).sum(), 1, atol=1e-6)
    np.testing.assert_allclose(read(both, state, TEST[20:21])[0], log_p[TEST[20]], atol=1e-3)
    parts = np.concatenate([score(both, TEST)[:19], read(both, state, TEST[20:60])[0]])
    np.testing.assert_allclose(parts, read(both, init(both), TEST[1:60])[0], atol=1e-3)
    np.testing.assert_allclose(next_token(both, TEST[1:20]), log_p, atol=1e-3)
    assert generate(jax.random.key(0), both, TEST[1:6], 2, temperature=0).shape == (2,)
    assert len(score(both, TEST, separate=True)) == np.count_nonzero(TEST)
    assert both.names[-1] == "other model" and both.nbytes > model.nbytes and "Combination(" in repr(both)


def test_two_models_in_one_file_and_their_state(tmp_path):
    model, file = fitted(), tmp_path / "both.safetensors"
    other = token_model([jax.device_put(np.eye(model.vocab_size, dtype="f4"))], "cat", False)
    both = combine(model, other, HELD)
    jexplicit.TextModel(both, tokenizer(), {}).save(file)
    found = jexplicit.load_model(file)
    assert (loss(found.model), found.about["method"]) == (loss(both), "Combination")
    state = read(both, init(both), TEST[1:20])[1]
    save_state(file, state)
    np.testing.assert_array_equal(predict(both, load_state(file)), predict(both, state))
    with pytest.raises(ValueError, match="explain each of them"):
        found.explain("the cat")


def test_what_cannot_be_combined():
    with pytest.raises(ValueError, match="same tokenizer"):
        combine(fitted(), token_model([np.eye(2, dtype="f4")], "cat", False), HELD)
    with pytest.raises(ValueError, match="give some text"):
        combine(fitted(), fitted(), np.array([0, 0, 0]))
    for wrong, message in (([1, 2], "encode_documents"), ([0, 99, 0], "token id 99 and a model")):
        with pytest.raises(ValueError, match=message):
            combine(fitted(), fitted(), np.array(wrong))
    with pytest.raises(ValueError, match="combined with a count-based model"):
        combine(fitted(), type("Odd", (), {"vocab_size": fitted().vocab_size})(), HELD)
    with pytest.raises(ValueError, match="not of this model"):
        predict(combine(fitted(), fitted(), HELD), init(fitted()))
    assert jexplicit.combine is combine and tokenizer().vocab_size == fitted().vocab_size

"""Reading with counted models, token by token and at once, and what users do with any model.

Tolerances: evidence is stored in float16 and log-odds in float32, so that sums in another order differ by some 1e-3 nats where
a number is rounded the other way, most often by 1e-6.
"""

import jax
import numpy as np
import pytest
from counted_models import HISTORIES, fitted, histories, stream, tokenizer

from jexplicit.data.contexts import PAD
from jexplicit.data.inputs import MinimalPair
from jexplicit.lm.core.model import read_text, token_model
from jexplicit.lm.counted import reading
from jexplicit.lm.evaluation import document_losses, evaluate, log_distributions, preferences, score
from jexplicit.lm.generation import generate, generate_text, next_token
from jexplicit.lm.reading import expect, init, load_state, predict, read, save_state
from jexplicit.lm.text_model import TextModel

ATOL = 2e-3


def random_key():
    return jax.random.key(0)


def documents(ids):
    pads = np.flatnonzero(ids == PAD)
    return [np.append(ids[a:b], PAD) for a, b in zip(pads[:-1], pads[1:], strict=True)]


def in_parts(model, ids, size):
    state, found = init(model), []
    for at in range(1, len(ids), size):
        log_p, state = read(model, state, ids[at : at + size])
        found.append(log_p)
    return np.concatenate(found), state


@pytest.mark.parametrize("history", HISTORIES)
def test_what_is_read_in_parts_is_what_is_read_at_once(history):
    model, ids = fitted(history), stream()
    whole = read(model, init(model), ids[1:])[0]
    for size in (17, 50):
        np.testing.assert_allclose(in_parts(model, ids, size)[0], whole, atol=ATOL)


@pytest.mark.parametrize("history", histories("document", slow=("none", "adaptive:document")))
def test_documents_before_do_not_matter_where_histories_end_with_them(history):
    model, ids = fitted(history), stream()
    alone = np.concatenate([score(model, ids) for ids in documents(ids)])
    np.testing.assert_allclose(score(model, ids), alone, atol=ATOL)


@pytest.mark.parametrize("history", HISTORIES)
def test_separate_documents_are_scored_each_as_the_only_one(history):
    model, ids = fitted(history), stream()
    alone = np.concatenate([score(model, ids) for ids in documents(ids)])
    np.testing.assert_allclose(score(model, ids, separate=True), alone, atol=ATOL)


@pytest.mark.parametrize("history", HISTORIES)
def test_a_prediction_is_normalised_and_that_of_reading(history):
    model, ids = fitted(history), stream(2)
    whole, state = read(model, init(model), ids[1:90])[0], read(model, init(model), ids[1:60])[1]
    for at in range(60, 90):  # in an adaptive model blocks of decisions end within some of these tokens
        log_p = predict(model, state)
        np.testing.assert_allclose(np.exp(log_p).sum(), 1, atol=1e-6)
        one, state = read(model, state, ids[at : at + 1])
        if at < 89 and (ids[at] != PAD or model.eos):
            np.testing.assert_allclose([one[0], log_p[ids[at]]], whole[at - 1], atol=ATOL)


@pytest.mark.parametrize("history", histories("adaptive", slow=("document",)))
def test_what_was_expected_is_not_evaluated_again(history):
    model, ids = fitted(history), stream(1)
    state = other = read(model, init(model), ids[1:8])[1]
    for token in ids[8:22]:
        log_p, after = expect(model, state)
        np.testing.assert_allclose(log_p, predict(model, other), atol=ATOL)
        state, other = after(int(token)), read(model, other, [int(token)])[1]
    assert state.done == other.done
    np.testing.assert_allclose(state.base, other.base, atol=ATOL)
    np.testing.assert_array_equal(state.tokens, other.tokens)


@pytest.mark.parametrize("history, eos", [("none", True), ("all", True), ("adaptive:document", True), ("window:40", False)])
def test_losses_of_a_stream_and_of_parts_of_it(history, eos):
    model, ids = fitted(history, eos), stream()
    log_p = score(model, ids)
    assert len(log_p) == len(ids) - 1 if eos else np.count_nonzero(ids)
    evaluation = evaluate(model, ids)
    np.testing.assert_allclose(evaluation.loss, -log_p.mean(), rtol=1e-5)
    some = evaluate(model, ids, sample=40, seed=3)
    assert some.positions == 40
    if history != "none":
        np.testing.assert_allclose(some.nll, -log_p[:40].sum(), atol=ATOL)
    else:
        from jexplicit.lm.core.model import draw_sample

        np.testing.assert_allclose(some.nll, -log_p[draw_sample(len(log_p), 40, 3)].sum(), atol=ATOL)
    np.testing.assert_allclose(document_losses(model, ids).nll.sum(), -log_p.sum(), atol=ATOL)
    reports = []
    score(model, ids, progress=lambda done, total: reports.append((done, total)))
    assert reports[-1] == (len(ids) - 1, len(ids) - 1)


@pytest.mark.parametrize("history", histories("none", slow=("window:40", "adaptive")))
def test_distributions_at_places_are_those_of_predictions(history):
    model, ids = fitted(history), stream(2)
    text = read_text(ids, 1)
    past = text.past.take(np.array([0, 5, 60, 70]))
    found = log_distributions(model, text.X[[0, 5, 60, 70]], past=past)
    for place, row in zip(past.places, found, strict=True):
        np.testing.assert_allclose(row, predict(model, read(model, init(model), ids[1:place])[1]), atol=ATOL)
    with pytest.raises(ValueError, match="past"):
        log_distributions(model, text.X)
    assert log_distributions(model, text.X[:0], past=text.past.take(slice(0))).shape == (0, model.vocab_size)


def test_a_model_says_what_it_is():
    model = fitted("all")
    assert (model.vocab_size, model.radius, model.eos) == (tokenizer().vocab_size, 3, False)
    assert model.names[:4] == ("last 0", "last 1", "last 2", "last 3")
    windows = tuple(f"{name}, window 100" for name in ("last 0", "last 1", "part + word"))
    assert model.names[4:] == ("part + word", "line", "2 + 3 back", *windows)
    assert repr(model) == f"CountedModel(10 contexts, {model.vocab_size} tokens, history='all', eos=False)"
    assert model.nbytes > 10_000 and model.scalars > len(model.weights)


def test_next_tokens_and_their_restriction():
    model, ids = fitted(), stream(1)[1:30]
    np.testing.assert_allclose(next_token(model, ids), predict(model, read(model, init(model), ids)[1]), atol=1e-6)
    some = next_token(model, ids, first=[4, 7])
    assert np.flatnonzero(np.isfinite(some)).tolist() == [4, 7]
    np.testing.assert_allclose(np.exp(some[[4, 7]]).sum(), 1, atol=1e-6)
    with pytest.raises(ValueError, match="the model has"):
        next_token(model, [model.vocab_size])


@pytest.mark.parametrize("history", histories("adaptive", slow=("none", "document")))
def test_texts_are_written_as_by_other_models(history):
    model, prompts = fitted(history), [stream(1)[1:9], stream(1)[1:5], np.zeros(0, np.int32)]
    greedy = generate(random_key(), model, prompts[0], 3, temperature=0)
    state = read(model, init(model), prompts[0])[1]
    for token in greedy:
        row = predict(model, state)
        assert token == np.argmax(np.where(np.arange(len(row)) == PAD, -np.inf, row))
        state = read(model, state, [int(token)])[1]
    together = generate(random_key(), model, prompts, 3, temperature=0.8, top_k=5, banned=(1,))
    keys = jax.random.split(random_key(), 3)
    for key, prompt, text in zip(keys, prompts, together, strict=True):
        np.testing.assert_array_equal(text, generate(key, model, prompt, 3, temperature=0.8, top_k=5, banned=(1,)))
    assert not np.isin(together, [PAD, 1]).any()
    begun = generate(random_key(), model, prompts, 2, first=[[5], None, [6]])
    assert begun[0, 0] == 5 and begun[2, 0] == 6
    with pytest.raises(ValueError, match="every token is banned"):
        generate(random_key(), model, prompts[0], 2, banned=tuple(range(model.vocab_size)))
    with pytest.raises(ValueError, match="temperature"):
        generate(random_key(), model, prompts[0], 2, temperature=-1)


@pytest.mark.parametrize("history", histories("none", slow=("all",)))
def test_after_the_end_of_a_document_there_are_only_pads(history):
    model = fitted(history, True)
    texts = generate(random_key(), model, [stream(1)[1:-2]] * 2, 6, temperature=0.7)
    for text in texts:
        assert not text[text.argmin() :].any() or text.all()


def test_text_in_and_text_out():
    model = TextModel(fitted(), tokenizer(), {})
    log_p = model.score(["to be", "", "or not"])
    assert [len(of_one) for of_one in log_p] == [5, 0, 6]
    assert model.perplexity(["to be or not"]) > 1
    top = model.next_token("to b", 3)
    assert top[0][1] >= top[1][1] >= top[2][1]
    assert model.generate("to b", 4, temperature=0) == generate_text(
        random_key(), model.model, tokenizer(), "to b", 4, temperature=0
    )
    found = preferences(model.model, tokenizer(), [MinimalPair("to be or not", "ot eb ro ton", "")])
    assert found[0] > 0
    with pytest.raises(ValueError, match="no n-gram model"):
        model.save("model.arpa")


@pytest.mark.parametrize("history", histories("adaptive", slow=("none", "document")))
def test_a_state_is_saved_and_loaded(history, tmp_path):
    model, ids = fitted(history), stream(2)
    state = read(model, init(model), ids[1:60])[1]
    save_state(tmp_path / "state", state)
    loaded = load_state(tmp_path / "state")
    np.testing.assert_array_equal(read(model, state, ids[60:])[0], read(model, loaded, ids[60:])[0])


def test_a_state_of_another_model_is_refused():
    model, other = fitted("document"), token_model([np.eye(2, dtype="f4")], "cat", False)
    with pytest.raises(ValueError, match="not of this model"):
        read(model, init(other), [3])
    with pytest.raises(ValueError, match="not of this model"):
        read(model, init(fitted("none")), [3])
    turned = tuple((name, gate._replace(U=-gate.U)) for name, gate in model.gates)
    with pytest.raises(ValueError, match="not of this model"):
        predict(model, init(model._replace(gates=turned)))
    with pytest.raises(ValueError, match="counted model"):
        predict(other, init(model))
    with pytest.raises(ValueError, match="token id"):
        read(model, init(model), [model.vocab_size])


@pytest.mark.slow
def test_long_texts_are_read_in_pieces(monkeypatch):
    for history in ("none", "document", "adaptive"):
        model, ids = fitted(history), stream(3)
        whole = score(model, ids)
        with monkeypatch.context() as patch:
            patch.setattr(reading, "_piece", 50)
            patch.setattr(reading, "_decisions", 100)
            patch.setattr(reading, "_reported", 30)
            np.testing.assert_allclose(score(model, ids), whole, atol=ATOL)
            np.testing.assert_allclose(evaluate(model, ids, sample=len(whole) - 1).nll, -whole[:-1].sum(), atol=3.0)
            assert reading.distributions_at(model, ids, np.array([3, 40, 70])).shape == (3, model.vocab_size)

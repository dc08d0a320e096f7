"""Counted models: fitted, read token by token and at once, combined, explained, coded with, and in files.

Tolerances: evidence is stored in float16 and log-odds in float32, so that sums in another order differ by some 1e-3 nats where
a number is rounded the other way, most often by 1e-6.
"""

import functools
from typing import Any

import chex
import jax
import numpy as np
import pytest
from refusals import refused

import jexplicit
from jexplicit.data.text import MinimalPair
from jexplicit.data.tokenizers import PAD, Tokenizer, encode_documents, train_tokenizer
from jexplicit.lm import evaluation
from jexplicit.lm.attribution import account, divide, explain
from jexplicit.lm.counted import evidence
from jexplicit.lm.counted import model as core
from jexplicit.lm.counted.contexts import Context, Text
from jexplicit.lm.counted.evidence import KINDS
from jexplicit.lm.counted.model import CountedModel, CountedState, begin, each, fit_counted, look_ahead, orders
from jexplicit.lm.evaluation import (
    Combination,
    CombinationState,
    combine,
    document_losses,
    evaluate,
    expect,
    init,
    log_distributions,
    predict,
    preferences,
    read,
    score,
)
from jexplicit.lm.fit import fit_model
from jexplicit.lm.generation import generate, next_token
from jexplicit.lm.model import Past, draw_sample, read_text, token_model
from jexplicit.lm.text_model import TextModel, load_model, read_model_file, save_model
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.runs.devices import data_mesh

ATOL = 2e-3
KEY = functools.partial(jax.random.key, 0)
CONTEXTS = (
    *orders(0, 3),
    *(Context("part", "word"), Context("line"), Context(2, 3)),
    *each((), (1,), ("part", "word"), window=100),
)
GATES = (("place", "known"), ("place", "node"))
_words = "to be or not that is the question whether nobler in mind suffer".split()


def histories(*short: str, slow: tuple[str, ...] = ()) -> list[Any]:
    """Histories to test with; some only among the slow tests."""
    return [*short, *(pytest.param(history, marks=pytest.mark.slow) for history in slow)]


HISTORIES = histories("all", "online:document+layer", slow=("none+layer", "window:40", "document", "online"))


def texts(n: int, seed: int) -> list[str]:
    """Documents of two lines."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_words, 11)) + "\n" + " ".join(rng.choice(_words[:6], 5)) for _ in range(n)]


@functools.cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(30, 0), kind="char")


@functools.cache
def train() -> np.ndarray:
    return encode_documents(tokenizer(), texts(30, 0))


def stream(n: int = 3, seed: int = 1) -> np.ndarray:
    """Another text of the same words."""
    return encode_documents(tokenizer(), texts(n, seed)).astype(np.int32)


@functools.cache
def fitted(history: str = "none", eos: bool = False) -> CountedModel:
    """A model of characters; with a layer on their vectors where the history has "+layer" behind it."""
    history, _, layer = history.partition("+")
    shape: Any = {"contexts": CONTEXTS, "gates": GATES, "eos": eos, "layer": bool(layer)}
    return fit_counted(train(), tokenizer().vocab_size, tokenizer(), history=history, **shape)


# Fits


def test_any_number_of_devices_fits_the_same_model_to_the_bit_and_says_how_many_numbers():
    shape: Any = {"vocab_size": tokenizer().vocab_size, "tokenizer": tokenizer()}
    options = Options(history="online", gates=1)
    fits = [fit_model("context-mixing", TrainingText(train(), mesh=data_mesh(n), **shape), options) for n in (1, 3)]
    chex.assert_trees_all_equal(*(jax.tree.leaves(one.model) for one in fits))
    model, info = fit_model("context-mixing", TrainingText(train(), **shape), Options(history="none", gates=0))
    assert isinstance(model, CountedModel) and model.gates == () and evaluate(model, stream()).perplexity < 4
    assert info["scalars"] == len(model.weights) and info["contexts"] == len(model.parts) and info["solve_seconds"] > 0


@pytest.mark.parametrize("history", ["none", "document", "online"])
def test_a_tiny_text_is_predicted_better_than_by_chance(history):
    for few in (["to be or not to be"], ["a-b a-c"] * 5, ["the cat sat on the mat"] * 4):
        model = jexplicit.fit(few, tokenizer="char", history=history)
        assert model.perplexity(few) < model.tokenizer.vocab_size
    assert jexplicit.fit(texts(8, 3), tokenizer="char", history=history).perplexity(texts(22, 4)) < tokenizer().vocab_size / 2
    assert all(np.isfinite(fit_counted(np.array(ids), 4, history=history).weights).all() for ids in ([0, 0, 0], [0, 2, 0]))


def test_a_long_text_is_fitted_shard_by_shard(monkeypatch):
    """As if memory could not hold its evidence: an eighth of the cells makes tables and weights, and gates see a part."""
    ids = stream(2)
    shape: Any = {"history": "none", "contexts": CONTEXTS, "gates": GATES, "least": 1}
    whole = fit_counted(train(), tokenizer().vocab_size, tokenizer(), **shape)
    monkeypatch.setattr(core, "_late", 4000)
    for name, size in (("_shard", 1 << 10), ("_keys_at_once", 1 << 12), ("SORTED_ONCE", 1), ("LONG", 1 << 12)):
        monkeypatch.setattr(evidence, name, size)
    monkeypatch.setattr(core, "LONG", 1 << 12)
    model = fit_counted(train(), tokenizer().vocab_size, tokenizer(), **shape)
    for one, two in zip(model.parts, whole.parts, strict=True):  # all cells are there
        assert (one.cells is None) == (two.cells is None)
        if one.cells is not None and two.cells is not None:
            np.testing.assert_array_equal(one.cells.low, two.cells.low)
            np.testing.assert_array_equal(one.cells.seen.n, two.cells.seen.n)
    assert evaluate(model, ids).loss == pytest.approx(evaluate(whole, ids).loss, abs=0.1)


def test_a_text_is_shuffled_by_whole_documents(monkeypatch):
    monkeypatch.setattr(core, "_piece", 5)
    texts = ["abcdefghij", "klmnopqrst", "uvwxyzABCD", "EFGHIJKLMN"] * 100
    model = jexplicit.fit(texts, tokenizer="char", gates=0)
    for text in texts[:4]:
        found = [model.next_token(text[:n], top=1)[0] for n in range(1, 10)]
        assert "".join(token for token, _ in found) == text[1:] and min(p for _, p in found) > 0.95  # none goes on with another


def test_bad_input_is_refused_before_anything_is_counted():
    N = tokenizer().vocab_size
    for bad, message in [
        ({"history": "some"}, "choose none, document"),
        ({"stages": 0}, "at least one"),
        ({"contexts": ()}, "at least one"),
        ({"gates": (("places",),)}, "places: choose among place"),
        ({"N": 3}, "in a vocabulary of 3"),
        ({"ids": train()[:2]}, "token stream"),
    ]:
        refused(message, fit_counted, **{"ids": train(), "N": N, "tokenizer": tokenizer(), **bad})


# A layer on word vectors


def topics(documents: int, seed: int) -> np.ndarray:
    """Documents of 30 tokens, the six of one topic or of another, in random order."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, 2, documents)
    return np.concatenate([[0], *([*(rng.integers(1, 7, 30) + 6 * topic), 0] for topic in own)]).astype(np.int32)


def test_topics_that_contexts_do_not_see_are_predicted():
    """Contexts know the token before; the topic is known from two, and more of them are surer."""
    ids = topics(10, 3)
    shape = {"history": "none", "contexts": orders(0, 0), "gates": ()}
    without, layer = (evaluate(fit_counted(topics(400, 2), 13, layer=layer, **shape), ids).loss for layer in (False, True))
    assert layer < without - 0.2  # log 2 = .69 nats at most, of them a part while rows have a strong ridge


# Reading


@pytest.mark.parametrize("history", HISTORIES)
def test_parts_documents_and_predictions_are_read_as_the_whole(history):
    model, ids = fitted(history), stream()
    whole = read(model, init(model), ids[1:])[0]
    for size in (17, 50):
        state, found = init(model), []
        for at in range(1, len(ids), size):
            log_p, state = read(model, state, ids[at : at + size])
            found.append(log_p)
        np.testing.assert_allclose(np.concatenate(found), whole, atol=ATOL)
    pads = np.flatnonzero(ids == PAD)
    alone = np.concatenate([score(model, ids[a : b + 1]) for a, b in zip(pads[:-1], pads[1:], strict=True)])
    np.testing.assert_allclose(score(model, ids, separate=True), alone, atol=ATOL)
    if "document" in history or "none" in history:  # documents before do not matter where histories end with them
        np.testing.assert_allclose(score(model, ids), alone, atol=ATOL)
    state = other = read(model, init(model), ids[1:60])[1]
    for at in range(60, 90):  # in an online model blocks of decisions end within some of these tokens
        log_p, (expected, after) = predict(model, other), expect(model, state)
        np.testing.assert_allclose(np.exp(log_p).sum(), 1, atol=1e-6)
        np.testing.assert_allclose(expected, log_p, atol=ATOL)
        one, other = read(model, other, ids[at : at + 1])
        state = after(int(ids[at]))
        if ids[at] != PAD:  # which is not predicted
            np.testing.assert_allclose([one[0], log_p[ids[at]]], whole[at - 1], atol=ATOL)
    assert state.done == other.done  # what was expected is not evaluated again
    np.testing.assert_allclose(state.base, other.base, atol=ATOL)
    np.testing.assert_array_equal(state.tokens, other.tokens)
    text, places = read_text(ids, 1), np.array([0, 5, 60, 70])
    rows = log_distributions(model, text.X[places], past=text.past.take(places))
    for place, row in zip(text.past.places[places], rows, strict=True):
        np.testing.assert_allclose(row, predict(model, read(model, init(model), ids[1:place])[1]), atol=ATOL)


@pytest.mark.parametrize("history", HISTORIES)
def test_a_model_and_a_state_in_files_predict_the_same_bits(history, tmp_path):
    model, ids = fitted(history), stream(2)
    state = read(model, init(model), ids[1:60])[1]
    save_model(tmp_path / "state", state)
    save_model(tmp_path / "model", model)
    again, same = read_model_file(tmp_path / "state", CountedState)[0], read_model_file(tmp_path / "model")[0]
    assert isinstance(same, CountedModel) and (repr(same), same.names) == (repr(model), model.names)
    np.testing.assert_array_equal(read(same, again, ids[60:])[0], read(model, state, ids[60:])[0])


@pytest.mark.parametrize("history, eos", [("none", True), ("online:document+layer", True), ("window:40", False)])
def test_losses_of_a_stream_and_of_parts_of_it(history, eos):
    model, ids, reports = fitted(history, eos), stream(), []
    log_p = score(model, ids, progress=lambda *done: reports.append(done))
    assert len(log_p) == len(ids) - 1 if eos else np.count_nonzero(ids)
    assert reports[-1] == (len(ids) - 1, len(ids) - 1)
    np.testing.assert_allclose(evaluate(model, ids).loss, -log_p.mean(), rtol=1e-5)
    drawn = np.arange(40) if history != "none" else draw_sample(len(log_p), 40, 3)
    np.testing.assert_allclose(evaluate(model, ids, sample=40, seed=3), (-log_p[drawn].sum(), 40), atol=ATOL)
    np.testing.assert_allclose(document_losses(model, ids).nll.sum(), -log_p.sum(), atol=ATOL)


def test_static_is_online_with_a_stopped_past():
    """A static model sees of the text that is read nothing but the columns: a repeated document has the same log p."""
    twice = np.concatenate([stream(1), stream(1)[1:]])
    half = len(twice) // 2
    still, moving = (read(fitted(history), init(fitted(history)), twice[1:])[0] for history in ("none", "online"))
    np.testing.assert_allclose(still[:half], still[half:], atol=1e-5)
    assert moving[:half].sum() < moving[half:].sum() - 4


# Texts, and what is refused


@pytest.mark.parametrize("history", histories("online", slow=("none", "document")))
def test_texts_are_written_as_by_other_models(history):
    model, prompts = fitted(history), [stream(1)[1:9], stream(1)[1:5], np.zeros(0, np.int32)]
    state = read(model, init(model), prompts[0])[1]
    for token in generate(KEY(), model, prompts[0], 3, temperature=0):
        row = predict(model, state)
        assert token == np.argmax(np.where(np.arange(len(row)) == PAD, -np.inf, row))
        state = read(model, state, [int(token)])[1]
    together = generate(KEY(), model, prompts, 3, temperature=0.8, top_k=5, banned=(1,))
    for key, prompt, text in zip(jax.random.split(KEY(), 3), prompts, together, strict=True):
        np.testing.assert_array_equal(text, generate(key, model, prompt, 3, temperature=0.8, top_k=5, banned=(1,)))
    assert not np.isin(together, [PAD, 1]).any()
    begun = generate(KEY(), model, prompts, 2, first=[[5], None, [6]])
    assert begun[0, 0] == 5 and begun[2, 0] == 6
    for text in generate(KEY(), fitted("none", True), [stream(1)[1:-2]] * 2, 6, temperature=0.7):
        assert not text[text.argmin() :].any() or text.all()  # after the end of a document there are only pads


def test_names_of_contexts_preferences_and_the_next_token_among_some():
    windows = tuple(f"{name}, window 100" for name in ("last 0", "last 1", "part + word"))
    assert fitted("all").names == ("last 0", "last 1", "last 2", "last 3", "part + word", "line", "2 + 3 back", *windows)
    assert [len(of_one) for of_one in TextModel(fitted(), tokenizer(), {}).score(["to be", "", "or not"])] == [5, 0, 6]
    good, bad = (score(fitted("all"), encode_documents(tokenizer(), [text])).sum() for text in ("to be or not", "be be"))
    found = preferences(fitted("all"), tokenizer(), [MinimalPair("to be or not", "be be", "")])  # no sentence sees another
    np.testing.assert_allclose(found, [good - bad], atol=ATOL)
    some = np.exp(next_token(fitted(), stream(1)[1:30], first=[4, 7]))
    assert np.flatnonzero(some).tolist() == [4, 7] and some.sum() == pytest.approx(1)


def test_states_of_other_models_and_calls_that_are_refused(tmp_path):
    model, other, text = fitted("document"), token_model([np.eye(2, dtype="f4")], "cat", False), read_text(stream(2), 1)
    odd: Any = type("Odd", (), {"vocab_size": model.vocab_size})()
    turned, plain = tuple((name, gate._replace(U=-gate.U)) for name, gate in model.gates), model._replace(gates=())
    for said, call in [
        ("not of this model", lambda: read(model, init(other), [3])),
        ("not of this model", lambda: read(model, init(fitted("none")), [3])),
        ("not of this model", lambda: predict(model, init(model._replace(gates=turned)))),
        ("not of this model", lambda: predict(plain, init(plain._replace(weights=-plain.weights)))),
        ("not of this model", lambda: predict(combine(fitted(), fitted(), stream(6, 5)), init(fitted()))),
        ("not of this model", lambda: predict(other, init(model))),
        ("token id", lambda: read(model, init(model), [model.vocab_size])),
        ("token id", lambda: next_token(model, [model.vocab_size])),
        ("past", lambda: log_distributions(model, text.X)),
        ("past", lambda: explain(model, text.X, text.Y)),
        ("every token is banned", lambda: generate(KEY(), model, [3], 2, banned=tuple(range(model.vocab_size)))),
        ("no n-gram model", lambda: TextModel(model, tokenizer(), {}).save(tmp_path / "model.arpa")),
        ("same tokenizer", lambda: combine(model, other, stream(6, 5))),
        ("give some text", lambda: combine(model, model, np.array([0, 0, 0]))),
        ("encode_documents", lambda: combine(model, model, np.array([1, 2]))),
        ("token id 99 and a model", lambda: combine(model, model, np.array([0, 99, 0]))),
        ("give a model of context mixing and any language model", lambda: combine(model, odd, stream(6, 5))),
    ]:
        refused(said, call)


@pytest.mark.parametrize("history", ["none", "online"])
def test_long_texts_are_read_in_pieces(history, monkeypatch):
    model, ids = fitted(history), stream(3)
    whole = score(model, ids)
    for name, size in (("_read_at_once", 50), ("_decisions", 100), ("_reported", 30)):
        monkeypatch.setattr(core, name, size)
    monkeypatch.setattr(evaluation, "_scored_at_once", 30)
    np.testing.assert_allclose(score(model, ids), whole, atol=ATOL)
    np.testing.assert_allclose(evaluate(model, ids, sample=len(whole) - 1).nll, -whole[:-1].sum(), atol=3.0)
    past = Past(ids, np.array([3, 40, 70]))
    assert log_distributions(model, np.zeros((3, 1), int), past=past).shape == (3, model.vocab_size)


# Accounts of predictions: sums that are exact, of some 20 numbers below 10 in float32


@pytest.mark.parametrize("history", HISTORIES)
def test_entries_add_up_to_what_reading_uses_and_tokens_and_alternatives_are_explained(history):
    model, ids = fitted(history), stream(2)
    state = read(model, init(model), ids[1:8])[1]
    own, log_p = account(model, state, ids[8:60]), read(model, state, ids[8:60])[0]
    np.testing.assert_allclose(own.entries.sum(axis=1), own.log_odds, atol=1e-5)
    _, nats, own_log_p = own.by_token(52)
    np.testing.assert_allclose(own_log_p, log_p, atol=1e-5)
    assert np.abs(own.entries[:, -1]).max() > 1  # evidence of more than 9.5 nats, which is cut off
    np.testing.assert_allclose(nats.sum(axis=1), log_p + np.bincount(own.decisions.place) * np.log(2), atol=1e-4)
    text, m = read_text(ids, model.context), np.array([0, 1, 40, 70])
    why = explain(model, text.X[m], text.Y[m], past=text.past.take(m))
    assert why.names[-3:] == ("bias", "clipped", "even odds") and len(why.tokens) == len(why.names)
    assert ("word vectors" in why.names) == ("layer" in history)
    np.testing.assert_allclose(why.evidence.sum(axis=1), why.log_probability, atol=1e-4)
    np.testing.assert_allclose(why.log_probability, score(model, ids)[m], atol=2e-3)
    others = np.stack([text.Y[m], np.roll(text.Y[m], 1), 0 * text.Y[m]], axis=1)  # also `<pad>`, which is not predicted
    several = explain(model, text.X[m], others, past=text.past.take(m))
    rows = log_distributions(model, text.X[m], past=text.past.take(m))
    np.testing.assert_allclose(several.log_probability, np.take_along_axis(rows, others, axis=1), atol=ATOL)
    np.testing.assert_allclose(several.evidence.sum(axis=2), several.log_probability, atol=1e-4)
    np.testing.assert_allclose(several.logits[:, 0], why.logits, atol=5e-3)


def test_a_gate_speaks_through_its_evidence():
    """Without evidence of a context, the log-odds change by its entry where no direction and no sum is clipped."""
    model, ids = fitted(), stream(1)
    own, places = account(model, begin(model), ids[1:]), np.arange(1, len(ids) - 1)
    place = np.repeat(places, model.tree.length[ids[1:-1]]).astype(np.int32)
    ahead = look_ahead(model, begin(model), ids, own.decisions._replace(place=place))
    for part in (0, 3):
        X = ahead.X.copy()
        X[KINDS * part : KINDS * (part + 1)] = 0
        a, b = divide(model, begin(model).gates, ahead._replace(X=X))[1], ahead.log_odds
        U = [gate.U for _, gate in model.gates]
        z = [np.abs(x[: len(u)].T.astype(np.float32) @ u).max(axis=1) < 7 for u in U for x in (ahead.X, X)]
        calm = np.all(z, axis=0) & (np.abs(b) < 9) & (np.abs(a) < 9) & (np.abs(own.entries[:, -1]) < 1e-5)
        assert calm.sum() > 20
        np.testing.assert_allclose((b - a)[calm], own.entries[calm, part], atol=1e-4)


# Two models in one mix

HELD, TEST = stream(6, 5), stream(3, 7)


def loss(model):
    return evaluate(model, TEST).loss


def test_a_node_has_the_odds_of_its_leaves():
    """With weight for the other model alone, a combination is the other model."""
    model, N = fitted(), tokenizer().vocab_size
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(N), N)).astype(np.float32)
    weights = np.tile(np.array([0, 1, 0], np.float32), (13, 1))
    alone = Combination(model, token_model([jax.device_put(log_p)], "cat", False), weights)
    for token in (2, 5):
        found = predict(alone, read(alone, init(alone), [token])[1])
        np.testing.assert_allclose(found, log_p[token], atol=1e-5)


def test_a_copy_leaves_the_loss_and_a_model_that_knows_more_helps_and_is_read_and_saved_as_one(tmp_path):
    """Pairs of a text that the counted model has not seen; and one whose contexts have no weight."""
    first, rows = fitted(), np.full((tokenizer().vocab_size,) * 2, np.exp(-3.0), np.float32)
    assert loss(combine(first, first, HELD)) == pytest.approx(loss(first), abs=0.05)
    np.add.at(rows, (HELD[:-1], HELD[1:]), 1)
    other = token_model([jax.device_put(np.log(rows))], "cat", False)
    broken = first._replace(parts=tuple(part._replace(step=0 * part.step) for part in first.parts))
    assert loss(combine(first, other, stream(8, 9))) < min(loss(first), loss(other)) + 0.02
    both: Any = combine(broken, other, stream(8, 9))
    assert loss(both) < min(loss(broken), loss(other)) - 0.02
    state = read(both, init(both), TEST[1:20])[1]
    log_p = predict(both, state)
    np.testing.assert_allclose(np.exp(log_p).sum(), 1, atol=1e-6)
    np.testing.assert_allclose(read(both, state, TEST[20:21])[0], log_p[TEST[20]], atol=1e-3)
    parts = np.concatenate([score(both, TEST)[:19], read(both, state, TEST[20:60])[0]])
    np.testing.assert_allclose(parts, read(both, init(both), TEST[1:60])[0], atol=1e-3)
    assert generate(KEY(), both, TEST[1:6], 2, temperature=0).shape == (2,)
    assert len(score(both, TEST, separate=True)) == np.count_nonzero(TEST) and both.names[-1] == "other model"
    file = tmp_path / "both.safetensors"
    TextModel(both, tokenizer(), {}).save(file)
    found = jexplicit.load_model(file)
    assert (loss(found.model), found.about["method"]) == (loss(both), "Combination")
    save_model(file, state)
    np.testing.assert_array_equal(predict(both, read_model_file(file, CombinationState)[0]), log_p)
    refused("explain each of them", found.explain, "the cat")


# Files that are refused


def twice(text: Text) -> np.ndarray:
    return text[1] + text[1]


def test_classes_are_saved_and_functions_and_damage_are_refused(tmp_path):
    path, model = tmp_path / "m.safetensors", fitted()
    with_classes = model._replace(spelling=model.spelling._replace(classes={60: np.arange(model.vocab_size) % 7}))
    save_model(path, with_classes)
    loaded, of_file, _ = read_model_file(path)
    assert of_file is None and list(loaded.spelling.classes) == [60]
    np.testing.assert_array_equal(loaded.spelling.classes[60], np.arange(model.vocab_size) % 7)
    text, own = encode_documents(tokenizer(), texts(4, 0)), (*CONTEXTS[:2], Context(twice, 2))
    fitted_own = fit_counted(text, model.vocab_size, tokenizer(), contexts=own, gates=())
    assert fitted_own.names[2] == "2 back + twice" and np.isfinite(score(fitted_own, stream())).all()
    refused("function of its own", save_model, path, fitted_own)
    save_model(path, model._replace(tree=model.tree._replace(length=model.tree.length[:-1])), tokenizer=tokenizer())
    refused("two models", load_model, path)
    other: Any = {"tree": 3, "weights": np.zeros(3), "gates": (3,), "spelling": None, "eos": 1, "least": "x"}
    for name, value in other.items():
        save_model(path, model._replace(**{name: value}), tokenizer=tokenizer())
        refused(f"can be read .the {name} of its CountedModel is of another type", load_model, path)
    save_model(path, model)
    path.write_bytes(path.read_bytes()[:-10])
    refused("no model that can be read", load_model, path)

"""The method context-mixing, as a fit, as the default of `jexplicit.fit`, and in a run."""

import chex
import jax
import numpy as np
import pytest
from counted_models import CONTEXTS, GATES, stream, texts, tokenizer

import jexplicit
from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.counted import evidence
from jexplicit.lm.counted import model as core
from jexplicit.lm.counted.model import CountedModel, contexts_name, fit_counted, late_decisions, shuffled
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fit import fit_model
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.runs.devices import data_mesh
from launch.lm.__main__ import main


def test_a_fit_says_how_many_numbers_it_has_fitted():
    text = TrainingText(encode_documents(tokenizer(), texts(30, 0)), tokenizer().vocab_size, tokenizer=tokenizer())
    model, info = fit_model("context-mixing", text, Options(history="none", gates=0))
    assert isinstance(model, CountedModel) and model.gates == ()
    assert info["scalars"] == len(model.weights) and info["contexts"] == len(model.parts) and info["solve_seconds"] > 0
    assert jexplicit.evaluate(model, stream()).perplexity < 4
    with pytest.raises(ValueError, match="history"):
        fit_model("context-mixing", text, Options(history="some"))
    with pytest.raises(ValueError, match="contexts 'lines'"):
        contexts_name("lines", "char")


def test_any_number_of_devices_gives_the_same_model_to_the_bit():
    ids, options = encode_documents(tokenizer(), texts(20, 0)), Options(history="adaptive", gates=1)
    shape = {"vocab_size": tokenizer().vocab_size, "tokenizer": tokenizer()}
    fits = [fit_model("context-mixing", TrainingText(ids, mesh=data_mesh(n), **shape), options) for n in (1, 3, 8)]
    for other in fits[1:]:
        assert isinstance(other.model, CountedModel)
        chex.assert_trees_all_equal(jax.tree.leaves(other.model), jax.tree.leaves(fits[0].model))


def test_texts_alone_are_enough():
    model = jexplicit.fit(texts(10, 0), tokenizer="char", gates=1)
    assert model.about["method"] == "context-mixing" and model.about["history"] == "document"
    assert model.perplexity(texts(2, 1)) < 10
    assert isinstance(model.generate("to be", 3), str)
    assert np.isfinite(jexplicit.fit(["to be or not to be"], tokenizer="char", gates=1).score(["to be"])[0]).all()
    assert all(np.isfinite(fit_counted(np.array(ids), 4).weights).all() for ids in ([0, 0, 0], [0, 2, 0]))


def test_a_run_has_a_row_and_a_model_of_each_history(tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(texts(60, 0)))
    flags = ["--train", f"{tmp_path}/train.txt", "--out", f"{tmp_path}/run", "--tokenizer", "char", "--samples", "0"]
    assert main([*flags, "--methods", "context-mixing", "--history", "none", "adaptive", "--gates", "1"]) == 0
    for history in ("none", "adaptive"):
        saved = jexplicit.load_model(tmp_path / "run", method="context-mixing", history=history)
        assert {"dev_loss", "dev_perplexity", "scalars", "solve_seconds", "eval_seconds", "bytes", "peak_bytes"} <= set(
            saved.about
        )
        assert saved.about["bytes"] == saved.model.nbytes and saved.model.history == history


def test_a_text_is_shuffled_by_pieces_of_whole_documents(monkeypatch):
    monkeypatch.setattr(core, "_piece", 50)
    ids = encode_documents(tokenizer(), texts(30, 0))
    other = shuffled(ids, 0)
    documents, others = ([tuple(d) for d in np.split(of, np.flatnonzero(of == 0))] for of in (ids, other))
    assert sorted(documents) == sorted(others) and documents != others and other[0] == 0 and other[-1] == 0
    np.testing.assert_array_equal(shuffled(ids, 0), other)
    assert not np.array_equal(shuffled(ids, 1), other)


def test_gates_of_a_long_static_text_are_fitted_on_several_blocks(monkeypatch):
    monkeypatch.setattr(core, "_late", 200)
    block = np.repeat(np.arange(11), [10, 40, 40, 40, 40, 40, 40, 8, 40, 40, 9]).astype(np.uint8)
    late = late_decisions(block[:338], False)
    assert late.tolist() == [[190, 210], [230, 250], [250, 258], [278, 298], [318, 338]]
    assert [block[a] for a, _ in late] == [block[e - 1] for _, e in late] == [5, 6, 7, 8, 9]
    assert late_decisions(block[:338], True).tolist() == [[138, 338]]
    assert late_decisions(block[:90], False).tolist() == [[0, 90]]


@pytest.mark.parametrize("history", ["none", "adaptive"])
def test_a_long_text_is_fitted_shard_by_shard(history, monkeypatch):
    """As if memory could not hold its evidence: an eighth of the cells makes tables and weights, and gates see a part."""
    train, ids = encode_documents(tokenizer(), texts(30, 0)), stream(2)
    shape = {"history": history, "contexts": CONTEXTS, "gates": GATES, "least": 1}
    whole = fit_counted(train, tokenizer().vocab_size, tokenizer(), **shape)
    monkeypatch.setattr(core, "_late", 4000)
    for name, size in (("_shard", 1 << 10), ("_keys_at_once", 1 << 12), ("SORTED_ONCE", 1), ("LONG", 1 << 12)):
        monkeypatch.setattr(evidence, name, size)
    monkeypatch.setattr(core, "LONG", 1 << 12)
    model = fit_counted(train, tokenizer().vocab_size, tokenizer(), **shape)
    for one, two in zip(model.parts, whole.parts, strict=True):  # all cells are there
        assert (one.cells is None) == (two.cells is None)
        if one.cells is not None and two.cells is not None:
            np.testing.assert_array_equal(one.cells.low, two.cells.low)
            np.testing.assert_array_equal(one.cells.seen.n, two.cells.seen.n)
    assert evaluate(model, ids).loss == pytest.approx(evaluate(whole, ids).loss, abs=0.1)


def test_bad_input_is_refused_before_anything_is_counted():
    train, N = encode_documents(tokenizer(), texts(3, 0)), tokenizer().vocab_size
    for bad, message in [
        ({"history": "some"}, "choose none, document"),
        ({"stages": 0}, "at least one"),
        ({"contexts": ()}, "at least one"),
        ({"gates": (("places",),)}, "places: choose among place"),
    ]:
        with pytest.raises(ValueError, match=message):
            fit_counted(train, N, tokenizer(), **bad)
    with pytest.raises(ValueError, match="in a vocabulary of 3"):
        fit_counted(train, 3)
    with pytest.raises(ValueError, match="token stream"):
        fit_counted(train[:2], N)


@pytest.mark.parametrize("history", ["none", "document", "adaptive"])
def test_a_tiny_text_is_predicted_better_than_by_chance(history):
    for few in (["to be or not to be"], ["a-b a-c"] * 5, ["the cat sat on the mat"] * 4):
        model = jexplicit.fit(few, tokenizer="char", history=history)
        assert model.perplexity(few) < model.tokenizer.vocab_size
    assert jexplicit.fit(texts(8, 3), tokenizer="char", history=history).perplexity(texts(22, 4)) < tokenizer().vocab_size / 2

"""The options of a method: it uses those that it lists, and `fit` refuses others."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import jexplicit
from jexplicit.lm.fits.fit import METHODS, OPTIONS, fit_model
from jexplicit.lm.training_text import Options, TrainingText, Watch

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "on the mat the dog sat"] * 6
USED_AT = {"iterative-scaling": [{}, {"discount": 0.5}], "cold": [{}, {"optimizer": "sgd"}]}


class Recorder(Options):
    """Options that record which of them are read."""

    def __getattribute__(self, name):
        if name != "read":
            object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return object.__getattribute__(self, name)


@pytest.fixture(scope="module")
def text():
    stream = np.tile(np.array([0, 2, 3, 4, 2, 5, 0, 3, 4, 5, 2], np.uint16), 40)
    return TrainingText(np.append(stream, np.uint16(0)), 6)


FEW = ("unigram", "explicit", "cold")


@pytest.mark.parametrize("method", [m if m in FEW else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_a_method_reads_the_options_that_it_lists(method, text):
    read = set()
    for given in USED_AT.get(method, [{}]):
        options = Recorder(**{"epochs": 1, "batch_size": 64, "sweeps": 1, "calibration_positions": 50} | given)
        fit_model(method, text, options, Watch(dev=text.stream))
        read |= vars(options).get("read", set())
    assert {field.name for field in fields(Options)} & read == set(OPTIONS[method])


@pytest.mark.parametrize("method", ["cold", pytest.param("iterative-scaling", marks=pytest.mark.slow)])
def test_a_fit_does_not_resume_another(method, tmp_path):
    short: dict[str, Any] = {"cold": {"epochs": 1, "batch_size": 64}, "iterative-scaling": {"sweeps": 1, "discount": 0.0}}[
        method
    ]

    def fit(texts=TEXTS, **options):
        watch = Watch(checkpoints=tmp_path)
        return jexplicit.fit(texts, method, tokenizer="word", watch=watch, **short | options).perplexity(TEXTS)

    first = fit()
    others: list[tuple[dict[str, Any], str]] = [({"texts": TEXTS[1:]}, "text '"), ({"seed": 1}, "seed 0, not 1")]
    for other, named in [*others, ({"features": "sum"}, "features 'cat', not 'sum'")]:
        with pytest.raises(ValueError, match=f"was written for {named}.*: choose another folder for checkpoints, or delete"):
            fit(**other)
    assert fit() == first


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("explicit", {"stages": 2}, "option stages, which method 'explicit' does not use: choose from features, radius"),
        ("explicit", {"history": "all"}, "option history, which method 'explicit' does not use"),
        ("bigram", {"sweeps": 3}, "option sweeps, which method 'bigram' does not use: it has none"),
        ("ngram", {"radius": 7}, "option radius, which method 'ngram' does not use: it has none"),
        ("context-mixing", {"radius": 2}, "option radius, which method 'context-mixing' does not use"),
        ("explicit", {"smoothing": "add-alpha"}, "option smoothing, which method 'explicit' does not use"),
    ],
)
def test_an_option_that_a_method_does_not_use_is_refused(method, options, message):
    with pytest.raises(ValueError, match=message):
        jexplicit.fit(TEXTS, method, tokenizer="word", **options)


def test_the_options_that_the_message_names_fit():
    model = jexplicit.fit(TEXTS, "explicit", tokenizer="word", features="sum", radius=2)
    assert (model.about["features"], model.about["radius"]) == ("sum", 2)


@pytest.mark.slow
def test_scores_do_not_depend_on_the_order_of_texts_unless_its_history_is_all():
    texts = TEXTS[:4]
    shape: Any = {"tokenizer": "word"}
    model, going_on = jexplicit.fit(TEXTS, **shape), jexplicit.fit(TEXTS, **shape, history="all")
    assert (model.about["history"], going_on.about["history"]) == ("document", "all")
    for one, same in ((model, True), (going_on, False)):
        ahead, back = one.score(texts), one.score(texts[::-1])[::-1]
        sums = max(np.abs(gate.U).sum(0).max() for _, gate in one.model.gates)  # which multiply the rounding of float32 numbers
        atol = float(np.finfo(np.float32).eps * sums)
        assert all(np.allclose(p, q, atol=atol) for p, q in zip(ahead, back, strict=True)) == same


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cold", "warm"])
def test_training_without_a_dev_text_keeps_the_best_epoch_on_a_held_out_part(method):
    model = jexplicit.fit(TEXTS, method, tokenizer="word", epochs=2, batch_size=32, learning_rate=0.1)
    assert model.about["epochs"] == 2 and np.isfinite(model.perplexity(TEXTS))


@pytest.mark.slow
def test_a_model_explains_a_text_by_itself():
    for history in ("document", "all"):
        model = jexplicit.fit(TEXTS, tokenizer="word", history=history)
        why = model.explain("the cat sat")
        assert why.evidence.shape == (3, len(why.names))
        np.testing.assert_allclose(why.log_probability, model.score(["the cat sat"])[0], atol=1e-5)  # float32
    with pytest.raises(ValueError, match="no token in the text"):
        model.explain(" ")

"""Calls that are refused, each with what is wrong and what to do instead; the options that a method uses; files of models."""

import functools
import json
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from reference import random_documents, stream_of
from refusals import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tables import refuse

import jexplicit
from jexplicit.counts import count, count_sparse
from jexplicit.data import train_tokenizer
from jexplicit.data.streams import contexts
from jexplicit.lm import text_model
from jexplicit.lm.attribution import explain
from jexplicit.lm.evaluation import evaluate, log_probabilities, score, score_documents
from jexplicit.lm.fit import METHODS, OPTIONS, fit_model
from jexplicit.lm.generation import generate, next_token
from jexplicit.lm.layers import explicit_language_model, log_linear_model, offset_rows
from jexplicit.lm.model import network_model, token_model
from jexplicit.lm.ngram import smoothed_ngrams, unigram_model
from jexplicit.lm.text_model import TextModel, save_run_model
from jexplicit.lm.training import sweep_tables
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.nn.networks import init_variables
from jexplicit.nn.sequences import Transformer

N = 8
PADS, FOREIGN = np.zeros(4, np.uint16), np.array([0, 1, N, 0])
TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "on the mat the dog sat"] * 6


@pytest.fixture(scope="module")
def given() -> SimpleNamespace:
    """A text, its counts, and models of any tables."""
    g: Any = SimpleNamespace()
    g.key = jax.random.key(0)
    g.stream = stream_of(random_documents(6, 60, N, 7))
    g.counts = count(g.stream, context=3, vocab_size=N)
    g.sparse = count_sparse(g.stream, context=3, vocab_size=N)
    g.text, (g.X, g.Y) = TrainingText(g.stream, N), contexts(g.stream, 2)
    table = jax.device_put(np.zeros((N, N)))
    g.two, g.tied = (token_model([table] * 2, features, True) for features in ("cat", "sum"))
    g.even = token_model([table] * 2, "cat", False)
    g.infinite = token_model([jax.device_put(np.full((N, N), -np.inf))] * 2, "cat", True)
    g.spread, g.unigram = explicit_language_model(g.sparse, features="cat"), unigram_model(g.counts)
    g.tokenizer = train_tokenizer(TEXTS, kind="word")
    return g


NO_POSITION = "no position to predict"
NOT_THIS_TOKEN = f"token id {N} and a model of {N}: use the model's own tokenizer"


def generated(prompt: Any = (1,), length: Any = 5, **options):
    return lambda g: generate(g.key, g.two, prompt, length, **options)


def swept(model, sweeps=1, text=None, **options):
    return lambda g: sweep_tables(getattr(g, model), text(g) if text else g.text, sweeps=sweeps, **options)


CASES: list[tuple[Callable[[Any], Any], str]] = [
    # a text and a model
    (lambda g: evaluate(g.two, FOREIGN), f"token id {N} .* {N}"),
    (lambda g: evaluate(g.unigram, PADS), NO_POSITION),
    (lambda g: score(g.two, np.array([1, 2, 3])), "encode_documents"),
    (lambda g: next_token(g.spread, np.array([N])), NOT_THIS_TOKEN),
    *((lambda g, name=name: getattr(g, name).tables, "this needs plain tables") for name in ("spread", "unigram")),
    (lambda g: score_documents(g.two, g.tokenizer, ["the cat", "  "]), r"document 1, '  ', has no token"),
    # generation
    *((generated(**{name: -0.5}), name.replace("_", "-") + " -0.5") for name in ("temperature", "top_k", "top_p", "length")),
    (generated([np.array([1]), np.array([2, N])]), NOT_THIS_TOKEN),
    (generated(banned=(1, N)), NOT_THIS_TOKEN),
    (generated(banned=tuple(range(N))), "every token is banned"),
    # explicit solutions, and rows of contexts
    (lambda g: explicit_language_model(g.counts, features="cat", context=0), "context 0 with counts of offsets 1..3"),
    (lambda g: offset_rows(g.counts, features="cat", context=4), "context 4 with counts of offsets 1..3"),
    (lambda g: explicit_language_model(g.counts, features=cast(Any, "mean")), "features 'mean': choose sum .* or cat"),
    (lambda g: offset_rows(g.counts, features="cat", smoothing=cast(Any, "noise")), "smoothing 'noise': choose .* kneser-ney "),
    (lambda g: smoothed_ngrams(g.X[:0], g.Y[:0], vocab_size=N), "0 positions with contexts of 2 tokens"),
    (lambda g: jexplicit.fit([], history="past"), "choose none, document, window:W"),  # before text is read
    # sweeps
    (swept("two", text=lambda g: TrainingText(g.stream, N + 1)), f"vocabulary {N + 1} and a model of {N}: use the model's own"),
    (swept("even", text=lambda g: TrainingText(PADS, N)), NO_POSITION),
    (swept("two", discount=0.5), "a discount of"),
    (swept("tied", weights=np.ones((2, N))), "noise=True"),
    # options of other methods
    (lambda g: jexplicit.fit(TEXTS, "explicit", stages=2), "option stages, which method 'explicit' does not use: choose from"),
    (lambda g: jexplicit.fit(TEXTS, "bigram", sweeps=3), "option sweeps, which method 'bigram' does not use: it has none"),
]


def network(g):
    """A network that reads 16 tokens."""
    transformer = Transformer(vocab_size=N, width=4, heads=2, layers=1, window=16)
    return network_model(transformer, init_variables(transformer, g.key, jnp.zeros((1, 16), int)))


OF_VALUES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda g: log_probabilities(network(g), np.zeros((3, 1), int), g.Y[:3]), "a window of the text: say where the positions"),
    (lambda g: network(g).logits(jnp.zeros(1, int)), "a model that reads the last 16 tokens, and no history"),
    (lambda g: log_linear_model(offset_rows(g.counts, features="cat"), np.ones(3)), "give mu and one per table"),
    (swept("infinite", noise=False, discount=0.5), "infinite logits"),
    (lambda g: explain(g.two, g.X[:-1], g.Y), r"contexts of shape .* and a model of 2 context tokens: pass \[.*, 2\]"),
    (lambda g: explain(g.two, g.X[:1], np.array([N])), NOT_THIS_TOKEN),
    (lambda g: fit_model("context-mixing", g.text, Options(history="window:x")), "choose none, document, window:W"),
]


def test_a_call_is_refused_with_what_to_do_instead(given, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    refuse(((message, call) for call, message in CASES), given)
    refuse(((message, call) for call, message in OF_VALUES), given, of_values=True)
    with pytest.raises(FloatingPointError, match="tables of the same stream"):
        swept("infinite")(given)


class Recorder(Options):
    """Options that record which of them are read."""

    def __getattribute__(self, name):
        if name != "read":
            object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return object.__getattribute__(self, name)


FEW = ("unigram", "explicit", "cold")


@pytest.mark.parametrize("method", [m if m in FEW else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_a_method_reads_the_options_that_it_lists(method):
    stream, read = np.append(np.tile(np.array([0, 2, 3, 4, 2, 5, 0, 3, 4, 5, 2], np.uint16), 40), np.uint16(0)), set()
    text = TrainingText(stream, 6)
    for more in {"iterative-scaling": [{}, {"discount": 0.5}]}.get(method, [{}]):
        options = Recorder(**{"epochs": 1, "batch_size": 64, "sweeps": 1, "calibration_positions": 50} | more)
        fit_model(method, text, options, Watch(dev=text.stream))
        read |= vars(options).get("read", set())
    assert {field.name for field in fields(Options)} & read == set(OPTIONS[method])


@pytest.mark.parametrize("method", ["cold", pytest.param("iterative-scaling", marks=pytest.mark.slow)])
def test_a_fit_does_not_resume_another(method, tmp_path):
    short: Any = {"cold": {"epochs": 1, "batch_size": 64}, "iterative-scaling": {"sweeps": 1, "discount": 0.0}}[method]
    fit = functools.partial(jexplicit.fit, method=method, tokenizer="word", watch=Watch(checkpoints=tmp_path), **short)
    first = fit(TEXTS).perplexity(TEXTS)
    for texts, other, named in (
        (TEXTS[1:], {}, "text '"),
        (TEXTS, {"seed": 1}, "seed 0, not 1"),
        (TEXTS, {"features": "sum"}, "features 'cat', not 'sum'"),
    ):
        with pytest.raises(ValueError, match=f"was written for {named}.*: choose another folder for checkpoints, or delete"):
            fit(texts, **other)
    assert fit(TEXTS).perplexity(TEXTS) == first


# Files: what `TextModel.save` writes and `load_model` reads, and what is refused


@pytest.fixture(scope="module")
def model() -> TextModel:
    return jexplicit.fit(TEXTS, "bigram", tokenizer="word")


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.score(TEXTS), other.score(TEXTS), strict=True))


def test_numbers_of_numpy_are_saved_as_those_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as in a user's program
    options: dict[str, Any] = {"context": np.int64(2), "features": np.str_("cat"), "seed": np.int32(3), "eos": np.True_}
    options |= {"learning_rate": np.float32(0.5), "epochs": np.array(1), "batch_size": np.uint8(8)}
    model = jexplicit.fit(TEXTS, "cold", tokenizer="word", **options)
    model.about["measured"] = {"loss": np.float32(1.5), "of": np.arange(2), "all": np.True_}
    model.save(tmp_path / "model.safetensors")
    loaded = jexplicit.load_model(tmp_path / "model.safetensors")
    assert loaded.about == {**model.about, "measured": {"loss": 1.5, "of": [0, 1], "all": True}} and same(loaded, model)
    assert loaded.model.eos is True and type(loaded.about["learning_rate"]) is float
    with pytest.raises(ValueError, match="object at .* is of type object: give numbers, strings"):  # before the fit
        jexplicit.fit(TEXTS, "cold", learning_rate=object())


def test_a_file_whose_header_is_of_no_model_is_refused_in_one_line_and_one_of_before_still_loads(model, tmp_path):
    """Headers with a checksum of their own."""
    model.save(tmp_path / "good.safetensors")
    with safe_open(tmp_path / "good.safetensors", framework="numpy") as file:
        header = json.loads(file.metadata()["jexplicit"])
    tensors, path = load_file(tmp_path / "good.safetensors"), tmp_path / "bad.safetensors"
    save_file({"x": np.zeros(3)}, path)
    refused("not written by jexplicit", jexplicit.load_model, path)

    def write(text: str):
        save_file(tensors, path, {"jexplicit": text, "sha256": text_model._checksum(text, tensors, tensors.__getitem__)})

    write(json.dumps({name: value for name, value in header.items() if name != "library_version"}))
    assert same(jexplicit.load_model(path), model)
    fields, deep = header["model"]["fields"], "null"
    for _ in range(700):
        deep = f'{{"a": {deep}}}'
    rows = fields["rows"]
    damaged = {**rows, "fields": {**rows["fields"], "base": {"tuple": []}}}
    parts = [[], {"rows": 3}, {**fields, "eos": "no"}, {**fields, "rows": damaged}]
    models = [
        *(None, 7, {"type": "LanguageModel"}, {"type": ["LanguageModel"], "fields": {}}),
        *({"type": "LanguageModel", "fields": part} for part in parts),
        *({"array": name} for name in ("nope", ["a"], next(iter(tensors)))),
        *({"tuple": 3}, {"context": {"columns": []}}, {"type": "Transformer", "fields": {"vocab_size": 10**9}}),
        *({"type": kind, "fields": {}} for kind in ("Sparse", "CountedModel", "Spelling", "State")),
    ]
    texts = [
        json.dumps({**header, **part})
        for part in ({"about": [1]}, {"tokenizer": "x"}, {"format": 4}, *({"model": m} for m in models))
    ]
    for text in [*texts, "[]", "null", json.dumps({**header, "model": "@"}).replace('"@"', deep)]:
        write(text)
        assert "\n" not in refused("bad.safetensors.*: fit or export the model again", jexplicit.load_model, path), text


def test_a_row_of_a_run_without_a_number_is_never_the_best(model, tmp_path):
    rows = [{"method": name, "features": "none", "context": 1} for name in ("first", "second")]
    (tmp_path / "config.json").write_text("{}")
    model.tokenizer.save(tmp_path / "tokenizer.model")
    for row in rows:
        save_run_model(tmp_path, row, model.model)

    def write(*found: dict):
        (tmp_path / "results.json").write_text(json.dumps({"rows": found}))

    for lost in (float("nan"), None, "low", [1.0]):
        for best in (0, 1):
            write(*(row | {"dev_perplexity": 2.0 if n == best else lost} for n, row in enumerate(rows)))
            assert jexplicit.load_model(tmp_path).about["method"] == rows[best]["method"]
        write(*(row | {"dev_perplexity": lost} for row in rows))
        refused("has no language model by this version with a dev perplexity: pass a run", jexplicit.load_model, tmp_path)
    outside = {"method": "../first", "features": "none", "context": "", "dev_perplexity": 1.0}
    for name in ("first", "first_1"):
        model.save(tmp_path / "checkpoints" / f"{name}.safetensors")
    for part in ({}, {"method": 3, "context": 1}, {"features": [], "context": 1}):
        write(outside | part)
        refused("has no language model", jexplicit.load_model, tmp_path)
    write(outside | {"context": 1})
    said = "results.json names the file '../first_1.safetensors', which is not in its folder"
    refused(said, jexplicit.load_model, tmp_path)

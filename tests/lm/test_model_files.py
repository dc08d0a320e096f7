"""Files of models: what `TextModel.save` writes and `load_model` reads, and what is refused."""

import json
from typing import Any

import jaxtyping
import numpy as np
import pytest
from refusals import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import jexplicit
from jexplicit.lm import text_model
from jexplicit.lm.text_model import TextModel, save_run_model

TEXTS = ["the cat sat", "the dog sat", "a cat ran"]


@pytest.fixture(scope="module")
def model() -> TextModel:
    return jexplicit.fit(TEXTS, "bigram", tokenizer="word")


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.score(TEXTS), other.score(TEXTS), strict=True))


def test_numbers_of_numpy_are_saved_as_those_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as in a user's program
    options: dict[str, Any] = {"radius": np.int64(2), "features": np.str_("cat"), "seed": np.int32(3), "eos": np.True_}
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
    rows = [{"method": name, "features": "none", "radius": 1} for name in ("first", "second")]
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
        refused("has no language model with a dev perplexity: pass a run", jexplicit.load_model, tmp_path)
    outside = {"method": "../first", "features": "none", "radius": "", "dev_perplexity": 1.0}
    for name in ("first", "first_1"):
        model.save(tmp_path / "checkpoints" / f"{name}.safetensors")
    for part in ({}, {"method": 3, "radius": 1}, {"features": [], "radius": 1}):
        write(outside | part)
        refused("has no language model", jexplicit.load_model, tmp_path)
    write(outside | {"radius": 1})
    said = "results.json names the file '../first_1.safetensors', which is not in its folder"
    refused(said, jexplicit.load_model, tmp_path)

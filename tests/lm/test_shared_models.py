"""Folders to share: model, provenance and card written by `TextModel.save`, read by `load_model`; and what is refused."""

import copy
import functools
import json
import pickle
from importlib import metadata

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import jexplicit
from jexplicit.lm import model_files
from jexplicit.lm.text_model import model_card

TEXTS = ["the cat sat", "the dog sat", "a cat ran"]


@pytest.fixture(scope="module")
def model():
    return jexplicit.fit(TEXTS, "ngram", tokenizer="word")


@pytest.fixture(scope="module")
def used():
    """A model of a method, after it has scored, and what it says."""

    @functools.cache
    def of(method):
        model = jexplicit.fit(TEXTS, method, tokenizer="bpe")
        model.score(TEXTS)
        return model, (model.generate("the", 3), model.next_token("the"))

    return of


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "cats")
    return tmp_path / "cats"


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.score(TEXTS), other.score(TEXTS), strict=True))


@pytest.mark.parametrize("method", ["bigram", "ngram", "explicit", "context-mixing"])
@pytest.mark.parametrize("travel", [lambda m: pickle.loads(pickle.dumps(m)), copy.copy, copy.deepcopy])
def test_a_copy_of_a_used_model_says_the_same(used, method, travel):
    model, said = used(method)
    other = travel(model)
    assert other.about == model.about and other.tokenizer == model.tokenizer and same(other, model)
    assert (other.generate("the", 3), other.next_token("the")) == said


def test_a_folder_has_the_model_where_it_comes_from_and_a_card(model, folder):
    loaded = jexplicit.load_model(folder)
    assert loaded.about == model.about and loaded.tokenizer == model.tokenizer and same(loaded, model)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text())
    assert config == {
        **model.about,
        "library_name": "jexplicit",
        "library_version": metadata.version("jexplicit"),
        "library_license": "Apache-2.0",
        "file": "model.safetensors",
        "bytes": (folder / "model.safetensors").stat().st_size,
    }
    card = (folder / "README.md").read_text()
    assert card == model_card("cats", config) and card.startswith("---\nlibrary_name: jexplicit\n")
    for line in (
        "# cats",
        "* method: ngram",
        f"* sha256 of the text: {config['corpus_sha256']}",
        "* licence of its code: Apache-2.0",
    ):
        assert line in card.splitlines()
    assert 'jexplicit.load_model("cats")' in card


def test_the_hash_is_of_the_documents_and_their_boundaries(model):
    hashes = [jexplicit.fit(texts, "unigram", tokenizer="char").about["corpus_sha256"] for texts in (TEXTS, [" ".join(TEXTS)])]
    assert hashes[0] == model.about["corpus_sha256"] != hashes[1]


def test_a_model_that_is_saved_again_keeps_a_card_that_was_written_by_hand(model, folder):
    (folder / "README.md").write_text("mine")
    jexplicit.fit(TEXTS, "bigram", tokenizer="word").save(folder)
    assert jexplicit.load_model(folder).about["method"] == "bigram"
    assert json.loads((folder / "config.json").read_text())["method"] == "bigram"
    assert (folder / "README.md").read_text() == "mine"


def test_a_folder_of_several_models_asks_which_and_config_json_answers(model, folder, tmp_path):
    jexplicit.fit(TEXTS, "bigram", tokenizer="word").save(folder / "another.safetensors")
    assert jexplicit.load_model(folder).about["method"] == "ngram"  # that of config.json
    (folder / "config.json").unlink()
    with pytest.raises(
        ValueError, match="another.safetensors, model.safetensors: pass one of them, such as .*another.safetens"
    ):
        jexplicit.load_model(folder)
    assert jexplicit.load_model(folder / "another.safetensors").about["method"] == "bigram"
    (folder / "another.safetensors").unlink()
    assert same(jexplicit.load_model(folder), model)  # the only one


def test_a_folder_of_another_program_is_refused_for_reading_and_for_writing(model, folder, tmp_path):
    config = {"model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="config.json is of another program .*: pass a folder that .* wrote, or a file"):
        jexplicit.load_model(folder)
    assert same(jexplicit.load_model(folder / "model.safetensors"), model)
    with pytest.raises(ValueError, match="has a config.json of a run or of another program: choose another folder"):
        model.save(folder)
    assert json.loads((folder / "config.json").read_text()) == config
    model.save(tmp_path / "other")
    assert same(jexplicit.load_model(tmp_path / "other"), model)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is damaged"):
        jexplicit.load_model(folder)


def test_a_file_of_another_program_in_a_folder_is_refused(tmp_path):
    save_file({"x": np.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="not written by jexplicit"):
        jexplicit.load_model(tmp_path)


def test_a_file_of_before_without_the_version_still_loads(model, folder, tmp_path):
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        header = json.loads(file.metadata()["jexplicit"])
    assert header.pop("library_version") == metadata.version("jexplicit") and header.pop("library_license") == "Apache-2.0"
    text, tensors = json.dumps(header), load_file(folder / "model.safetensors")
    save_file(tensors, tmp_path / "old.safetensors", {"jexplicit": text, "sha256": model_files._checksum(text, tensors)})
    assert same(jexplicit.load_model(tmp_path / "old.safetensors"), model)


def test_a_model_is_saved_where_the_library_is_not_installed(model, tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", missing)
    model.save(tmp_path / "cats")
    assert "version" not in (tmp_path / "cats/README.md").read_text()
    assert same(jexplicit.load_model(tmp_path / "cats"), model)

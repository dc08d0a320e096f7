"""Counted models in files: what is loaded predicts the same bits."""

from typing import Any

import numpy as np
import pytest
from counted_models import CONTEXTS, HISTORIES, fitted, stream, texts, tokenizer

from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.checkpoints import import_model, load_model
from jexplicit.lm.counted.columns import Context, Text
from jexplicit.lm.counted.model import fit_counted
from jexplicit.lm.evaluation import score
from jexplicit.lm.model_files import read_model_file, save_model
from jexplicit.lm.text_model import TextModel


@pytest.mark.parametrize("history", HISTORIES)
def test_a_loaded_model_predicts_the_same_bits(history, tmp_path):
    model = fitted(history)
    TextModel(model, tokenizer(), {"method": "context-mixing"}).save(tmp_path / "m.safetensors")
    loaded = load_model(tmp_path / "m.safetensors")
    assert loaded.about == {"method": "context-mixing"}
    assert repr(loaded.model) == repr(model) and loaded.model.names == model.names
    assert loaded.model.nbytes == model.nbytes
    np.testing.assert_array_equal(score(loaded.model, stream()), score(model, stream()))


def test_classes_and_folders(tmp_path):
    model = fitted()
    model = model._replace(spelling=model.spelling._replace(classes={60: np.arange(model.vocab_size) % 7}))
    TextModel(model, tokenizer(), {}).save(tmp_path / "folder")
    loaded = load_model(tmp_path / "folder").model
    assert list(loaded.spelling.classes) == [60]
    np.testing.assert_array_equal(loaded.spelling.classes[60], model.spelling.classes[60])


def twice(text: Text) -> np.ndarray:
    return text[1] + text[1]


def test_a_context_with_a_function_is_refused(tmp_path):
    own = (*CONTEXTS[:2], Context(twice, 2))
    model = fit_counted(encode_documents(tokenizer(), texts(4, 0)), tokenizer().vocab_size, tokenizer(), contexts=own, gates=())
    assert model.names[2] == "2 back + twice"
    assert np.isfinite(score(model, stream())).all()
    with pytest.raises(ValueError, match="function of its own"):
        save_model(tmp_path / "m.safetensors", model)


def test_a_tokenizer_of_another_model_and_a_damaged_file_are_refused(tmp_path):
    path, model = tmp_path / "m.safetensors", fitted()
    save_model(path, model._replace(tree=model.tree._replace(length=model.tree.length[:-1])), tokenizer=tokenizer())
    with pytest.raises(ValueError, match="two models"):
        import_model(path)
    save_model(path, model)
    assert read_model_file(path)[1] is None
    other: Any = {"tree": 3, "weights": np.zeros(3), "gates": (3,), "spelling": None, "eos": 1, "least": "x"}
    for name, value in other.items():
        save_model(path, model._replace(**{name: value}), tokenizer=tokenizer())
        with pytest.raises(ValueError, match=f"can be read .the {name} of its CountedModel is of another type"):
            import_model(path)
    save_model(path, model)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="no model that can be read"):
        import_model(path)

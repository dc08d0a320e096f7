"""Rows of one's own in mixtures: counted and fitted by name, saved and loaded, and refused with what to do instead."""

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from reference import random_documents, stream_of
from safetensors.numpy import save_file

from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm import model_files
from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.core.model import TableRows, pytree
from jexplicit.lm.fits.estimator import fit
from jexplicit.lm.fits.mixtures import mixture_rows as mixtures
from jexplicit.lm.fits.mixtures.mixture_rows import ROWS, mixture_rows, register_rows
from jexplicit.lm.rows.past.cache import RepeatRows
from jexplicit.lm.tables.storage import Dense
from jexplicit.lm.training_text import TrainingText

pytestmark = pytest.mark.slow

N = 7


@pytree
class FarRows(TableRows):
    """The token that stands six back, which no context of four sees."""

    table: Any

    names, tokens, radius = ("far",), (6,), 6
    row_tables = property(lambda self: (Dense(self.table),))

    def index(self, context):
        return context[5:6]


@pytree
class FarRowsByHand:
    """The same, read in ways of its own."""

    table: Any

    names, tokens, radius, history = ("far",), (6,), 6, 0
    vocab_size = property(lambda self: self.table.shape[1])

    def read(self, context, history=None):
        return [self.table[context[5]]]

    def log_tables(self, X, past=None):
        return [(self.table, X[:, 5], None)]


def count_far(text):
    X, Y = text.predictions(6)
    C = np.ones((text.vocab_size, text.vocab_size), np.float32)
    np.add.at(C, (X[:, 5], Y), 1)
    return FarRows(jnp.log(C / C.sum(axis=1, keepdims=True) / (C.sum(axis=0) / C.sum())))


def small_text() -> TrainingText:
    return TrainingText(stream_of(random_documents(seed=11, number=30, vocab_size=N, longest=14)), N)


@pytest.fixture
def registry(monkeypatch):
    """What is registered in a test is forgotten after it."""
    monkeypatch.setattr(mixtures, "ROWS", dict(ROWS))
    monkeypatch.setattr(model_files, "_known", dict(model_files._known))


def far_texts(seed: int, number: int) -> list[str]:
    """Texts in which most tokens are those six before."""
    rng, texts = np.random.default_rng(seed), []
    for _ in range(number):
        tokens = list(rng.choice(list("abcdef"), 6))
        for _ in range(24):
            tokens.append(tokens[-6] if rng.random() < 0.7 else str(rng.choice(list("abcdef"))))
        texts.append("".join(tokens))
    return texts


def test_registered_rows_are_fitted_saved_and_loaded(registry, tmp_path, monkeypatch):
    register_rows("far", count_far, FarRows, radius=6)
    train, dev = far_texts(0, 120), far_texts(1, 20)
    options: Any = {"tokenizer": "char", "history": "none", "calibration_positions": 500}
    plain, model = (fit(train, rows=rows, **options) for rows in (("contexts-4",), ("contexts-4", "far")))
    assert model.perplexity(dev) < 0.7 * plain.perplexity(dev)
    assert model.about["rows"][-1] == "far" and model.about["exponents"][-1] > 0.5
    whole = TrainingText(encode_documents(model.tokenizer, train), model.tokenizer.vocab_size)
    np.testing.assert_array_equal(model.model.rows[-1].table, count_far(whole).table)  # held-out text is counted in the end
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = load_model(path)
    assert isinstance(again.model.rows[-1], FarRows)
    np.testing.assert_array_equal(np.concatenate(again.score(dev)), np.concatenate(model.score(dev)))
    monkeypatch.delitem(model_files._known, "FarRows")
    with pytest.raises(ValueError, match=r"model.safetensors has a FarRows, which is not registered here: import"):
        load_model(path)
    with pytest.raises(ValueError, match="is a FarRows, which no file can hold: register its class"):
        model.save(path)


def test_rows_that_are_read_in_ways_of_their_own_are_the_same_model(registry):
    train, dev = far_texts(0, 60), far_texts(1, 10)
    options: Any = {"rows": ("contexts-4", "far"), "tokenizer": "char", "history": "none", "calibration_positions": 300}
    models = []
    for kind in (FarRows, FarRowsByHand):
        mixtures.ROWS.pop("far", None)
        register_rows("far", lambda text, kind=kind: kind(count_far(text).table), kind, radius=6)
        models.append(fit(train, **options))
    np.testing.assert_allclose(models[0].about["exponents"], models[1].about["exponents"], rtol=0, atol=1e-4)
    one, other = (np.concatenate(model.score(dev)) for model in models)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)
    assert models[0].next_token("abcdef", top=3)[0][0] == models[1].next_token("abcdef", top=3)[0][0]


def test_a_kind_that_is_registered_again_replaces_the_one_before(registry):
    text = small_text()
    register_rows("far", count_far, FarRows, radius=6)
    (_, first), (_, same) = mixture_rows(text, ("far",)), mixture_rows(text, ("far",))
    register_rows("far", lambda text: FarRows(2 * count_far(text).table), FarRows, radius=6)
    _, twice = mixture_rows(text, ("far",))
    assert first is same
    np.testing.assert_array_equal(twice.table, 2 * first.table)


class NoRows(NamedTuple):
    table: Any


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("gaps", FarRows, "rows gaps are there already: choose another name than offsets, .*, and confidence"),
        ("confidence", FarRows, "rows confidence are there already"),
        ("far", NoRows, r"NoRows without log_tables\(X, past\)"),
        ("far", type("Plain", (), {"log_tables": None}), "Plain has no fields that files can hold: put .*pytree before"),
        ("far", dataclass(type("NgramRows", (), {"log_tables": None})), "files hold that of jexplicit.lm.rows.ngrams; choose"),
    ],
)
def test_rows_that_cannot_be_registered_are_refused(registry, name, kind, message):
    with pytest.raises(ValueError, match=message):
        register_rows(name, count_far, kind, radius=6)
    assert "far" not in mixtures.ROWS


@pytest.mark.parametrize(("kind", "radius"), [(FarRows, 5), (RepeatRows, 6)])
def test_rows_are_counted_as_they_are_registered(registry, kind, radius):
    register_rows("far", count_far, kind, radius=radius)
    with pytest.raises(ValueError, match=f"counted as FarRows, radius 6, and registered as {kind.__name__}, radius {radius}"):
        mixture_rows(small_text(), ("far",))


@pytest.mark.parametrize("header", ["[]", "{}", "[" * 100_000, '{"model": 3, "tokenizer": "bpe", "about": {}}'])
def test_a_header_that_describes_no_model_is_one_error(header, tmp_path):
    digest = hashlib.sha256(header.encode() + b"x" + bytes(4)).hexdigest()
    metadata = {"jexplicit": header, "sha256": digest}
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "m.safetensors", metadata=metadata)
    with pytest.raises(ValueError, match="m.safetensors is no model that can be read"):
        load_model(tmp_path / "m.safetensors")

"""Rows of classes of tokens against Kneser-Ney from dictionaries of classes, and the model that they are part of.

Tolerances: rows are float32, a logarithm of at most 10; the levels of a chain are added up, right to 1e-5.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import PAD, Chain, random_documents, stream_of

from jexplicit.lm.core.model import LanguageModel, unit_exponents
from jexplicit.lm.evaluation import read_text
from jexplicit.lm.fits.mixtures.mixture_rows import CLASSES, mixture_rows
from jexplicit.lm.fits.mixtures.ngram_mixture import exponent_names, fit_rows, held_out_rows
from jexplicit.lm.rows.classes import ClassOfOutput, ClassView
from jexplicit.lm.rows.ngrams import NgramRows
from jexplicit.lm.rows.views import ViewRows
from jexplicit.lm.training_text import TrainingText

pytestmark = pytest.mark.slow

N = 9
ROW = 1e-5
STREAM = stream_of(random_documents(seed=21, number=80, vocab_size=N, longest=14))
TEXT = TrainingText(STREAM, N)
OTHER = stream_of(random_documents(seed=22, number=12, vocab_size=N, longest=14))


@functools.cache
def class_rows(confidence: bool = False) -> ViewRows:
    names = ("classes", "confidence") if confidence else ("classes",)
    return mixture_rows(TEXT, names)[1]


@functools.cache
def other_contexts() -> np.ndarray:
    return read_text(OTHER, 4).X[:40]


@functools.cache
def all_rows() -> list[list[np.ndarray]]:
    """Every row of each part after each of the contexts."""
    rows = iter(jax.jit(jax.vmap(class_rows().read))(jnp.asarray(other_contexts(), jnp.int32)))
    return [[np.asarray(next(rows)) for _ in part.names] for part in class_rows().parts]


def classes_of(n: int) -> np.ndarray:
    return np.asarray(class_rows().view.classes[n]).astype(np.int64)


def test_a_view_gives_the_tokens_and_their_classes():
    view = class_rows().view
    assert isinstance(view, ClassView) and len(view.classes) == len(CLASSES)
    x = np.array([3, 1, 8, PAD, 5])
    expected = [*x[:4], *(classes_of(n)[i] for n in range(3) for i in x[:4])]
    assert view(jnp.asarray(x)).tolist() == expected
    assert view.columns(0, 2) == (1, 2) and view.columns(2, 3) == (9, 10, 11)
    assert all(number < size for number, size in zip(expected, view.sizes, strict=True))


def test_every_token_that_occurs_has_a_class_and_pad_is_apart():
    for n in range(len(CLASSES)):
        assert classes_of(n)[PAD] == 0 and np.all(classes_of(n)[np.unique(STREAM[STREAM != PAD])] > 0)


@pytest.mark.parametrize("clustering", range(len(CLASSES)))
def test_tokens_after_classes_are_the_kneser_ney_rows_of_a_text_of_classes(clustering):
    text, of = read_text(STREAM, 4), classes_of(clustering)
    slow = Chain(of[text.X], text.Y, (1, 2, 3), N)
    part = class_rows().parts[clustering]
    assert isinstance(part, NgramRows)
    assert part.names[2] == f"class of {CLASSES[clustering]}, 3 before"
    seen = 0
    for x, *rows in zip(other_contexts(), *all_rows()[clustering], strict=True):
        context = tuple(of[x[:3]].tolist())
        for level, row in enumerate(rows, 1):
            np.testing.assert_allclose(row, slow.row(context[:level]), rtol=0, atol=ROW)
            seen += bool(np.any(row))
    assert seen > 60


@pytest.mark.parametrize("part", range(len(CLASSES), 3 * len(CLASSES)))
def test_the_next_class_is_that_of_a_kneser_ney_model_of_classes(part):
    """The row is log P(c | context) / P(c) up to a constant, which no softmax sees; the same for all tokens of a class."""
    kind = class_rows().parts[part]
    assert isinstance(kind, ClassOfOutput)
    clustering, of_tokens = part % len(CLASSES), part >= 2 * len(CLASSES)
    text, of = read_text(STREAM, 4), classes_of(clustering)
    C = int(of.max()) + 1
    levels = (1, 2) if of_tokens else (1, 2, 3, 4)
    contexts = (lambda X: X) if of_tokens else (lambda X: of[X])
    slow = Chain(contexts(text.X), of[text.Y], levels, C)
    p = np.maximum(np.bincount(of[text.Y], minlength=C), 1) / max(1, len(text.Y))
    for x, row in zip(other_contexts(), *all_rows()[part], strict=True):
        context = tuple(contexts(x)[: len(levels)].tolist())
        expected = np.log([slow.P(context, c) / p[c] for c in range(C)])[of]
        occurs = of > 0  # what never occurs has a pseudo-count in place of a frequency
        difference = row[occurs] - expected[occurs]
        np.testing.assert_allclose(difference - difference[0], 0, rtol=0, atol=ROW)


def test_the_exponents_of_classes_are_fitted_with_the_others():
    rows = mixture_rows(TEXT, ("contexts-4", "classes"))
    held = read_text(OTHER, 4)
    names = exponent_names(rows)
    assert sum(name.startswith("class of") for name in names) == 9 and sum(name.startswith("next class") for name in names) == 6
    read = held_out_rows(rows, held, np.arange(len(held.Y)))
    fitted, without = fit_rows(read), fit_rows(read.of_kinds(("unigram", "context")))
    assert fitted.loss < without.loss
    assert len(fitted.exponents) == len(names)


def test_the_largest_id_of_a_small_type_has_its_class():
    documents = [[255, 254, 255, 1], [254, 255, 1, 255]] * 20
    stream = np.array([PAD, *(i for d in documents for i in (*d, PAD))], np.uint8)
    (unigram, kind) = mixture_rows(TrainingText(stream, 256), ("classes",))
    model = LanguageModel((unigram, kind), unit_exponents((unigram, kind)))
    logits = jax.jit(model.logits)(jnp.array([254, 255, 0, 0], jnp.uint8))
    assert int(jnp.argmax(logits)) == 255

"""Counted bases for networks: windows against one prediction at a time, and folds against models that never saw them.

Tolerances: float32 log-probabilities of some dozen rows, right to 5e-5.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import sentences
from scipy.optimize import minimize_scalar

import jexplicit
from jexplicit.data.tokenizers import encode_documents, train_tokenizer
from jexplicit.lm.core.past import Past, contexts_at, read_text
from jexplicit.lm.evaluation import log_distributions
from jexplicit.lm.fits.base import base_at, base_logits, cross_fit
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.generation import next_token
from jexplicit.lm.training_text import Options, TrainingText

pytestmark = pytest.mark.slow

ATOL = 5e-5
OPTIONS = Options(rows=("contexts-4", "confidence"), calibration_positions=300)


@functools.cache
def texts():
    tokenizer = train_tokenizer(sentences(0, 200), kind="word")
    return tokenizer.vocab_size, *(encode_documents(tokenizer, sentences(seed, n)) for seed, n in ((0, 200), (1, 60)))


@functools.cache
def crossed():
    N, train, _ = texts()
    return cross_fit(TrainingText(train, N), OPTIONS, folds=4)


@pytest.mark.parametrize("history", ["none", "window:40", "document"])
def test_a_window_has_the_predictions_of_its_tokens_one_after_the_other(history):
    N, train, new = texts()
    options = Options(rows=("contexts-4",), history=history, calibration_positions=300)
    model = fit_model("mixture", TrainingText(train, N), options).model
    windows = np.stack([new[start : start + 12] for start in (0, 5, 33)])
    found = jax.jit(base_logits)(model, jnp.asarray(windows))
    assert found.shape == (3, 12, N)
    for window, of_window in zip(windows, found, strict=True):
        for t in range(12):
            last = np.flatnonzero(window[: t + 1] == 0)
            document = window[last[-1] + 1 if len(last) else 0 : t + 1]
            if history == "none":
                np.testing.assert_allclose(of_window[t], next_token(model, document), atol=ATOL)
    np.testing.assert_allclose(jnp.exp(found).sum(axis=-1), 1, atol=ATOL)
    changed = windows.copy()
    changed[:, 7:] = np.roll(changed[:, 7:], 1, axis=1)  # the future
    np.testing.assert_array_equal(base_logits(model, jnp.asarray(changed))[:, :7], found[:, :7])


def test_windows_from_the_start_of_a_text_have_the_base_of_the_text():
    N, train, new = texts()
    model = fit_model("mixture", TrainingText(train, N), Options(rows=("contexts-4",), history="window:40")).model
    places = np.arange(1, 30)
    found = base_logits(model, jnp.asarray(new[None, :29]))[0]
    np.testing.assert_allclose(found, base_at(model, new, places), atol=ATOL)


def test_an_adaptive_model_is_read_at_places_but_not_in_windows():
    N, train, new = texts()
    options = Options(rows=("contexts-4", "adaptive"), history="adaptive", calibration_positions=300)
    model = fit_model("mixture", TrainingText(train, N), options).model
    text = read_text(new, model.radius)
    wanted = log_distributions(model, text.X, past=text.past)
    np.testing.assert_allclose(base_at(model, new, text.past.places), wanted, atol=ATOL)
    with pytest.raises(ValueError, match="read a text"):
        base_logits(model, jnp.asarray(new[None, :9]))


def test_the_base_of_a_fold_is_that_of_a_model_fitted_without_it():
    """Whatever stands in a fold, the counts of its model are the same."""
    N, train, _ = texts()
    found, edges = crossed(), crossed().edges
    other = train.copy()
    inside = np.flatnonzero(other[edges[1] : edges[2]]) + edges[1]
    other[inside] = np.random.default_rng(0).permutation(other[inside])
    again = cross_fit(TrainingText(other, N), OPTIONS, folds=4)
    for fold in range(4):
        pairs = list(zip(*(jax.tree.leaves(one.models[fold].rows) for one in (found, again)), strict=True))
        same = all(one.shape == two.shape and np.array_equal(one, two) for one, two in pairs)
        assert same == (fold == 1)
    places = np.array([3, 3, int(edges[1]), int(edges[1]) - 1, len(train) - 1, 40])
    base = found.base_at(places)
    for place, row in zip(places, base, strict=True):
        fold = min(int(np.searchsorted(edges, place, side="right")) - 1, 3)
        np.testing.assert_allclose(row, base_at(found.models[fold], train, np.array([place]))[0], atol=ATOL)
    np.testing.assert_array_equal(found.whole.exponents, found.models[2].exponents)


def test_an_adaptive_fold_is_read_as_a_text_of_its_own():
    N, train, _ = texts()
    options = Options(rows=("contexts-4",), history="adaptive", calibration_positions=300)
    found = cross_fit(TrainingText(train, N), options, folds=3)
    begin, end = int(found.edges[1]), int(found.edges[2])
    rest = np.concatenate([train[:begin], [0], train[end:]])
    kinds = found.whole.rows[1].rows
    alone = fit_model("mixture", TrainingText(rest, N), options).model
    rows = alone.rows[1]
    model = replace(found.whole, rows=(found.models[1].rows[0], replace(rows, rows=kinds)))
    own, places = train[begin - 1 : end], np.arange(begin, end)
    expected = log_distributions(model, contexts_at(own, places - begin + 1, model.radius), past=Past(own, places - begin + 1))
    np.testing.assert_allclose(found.base_at(places), expected, atol=ATOL)
    np.testing.assert_allclose(found.base_at(places[:50]), expected[:50], atol=ATOL)


def test_a_base_that_counted_its_answers_is_trusted_too_much():
    """The exponent that is best for the training text: of the model of the whole, above 1, which is wrong for new text."""
    N, train, new = texts()
    read, fresh = read_text(train, 1), read_text(new, 1)
    counted, honest = base_at(crossed().whole, train, read.past.places), crossed().base_at(read.past.places)

    def best(base):
        def loss(a):
            return (np.logaddexp.reduce(a * base, axis=1) - a * base[np.arange(len(base)), read.Y]).mean()

        found: Any = minimize_scalar(loss, bounds=(0, 10), method="bounded")
        return found.x

    on_new = base_at(crossed().whole, new, fresh.past.places)
    loss = {
        a: (np.logaddexp.reduce(a * on_new, axis=1) - a * on_new[np.arange(len(on_new)), fresh.Y]).mean()
        for a in (best(counted), best(honest))
    }
    assert best(counted) > 1.2 > best(honest)
    assert loss[best(counted)] > loss[best(honest)] + 0.01


@pytest.mark.parametrize("folds", [1, 0, 10**6])
def test_too_few_or_many_folds_are_refused(folds):
    N, train, _ = texts()
    with pytest.raises(ValueError, match=f"{folds} folds of .*: use 2 or more"):
        jexplicit.cross_fit(TrainingText(train, N), OPTIONS, folds=folds)

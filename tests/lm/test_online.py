"""Exponents that go on being fitted, against Newton steps and fits by hand.

Tolerances: moments are float32 sums of some hundred positions, right to 1e-5 of a step; log-probabilities as in test_adaptive.
"""

import functools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.attribution import explain
from jexplicit.lm.core.past import read_text
from jexplicit.lm.evaluation import log_distributions, read_tables, score
from jexplicit.lm.fits.estimator import fit
from jexplicit.lm.fits.mixtures.adaptive_mixture import chain
from jexplicit.lm.fits.mixtures.calibration import fit_exponents
from jexplicit.lm.reading import init, load_state, predict, read, save_state
from jexplicit.lm.rows.past import online
from jexplicit.lm.rows.past.adaptive import Adaptive
from jexplicit.lm.rows.past.online import Online, begin_online, exponents_at, learn
from jexplicit.lm.tables.moments import moments_of
from jexplicit.lm.tables.placing import Positions
from jexplicit.lm.tables.storage import Dense

pytestmark = pytest.mark.slow

ATOL = 5e-5
RNG = np.random.default_rng(1)
WORDS = "to be or not that is the question whether nobler in mind suffer".split()
TEXTS = [" ".join(RNG.choice(WORDS, 14)) + "\n" + " ".join(RNG.choice(WORDS, 5)) for _ in range(24)]
NEW = [" ".join(RNG.choice(WORDS[::-1], 12)) for _ in range(4)]
FEW = (*chain((1, 2)), Adaptive("last 2", "recency"))
SIZE = 60


@functools.cache
def fitted():
    with mock.patch("jexplicit.lm.fits.mixtures.adaptive_mixture.CHARACTER_CONTEXTS", FEW):
        return fit(TEXTS, rows=("contexts-4", "adaptive", "recency"), tokenizer="char", history="adaptive", online=True)


def stream():
    return encode_documents(fitted().tokenizer, NEW)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(online, "BLOCK", SIZE)


def test_a_block_is_a_newton_step_from_the_exponents_before_it():
    """Blocks by hand: the loss of a block from its rows, slopes from its moments at the exponents that predicted it."""
    model, tokens = fitted().model, stream()
    text = read_text(tokens, model.radius)
    tables, positions, _ = read_tables(model, text.X, text.past)
    a, H, found = np.asarray(model.exponents, float), np.array(model.curvature, float), []
    for block in range(len(tokens) // SIZE + 1):
        m = np.flatnonzero(text.past.places // SIZE == block)
        curved = m[text.past.places[m] % 4 == 0]
        moments, bent = (moments_of(tables, positions.take(n), text.Y[n], len(a))(a) for n in (m, curved))
        found.append(-moments.loss * len(m))
        H += 4 * len(curved) * bent.hessian
        a = a - np.linalg.solve(H, len(m) * moments.gradient)
    own = np.split(score(model, tokens), np.flatnonzero(np.diff(text.past.places // SIZE)) + 1)
    np.testing.assert_allclose([part.sum() for part in own], found, rtol=1e-4)
    frozen = score(replace(model, curvature=None), tokens)
    first = text.past.places < SIZE
    np.testing.assert_allclose(np.concatenate(own)[first], frozen[first], atol=ATOL)
    assert abs(np.concatenate(own) - frozen)[~first].max() > 1e-3


def test_the_parts_of_its_logits_add_up_to_the_scores_of_every_block():
    model, text = fitted().model, read_text(stream(), fitted().model.radius)
    why = explain(model, text.X, text.Y, past=text.past)
    np.testing.assert_allclose(why.log_probability, score(model, stream()), atol=ATOL)
    several = explain(model, text.X, np.stack([text.Y, text.Y[::-1]], axis=1), past=text.past)
    np.testing.assert_allclose(several.logits[:, 0], why.logits, atol=ATOL)
    log_Z = several.logits.sum(axis=2) - several.log_probability  # the same for any token of a position
    np.testing.assert_allclose(log_Z[:, 1], log_Z[:, 0], atol=ATOL)


def test_reading_on_after_a_fit_comes_to_a_fit_on_the_past(monkeypatch):
    """Of 4000 draws with p = softmax(a_1 r_1 + a_2 r_2), a fit on the first 1000 and blocks of the others, against one fit on
    all: to a tenth of the standard error."""
    monkeypatch.setattr(online, "_of_hessian", 1)
    rng, n, true = np.random.default_rng(0), 4000, np.array([1.5, -0.5])
    rows = rng.normal(size=(2, 30, 5)).astype(np.float32)
    tables = [Dense(table) for table in rows]
    x = rng.integers(30, size=n)
    logits = np.einsum("g,gmn->mn", true, rows[:, x])
    Y = np.array([rng.choice(5, p=np.exp(row - np.logaddexp.reduce(row))) for row in logits])
    positions = Positions(np.stack([x, x], axis=1), np.tile(np.arange(2), (n, 1)))

    def fit_of(m):
        return fit_exponents(tables, positions.take(m), Y[m], np.zeros(2), ridge=1e-9)

    first = fit_of(slice(0, 1000))
    state = begin_online(first.exponents, 1000 * first.hessian)
    for block, m in enumerate(np.split(np.arange(1000, n), 30)):
        state = learn(state, tables, positions.take(m), Y[m], m)
        state = exponents_at(state, SIZE * (block + 1))
    wanted = fit_of(slice(None)).exponents
    error = np.sqrt(np.diag(np.linalg.inv(state.hessian)))
    np.testing.assert_array_less(abs(state.exponents - wanted), error / 10)
    assert abs(first.exponents - wanted).max() > error.max() / 2  # the first thousand alone are further off


def test_pieces_and_files_of_a_state_give_the_same_numbers(tmp_path):
    model, tokens = fitted().model, stream()
    state, found = init(model), []
    for part in np.split(tokens[1:], [1, 2, 59, 60, 61, 130]):
        save_state(tmp_path / "state.safetensors", state)
        state = load_state(tmp_path / "state.safetensors")
        log_p, state = read(model, state, part)
        found.append(log_p[part != 0])
    np.testing.assert_allclose(np.concatenate(found), score(model, tokens), atol=ATOL)
    assert state.growth is not None and isinstance(state.growth.online, Online)
    assert state.growth.online.block == (len(tokens) - 1) // SIZE


def test_the_next_token_has_the_exponents_of_its_block():
    model, tokens = fitted().model, stream()
    _, state = read(model, init(model), tokens[1 : 2 * SIZE])
    log_p, _ = read(model, state, tokens[2 * SIZE : 2 * SIZE + 1])
    np.testing.assert_allclose(predict(model, state)[tokens[2 * SIZE]], log_p[0], atol=ATOL)
    text = read_text(tokens, model.radius)
    whole = log_distributions(model, text.X, past=text.past)
    np.testing.assert_allclose(whole[np.arange(len(text.Y)), text.Y], score(model, tokens), atol=ATOL)


def test_documents_alone_are_read_with_the_fitted_exponents():
    model = fitted().model
    frozen = replace(model, curvature=None)
    np.testing.assert_allclose(score(model, stream(), separate=True), score(frozen, stream(), separate=True), atol=ATOL)


def test_it_is_saved(tmp_path):
    import jexplicit

    fitted().save(tmp_path / "m.safetensors")
    again = jexplicit.load_model(tmp_path / "m.safetensors").model
    np.testing.assert_allclose(score(again, stream()), score(fitted().model, stream()), atol=ATOL)


@pytest.mark.parametrize("history", ["none", "window:256", "adaptive:document"])
def test_only_a_text_that_is_read_as_a_whole_is_fitted_on(history):
    with pytest.raises(ValueError, match=f"online and history '{history}': .*with history 'adaptive'"):
        fit(TEXTS, rows=("contexts-4",), history=history, online=True)

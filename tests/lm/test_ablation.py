"""What each kind of row buys a mixture: a kind left out is a mixture that was built without its rows.

Tolerances: a model is fitted until the next step would gain 1e-4 nats. Its penalty r/2 ||a - near||² keeps it above the lowest
loss L(b) by at most r/2 ||b - near||²; float32 losses are right to 2e-5.
"""

import functools

import numpy as np
import pytest
from reference import random_documents, stream_of

from jexplicit.lm.evaluation import log_probabilities, read_text
from jexplicit.lm.fits.mixtures import ablation
from jexplicit.lm.fits.mixtures.ablation import CHAIN_KINDS, log_row_kinds, refitted_losses
from jexplicit.lm.fits.mixtures.mixture_rows import CHAIN, mixture_rows
from jexplicit.lm.fits.mixtures.ngram_mixture import fit_mixture, fit_rows, held_out_rows, ngram_model
from jexplicit.lm.tables.reader import log_probabilities as read_log_probabilities
from jexplicit.lm.training_text import RADIUS, TrainingText, Watch

pytestmark = pytest.mark.slow

N = 7
GAIN, ROUNDING = 1e-4, 2e-5
STREAM, HELD = (stream_of(random_documents(seed=s, number=70, vocab_size=N, longest=14)) for s in (11, 12))
TEXT, HELD_OUT = TrainingText(STREAM, N), read_text(HELD, RADIUS)
M = np.arange(len(HELD_OUT.Y))
NAMES = {"offset": "offsets", "gap": "gaps"}  # of --rows; a cache goes with the history
KINDS = (*CHAIN_KINDS, "offset", "gap", "cache")


def rows_without(kind: str = "", confidence: bool = False):
    names = [name for name in ("offsets", "contexts-4", "gaps") if name != NAMES.get(kind)]
    history = "none" if kind == "cache" else "all"
    return mixture_rows(TEXT, (*names, *(["confidence"] if confidence else [])), history=history)


@functools.cache
def mixture(confidence=False):
    read = held_out_rows(rows_without(confidence=confidence), HELD_OUT, M)
    return read, fit_rows(read).exponents


def without(kind):
    return tuple(other for other in KINDS if other != kind)


@pytest.mark.parametrize("kind, confidence", [("offset", False), ("cache", False), ("gap", True)])
def test_leaving_out_a_kind_is_fitting_a_mixture_that_was_built_without_it(kind, confidence):
    read, exponents = mixture(confidence)
    left_out = refitted_losses(read, exponents, [without(kind)])[without(kind)]
    built = fit_mixture(rows_without(kind, confidence), HELD_OUT, M, ridge=1e-5)
    prior = max(ablation._prior_positions, len(exponents) // ablation._exponents_of_a_position)
    ridge, near = prior / len(M), exponents[read.has(without(kind))]
    assert len(near) == len(built.exponents) == read.scalars(without(kind))
    penalty = ridge / 2 * np.sum((built.exponents - near) ** 2)
    assert built.loss - 1e-3 < left_out < built.loss + penalty + GAIN + ROUNDING


@pytest.mark.parametrize("kind, confidence", [("offset", True), ("gap", False), ("cache", False)])
def test_without_a_penalty_the_two_are_one(kind, confidence, monkeypatch):
    monkeypatch.setattr(ablation, "_prior_positions", 0.03)
    monkeypatch.setattr(ablation, "_exponents_of_a_position", 1 << 20)
    monkeypatch.setattr(ablation, "_least_gain", 1e-6)
    read, exponents = mixture(confidence)
    left_out = refitted_losses(read, exponents, [without(kind)])[without(kind)]
    built = fit_mixture(rows_without(kind, confidence), HELD_OUT, M, ridge=0.03 / len(M))
    # two penalties of 6e-5, on distances whose squares are some 10
    assert left_out == pytest.approx(built.loss, abs=6e-4)


def test_left_out_kinds_are_told_apart():
    read, exponents = mixture()
    choices = [KINDS, *(without(kind) for kind in ("offset", "gap", "cache")), CHAIN_KINDS, KINDS]
    seen = []
    losses = refitted_losses(read, exponents, choices, progress=lambda *done: seen.append(done))
    assert list(losses) == choices[:-1] and seen == [(n, 5) for n in range(1, 6)]
    assert len(set(losses.values())) == 5 and losses[CHAIN_KINDS] > min(losses.values()) + 0.01
    for kinds in choices[1:-1]:  # each is within the whole
        assert losses[kinds] > losses[KINDS] - GAIN
    log_p = read_log_probabilities(read.tables, exponents, read.positions, read.Y)
    assert losses[KINDS] <= -log_p.mean() + ROUNDING


def logged(history):
    rows, found = mixture_rows(TEXT, ("offsets", "contexts-4", "gaps"), history=history), []
    read = held_out_rows(rows, HELD_OUT, M)
    log_row_kinds(read, fit_rows(read).exponents, Watch(log=lambda **event: found.append(event)), history=history)
    return found


def test_the_first_step_is_kneser_ney_and_the_last_the_mixture():
    events = logged("none")
    steps = [event for event in events if event["event"] == "step"]
    assert [event["kind"] for event in steps] == [None, None, "offset", "gap"]
    f = np.bincount(TEXT.predictions(1)[1], minlength=N)
    log_p = log_probabilities(ngram_model(TEXT.ngrams(CHAIN), f), HELD_OUT.X[:, : len(CHAIN)], HELD_OUT.Y)
    assert steps[0]["held_out_perplexity"] == pytest.approx(np.exp(-log_p.mean()), rel=ROUNDING)
    whole, *others = [event for event in events if event["event"] == "ablation"]
    assert [event["without"] for event in others] == ["offset", "gap"] and whole["without"] is None
    assert whole["held_out_perplexity"] == steps[-1]["held_out_perplexity"]
    assert {(event["history"], event["positions"]) for event in events} == {("none", len(M))}


def test_of_many_positions_some_are_taken(monkeypatch):
    monkeypatch.setattr(ablation, "_most_positions", 100)
    assert {event["positions"] for event in logged("all")} == {-(-len(M) // -(-len(M) // 100))}
    monkeypatch.setattr(ablation, "refitted_losses", None)  # nothing is fitted for a log that nobody reads
    log_row_kinds(*mixture(), Watch())


def test_a_mixture_of_the_chain_alone_has_nothing_to_leave_out():
    found = []
    read = held_out_rows(mixture_rows(TEXT, ("contexts-4",)), HELD_OUT, M)
    log_row_kinds(read, fit_rows(read).exponents, Watch(log=lambda **event: found.append(event)))
    assert [event["step"] for event in found] == ["Kneser-Ney 5-gram", "mixture, history none"]

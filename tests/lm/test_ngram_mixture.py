"""The mixture of n-gram rows: a distribution over every output, of the past alone, with Kneser-Ney as a special case.

Tolerances: rows are float32 and up to 10; a position adds up 25 of them with float32 exponents, so that its logits, and the
log softmax, are right to some 20 eps of that: 2e-5. A mean loss over positions is right to as much.
"""

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import PAD, Chain, log_linear, random_documents, stream_of, windows
from scipy.optimize import minimize
from scipy.special import log_softmax

from jexplicit.lm import evaluation
from jexplicit.lm.attribution import explain
from jexplicit.lm.core.model import HISTORY, LanguageModel, window_of
from jexplicit.lm.core.smoothing import SMOOTHINGS
from jexplicit.lm.evaluation import evaluate, log_probabilities, read_tables, read_text, score
from jexplicit.lm.fits.fit import _new_positions, fit_model
from jexplicit.lm.fits.mixtures.mixture_rows import CACHES, CHAIN, GAPS, mixture_rows, with_history
from jexplicit.lm.fits.mixtures.ngram_mixture import (
    exponent_names,
    fit_mixture,
    fit_rows,
    held_out_rows,
    ngram_model,
    starting_exponents,
)
from jexplicit.lm.rows.ngrams import smoothed_ngrams
from jexplicit.lm.tables.storage import Sparse
from jexplicit.lm.training_text import RADIUS, Options, TrainingText, draw_positions

pytestmark = pytest.mark.slow

N = 7
KINDS = ("unigram", "offset", "context", "gap", "cache")
ATOL = 2e-5
DOCUMENTS = random_documents(seed=11, number=70, vocab_size=N, longest=14)
STREAM, HELD = stream_of(DOCUMENTS), stream_of(random_documents(seed=12, number=30, vocab_size=N, longest=14))
EOS = pytest.mark.parametrize("eos", [False, True])


def text_of(stream, eos=False):
    return read_text(stream, RADIUS, eos=eos)


@functools.cache
def ngrams_of(offsets, eos=False):
    text = text_of(STREAM, eos)
    return smoothed_ngrams(text.X, text.Y, offsets=offsets, vocab_size=N)


@functools.cache
def training_text(eos: bool = False):
    return TrainingText(STREAM, N, eos=eos)


@functools.cache
def rows_of(eos: bool = False, history: Any = "all", smoothing: Any = "kneser-ney"):
    return mixture_rows(training_text(eos), smoothing=smoothing, history=history)


def model_of(exponents, eos=False, rows=None):
    return LanguageModel(rows or rows_of(eos), np.asarray(exponents, np.float32), "cat", eos)


def names_of(rows):
    return tuple(name for kind in rows for name in kind.names)


NAMES = ("unigram", *(f"offset {k}" for k in range(1, 9)), *(f"context {n}" for n in range(1, 5)))
NAMES += ("gap 1, 3", "gap 2, 3", "gap 1, 4", "gap 2, 4", *(f"cache {length}" for length in (50, 400, 2000, 10000)))
NAMES += ("cache 2000 after 1", *(f"cache 20000 after {n}" for n in (1, 2, 3)))
KNESER_NEY = np.array([float(name.split()[0] in ("unigram", "context")) for name in NAMES])
SOME = np.random.default_rng(0).uniform(0.1, 0.9, len(NAMES))


@functools.cache
def fitted_of(kinds=KINDS):
    return fitted_on(text_of(HELD), slice(None), kinds)


def fitted_on(text, some, kinds):
    """Absent kinds, whose exponents nothing but the penalty holds, have 0."""
    read = held_out_rows(rows_of(), text, np.arange(len(text.Y))[some])
    fitted = fit_rows(read.of_kinds(kinds))
    np.testing.assert_allclose(fitted.exponents[~read.has(kinds)], starting_exponents(rows_of())[~read.has(kinds)], atol=1e-12)
    return fitted._replace(exponents=read.only(fitted.exponents, kinds))


def log_p_of(model, text, m=None):
    """The log probabilities of some positions of a text."""
    m = np.arange(len(text.Y)) if m is None else m
    return log_probabilities(model, text.X[m], text.Y[m], past=text.past.take(m))


def distribution(model, text, m):
    """[M, N] the log probability of every output, one at a time."""
    return np.stack([log_p_of(model, text._replace(Y=np.full_like(text.Y, i)), m) for i in range(N)], axis=1)


def slow_log_p(exponents, text, m):
    """[M, N] the same, position by position in float64."""
    read, positions, _ = read_tables(model_of(exponents), text.X[m], text.past.take(m))
    tables = []
    for one in read:
        if isinstance(one, Sparse):
            start, outputs, values = map(np.asarray, one.rows)
            table = np.zeros((len(start), N))  # the last row for positions without one
            table[np.repeat(np.arange(len(start) - 1), np.diff(start)), outputs] = values
            tables.append(table + (0 if one.base is None else np.asarray(one.base, np.float64)))
        else:
            tables.append(np.asarray(one.rows, np.float64))
    rows = np.where(positions.rows < 0, [len(table) - 1 for table in tables], positions.rows)
    return log_linear(tables, exponents, rows, positions.exponents)


def slow_loss(exponents, text, m):
    return -np.mean(slow_log_p(exponents, text, m)[np.arange(len(m)), text.Y[m]])


# Reading


def test_names_say_what_each_exponent_weighs():
    model = model_of(SOME)
    assert model.names == NAMES and len(NAMES) == 1 + RADIUS + len(CHAIN) + len(GAPS) + len(CACHES)
    assert {name.split()[0] for name in NAMES} == set(KINDS)
    assert names_of(rows_of(history="none")) == names_of(with_history(rows_of(), "none")) == NAMES[: -len(CACHES)]
    assert names_of(with_history(rows_of(history="none"), "all")) == names_of(with_history(rows_of(), "all")) == NAMES
    # a row of several tokens counts for the one that is furthest back
    assert model.tokens == (None, *range(1, 9), 1, 2, 3, 4, 3, 3, 4, 4, *[HISTORY] * 8)
    assert (model.radius, model.history, model.vocab_size, model.ordered) == (RADIUS, 20003, N, True)


def test_every_table_is_read_and_weighed_by_its_own_exponent():
    text, m = text_of(HELD), np.arange(0, 100, 7)
    fast = log_p_of(model_of(SOME), text, m)
    np.testing.assert_allclose(fast, slow_log_p(SOME, text, m)[np.arange(len(m)), text.Y[m]], rtol=0, atol=ATOL)
    for s, name in enumerate(NAMES):
        doubled = np.where(np.arange(len(SOME)) == s, 2, 1) * SOME
        assert np.max(np.abs(log_p_of(model_of(doubled), text, m) - fast)) > 100 * ATOL, name


@EOS
def test_exponents_1_of_the_chain_are_kneser_ney_of_order_5(eos):
    text, m = text_of(HELD, eos), np.arange(0, 120, 2)
    slow = Chain(*windows(DOCUMENTS, RADIUS, eos=eos), CHAIN, N)
    expected = np.log([[slow.P(tuple(map(int, x[:4])), i) for i in range(N)] for x in text.X[m]])
    np.testing.assert_allclose(distribution(model_of(KNESER_NEY, eos), text, m), expected, rtol=0, atol=ATOL)
    model = ngram_model(ngrams_of(CHAIN, eos), np.bincount(text_of(STREAM, eos).Y, minlength=N), eos=eos)
    assert (model.radius, model.history, model.eos) == (4, 0, eos)
    assert model.names == ("unigram", "context 1", "context 2", "context 3", "context 4")
    own = read_text(HELD, 4, eos=eos)
    np.testing.assert_allclose(distribution(model, own, m), expected, rtol=0, atol=ATOL)
    assert evaluate(model, HELD).positions == len(own.Y)
    np.testing.assert_allclose(score(model, HELD)[m], expected[np.arange(len(m)), own.Y[m]], rtol=0, atol=ATOL)


@pytest.mark.parametrize("gap", GAPS[::3])
def test_a_gap_adds_what_the_pair_says_beyond_its_first_token(gap):
    text, m = text_of(HELD), np.arange(0, 120, 6)
    slow, expected = Chain(*windows(DOCUMENTS, RADIUS), gap, N), []
    for x in text.X[m]:
        expected.append(log_softmax(slow.row(tuple(int(x[offset - 1]) for offset in gap))))
    alone = np.array([float(name == f"gap {gap[0]}, {gap[1]}") for name in NAMES])
    np.testing.assert_allclose(distribution(model_of(alone), text, m), expected, rtol=0, atol=ATOL)


def test_tables_are_prepared_once_for_a_model():
    model = model_of(SOME)
    first = score(model, HELD)
    with mock.patch.object(evaluation, "prepare", side_effect=AssertionError("prepared again")):
        np.testing.assert_array_equal(score(model, HELD), first)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_rows_of_every_smoothing_make_a_distribution(smoothing):
    text, m = text_of(HELD), np.arange(0, 150, 5)
    model = model_of(SOME, rows=rows_of(smoothing=smoothing))
    log_p = distribution(model, text, m)
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1, rtol=0, atol=ATOL)
    assert (smoothing == "kneser-ney") == np.allclose(log_p, distribution(model_of(SOME), text, m), rtol=0, atol=ATOL)


def test_nothing_at_or_after_a_position_changes_its_prediction():
    text, model = text_of(HELD), model_of(SOME)
    now = len(text.Y) // 2
    place = int(text.past.places[now])
    other = HELD.copy()
    tokens = np.flatnonzero(HELD[place:]) + place
    other[tokens] = HELD[tokens] % (N - 1) + 1  # every token from the target on is another one, in as many documents
    changed = text_of(other)
    assert np.all(changed.Y[now:] != text.Y[now:])
    before = np.arange(now - 20, now + 1)
    mine, theirs = (distribution(model, t, before) for t in (text, changed))
    np.testing.assert_array_equal(mine, theirs)
    # and the token before matters
    past = HELD.copy()
    last = int(np.flatnonzero(HELD[:place])[-1])
    past[last] = HELD[last] % (N - 1) + 1
    assert np.max(np.abs(distribution(model, text_of(past), before[-1:]) - mine[-1:])) > 100 * ATOL


# Fitting


def test_the_loss_of_a_fit_is_that_of_its_exponents_and_below_that_of_kneser_ney():
    text = text_of(HELD)
    m, fitted = np.arange(len(text.Y)), fitted_of()
    assert fitted.loss == pytest.approx(slow_loss(fitted.exponents, text, m), abs=ATOL)
    log_p = log_p_of(model_of(KNESER_NEY), text)
    assert fitted.loss < -np.mean(log_p) - 0.05


def test_more_kinds_of_tables_never_fit_worse_and_the_others_have_exponent_0():
    losses = []
    for kinds in (("unigram", "context"), ("unigram", "context", "offset"), ("unigram", "context", "offset", "gap"), KINDS):
        losses.append(fitted_of(kinds).loss)
    # each is at its minimum, to the square of the tolerance over the curvature, and the penalty
    assert np.all(np.diff(losses) < 1e-3) and losses[-1] < losses[0] - 0.01


def test_positions_that_are_not_asked_for_are_not_fitted():
    text, some = text_of(HELD), np.arange(0, 150, 3)
    other = text._replace(Y=np.where(np.isin(np.arange(len(text.Y)), some), text.Y, PAD).astype(text.Y.dtype))
    one, two = (fitted_on(t, some, ("unigram", "context")) for t in (text, other))
    np.testing.assert_array_equal(one.exponents, two.exponents)
    assert np.any(one.exponents != fitted_of(("unigram", "context")).exponents)


def test_a_fit_of_all_rows_is_one_of_all_kinds():
    text = text_of(HELD)
    fitted = fit_mixture(rows_of(), text, np.arange(len(text.Y)))
    np.testing.assert_allclose(fitted.exponents, fitted_of().exponents, rtol=0, atol=1e-5)
    assert fitted.loss == pytest.approx(evaluate(model_of(fitted.exponents), HELD).loss, abs=ATOL)


def test_the_penalty_of_a_small_held_out_text_is_worth_one_and_a_half_positions():
    """By name: `min_a mean loss + r/2 ||a - start||²`, r = 1.5 / M with M held-out positions, as scipy minimises it."""
    text, most = TrainingText(stream_of(random_documents(seed=5, number=300, vocab_size=N, longest=14)), N), 150
    rest, held = text.parts(most)
    rows, held_out = mixture_rows(rest, ("contexts-4",), history="none"), read_text(held, 4)
    m = draw_positions(Options(calibration_positions=most), _new_positions(rest, held_out))
    start, ridge = starting_exponents(rows), 1.5 / len(m)
    assert ridge > 3e-3  # far above the least
    W = np.asarray(jax.jit(jax.vmap(LanguageModel(rows, start).read))(jnp.asarray(held_out.X[m]))).astype(np.float64)
    n, y = np.arange(len(m)), held_out.Y[m]

    def objective(a):
        log_p = log_softmax(np.einsum("g,gmn->mn", a, W), axis=1)
        slopes = np.mean(np.einsum("mn,gmn->gm", np.exp(log_p), W) - W[:, n, y], axis=1)
        return ridge / 2 * np.sum((a - start) ** 2) - log_p[n, y].mean(), ridge * (a - start) + slopes

    found = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-8})
    fitted = fit_model("mixture", text, Options(rows=("contexts-4",), calibration_positions=most)).info
    # float32 gradients, off by 1e-5 with the fit's tolerance, over a curvature of at least the penalty
    np.testing.assert_allclose(fitted["exponents"], found.x, rtol=0, atol=2e-5 / ridge)
    log_p = np.log(fitted["held_out_perplexity"])
    assert log_p == pytest.approx(objective(found.x)[0] - ridge / 2 * np.sum((found.x - start) ** 2), abs=1e-4)


def test_a_fit_begins_near_the_nearest_tokens():
    start = dict(zip(NAMES, starting_exponents(rows_of()), strict=True))
    assert start["offset 1"] > start["offset 2"] > start["offset 8"] > 0
    assert (start["unigram"], start["context 1"], start["context 4"], start["cache 400"]) == (0.6, 0.5, 0.7, 0.2)


# The rows


def test_all_rows_are_the_same_where_devices_count_their_contexts():
    """To the rounding of float32, in which devices smooth: some 10 roundings of 6e-8 at each of 4 levels."""
    rows = ("offsets", "contexts-4", "gaps", "skips", "classes")
    made = [mixture_rows(TrainingText(STREAM, N, device_contexts=where), rows) for where in (False, True)]
    for mine, other in zip(*map(jax.tree.leaves, made), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=2e-7, atol=3e-6 if np.issubdtype(mine.dtype, np.floating) else 0)


def test_counting_in_threads_builds_each_group_once_and_says_so():
    seen, text = [], TrainingText(STREAM, N)
    again = mixture_rows(text, progress=lambda *done: seen.append(done))
    assert seen == [(done + 1, 1 + len(GAPS)) for done in range(1 + len(GAPS))]
    assert tuple(kind.offsets for kind in again[3:]) == (CHAIN, *GAPS)
    assert all(one is two for one, two in zip(again, mixture_rows(text), strict=True))  # nothing is counted twice


# Histories


@pytest.mark.parametrize("history", ["none", "document", "window:40", "all"])
def test_a_history_sees_what_it_says_and_nothing_else(history):
    """The farthest token that a row reads changes it; tokens farther back, or before the document, do not."""
    W = window_of(history)
    model = LanguageModel(rows_of(history=history), np.full(len(names_of(rows_of(history=history))), 0.3, np.float32))
    assert (model.history > 0) == (history != "none") and (W is None or model.history == W)
    stream = stream_of(random_documents(seed=5, number=6, vocab_size=N, longest=60))
    text = text_of(stream)
    m = np.array([len(text.Y) - 1])
    place, start = int(text.past.places[m[0]]), int(np.flatnonzero(stream[:-1] == PAD)[-1])
    first = {"none": max(start, place - RADIUS), "document": start, "all": 0}.get(history, place - (W or 0))
    before = distribution(model, text, m)
    tokens = np.flatnonzero(stream)
    for changed, seen in ((tokens[tokens < first], False), (tokens[(tokens >= first) & (tokens < place)], True)):
        other = stream.copy()
        other[changed] = stream[changed] % (N - 1) + 1
        after = distribution(model, text_of(other)._replace(Y=text.Y), m)
        assert (np.max(np.abs(after - before)) > 100 * ATOL) == (seen and len(changed) > 0)


# Confidence


def test_an_exponent_for_each_confidence_is_that_of_its_context():
    """Equal exponents of all confidences are one exponent; others are those that a loop over the counts chooses."""
    names = ("contexts-4", "confidence")
    plain, rows = mixture_rows(training_text(), ("contexts-4",)), mixture_rows(training_text(), names)
    text, m = text_of(HELD), np.arange(0, 100, 5)
    a = np.array([0.6, 0.5, 0.4, 0.3, 0.2])
    spread = np.array([a[["unigram", *(f"context {n}" for n in range(1, 5))].index(name)] for name in exponent_names(rows)])
    one, several = LanguageModel(plain, a.astype(np.float32)), LanguageModel(rows, spread.astype(np.float32))
    own = text._replace(X=text.X[:, :4])
    np.testing.assert_allclose(distribution(several, own, m), distribution(one, own, m), rtol=0, atol=ATOL)

    X, Y = windows(DOCUMENTS, RADIUS)
    exponents = np.random.default_rng(0).uniform(0.1, 1, len(spread))
    model = LanguageModel(rows, exponents.astype(np.float32))
    found, parts = distribution(model, own, m), explain(model, own.X[m], own.Y[m])
    jitted = jax.jit(jax.vmap(model.logits))(jnp.asarray(own.X[m]))
    np.testing.assert_allclose(jax.nn.log_softmax(jitted), found, rtol=0, atol=ATOL)
    np.testing.assert_allclose(parts.log_probability, found[np.arange(len(m)), own.Y[m]], rtol=0, atol=ATOL)
    unweighed = explain(LanguageModel(plain, np.ones(5, np.float32)), own.X[m], own.Y[m])
    for at, x in enumerate(own.X[m]):
        for n in (2, 3, 4):
            after = [int(y) for context, y in zip(X, Y, strict=True) if tuple(context[:n]) == tuple(x[:n])]
            if not after:
                continue
            times = sum(len(after) >= bound for bound in (2, 4, 11, 51))
            confidence = 2 * times + (len(set(after)) > 1)
            exponent = exponents[2 + 10 * (n - 2) + confidence]  # after those of the unigram and of context 1
            assert parts.logits[at, n] == pytest.approx(exponent * unweighed.logits[at, n], abs=ATOL)

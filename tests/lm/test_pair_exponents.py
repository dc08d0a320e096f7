"""Exponents fitted on minimal pairs, against slow loops in NumPy and finite differences."""

import functools
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference import log_linear as log_linear_loop

from jexplicit import encode_documents, fit, train_tokenizer
from jexplicit.data.pairs import MinimalPair
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.evaluation import score
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.mixtures.mixture_rows import mixture_rows
from jexplicit.lm.fits.mixtures.ngram_mixture import starting_exponents
from jexplicit.lm.fits.mixtures.pair_exponents import fit_pair_exponents, fit_to_pairs, pair_positions, pairs_of_text
from jexplicit.lm.minimal_pairs import preferences
from jexplicit.lm.tables.placing import Positions
from jexplicit.lm.training_text import Options, TrainingText
from launch.lm import __main__ as lm

pytestmark = pytest.mark.slow

N, M, PAIRS = 6, 120, 30


def random_problem(seed=0):
    """Two tables with three exponents, the second table's by position; 30 pairs with two positions in each sentence."""
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=(rows, N)) for rows in (4, 5)]
    rows = np.stack([rng.integers(0, len(table), M) for table in tables], axis=1)
    which = np.stack([np.zeros(M, int), rng.integers(1, 3, M)], axis=1)
    order = rng.permutation(M)
    pair, sign = np.repeat(np.arange(PAIRS), 4)[order], np.tile([1.0, -1.0, 1.0, -2.0], PAIRS)[order]
    return tables, Positions(rows, which), rng.integers(0, N, M), pair, sign


def as_tables(tables, dtype=np.float64):
    return [jnp.asarray(table, dtype) for table in tables]


def differences_by_loop(a, tables, positions, Y, pair, sign):
    D, log_p = np.zeros(PAIRS), log_linear_loop(tables, a, *positions)
    for row, y, n, s in zip(log_p, Y, pair, sign, strict=True):
        D[n] += s * row[y]
    return D


def loss_by_loop(a, problem, start, ridge):
    D = differences_by_loop(a, *problem)
    return np.mean([np.log(1 + np.exp(-d)) for d in D]) + ridge / 2 * sum((a - start) ** 2)


def slopes_by_loop(function, a, step=1e-5):
    e = step * np.eye(len(a))
    return np.array([(function(a + d) - function(a - d)) / (2 * step) for d in e])


START = np.array([0.3, 0.8, -0.2])


def test_the_first_pass_measures_loss_and_gradient_at_the_start():
    problem = random_problem()
    first = fit_pair_exponents(as_tables(problem[0]), *problem[1:], START, ridge=0.1, iterations=1)
    np.testing.assert_array_equal(first.exponents, START)
    assert first.loss == pytest.approx(loss_by_loop(START, problem, START, 0), abs=1e-12)
    gradient = slopes_by_loop(lambda a: loss_by_loop(a, problem, START, 0.1), START)
    # a step of 1e-5: its square times a third derivative of some 10, and rounding, 1e-16 over it
    assert first.gradient == pytest.approx(np.abs(gradient).max(), abs=1e-8)


def test_the_second_pass_is_at_the_step_of_gauss_and_newton():
    problem, ridge = random_problem(), 0.5
    second = fit_pair_exponents(as_tables(problem[0]), *problem[1:], START, ridge=ridge, iterations=2)
    J = slopes_by_loop(lambda a: differences_by_loop(a, *problem), START).T
    s = 1 / (1 + np.exp(differences_by_loop(START, *problem)))
    hessian = J.T @ np.diag(s * (1 - s)) @ J / PAIRS + ridge * np.eye(3)
    expected = START + np.linalg.solve(hessian, J.T @ s / PAIRS)
    np.testing.assert_allclose(second.exponents, expected, rtol=0, atol=1e-7)  # finite differences, 1e-9, over the ridge


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_fit_ends_where_the_gradient_is_zero(dtype):
    problem, ridge = random_problem(1), 0.05
    fitted = fit_pair_exponents(as_tables(problem[0], dtype), *problem[1:], START, ridge=ridge)
    gradient = slopes_by_loop(lambda a: loss_by_loop(a, problem, START, ridge), fitted.exponents)
    # a gain of 1e-6 left: a gradient of the root of twice that and the curvature, which is below 2
    np.testing.assert_allclose(gradient, 0, rtol=0, atol=2e-3)
    assert loss_by_loop(fitted.exponents, problem, START, ridge) < loss_by_loop(START, problem, START, ridge) - 0.01
    assert fitted.loss == pytest.approx(loss_by_loop(fitted.exponents, problem, START, 0), abs=1e-5)
    assert fitted.passes < 30


def test_a_far_start_is_halved_until_the_loss_falls():
    problem, start, seen = random_problem(2), np.array([6.0, -8.0, 9.0]), []
    follow = functools.partial(fit_pair_exponents, progress=lambda *done: seen.append(done))
    fitted = follow(as_tables(problem[0]), *problem[1:], start, ridge=1e-3)
    assert loss_by_loop(fitted.exponents, problem, start, 1e-3) < loss_by_loop(start, problem, start, 1e-3)
    assert seen == [(n + 1, 30) for n in range(fitted.passes)]


def test_only_the_row_that_tells_good_from_bad_grows():
    """The first table prefers the good token, the second tells nothing; and of the pair as a minimum is known."""
    tables = [jnp.log(jnp.array([[0.8, 0.2]])), jnp.log(jnp.array([[0.5, 0.5]]))]
    two = Positions(np.zeros((2, 2), int), np.tile([0, 1], (2, 1)))
    start, ridge = np.array([0.4, 0.7]), 0.1
    signs = np.zeros(2, int), np.array([1.0, -1.0])
    fitted = fit_pair_exponents(tables, two, np.array([0, 1]), *signs, start, ridge=ridge, gain=1e-12)
    # p(good) / p(bad) = 4^a: the slope of the loss is -log 4 / (1 + 4^a), that of the penalty ridge (a - start)
    a = fitted.exponents[0]
    assert a > 1 and ridge * (a - 0.4) == pytest.approx(np.log(4) / (1 + 4**a), abs=1e-5)
    assert fitted.exponents[1] == pytest.approx(0.7, abs=1e-6)
    away = fit_pair_exponents(tables, two, np.array([0, 1]), signs[0], -signs[1], start, ridge=ridge)
    assert away.exponents[0] < 0.4
    strong = fit_pair_exponents(tables, two, np.array([0, 1]), *signs, start, ridge=1e6)
    np.testing.assert_allclose(strong.exponents, start, rtol=0, atol=1e-5)


# Of a text

STEMS = "walk talk jump look play climb help paint".split()
ADVERBS = "often never always rarely".split()


@functools.cache
def corpus():
    """A subject, an adverb that says nothing, and a verb that agrees with the subject."""
    rng, documents = np.random.default_rng(0), []
    for _ in range(900):
        one = rng.random() < 0.5
        subject, verb = rng.choice(["he", "she", "it"] if one else ["we", "they", "you"]), str(rng.choice(STEMS)) + "s" * one
        documents.append(f"{str(subject).title()} {rng.choice(ADVERBS)} {verb} in the {rng.choice(['garden', 'house'])}.")
    return documents


@functools.cache
def tokenizer_of(kind="bpe"):
    return train_tokenizer(corpus(), kind=kind, vocab_size=90 if kind == "bpe" else None)


@functools.cache
def training_text(kind="bpe", eos=False):
    tokenizer = tokenizer_of(kind)
    stream = encode_documents(tokenizer, corpus())
    return TrainingText(stream, tokenizer.vocab_size, eos=eos, tokenizer=tokenizer)


@pytest.mark.parametrize("history, eos", [("none", True), ("document", False)])
def test_differences_are_the_preferences_of_the_model(history, eos):
    """Positions that cancel are left out where nothing reads the past."""
    text, tokenizer = training_text(eos=eos), tokenizer_of()
    rows = mixture_rows(text, ("contexts-4", "confidence"), history=history)
    model = LanguageModel(rows, starting_exponents(rows).astype(np.float32), "cat", eos)
    pairs = pairs_of_text(text, text.parts()[1], seed=1)[:40]
    pairs.append(MinimalPair("He often walks in the the the garden.", "He often walk in the the the the garden.", ""))
    pairs.append(MinimalPair("We talk in the house.", "We talk in the house.", ""))
    found = pair_positions(model, tokenizer, pairs)
    expected = preferences(model, tokenizer, pairs)
    # sums of some 30 float32 log-probabilities
    np.testing.assert_allclose(found.differences(np.asarray(model.exponents), len(pairs)), expected, rtol=0, atol=1e-4)
    whole = encode_documents(tokenizer, [sentence for pair in pairs for sentence in (pair.good, pair.bad)])
    assert (len(found.Y) < 0.7 * len(score(model, whole))) == (history == "none")


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_pairs_are_of_held_out_sentences(kind):
    text = training_text(kind)
    held = text.parts()[1]
    pairs = pairs_of_text(text, held, most=30)
    assert len(pairs) == 30 and pairs == pairs_of_text(text, held, most=30) != pairs_of_text(text, held, most=30, seed=1)
    documents = [tokenizer_of(kind).decode(part) for part in np.split(held, np.flatnonzero(held == 0))]
    assert {pair.good for pair in pairs} <= set(documents)


def test_a_mixture_fitted_on_pairs_tells_more_of_them_apart():
    options = {"rows": ("contexts-4",), "history": "none", "calibration_positions": 1000}
    plain = fit_model("mixture", training_text(), Options(**options))
    fitted = fit_model("mixture", training_text(), Options(**options, calibration="pairs"))
    info = fitted.info
    assert info["calibration"] == "pairs" and "pairs" not in plain.info and info["scalars"] == len(info["exponents"])
    assert 10 <= info["pairs"] <= 200 and info["pair_accuracy"] >= info["pair_accuracy_before"]
    assert info["held_out_perplexity"] > plain.info["held_out_perplexity"]  # it is paid for


def test_the_pairs_that_are_fitted_on_are_told_apart_more_surely():
    text, tokenizer = training_text(), tokenizer_of()
    rest, held = text.parts(1000)
    rows = mixture_rows(rest, ("offsets", "contexts-4"))
    pairs, start = pairs_of_text(text, held, most=100), starting_exponents(rows)
    fitted, _ = fit_to_pairs(LanguageModel(rows, start.astype(np.float32)), tokenizer, pairs)
    model = [LanguageModel(rows, np.asarray(a, np.float32)) for a in (start, fitted.exponents)]
    loss = [np.mean(np.logaddexp(0, -preferences(m, tokenizer, pairs[len(pairs) // 5 :]))) for m in model]
    assert loss[1] < loss[0] and loss[1] == pytest.approx(fitted.loss, abs=1e-5)


def test_what_is_held_out_of_the_pairs_does_not_change_the_fit():
    text = training_text()
    rows = mixture_rows(text, ("contexts-4",))
    model = LanguageModel(rows, np.full(5, 0.5, np.float32))
    pairs = pairs_of_text(text, text.parts()[1], most=50)
    one, info = fit_to_pairs(model, tokenizer_of(), pairs)
    other, _ = fit_to_pairs(model, tokenizer_of(), [*pairs[:10][::-1], *pairs[10:]])
    np.testing.assert_array_equal(one.exponents, other.exponents)
    assert info["pairs"] == 50 and 0 <= info["pair_accuracy_before"] <= 1


def test_one_call_and_a_run_of_the_command_have_the_same_model(tmp_path):
    rows: Any = {"rows": ("contexts-4",), "history": "none"}
    model = fit(corpus(), **rows, vocab_size=90, calibration="pairs", calibration_positions=300)
    assert model.about["pairs"] <= 60 and model.about["pair_accuracy"] > 0.5
    (tmp_path / "train.txt").write_text("\n".join(corpus()))
    (tmp_path / "dev.txt").write_text("You often paint a garden.\nHe never helps in a house.")
    flags = "--methods mixture --rows contexts-4 --vocab-size 90 --calibration pairs --calibration-positions 300"
    files = [f"--train={tmp_path / 'train.txt'}", f"--dev={tmp_path / 'dev.txt'}", f"--out={tmp_path / 'run'}"]
    assert lm.main([*files, *flags.split(), "--samples=0", "--radius=1", "--quiet"]) == 0
    rows = json.loads((tmp_path / "run" / "results.json").read_text())["rows"]
    row = next(row for row in rows if row["method"] == "mixture")
    assert row["calibration"] == "pairs" and row["pairs"] == model.about["pairs"]
    np.testing.assert_allclose(row["exponents"], model.about["exponents"], rtol=0, atol=1e-4)


# What is refused

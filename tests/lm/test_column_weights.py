"""Column weights and intercepts of explicit models: against loops over positions, and the slope of the scaling assumption.

Tolerances: tables are float32, and a loss is a mean of some hundred logits of order 5: 1e-5.
"""

from typing import Any

import numpy as np
import pytest

from jexplicit.counts.dense import count
from jexplicit.data.contexts import contexts
from jexplicit.lm.core.model import token_model
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.column_weights import fit_token_delta, mean_cooccurrence_shift, shift_tokens
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.iterative_scaling import sweep_tables
from jexplicit.lm.rows.explicit import explicit_language_model, target_counts, unigram_model
from jexplicit.lm.scaling_assumption import log_mean_cooccurrences
from jexplicit.lm.training_text import Options, TrainingText

pytestmark = pytest.mark.slow

N = 9
FEATURES: Any = ("sum", "cat")


def some_stream(seed=0, tokens=600):
    """Sentences of ids 1 .. 7, each of which makes the next likely; the last id never occurs."""
    rng = np.random.default_rng(seed)
    ids = [1]
    for _ in range(tokens):
        ids.append(int(1 + (ids[-1] + 1) % 7 if rng.random() < 0.4 else min(rng.geometric(0.35), 7)))
    ids[::17] = [0] * len(ids[::17])
    return np.array([0, *ids[1:], 0], np.uint8)


def some_model(stream, features, radius, eos=False):
    counts = count(stream, radius=radius, vocab_size=N)
    return explicit_language_model(counts, features=features, radius=radius, eos=eos), target_counts(counts, eos=eos)


def logits_loop(model, X):
    return np.array([sum(np.asarray(U, np.float64)[j] for U, j in zip(model.tables, x, strict=True)) for x in X])


@pytest.mark.parametrize("features, eos", [("sum", False), ("cat", True)])
def test_delta_is_the_lowest_of_a_scan(features, eos):
    stream = some_stream()
    model, f = some_model(stream, features, 3, eos)
    X, Y = contexts(stream, 3, eos=eos)
    fit = fit_token_delta(model, f, X, Y)
    z, log_f = logits_loop(model, X), np.log(np.maximum(f, 1))

    def loss(delta):
        shifted = z - delta * log_f
        return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(Y)), Y]))

    scan = np.linspace(fit.delta - 0.2, fit.delta + 0.2, 81)
    assert abs(scan[np.argmin([loss(delta) for delta in scan])] - fit.delta) < 0.004
    assert fit.loss == pytest.approx(loss(fit.delta), rel=1e-5) and fit.loss < fit.first_loss
    shifted = shift_tokens(model, -fit.delta * log_f)
    assert evaluate(shifted, stream).loss == pytest.approx(fit.loss, rel=1e-5)
    np.testing.assert_allclose(logits_loop(shifted, X), z - fit.delta * log_f, atol=1e-4)


@pytest.mark.parametrize("features", FEATURES)
def test_the_weights_are_eq_14_over_positions(features):
    """`w_i = f_i^(1/K)/<E_G[F_i]>`, from logits without any weights: less the explicit ones, f_i^((1 - K)/K) K^..., K times."""
    K, stream = 2, some_stream(seed=1)
    model, f = some_model(stream, features, K)
    X, _ = contexts(stream, K)
    seen = f > 0
    bare = logits_loop(model, X)[:, seen] + (K - 1) * np.log(K * f[seen])  # log prod_k F[x_k, i]
    log_means = np.log(np.exp(bare).mean(axis=0)) / K
    expected = K * (np.log(f[seen]) / K - log_means) - (1 - K) * np.log(f[seen])
    v = mean_cooccurrence_shift(model, f, X)
    difference = v[seen] - expected
    np.testing.assert_allclose(difference, difference[0], atol=1e-4)
    assert not v[~seen].any() and f @ v == pytest.approx(0, abs=1e-6 * f.sum())


def test_the_shift_is_minus_delta_log_f_where_the_mean_is_a_power_of_the_count():
    """δ = K (s - 1), Sec. 2.2: with log <E_G> replaced by its line of slope s."""
    stream = some_stream(seed=2)
    model, f = some_model(stream, "cat", 2)
    X, _ = contexts(stream, 2)
    seen = f > 0
    log_means = log_mean_cooccurrences(model, f, X)
    slope, offset = np.polyfit(np.log(f[seen]), log_means[seen], 1)
    v = mean_cooccurrence_shift(model, f, X)[seen] + 2 * (log_means[seen] - (slope * np.log(f[seen]) + offset))
    line = np.polyfit(np.log(f[seen]), v, 1)
    assert -line[0] == pytest.approx(2 * (slope - 1), abs=1e-5)


def test_by_name():
    """A delta is one direction of what an intercept is free to move."""
    stream = some_stream(seed=3)
    text, options = TrainingText(stream, N), Options(radius=2, calibration_positions=10_000, sweeps=500)
    names = ("explicit", "mean-cooccurrence", "delta", "intercept")
    start, means, delta, intercept = (fit_model(name, text, options) for name in names)
    assert [fitted.info["scalars"] for fitted in (means, delta, intercept)] == [N, 1, N] and np.isfinite(delta.info["delta"])
    losses = [evaluate(fitted.model, stream).loss for fitted in (start, means, delta, intercept)]
    assert losses[2] < losses[0] and losses[3] < losses[2] + 1e-5 and abs(losses[1] - losses[0]) < 0.5


# The intercept of frozen tables: a slow loop, the marginals of its minimum, and the unigram


def fit_token_intercept(model, stream, **options):
    counts = count(stream, radius=model.radius, vocab_size=N)
    return sweep_tables(model, counts, stream, noise=False, intercept=True, **options)


def slow_fit(model, stream, sweeps):
    """The intercept and the losses, one position at a time."""
    X, Y = contexts(stream, model.radius, eos=model.eos)
    base = np.array([sum(np.asarray(U, np.float64)[j] for U, j in zip(model.tables, x, strict=True)) for x in X])
    v, last, f, losses = np.zeros(N), np.zeros(N), np.bincount(Y, minlength=N), []
    E = np.zeros(N)
    for _ in range(sweeps + 1):
        E, loss = np.zeros(N), 0.0
        for logits, y in zip(base + v, Y, strict=True):
            p = np.exp(logits - logits.max())
            p /= p.sum()
            E += p
            loss -= np.log(p[y])
        losses.append(loss / len(Y))
        last, v = v, v + np.where(f > 0, np.log(np.maximum(f, 1) / E), 0)
    return last, losses, E, f


@pytest.mark.parametrize("features, eos", [("sum", False), ("cat", True)])
def test_sweeps_of_an_intercept_are_the_loop_over_positions(features, eos):
    stream = some_stream()
    start = some_model(stream, features, 2, eos)[0]
    fitted = fit_token_intercept(start, stream, sweeps=4)
    v, losses, _, _ = slow_fit(start, stream, 4)
    np.testing.assert_allclose(fitted.losses, losses, rtol=0, atol=1e-5)
    for table, before in zip(fitted.model.tables, start.tables, strict=True):
        np.testing.assert_allclose(table, np.asarray(before) + v / 2, rtol=0, atol=1e-5)
    assert evaluate(fitted.model, stream).loss == pytest.approx(losses[-1], abs=1e-5)
    assert (fitted.model.features, fitted.model.eos) == (features, eos)


def test_no_sweep_raises_the_loss_and_at_the_end_tokens_are_as_likely_as_seen():
    stream = some_stream(seed=1)
    fitted = fit_token_intercept(some_model(stream, "cat", 2)[0], stream, sweeps=60)
    assert np.all(np.diff(fitted.losses) < 1e-6) and fitted.losses[0] - fitted.losses[-1] > 1e-3
    _, _, E, f = slow_fit(fitted.model, stream, 0)
    seen = f > 0  # the others keep the little that the start gives them
    np.testing.assert_allclose(E[seen] / E[seen].sum(), f[seen] / f.sum(), rtol=1e-4)
    assert E[seen].sum() > 0.99 * f.sum()


def test_the_unigram_is_the_fixed_point_of_tables_that_say_nothing():
    """Constant tables and any intercept: one sweep gives the relative frequencies, and another changes nothing."""
    stream = some_stream(seed=2)
    flat = some_model(stream, "cat", 2)[0]
    flat = token_model([0 * U for U in flat.tables], "cat", False)
    losses = fit_token_intercept(flat, stream, sweeps=60).losses
    unigram = evaluate(unigram_model(count(stream, radius=1, vocab_size=N)), stream).loss
    assert losses[-1] == pytest.approx(unigram, abs=2e-2)  # which gives a little to the tokens that never occur
    assert losses[0] == pytest.approx(np.log(N), abs=1e-6)

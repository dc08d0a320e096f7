"""The intercept of frozen tables: a slow loop, the marginals of its minimum, and what it must not change.

Tolerances: tables are float32, and a loss is a mean of some hundred logits of order 5: 1e-5.
"""

from typing import Any

import numpy as np
import pytest

from jexplicit.counts.dense import count
from jexplicit.data.contexts import contexts
from jexplicit.lm.core.model import token_model
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.iterative_scaling import sweep_tables
from jexplicit.lm.rows.explicit import explicit_language_model, unigram_model

N = 9


def some_stream(seed=0, tokens=400, highest=N - 2):
    """Sentences of ids 1 .. highest; the last id of the vocabulary never occurs."""
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.geometric(0.3, tokens), highest)
    ids[::17] = 0
    return np.concatenate([[0], ids[1:-1], [0]]).astype(np.uint8)


def some_model(stream, features: Any = "cat", radius=2, eos=False):
    return explicit_language_model(count(stream, radius=radius, vocab_size=N), features=features, radius=radius, eos=eos)


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
def test_sweeps_are_the_loop_over_positions(features, eos):
    stream = some_stream()
    start = some_model(stream, features, eos=eos)
    fitted = fit_token_intercept(start, stream, sweeps=4)
    v, losses, _, _ = slow_fit(start, stream, 4)
    np.testing.assert_allclose(fitted.losses, losses, rtol=0, atol=1e-5)
    for table, before in zip(fitted.model.tables, start.tables, strict=True):
        np.testing.assert_allclose(table, np.asarray(before) + v / 2, rtol=0, atol=1e-5)
    assert evaluate(fitted.model, stream).loss == pytest.approx(losses[-1], abs=1e-5)
    assert (fitted.model.features, fitted.model.eos) == (features, eos)


def test_no_sweep_raises_the_loss_and_at_the_end_tokens_are_as_likely_as_seen():
    stream = some_stream(seed=1)
    fitted = fit_token_intercept(some_model(stream), stream, sweeps=60)
    assert np.all(np.diff(fitted.losses) < 1e-6) and fitted.losses[0] - fitted.losses[-1] > 1e-3
    _, _, E, f = slow_fit(fitted.model, stream, 0)
    seen = f > 0  # the others keep the little that the start gives them
    np.testing.assert_allclose(E[seen] / E[seen].sum(), f[seen] / f.sum(), rtol=1e-4)
    assert E[seen].sum() > 0.99 * f.sum()


def test_the_unigram_is_the_fixed_point_of_tables_that_say_nothing():
    """Constant tables and any intercept: one sweep gives the relative frequencies, and another changes nothing."""
    stream = some_stream(seed=2)
    flat = some_model(stream)
    flat = token_model([0 * U for U in flat.tables], "cat", False)
    losses = fit_token_intercept(flat, stream, sweeps=60).losses
    unigram = evaluate(unigram_model(count(stream, radius=1, vocab_size=N)), stream).loss
    assert losses[-1] == pytest.approx(unigram, abs=2e-2)  # which gives a little to the tokens that never occur
    assert losses[0] == pytest.approx(np.log(N), abs=1e-6)

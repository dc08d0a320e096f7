"""The delta-corrected exponent against a scan of losses by loops over positions.

Tolerances: tables are float32, and a loss is a mean of some hundred logits of order 5: 1e-5.
"""

from typing import Any

import numpy as np
import pytest

from jexplicit.counts.dense import count
from jexplicit.data.contexts import contexts
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.column_weights import fit_token_delta, shift_tokens
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.rows.explicit import explicit_language_model, target_counts
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


def test_by_name():
    stream = some_stream(seed=3)
    text, options = TrainingText(stream, N), Options(radius=2, calibration_positions=10_000)
    start, delta = (fit_model(name, text, options) for name in ("explicit", "delta"))
    assert delta.info["scalars"] == 1 and np.isfinite(delta.info["delta"])
    assert evaluate(delta.model, stream).loss < evaluate(start.model, stream).loss

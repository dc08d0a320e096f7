"""Accounts of predictions: sums that are exact.

Tolerance: log-odds are float32 sums of some 20 numbers below 10.
"""

import numpy as np
import pytest
from counted_models import HISTORIES, fitted, stream

from jexplicit.lm.attribution import account, divide, entry_names, explain
from jexplicit.lm.core.model import read_text
from jexplicit.lm.counted.evidence import KINDS
from jexplicit.lm.counted.reading import begin, look_ahead, read
from jexplicit.lm.evaluation import score

ATOL = 1e-5


@pytest.mark.parametrize("history", HISTORIES)
def test_entries_add_up_to_what_reading_uses_and_tokens_and_alternatives_are_explained(history):
    model, ids = fitted(history), stream(2)
    state = read(model, begin(model), ids[1:8])[1]
    own, log_p = account(model, state, ids[8:60]), read(model, state, ids[8:60])[0]
    np.testing.assert_allclose(own.entries.sum(axis=1), own.log_odds, atol=ATOL)
    np.testing.assert_allclose(np.bincount(own.decisions.place, own.log_p, 52), log_p, atol=ATOL)
    assert own.names == entry_names(model) and own.names[-2:] == ("bias", "clipped")
    assert np.abs(own.entries[:, -1]).max() > 1  # evidence of more than 9.5 nats, which is cut off
    places, signed = np.arange(52), np.bincount(own.decisions.place, (2 * own.decisions.bit - 1) * own.log_odds)
    np.testing.assert_allclose(own.by_token(places).sum(axis=1), signed, atol=1e-4)
    nats = log_p + np.bincount(own.decisions.place) * np.log(2)
    np.testing.assert_allclose(own.nats_by_token(places).sum(axis=1), nats, atol=1e-4)
    text, m = read_text(ids, model.radius), np.array([0, 1, 40, 70])
    why = explain(model, text.X[m], text.Y[m], past=text.past.take(m))
    assert why.names[-3:] == ("bias", "clipped", "even odds") and len(why.tokens) == len(why.names)
    np.testing.assert_allclose(why.evidence.sum(axis=1), why.log_probability, atol=1e-4)
    np.testing.assert_allclose(why.log_probability, score(model, ids)[m], atol=2e-3)
    others = np.stack([text.Y[m], np.roll(text.Y[m], 1)], axis=1)
    several = explain(model, text.X[m], others, past=text.past.take(m))
    assert several.logits.shape == (4, 2, len(why.names))
    np.testing.assert_allclose(several.evidence.sum(axis=2), several.log_probability, atol=1e-4)
    if not history.startswith("adaptive"):  # whose gates may learn between the decisions of a token
        np.testing.assert_allclose(several.logits[:, 0], why.logits, atol=5e-3)
    np.testing.assert_allclose(why.by_token(model.radius).evidence.sum(axis=1), why.evidence.sum(axis=1), atol=1e-6)
    with pytest.raises(ValueError, match="past"):
        explain(model, text.X, text.Y)


def test_a_gate_speaks_through_its_evidence():
    """Without evidence of a context, the log-odds change by its entry where no direction and no sum is clipped."""
    model, ids = fitted(), stream(1)
    own, places = account(model, begin(model), ids[1:]), np.arange(1, len(ids) - 1)
    place = np.repeat(places, model.tree.length[ids[1:-1]]).astype(np.int32)
    ahead = look_ahead(model, begin(model), ids, own.decisions._replace(place=place))
    for part in (0, 3):
        X = ahead.X.copy()
        X[KINDS * part : KINDS * (part + 1)] = 0
        a, b = divide(model, begin(model).gates, ahead._replace(X=X))[1], ahead.log_odds
        U = [gate.U for _, gate in model.gates]
        z = [np.abs(x[: len(u)].T.astype(np.float32) @ u).max(axis=1) < 7 for u in U for x in (ahead.X, X)]
        calm = np.all(z, axis=0) & (np.abs(b) < 9) & (np.abs(a) < 9) & (np.abs(own.entries[:, -1]) < 1e-5)
        assert calm.sum() > 20
        np.testing.assert_allclose((b - a)[calm], own.entries[calm, part], atol=1e-4)

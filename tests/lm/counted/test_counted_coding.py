"""A text is coded with the predictions of a counted model in as many bits as they say, and comes back."""

import numpy as np
import pytest
from counted_models import fitted, histories, stream

from jexplicit.data.contexts import PAD
from jexplicit.lm.reading import init, predict, read

_unit = 1 << 40  # shares of a prediction are whole


def shares(log_p):
    """Where the shares of all tokens begin, and the last ends; each has at least one."""
    wide = np.maximum((np.exp(log_p) * (_unit - len(log_p))).astype(np.int64), 0) + 1
    wide[np.argmax(wide)] += _unit - wide.sum()
    return [0, *np.cumsum(wide).tolist()]


def encode(model, ids):
    """low and the number of bits: low / 2^bits is in the interval of the text."""
    state, low, wide, scale = init(model), 0, 1, 1
    for i in ids:
        edges = shares(predict(model, state))
        low, wide, scale = low * _unit + wide * edges[i], wide * (edges[i + 1] - edges[i]), scale * _unit
        state = read(model, state, [i])[1]
    bits = (scale // wide).bit_length() + 1
    return -(-low * (1 << bits) // scale), bits


def decode(model, code, bits, length):
    state, low, wide, scale, found = init(model), 0, 1, 1, []
    for _ in range(length):
        edges = shares(predict(model, state))
        scale *= _unit
        at = ((code * scale) // (1 << bits) - low * _unit) // wide
        i = int(np.searchsorted(edges, at, side="right")) - 1
        low, wide = low * _unit + wide * edges[i], wide * (edges[i + 1] - edges[i])
        state = read(model, state, [i])[1]
        found.append(i)
    return found


@pytest.mark.parametrize("history", histories(slow=("adaptive",)))
def test_a_text_is_coded_in_as_many_bits_as_its_log_p(history):
    model, ids = fitted(history), stream(1)[1:17]
    code, bits = encode(model, ids.tolist())
    needed = -read(model, init(model), ids)[0].sum() / np.log(2)
    assert needed - 1 < bits < needed + 16
    assert decode(model, code, bits, len(ids)) == ids.tolist()


@pytest.mark.parametrize("history", histories("all", slow=("none", "window:40", "document", "adaptive")))
def test_the_future_moves_nothing(history):
    model, ids = fitted(history), stream(2)
    other = np.concatenate([ids[:90], stream(2, seed=9)[90:]])
    one, two = (read(model, init(model), text[1:])[0] for text in (ids, other))
    places = np.arange(89)  # whose tokens are the same; a block of the mix learns after its last decision
    np.testing.assert_allclose(one[places], two[places], atol=1e-5)
    assert PAD in ids


def test_static_is_adaptive_with_a_stopped_past():
    """A static model sees of the text that is read nothing but the columns: a repeated document has the same log p."""
    model, ids = fitted("none"), stream(1)
    twice = np.concatenate([ids, ids[1:]])
    log_p = read(model, init(model), twice[1:])[0]
    np.testing.assert_allclose(log_p[: len(ids) - 1], log_p[len(ids) - 1 :], atol=1e-5)
    moving = fitted("adaptive")
    log_p = read(moving, init(moving), twice[1:])[0]
    assert log_p[: len(ids) - 1].sum() < log_p[len(ids) - 1 :].sum() - 4

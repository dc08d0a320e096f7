"""The counted language model in one file: short, NumPy alone, and right."""

import runpy
import types
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

FILE = Path(__file__).parents[1] / "docs/recipes/counted_in_one_file.py"
TEXT = "\n".join(topics.values())
SIZE, KNOWN = 6_000, 5_000


@pytest.fixture(scope="module")
def one():
    return types.SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.fixture(scope="module")
def static(one):
    """A static model of a text, and the losses of what comes after it."""
    return one.train(TEXT[:SIZE], KNOWN, online=False)


def test_a_prediction_sums_to_1_and_is_what_the_text_was_measured_by(one, static):
    model, nats = static
    index = {c: i for i, c in enumerate(model[0])}
    for t in (KNOWN, KNOWN + 1, SIZE - 1):
        log_P = one.predict(model, one.contexts(TEXT[:t])[:, -1])
        assert np.exp(log_P).sum() == pytest.approx(1, abs=1e-9)
        assert -log_P[index[TEXT[t]]] == pytest.approx(nats[t - KNOWN], abs=1e-4)  # inputs of a text are of float32


def test_the_future_changes_no_loss_and_an_online_model_predicts_better(one, static):
    same, other = SIZE - KNOWN - 550, TEXT[: SIZE - 500] + TEXT[SIZE - 500 : SIZE][::-1]
    nats, again = (one.train(text, KNOWN, online=True)[1] for text in (TEXT[:SIZE], other))
    # nearly collinear inputs of float32 make directions of gates that are sure to 1e-4; a look ahead is worth tenths
    np.testing.assert_allclose(again[:same], nats[:same], atol=1e-3)
    assert nats.mean() <= static[1].mean() < 0.65 * np.log(len(set(TEXT[:SIZE])))


@pytest.mark.slow
def test_the_loss_on_tiny_shakespeare(one, data_dir):
    """nanoGPT's split: the last tenth of the text; its transformer has 1.47."""
    path = Path(data_dir, "tinyshakespeare/input.txt")
    text = path.read_text() if path.exists() else pytest.skip(f"{path} is not there")
    assert one.train(text, len(text) * 9 // 10, online=True)[1].mean() < 1.275
    assert one.train(text[:60_000], 54_000, online=True)[1].mean() < 1.61  # whole steps of Newton's method diverge here

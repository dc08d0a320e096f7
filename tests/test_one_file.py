"""The counted language model in one file: short, NumPy alone, and right."""

import importlib.util
import re
from collections import defaultdict
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

FILE = Path(__file__).parents[1] / "docs/recipes/counted_in_one_file.py"
TEXT = "\n".join(topics.values())
SIZE, KNOWN = 6_000, 5_000
SPEECHES = "".join(f"ANNE:\nI don't know {n}, {n}\nor -- why\n\nBOB:\nWhy not, {n}?\n\n" for n in ("one", "two", "three"))


@pytest.fixture(scope="module")
def one():
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def static(one):
    """A static model of a text, and the losses of what comes after it."""
    return one.train(TEXT[:SIZE], KNOWN, adaptive=False)


def columns_of(text: str) -> dict:
    """The columns for the prediction after a text, as strings and numbers, by regular expressions."""
    words = [(found.start(), found[0]) for found in re.finditer(r"[^\W\d_']*(?:[^\W\d_]|')+", text)]
    part = words.pop()[1] if words and words[-1][0] + len(words[-1][1]) == len(text) else ""
    ended = [start + len(word) for start, word in words]
    *_, before, word = ["", "", *(word for _, word in words)]
    lines = text.split("\n")
    speakers = [line for line in lines[:-1] if line.endswith(":")]
    since = text[ended[-1] if ended else 0 :]
    columns = {"since": since, "part": part, "word": word, "before": before}
    return columns | {"line": lines[-1], "width": len(lines[-1]), "speaker": speakers[-1][:-1] if speakers else ""}


def test_contexts_tell_apart_what_differs_and_nothing_else(one):
    h = one.contexts(SPEECHES)
    before = [8 * "\0" + SPEECHES[:t] for t in range(len(SPEECHES) + 1)]
    slow = [columns_of(text[8:].lower()) | {k: text[-k] for k in range(1, 9)} for text in before]
    for context, found in zip(one.CONTEXTS, h, strict=False):
        expected = [tuple(columns[name] for name in context) for columns in slow]
        assert len(set(expected)) == len(set(found.tolist())) == len(set(zip(expected, found.tolist(), strict=True))), context
    assert one.contexts("ab, \nabcdefgh")[-1].tolist() == [0, 3, 4, 1, 2, 0, 3, 4, 5, 6, 7, 7, 7, 7]  # places in a word


def sigma(a):
    return 1 / (1 + np.exp(-a))


@pytest.mark.parametrize("adaptive", [True, False])
def test_evidence_is_that_of_a_loop_over_the_past(one, adaptive):
    """Counts, last bits, table and residual of every decision, by lists of what its cell has seen; sums are float32: 1e-4."""
    rng = np.random.default_rng(0)
    T, B, end = 300, 900, 700
    h, place = rng.integers(0, 5, T + 1).astype(np.uint64), np.repeat(np.arange(T), 3)
    node, y, b = rng.integers(0, 3, B), rng.integers(0, 2, B), rng.normal(size=B).astype(np.float32) * 3
    until = np.arange(T) if adaptive else np.arange(T) // 50 * 50
    _, evidence, found = one.count(h, place, node, y, b, until, end)
    cell = list(zip(h[place], node, strict=True))
    seen = [[i for i in range(B) if cell[i] == cell[t] and place[i] < until[place[t]]] for t in range(B)]
    x = np.clip(b.astype(float) / one.WIDTH + one.BINS // 2, 0, one.BINS - 1.001)
    middle = (np.arange(one.BINS) - one.BINS // 2) * one.WIDTH
    table: dict = defaultdict(lambda: 2 * np.stack([sigma(-middle), sigma(middle)]))

    def state(t: int) -> tuple:
        bits = [int(y[i]) for i in seen[t]]
        sizes = (int(np.searchsorted([1, 2, 3, 4, 5, 7, 10, 15, 25, 50, 120], bits.count(v), "right")) for v in (0, 1))
        return (*sizes, *(bits[-2:][::-1] + [0, 0])[:2])

    for t in range(end):
        if seen[t]:
            table[state(t)][y[t], int(x[t])] += 1 - x[t] % 1
            table[state(t)][y[t], int(x[t]) + 1] += x[t] % 1
    for t in range(B):
        counted = residual = 0.0
        if seen[t]:
            odds = np.log(table[state(t)][1] / table[state(t)][0])
            counted = odds[int(x[t])] * (1 - x[t] % 1) + odds[int(x[t]) + 1] * (x[t] % 1)
            n, ones = len(seen[t]), sum(y[i] for i in seen[t])
            counted = ((counted + np.log((ones + 0.3) / (n - ones + 0.3))) / 2 if n > 60 else counted) - b[t]
            p = sigma(b[seen[t]].astype(float))
            residual = (y[seen[t]] - p).sum() / ((p * (1 - p)).sum() + 2)
        np.testing.assert_allclose(found[:, t], (counted, residual), atol=1e-4, err_msg=str(t))


def test_a_prediction_sums_to_1_and_is_what_the_text_was_measured_by(one, static):
    model, nats = static
    index = {c: i for i, c in enumerate(model[0])}
    for t in (KNOWN, KNOWN + 1, SIZE - 1):
        log_P = one.predict(model, one.contexts(TEXT[:t])[:, -1])
        assert np.exp(log_P).sum() == pytest.approx(1, abs=1e-9)
        assert -log_P[index[TEXT[t]]] == pytest.approx(nats[t - KNOWN], abs=1e-4)  # inputs of a text are of float32


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_future_changes_no_loss_and_an_adaptive_model_predicts_better(one, static, adaptive):
    still, same = static[1], SIZE - KNOWN - 550
    nats = one.train(TEXT[:SIZE], KNOWN, adaptive)[1] if adaptive else still
    other = TEXT[: SIZE - 500] + TEXT[SIZE - 500 : SIZE][::-1]
    # nearly collinear inputs of float32 make directions of gates that are sure to 1e-4; a look ahead is worth tenths
    np.testing.assert_allclose(one.train(other, KNOWN, adaptive)[1][:same], nats[:same], atol=1e-3)
    assert nats.mean() <= still.mean() < 0.65 * np.log(len(set(TEXT[:SIZE])))


@pytest.mark.slow
def test_the_loss_on_tiny_shakespeare(one, data_dir):
    """nanoGPT's split: the last tenth of the text; its transformer has 1.47."""
    path = Path(data_dir, "tinyshakespeare/input.txt")
    text = path.read_text() if path.exists() else pytest.skip(f"{path} is not there")
    assert one.train(text, len(text) * 9 // 10, adaptive=True)[1].mean() < 1.275
    assert one.train(text[:60_000], 54_000, adaptive=True)[1].mean() < 1.61  # whole steps of Newton's method diverge here

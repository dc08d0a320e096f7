"""The counted language model in one file: short, NumPy alone, and right."""

import ast
import importlib.util
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

FILE = Path(__file__).parents[1] / "docs/recipes/counted_in_one_file.py"
TEXT = "\n".join(topics.values())
SPEECHES = "".join(f"ANNE:\nI don't know {n}, {n}\nor -- why\n\nBOB:\nWhy not, {n}?\n\n" for n in ("one", "two", "three"))


@pytest.fixture(scope="module")
def one():
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fitted(one):
    """A model of 20,000 characters, the 2,000 after them, and the contexts and numbers of these."""
    text, new = TEXT[:20_000], TEXT[20_000:22_000]
    model = one.train(text, sorted(set(text + new)))
    return model, text, new, one.contexts(text + new)[:, len(text) : -1], numbers_of(new, model)


def numbers_of(text: str, model) -> np.ndarray:
    return np.array([model.alphabet.index(c) for c in text])


def in_float64(model):
    return model._replace(tables=[table._replace(values=table.values.astype(float)) for table in model.tables])


def with_exponents(one, model, exponents: dict):
    """The model with the same exponents for all buckets and places."""
    a = np.zeros((len(one.ROWS), one.BUCKETS + one.PLACES))
    a[:, : one.BUCKETS] = [[exponents.get(row, 0.0)] for row in one.ROWS]
    return model._replace(a=a.ravel())


def loss_of(one, model, h, y) -> float:
    return -float(np.mean([log_P[np.arange(len(log_P)), y[block]] for log_P, block, *_ in one.predict(model, h)]))


def characters(one) -> dict:
    """Exponents 1 for the rows of the last 0, 1, ..., 8 characters."""
    return {row: 1.0 for row in one.ROWS if row == tuple(range(1, len(row) + 1))}


def test_it_has_at_most_200_lines_and_imports_numpy_and_the_standard_library_alone():
    source = FILE.read_text()
    assert len(source.splitlines()) <= 200
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports]
    assert {str(name).split(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}


def columns_of(text: str) -> dict:
    """The columns for the prediction after a text, as strings and numbers, by regular expressions."""
    words = [(found.start(), found[0]) for found in re.finditer(r"[^\W\d_']*(?:[^\W\d_]|')+", text)]
    part = words.pop()[1] if words and words[-1][0] + len(words[-1][1]) == len(text) else ""
    ended = [start + len(word) for start, word in words]
    *_, before, word = ["", "", *(word for _, word in words)]
    lines = text.split("\n")
    speakers = [line for line in lines[:-1] if line.endswith(":")]
    since = text[ended[-1] if ended else 0 :]
    columns = {"since": since, "part": part, "word": word, "word before": before}
    return columns | {"line": lines[-1], "width": len(lines[-1]), "speaker": speakers[-1][:-1] if speakers else ""}


def test_columns_tell_apart_what_differs_and_nothing_else(one):
    found = one.look(SPEECHES)
    slow = [columns_of(SPEECHES[:m]) for m in range(len(SPEECHES) + 1)]
    for name in slow[0]:
        expected = [columns[name] for columns in slow]
        assert (
            len(set(expected)) == len(set(found[name].tolist())) == len(set(zip(expected, found[name].tolist(), strict=True)))
        )
    assert [chr(c) for c in found[2][2:]] == list(SPEECHES[:-1])


def test_places_are_line_starts_others_and_letters(one):
    assert one.look("ab, \nabcdefgh")["place"].tolist() == [0, 3, 4, 1, 2, 0, 3, 4, 5, 6, 7, 7, 7, 7]


def test_exponents_of_1_make_the_smoothed_ngram_model_of_a_slow_loop(one):
    text = TEXT[:3_000]
    alphabet = sorted(set(text))
    counts = defaultdict(Counter)
    for m, c in enumerate(text):
        for n in range(9):
            counts[("\0" * 8 + text)[m + 8 - n : m + 8]][c] += 1

    def P(i: str, h: str | None) -> float:
        if h is None:
            return 1 / len(alphabet)
        shorter = P(i, h[1:] if h else None)
        if not (after := counts.get(h)):
            return shorter
        D = {c: (0.7, 1.0, 1.3)[min(count, 3) - 1] for c, count in after.items()}
        return (after[i] - D.get(i, 0) + sum(D.values()) * shorter) / after.total()

    y = np.array([alphabet.index(c) for c in text], np.uint64)
    h = one.contexts(text)
    counted = one.Model(alphabet, one.count_all(h[:, :-1], y, len(alphabet)), np.zeros(0))
    prompt = text[700:740] + "q" + text[100:300:7]
    contexts = one.contexts(prompt)
    model = in_float64(with_exponents(one, counted, characters(one)))
    ((log_P, *_),) = one.predict(model, contexts)
    slow = [[P(i, ("\0" * 8 + prompt)[m : m + 8]) for i in alphabet] for m in range(len(prompt) + 1)]
    np.testing.assert_allclose(np.exp(log_P), slow, rtol=1e-5)  # the tables are of float32


def test_probabilities_sum_to_1(one, fitted):
    model, _, _, h, _ = fitted
    for log_P, *_ in one.predict(model, h):
        np.testing.assert_allclose(np.exp(log_P).sum(1), 1, atol=1e-5)


def test_blocks_change_no_prediction(one, fitted):
    model, _, _, h, _ = fitted
    whole, parts = ([log_P for log_P, *_ in one.predict(model, h[:, :700], size)] for size in (1000, 64))
    np.testing.assert_allclose(np.concatenate(whole), np.concatenate(parts), atol=1e-5)


def test_the_slopes_of_the_loss_are_those_of_finite_differences(one, fitted):
    model, _, _, h, y = fitted
    model, h, y = in_float64(model), h[:, :300], y[:300]
    rng = np.random.default_rng(0)
    direction, e = rng.normal(size=len(model.a)), 1e-4
    (above, slope_above, _), (below, slope_below, _) = (
        one.moments(model._replace(a=model.a + sign * e * direction), h, y) for sign in (1, -1)
    )
    _, gradient, hessian = one.moments(model, h, y)
    assert gradient @ direction == pytest.approx((above - below) / (2 * e), rel=1e-5)
    np.testing.assert_allclose(hessian @ direction, (slope_above - slope_below) / (2 * e), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)


def test_fitted_exponents_are_a_minimum_and_predict_better(one, fitted):
    model, _, _, h, y = fitted
    unigram = loss_of(one, with_exponents(one, model, {(): 1.0}), h, y)
    ngram = loss_of(one, with_exponents(one, model, characters(one)), h, y)
    chains = {row: one.IN_CHAINS.count(row) / len(one.CHAINS) for row in one.ROWS}
    start = with_exponents(one, model, chains)
    fit = one.fit(start, h, y, ridge=2e-3)
    _, gradient, _ = one.moments(fit, h, y)
    assert np.abs(gradient + 2e-3 * (fit.a - start.a)).max() < 5e-3
    assert loss_of(one, model, h, y) == pytest.approx(one.moments(model, h, y)[0], rel=1e-6)
    assert loss_of(one, fit, h, y) < loss_of(one, model, h, y) < min(loss_of(one, start, h, y), ngram) < ngram + 1 < unigram + 1
    assert ngram < unigram


def test_a_change_of_the_future_changes_no_prediction(one, fitted):
    model, text, new, *_ = fitted
    other = new[:100] + new[100:][::-1]
    ours, theirs = (one.contexts(text[-500:] + t)[:, : 500 + 101] for t in (new, other))
    np.testing.assert_array_equal(ours, theirs)
    for (log_P, *_), (log_Q, *_) in zip(one.predict(model, ours), one.predict(model, theirs), strict=True):
        np.testing.assert_array_equal(log_P, log_Q)


def test_samples_continue_a_prompt_and_repeat(one, fitted):
    model = fitted[0]
    samples = [one.sample(model, "The value", 20, seed=seed) for seed in (0, 0, 1)]
    assert all(sample.startswith("The value") and len(sample) == 29 for sample in samples)
    assert samples[0] == samples[1] != samples[2]


@pytest.mark.slow
def test_the_program_prints_a_loss_and_a_sample(one, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(one, "topics", {"one": TEXT[:8_000]})
    (tmp_path / "input.txt").write_text(TEXT[:8_000])
    one.main(str(tmp_path / "input.txt"))
    printed = capsys.readouterr().out
    assert f"input.txt: {8_000:,} characters" in printed
    assert re.search(r"^\d\.\d{4} nats per character on the last tenth of the text\n\n", printed, re.M)


@pytest.mark.slow
def test_the_loss_on_tiny_shakespeare(one, data_dir):
    """nanoGPT's split: the last tenth of the text; its transformer has 1.47."""
    path = Path(data_dir, "tinyshakespeare/input.txt")
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = path.read_text()
    cut, alphabet = len(text) * 9 // 10, sorted(set(text))
    loss, *_ = one.moments(
        one.train(text[:cut], alphabet), one.contexts(text)[:, cut:-1], np.searchsorted(alphabet, list(text[cut:]))
    )
    assert loss <= 1.43

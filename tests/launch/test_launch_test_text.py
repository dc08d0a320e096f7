"""launch.lm with a test text: which models are measured on it, how, once, and again in a continued run.

Tolerance: a loss over the same positions, summed in another order in float32, 1e-6.
"""

import functools
from pathlib import Path

import numpy as np
import pytest
from lm_runs import DEV, SMALL, TRAIN, events, run, small_text, text_flags
from run_folders import folder, interrupted, rows, without_costs

from jexplicit import evaluate
from jexplicit.data import encode_documents
from jexplicit.lm.checkpoints import load_row
from launch.kit.views import where
from launch.lm import run as testing

pytestmark = pytest.mark.slow

ONE, OTHER = small_text(40, seed=2), [*small_text(30, seed=3), *DEV[-2:]]
FLAGS = [*SMALL, *"--methods explicit context-mixing --features cat --history none document --samples 0".split()]


@functools.cache
def files_of_test() -> list[str]:
    for name, lines in (("one", ONE), ("other", OTHER)):
        (folder() / f"{name}.test").write_text("\n".join(lines) + "\n")
    return [f"{folder()}/one.test", f"{folder()}/other.test"]


@functools.cache
def run_with_test() -> Path:
    out = folder() / "tested"
    assert run(out, *text_flags(), *FLAGS, "--test", *files_of_test()) == 0
    return out


def test_of_each_method_and_history_the_best_on_dev_is_measured():
    found = rows(run_with_test())
    measured = [row for row in found if "test_loss" in row]
    assert [(row["method"], row["history"]) for row in measured] == [
        *((method, "none") for method in ("unigram", "bigram", "explicit", "context-mixing")),
        ("context-mixing", "document"),
    ]
    explicit = [row for row in found if row["method"] == "explicit"]
    assert len(explicit) == 2 and sum("test_loss" in row for row in explicit) == 1
    best = min(explicit, key=lambda row: row["dev_perplexity"])
    assert "test_loss" in best
    report = (run_with_test() / "report.md").read_text()
    assert "| test | test nats | ± |" in report and "| one.test |" in report


def test_the_test_loss_is_that_of_all_predictions_of_all_files_each_a_text_of_its_own():
    for row in rows(run_with_test()):
        if "test_loss" not in row:
            continue
        saved = load_row(run_with_test(), row)
        streams = [encode_documents(saved.tokenizer, lines) for lines in (ONE, OTHER)]
        parts = [evaluate(saved.model, stream) for stream in streams]
        positions = sum(part.positions for part in parts)
        assert (row["test_positions"], row["test_documents"]) == (positions, len(ONE) + len(OTHER))
        assert row["test_loss"] == pytest.approx(sum(part.nll for part in parts) / positions, rel=1e-6)
        assert row["test_perplexity"] == pytest.approx(np.exp(row["test_loss"]))
        own = where(events(run_with_test(), "test"), method=row["method"], history=row["history"])
        assert [event["file"] for event in own] == ["one.test", "other.test"]
        for event, part, lines in zip(own, parts, (ONE, OTHER), strict=True):
            assert event["test_loss"] == pytest.approx(part.loss, rel=1e-6)
            assert (event["test_positions"], event["test_documents"]) == (part.positions, len(lines))


def test_a_finished_run_is_tested_later_and_an_interrupted_test_goes_on(tmp_path, monkeypatch):
    out = tmp_path / "run"
    assert run(out, *text_flags(), *FLAGS) == 0 and not [row for row in rows(out) if "test_loss" in row]
    with monkeypatch.context() as patch:
        patch.setattr(testing, "document_losses", interrupted(testing.document_losses, 4))
        assert run(out, "--resume", "--test", *files_of_test()) == 130
    assert sum("test_loss" in row for row in rows(out)) == 1
    assert run(out, "--resume") == 0
    assert without_costs(out) == without_costs(run_with_test())
    monkeypatch.setattr(testing, "document_losses", None)  # nothing is measured a second time
    assert run(out, "--resume", "--samples", "0") == 0


def test_the_last_tenth_is_tested_by_models_of_all_before_it(tmp_path):
    """As if the two last tenths had been cut off by hand; the model that is tested is that of --split end."""
    text = "\n".join(TRAIN[:200])
    (tmp_path / "play.txt").write_text(text)
    flags = ["--train", f"{tmp_path}/play.txt", *"--documents file --tokenizer char --samples 0".split()]
    flags += "--methods ngram context-mixing --history none --split".split()
    assert run(tmp_path / "tested", *flags, "dev-test") == run(tmp_path / "end", *flags, "end") == 0
    for row, end in zip(rows(tmp_path / "tested"), rows(tmp_path / "end"), strict=True):
        # characters are numbered by their counts in train, and numbers divide cells in halves that count for each other
        off = 0.05 if row["method"] == "context-mixing" else 1e-6
        assert row["test_loss"] == pytest.approx(end["dev_loss"], rel=off)
        assert row["test_positions"] == end["dev_positions"] and row["test_documents"] == 1
        assert row["test_loss_se"] > 0 and row["train_tokens"] + row["dev_tokens"] == end["train_tokens"]  # over blocks
        assert row["dev_tokens"] == pytest.approx(len(text) / 10, abs=2) and row["dev_loss"] != row["test_loss"]

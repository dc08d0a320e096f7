"""launch.icl on task diversity, end to end on tiny tasks: rows, figure, report, resuming, refusals."""

import json

import pytest
from launch.icl.config import RECENT, Config, effort, selected_experiments

from launch.icl import __main__ as icl

SMALL = (
    "--experiment task-diversity --dim 2 --context 3 --steps 40 --batch-size 16 --validation-tasks 50 --test-tasks 200 "
    "--pretraining-tasks 1 4 512 --diversity-points 4 --dims 2 3 --devices 1"
)


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert icl.main(["--out", str(out), *SMALL.split()]) == 0
    return out


@pytest.mark.slow
def test_every_predictor_has_a_row_for_every_number_of_tasks(finished):
    told = {(row["predictor"], row["heads"], row["training_tasks"]): row for row in rows(finished)}
    numbers = (1, 4, 512)
    expected = {(name, 1, M) for name in ("dmmse", "ridge", "closed_form", "solved") for M in numbers}
    expected |= {("solved", 3, M) for M in numbers} | {("trained", heads, 4) for heads in (1, 3)} | {("closed_form", 1, None)}
    assert set(told) == expected and {row["experiment"] for row in told.values()} == {"task-diversity"}
    for M in numbers:  # each of these can do what the next can
        losses = [told[name, heads, M]["train_loss"] for name, heads in (("solved", 3), ("solved", 1), ("closed_form", 1))]
        assert losses == sorted(losses)
        assert told["closed_form", 1, M]["loss"] > told["closed_form", 1, None]["loss"]
    assert told["dmmse", 1, 1]["train_loss"] < 1e-10  # it knows the task
    for heads in (1, 3):  # exact losses, which no training beats
        assert told["trained", heads, 4]["train_loss"] >= told["solved", heads, 4]["train_loss"]


@pytest.mark.slow
def test_the_report_has_losses_thresholds_and_the_figure(finished):
    report = (finished / "report.md").read_text()
    assert "## Task diversity" in report and "| 512 |" in report and "from which on the loss on fresh tasks" in report
    assert (finished / "figures" / "task_diversity.png").read_bytes().startswith(b"\x89PNG")
    assert "| 3 | 3 |" in report  # a threshold at another size
    before, told = report, rows(finished)
    (finished / "report.md").unlink()
    assert icl.main(["--out", str(finished), "--resume"]) == 0
    assert (finished / "report.md").read_text() == before and rows(finished) == told


def test_the_group_of_recent_experiments_and_its_effort():
    assert selected_experiments(Config(out="", experiment=("recent",))) == list(RECENT)
    assert effort(Config(out=""), "task-diversity") == (2000, 1)


@pytest.mark.parametrize("wrong", ["--pretraining-tasks 0", "--diversity-points 0", "--dims 2000"])
def test_wrong_flags_are_refused(tmp_path, capsys, wrong):
    assert icl.main(["--out", str(tmp_path / "run"), "--experiment", "task-diversity", *wrong.split()]) == 2
    assert wrong.split()[0] in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()

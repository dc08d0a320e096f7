"""launch.blur tasks, end to end on two tasks: rows, report, resume, baselines of another run, and what it refuses."""

import json

import numpy as np
import pytest

from icl.blur.judging.suite import SUITE, select_tasks, task_sets
from icl.names import RATES
from jexplicit.runs.results import read_config
from launch.blur import __main__ as blur
from launch.blur import task_baselines
from launch.blur import tasks as tasks_module
from launch.blur.measurements import FIELDS
from launch.blur.task_baselines import UPDATES, mean_and_spread, task_rates
from launch.blur.task_report import write_task_report

FLAGS = ["--learners", "1", "--batch-size", "8", "--tasks", "iris/128", "xor/64"]


def rows(out):
    return json.loads((out / "results.json").read_text())["rows"]


def without_seconds(out):
    return [{field: value for field, value in row.items() if field != "seconds"} for row in rows(out)]


def printed_error(capfd):
    return " ".join(capfd.readouterr().err.split())


def shorten(patch):
    """Fewer updates and rates than in a real run."""
    for module in (tasks_module, task_baselines):
        patch.setattr(module, "UPDATES", (1, 10))
    patch.setattr(task_baselines, "RATES", (0.1, 1.0))


@pytest.fixture
def few(monkeypatch):
    """Short runs in a test."""
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run that the other tests read."""
    out = tmp_path_factory.mktemp("runs") / "tasks"
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        assert blur.main(["tasks", "--out", str(out), *FLAGS]) == 0
    return out


@pytest.mark.slow
def test_a_row_for_each_task_and_number_of_updates(judged):
    found = rows(judged)
    assert [(row["task"], row["n"]) for row in found] == [(task, n) for task in ("iris/128", "xor/64") for n in (1, 10)]
    baselines = json.loads((judged / "baselines.json").read_text())["tasks"]
    for row in found:
        assert set(FIELDS) <= set(row) and row["experiment"] == "tasks" and row["step"] == row["n"]
        assert (row["width"], row["depth"]) in {(128, 1), (64, 1)} and row["layers"] == row["depth"]
        candidates = [one for one in baselines[row["task"]]["rows"] if one["n"] == row["n"]]
        assert len(candidates) == 6 and {one["learning_rate"] for one in candidates} <= {0.1, 1.0}
        assert row["best_baseline"] == max(one["test_accuracy"] for one in candidates)
        assert row["wins"] == (row["rule_accuracy"] > row["best_baseline"] + 1e-9)
        assert row["tie"] == (abs(row["rule_accuracy"] - row["best_baseline"]) <= 1e-9)
        assert row["baseline"].split(",")[0] in ("sgd", "momentum", "adam") and "rate" in row["baseline"]
        assert row["rule_accuracy"] == row["test_accuracy"] and row["spread"] == row["baseline_spread"] == 0  # one learner
    assert max(row["rule_accuracy"] for row in found if row["task"] == "iris/128") > 0.6  # it learns: three classes


@pytest.mark.slow
def test_the_report_has_every_task_and_is_rebuilt_from_the_folder(judged):
    before = (judged / "report.md").read_text()
    assert "| iris/128 | 128 | 1 |" in before and "| xor/64 | 64 | 1 |" in before and "win rate" in before
    for name in ("tasks", "wins"):
        assert (judged / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    (judged / "report.md").unlink()
    write_task_report(judged)
    assert (judged / "report.md").read_text() == before


@pytest.mark.slow
def test_nothing_is_measured_twice_and_an_interrupted_run_continues(judged, few, tmp_path, monkeypatch):
    def refuse(config, task, sets):
        raise AssertionError(f"baselines of {task.name} are there")

    original = tasks_module.measure_baselines

    def stop(config, task, sets):
        if task.name == "xor/64":
            raise KeyboardInterrupt
        return original(config, task, sets)

    out = tmp_path / "run"
    monkeypatch.setattr(tasks_module, "measure_baselines", stop)
    assert blur.main(["tasks", "--out", str(out), *FLAGS]) == 130
    monkeypatch.setattr(tasks_module, "measure_baselines", original)
    assert blur.main(["tasks", "--out", str(out), "--resume"]) == 0
    assert without_seconds(out) == without_seconds(judged)
    monkeypatch.setattr(tasks_module, "measure_baselines", refuse)
    assert blur.main(["tasks", "--out", str(judged), "--resume"]) == 0
    assert without_seconds(out) == without_seconds(judged)


@pytest.mark.slow
def test_baselines_of_another_run_are_taken_or_refused(judged, few, tmp_path, monkeypatch, capfd):
    def refuse(config, task, sets):
        raise AssertionError(f"baselines of {task.name} are there")

    with monkeypatch.context() as patch:
        patch.setattr(tasks_module, "measure_baselines", refuse)
        out, flags = tmp_path / "run", ["--baselines", str(judged), "--genome", "mnist"]
        assert blur.main(["tasks", "--out", str(out), *FLAGS, *flags]) == 0
    for ours, theirs in zip(rows(out), rows(judged), strict=True):
        assert ours["best_baseline"] == theirs["best_baseline"] and ours["genome"] == "mnist"
    assert read_config(out, "blur") and (out / "baselines.json").read_text() == (judged / "baselines.json").read_text()
    capfd.readouterr()
    refused = ["tasks", "--out", str(tmp_path / "other"), *FLAGS, "--baselines", str(judged)]
    for changed, message in (("--learners 2", "other learners 1 (now 2)"), ("--seed 1", "other seed 0 (now 1)")):
        assert blur.main([*refused, *changed.split()]) == 2
        assert message in printed_error(capfd)
    stored = json.loads((judged / "baselines.json").read_text())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stored["tasks"]["xor/64"]["key"]["data"]["sha256"] = "0"
    (elsewhere / "baselines.json").write_text(json.dumps(stored))
    assert blur.main([*refused[:-1], str(elsewhere)]) == 2
    assert "with other data, network or rates of xor/64: leave --baselines out" in printed_error(capfd)
    (elsewhere / "baselines.json").write_text("{}")
    assert blur.main([*refused[:-1], str(elsewhere)]) == 2
    assert "cannot be read as baselines" in printed_error(capfd)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--tasks iris/7", "tasks iris/7: choose groups (digits, mnist, tables, planes, mixtures), data (digits@4"),
        ("--tasks mnist@7", "leave them out, and name the other tasks: digits tables planes mixtures"),
        ("--tasks mnist --data-dir nowhere", "nowhere holds neither"),
        ("--genome nothing.json", "neither a file nor one of boolean, digits"),
        ("--learners 0", "--learners 0: use at least 1"),
        ("--tasks iris --baselines nowhere", "cannot be read as baselines"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, capfd, monkeypatch, arguments, message):
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    assert blur.main(["tasks", *arguments.split(), "--out", str(tmp_path / "run")]) == 2
    printed = printed_error(capfd)
    assert message in printed and "Traceback" not in printed and not (tmp_path / "run").exists()


def test_equal_numbers_of_correct_examples_are_ties():
    """Means of single-precision fractions are not."""
    one, other = (np.array(correct, np.float32) / np.float32(29) for correct in ((3, 7, 20), (10, 10, 10)))
    assert one.mean() != other.mean() or one.astype(float).mean() != other.astype(float).mean()
    assert mean_and_spread(one, 29)[0] == mean_and_spread(other, 29)[0] == pytest.approx(10 / 29, abs=1e-15)
    assert mean_and_spread(one, 29)[1] == pytest.approx(one.std(), rel=1e-6) and mean_and_spread(other, 29)[1] == 0


def test_only_large_networks_have_fewer_rates():
    sets = {data: task_sets(data) for data in ("digits@16", "iris")}
    assert task_rates(next(task for task in SUITE if task.name == "digits@16/256-256"), sets["digits@16"]) == RATES[::2]
    assert task_rates(select_tasks(["iris/128"])[0], sets["iris"]) == RATES
    assert UPDATES == (1, 2, 5, 10, 20, 50, 100)

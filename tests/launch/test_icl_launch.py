"""launch.icl, end to end: a tiny run of every experiment, which all tests read, and exact continuations."""

import functools
import re
import subprocess
import sys

import pytest
from run_folders import interrupted, made, main, without_costs

from jexplicit.runs.files import read_events, read_rows
from launch.icl import trained
from launch.icl.config import COMMANDS
from launch.kit.experiment import RunFolder
from launch.kit.views import only, where

pytestmark = pytest.mark.slow


def run(name):
    return made(f"icl {name} --preset tiny --devices 1")


def rows(name, **fields):
    return where(read_rows(run(name)), **fields)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_experiment_has_its_rows_and_its_report(name):
    out, report, found = run(name), (run(name) / "report.md").read_text(), rows(name)
    fields = {"experiment", "predictor", "layers", "recurrent", "dim", "context", "task", "heads"}
    assert all(fields <= set(row) for row in found)
    assert {row["experiment"] for row in found} == {name} and "\n|---" in report
    assert {row["seed"] for row in where(found, predictor="trained")} <= {0, 1}
    figures = re.findall(r"^!\[[^\]]*\]\((.*)\)$", report, re.M)
    assert all((out / path).read_bytes().startswith(b"\x89PNG") for path in figures)
    assert figures or name in ("curvature", "noisy")


def test_constructions_are_what_they_construct():
    for name, descent, layers in (("one-step", "gd", 1), ("multi-step", "gd++", 2)):
        by_name = {row["predictor"]: row for row in rows(name)}
        assert all(row["layers"] == layers and row["loss"] >= 0 and -1 <= row["cosine"] <= 1 + 1e-6 for row in rows(name))
        # the rates of the one are rounded to the floats of the other
        assert by_name["constructed"]["loss"] == pytest.approx(by_name[descent]["loss"], rel=1e-5)
        assert by_name["constructed"]["cosine"] == pytest.approx(1, abs=1e-5)
    begun = next(e for e in read_events(run("multi-step"), "evaluation") if e["model"].startswith("warm") and e["step"] == 0)
    level = only(read_events(run("multi-step"), "reference"), model=begun["model"], predictor="gd++")["loss"]
    assert begun["cosine"] == pytest.approx([1, 1], abs=1e-5) and begun["loss"] == pytest.approx([level] * 2, rel=1e-5)
    noisy, markov, mesa = ({row["predictor"]: row["loss"] for row in rows(name)} for name in ("noisy", "markov", "mesa"))
    assert noisy["constructed"] == pytest.approx(noisy["closed_form"], rel=1e-9)
    assert markov["constructed"] == pytest.approx(markov["bigram"], rel=1e-5)
    assert mesa["mesa, recursion"] == pytest.approx(mesa["mesa, conjugate gradients"], rel=1e-9)


def test_rows_tell_models_contexts_tasks_and_seeds_apart():
    assert {row["heads"] for row in rows("softmax", predictor="trained")} == {1, 2}
    chains = rows("markov", predictor="trained")
    assert [(row["symbols_before"], row["seed"]) for row in chains] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    expected = {(name, N) for name in ("closed_form", "trained") for N in (3, 5)}
    assert {(row["predictor"], row["context"]) for row in rows("curvature")} == expected
    assert all(row["eigenvalue_max_after"] <= row["eigenvalue_max"] for row in rows("curvature", predictor="closed_form"))
    assert {row["task"] for row in rows("mesa")} == {"regression", "ill-conditioned", "drift", "dynamics"}
    told = {(row["predictor"], row["heads"], row["training_tasks"]): row for row in rows("task-diversity")}
    solved = {(name, 1, M) for name in ("dmmse", "ridge", "closed_form", "solved") for M in (1, 4, 512)}
    solved |= {("solved", 3, M) for M in (1, 4, 512)} | {("closed_form", 1, None)}
    assert set(told) == solved | {("trained", heads, 4) for heads in (1, 3)}
    for heads in (1, 3):  # exact losses, which no training beats
        assert told["trained", heads, 4]["train_loss"] >= told["solved", heads, 4]["train_loss"]


def test_an_interrupted_run_resumes_exactly_and_by_its_own_experiment(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trained, "train_layers", functools.partial(trained.train_layers, checkpoint_seconds=-1.0))
    with monkeypatch.context() as patch:  # at the second evaluation of the second model
        patch.setattr(RunFolder, "log", interrupted(RunFolder.log, 8))
        assert main("icl multi-step --preset tiny --devices 1", tmp_path) == 130
    assert main("icl one-step --resume", tmp_path) == 2
    assert "is a run of jexplicit icl multi-step" in " ".join(capsys.readouterr().err.split())
    assert main("icl multi-step --resume", tmp_path) == 0
    assert without_costs(tmp_path) == without_costs(run("multi-step"))


def test_trained_layers_reach_the_descent(tmp_path):
    """In a process of its own: this one compiles without optimisations, and training would take ten times as long."""
    flags = ["one-step", "--out", str(tmp_path), "--test-tasks", "20000", "--seeds", "1"]
    subprocess.run([sys.executable, "-m", "launch.icl", *flags], check=True, stderr=subprocess.DEVNULL)
    told = only(read_rows(tmp_path), predictor="trained", start="cold")
    best = where(read_rows(tmp_path), predictor=told["reference"])[0]["loss"]
    assert told["loss"] <= 1.005 * best and told["cosine"] >= 0.999

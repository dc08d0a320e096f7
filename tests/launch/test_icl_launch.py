"""launch.icl, end to end: a tiny run of every experiment, which all tests read, exact continuations, and what is refused."""

import functools
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from run_folders import without_costs

from jexplicit.runs.files import read_events, read_rows
from launch.icl import __main__ as command
from launch.icl import training
from launch.kit.views import groups, only, where

pytestmark = pytest.mark.slow

PREDICTORS = {
    "one-step": "gd, closed_form, constructed, ridge, trained, interpolated",
    "multi-step": "gd, gd++, closed_form, constructed, ridge, trained, interpolated",
    "depths": "gd, gd++, chebyshev, bound",
    "nonlinear": "zero, trained, ridge, control",
    "copy": "zero, gd, constructed, trained",
    "softmax": "gd, closed_form, trained, constructed",
    "deep-softmax": "gd, gd++, closed_form, constructed, trained",
    "layernorm": "gd, closed_form, trained, gd++",
    "finite-data": "gd, closed_form, trained",
    "looped": "gd, gd++, trained",
    "markov": "uniform, unigram, bigram, cache row, constructed, trained",
}


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """`run(name)`: the folder of a tiny run."""

    @functools.cache
    def measure(name):
        out = tmp_path_factory.mktemp("icl") / name
        assert command.main([name, "--preset", "tiny", "--devices", "1", "--out", str(out)]) == 0
        return out

    return measure


@pytest.fixture
def rows(run):
    return lambda name, **fields: where(read_rows(run(name)), **fields)


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_experiment_has_its_rows_and_its_report(run, name):
    out, report = run(name), (run(name) / "report.md").read_text()
    found = read_rows(out)
    assert all(
        {"experiment", "predictor", "layers", "recurrent", "dim", "context", "task", "heads"} <= set(row) for row in found
    )
    assert {row["experiment"] for row in found} == {name} and report.count("\n|---") >= 1
    assert name not in PREDICTORS or {row["predictor"] for row in found} == set(PREDICTORS[name].split(", "))
    assert {row["seed"] for row in where(found, predictor="trained")} <= {0, 1}
    figures = re.findall(r"^!\[[^\]]*\]\((.*)\)$", report, re.M)
    assert all((out / path).read_bytes().startswith(b"\x89PNG") for path in figures)
    assert figures or name in ("curvature", "layernorm", "finite-data", "noisy", "function-classes")
    assert not list((out / "checkpoints").glob("*.partial"))


@pytest.mark.parametrize(("inputs", "kurtosis"), [("normal", 3), ("laplace", 6)])
def test_inputs_of_another_distribution_have_rates_of_their_own(tmp_path, inputs, kurtosis):
    flags = f"depths --depths 1 --dim 2 --context 3 --test-tasks 50000 --inputs {inputs} --out {tmp_path / 'run'}"
    assert command.main(flags.split()) == 0
    row = only(read_rows(tmp_path / "run"), predictor="gd")
    assert row["inputs"] == inputs and row["eta"][0] == pytest.approx(3 * 12 / (kurtosis + 3), rel=0.03)  # of sampled contexts


def test_constructions_are_what_they_construct(rows):
    for name, descent, layers in (("one-step", "gd", 1), ("multi-step", "gd++", 2)):
        assert {row["layers"] for row in rows(name)} == {layers}
        assert all(row["loss"] >= 0 and -1 <= row["cosine"] <= 1 + 1e-6 for row in rows(name))
        by_name = {row["predictor"]: row for row in rows(name)}
        # the rates of the one are rounded to the floats of the other
        assert by_name["constructed"]["loss"] == pytest.approx(by_name[descent]["loss"], rel=1e-5)
        assert by_name["constructed"]["cosine"] == pytest.approx(1, abs=1e-5)
        assert by_name["closed_form"]["loss"] <= by_name["gd"]["loss"] * 1.1  # of few tasks
    noisy, copy = ({(row["task"], row["layers"], row["predictor"]): row["loss"] for row in rows(n)} for n in ("noisy", "copy"))
    assert copy["tokens apart", 2, "constructed"] == pytest.approx(copy["tokens apart", 1, "gd"], rel=1e-9)
    solved = noisy["anisotropic, noisy", 1, "closed_form"]
    assert noisy["anisotropic, noisy", 1, "constructed"] == pytest.approx(solved, rel=1e-9)
    assert noisy["mixed noise", 2, "constructed"] == pytest.approx(noisy["mixed noise", 2, "diagonal"], rel=1e-9)
    for row in rows("noisy", task="mixed noise"):
        assert row["adjusted_loss"] == pytest.approx(row["loss"] - noisy["mixed noise", 0, "oracle"], abs=1e-12)


def test_a_warm_start_begins_at_the_descent(run):
    begun = next(e for e in read_events(run("multi-step"), "evaluation") if e["model"].startswith("warm") and e["step"] == 0)
    assert begun["cosine"] == pytest.approx([1, 1], abs=1e-5)
    level = only(read_events(run("multi-step"), "reference"), model=begun["model"], predictor="gd++")["loss"]
    assert begun["loss"] == pytest.approx([level] * 2, rel=1e-5)


def test_curvature_and_looped_layers_have_the_solved_rates(rows):
    for row in rows("curvature"):
        assert row["eigenvalue_max_after"] <= row["eigenvalue_max"] or row["gamma"] < 0
    assert {(row["predictor"], row["context"]) for row in rows("curvature")} == {
        (name, N) for name in ("closed_form", "trained") for N in (3, 5)
    }
    for name in ("gd", "gd++"):
        by_loops = {row["loops"]: row["loss"] for row in rows("looped", predictor=name, layers=2)}
        assert sorted(by_loops) == [1, 2, 3, 5, 7, 10, 15, 20, 30, 50] and by_loops[1] > by_loops[2]
        solved = only(rows("depths"), predictor=name, layers=2, recurrent=True)
        assert by_loops[2] == pytest.approx(solved["loss"], rel=1e-9)


def test_task_diversity_has_exact_losses_for_every_number_of_tasks(run, rows):
    told = {(row["predictor"], row["heads"], row["training_tasks"]): row for row in rows("task-diversity")}
    expected = {(name, 1, M) for name in ("dmmse", "ridge", "closed_form", "solved") for M in (1, 4, 512)}
    expected |= {("solved", 3, M) for M in (1, 4, 512)} | {("trained", heads, 4) for heads in (1, 3)}
    assert set(told) == expected | {("closed_form", 1, None)}
    for M in (1, 4, 512):  # each of these can do what the next can
        losses = [told[name, heads, M]["train_loss"] for name, heads in (("solved", 3), ("solved", 1), ("closed_form", 1))]
        assert losses == sorted(losses) and told["closed_form", 1, M]["loss"] > told["closed_form", 1, None]["loss"]
    assert told["dmmse", 1, 1]["train_loss"] < 1e-10  # it knows the task
    for heads in (1, 3):  # exact losses, which no training beats
        assert told["trained", heads, 4]["train_loss"] >= told["solved", heads, 4]["train_loss"]
    assert [event["dim"] for event in read_events(run("task-diversity"), "threshold")] == [2]


def test_rows_tell_models_and_seeds_apart(run, rows):
    trained = {(row["attention"], row["seed"]) for row in rows("copy", predictor="trained")}
    assert trained == {("softmax", 0), ("softmax", 1), ("linear", 0)}
    assert {row["heads"] for row in rows("softmax", predictor="trained")} == {1, 2}
    assert all(row["train_loss"] > 0 for row in rows("finite-data", predictor="trained"))
    assert {row["layers"] for row in rows("nonlinear")} == {row["layers"] for row in rows("layernorm")} == {1, 2}
    assert len(read_events(run("layernorm"), "sweep")) == 2 * (2 + 1)
    functions = rows("function-classes")
    assert {row["prefix"] for row in functions} >= {0, 1, 2, 4} and len({row["shift"] for row in functions}) == 12


def test_mesa_layers_are_ridge_and_stay_exact_in_float32(rows):
    told = rows("mesa")
    streams = groups([row for row in told if row["task"] != "rounding"], ["task"])
    assert {task for (task,) in streams} == {"regression", "ill-conditioned", "drift", "dynamics"}
    for (task,), own in streams.items():
        loss = {row["predictor"]: row["loss"] for row in own}
        mesa = [loss["mesa, recursion"], loss["mesa, conjugate gradients"]]
        assert mesa[0] == pytest.approx(mesa[1], rel=1e-9)
        assert (mesa[0] == pytest.approx(loss["ridge"], rel=1e-9)) == (task != "drift")
        assert mesa[0] < loss["linear attention"]
    rounding = where(told, task="rounding")
    assert len(groups(rounding, ["inputs", "forgetting", "predictor"])) == len(rounding) == 3 * 2 * 3 + 2
    for row in rounding:
        assert row["predictor"] == "mesa, Sherman-Morrison" or (row["float32_error"] < 1e-3 and row["fails_at"] is None)


def test_constructed_layers_are_the_posterior_mean_of_a_chain(rows):
    by_name = {row["predictor"]: row for row in rows("markov")}
    trained = rows("markov", predictor="trained")
    assert [(row["symbols_before"], row["seed"]) for row in trained] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert by_name["constructed"]["loss"] == pytest.approx(by_name["bigram"]["loss"], rel=1e-5)
    assert by_name["constructed"]["max_difference"] < 1e-12 and by_name["cache row"]["max_difference"] < 1e-12
    assert by_name["cache row"]["count_difference"] < 1e-11  # read back through a logarithm
    assert abs(by_name["bigram"]["kl_bigram"]) < 1e-6 < by_name["unigram"]["kl_bigram"]


def test_a_run_of_an_experiment_is_continued_by_no_other(run, capsys):
    assert command.main(["multi-step", "--resume", "--out", str(run("one-step"))]) == 2
    assert "is a run of launch.icl one-step" in " ".join(capsys.readouterr().err.split())


def test_a_run_of_all_experiments_in_one_folder_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"launcher": "icl", "experiment": ["one-step"], "dim": 10}))
    assert command.main(["one-step", "--out", str(tmp_path), "--resume"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is a run of launch.icl" in said and "choose another --out" in said


def test_an_interrupted_run_resumes_exactly_also_separate_layers(tmp_path, monkeypatch):
    made, train = 0, functools.partial(training.train_layers, checkpoint_seconds=-1.0)

    def stopped(*args, on_evaluation, **more):
        def counted(entry):
            nonlocal made
            made += 1
            on_evaluation(entry)
            if made == 2:
                raise KeyboardInterrupt

        return train(*args, on_evaluation=counted, **more)

    def words(out):
        flags = "multi-step --preset tiny --devices 1 --no-recurrent --warm-steps 0 --steps 200"
        return [*flags.split(), "--out", str(out)]

    whole, out = tmp_path / "whole", tmp_path / "run"
    assert command.main(words(whole)) == 0
    told = where(read_rows(whole), predictor="interpolated")
    assert {row["seed"] for row in told} == {0, 1} and not any(row["recurrent"] for row in told)
    monkeypatch.setattr(training, "train_layers", stopped)
    assert command.main(words(out)) == 130
    monkeypatch.setattr(training, "train_layers", train)
    assert command.main([*words(out), "--resume"]) == 0
    assert without_costs(out) == without_costs(whole)


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    def words(out):
        flags = "one-step --preset tiny --devices 1 --steps 3000 --resume"
        return [sys.executable, "-m", "launch.icl", *flags.split(), "--out", str(out)]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(words(whole), check=True, stderr=subprocess.DEVNULL)
    for seconds in (8.0, 12.0):
        process = subprocess.Popen(words(killed), stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(words(killed), check=True, stderr=subprocess.DEVNULL)
    assert without_costs(killed) == without_costs(whole)


@pytest.mark.parametrize("name, preset", [("one-step", []), ("multi-step", ["--preset", "two-steps"])])
def test_trained_layers_reach_the_descent(tmp_path, name, preset):
    """In a process of its own: this one compiles without optimisations, and training would take ten times as long."""
    flags = [name, *preset, "--out", str(tmp_path / "run"), "--test-tasks", "100000", "--seeds", "2"]
    subprocess.run([sys.executable, "-m", "launch.icl", *flags], check=True, stderr=subprocess.DEVNULL)
    rows = read_rows(tmp_path / "run")
    told = where(rows, predictor="trained", start="cold")
    best = where(rows, predictor=told[0]["reference"])[0]["loss"]
    assert len(told) == 2 and np.mean([row["loss"] for row in told]) <= 1.03 * best
    if name == "one-step":
        assert all(row["loss"] <= 1.005 * best and row["cosine"] >= 0.999 for row in told)

"""launch.icl, end to end on tiny tasks: a run of the quick experiments, one of the slow ones, and what is refused."""

import functools
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from outlines import check_report

from icl import training
from jexplicit.runs.results import read_events, read_rows
from launch.icl import __main__ as command
from launch.icl import run as icl
from launch.icl.shared import base
from launch.kit.rows import groups, only, where

pytestmark = pytest.mark.slow

SLOW = ("nonlinear", "layernorm", "phase", "blocks", "function-classes", "mesa", "markov")
QUICK = tuple(name for name in icl.EXPERIMENTS if name not in SLOW)
FLAGS = (
    "--dim 2 --context 3 --seeds 2 --steps 100 --warm-steps 100 --batch-size 16 --validation-tasks 50 --test-tasks 100 "
    "--solver-contexts 100 --depths 3 --contexts 3 --dims 2 --scaling-steps 100 --pretraining-tasks 1 4 512 "
    "--diversity-points 4 --wave-layers 1 2 --training-tasks 8 --diagonal-layers 2 --functions linear tree --function-dim 2 "
    "--transformer 8 1 2 --blocks 2 3 --block-kinds softmax linear-layernorm --small-blocks 1 --block-batch-size 8 "
    "--block-tasks 24 --chain-length 8 --tokens 300 --devices 1"
).split()
FIELDS = (
    "experiment predictor layers recurrent dim context seed loss cosine model_difference prediction_difference gamma eta steps "
    "seconds task heads sensitivity_own sensitivity_next sensitivity_other adjusted_loss prefix settings start"
).split()
DESCENTS = {"gd", "closed_form", "trained"}
PREDICTORS = {
    "one-step": DESCENTS | {"constructed", "interpolated", "ridge"},
    "multi-step": DESCENTS | {"gd++", "constructed", "interpolated", "ridge"},
    "curvature": {"closed_form", "trained"},
    "nonlinear": {"zero", "trained", "control", "ridge"},
    "copy": {"zero", "gd", "constructed", "trained"},
    "softmax": DESCENTS | {"constructed"},
    "deep-softmax": DESCENTS | {"gd++", "constructed"},
    "layernorm": DESCENTS | {"gd++"},
    "phase": DESCENTS,
    "finite-data": DESCENTS,
    "blocks": DESCENTS | {"gd++", "constructed", "ridge"},
}
MODELS = ("K1_d2_N3", "K2_recurrent_d2_N3")


def without_seconds(out) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_rows(out)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`runs(experiments)`: the folder of a run of them, which all tests read."""

    @functools.cache
    def run(experiments):
        out = tmp_path_factory.mktemp("runs") / "run"
        steps = ["--steps", "8"] if experiments is SLOW else []
        assert command.main(["--out", str(out), "--experiment", *experiments, *FLAGS, *steps]) == 0
        return out

    return run


@pytest.fixture
def finished(runs):
    return runs(QUICK)


@pytest.fixture
def rows(finished):
    return read_rows(finished)


@pytest.fixture
def slow(runs):
    return read_rows(runs(SLOW))


@pytest.mark.parametrize("experiments", [QUICK, SLOW], ids=["quick", "slow"])
def test_every_experiment_has_its_rows_and_its_section_of_the_report(runs, experiments):
    out = runs(experiments)
    rows = read_rows(out)
    check_report(out, "icl_slow" if experiments is SLOW else "icl")
    assert all(set(FIELDS) <= set(row) for row in rows) and {row["experiment"] for row in rows} == set(experiments)
    for experiment, predictors in PREDICTORS.items():
        assert experiment not in experiments or {row["predictor"] for row in where(rows, experiment=experiment)} == predictors
    for trained in groups(where(rows, predictor="trained"), ["experiment"]).values():
        assert {row["seed"] for row in trained} == {0, 1}


def test_the_constructed_weights_are_the_descent(rows):
    for experiment, descent, layers in (("one-step", "gd", 1), ("multi-step", "gd++", 2)):
        own = where(rows, experiment=experiment)
        assert {row["layers"] for row in own} == {layers}
        assert all(row["loss"] >= 0 and -1 <= row["cosine"] <= 1 + 1e-6 for row in own)
        by_name = {row["predictor"]: row for row in own}
        # the rates of the one are rounded to the floats of the other
        assert by_name["constructed"]["loss"] == pytest.approx(by_name[descent]["loss"], rel=1e-5)
        assert by_name["constructed"]["cosine"] == pytest.approx(1, abs=1e-5)
        assert by_name["closed_form"]["loss"] <= by_name["gd"]["loss"] * 1.1  # of 100 tasks


def test_constructions_are_what_they_construct(rows):
    loss = {(row["task"], row["layers"], row["predictor"]): row["loss"] for row in rows}
    assert loss["tokens apart", 2, "constructed"] == pytest.approx(loss["tokens apart", 1, "gd"], rel=1e-9)
    solved = loss["anisotropic, noisy", 1, "closed_form"]
    assert loss["anisotropic, noisy", 1, "constructed"] == pytest.approx(solved, rel=1e-9)
    assert loss["mixed noise", 2, "constructed"] == pytest.approx(loss["mixed noise", 2, "diagonal"], rel=1e-9)
    for row in where(rows, task="mixed noise"):
        assert row["adjusted_loss"] == pytest.approx(row["loss"] - loss["mixed noise", 0, "oracle"], abs=1e-12)


def test_curvature_has_the_rates_solved_and_those_of_the_layers_that_are_trained_once(finished, rows):
    assert len([event for event in read_events(finished, "trained") if event["model"] == f"cold_{MODELS[1]}"]) == 1
    values = np.load(finished / "curvature.npz")["before_3"]
    for row in where(rows, experiment="curvature"):
        after = values * (1 - row["gamma"] * values) ** 2
        for part, when in ((values, ""), (after, "_after")):  # saved in float32
            assert row[f"eigenvalue_min{when}"] == pytest.approx(part.min(), rel=1e-5, abs=1e-7)
            assert row[f"eigenvalue_max{when}"] == pytest.approx(part.max(), rel=1e-5)
            assert row[f"mean_eigenvalue_min{when}"] == pytest.approx(part.min(axis=1).mean(), rel=1e-4)
            assert row[f"mean_eigenvalue_max{when}"] == pytest.approx(part.max(axis=1).mean(), rel=1e-4)


def test_a_warm_start_begins_at_the_descent(finished):
    begun = next(e for e in read_events(finished, "evaluation") if e["model"].startswith("warm") and e["step"] == 0)
    assert begun["cosine"] == pytest.approx([1, 1], abs=1e-5)
    level = only(read_events(finished, "reference"), model=begun["model"], predictor="gd++")["loss"]
    assert begun["loss"] == pytest.approx([level] * 2, rel=1e-5)


def test_looped_layers_are_best_near_the_loops_that_they_were_solved_for(rows):
    for name in ("gd", "gd++"):
        by_loops = {row["loops"]: row["loss"] for row in where(rows, experiment="looped", predictor=name, layers=2)}
        assert sorted(by_loops) == [1, 2, 3, 5, 7, 10, 15, 20, 30, 50]
        solved = where(rows, experiment="depths", predictor=name, layers=2, recurrent=True)[0]
        assert by_loops[2] == pytest.approx(solved["loss"], rel=1e-9) and by_loops[1] > by_loops[2]


def test_task_diversity_has_exact_losses_for_every_number_of_tasks(finished, rows):
    of_it = where(rows, experiment="task-diversity")
    told = {(row["predictor"], row["heads"], row["training_tasks"]): row for row in of_it}
    expected = {(name, 1, M) for name in ("dmmse", "ridge", "closed_form", "solved") for M in (1, 4, 512)}
    expected |= {("solved", 3, M) for M in (1, 4, 512)} | {("trained", heads, 4) for heads in (1, 3)}
    assert set(told) == expected | {("closed_form", 1, None)}
    for M in (1, 4, 512):  # each of these can do what the next can
        losses = [told[name, heads, M]["train_loss"] for name, heads in (("solved", 3), ("solved", 1), ("closed_form", 1))]
        assert losses == sorted(losses) and told["closed_form", 1, M]["loss"] > told["closed_form", 1, None]["loss"]
    assert told["dmmse", 1, 1]["train_loss"] < 1e-10  # it knows the task
    for heads in (1, 3):  # exact losses, which no training beats
        assert told["trained", heads, 4]["train_loss"] >= told["solved", heads, 4]["train_loss"]
    assert [event["dim"] for event in read_events(finished, "threshold")] == [2]


def test_rows_tell_models_and_seeds_apart(rows):
    trained = where(rows, predictor="trained")
    copies = where(trained, experiment="copy")
    assert {(row["attention"], row["seed"]) for row in copies} == {("softmax", 0), ("softmax", 1), ("linear", 0)}
    assert {row["heads"] for row in where(trained, experiment="softmax")} == {1, 2}
    assert all(row["train_loss"] > 0 for row in where(trained, experiment="finite-data"))


def test_blocks_are_told_apart_and_constructed_ones_are_gd_plus_plus(slow):
    blocks = where(slow, experiment="blocks")
    trained = where(blocks, predictor="trained")
    assert {(r["layers"], r["heads"], r["attention"], r["layernorm"], r["training_tasks"], r["seed"]) for r in trained} == {
        (*sizes, seed)
        for seed in (0, 1)
        for sizes in ((2, 3, "softmax", False, None), (2, 3, "linear", True, None), (1, 3, "softmax", False, 24))
    }
    assert all(row["train_loss"] > 0 for row in trained if row["training_tasks"])
    row = {row["predictor"]: row for row in where(blocks, layers=2, start=None)}
    assert row["constructed"]["loss"] == pytest.approx(row["gd++"]["loss"], rel=1e-9)
    assert row["constructed"]["cosine"] == pytest.approx(1, abs=1e-6)  # 1e-8 is added to norms of order 0.1


def test_waves_have_layers_and_functions_prefixes_and_shifts(slow):
    assert {row["layers"] for row in where(slow, experiment="nonlinear")} == {1, 2}
    functions = where(slow, experiment="function-classes")
    assert {row["prefix"] for row in functions} >= {0, 1, 2, 4} and len({row["shift"] for row in functions}) == 12


def test_mesa_layers_are_ridge_and_stay_exact_in_float32(slow):
    told = where(slow, experiment="mesa")
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


def test_constructed_layers_are_the_posterior_mean_of_a_chain(slow):
    rows = where(slow, experiment="markov")
    by_name = {row["predictor"]: row for row in rows}
    assert list(by_name) == ["uniform", "unigram", "bigram", "cache row", "constructed", "trained"]
    trained = where(rows, predictor="trained")
    assert [(row["symbols_before"], row["seed"]) for row in trained] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert by_name["constructed"]["loss"] == pytest.approx(by_name["bigram"]["loss"], rel=1e-5)
    assert by_name["constructed"]["max_difference"] < 1e-12 and by_name["cache row"]["max_difference"] < 1e-12
    assert by_name["cache row"]["count_difference"] < 1e-11  # read back through a logarithm
    assert abs(by_name["bigram"]["kl_bigram"]) < 1e-6 < by_name["unigram"]["kl_bigram"]


def test_a_run_leaves_the_files_of_the_contract_and_a_report_that_is_made_of_them(finished, capsys):
    for name in ("config.json", "environment.json", "metrics.jsonl", f"checkpoints/cold_{MODELS[0]}"):
        assert (finished / name).exists(), name
    assert not list((finished / "checkpoints").glob("*.partial"))
    before, told = (finished / "report.md").read_text(), read_rows(finished)
    (finished / "report.md").unlink()
    assert command.main(["--out", str(finished), "--resume", "--json"]) == 0  # nothing else is left to do
    assert json.loads(capsys.readouterr().out)["rows"] == told == read_rows(finished)
    assert (finished / "report.md").read_text() == before
    assert command.main(["--out", str(finished), *FLAGS]) == 2 and "--resume" in capsys.readouterr().err
    assert command.main(["--out", str(finished), "--resume", "--steps", "300"]) == 2
    assert "steps = 100 (now 300)" in capsys.readouterr().err.replace("\n", " ")


def test_layers_of_their_own_are_interpolated_and_all_are_shown_and_an_interrupted_run_resumes_exactly(tmp_path, monkeypatch):
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
        own = "--layers 2 --no-recurrent --warm-steps 0 --steps 200"
        return ["--out", str(out), "--preset", "ten-steps", *FLAGS, *own.split()]

    whole, out = tmp_path / "whole", tmp_path / "run"
    assert command.main(words(whole)) == 0
    told = where(read_rows(whole), predictor="interpolated")
    assert {row["seed"] for row in told} == {0, 1} and not any(row["recurrent"] for row in told)
    assert (whole / "figures" / "layers_K2_layers_d2_N3.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(base, "train_layers", stopped)
    assert command.main(words(out)) == 130
    monkeypatch.setattr(base, "train_layers", train)
    assert command.main([*words(out), "--resume"]) == 0
    assert without_seconds(out) == without_seconds(whole)


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    def command(out):
        return [sys.executable, "-m", "launch.icl", "--out", str(out), *FLAGS, "--steps", "3000", "--resume"]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, stderr=subprocess.DEVNULL)
    for seconds in (8.0, 12.0):
        process = subprocess.Popen(command(killed), stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command(killed), check=True, stderr=subprocess.DEVNULL)
    assert without_seconds(killed) == without_seconds(whole)


OUT_OF_BOUNDS = (
    "--layers 0; --context -1; --seeds 0; --steps 0; --batch-size 0; --warm-steps -1; --contexts 0; --devices 99; "
    "--pretraining-tasks 0; --diversity-points 0; --training-tasks 0; --diagonal-layers 0; --blocks 12 0; --block-scale -1.0; "
    "--block-tasks 0; --block-rate 0; --wave-layers 0; --chain-states 1; --chain-length 1; --chain-alpha 0; --tokens 0"
).split("; ")
REFUSED = {
    **{flags: flags.split()[0] for flags in OUT_OF_BOUNDS},
    "--dims": "--dims without a value: leave the flag out, or give some, such as 2 5 10",
    "--block-kinds": "--block-kinds without a value",
    "--preset nothing": "two-steps",
    "--experiment task-diversity --dims 2000": "--dims 2000: task-diversity takes",
    "--experiment noisy --noise-levels -1.0": "levels",
    "--experiment function-classes --transformer 9 1 2": "--transformer 9 1 2",
    "--experiment function-classes --function-dim 0": "dim 0",
    "--experiment blocks --block-tasks 1000": "use a multiple of --block-batch-size",
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, wrong):
    assert command.main(["--out", str(tmp_path / "run"), *wrong.split()]) == 2
    assert REFUSED[wrong] in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("preset", ["one-step", "two-steps"])
def test_trained_layers_reach_the_descent(tmp_path, preset):
    """In a process of its own: this one compiles without optimisations, and training would take ten times as long."""
    out = tmp_path / "run"
    flags = ["--preset", preset, "--out", str(out), "--test-tasks", "100000", "--seeds", "2"]
    subprocess.run([sys.executable, "-m", "launch.icl", *flags], check=True, stderr=subprocess.DEVNULL)
    told = where(read_rows(out), predictor="trained", start="cold")
    best = where(read_rows(out), predictor=told[0]["reference"])[0]["loss"]
    assert len(told) == 2 and np.mean([row["loss"] for row in told]) <= 1.03 * best
    if preset == "one-step":
        assert all(row["loss"] <= 1.005 * best and row["cosine"] >= 0.999 for row in told)

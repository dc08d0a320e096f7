"""launch.icl, end to end on tiny tasks: what it writes, what it refuses, and that it resumes exactly."""

import functools
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from launch.icl.config import PRESETS, Config, check
from launch.icl.recipes import init_scale, make_recipe, make_regression, make_tasks
from launch.icl.sections.linear_regression import steps_saved

from icl import training
from jexplicit.runs.bounds import check_bounds
from launch.icl import __main__ as icl
from launch.icl import training as icl_training
from launch.icl.tables import terminal_table

SMALL = (
    "--dim 2 --context 3 --seeds 2 --steps 200 --warm-steps 100 --batch-size 16 --validation-tasks 100 --test-tasks 100 "
    "--solver-contexts 100 --depths 4 --contexts 3 --dims 2 --scaling-steps 100"
)
FLAGS = [*SMALL.split(), "--devices", "1"]
FIELDS = (
    "experiment predictor layers recurrent dim context seed loss cosine model_difference prediction_difference gamma eta steps "
    "seconds"
).split()


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


def without_seconds(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "seconds"}


def events(out, name: str) -> list[dict]:
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in e.items() if k not in ("time", "seconds")} for e in lines if e["event"] == name]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of every experiment that the read-only tests share."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert icl.main(["--out", str(out), "--experiment", "all", *FLAGS]) == 0
    return out


@pytest.mark.slow
def test_a_run_writes_a_row_per_predictor_with_the_promised_fields(finished):
    told = rows(finished)
    assert all(set(FIELDS) <= set(row) for row in told)
    for experiment, layers, wanted in (
        ("one-step", 1, {"gd", "closed_form", "constructed", "trained", "interpolated", "ridge"}),
        ("multi-step", 2, {"gd", "gd++", "closed_form", "constructed", "trained", "interpolated", "ridge"}),
    ):
        of_it = [row for row in told if row["experiment"] == experiment]
        assert {row["predictor"] for row in of_it} == wanted and {row["layers"] for row in of_it} == {layers}
        assert {row["seed"] for row in of_it if row["predictor"] == "trained"} == {0, 1}
        for row in of_it:
            assert row["loss"] >= 0 and -1 <= row["cosine"] <= 1 + 1e-6 and row["seconds"] != 0
    assert {row["experiment"] for row in told} == {
        *("one-step", "multi-step", "depths", "out-of-distribution", "rollout", "curvature", "scaling-N"),
    }


@pytest.mark.slow
def test_the_constructed_weights_are_the_descent(finished):
    for experiment, descent in (("one-step", "gd"), ("multi-step", "gd++")):
        by_name = {row["predictor"]: row for row in rows(finished) if row["experiment"] == experiment}
        # the rates of the one are rounded to the floats of the other
        assert by_name["constructed"]["loss"] == pytest.approx(by_name[descent]["loss"], rel=1e-5)
        assert by_name["constructed"]["cosine"] == pytest.approx(1, abs=1e-5)
        assert by_name["closed_form"]["loss"] <= by_name["gd"]["loss"] * 1.1  # of 100 tasks


@pytest.mark.slow
def test_curvature_has_the_rates_solved_and_those_of_the_layers_that_are_trained_once(finished):
    told = {row["predictor"]: row for row in rows(finished) if row["experiment"] == "curvature"}
    assert set(told) == {"closed_form", "trained"}
    trained = [e for e in events(finished, "trained") if e["model"] == "cold_K2_recurrent_d2_N3"]
    assert len(trained) == 1
    spectra = np.load(finished / "curvature.npz")
    values = spectra["before_3"]
    for row in told.values():
        after = values * (1 - row["gamma"] * values) ** 2
        for part, when in ((values, ""), (after, "_after")):  # saved in float32
            assert row[f"eigenvalue_min{when}"] == pytest.approx(part.min(), rel=1e-5, abs=1e-7)
            assert row[f"eigenvalue_max{when}"] == pytest.approx(part.max(), rel=1e-5)
            assert row[f"mean_eigenvalue_min{when}"] == pytest.approx(part.min(axis=1).mean(), rel=1e-4)
            assert row[f"mean_eigenvalue_max{when}"] == pytest.approx(part.max(axis=1).mean(), rel=1e-4)


@pytest.mark.slow
def test_layers_of_their_own_are_interpolated_and_all_are_shown(tmp_path):
    out = tmp_path / "run"
    flags = ["--preset", "ten-steps", *FLAGS, "--layers", "2", "--no-recurrent", "--warm-steps", "0"]
    assert icl.main(["--out", str(out), *flags]) == 0
    told = [row for row in rows(out) if row["predictor"] == "interpolated"]
    assert {row["seed"] for row in told} == {0, 1} and not any(row["recurrent"] for row in told)
    assert (out / "figures" / "layers_K2_layers_d2_N3.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_warm_start_begins_at_the_descent(finished):
    begun = next(e for e in events(finished, "evaluation") if e["model"].startswith("warm") and e["step"] == 0)
    assert begun["cosine"] == pytest.approx([1, 1], abs=1e-5)
    levels = {e["predictor"]: e["loss"] for e in events(finished, "reference") if e["model"] == begun["model"]}
    assert begun["loss"] == pytest.approx([levels["gd++"]] * 2, rel=1e-5)


@pytest.mark.slow
def test_a_run_leaves_the_files_of_the_contract(finished):
    for name in ("config.json", "environment.json", "metrics.jsonl", "report.md", "checkpoints/cold_K1_d2_N3"):
        assert (finished / name).exists(), name
    names = "training_K1_d2_N3 weights_K1_d2_N3 training_K2_recurrent_d2_N3 weights_K2_recurrent_d2_N3 shifts_K1_d2_N3"
    for name in [*names.split(), "rollout", "curvature", "scaling"]:
        assert (finished / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
    assert not list((finished / "checkpoints").glob("*.partial"))


@pytest.mark.slow
def test_the_report_is_rebuilt_from_the_run_folder_alone(finished):
    before = (finished / "report.md").read_text()
    assert "trained, warm start, 2 seeds" in before and "from random weights" in before
    told = rows(finished)
    (finished / "report.md").unlink()
    assert icl.main(["--out", str(finished), "--resume"]) == 0  # nothing else is left to do
    assert (finished / "report.md").read_text() == before
    assert rows(finished) == told


@pytest.mark.slow
def test_the_terminal_shows_descent_and_training_at_other_sizes(finished):
    other = terminal_table([row for row in rows(finished) if row["experiment"] == "scaling-N"])
    assert list(other.columns[0].cells) == ["K = 1, d = 2"] * 2 + ["K = 2, N = 3"] * 2
    assert list(other.columns[1].cells) == ["gd", "trained, cold", "gd++", "trained, cold"]
    assert not terminal_table([row for row in rows(finished) if row["experiment"] == "rollout"]).row_count


@pytest.mark.slow
def test_an_existing_run_is_not_overwritten_and_not_changed(finished, capsys):
    before = rows(finished)
    assert icl.main(["--out", str(finished), *FLAGS]) == 2
    assert "--resume" in capsys.readouterr().err
    assert icl.main(["--out", str(finished), "--resume", "--steps", "300"]) == 2
    assert "steps = 200 (now 300)" in capsys.readouterr().err.replace("\n", " ")
    assert rows(finished) == before


@pytest.mark.slow
def test_a_run_interrupted_in_training_resumes_to_the_same_rows(finished, tmp_path, monkeypatch):
    made = 0
    train = functools.partial(training.train_layers, checkpoint_seconds=-1.0)

    def stopped(*args, on_evaluation, **more):
        def counted(entry):
            nonlocal made
            made += 1
            on_evaluation(entry)
            if made == 2:
                raise KeyboardInterrupt

        return train(*args, on_evaluation=counted, **more)

    monkeypatch.setattr(icl_training, "train_layers", stopped)
    out = tmp_path / "run"
    command = ["--out", str(out), "--experiment", "one-step", *FLAGS]
    assert icl.main(command) == 130
    monkeypatch.setattr(icl_training, "train_layers", train)
    assert icl.main([*command, "--resume"]) == 0
    expected = [without_seconds(row) for row in rows(finished) if row["experiment"] == "one-step"]
    assert [without_seconds(row) for row in rows(out)] == expected


@pytest.mark.slow
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
    assert [without_seconds(row) for row in rows(killed)] == [without_seconds(row) for row in rows(whole)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--layers 0", "--layers 0"),
        ("--dim 0", "--dim 0"),
        ("--context -1", "--context -1"),
        ("--seeds 0", "--seeds 0"),
        ("--batch-size 0", "--batch-size 0"),
        ("--learning-rate 0", "--learning-rate 0"),
        ("--warm-steps -1", "--warm-steps -1"),
        ("--experiment", "one-step"),
        ("--contexts 0", "--contexts"),
        ("--devices 99", "--devices"),
        ("--preset nothing", "two-steps"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, wrong, message):
    assert icl.main(["--out", str(tmp_path / "run"), *SMALL.split(), *wrong.split()]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_a_valid_configuration(name):
    check_bounds(PRESETS[name].config)
    check(PRESETS[name].config)
    assert PRESETS[name].note


def test_ten_steps_are_ten_recurrent_layers():
    config = PRESETS["ten-steps"].config
    assert (config.layers, config.recurrent, config.experiment) == (10, True, ("multi-step",))
    assert make_regression(config, make_tasks(config), 10).clip == 10.0


def test_saved_steps_are_told_even_where_a_start_does_not_arrive():
    cold, warm = [{"step": 0, "loss": [1.0, 3.0]}, {"step": 100, "loss": [0.5, 1.0]}], [{"step": 0, "loss": [0.1]}]
    assert "not within 100 steps" in steps_saved(cold, warm, 0.2) and "closed form after 0 steps." in steps_saved(
        cold, warm, 0.2
    )


def test_the_paper_s_text_is_a_setting():
    code, text = Config(out=""), Config(out="", settings="paper")
    assert (make_tasks(code).input_range, make_tasks(text).input_range) == (1.0, 2.0)
    assert (make_recipe(code, 2).b2, make_recipe(text, 2).b2) == (0.98, 0.999)
    assert (make_recipe(code, 2).gradient_clip, make_recipe(text, 2).gradient_clip) == (1e-3, 10.0)
    assert [make_regression(code, make_tasks(code), K).clip for K in (2, 3, 4)] == [None, None, 10.0]
    assert [make_regression(text, make_tasks(text), K).clip for K in (2, 3, 4)] == [None, 10.0, 10.0]
    assert init_scale(code, 2, 11) == 0.001 and np.sqrt(init_scale(text, 2, 11) / 11) == pytest.approx(0.001)


def run_optimised(*flags: str) -> None:
    """In a process of its own: this one compiles without optimisations, and full-size training would take ten times as long."""
    subprocess.run([sys.executable, "-m", "launch.icl", *flags], check=True, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_one_step_reaches_the_closed_form(tmp_path):
    out = tmp_path / "run"
    run_optimised("--out", str(out), "--test-tasks", "100000")
    told = [row for row in rows(out) if row["predictor"] == "trained"]
    best = next(row["loss"] for row in rows(out) if row["predictor"] == "closed_form")
    assert len(told) == 5
    for row in told:
        assert row["loss"] <= 1.005 * best and row["cosine"] >= 0.999


@pytest.mark.slow
def test_two_recurrent_layers_reach_gd_plus_plus(tmp_path):
    out = tmp_path / "run"
    run_optimised("--preset", "two-steps", "--out", str(out), "--test-tasks", "100000")
    best = next(row["loss"] for row in rows(out) if row["predictor"] == "gd++")
    losses = [row["loss"] for row in rows(out) if row["predictor"] == "trained" and row["start"] == "cold"]
    assert len(losses) == 5 and np.mean(losses) <= 1.03 * best

"""launch.icl on linear regression, looped layers, Newton's iteration and task diversity, end to end on tiny tasks."""

import functools
import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from icl import training
from icl.solvers.descent import gd_plus_plus
from icl.tasks import sample_tasks, vmap_tasks
from jexplicit.experiments.bounds import check_bounds
from jexplicit.experiments.folder import RunFolder
from launch.icl import __main__ as icl
from launch.icl.shared import base
from launch.icl.shared.base import TEST, Flags, Model, init_scale, make_recipe, make_regression, make_tasks, random_key
from launch.icl.shared.predictors import Job, descent_families, measure_families

EXPERIMENTS = (*icl.GROUPS["all"], "task-diversity", "looped", "newton")
FLAGS = (
    "--dim 2 --context 3 --seeds 2 --steps 100 --warm-steps 100 --batch-size 16 --validation-tasks 50 --test-tasks 100 "
    "--solver-contexts 100 --depths 3 --contexts 3 --dims 2 --scaling-steps 100 --pretraining-tasks 1 4 512 "
    "--diversity-points 4 --devices 1"
).split()
FIELDS = (
    "experiment predictor layers recurrent dim context seed loss cosine model_difference prediction_difference gamma eta steps "
    "seconds task heads sensitivity_own sensitivity_next sensitivity_other adjusted_loss prefix settings start"
).split()
MODELS = ("K1_d2_N3", "K2_recurrent_d2_N3")
FIGURES = (
    *(f"{kind}_{model}" for kind in ("training", "weights", "shifts") for model in MODELS),
    *("depths", "rollout", "curvature", "scaling", "looped", "newton", "task_diversity"),
)


def rows(out, **wanted) -> list[dict]:
    found = json.loads((out / "results.json").read_text())["rows"]
    return [row for row in found if all(row[name] == value for name, value in wanted.items())]


def without_seconds(told: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in told]


def events(out, name: str) -> list[dict]:
    return [event for event in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if event["event"] == name]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of every experiment that the read-only tests share."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert icl.main(["--out", str(out), "--experiment", *EXPERIMENTS, *FLAGS]) == 0
    return out


def test_a_run_has_a_row_per_predictor_with_the_promised_fields(finished):
    told = rows(finished)
    assert all(set(FIELDS) <= set(row) for row in told) and {row["experiment"] for row in told} == set(EXPERIMENTS)
    for experiment, layers, more in (("one-step", 1, set()), ("multi-step", 2, {"gd++"})):
        of_it = rows(finished, experiment=experiment)
        wanted = {"gd", "closed_form", "constructed", "trained", "interpolated", "ridge"} | more
        assert {row["predictor"] for row in of_it} == wanted and {row["layers"] for row in of_it} == {layers}
        assert {row["seed"] for row in of_it if row["predictor"] == "trained"} == {0, 1}
        assert all(row["loss"] >= 0 and -1 <= row["cosine"] <= 1 + 1e-6 for row in of_it)


def test_the_constructed_weights_are_the_descent(finished):
    for experiment, descent in (("one-step", "gd"), ("multi-step", "gd++")):
        by_name = {row["predictor"]: row for row in rows(finished, experiment=experiment)}
        # the rates of the one are rounded to the floats of the other
        assert by_name["constructed"]["loss"] == pytest.approx(by_name[descent]["loss"], rel=1e-5)
        assert by_name["constructed"]["cosine"] == pytest.approx(1, abs=1e-5)
        assert by_name["closed_form"]["loss"] <= by_name["gd"]["loss"] * 1.1  # of 100 tasks


def test_a_loss_has_the_standard_error_of_its_tasks(tmp_path):
    """Of several blocks of tasks, beside NumPy on the single losses."""
    config = Flags(out=str(tmp_path / "run"), dim=2, context=3, test_tasks=20_000, solver_contexts=100)
    job, model = Job(config, RunFolder(config.out, config)), Model(make_tasks(config), 1, True)
    told = measure_families(job, model, descent_families(job, model))[0]
    step = jax.jit(vmap_tasks(lambda s: gd_plus_plus(s, *(np.full(1, rate) for rate in (told["eta"], 0.0)), steps=1)[-1]))
    keys = [jax.random.fold_in(random_key(config, TEST), block) for block in range(2)]
    batches = [sample_tasks(key, model.tasks, 10_000) for key in keys]
    losses = np.concatenate([np.sum((np.asarray(step(batch)) - batch.y_q) ** 2, axis=0) / 2 for batch in batches])
    assert told["test_tasks"] == len(losses) and told["loss"] == pytest.approx(losses.mean(), rel=1e-9)
    assert told["standard_error"] == pytest.approx(losses.std() / np.sqrt(len(losses)), rel=1e-6)


def test_curvature_has_the_rates_solved_and_those_of_the_layers_that_are_trained_once(finished):
    told = {row["predictor"]: row for row in rows(finished, experiment="curvature")}
    assert set(told) == {"closed_form", "trained"}
    assert len([event for event in events(finished, "trained") if event["model"] == f"cold_{MODELS[1]}"]) == 1
    values = np.load(finished / "curvature.npz")["before_3"]
    for row in told.values():
        after = values * (1 - row["gamma"] * values) ** 2
        for part, when in ((values, ""), (after, "_after")):  # saved in float32
            assert row[f"eigenvalue_min{when}"] == pytest.approx(part.min(), rel=1e-5, abs=1e-7)
            assert row[f"eigenvalue_max{when}"] == pytest.approx(part.max(), rel=1e-5)
            assert row[f"mean_eigenvalue_min{when}"] == pytest.approx(part.min(axis=1).mean(), rel=1e-4)
            assert row[f"mean_eigenvalue_max{when}"] == pytest.approx(part.max(axis=1).mean(), rel=1e-4)


def test_a_warm_start_begins_at_the_descent(finished):
    begun = next(e for e in events(finished, "evaluation") if e["model"].startswith("warm") and e["step"] == 0)
    assert begun["cosine"] == pytest.approx([1, 1], abs=1e-5)
    levels = {e["predictor"]: e["loss"] for e in events(finished, "reference") if e["model"] == begun["model"]}
    assert begun["loss"] == pytest.approx([levels["gd++"]] * 2, rel=1e-5)


def test_looped_layers_are_best_near_the_loops_that_they_were_solved_for(finished):
    for name, K in (("gd", 2), ("gd++", 2)):
        by_loops = {row["loops"]: row for row in rows(finished, experiment="looped", predictor=name, layers=K)}
        assert sorted(by_loops) == [1, 2, 3, 5, 7, 10, 15, 20, 30, 50]
        solved = rows(finished, experiment="depths", predictor=name, layers=K, recurrent=True)[0]
        assert by_loops[K]["loss"] == pytest.approx(solved["loss"], rel=1e-9) and by_loops[1]["loss"] > by_loops[K]["loss"]
    assert {row["seed"] for row in rows(finished, experiment="looped", predictor="trained")} == {0, 1}


def test_task_diversity_has_exact_losses_for_every_number_of_tasks(finished):
    of_it = rows(finished, experiment="task-diversity")
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
    assert [event["dim"] for event in events(finished, "threshold")] == [2]


def test_a_run_leaves_the_files_of_the_contract_and_a_report_that_is_made_of_them(finished, capsys):
    for name in ("config.json", "environment.json", "metrics.jsonl", f"checkpoints/cold_{MODELS[0]}"):
        assert (finished / name).exists(), name
    for name in FIGURES:
        assert (finished / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
    assert not list((finished / "checkpoints").glob("*.partial"))
    before, told = (finished / "report.md").read_text(), rows(finished)
    assert all(f"## {icl.EXPERIMENTS[name].title}" in before for name in EXPERIMENTS)
    for heading in ("| predictor | loss |", "| N | γ: closed form |", "| layer | 2 loops |", "| on | M |", "limit of large d"):
        assert heading in before, heading
    (finished / "report.md").unlink()
    assert icl.main(["--out", str(finished), "--resume", "--json"]) == 0  # nothing else is left to do
    assert json.loads(capsys.readouterr().out)["rows"] == told == rows(finished)
    assert (finished / "report.md").read_text() == before
    assert icl.main(["--out", str(finished), *FLAGS]) == 2 and "--resume" in capsys.readouterr().err
    assert icl.main(["--out", str(finished), "--resume", "--steps", "300"]) == 2
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

    def command(out):
        own = "--layers 2 --no-recurrent --warm-steps 0 --steps 200"
        return ["--out", str(out), "--preset", "ten-steps", *FLAGS, *own.split()]

    whole, out = tmp_path / "whole", tmp_path / "run"
    assert icl.main(command(whole)) == 0
    told = rows(whole, predictor="interpolated")
    assert {row["seed"] for row in told} == {0, 1} and not any(row["recurrent"] for row in told)
    assert (whole / "figures" / "layers_K2_layers_d2_N3.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(base, "train_layers", stopped)
    assert icl.main(command(out)) == 130
    monkeypatch.setattr(base, "train_layers", train)
    assert icl.main([*command(out), "--resume"]) == 0
    assert without_seconds(rows(out)) == without_seconds(rows(whole))


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
    assert without_seconds(rows(killed)) == without_seconds(rows(whole))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--layers 0", "--layers 0"),
        ("--context -1", "--context -1"),
        ("--seeds 0", "--seeds 0"),
        ("--batch-size 0", "--batch-size 0"),
        ("--warm-steps -1", "--warm-steps -1"),
        ("--contexts 0", "--contexts"),
        ("--dims", "--dims without a value: leave the flag out, or give some, such as 2 5 10"),
        ("--devices 99", "--devices"),
        ("--preset nothing", "two-steps"),
        ("--pretraining-tasks 0", "--pretraining-tasks"),
        ("--diversity-points 0", "--diversity-points"),
        ("--experiment task-diversity --dims 2000", "--dims 2000: task-diversity takes"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, wrong, message):
    assert icl.main(["--out", str(tmp_path / "run"), *FLAGS, *wrong.split()]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", sorted(icl.PRESETS))
def test_every_preset_is_a_valid_configuration(name):
    preset = icl.PRESETS[name]
    check_bounds(preset.config)
    icl.check(preset.config)
    assert preset.note and preset.config.out.startswith("runs/icl")


def test_groups_name_experiments_and_every_experiment_is_in_a_group_and_in_help():
    for group, names in icl.GROUPS.items():
        chosen = icl.selected_experiments(icl.Config(out="", experiment=(group,)))
        assert [experiment.name for experiment in chosen] == list(names)
        assert all(f" {name}: " in icl.Config.HELP["experiment"] for name in names)


def test_the_paper_s_text_is_a_setting():
    code, text = Flags(out=""), Flags(out="", settings="paper")
    assert (make_tasks(code).input_range, make_tasks(text).input_range) == (1.0, 2.0)
    assert (make_recipe(code, 2).b2, make_recipe(text, 2).b2) == (0.98, 0.999)
    assert (make_recipe(code, 2).gradient_clip, make_recipe(text, 2).gradient_clip) == (1e-3, 10.0)
    assert [make_regression(code, make_tasks(code), K).clip for K in (2, 3, 4, 10)] == [None, None, 10.0, 10.0]
    assert [make_regression(text, make_tasks(text), K).clip for K in (2, 3, 4)] == [None, 10.0, 10.0]
    assert init_scale(code, 2, 11) == 0.001 and np.sqrt(init_scale(text, 2, 11) / 11) == pytest.approx(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["one-step", "two-steps"])
def test_trained_layers_reach_the_descent(tmp_path, preset):
    """In a process of its own: this one compiles without optimisations, and training would take ten times as long."""
    out = tmp_path / "run"
    flags = ["--preset", preset, "--out", str(out), "--test-tasks", "100000"]
    subprocess.run([sys.executable, "-m", "launch.icl", *flags], check=True, stderr=subprocess.DEVNULL)
    told = rows(out, predictor="trained", start="cold")
    best = rows(out, predictor=told[0]["reference"])[0]["loss"]
    assert len(told) == 5 and np.mean([row["loss"] for row in told]) <= 1.03 * best
    if preset == "one-step":
        assert all(row["loss"] <= 1.005 * best and row["cosine"] >= 0.999 for row in told)

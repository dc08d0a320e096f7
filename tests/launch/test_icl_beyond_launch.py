"""launch.icl beyond linear regression, end to end on tiny tasks: rows, figures, what reports say, resuming, refusals."""

import json

import pytest
from launch.icl.config import BEYOND, LINEAR, Config, check, effort, selected_experiments
from launch.icl.report import SECTIONS

from launch.icl import __main__ as icl

SMALL = (
    "--dim 2 --context 3 --seeds 2 --steps 40 --batch-size 16 --validation-tasks 50 --test-tasks 100 --solver-contexts 50 "
    "--wave-layers 1 2 --training-tasks 8 --diagonal-layers 2 --functions linear --function-dim 2 --transformer 8 1 2 "
    "--blocks 2 2 --small-blocks 1 --block-batch-size 16 --block-tasks 32 --devices 1"
)
QUICK = ("copy", "softmax", "finite-data")
FIGURES = {
    "nonlinear": ["nonlinear_K1", "nonlinear_K2"],
    "copy": ["copy"],
    "softmax": ["softmax", "heads"],
    "layernorm": ["layernorm", "layernorm_shift_K1", "layernorm_shift_K2"],
    "phase": ["phase"],
    "finite-data": ["finite", "finite_curves"],
    "blocks": ["blocks", "blocks_memory"],
    "noisy": ["noisy"],
    "function-classes": ["function_classes"],
}
PREDICTORS = {
    "nonlinear": {"zero", "trained", "control", "ridge"},
    "copy": {"zero", "gd", "constructed", "trained"},
    "softmax": {"gd", "closed_form", "trained", "constructed"},
    "layernorm": {"gd", "gd++", "closed_form", "trained"},
    "phase": {"gd", "closed_form", "trained"},
    "finite-data": {"gd", "closed_form", "trained"},
}
FIELDS = "task heads sensitivity_own sensitivity_next sensitivity_other adjusted_loss prefix".split()


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the experiments that compile fastest, which the read-only tests share."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert icl.main(["--out", str(out), "--experiment", *QUICK, *SMALL.split()]) == 0
    return out


@pytest.mark.slow
def test_every_experiment_has_rows_with_the_promised_fields(finished):
    check_rows(finished, QUICK)


def check_rows(out, experiments):
    told = rows(out)
    assert all(set(FIELDS) <= set(row) and row["loss"] >= 0 for row in told)
    assert {row["experiment"] for row in told} == set(experiments)
    for experiment in set(experiments) & set(PREDICTORS):
        of_it = [row for row in told if row["experiment"] == experiment]
        assert {row["predictor"] for row in of_it} == PREDICTORS[experiment]
        assert {row["seed"] for row in of_it if row["predictor"] == "trained"} == {0, 1}
    assert {row["heads"] for row in told if row["experiment"] == "softmax"} == {1, 2}
    copies = [row for row in told if row["experiment"] == "copy" and row["predictor"] == "trained"]
    assert {(row["attention"], row["seed"]) for row in copies} == {("softmax", 0), ("softmax", 1), ("linear", 0)}
    assert {row["layers"] for row in told if row["experiment"] == "nonlinear"} in ({1, 2}, set())


@pytest.mark.slow
def test_constructions_are_what_they_construct(finished):
    loss = {(row["experiment"], row["predictor"]): row["loss"] for row in rows(finished)}
    assert loss["copy", "constructed"] == pytest.approx(loss["copy", "gd"], rel=1e-9)


def check_noisy(out):
    loss = {row["predictor"]: row["loss"] for row in rows(out) if row["task"] == "anisotropic, noisy"}
    assert loss["constructed"] == pytest.approx(loss["closed_form"], rel=1e-9)
    mixed = {(row["predictor"], row["layers"]): row for row in rows(out) if row["task"] == "mixed noise"}
    assert mixed["constructed", 2]["loss"] == pytest.approx(mixed["diagonal", 2]["loss"], rel=1e-9)
    oracle = mixed["oracle", 0]["loss"]
    for row in mixed.values():
        assert row["adjusted_loss"] == pytest.approx(row["loss"] - oracle, abs=1e-12)


@pytest.mark.slow
def test_the_report_says_what_was_run_and_what_the_source_shows(finished):
    check_report(finished, QUICK)
    assert "Run: 40 steps, 2 seeds; the source: 10,000 steps, 5 seeds: shortened" in (finished / "report.md").read_text()


def check_report(out, experiments):
    report = (out / "report.md").read_text()
    for experiment in experiments:
        assert f"## {SECTIONS[experiment].title}" in report and SECTIONS[experiment].source_shows in report
        for name in FIGURES[experiment]:
            assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
            assert f"figures/{name}.png" in report


@pytest.mark.slow
def test_all_experiments_run_one_after_the_other(tmp_path):
    out = tmp_path / "run"
    assert icl.main(["--out", str(out), "--experiment", "beyond", *SMALL.split()]) == 0
    check_rows(out, BEYOND)
    check_report(out, BEYOND)
    check_noisy(out)
    assert set(BEYOND) == set(FIGURES)
    functions = [row for row in rows(out) if row["experiment"] == "function-classes"]
    assert {row["prefix"] for row in functions} >= {0, 1, 2, 4} and len({row["shift"] for row in functions}) == 12


@pytest.mark.slow
def test_a_finished_run_has_nothing_left_to_do_and_rebuilds_its_report(finished):
    before, told = (finished / "report.md").read_text(), rows(finished)
    (finished / "report.md").unlink()
    assert icl.main(["--out", str(finished), "--resume"]) == 0
    assert (finished / "report.md").read_text() == before and rows(finished) == told


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--training-tasks 0", "--training-tasks"),
        ("--diagonal-layers 0", "--diagonal-layers"),
        ("--experiment noisy --noise-levels -1.0", "levels"),
        ("--transformer 9 1 2", "--transformer 9 1 2"),
        ("--experiment function-classes --function-dim 0", "dim 0"),
        ("--steps 0", "--steps 0"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, wrong, message):
    assert icl.main(["--out", str(tmp_path / "run"), *wrong.split()]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_groups_of_experiments_and_their_own_efforts():
    both = Config(out="", experiment=("beyond", "all", "copy"))
    check(both)
    assert selected_experiments(both) == [*LINEAR, *BEYOND]
    assert selected_experiments(Config(out="", experiment=("all",))) == list(LINEAR)
    assert effort(both, "one-step") == (5000, 5) and effort(both, "phase").seeds == 10
    assert effort(Config(out="", steps=7, seeds=2), "copy") == (7, 2)

"""launch.icl on blocks of attention and an MLP, end to end on tiny tasks: rows, report, resuming, refusals."""

import json

import pytest
from launch.icl.config import RECENT, Config, check, selected_experiments
from launch.icl.report import SECTIONS
from launch.icl.sections.blocks import falls

from launch.icl import __main__ as icl

SMALL = (
    "--experiment blocks --dim 2 --context 3 --seeds 2 --steps 8 --validation-tasks 30 --test-tasks 1001 --solver-contexts 50 "
    "--blocks 2 3 --block-kinds softmax linear-layernorm --block-batch-size 8 --block-tasks 24 --small-blocks 1 --devices 1"
).split()


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert icl.main(["--out", str(out), *SMALL]) == 0
    return out


@pytest.mark.slow
def test_rows_tell_the_kinds_of_blocks_apart(finished):
    told = [row for row in rows(finished) if row["predictor"] == "trained"]
    assert {(r["layers"], r["heads"], r["attention"], r["layernorm"], r["training_tasks"], r["seed"]) for r in told} == {
        (*sizes, seed)
        for seed in (0, 1)
        for sizes in ((2, 3, "softmax", False, None), (2, 3, "linear", True, None), (1, 3, "softmax", False, 24))
    }
    assert all(row["train_loss"] > 0 for row in told if row["training_tasks"])


@pytest.mark.slow
def test_constructed_blocks_are_gd_plus_plus_and_the_loss_is_one_over_all_test_tasks(finished):
    row = {r["predictor"]: r for r in rows(finished) if r["layers"] == 2 and not r.get("attention")}
    assert set(row) == {"gd", "gd++", "closed_form", "constructed", "ridge"}
    assert row["constructed"]["loss"] == pytest.approx(row["gd++"]["loss"], rel=1e-9)
    assert row["constructed"]["cosine"] == pytest.approx(1, abs=1e-6)  # 1e-8 is added to norms of order 0.1


@pytest.mark.slow
def test_the_report_shows_both_figures_and_a_finished_run_rebuilds_it(finished):
    report, told = (finished / "report.md").read_text(), rows(finished)
    assert SECTIONS["blocks"].title in report and "With 24 tasks, 1 block: the loss is" in report
    for name in ("blocks", "blocks_memory"):
        assert (finished / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert icl.main(["--out", str(finished), "--resume"]) == 0
    assert (finished / "report.md").read_text() == report and rows(finished) == told


def test_falls_are_first_steps_below_a_share_of_the_start():
    losses = ((10, 0.19, 0.4), (20, 0.05, 0.3), (30, 0.01, 0.1))
    curve = [{"step": step, "loss": [fresh, fresh], "training_loss": [same, same]} for step, same, fresh in losses]
    curve = [{"step": 0, "loss": [0.4, 0.4]}, *curve]
    assert falls(curve).endswith(": 10, 20 on training tasks; 30, 30 on fresh ones")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--blocks 12 0", "--blocks"),
        ("--block-scale -1.0", "--block-scale"),
        ("--block-kinds", "--block-kinds without a value"),
        ("--block-tasks 0", "--block-tasks"),
        ("--block-tasks 1000", "use a multiple of --block-batch-size"),
        ("--block-rate 0", "--block-rate"),
        ("--wave-layers 0", "--wave-layers"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, wrong, message):
    assert icl.main(["--out", str(tmp_path / "run"), *wrong.split()]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_recent_experiments_are_a_group():
    config = Config(out="", experiment=("recent",))
    check(config)
    assert selected_experiments(config) == list(RECENT) and len(RECENT) == 5

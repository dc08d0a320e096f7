"""launch.icl's comparison of online estimators, end to end on tiny streams: rows, figure, report, resuming."""

import json

import pytest

from launch.icl import __main__ as icl

FLAGS = "--experiment mesa --dim 2 --test-tasks 60 --validation-tasks 40 --tokens 300 --devices 1".split()
TASKS = {"regression", "ill-conditioned", "drift", "dynamics"}


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that the tests share."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert icl.main(["--out", str(out), *FLAGS]) == 0
    return out


@pytest.mark.slow
def test_mesa_layers_are_ridge_and_stay_exact_in_float32(finished):
    told = rows(finished)
    assert all(row["experiment"] == "mesa" for row in told) and {row["task"] for row in told} == TASKS | {"rounding"}
    for task in TASKS:
        loss = {row["predictor"]: row["loss"] for row in told if row["task"] == task}
        mesa = [loss["mesa, recursion"], loss["mesa, conjugate gradients"]]
        assert mesa[0] == pytest.approx(mesa[1], rel=1e-9)
        assert (mesa[0] == pytest.approx(loss["ridge"], rel=1e-9)) == (task != "drift")
        assert mesa[0] < loss["linear attention"]
    rounding = {(row["inputs"], row["forgetting"], row["predictor"]): row for row in told if row["task"] == "rounding"}
    assert len(rounding) == 3 * 2 * 3 + 2
    for (_, _, predictor), row in rounding.items():
        assert predictor == "mesa, Sherman-Morrison" or (row["float32_error"] < 1e-3 and row["fails_at"] is None)


@pytest.mark.slow
def test_the_report_has_the_table_and_the_figure_and_a_resumed_run_leaves_them_as_they_are(finished):
    report = (finished / "report.md").read_text()
    assert "## Layers as online estimators" in report and "| mesa, recursion |" in report and "figures/mesa.png" in report
    assert (finished / "figures/mesa.png").read_bytes().startswith(b"\x89PNG")
    told = rows(finished)
    assert icl.main(["--out", str(finished), "--resume"]) == 0
    assert (finished / "report.md").read_text() == report and rows(finished) == told


def test_wrong_flags_are_refused(tmp_path, capsys):
    assert icl.main(["--out", str(tmp_path / "run"), "--experiment", "mesa", "--tokens", "0"]) == 2
    assert "--tokens 0" in capsys.readouterr().err.replace("\n", " ")

"""The experiment on Markov chains, end to end on tiny sequences: rows, exactness, phases, resuming, refusals."""

import json

import pytest
from launch.icl.config import RECENT, Config, effort, selected_experiments
from launch.icl.sections.markov import phases

from launch.icl import __main__ as icl

SMALL = (
    "--experiment markov --chain-length 8 --steps 40 --batch-size 16 --validation-tasks 50 --test-tasks 100 --devices 1".split()
)


@pytest.mark.slow
def test_a_run_has_its_rows_and_figures_and_nothing_left_to_do(tmp_path):
    out = tmp_path / "run"
    assert icl.main(["--out", str(out), *SMALL]) == 0
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert {row["experiment"] for row in rows} == {"markov"} and {row["context"] for row in rows} == {8}
    by_name = {row["predictor"]: row for row in rows}
    assert list(by_name) == ["uniform", "unigram", "bigram", "cache row", "constructed", "trained"]
    assert [(row["symbols_before"], row["seed"]) for row in rows if row["predictor"] == "trained"] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert by_name["constructed"]["loss"] == pytest.approx(by_name["bigram"]["loss"], rel=1e-5)
    assert by_name["constructed"]["max_difference"] < 1e-12 and by_name["cache row"]["max_difference"] < 1e-12
    assert by_name["cache row"]["count_difference"] < 1e-11  # read back through a logarithm
    assert abs(by_name["bigram"]["kl_bigram"]) < 1e-6 < by_name["unigram"]["kl_bigram"]
    report = (out / "report.md").read_text()
    assert "## Markov chains" in report
    for name in ("markov", "markov_attention"):
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG") and f"figures/{name}.png" in report
    (out / "report.md").unlink()
    assert icl.main(["--out", str(out), "--resume"]) == 0
    assert (out / "report.md").read_text() == report and json.loads((out / "results.json").read_text())["rows"] == rows


def test_it_belongs_to_the_recent_experiments_and_trains_for_4000_steps():
    assert "markov" in RECENT and "markov" in selected_experiments(Config(out="", experiment=("recent",)))
    assert effort(Config(out=""), "markov") == (4000, 2)


def test_phases_that_do_not_come_have_no_step():
    (found,) = phases([{"step": 0, "kl_bigram": [0.3], "kl_unigram": [0.2]}])
    assert (found.nearest, found.nearer) == (0, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--chain-states 1", "--chain-states 1"),
        ("--chain-length 1", "--chain-length 1"),
        ("--chain-alpha 0", "--chain-alpha 0"),
    ],
)
def test_wrong_flags_are_refused(tmp_path, capsys, wrong, message):
    assert icl.main(["--out", str(tmp_path / "run"), *wrong.split()]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()

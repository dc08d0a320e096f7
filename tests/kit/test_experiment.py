"""An experiment from flags to report: parts that are there are skipped, and what is refused, interrupted or diverges."""

import json
from dataclasses import dataclass, replace

import pytest

from jexplicit.runs.bounds import PositiveInt
from launch.kit.command import Preset
from launch.kit.experiment import Experiment
from launch.kit.rows import Column, read_results
from launch.kit.views import Lines, Section, Table


@dataclass(frozen=True)
class Config:
    """Squares of numbers."""

    out: str
    """Run folder."""
    numbers: tuple[PositiveInt, ...] = (1, 2, 3)
    """Which numbers."""
    resume: bool = False
    """Continue the run."""


CALLS: list[int] = []


def measure(config, folder):
    def square(n):
        CALLS.append(n)
        if n == 13:
            raise FloatingPointError("13 is bad luck: take another number")
        folder.log(event="squared", n=n)
        return [{"square": n * n, "sign": sign, "n": -1} for sign in ("+", "-")]  # the key's own value stands

    for n in config.numbers:
        yield {"n": n}, lambda n=n: square(n)


def check(config):
    if 5 in config.numbers:
        raise ValueError("--numbers 5: use another number")
    return replace(config, numbers=tuple(sorted(config.numbers)))


SQUARES = Experiment(
    "squares",
    Config,
    measure,
    views=[
        Section("Signs", [Table([Column("n", "n", "d"), Column("square", "square", "d")], {"sign": "+"}, note="All above 0.")]),
        Lines("squares", "n", "square", "sign"),
        Section("Nothing", [Table([Column("n", "n")])], {"sign": "none"}),
    ],
    presets={"tiny": Preset(Config("runs/tiny", (7,)), "one number.")},
    check=check,
    extend=("numbers",),
    title="Squares",
)


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def test_a_run_has_rows_report_figure_and_table(tmp_path, capsys):
    assert SQUARES.main(["--out", str(tmp_path), "--numbers", "3", "1"]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["n"], row["square"], row["sign"]) for row in rows] == [(1, 1, "+"), (1, 1, "-"), (3, 9, "+"), (3, 9, "-")]
    report = (tmp_path / "report.md").read_text()
    assert report.startswith(
        "# Squares\n\nSquares of numbers.\n\n## Signs\n\n| n | square |\n|---|---|\n| 1 | 1 |\n| 3 | 9 |\n\nAll "
    )
    assert "![squares](figures/squares.png)" in report and "Nothing" not in report
    assert (tmp_path / "figures" / "squares.png").read_bytes().startswith(b"\x89PNG")
    assert "9" in capsys.readouterr().out
    assert json.loads((tmp_path / "config.json").read_text())["launcher"] == "squares"


def test_parts_that_are_there_are_skipped_and_a_run_can_be_extended(tmp_path, capsys):
    assert SQUARES.main(["--out", str(tmp_path), "--numbers", "1"]) == 0
    assert SQUARES.main(["--out", str(tmp_path), "--numbers", "1", "2"]) == 2 and "--resume" in capsys.readouterr().err
    assert SQUARES.main(["--out", str(tmp_path), "--numbers", "1", "2", "--resume", "--json"]) == 0
    assert CALLS == [1, 2] and [row["n"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1, 1, 2, 2]
    report = (tmp_path / "report.md").read_text()
    assert SQUARES.main(["--out", str(tmp_path), "--resume"]) == 0  # the flags are those of the run
    assert CALLS == [1, 2] and (tmp_path / "report.md").read_text() == report
    assert [event["n"] for event in read_results(tmp_path).events("squared")] == [1, 2]


def test_what_is_refused_writes_nothing(tmp_path, capsys):
    for wrong, message in (("5", "--numbers 5"), ("0", "at least 1")):
        assert SQUARES.main(["--out", str(tmp_path / "run"), "--numbers", wrong]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_rows_before_a_divergence_have_their_report(tmp_path, capsys):
    assert SQUARES.main(["--out", str(tmp_path), "--numbers", "2", "13"]) == 2
    assert "13 is bad luck" in capsys.readouterr().err and "| 2 | 4 |" in (tmp_path / "report.md").read_text()


def test_a_preset_is_a_configuration(tmp_path, capsys):
    assert SQUARES.main(["--preset", "tiny", "--out", str(tmp_path), "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert not printed.err and [row["square"] for row in json.loads(printed.out)["rows"]] == [49, 49]

"""An experiment from flags to report, and its folder: one run at a time, rows whole or not at all."""

import functools
import json
import os
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
from files import put
from refusals import refused

from jexplicit.runs.files import PositiveInt, experiment_of, read_config, read_events, read_rows, read_run
from launch.kit.command import Preset
from launch.kit.experiment import Experiment, RunFolder
from launch.kit.views import Column, Lines, Table, section


@dataclass(frozen=True)
class Config:
    """Squares of numbers."""

    out: str
    numbers: tuple[PositiveInt, ...] = (1, 2, 3)
    steps: int = 10
    resume: bool = False


def measure(config, folder):
    def square(n):
        folder.log(event="squared", n=n)
        if n == 13:
            raise FloatingPointError("13 is bad luck: take another number")
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
        Table([Column("n", "n", "d"), Column("square", "square", "d")], {"sign": "+"}, note="All above 0."),
        Lines("squares", "n", "square", "sign"),
        section("Nothing", Table([Column("n", "n")]), sign="none"),
    ],
    presets={"tiny": Preset(Config("runs/tiny", (7,)), "one number.")},
    check=check,
    extend=("numbers",),
    title="Squares",
)


def test_a_run_has_rows_report_figure_and_table_and_a_continuation_measures_what_is_new(tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert SQUARES.main([*out, "--numbers", "3", "1"]) == 0 and "9" in capsys.readouterr().out
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["n"], row["square"], row["sign"]) for row in rows] == [(1, 1, "+"), (1, 1, "-"), (3, 9, "+"), (3, 9, "-")]
    report, table = (tmp_path / "report.md").read_text(), "| n | square |\n|---|---|\n| 1 | 1 |\n| 3 | 9 |\n\nAll "
    assert report.startswith(f"# Squares\n\nSquares of numbers.\n\n{table}")
    assert "![squares](figures/squares.png)" in report and "Nothing" not in report
    assert (tmp_path / "figures" / "squares.png").read_bytes().startswith(b"\x89PNG")
    assert SQUARES.main([*out, "--numbers", "1", "2"]) == 2 and "--resume" in capsys.readouterr().err
    assert SQUARES.main([*out, "--numbers", "1", "2", "--resume", "--json"]) == 0
    assert [row["n"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1, 1, 3, 3, 2, 2]
    report = (tmp_path / "report.md").read_text()
    assert SQUARES.main([*out, "--resume"]) == 0 and (tmp_path / "report.md").read_text() == report  # the flags of the run
    assert [event["n"] for event in read_events(tmp_path, "squared")] == [1, 3, 2]


def test_what_is_refused_writes_nothing_and_the_rows_before_a_divergence_have_their_report(tmp_path, capsys):
    for wrong, message in (("5", "--numbers 5"), ("0", "at least 1")):
        assert SQUARES.main(["--out", str(tmp_path / "run"), "--numbers", wrong]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert SQUARES.main(["--out", str(tmp_path), "--numbers", "2", "13"]) == 2
    assert "13 is bad luck" in capsys.readouterr().err and "| 2 | 4 |" in (tmp_path / "report.md").read_text()


def opened(path, *, resume: bool = False, extend: tuple[str, ...] = (), experiment: str = "lm", **changed) -> RunFolder:
    return RunFolder(path, Config(str(path), **changed), resume=resume, extend=extend, experiment=experiment)


def test_rows_are_written_as_they_come_and_found_again_and_the_command_has_the_flags_of_continuations(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["jexplicit lm", *"some --steps 3".split()])
    path, row = tmp_path / "runs" / "demo", {"name": "a", "shape": (2, 3), "rates": [1.0]}
    run = opened("~/runs/demo")
    run.add_rows([row])
    row["rates"].append(2.0)  # a caller cannot change the rows
    run.rows().clear()
    run.add_rows([{"name": "b"}, {"name": "c"}])
    assert [event["name"] for event in read_events("~/runs/demo", "row")] == ["a", "b", "c"]
    with pytest.raises(TypeError, match="not JSON serializable"):
        run.add_rows([{"name": "a"}, {"name": object()}])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # rows that come together are there all or none
        patch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
        run.add_rows([{"name": "d"}, {"name": "e"}])
    monkeypatch.setattr("sys.argv", ["jexplicit lm", *"some --resume --numbers 1".split()])
    rows = [{"name": "a", "shape": [2, 3], "rates": [1.0]}, {"name": "b"}, {"name": "c"}]  # as JSON has them
    assert rows == read_rows(path) == read_rows("~/runs/demo") == opened(path, resume=True).rows()
    command = json.loads((path / "environment.json").read_text())["command"]
    assert command == "jexplicit lm some --steps 3 --resume --numbers 1".split()


def test_a_run_is_continued_by_its_experiment_and_fields_to_extend_may_change(tmp_path):
    opened(tmp_path).add_rows([{"n": 1}])
    more = {"resume": True, "numbers": (1, 2, 4)}
    for options, said in (
        ({}, "already holds a run: add --resume"),
        ({"resume": True, "steps": 20}, r"was run with steps = 10 \(now 20\)"),
        (more, r"was run with numbers = \[1, 2, 3\] \(now \[1, 2, 4\]\)"),
        ({**more, "steps": 20, "extend": ("numbers",)}, "was run with steps = 10"),
        ({"resume": True, "experiment": "networks"}, "is a run of launch.lm; choose another --out"),
    ):
        refused(said, opened, tmp_path, **options)
    assert opened(tmp_path, **more, extend=("numbers",)).rows() == [{"n": 1}]
    opened(tmp_path, **more, steps=20, extend=("numbers", "steps"))
    config = {"out": str(tmp_path), "numbers": [1, 2, 4], "steps": 20, "resume": False}
    assert read_run(tmp_path, experiment="lm") == (config, [{"n": 1}])
    refused("is a run of launch.lm; this command reads runs of launch.x$", read_run, tmp_path, experiment="x")
    refused("no run at", read_run, tmp_path / "no", experiment="x")
    for place, name in (("launch.lm", "lm"), ("launch.beam", "beam"), ("notebook", "notebook")):
        assert experiment_of(type("Config", (), {"__module__": place})) == name


def test_an_out_that_is_no_folder_of_this_machine_or_has_other_files_is_refused_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("--out '': give a path", opened, "")
    refused("--out gs://bucket/run: give a path on this machine", opened, "gs://bucket/run")
    refused("--out ~nobody-of-this-name/run: .*give the whole path", opened, "~nobody-of-this-name/run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").write_text("")
    refused("cannot be written .*: choose another --out", opened, tmp_path / "run")
    for files in ({"thesis.tex": ""}, {"config.json": "{}", "model.safetensors": ""}, {"results.json": "{}"}):
        folder = tmp_path / "-".join(files)
        for name, text in files.items():
            put(folder / name, text)
        for resume in (False, True):
            said = f"is not the folder of a run and holds {', '.join(files)}: choose another --out"
            refused(said, opened, folder, resume=resume)
        assert {path.name: path.read_text() for path in folder.iterdir()} == files


def test_damaged_files_are_named_and_a_last_line_cut_short_is_dropped(tmp_path):
    again, metrics = functools.partial(opened, tmp_path, resume=True), tmp_path / "metrics.jsonl"
    readers = [again, lambda: read_run(tmp_path, "lm"), lambda: read_rows(tmp_path)]
    opened(tmp_path).add_rows([{"n": n} for n in range(3)])
    for text in ("", "[]", '{"rows": {}}', '{"rows": [1]}', "\xff"):
        (tmp_path / "results.json").write_text(text, encoding="latin-1")
        for read in readers:
            refused(r"results.json is damaged \(.*\): delete it and continue the run with --resume", read)
    (tmp_path / "results.json").unlink()
    whole = metrics.read_text()
    metrics.write_text(whole[:-5])
    assert [event["n"] for event in read_events(tmp_path, "row")] == [0, 1]
    again().log(event="row", n=7)  # on a line of its own
    assert [event["n"] for event in read_events(tmp_path, "row")] == [0, 1, 7] and again().rows() == []
    for damaged in ("1}", "3", ""):
        metrics.write_text(whole.replace("\n", f"\n{damaged}\n", 1))
        refused(r"metrics.jsonl, line 2, is damaged \(.*\): delete the line", lambda: read_events(tmp_path, "row"))
    for text in ("{", "null"):
        (tmp_path / "config.json").write_text(text)
        for read in (again, lambda: read_config(tmp_path)):
            refused(r"config.json is damaged \(.*\): restore it, or choose another --out", read)
    (tmp_path / "config.json").unlink()
    refused("has measurements and no config.json: restore it, or choose another --out", again)

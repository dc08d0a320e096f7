"""The run folder: rows come whole or not at all, and a continuation begins with them."""

import json
from dataclasses import dataclass

import pytest

from jexplicit.runs import folder as module
from jexplicit.runs.folder import RunFolder, read_events, read_rows


@dataclass(frozen=True)
class Config:
    out: str
    steps: int = 10


def opened(path, *, resume: bool = False, **changed) -> RunFolder:
    return RunFolder(path, Config(str(path), **changed), resume=resume)


def test_rows_are_written_as_they_come_and_found_again(tmp_path):
    run = opened(tmp_path)
    assert run.rows() == []
    run.add_row({"name": "a", "shape": (2, 3)})
    run.add_rows([{"name": "b"}, {"name": "c"}])
    rows = [{"name": "a", "shape": [2, 3]}, {"name": "b"}, {"name": "c"}]  # as JSON has them, in one process or many
    assert run.rows() == rows == read_rows(tmp_path) == opened(tmp_path, resume=True).rows()
    assert [event["name"] for event in read_events(tmp_path, "row")] == ["a", "b", "c"]


def test_rows_that_are_written_together_are_there_all_or_none(tmp_path, monkeypatch):
    run = opened(tmp_path)
    run.add_row({"name": "a"})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run.add_rows([{"name": "b"}, {"name": "c"}])
    monkeypatch.undo()
    assert opened(tmp_path, resume=True).rows() == [{"name": "a"}]


def test_a_caller_cannot_change_the_rows(tmp_path):
    run = opened(tmp_path)
    row = {"name": "a", "rates": [1.0]}
    run.add_row(row)
    row["rates"].append(2.0)
    run.rows().clear()
    assert run.rows() == [{"name": "a", "rates": [1.0]}]


def test_a_value_that_is_not_json_leaves_the_rows_as_they_were(tmp_path):
    run = opened(tmp_path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        run.add_rows([{"name": "a"}, {"name": object()}])
    assert run.rows() == [] and not (tmp_path / "results.json").exists()


def test_a_run_is_continued_with_resume_and_the_same_configuration_only(tmp_path):
    opened(tmp_path).log(event="begun")
    with pytest.raises(ValueError, match="already holds a run: add --resume"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"was run with steps = 10 \(now 20\)"):
        opened(tmp_path, resume=True, steps=20)
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 10

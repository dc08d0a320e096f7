"""launch.data: a folder beside the files of the results."""

import hashlib
from pathlib import Path

import pytest

from launch import data
from launch.data import DataSet, main

ROOT = Path(__file__).parents[2]
TEXTS = {"b.txt": b"two\n", "a.txt": b"one\n"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a set of two files, in the place of the real sets."""
    for name, text in TEXTS.items():
        (tmp_path / name).write_bytes(text)
    monkeypatch.setattr(data, "SETS", (DataSet(2, 8, hashlib.sha256(b"one\ntwo\n").hexdigest(), "*.txt"),))
    return tmp_path


def test_files_are_the_same_different_or_missing(folder, capsys, monkeypatch):
    monkeypatch.setenv("JEXPLICIT_DATA_DIR", str(folder))
    assert main([]) == 0 and "the same" in capsys.readouterr().out
    (folder / "a.txt").write_text("One\n")
    assert main([]) == 2 and "*.txt are not the files of the results" in capsys.readouterr().err
    (folder / "a.txt").unlink()
    assert main(["--folder", str(folder)]) == 2 and "1 of 2 files" in capsys.readouterr().out
    (folder / "b.txt").unlink()
    assert main(["--folder", str(folder)]) == 0 and "missing" in capsys.readouterr().out


def test_no_folder_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    assert main([]) == 2 and "give --folder DIR" in capsys.readouterr().err
    assert main(["--folder", str(tmp_path / "none")]) == 2 and "is no folder" in capsys.readouterr().err


def test_the_page_has_every_checksum():
    page = (ROOT / "docs" / "data.md").read_text()
    assert [one.pattern for one in data.SETS if f"`{one.sha256[:8]}…" not in page] == []

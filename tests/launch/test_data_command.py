"""launch.data: a folder beside the files of the results."""

import hashlib
from pathlib import Path

from launch import data

ROOT = Path(__file__).parents[2]


def test_files_are_the_same_different_or_missing(tmp_path, capsys, monkeypatch):
    """A set of two files, in the place of the real sets."""
    for name, text in (("b.txt", b"two\n"), ("a.txt", b"one\n")):
        (tmp_path / name).write_bytes(text)
    sha256 = hashlib.sha256(b"one\ntwo\n").hexdigest()
    monkeypatch.setattr(data, "SETS", f"2 8 {sha256} *.txt")
    monkeypatch.setenv("JEXPLICIT_DATA_DIR", str(tmp_path))
    assert data.main([]) == 0 and "the same" in capsys.readouterr().out
    (tmp_path / "a.txt").write_text("One\n")
    assert data.main([]) == 2 and "*.txt are not the files of the results" in capsys.readouterr().err
    (tmp_path / "a.txt").unlink()
    assert data.main(["--folder", str(tmp_path)]) == 2 and "1 of 2 files" in capsys.readouterr().out
    (tmp_path / "b.txt").unlink()
    assert data.main(["--folder", str(tmp_path)]) == 0 and "missing" in capsys.readouterr().out
    monkeypatch.delenv("JEXPLICIT_DATA_DIR")
    assert data.main([]) == 2 and "give --folder DIR" in capsys.readouterr().err
    assert data.main(["--folder", str(tmp_path / "none")]) == 2 and "is no folder" in capsys.readouterr().err


def test_the_page_has_every_checksum():
    page = (ROOT / "docs" / "data.md").read_text()
    sums = [line.split()[2] for line in data.SETS.strip().splitlines()]
    assert len(sums) > 10 and not [sha256 for sha256 in sums if f"`{sha256[:8]}…" not in page]

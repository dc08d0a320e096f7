"""The bench: a row for every case, equal work on both sides, and peers that are missing. No speed is asserted."""

import sys
from typing import get_args

import numpy as np
import pytest
from run_folders import rows

from launch import bench
from launch.kit.views import only

FIELDS = {"case", "size", "seconds", "peer", "peer_seconds", "ratio", "repeats", "skipped"}
OF_KENLM = "ngram-fit", "ngram-scoring"


@pytest.fixture(autouse=True)
def _without_peers(monkeypatch, tmp_path):
    """No program and no module that may be installed."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(bench, "optional", lambda name: sys.modules.get(name) if name == "kenlm" else None)
    monkeypatch.delitem(sys.modules, "kenlm", raising=False)


def main(out, *flags):
    return bench.main(["--preset", "tiny", "--repeats", "1", "--out", str(out), "--quiet", *flags])


@pytest.mark.slow
def test_the_tiny_preset_has_a_row_for_every_case_and_names_missing_peers(tmp_path):
    assert bench.main(["--preset", "tiny", "--out", str(tmp_path)]) == 0
    found, report = rows(tmp_path), (tmp_path / "report.md").read_text()
    assert [row["case"] for row in found] == list(get_args(bench.Case))
    for row in found:
        assert row.keys() - {"perplexity"} == FIELDS and row["seconds"] > 0 and f"| {row['case']} |" in report
        assert ("perplexity" in row) == row["case"].endswith("-fit")
    assert {row["peer"] for row in found if row["ratio"]} == {"numpy.bincount"}
    missing = {"ngram-fit": "lmplz is not on PATH", "ngram-scoring": "kenlm is not installed"}
    assert {case: only(found, case=case)["skipped"] for case in OF_KENLM} == missing
    assert all(name in report for name in missing.values())


def test_results_of_both_sides_are_equal_before_they_are_timed(tmp_path, monkeypatch, capsys):
    pair = bench.counting(bench.PRESETS["tiny"].config, 200)
    assert pair.theirs and pair.tolerance == 0
    np.testing.assert_array_equal(*map(np.asarray, (pair.ours(), pair.theirs())))
    assert main(tmp_path / "run", "--cases", "counting", "--sizes", "200") == 0
    (row,) = rows(tmp_path / "run")
    assert row["ratio"] == pytest.approx(row["seconds"] / row["peer_seconds"])
    tables = bench.bincount_tables
    monkeypatch.setattr(bench, "bincount_tables", lambda x, N: tables(x, N)[::-1])
    assert main(tmp_path / "other", "--cases", "counting") == 2
    assert "counting: results of up to" in capsys.readouterr().err and not (tmp_path / "other" / "results.json").exists()

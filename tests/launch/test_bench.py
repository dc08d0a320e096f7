"""The bench: a row for every case, equal work on both sides, and peers that are missing. No speed is asserted."""

import math
import os
import shutil
import sys
import types

import numpy as np
import pytest
from run_folders import rows

from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.arpa import read_arpa, write_arpa
from jexplicit.lm.evaluation import score
from launch import bench
from launch.kit.views import where

FIELDS = {"case", "size", "seconds", "peer", "peer_seconds", "ratio", "repeats", "skipped"}
OF_KENLM = "ngram-fit", "ngram-scoring"


@pytest.fixture(autouse=True)
def _without_peers(monkeypatch, tmp_path):
    """No program and no module that may be installed."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(bench, "optional", lambda name: sys.modules.get(name) if name == "kenlm" else None)
    monkeypatch.delitem(sys.modules, "kenlm", raising=False)


class Model:
    """What stands for `kenlm.Model`."""

    def __init__(self, path, config):
        self.model, self.tokenizer = read_arpa(path)

    def score(self, sentence):
        return float(score(self.model, encode_documents(self.tokenizer, [sentence])).sum()) / math.log(10)


@pytest.fixture
def kenlm(monkeypatch, tmp_path):
    """Stand-ins for KenLM: its program copies the n-gram model of this project."""
    train, _, tokenizer = bench.read_text((), 300, 500)
    write_arpa(tmp_path / "own.arpa", bench.fit_tokens("ngram", train, tokenizer, 0), tokenizer)
    program = tmp_path / "bin" / "lmplz"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ -s "$4" ] && {shutil.which("cp", path=os.defpath)} {tmp_path}/own.arpa "$6"\n')
    program.chmod(0o755)
    module = types.SimpleNamespace(Model=Model, Config=types.SimpleNamespace, ARPALoadComplain=types.SimpleNamespace(NONE=0))
    monkeypatch.setitem(sys.modules, "kenlm", module)
    return program


def main(out, *flags):
    return bench.main(["--preset", "tiny", "--repeats", "1", "--out", str(out), "--quiet", *flags])


@pytest.mark.slow
def test_the_tiny_preset_has_a_row_for_every_case(tmp_path):
    assert bench.main(["--preset", "tiny", "--out", str(tmp_path / "run")]) == 0
    found, report = rows(tmp_path / "run"), (tmp_path / "run" / "report.md").read_text()
    assert [row["case"] for row in found] == list(bench.CASES)
    for row in found:
        assert row.keys() - {"perplexity"} == FIELDS and row["seconds"] > 0 and f"| {row['case']} |" in report
        assert ("perplexity" in row) == row["case"].endswith("-fit")
    assert all((tmp_path / "run" / name).exists() for name in ("config.json", "environment.json", "figures/ratios.png"))
    assert {row["peer"] for row in found if row["ratio"]} == {"numpy.bincount", "optax.adagrad", "three einsums"}


def test_results_of_both_sides_are_equal_before_they_are_timed(tmp_path, monkeypatch, capsys):
    cases: tuple[bench.Case, ...] = ("counting", "adagrad", "attention")
    for case in cases:
        pair = bench.CASES[case](bench.PRESETS["tiny"].config, 200, tmp_path)
        assert pair.theirs and pair.tolerance is not None and pair.tolerance <= 1e-4
        np.testing.assert_allclose(*map(np.asarray, (pair.ours(), pair.theirs())), rtol=0, atol=1e-4)
    assert main(tmp_path / "run", "--cases", *cases, "--sizes", "200") == 0
    assert all(row["ratio"] == pytest.approx(row["seconds"] / row["peer_seconds"]) for row in rows(tmp_path / "run"))
    tables = bench.bincount_tables
    monkeypatch.setattr(bench, "bincount_tables", lambda x, N: tables(x, N)[::-1])
    assert main(tmp_path / "other", "--cases", "counting") == 2
    assert "counting: results of up to" in capsys.readouterr().err and not (tmp_path / "other" / "results.json").exists()


def test_a_missing_peer_is_named_and_a_run_is_extended_by_it(tmp_path, capsys):
    assert main(tmp_path / "run", "--cases", "ngram-fit") == 0
    assert main(tmp_path / "run", "--cases", *OF_KENLM, "--resume") == 0
    missing = {"ngram-fit": "lmplz is not on PATH", "ngram-scoring": "kenlm is not installed"}
    found, report = rows(tmp_path / "run"), (tmp_path / "run" / "report.md").read_text()
    assert {row["case"]: row["skipped"] for row in found} == missing and all(name in report for name in missing.values())
    assert all(row["peer"].startswith("KenLM") and row["ratio"] is row["peer_seconds"] is None for row in found)


def test_beside_kenlm_both_have_the_same_text_and_perplexity(tmp_path, kenlm, capsys):
    assert main(tmp_path / "run", "--cases", *OF_KENLM) == 0
    found = rows(tmp_path / "run")
    assert all(row["ratio"] > 0 and row["skipped"] is None for row in found)
    (fit,) = where(found, case="ngram-fit")
    assert fit["perplexity"] == pytest.approx(fit["peer_perplexity"], rel=1e-4)
    kenlm.write_text("#!/bin/sh\necho no discounts >&2\nexit 3\n")
    assert main(tmp_path / "other", "--cases", "ngram-fit") == 2
    assert "lmplz ended with status 3: no discounts" in capsys.readouterr().err

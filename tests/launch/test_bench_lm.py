"""The bench of whole language models: its rows, and KenLM's programs as stand-ins that write what the real ones print."""

import json
import os
import shutil
import stat

import numpy as np
import pytest

from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.training_text import TrainingText
from launch.bench import lm
from launch.bench.run import main
from launch.bench.streams import zipf_stream

TEXT = "\n\n".join(
    f"the {a} sat on a {b} and the {b} ran to the {a}" for a in ("cat", "dog", "hen") for b in ("mat", "hill") * 20
)
JOB = {"seconds", "cpu_seconds", "fit_seconds", "eval_seconds", "peak_bytes", "perplexity"}


def programs(folder, **bodies):
    """Executable scripts of these names."""
    folder.mkdir()
    for name, body in bodies.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def kenlm(tmp_path, monkeypatch):
    """Stand-ins for KenLM: each needs what the one before has written; the perplexity is the number of lines."""
    found = programs(
        tmp_path / "bin",
        lmplz='while [ $# -gt 0 ]; do case $1 in --text) t=$2;; --arpa) a=$2;; esac; shift; done; cp "$t" "$a"',
        build_binary='cp "$1" "$2"',
        query='[ -s "$3" ] || exit 1; echo "Perplexity including OOVs:\t$(wc -l)"; echo "Tokens: 3"',
    )
    monkeypatch.setenv("PATH", f"{found}{os.pathsep}{os.environ['PATH']}")
    return found


def run(tmp_path, *flags):
    (tmp_path / "train.txt").write_text(TEXT)
    (tmp_path / "dev.txt").write_text(TEXT[: len(TEXT) // 4])
    flags = ("--train", str(tmp_path / "train.txt"), "--dev", str(tmp_path / "dev.txt"), "--vocab-size", "64", *flags)
    code = main(["lm", "--rounds", "1", "--out", str(tmp_path / "out"), *flags])
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"] if code == 0 else []
    return code, {row["method"]: row for row in rows}


@pytest.mark.slow
def test_rows_have_seconds_memory_and_ratios_to_kenlm_of_the_same_run(tmp_path, kenlm):
    code, rows = run(tmp_path)
    assert code == 0 and set(rows) == {"ngram", "mixture", "kenlm"}
    for name, row in rows.items():
        assert set(row) >= {*JOB, "tokens_per_second", "scored_per_second", "ratio"}
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["fit_seconds"]) and row["peak_bytes"] > 0
        assert row["ratio"] == pytest.approx(rows["kenlm"]["fit_seconds"] / row["fit_seconds"])
        assert row["seconds"] >= row["fit_seconds"] + row["eval_seconds"] or name == "kenlm"
    assert rows["kenlm"]["perplexity"] == TEXT[: len(TEXT) // 4].count("\n\n") + 1  # a line for every document
    assert 1 < rows["ngram"]["perplexity"] < 64


@pytest.mark.slow
def test_without_its_programs_there_is_no_ratio_and_a_word_about_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lm.shutil, "which", lambda name: None)
    code, rows = run(tmp_path, "--rows", "contexts-4")
    assert code == 0 and set(rows) == {"ngram", "mixture"} and all(row["ratio"] is None for row in rows.values())
    assert "lmplz, build_binary, query" in " ".join("".join(capsys.readouterr()).split())


def test_a_job_of_its_own_process_has_the_perplexity_of_this_one(tmp_path):
    rng = np.random.default_rng(0)
    train, dev = (np.concatenate([[0], *[[*rng.integers(1, 9, 30), 0] for _ in range(n)]]).astype(np.uint8) for n in (30, 5))
    np.save(tmp_path / "train.npy", train)
    np.save(tmp_path / "dev.npy", dev)
    job = lm.our_job("ngram", (), 9, tmp_path)
    expected = evaluate(fit_model("ngram", TrainingText(train, 9, eos=True)).model, dev).perplexity
    assert job.perplexity == pytest.approx(expected, rel=1e-6)  # float32 log-probabilities, added in float64
    assert job.seconds > job.fit_seconds + job.eval_seconds and job.peak_bytes > 10**7
    assert job.generated_per_second is not None and job.generated_per_second > 1


def test_sentences_are_the_documents(tmp_path):
    lm.write_sentences(tmp_path / "text", np.array([0, 5, 6, 0, 7, 0], np.uint8))
    assert (tmp_path / "text").read_text() == "5 6\n7\n"


def test_a_program_that_fails_says_why(tmp_path):
    folder = programs(tmp_path / "bin", fails="echo first >&2; echo no memory left >&2; exit 3")
    with pytest.raises(ValueError, match="fails ended with status 3: no memory left"):
        lm.run_program([str(folder / "fails")])
    spent = lm.run_program([str(programs(tmp_path / "more", works="cat") / "works")], stdin=folder / "fails")
    assert spent.out.startswith("#!/bin/sh") and spent.peak_bytes > 0


@pytest.mark.skipif(not all(map(shutil.which, lm.PROGRAMS)), reason="needs KenLM's programs on PATH")
@pytest.mark.parametrize("tokens", [50, 40_000])  # of 50, lmplz alone finds no discounts
def test_kenlm_itself_agrees(tmp_path, tokens):
    train, dev = (zipf_stream(np.random.default_rng(seed), n, 2000) for seed, n in enumerate((tokens, 2000)))
    dev = dev[np.isin(dev, train)]  # KenLM has one word for all that are new
    for name, stream in (("train", train), ("dev", dev)):
        lm.write_sentences(tmp_path / f"{name}.txt", stream)
    job = lm.kenlm_job(tmp_path)
    assert job.fit_seconds > 0 and job.peak_bytes > 10**6
    if tokens > 50:
        ours = evaluate(fit_model("ngram", TrainingText(train, 2000, eos=True)).model, dev).perplexity
        assert job.perplexity == pytest.approx(ours, rel=0.01)  # KenLM keeps some of the probability for unknown words


def test_another_query_is_refused(tmp_path, kenlm):
    (tmp_path / "train.txt").write_text("1 2\n")
    (tmp_path / "dev.txt").write_text("1 2\n")
    (kenlm / "query").write_text("#!/bin/sh\necho done\n")
    with pytest.raises(ValueError, match="query printed 'done' and no perplexity"):
        lm.kenlm_job(tmp_path)


def test_dev_text_alone_is_refused(tmp_path, capsys):
    assert main(["lm", "--dev", "text", "--out", str(tmp_path / "out")]) == 2
    assert "--dev without --train" in capsys.readouterr().err and not (tmp_path / "out").exists()

"""The bench of language models: jobs in processes of their own, and KenLM's programs or stand-ins for them."""

import os
import shutil

import numpy as np
import pytest

from jexplicit.experiments.results import read_rows
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.training_text import TrainingText
from launch.bench import lm
from launch.bench.__main__ import main
from launch.bench.shared.streams import zipf_stream

pytestmark = pytest.mark.slow


def programs(folder, **bodies):
    """Executable scripts of these names."""
    folder.mkdir()
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
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


@pytest.mark.parametrize("peer", ["kenlm", "none"])
def test_language_models_beside_kenlm(peer, tmp_path, kenlm):
    documents = [f"the cat number {n % 17} sat on mat {n % 5}\n" for n in range(700)]
    for name, some in (("train", documents), ("dev", documents[:70])):
        (tmp_path / name).write_text("".join(some))
    flags = f"--train {tmp_path}/train --dev {tmp_path}/dev --vocab-size 64 --rows contexts-4 --rounds 1 --peer {peer}"
    assert main(["lm", "--out", str(tmp_path / "out"), *flags.split()]) == 0
    rows = {row["method"]: row for row in read_rows(tmp_path / "out")}
    assert set(rows) == {"ngram", "mixture", *["kenlm"] * (peer == "kenlm")}
    for name, row in rows.items():
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["fit_seconds"]) and row["peak_bytes"] > 0
        assert row["scored_per_second"] == pytest.approx(row["scored"] / row["eval_seconds"])
        assert row["ratio"] is None or row["ratio"] == pytest.approx(rows["kenlm"]["fit_seconds"] / row["fit_seconds"])
        assert row["seconds"] >= row["fit_seconds"] + row["eval_seconds"] or name == "kenlm"
        assert (row["generated_per_second"] is None) == (name == "kenlm") and (row["ratio"] is None) == (peer == "none")
    assert 1 < rows["ngram"]["perplexity"] < 64 and (peer == "none" or rows["kenlm"]["perplexity"] == 70)  # a line a document


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
    folder = programs(tmp_path / "bin", fails="echo first >&2; echo no memory left >&2; exit 3", works="cat")
    with pytest.raises(ValueError, match="fails ended with status 3: no memory left"):
        lm.run_program(str(folder / "fails"))
    spent = lm.run_program(str(folder / "works"), stdin=folder / "fails")
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
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("1 2\n")
    (kenlm / "query").write_text("#!/bin/sh\necho done\n")
    with pytest.raises(ValueError, match="query printed 'done' and no perplexity"):
        lm.kenlm_job(tmp_path)

"""launch.lm on a small text: rows, report, tests, tables of every kind, continuations. Float32 sums: to 1e-6, tables: 1e-4."""

import functools
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from files import put
from lm_runs import DEV, METHODS, OPTIONS, SMALL, TRAIN, dev_stream, finished, run, small_text, text_flags
from run_folders import folder, interrupted, made, main, rows, without_costs

import jexplicit
from jexplicit import evaluate, load_model
from jexplicit.counts import count_sparse, merge_counts, write_tables
from jexplicit.data import encode_documents
from jexplicit.data.streams import read_shards
from jexplicit.data.text import Corpus, text_corpus
from jexplicit.data.tokenizers import Tokenizer, train_tokenizer
from jexplicit.lm import training as lm_training
from jexplicit.lm.counted.model import furthest_token
from jexplicit.lm.fit import ORDER
from jexplicit.lm.text_model import FROM_COUNTS, load_row
from jexplicit.lm.training import sweep_tables
from jexplicit.nn import training
from jexplicit.runs.files import read_events
from launch import cli, sample
from launch.kit.views import where
from launch.lm import run as job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOKENS = [(features, context) for features in ("sum", "cat") for context in (1, 2)]
COUNTED = ("context-mixing", "none", furthest_token("word"))


def by_model(out: Path) -> dict[tuple, dict]:
    """Rows by method, features and context, and by history where a model reads the text before."""
    return {
        (r["method"], r["features"], r["context"], *([] if r["history"] == "none" else [r["history"]])): r for r in rows(out)
    }


def test_every_model_has_a_row_with_the_promised_fields_and_is_loaded_with_it():
    models, report = list(by_model(finished())), (finished() / "report.md").read_text()
    assert models[:2] == [("unigram", "none", 1), ("bigram", "none", 1)]
    assert models[2:-3] == [(method, *m) for method in METHODS[:-2] for m in TOKENS if method != "optimum" or m[1] == 1]
    assert models[-3:] == [("ngram", "none", ORDER), COUNTED, (*COUNTED, "all")] and len(models) == len(rows(finished()))
    assert {*METHODS, "unigram", "bigram", "delta"} == set(jexplicit.lm.METHODS)
    promised = "scalars tables train_tokens dev_tokens vocab_size count_seconds solve_seconds eval_seconds".split()
    for row in rows(finished()):
        assert set(promised) <= set(row) and f" | {row['dev_perplexity']:.1f} | " in report
        assert 1 < row["train_perplexity"] < 60 and 1 < row["dev_perplexity"] < 60 and row["seconds"] >= 0 < row["bytes"]
        assert row["dev_loss"] == pytest.approx(np.log(row["dev_perplexity"])) and row["peak_bytes"] > 10**7
        loaded = load_model(finished(), **{field: row[field] for field in ("method", "features", "context", "history")})
        assert loaded.about == {**row, "command": ANY}
        if row["features"] == "cat" or row["method"] == "ngram":
            found = evaluate(loaded.model, dev_stream(loaded.tokenizer)).perplexity
            assert found == pytest.approx(row["dev_perplexity"], rel=1e-6)
    figures = [f"(figures/{name}.png)" for name in ("perplexity", "scaling", "loss_curves")]
    for part in (*figures, "## Methods\n", "## Sampled text\n", "**Warning:** 1.7% of the dev documents"):
        assert part in report


def test_curves_have_every_sweep_and_epoch_and_rows_have_their_end_and_a_cold_start_turns_towards_the_explicit_solution():
    row, sweeps = by_model(finished())["iterative-scaling", "cat", 2], read_events(finished(), "sweep")
    sweeps = where(sweeps, features="cat", context=2)
    assert [e["sweep"] for e in sweeps] == [*range(row["sweeps"] + 1)] and row["discount"] > 0
    assert np.log(sweeps[-1]["train_perplexity"]) + row["penalty"] <= np.log(sweeps[0]["train_perplexity"]) + 1e-6
    assert sweeps[-1]["dev_perplexity"] == pytest.approx(row["dev_perplexity"], rel=1e-6)
    cold, warm = (where(read_events(finished(), "epoch"), method=m, features="cat", context=2) for m in ("cold", "warm"))
    row = by_model(finished())["warm", "cat", 2]
    assert [e["epoch"] for e in warm] == [0, 1, 2, 3] and row["epochs"] == 3 and row["positions_per_second"] > 0
    assert all(row[f"last_{part}_perplexity"] == warm[-1][f"{part}_perplexity"] for part in ("train", "dev"))
    assert row["best_epoch"] == np.argmin([e["dev_perplexity"] for e in warm])
    explicit = by_model(finished())["explicit", "cat", 2]  # where the warm start begins, by other float32 operations
    assert warm[0]["dev_perplexity"] == pytest.approx(explicit["dev_perplexity"], rel=1e-5)
    assert warm[0]["explicit_distance"] < 1e-6 and warm[0]["explicit_agreement"] == 1
    assert cold[0]["explicit_agreement"] < cold[-1]["explicit_agreement"] < 1
    assert abs(cold[0]["explicit_cosine"]) < 0.3 < cold[-1]["explicit_cosine"] < 1  # random tables; after three epochs


def test_a_run_interrupted_anywhere_resumes_to_the_same_rows(tmp_path, monkeypatch):
    """Within an epoch, between sweeps, and in the row of a counted model."""
    monkeypatch.setattr(training, "_steps_between_checks", 2)
    monkeypatch.setattr(lm_training, "train", functools.partial(training.train, checkpoint_seconds=0.0))
    monkeypatch.setattr(lm_training, "sweep_tables", functools.partial(sweep_tables, checkpoint_seconds=0.0))
    methods = ["cold", "iterative-scaling", "context-mixing"]
    flags = [*text_flags(), *SMALL, *OPTIONS, "--methods", *methods, "--tables", "dense"]
    for place, name, stop in (
        (lm_training, "make_batch", 14),
        (lm_training, "evaluate", 17),
        (job.evaluation, "evaluate", 2),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, interrupted(getattr(place, name), stop))
            assert run(tmp_path, *flags, "--resume") == 130
    assert run(tmp_path, "--resume") == 0
    wanted = ("unigram", "bigram", *methods)
    assert without_costs(tmp_path) == [row for row in without_costs(finished()) if row["method"] in wanted]


def test_a_run_on_the_embedded_corpus_names_its_python_and_says_what_to_try_next(tmp_path, monkeypatch, capsys):
    docs = Corpus("docs", TRAIN[:200], DEV[:20])
    monkeypatch.setattr("jexplicit.data.text.docs_corpus", lambda **_: docs)
    monkeypatch.setattr(sys, "argv", ["jexplicit lm"])
    assert run(tmp_path / "a run", *SMALL, *"--context 1 --features cat --samples 0".split()) == 0
    assert {row["corpus_about"] for row in rows(tmp_path / "a run")} == {f"documentation of Python {platform.python_version()}"}
    suggested = capsys.readouterr().err.partition("next: ")[2].splitlines()
    assert len(suggested) == 2
    for line in suggested:
        program, *arguments = shlex.split(line)
        assert Path(program).name == "jexplicit" and cli.main(arguments) == 0


def test_ends_of_documents_are_predicted_and_sampled_and_a_sample_of_dev_is_scaled_to_all_of_it(tmp_path, capsys):
    flags = [*text_flags(), *SMALL, *"--features cat --context 2 --eos --samples 0".split()]
    sampled = "--methods explicit --tables sparse --dev-sample 50".split()
    generalising = "--methods log-linear context-mixing --history all --calibration-positions 300".split()
    assert run(tmp_path / "sampled", *flags, *sampled) == run(tmp_path / "run", *flags, *generalising) == 0
    (*_, row), found = rows(tmp_path / "sampled"), by_model(tmp_path / "run")
    positions = row["dev_tokens"] + len(DEV)  # the ends of documents, too
    assert row["dev_positions"] == 50 < positions
    nats = row["dev_loss"] * positions + np.log(256) * 15  # a uniform code for 13 bytes of two unknown words, and their ends
    assert row["bits_per_byte"] == pytest.approx(nats / np.log(2) / sum(len(line.encode()) for line in DEV))
    assert all(1 < row["dev_perplexity"] < 50 for row in found.values())
    assert all(load_model(tmp_path / "run", method=method).model.eos for method in ("log-linear", "context-mixing"))
    assert sample.main(["--run", str(tmp_path / "sampled"), "--length", "400"]) == 0
    assert len(capsys.readouterr().out.split()) < 400  # it ended the document


def test_the_reference_perplexities_on_ten_million_words(data_dir, tmp_path):
    text = f"--train {data_dir}/babylm_like/train/*.train --dev {data_dir}/babylm_like/dev/mixed_2024.dev"
    assert main(f"lm --preset babylm --methods explicit --context 1 2 {text}", tmp_path) == 0
    dev = {(r["features"], r["context"]): r["dev_perplexity"] for r in rows(tmp_path) if r["method"] == "explicit"}
    # measured independently with another tokenizer training: the tokens differ by some per cent, the formulas do not
    for model, perplexity in {("cat", 1): 132.8, ("cat", 2): 201.2, ("sum", 2): 241.5}.items():
        assert dev[model] == pytest.approx(perplexity, rel=0.04), model


def test_a_dry_run_estimates_and_writes_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("\n".join(TRAIN[:50]) + "\n")
    monkeypatch.chdir(tmp_path)

    def estimate(flags: str) -> dict:
        capsys.readouterr()
        assert main(f"lm --train a.txt {flags} --dry-run --json", Path("run")) == 0
        return json.loads(capsys.readouterr().out)

    found = estimate("--methods ngram --tokenizer word")  # read as a whole: no estimates
    assert (found["documents"], found["tokens"], found["tables"]) == (45, 45 * 12, "sparse")
    assert found["memory_bytes"] > found["disk_bytes"] > 0
    assert estimate("--methods context-mixing --tokenizer char")["memory_bytes"] > found["memory_bytes"]
    assert estimate("--methods cold optimum --context 1 --batch-size 100 --tokenizer word")["tables"] == "dense"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


# The test text


def test_a_finished_run_is_tested_later_the_best_on_dev_of_each_method_and_history_on_every_file_by_itself(
    tmp_path, monkeypatch, capsys
):
    texts, out = (small_text(40, seed=2), [*small_text(30, seed=3), *DEV[-2:]]), tmp_path / "run"
    files = [str(put(tmp_path / f"{n}.test", "\n".join(lines) + "\n")) for n, lines in enumerate(texts)]
    flags = "--methods explicit context-mixing --features cat --history none document --samples 0".split()
    assert run(out, *text_flags(), *SMALL, *flags) == 0 and not [row for row in rows(out) if "test_loss" in row]
    with monkeypatch.context() as patch:
        patch.setattr(job.evaluation, "document_losses", interrupted(job.evaluation.document_losses, 4))
        assert run(out, "--resume", "--test", *files) == 130
    assert sum("test_loss" in row for row in rows(out)) == 1
    assert run(out, "--resume") == 0
    monkeypatch.setattr(job.evaluation, "document_losses", None)  # nothing is measured a second time
    assert run(out, "--resume", "--samples", "0") == 0
    assert run(out, "--resume", "--test", files[0]) == 2  # another text
    assert "was started on another test text, sha256" in " ".join(capsys.readouterr().err.split())
    found = rows(out)
    measured = [row for row in found if "test_loss" in row]
    expected = [(method, "none") for method in ("unigram", "bigram", "explicit", "context-mixing")]
    assert [(row["method"], row["history"]) for row in measured] == [*expected, ("context-mixing", "document")]
    explicit = [row for row in found if row["method"] == "explicit"]
    assert len(explicit) == 2 and "test_loss" in min(explicit, key=lambda row: row["dev_perplexity"])
    report = (out / "report.md").read_text()
    assert "| test | test nats | ± |" in report and "| 0.test |" in report
    for row in measured:
        saved = load_row(out, row)
        parts = [evaluate(saved.model, encode_documents(saved.tokenizer, lines)) for lines in texts]
        positions = sum(part.positions for part in parts)
        assert (row["test_positions"], row["test_documents"]) == (positions, 40 + 32)
        assert row["test_loss"] == pytest.approx(sum(part.nll for part in parts) / positions, rel=1e-6)
        assert row["test_perplexity"] == pytest.approx(np.exp(row["test_loss"]))
        for n, part in enumerate(parts):  # the interrupted one has measured its first file twice
            own = where(read_events(out, "test"), method=row["method"], history=row["history"], file=f"{n}.test")
            assert own[-1]["test_loss"] == pytest.approx(part.loss, rel=1e-6) and own[-1]["test_positions"] == part.positions


def test_the_last_tenth_is_tested_by_models_of_all_before_it(tmp_path):
    """As if the two last tenths had been cut off by hand; the model that is tested is that of --split end."""
    text = "\n".join(TRAIN[:200])
    (tmp_path / "play.txt").write_text(text)
    flags = ["--train", f"{tmp_path}/play.txt", *"--documents file --tokenizer char --samples 0".split()]
    flags += "--methods ngram context-mixing --history none --split".split()
    assert run(tmp_path / "tested", *flags, "dev-test") == run(tmp_path / "end", *flags, "end") == 0
    for row, end in zip(rows(tmp_path / "tested"), rows(tmp_path / "end"), strict=True):
        # characters are numbered by their counts in train, and numbers divide cells in halves that count for each other
        off = 0.05 if row["method"] == "context-mixing" else 1e-6
        assert row["test_loss"] == pytest.approx(end["dev_loss"], rel=off)
        assert row["test_positions"] == end["dev_positions"] and row["test_documents"] == 1
        assert row["test_loss_se"] > 0 and row["train_tokens"] + row["dev_tokens"] == end["train_tokens"]  # over blocks
        assert row["dev_tokens"] == pytest.approx(len(text) / 10, abs=2) and row["dev_loss"] != row["test_loss"]


# Text in shards, and tables of every kind

FLAGS = "--context 1 2 --train-sample 500 --samples 0"
PERPLEXITIES = ("train_perplexity", "dev_perplexity")


def text() -> Path:
    return put(folder() / "lines.txt", "\n".join(TRAIN))


def shards() -> Path:
    return made(f"shards --train {text()} --tokenizer word --shard-tokens 1000")


def dense() -> list[dict]:
    return rows(made(f"lm --train {text()} --tokenizer word {FLAGS}"))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_tables_of_every_kind_have_the_same_perplexities(kind, tmp_path):
    out = tmp_path / "run"
    assert main(f"lm --corpus shards:{shards()} --tables {kind} {FLAGS}", out) == 0
    assert len(found := rows(out)) == 6
    for row, same in zip(found, dense(), strict=True):
        for part in (*PERPLEXITIES, "bits_per_byte", "word_perplexity", "unknown_share"):
            assert row[part] == pytest.approx(same[part], rel=1e-4)
        equal = ("method", "features", "context", "train_tokens", "dev_tokens")
        assert [row[name] for name in equal] == [same[name] for name in equal]
    saved, best = load_model(out), min(found, key=lambda row: row["dev_perplexity"])
    dev = encode_documents(saved.tokenizer, list(text_corpus((str(text()),), ()).dev))
    assert evaluate(saved.model, dev).perplexity == pytest.approx(best["dev_perplexity"], rel=1e-4)
    if kind == "sparse":  # which saves its counts
        (out / "results.json").unlink()
        assert main("lm --resume", out) == 0
        assert [row["dev_perplexity"] for row in rows(out)] == [row["dev_perplexity"] for row in found]


def test_counts_beside_the_shards_are_taken_and_another_tokenizer_is_refused(tmp_path, capsys):
    """As launch.beam leaves them: made here without Beam, from two parts of the text."""
    tokenizer, stream = Tokenizer.load(shards() / "tokenizer.model"), read_shards(shards() / "train")[:]
    middle, N = int(np.flatnonzero(stream == 0)[100]), tokenizer.vocab_size
    counts = merge_counts(*(count_sparse(part, context=2, vocab_size=N) for part in (stream[: middle + 1], stream[middle:])))
    (beside := tmp_path / "shards").mkdir()
    for part in ("train", "dev", "tokenizer.model"):
        (beside / part).symlink_to(shards() / part)
    (beside / "counts").mkdir()
    write_tables(beside / "counts", counts, tokenizer=tokenizer.sha256)
    line = f"lm --corpus shards:{beside} --tables sparse {FLAGS}"
    assert main(line, tmp_path / "run") == 0
    found = [row["dev_perplexity"] for row in rows(tmp_path / "run")]
    assert found == pytest.approx([row["dev_perplexity"] for row in dense()], rel=1e-4)
    part = next((beside / "counts").glob("*.npz"))
    part.write_bytes(part.read_bytes()[:-9])
    assert main(line, tmp_path / "again") == 2
    (beside / "tokenizer.model").unlink()
    train_tokenizer(["other words"], kind="word").save(beside / "tokenizer.model")
    assert main(line, tmp_path / "mixed") == 2
    assert "holds tokens of another tokenizer" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("tables", ["sparse", "dense"])
def test_two_processes_serve_every_method_of_counts_as_one_does(tables, tmp_path):
    methods = [*FROM_COUNTS, *(["ngram"] if tables == "sparse" else [])]
    flags = f"--train {text()} --tokenizer word --context 1 2 --tables {tables} --train-sample 500 --samples 0 --devices 2"
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    for name, command in (("one", [sys.executable, "-m", "launch.lm"]), ("two", ["launch/local.sh", "2"])):
        line = [*command, *flags.split(), "--methods", *methods, "--out", str(tmp_path / name)]
        done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert {row["method"] for row in rows(tmp_path / "two")} == set(methods)
    for ours, theirs in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        for name in ("method", "features", "context", "train_positions", "dev_positions", "train_tokens"):
            assert ours[name] == theirs[name]
        for name in PERPLEXITIES:  # float32 sums of blocks that begin at other contexts
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6)

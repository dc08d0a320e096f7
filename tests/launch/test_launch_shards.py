"""launch.lm on text in shards, with tables of every kind: the numbers of a run in memory.

Tables are float32, and sums of 10^3 terms of them are compared: rounding stays below 10^3 x 6e-8.
"""

import functools
from pathlib import Path

import numpy as np
import pytest
from lm_runs import TRAIN
from run_folders import folder, made, main, rows

from jexplicit import evaluate, load_model
from jexplicit.counts.pairs import count_sparse
from jexplicit.counts.tables import merge_counts, write_table, write_tables_index
from jexplicit.data import encode_documents
from jexplicit.data.corpora import text_corpus
from jexplicit.data.shards import read_shards
from jexplicit.data.tokenizers import Tokenizer, train_tokenizer

pytestmark = pytest.mark.slow

FLAGS = "--radius 1 2 --train-sample 500 --scaling-sample 100 --samples 0"


@functools.cache
def text() -> Path:
    (folder() / "lines.txt").write_text("\n".join(TRAIN))
    return folder() / "lines.txt"


def shards() -> Path:
    return made(f"shards --train {text()} --tokenizer word --shard-tokens 1000")


def dense() -> list[dict]:
    return rows(made(f"lm --train {text()} --tokenizer word {FLAGS}"))


def linked(path):
    """The shards without what lies beside them."""
    path.mkdir()
    for part in ("train", "dev", "tokenizer.model"):
        (path / part).symlink_to(shards() / part)
    return path


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_tables_of_every_kind_have_the_same_perplexities(kind, tmp_path):
    out = tmp_path / "run"
    assert main(f"lm --corpus shards:{shards()} --tables {kind} {FLAGS}", out) == 0
    expected = {(row["method"], row["features"], row["radius"]): row for row in dense()}
    found = rows(out)
    assert len(found) == 6
    for row in found:
        same = expected[row["method"], row["features"], row["radius"]]
        for part in ("train_perplexity", "dev_perplexity", "bits_per_byte", "word_perplexity", "unknown_share"):
            assert row[part] == pytest.approx(same[part], rel=1e-4)
        assert (row["train_tokens"], row["dev_tokens"]) == (same["train_tokens"], same["dev_tokens"])
    assert (out / "report.md").exists()
    load_model(out).save(tmp_path / "model.safetensors")
    best = min(found, key=lambda row: row["dev_perplexity"])
    for saved in (load_model(out), load_model(tmp_path / "model.safetensors")):
        assert {name: saved.about[name] for name in ("method", "features", "radius")}.items() <= best.items()
        dev = encode_documents(saved.tokenizer, list(text_corpus((str(text()),), ()).dev))
        assert evaluate(saved.model, dev).perplexity == pytest.approx(best["dev_perplexity"], rel=1e-4)
    if kind == "sparse":  # which saves its counts
        (out / "results.json").unlink()
        assert main("lm --resume", out) == 0
        assert [row["dev_perplexity"] for row in rows(out)] == [row["dev_perplexity"] for row in found]


def test_counts_beside_the_shards_are_taken(tmp_path):
    """As launch.beam leaves them: made here without Beam, from two parts of the text."""
    tokenizer, stream = Tokenizer.load(shards() / "tokenizer.model"), read_shards(shards() / "train")[:]
    middle, N = int(np.flatnonzero(stream == 0)[100]), tokenizer.vocab_size
    counts = merge_counts(*(count_sparse(part, radius=2, vocab_size=N) for part in (stream[: middle + 1], stream[middle:])))
    beside = linked(tmp_path / "shards")
    (beside / "counts").mkdir()
    for k, C in enumerate(counts, 1):
        write_table(beside / "counts", k, C)
    write_tables_index(beside / "counts", radius=2, tokenizer=tokenizer.sha256)
    line = f"lm --corpus shards:{beside} --tables sparse {FLAGS}"
    assert main(line, tmp_path / "run") == 0
    found = [row["dev_perplexity"] for row in rows(tmp_path / "run")]
    assert found == pytest.approx([row["dev_perplexity"] for row in dense()], rel=1e-4)
    part = next((beside / "counts").glob("*.npz"))
    part.write_bytes(part.read_bytes()[:-9])
    assert main(line, tmp_path / "again") == 2


def test_shards_beside_another_tokenizer_are_refused(tmp_path, capsys):
    mixed = linked(tmp_path / "mixed")
    (mixed / "tokenizer.model").unlink()
    train_tokenizer(["other words"], kind="word").save(mixed / "tokenizer.model")
    assert main(f"lm --corpus shards:{mixed} {FLAGS}", tmp_path / "run") == 2
    assert "holds tokens of another tokenizer" in " ".join(capsys.readouterr().err.split())

"""launch.lm on text in shards, with tables of every kind: the numbers of a run in memory.

Tables are float32, and sums of 10^3 terms of them are compared: rounding stays below 10^3 x 6e-8.
"""

import numpy as np
import pytest
from run_folders import rows

from jexplicit import evaluate, load_model
from jexplicit.counts.pairs import count_sparse
from jexplicit.counts.tables import merge_counts, write_tables, write_tables_index
from jexplicit.data import encode_documents
from jexplicit.data.corpora import text_corpus
from jexplicit.data.shards import Shards, read_shards
from jexplicit.data.tokenizers import Tokenizer, train_tokenizer
from launch import shards
from launch.lm import __main__ as lm

pytestmark = pytest.mark.slow

FLAGS = "--radius 1 2 --train-sample 500 --scaling-sample 100 --samples 0".split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Lines of words that depend on each other."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("text") / "text.txt"
    words = rng.zipf(1.5, (300, 12)) % 40
    words[:, 1::2] = (words[:, ::2] + rng.integers(0, 3, (300, 6))) % 40
    path.write_text("\n".join(" ".join(f"w{w}" for w in line) for line in words))
    return path


@pytest.fixture(scope="module")
def folder(text):
    """Its shards."""
    flags = ["--tokenizer", "word", "--shard-tokens", "1000"]
    assert shards.main(["--train", str(text), "--out", str(text.parent / "shards"), *flags]) == 0
    return text.parent / "shards"


@pytest.fixture(scope="module")
def dense(text):
    assert lm.main(["--train", str(text), "--tokenizer", "word", "--out", str(text.parent / "dense"), *FLAGS]) == 0
    return rows(text.parent / "dense")


def linked(folder, path):
    """The shards without what lies beside them."""
    path.mkdir()
    for part in ("train", "dev", "tokenizer.model"):
        (path / part).symlink_to(folder / part)
    return path


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_tables_of_every_kind_have_the_same_perplexities(kind, text, dense, folder, tmp_path):
    out = tmp_path / "run"
    assert lm.main(["--corpus", f"shards:{folder}", "--tables", kind, "--out", str(out), *FLAGS]) == 0
    expected = {(row["method"], row["features"], row["radius"]): row for row in dense}
    found = rows(out)
    assert len(found) == 6
    for row in found:
        same = expected[row["method"], row["features"], row["radius"]]
        for part in ("train_perplexity", "dev_perplexity", "bits_per_byte", "word_perplexity", "unknown_share"):
            assert row[part] == pytest.approx(same[part], rel=1e-4)
        assert (row["train_tokens"], row["dev_tokens"]) == (same["train_tokens"], same["dev_tokens"])
    assert (out / "report.md").exists() and not (out / "checkpoints" / "counting").exists()
    load_model(out).save(tmp_path / "model.safetensors")
    best = min(found, key=lambda row: row["dev_perplexity"])
    for saved in (load_model(out), load_model(tmp_path / "model.safetensors")):
        assert {name: saved.about[name] for name in ("method", "features", "radius")}.items() <= best.items()
        dev = encode_documents(saved.tokenizer, list(text_corpus((str(text),), ()).dev))
        assert evaluate(saved.model, dev).perplexity == pytest.approx(best["dev_perplexity"], rel=1e-4)
    if kind == "sparse":  # which saves its counts
        (out / "results.json").unlink()
        assert lm.main(["--out", str(out), "--resume"]) == 0
        assert [row["dev_perplexity"] for row in rows(out)] == [row["dev_perplexity"] for row in found]


def test_text_in_shards_is_not_read_again_for_what_is_known(folder, tmp_path, monkeypatch):
    read, slice_of = [], Shards.__getitem__

    def reading(stream, where):
        tokens = slice_of(stream, where)
        read.append(len(tokens) / len(stream) if stream.folder.name == "train" else 0)
        return tokens

    monkeypatch.setattr(Shards, "__getitem__", reading)
    flags = [*FLAGS, "--tables", "dense", "--features", "sum", "cat"]
    assert lm.main(["--corpus", f"shards:{folder}", "--out", str(tmp_path / "run"), *flags]) == 0
    # once to count; once for each of the 4 models at K = 1, which compares the counts; twice for each of the 2 at K = 2, and
    # twice for the scaling assumption of both, which draw positions
    assert round(sum(read)) == 1 + 4 + 2 * 2 + 2


def test_counts_beside_the_shards_are_taken(dense, folder, tmp_path):
    """As launch.beam leaves them: made here without Beam, from two parts of the text."""
    tokenizer, stream = Tokenizer.load(folder / "tokenizer.model"), read_shards(folder / "train")[:]
    middle, N = int(np.flatnonzero(stream == 0)[100]), tokenizer.vocab_size
    counts = merge_counts(*(count_sparse(part, radius=2, vocab_size=N) for part in (stream[: middle + 1], stream[middle:])))
    beside = linked(folder, tmp_path / "shards")
    (beside / "counts").mkdir()
    write_tables(beside / "counts", counts)
    write_tables_index(beside / "counts", radius=2, tokenizer=tokenizer.sha256)
    flags = ["--corpus", f"shards:{beside}", "--tables", "sparse", *FLAGS]
    assert lm.main(["--out", str(tmp_path / "run"), *flags]) == 0
    found = [row["dev_perplexity"] for row in rows(tmp_path / "run")]
    assert found == pytest.approx([row["dev_perplexity"] for row in dense], rel=1e-4)
    part = next((beside / "counts").glob("*.npz"))
    part.write_bytes(part.read_bytes()[:-9])
    assert lm.main(["--out", str(tmp_path / "again"), *flags]) == 2


def test_methods_of_sparse_rows_need_no_dense_tables(text, tmp_path):
    flags = ["--train", str(text), "--tokenizer", "word", "--methods", "ngram", *FLAGS]
    assert lm.main([*flags, "--out", str(tmp_path / "dense"), "--tables", "dense"]) == 0
    assert lm.main([*flags, "--out", str(tmp_path / "auto")]) == 0
    for one, other in zip(rows(tmp_path / "auto"), rows(tmp_path / "dense"), strict=True):
        assert (one["tables"], other["tables"]) == ("sparse", "dense") and one["method"] == other["method"]
        assert one["dev_perplexity"] == pytest.approx(other["dev_perplexity"], rel=1e-4)


def test_shards_beside_another_tokenizer_are_refused(folder, tmp_path, capsys):
    mixed = linked(folder, tmp_path / "mixed")
    (mixed / "tokenizer.model").unlink()
    train_tokenizer(["other words"], kind="word").save(mixed / "tokenizer.model")
    assert lm.main(["--corpus", f"shards:{mixed}", "--out", str(tmp_path / "run"), *FLAGS]) == 2
    assert "holds tokens of another tokenizer" in " ".join(capsys.readouterr().err.split())

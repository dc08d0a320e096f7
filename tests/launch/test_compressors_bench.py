"""The bench of lossless compressors: texts whose bits are known, the split of launch.lm, and what is refused."""

import math

import numpy as np
import pytest

from jexplicit.experiments.results import read_rows
from launch.bench import compressors
from launch.bench.__main__ import main
from launch.lm.config import Config
from launch.lm.text import read_corpus

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
CASES = [
    *compressors.STANDARD.items(),
    *((f"PPMd {order}", lambda data, order=order: compressors.ppmd(order, data)) for order in compressors.ORDERS),
]


@pytest.fixture(params=CASES, ids=[name for name, _ in CASES])
def compress(request):
    name, found = request.param
    if name.startswith("PPMd"):
        pytest.importorskip("pyppmd")
    return found


def run(tmp_path, *flags):
    assert main(["compressors", *flags, "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    return {row["method"]: row for row in read_rows(tmp_path / "run")}


def test_random_bytes_need_eight_bits_each(compress):
    train, dev = RNG.bytes(20_000), RNG.bytes(20_000)
    # no code is shorter on average, and each of these loses less than 5 % on what it cannot predict
    assert 0.999 < compressors.added_bytes(compress, train, dev) / len(dev) < 1.05


def test_a_copy_of_the_training_text_needs_nearly_nothing(compress):
    passage = RNG.bytes(1_000)
    assert compressors.added_bytes(compress, passage * 20, passage * 10) < 0.05 * 10_000


def test_equally_likely_letters_need_the_logarithm_of_their_number(tmp_path):
    text = "".join(RNG.choice(list("abcdefghijklmnoß"), 60_000))
    (tmp_path / "text.txt").write_text(text)
    rows = run(tmp_path, "--train", str(tmp_path / "text.txt"))
    train, dev = text[:54_000], text[54_000:]
    assert set(rows) >= {"xz -9e", "bzip2"}
    for name, row in rows.items():
        # ß is two bytes, the second of them certain; each compressor loses less than 10 % on what it cannot predict
        assert 3.98 < row["bits_per_character"] < 4.4, name
        assert (row["dev_characters"], row["dev_bytes"]) == (6_000, len(dev.encode()))
        assert row["train_bytes"] == len(train.encode()) and row["compressed"] > row["dev_compressed"] > 0
        assert row["bits_per_byte"] == pytest.approx(8 * row["dev_compressed"] / row["dev_bytes"])
        assert row["nats_per_character"] == pytest.approx(row["bits_per_character"] * math.log(2))
    assert (tmp_path / "run" / "report.md").read_text().count("| bzip2 |") == 1


def test_the_split_is_that_of_language_models_and_dev_text_comes_after_train(tmp_path):
    train, dev = tmp_path / "train.txt", tmp_path / "dev.txt"
    train.write_text("a line\nanother line of text\n" * 50)
    dev.write_text("a line of dev\n")
    corpus = read_corpus(Config(out=str(tmp_path), corpus="text", train=(str(train),), documents="file", split="end"))
    alone, beside = run(tmp_path, "--train", str(train)), run(tmp_path / "both", "--train", str(train), "--dev", str(dev))
    assert alone["bzip2"]["dev_characters"] == len(corpus.dev[0]) and alone["bzip2"]["train_bytes"] == len(corpus.train[0])
    assert beside["bzip2"]["dev_bytes"] == len("a line of dev") and beside["bzip2"]["train_bytes"] == 50 * 28 - 1


def test_without_pyppmd_the_remedy_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "text.txt").write_text("some text " * 100)
    assert set(run(tmp_path, "--train", str(tmp_path / "text.txt"))) == set(compressors.STANDARD)
    assert "without pyppmd there is no PPMd: pip install pyppmd" in " ".join(capsys.readouterr().err.split())

"""Text of every form through the commands and the estimator: records, other tokenizers, characters as one document."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from run_folders import rows

import jexplicit
from launch import sample, score, shards
from launch.lm import __main__ as lm

pytestmark = pytest.mark.slow

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
FAST = ["--samples", "0", "--radius", "1", "--features", "cat"]


def texts(seed: int, number: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 9))) for _ in range(number)]


TRAIN, DEV = texts(0, 200), texts(1, 30)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.jsonl").write_text("".join(json.dumps({"body": t, "id": n}) + "\n" for n, t in enumerate(TRAIN)))
    pyarrow.parquet.write_table(pyarrow.table({"body": DEV, "id": [f"d{n}" for n in range(30)]}), folder / "dev.parquet")
    (folder / "dev.txt").write_text("\n\n".join(DEV))
    return folder


def test_shards_of_records_are_those_of_lines(files, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(TRAIN))
    assert shards.main(["--out", str(tmp_path / "a"), "--train", str(tmp_path / "train.txt"), "--tokenizer", "word"]) == 0
    flags = ["--train", str(files / "train.jsonl"), "--field", "body", "--tokenizer", str(tmp_path / "a")]
    assert shards.main(["--out", str(tmp_path / "b"), *flags]) == 0
    for name in ("tokenizer.model", "train/00000.tokens", "dev/00000.tokens"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_run_with_the_tokenizer_of_another_library(files, tmp_path, capsys):
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer, own.decoder = tokenizers.pre_tokenizers.ByteLevel(), tokenizers.decoders.ByteLevel()
    own.train_from_iterator(TRAIN, tokenizers.trainers.BpeTrainer(vocab_size=60, show_progress=False))
    own.save(str(tmp_path / "tokenizer.json"))
    flags = ["--train", str(files / "train.jsonl"), "--field", "body", "--tokenizer", str(tmp_path / "tokenizer.json")]
    out, export = tmp_path / "run", tmp_path / "model.safetensors"
    assert lm.main(["--out", str(out), *flags, *FAST, "--methods", "bigram"]) == 0
    jexplicit.load_model(out).save(export)
    assert rows(out)[0]["vocab_size"] == own.get_vocab_size() + 2
    assert jexplicit.load_model(export).tokenizer == jexplicit.load_model(out).tokenizer
    capsys.readouterr()
    answers = []
    for source in (out, export):
        assert sample.main(["--run", str(source), "--prompt", "the cat ", "--length", "4"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] and answers[0].startswith("the cat ")


def test_texts_are_strings_and_files_are_paths(files, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TRAIN))
    options: Any = {"method": "bigram", "tokenizer": "word"}
    own = jexplicit.fit(TRAIN, **options).tokenizer
    models = [
        jexplicit.fit(TRAIN, **options),
        jexplicit.fit((text for text in TRAIN), **options),
        jexplicit.fit(tmp_path / "a.txt", **options),
        jexplicit.fit([tmp_path], **options),
        jexplicit.fit([files / "train.jsonl"], field="body", **options),
        jexplicit.fit([Path(files, "*.jsonl")], field="body", method="bigram", tokenizer=own),
    ]
    assert len({model.perplexity(DEV) for model in models}) == 1


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("the cat", {}, r"the string 'the cat' instead of texts: pass a list, \[text\], or a pathlib.Path"),
        ([], {}, "no texts: pass at least one string"),
        (["", ""], {"tokenizer": "word"}, "no text in 2 documents"),
        (["   "], {"method": "bigram"}, "no text in 1 documents"),
        (["the cat", 7], {}, r"text 1 is int '7': .*pass either strings"),
        (["the cat", Path("a.txt")], {}, r"text 1 is PosixPath 'a.txt': .*pass either strings.*not both"),
        (["the cat"], {"field": "text"}, "field='text', documents='line' with strings"),
        (["the cat"], {"method": "magic"}, "method 'magic': choose one of"),
        (["the cat"], {"epoch": 3}, "option epoch, which method 'context-mixing' does not use: choose from contexts, gates"),
        (["the cat"], {"method": "explicit", "radius": 0}, "radius=0: give a whole number at least 1"),
        (["the cat"], {"tokenizer": "syllable"}, "no tokenizer at syllable"),
        (Path("gone.txt"), {}, "no such file: 'gone.txt'"),
    ],
)
def test_bad_texts(given, options, message):
    with pytest.raises(ValueError, match=message):
        jexplicit.fit(given, **options)


def test_bad_requests():
    model = jexplicit.fit(TRAIN[:20], "bigram", tokenizer="word")
    for ask in (model.score, model.perplexity):
        with pytest.raises(ValueError, match="a text of 7 characters instead of documents"):
            ask("the cat")
    assert repr(model.tokenizer).startswith("Tokenizer(word, ") and len(repr(model)) < 1000
    for nothing in ([], [""], ["", " "]):
        with pytest.raises(ValueError, match=f"no token in {len(nothing)} texts: give some text"):
            model.perplexity(nothing)
    with pytest.raises(ValueError, match="top=0: ask for at least one token"):
        model.next_token("the", top=0)
    with pytest.raises(ValueError, match="temperature -1"):
        model.generate("the", temperature=-1)
    assert model.score([]) == [] and [len(p) for p in model.score(["", " "])] == [0, 0]
    p = [p for _, p in model.next_token("the", top=1000)]
    assert len(p) == model.tokenizer.vocab_size and sum(p) == pytest.approx(1, abs=1e-5)  # float32


# A text of characters as one document: its last part is dev, histories by windows


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """The run, its dev text, and how many characters that has."""
    path, rng = tmp_path_factory.mktemp("characters"), np.random.default_rng(0)
    words = ["to be", "or not", "that is", "the question", "whether", "nobler", "in the mind", "to suffer"]
    text = "".join(words[i] + rng.choice([" ", ", ", "\n"]) for i in rng.integers(len(words), size=700))
    cut = int(0.9 * len(text))
    (path / "play.txt").write_text(text)
    (path / "dev.txt").write_text(text[cut:])
    flags = f"--train {path}/play.txt --documents file --split end --tokenizer char --methods context-mixing"
    more = "--radius 1 --samples 0 --history none window:64"
    assert lm.main([*flags.split(), *more.split(), "--out", str(path / "run")]) == 0
    return path / "run", path / "dev.txt", len(text) - cut


def test_every_character_of_the_last_part_is_predicted_by_every_history(play, capsys):
    out, dev, characters = play
    found = {row["history"]: row for row in rows(out) if row["method"] == "context-mixing"}
    assert set(found) == {"none", "window:64"} and found["window:64"]["dev_loss"] != found["none"]["dev_loss"]
    for history, row in found.items():
        assert row["dev_positions"] == row["dev_characters"] == characters
        assert row["bits_per_character"] == pytest.approx(row["dev_loss"] / np.log(2))
        assert row["scalars"] > 100
        run = ["--run", str(out), "--method", "context-mixing", "--history", history]
        capsys.readouterr()
        assert score.main([*run, "--text", str(dev), "--documents", "file", "--json"]) == 0
        scored = json.loads(capsys.readouterr().out)
        assert scored["token_count"] in (characters, characters - 1)  # the end of a file is no character of the document
        assert scored["perplexity"] == pytest.approx(row["dev_perplexity"], rel=0.02)
        assert sample.main([*run, "--prompt", "to be or not t", "--length", "20", "--temperature", "0"]) == 0
        assert capsys.readouterr().out.startswith("to be or not t")

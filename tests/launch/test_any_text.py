"""Text of every form through the commands and the estimator: the same numbers, and places by which a score is found again."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers

import jexplicit
from jexplicit.lm.generation import prompt_ids
from launch import sample, score, shards
from launch.lm import __main__ as lm
from launch.networks.__main__ import main as networks

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
FAST = ["--samples", "0", "--radius", "1", "--features", "cat", "--calibration-positions", "200"]


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


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    text = ["--train", str(files / "train.jsonl"), "--dev", str(files / "dev.parquet"), "--field", "body"]
    assert lm.main(["--out", str(out), *text, "--tokenizer", "word", *FAST, "--methods", "bigram"]) == 0
    return out


def row_of(out, method: str) -> dict:
    return next(row for row in json.loads((out / "results.json").read_text())["rows"] if row["method"] == method)


def lines_of(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_estimator_is_the_command(finished, files, tmp_path):
    method = "bigram"  # tests/launch/test_model_choice.py does so with a mixture
    options: Any = {"tokenizer": "word", "calibration_positions": 200, "field": "body"}
    model = jexplicit.fit(files / "train.jsonl", method, **options)
    row = row_of(finished, method)
    # the same sums over the same tables; the command spreads them over devices
    assert model.perplexity(DEV) == pytest.approx(row["dev_perplexity"], rel=1e-6)
    assert {name: model.about[name] for name in ("features", "radius", "history")} == {
        name: row[name] for name in ("features", "radius", "history")
    }
    scores = model.score([*DEV[:20], "", *DEV[20:]])
    assert len(scores) == 31 and not len(scores[20])
    assert np.exp(-np.concatenate(scores).mean()) == pytest.approx(row["dev_perplexity"], rel=1e-5)
    model.save(tmp_path / "model.safetensors")
    again = jexplicit.load_model(tmp_path / "model.safetensors")
    assert type(again) is type(jexplicit.load_model(finished)) is jexplicit.TextModel
    assert again.about == json.loads(json.dumps(model.about)) and again.tokenizer == model.tokenizer
    assert again.next_token("the cat", top=3) == model.next_token("the cat", top=3)
    assert again.generate("the cat", 5, seed=3) == model.generate("the cat", 5, seed=3)


def test_another_field_is_not_resumed(finished, capsys):
    assert lm.main(["--out", str(finished), "--resume", "--field", "id"]) == 2
    assert "was run with field = 'body' (now 'id')" in " ".join(capsys.readouterr().err.split())


def scored(finished, capsys, *flags) -> list[dict]:
    assert score.main(["--run", str(finished), "--method", "bigram", *map(str, flags)]) == 0
    return lines_of(capsys)


def test_scores_keep_lines_and_ids(finished, files, capsys):
    *plain, whole = scored(finished, capsys, "--text", files / "dev.txt")
    *records, also = scored(finished, capsys, "--text", files / "dev.parquet", "--field", "body", "--id-field", "id")
    assert [line["line"] for line in plain] == list(range(1, 60, 2))
    assert [(line["line"], line["id"]) for line in records] == [(n + 1, f"d{n}") for n in range(30)]
    assert [line["log_probability"] for line in plain] == [line["log_probability"] for line in records]
    assert whole == also and "file" not in plain[0]


def test_scores_by_token(finished, files, capsys):
    *documents, whole = scored(finished, capsys, "--text", files / "dev.txt")
    *tokens, also = scored(finished, capsys, "--text", files / "dev.txt", "--per", "token")
    expected = [
        {"line": line["line"], "token": token, "log_probability": p}
        for line in documents
        for token, p in zip(line["tokens"], line["log_probabilities"], strict=True)
    ]
    assert tokens == expected and also == whole


def test_standard_input_is_scored(finished, files, capsys, monkeypatch):
    def piped(data: bytes, *flags) -> list[dict]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        return scored(finished, capsys, "--text", "-", *flags)

    expected = scored(finished, capsys, "--text", files / "dev.txt")
    assert piped((files / "dev.txt").read_bytes()) == expected
    records = piped(b'\n{"t": "the cat", "n": [7]}\n', "--field", "t", "--id-field", "n")
    assert [(line["line"], line["id"]) for line in records[:-1]] == [(2, [7])]
    assert piped(b"the cat\nsat\n\nthe dog\n", "--documents", "paragraph")[1]["line"] == 4
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b" \n")))
    assert score.main(["--run", str(finished), "--text", "-"]) == 2
    assert "standard input holds no text" in capsys.readouterr().err


def test_a_file_named_twice_is_scored_twice(finished, files, capsys):
    path = str(files / "dev.txt")
    *lines, whole = scored(finished, capsys, "--text", path, path)
    assert whole["documents"] == len(lines) == 60
    assert {line["file"] for line in lines} == {path}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text", "-", "-"], "--text - -: standard input can be read only once"),
        (["--text", "{}/dev.txt", "--id-field", "id"], "--id-field id without --field"),
        (["--text", "{}/dev.parquet"], "has the fields body, id: name the one"),
        (["--text", "{}/dev.parquet", "--field", "text"], "row 1 has no field 'text': it has 'body', 'id'"),
        (["--text", "{}/dev.parquet", "--field", "body", "--id-field", "ids"], "has no field 'ids'"),
        (["--text", "{}/dev.txt", "--field", "body"], "is plain text, which has no field 'body'"),
    ],
)
def test_scores_refuse(finished, files, capsys, flags, message):
    assert score.main(["--run", str(finished), *(flag.format(files) for flag in flags)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("main", [lm.main, shards.main, lambda argv: networks(["mlp-lm", *argv])])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--field", "text"], "--field text without --train"),
        (["--documents", "file"], "--documents file without --train"),
        (["--train", "{}/train.jsonl"], "has the fields body, id: name the one that holds the text"),
        (["--train", "{}/train.jsonl", "--field", "text"], "line 1 has no field 'text': it has 'body', 'id'"),
        (["--train", "{}/train.jsonl", "--field", "id"], "field 'id' holds int '0', not text"),
        (["--tokenizer", "syllable"], "no tokenizer at syllable: choose bpe, word or char"),
        (["--tokenizer", "{}/dev.txt"], "no SentencePiece model"),
    ],
)
def test_bad_text_is_refused_before_any_work(main, files, tmp_path, capsys, flags, message):
    assert main(["--out", str(tmp_path / "out"), *(flag.format(files) for flag in flags)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


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
    assert lm.main(["--out", str(out), *flags, *FAST, "--methods", "bigram", "--export", str(export)]) == 0
    assert row_of(out, "bigram")["vocab_size"] == own.get_vocab_size() + 2
    assert jexplicit.load_model(export).tokenizer == jexplicit.load_model(out).tokenizer
    capsys.readouterr()
    answers = []
    for source in (out, export):
        assert sample.main(["--run", str(source), "--prompt", "the cat ", "--length", "4"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] and answers[0].startswith("the cat ")


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_the_last_space_of_a_prompt_stands_once(kind):
    """Prompt and continuation are the text of the tokens. Behind subwords, the next one brings the space."""
    model = jexplicit.fit(TRAIN, "bigram", tokenizer=kind)
    for prompt in ("", "the", "the ", "the cat  "):
        tokens, first = prompt_ids(model.tokenizer, prompt)
        ids = jexplicit.generate(jax.random.key(0), model.model, [tokens] * 2, 3, banned=(1,), first=[first] * 2)
        for text, drawn in zip(model.generate([prompt] * 2, 3), ids, strict=True):
            whole = model.tokenizer.decode([*tokens, *drawn])
            assert (f"{prompt.rstrip()} {text}" if kind == "word" and prompt.endswith(" ") else prompt + text) == whole
        assert isinstance(model.generate(prompt, 3), str)
        p = np.array([p for _, p in model.next_token(prompt, top=model.tokenizer.vocab_size)])
        assert abs(p.sum() - 1) < 1e-5  # float32
    pieces = [token for token, p in model.next_token("the ", top=1000) if p > 0]
    assert kind != "bpe" or pieces and all(piece.startswith("\N{LOWER ONE EIGHTH BLOCK}") for piece in pieces)


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
        (["the cat", 7], {}, "texts with int '7': pass strings"),
        (["the cat", Path("a.txt")], {}, r"texts with PosixPath 'a.txt': pass strings.*all alike"),
        (["the cat"], {"field": "text"}, "field='text', documents='line' with strings"),
        (["the cat"], {"method": "magic"}, "method 'magic': choose one of"),
        (["the cat"], {"epoch": 3}, "unknown option epoch: choose from .*epochs"),
        (["the cat"], {"radius": 0}, "radius=0: a context has at least one token"),
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

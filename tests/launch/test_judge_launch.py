"""launch.judge and launch.compare, end to end on a small run."""

import json

import numpy as np
import pytest

from launch import compare, export, score
from launch.judge import __main__ as judge
from launch.lm import __main__ as lm

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()


def sentences(seed: int, number: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 9))) for _ in range(number)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("\n".join(sentences(0, 300)))
    (folder / "dev.txt").write_text("\n".join(sentences(1, 40)))
    for paradigm, field, seed in (("order", "syntax", 2), ("number", "morphology", 3), ("gender", "morphology", 4)):
        pairs = [
            {"sentence_good": line, "sentence_bad": " ".join(sorted(line.split())), "field": field, "UID": paradigm}
            for line in sentences(seed, 10)
        ]
        (folder / f"{paradigm}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return folder


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """Two runs, of words and of characters."""
    folder = tmp_path_factory.mktemp("runs")
    shared = ["--train", f"{files}/train.txt", "--dev", f"{files}/dev.txt", "--radius", "1", "2", "--features", "cat"]
    for kind in ("word", "char"):
        assert lm.main([*shared, "--tokenizer", kind, "--samples", "0", "--out", str(folder / kind)]) == 0
    return folder


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


def test_a_row_per_model_and_paradigm_and_a_report(finished, files, tmp_path, capsys):
    out = tmp_path / "judge"
    given = ["--run", str(finished / "word"), "--pairs", f"{files}/*.jsonl", "--out", str(out)]
    assert judge.main([*given, "--method", "explicit", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["paradigm"], row["method"], row["radius"]) for row in rows(out)] == [
        (paradigm, "explicit", K) for K in (1, 2) for paradigm in ("gender", "number", "order")
    ]
    for row in rows(out):
        assert (
            row["pairs"] == 10 and 0 <= row["ties"] <= 1 and row["accuracy"] * 20 == pytest.approx(round(row["accuracy"] * 20))
        )
        assert row["field"] == ("syntax" if row["paradigm"] == "order" else "morphology")
    for model in printed["models"]:
        own = [row for row in rows(out) if row["radius"] == model["radius"]]
        assert model["accuracy"] == pytest.approx(np.mean([row["accuracy"] for row in own]))  # as many pairs of each
        assert model["fields"]["morphology"] == pytest.approx(
            np.mean([row["accuracy"] for row in own if "o" != row["paradigm"][0]])
        )
    assert (out / "figures" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "| gender | morphology | 10 |" in (out / "report.md").read_text()
    before = rows(out)
    assert judge.main([*given, "--resume", "--method", "explicit", "unigram"]) == 0
    assert rows(out)[: len(before)] == before and {row["method"] for row in rows(out)[len(before) :]} == {"unigram"}


def test_an_exported_model_is_judged_as_its_run(finished, files, tmp_path):
    file, accuracies = tmp_path / "model.safetensors", []
    assert export.main(["--run", str(finished / "word"), "--method", "explicit", "--radius", "2", "--out", str(file)]) == 0
    for n, source in enumerate(
        [["--run", str(file)], ["--run", str(finished / "word"), "--method", "explicit", "--radius", "2"]]
    ):
        assert judge.main([*source, "--pairs", str(files / "order.jsonl"), "--out", str(tmp_path / str(n))]) == 0
        accuracies.append([row["accuracy"] for row in rows(tmp_path / str(n))])
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--run nowhere --pairs {files}/order.jsonl", "no run at nowhere"),
        ("--run {word} --pairs {files}/train.txt", "train.txt, line 1, is no minimal pair"),
        ("--run {word} --pairs nowhere.jsonl", "no such file"),
        ("--run {word} --pairs {files}/order.jsonl --method warm", "no model with method warm"),
    ],
)
def test_bad_input_leaves_no_folder(flags, said, finished, files, tmp_path, capsys):
    given = flags.format(word=finished / "word", files=files).split()
    assert judge.main([*given, "--out", str(tmp_path / "out")]) == 2
    assert said in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "out").exists()


def test_models_of_two_tokenizers_are_compared_on_a_new_text(finished, files, capsys):
    runs, text = [str(finished / kind) for kind in ("word", "char")], str(files / "dev.txt")
    assert compare.main(["--run", *runs, "--text", text, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    lines = (files / "dev.txt").read_text().splitlines()
    for kind, row in zip(("word", "char"), printed["rows"], strict=True):
        best = min(rows(finished / kind), key=lambda row: row["dev_perplexity"])
        for field in ("bits_per_byte", "bits_per_character", "word_perplexity", "unknown_share"):
            assert row[field] == pytest.approx(best[field], rel=1e-5), field  # the same text as dev, summed in another order
        assert row["perplexity"] == pytest.approx(best["dev_perplexity"], rel=1e-5)
        assert row["positions"] == best["dev_tokens"]
    one, other = printed["rows"]
    assert (one["difference"], printed["documents"]) == (None, len(lines))
    assert other["difference"] == pytest.approx(other["bits_per_byte"] - one["bits_per_byte"])
    assert 0 < other["standard_error"] < 1


def test_chosen_models_are_compared_in_a_table(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    word, text = str(finished / "word"), tmp_path / "one.txt"
    text.write_text("the cat sat on the mat\n")
    assert compare.main(["--run", word, "--text", str(text), "--method", "explicit", "unigram"]) == 0
    table = capsys.readouterr().out
    assert "unigram" in table and "K = 2" in table and "±" not in table  # one document
    assert score.main(["--run", word, "--text", str(text), "--method", "unigram", "--json"]) == 0
    assert f"{json.loads(capsys.readouterr().out)['perplexity']:.2f}" in table
    assert compare.main(["--run", "nowhere", "--text", str(text)]) == 2
    assert "no run at nowhere" in capsys.readouterr().err

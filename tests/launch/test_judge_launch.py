"""launch.judge and launch.compare, end to end on a small run."""

import json

import numpy as np
import pytest

from launch import export
from launch.judge import run as judge
from launch.lm import run as lm

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

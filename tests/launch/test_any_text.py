"""Text of every form through the commands and the estimator: records, other tokenizers, characters as one document."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from lm_runs import TRAIN
from run_folders import main, rows
from tables import refuse

import jexplicit
from launch import sample, score

pytestmark = pytest.mark.slow


def records(folder: Path) -> str:
    (folder / "train.jsonl").write_text("".join(json.dumps({"body": text, "id": n}) + "\n" for n, text in enumerate(TRAIN)))
    return f"{folder}/train.jsonl"


def test_bad_texts():
    calls = [
        (r"the string 'the cat' instead of texts: pass a list, \[text\], or a pathlib.Path", "the cat", {}),
        ("no text in 0 documents: give some", [], {}),
        (r"text 1 is int '7': .*pass either strings", ["the cat", 7], {}),
        (r"text 1 is PosixPath 'a.txt': .*pass either strings.*not both", ["the cat", Path("a.txt")], {}),
        ("field='text', documents='line' with strings", ["the cat"], {"field": "text"}),
        ("method 'magic': choose one of", ["the cat"], {"method": "magic"}),
    ]
    refuse([(message, functools.partial(jexplicit.fit, given, **options)) for message, given, options in calls])


def test_every_character_of_the_last_part_of_a_document_is_predicted_by_every_history(tmp_path, capsys):
    out, dev, rng = tmp_path / "run", tmp_path / "dev.txt", np.random.default_rng(0)
    words = ["to be", "or not", "that is", "the question", "whether", "nobler", "in the mind", "to suffer"]
    text = "".join(words[i] + rng.choice([" ", ", ", "\n"]) for i in rng.integers(len(words), size=200))
    (tmp_path / "play.txt").write_text(text)
    dev.write_text(text[int(0.9 * len(text)) :])
    flags = f"--train {tmp_path}/play.txt --documents file --split end --tokenizer char --methods context-mixing"
    assert main(f"lm {flags} --radius 1 --samples 0 --history none window:64", out) == 0
    found = {row["history"]: row for row in rows(out) if row["method"] == "context-mixing"}
    assert set(found) == {"none", "window:64"} and found["window:64"]["dev_loss"] != found["none"]["dev_loss"]
    characters = len(dev.read_text())
    for history, row in found.items():
        assert row["dev_positions"] == row["dev_characters"] == characters
        assert row["bits_per_character"] == pytest.approx(row["dev_loss"] / np.log(2)) and row["scalars"] > 100
        run = ["--run", str(out), "--method", "context-mixing", "--history", history]
        capsys.readouterr()
        assert score.main([*run, "--text", str(dev), "--documents", "file", "--json"]) == 0
        scored = json.loads(capsys.readouterr().out)
        assert scored["token_count"] in (characters, characters - 1)  # the end of a file is no character of the document
        assert scored["perplexity"] == pytest.approx(row["dev_perplexity"], rel=0.02)
        assert sample.main([*run, "--prompt", "to be or not t", "--length", "20", "--temperature", "0"]) == 0
        assert capsys.readouterr().out.startswith("to be or not t")

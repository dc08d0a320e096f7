"""A text of characters as one document: its last part is dev, rows of words, and histories by windows."""

import json

import numpy as np
import pytest

from jexplicit.runs.results import read_rows
from launch import sample, score
from launch.lm import __main__ as lm

WORDS = ["to be", "or not", "that is", "the question", "whether", "nobler", "in the mind", "to suffer"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("characters")
    rng = np.random.default_rng(0)
    text = "".join(WORDS[i] + rng.choice([" ", ", ", "\n"]) for i in rng.integers(len(WORDS), size=700))
    (folder / "play.txt").write_text(text)
    cut = int(0.9 * len(text))
    (folder / "dev.txt").write_text(text[cut:])
    flags = f"--train {folder}/play.txt --documents file --split end --tokenizer char --methods mixture --radius 1 --samples 0"
    rows = "--rows contexts-4 words confidence --history none window:64 --calibration-positions 300"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JEXPLICIT_CACHE_DIR", str(folder / "cache"))
        assert lm.main([*flags.split(), *rows.split(), "--out", str(folder / "run")]) == 0
    return folder, len(text) - cut


def test_every_character_of_the_last_part_is_predicted_by_every_history(finished):
    folder, characters = finished
    rows = {row["history"]: row for row in read_rows(folder / "run") if row["method"] == "mixture"}
    assert set(rows) == {"none", "window:64"}
    for row in rows.values():
        assert row["dev_positions"] == row["dev_characters"] == characters
        assert row["dev_loss"] == pytest.approx(np.log(row["dev_perplexity"])) and row["radius"] == 48
        assert row["bits_per_character"] == pytest.approx(row["dev_loss"] / np.log(2))
        assert row["scalars"] == len(row["exponents"]) > 30
    assert rows["window:64"]["dev_loss"] != rows["none"]["dev_loss"]


@pytest.mark.parametrize("history", ["none", "window:64"])
def test_the_model_of_a_history_is_scored_and_sampled_by_its_name(finished, history, capsys):
    folder, _ = finished
    run = ["--run", str(folder / "run"), "--method", "mixture", "--history", history]
    row = next(row for row in read_rows(folder / "run") if row["history"] == history and row["method"] == "mixture")
    assert score.main([*run, "--text", str(folder / "dev.txt"), "--documents", "file", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # the end of a file is no character of the document
    assert found["token_count"] in (row["dev_positions"], row["dev_positions"] - 1)
    assert found["perplexity"] == pytest.approx(row["dev_perplexity"], rel=0.02)
    assert sample.main([*run, "--prompt", "to be or not t", "--length", "20", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("to be or not t")


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--methods mixture --history window:3", "choose none, document, window:W"),
        ("--methods mixture --rows trigrams", "rows trigrams: choose from offsets"),
        ("--methods mixture --rows words", "these rows need --tokenizer char"),
        ("--history document", "--history document without a mixture"),
        ("--split end", "it splits the files of --train"),
    ],
)
def test_rows_histories_and_splits_that_do_not_fit_are_refused(flags, message, tmp_path, capsys):
    assert lm.main([*flags.split(), "--out", str(tmp_path / "run")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()

"""Every model of a run by name, runs that grow, and files that are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jexplicit.data.text import read_documents
from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.fits.estimator import fit
from launch import explain, export, sample, score
from launch.lm import __main__ as lm

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
MEASURES = ("log_probability", "perplexity", "bits_per_byte", "bits_per_character", "word_perplexity")
FLAGS = "--tokenizer word --radius 1 2 --features cat --samples 0 --calibration-positions 200".split()
ROWS = ("offsets", "contexts-4")


def sentences(seed: int, number: int) -> str:
    rng = np.random.default_rng(seed)
    return "".join(" ".join(rng.choice(WORDS, rng.integers(4, 9))) + "\n" for _ in range(number))


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text(sentences(0, 300))
    (folder / "dev.txt").write_text(sentences(1, 40))
    return ["--train", str(folder / "train.txt"), "--dev", str(folder / "dev.txt")]


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    models = "--methods explicit log-linear ngram mixture optimum --history none all --rows".split()
    assert lm.main([*files, "--out", str(out), *FLAGS, *models, *ROWS]) == 0
    return out


def choice(row: dict) -> list[str]:
    flags = ["--method", row["method"], "--radius", str(row["radius"]), "--history", row["history"]]
    return flags + (["--features", row["features"]] if row["features"] != "none" else [])


def test_every_model_is_scored_by_name_with_the_perplexity_of_its_row(finished, files, capsys):
    assert len(rows(finished)) == 2 + 2 + 2 + 1 + 2 + 2
    for row in rows(finished):
        assert score.main(["--run", str(finished), *choice(row), "--text", files[3]]) == 0
        printed = capsys.readouterr()
        whole = json.loads(printed.out.splitlines()[-1])
        assert whole["perplexity"] == pytest.approx(row["dev_perplexity"], rel=1e-4), row
        assert whole["history"] == row["history"]
        assert f"model {row['method']}" in printed.err


def test_the_default_is_the_model_with_the_lowest_dev_perplexity(finished, capsys):
    best = min(rows(finished), key=lambda row: row["dev_perplexity"])
    assert sample.main(["--run", str(finished), "--prompt", "the cat", "--length", "3"]) == 0
    assert f"model {best['method']}" in capsys.readouterr().err
    assert load_model(finished).about["dev_perplexity"] == best["dev_perplexity"]


@pytest.mark.parametrize("method", ["explicit", "mixture"])
def test_an_export_scores_as_its_run_does(method, finished, files, tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    assert export.main(["--run", str(finished), "--method", method, "--out", str(file)]) == 0
    answers = []
    for source in (["--run", str(finished), "--method", method], ["--run", str(file)]):
        capsys.readouterr()
        assert score.main([*source, "--text", files[3]]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert load_model(file).about["method"] == method
    assert sample.main(["--run", str(file), "--method", "cold"]) == 2
    assert "holds one model" in capsys.readouterr().err


def test_a_mixture_is_explained_by_token_and_by_row(finished, tmp_path, capsys):
    for by in ("token", "row"):
        flags = ["--method", "mixture", "--history", "all", "--text", "the cat sat on the mat", "--by", by]
        assert explain.main(["--run", str(finished), *flags, "--figure", str(tmp_path / f"{by}.png")]) == 0
        assert (tmp_path / f"{by}.png").stat().st_size > 1000
        capsys.readouterr()


def test_a_model_that_a_run_does_not_have_is_refused_with_those_that_it_has(finished, capsys):
    assert sample.main(["--run", str(finished), "--method", "warm"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no model with method warm" in said and "explicit_cat_2" in said and "mixture_cat_8_all" in said


def test_a_finished_run_is_continued_with_more_methods(files, tmp_path):
    out = tmp_path / "run"
    assert lm.main([*files, "--out", str(out), *FLAGS, "--methods", "explicit"]) == 0
    before = rows(out)
    assert lm.main(["--out", str(out), "--resume", "--methods", "explicit", "ngram", "--radius", "1", "2", "3"]) == 0
    assert rows(out)[: len(before)] == before
    added = [(row["method"], row["radius"]) for row in rows(out)[len(before) :]]
    assert added == [("explicit", 3), ("ngram", 4)]


def test_a_run_is_not_continued_on_another_text(tmp_path, capsys):
    train, out = tmp_path / "train.txt", tmp_path / "run"
    train.write_text(sentences(0, 200))
    assert lm.main(["--train", str(train), "--out", str(out), *FLAGS]) == 0
    kept = {path: path.read_bytes() for path in (out / "tokenizer.model", out / "results.json")}
    train.write_text(sentences(5, 220))
    capsys.readouterr()
    assert lm.main(["--out", str(out), "--resume", "--methods", "explicit", "ngram"]) == 2
    assert "was started on another text" in " ".join(capsys.readouterr().err.split())
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_the_floor_of_the_optimum_is_a_flag_that_dev_perplexity_depends_on(files, tmp_path):
    dev, train = [], []
    for floor in ("1e-3", "1e-9"):
        out = tmp_path / floor
        flags = ["--methods", "optimum", "--tokenizer", "char", "--radius", "1", "--features", "cat", "--samples", "0"]
        (tmp_path / "dev.txt").write_text("the cat sang qz\n")
        (tmp_path / "train.txt").write_text(sentences(0, 50) + "q z\n")
        text = ["--train", str(tmp_path / "train.txt"), "--dev", str(tmp_path / "dev.txt")]
        assert lm.main([*text, "--out", str(out), *flags, "--optimum-floor", floor]) == 0
        row = rows(out)[-1]
        assert row["floor"] == float(floor)
        dev.append(row["dev_perplexity"])
        train.append(row["train_perplexity"])
    assert dev[1] > 2 * dev[0]
    assert train[1] == pytest.approx(train[0], rel=1e-2)


def damaged_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def foreign(path):
    save_file({"x": np.zeros(3)}, path)


def with_a_nan(path):
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.dtype.kind == "f")
    tensors[name].flat[0] = np.nan
    save_file(tensors, path, metadata=None)


@pytest.mark.parametrize(
    "damage, message",
    [(damaged_bit, "checksum"), (cut_short, "can be read"), (foreign, "not written by jexplicit"), (with_a_nan, "not written")],
)
def test_a_damaged_export_is_refused(damage, message, finished, tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    assert export.main(["--run", str(finished), "--method", "log-linear", "--out", str(file)]) == 0
    damage(file)
    capsys.readouterr()
    assert sample.main(["--run", str(file)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message in said and "model.safetensors" in said


def test_the_estimator_fits_the_mixture_of_the_command(finished, files):
    model = fit(Path(files[1]), tokenizer="word", rows=ROWS, calibration_positions=200)
    (row,) = (row for row in rows(finished) if (row["method"], row["history"]) == ("mixture", "all"))
    # the same rows and exponents; float32 sums in another order on other tables
    assert model.perplexity(read_documents(files[3])) == pytest.approx(row["dev_perplexity"], rel=1e-4)
    np.testing.assert_allclose(model.about["exponents"], row["exponents"], atol=1e-3)


def test_the_ngram_model_as_an_arpa_file_is_scored_sampled_and_explained(finished, files, tmp_path, capsys):
    arpa, run = str(tmp_path / "lm.arpa.gz"), ["--run", str(finished), "--method", "ngram"]
    assert export.main([*run, "--out", arpa]) == 0
    assert "fitted without --eos" in capsys.readouterr().err
    wholes = []
    for model in (run, ["--run", arpa]):
        assert score.main([*model, "--text", files[3]]) == 0
        wholes.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert wholes[0] == {**wholes[1], **{name: pytest.approx(wholes[1][name], rel=1e-5) for name in MEASURES}}
    assert sample.main(["--run", arpa, "--prompt", "the cat", "--length", "3"]) == 0
    assert explain.main(["--run", arpa, "--text", "the cat", "--figure", str(tmp_path / "explain.png")]) == 0
    capsys.readouterr()
    assert export.main(["--run", str(finished), "--method", "mixture", "--out", str(tmp_path / "mixture.arpa")]) == 2
    assert "is no n-gram model, which an ARPA file holds: choose the method ngram" in capsys.readouterr().err
    assert not (tmp_path / "mixture.arpa").exists()

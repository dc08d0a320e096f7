"""Every experiment, run once on little data: rows, report, an exact continuation, and the commands that use its models."""

import functools
import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from lm_runs import DEV, SMALL, TRAIN, dev_stream
from PIL import Image
from run_folders import interrupted, rows, without_costs

from icl.blur.rules import load_genome
from icl.descent import gd_plus_plus
from icl.tasks import sample_tasks, vmap_tasks
from jexplicit.data.images import pixel_features, read_images
from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.evaluation import evaluate
from jexplicit.nn import networks as steps
from jexplicit.nn import training
from jexplicit.runs.files import read_events
from launch import cache, classify, cli, compare, explain, export, next, sample, score, shards
from launch.digits.run import load_classifier
from launch.digits.solved import row_name
from launch.icl.base import TEST, make_model, random_key
from launch.icl.config import TaskFlags
from launch.icl.training import descent_families, measure_families
from launch.judge import __main__ as judge
from launch.kit.views import only, where
from launch.lm import models as lm_models

# name -> the command, in its preset `tiny` or in less
RUNS = {
    "lm": "lm --train {text}/train.txt --dev {text}/dev.txt " + " ".join(SMALL) + " --methods explicit --features cat",
    "icl": "icl one-step --preset tiny",
    "digits": "digits --preset tiny --methods explicit warm --layers 1",
    "networks": "networks fcnn --preset tiny",
    "feature-machine": "feature-machine modular --preset tiny",
    "blur": "blur train --preset tiny --unroll 3 --meta-steps 4 --baselines",
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, text):
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(text / "cache"))


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A folder with a training and a dev text."""
    path = tmp_path_factory.mktemp("text")
    for name, lines in (("train", TRAIN), ("dev", DEV)):
        (path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def run(tmp_path_factory, text):
    """`run(name)`: the folder of a run that all tests read."""

    @functools.cache
    def measure(name: str) -> Path:
        out = tmp_path_factory.mktemp("runs") / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JEXPLICIT_CACHE_DIR", str(text / "cache"))
            assert started(name, text, out) == 0
        return out

    return measure


def started(name: str, text: Path, out: Path, *more: str) -> int:
    """The exit status of the command of a run."""
    command, *flags = RUNS[name].format(text=text).split()
    return main_of(command)([*flags, "--out", str(out), *more])


def main_of(command: str) -> Any:
    return importlib.import_module(cli.COMMANDS[command].module).main


@pytest.mark.parametrize("name", RUNS)
def test_a_run_leaves_its_files_and_a_report_and_is_continued_by_nothing(name, run, text, capsys):
    out = run(name)
    config, found = json.loads((out / "config.json").read_text()), rows(out)
    assert config["launcher"].split()[0] == name and found
    assert (out / "environment.json").exists() and not list(out.rglob("*.partial"))
    assert [event for event in read_events(out, "row")] and len(read_events(out, "row")) == len(found)
    report = (out / "report.md").read_text()
    drawn = re.findall(r"^!\[[^\]]*\]\((.*)\)$", report, re.M)
    assert drawn and all((out / path).read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert report.count("\n|---") >= 1
    capsys.readouterr()
    assert started(name, text, out) == 2 and "--resume" in capsys.readouterr().err
    command, *words = RUNS[name].split()
    part = [words[0]] if command in ("networks", "feature-machine", "blur", "icl") else []
    (out / "report.md").unlink()
    assert main_of(command)([*part, "--out", str(out), "--resume", "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["rows"] == found == rows(out) and not printed.err
    assert (out / "report.md").read_text() == report
    assert main_of(command)([*part, "--out", str(out), "--resume", "--seed", "9"]) == 2
    assert "(now 9)" in " ".join(capsys.readouterr().err.split())


def test_language_models_are_loaded_with_the_perplexities_of_their_rows(run):
    found = rows(run("lm"))
    assert [(r["method"], r["radius"]) for r in found] == [("unigram", 1), ("bigram", 1), ("explicit", 1), ("explicit", 2)]
    for row in found:
        model = load_model(run("lm"), method=row["method"], radius=row["radius"])
        assert evaluate(model.model, dev_stream(model.tokenizer)).perplexity == pytest.approx(row["dev_perplexity"], rel=1e-6)
        assert row["dev_loss"] == pytest.approx(np.log(row["dev_perplexity"]))
        nats = row["dev_tokens"] * row["dev_loss"]
        nats += np.log(256) * 15  # a uniform code for 13 bytes of two unknown words, and their ends
        assert row["bits_per_byte"] == pytest.approx(nats / np.log(2) / sum(len(line.encode()) for line in DEV))
        assert row["word_perplexity"] == pytest.approx(np.exp(nats / sum(len(line.split()) for line in DEV)))
        assert row["bits_per_character"] == pytest.approx(nats / np.log(2) / sum(map(len, DEV)))
        assert row["train_tokens"] == 12 * len(TRAIN) and row["unknown_share"] == 2 / row["dev_tokens"]
        assert row["dev_in_train"] == sum(line in TRAIN for line in DEV) / len(DEV)
        assert f" | {row['dev_perplexity']:.1f} | " in (run("lm") / "report.md").read_text()
    assert found[3]["train_perplexity"] < found[2]["train_perplexity"] < found[0]["train_perplexity"]


def test_an_interrupted_run_resumes_to_the_same_rows(run, text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # two evaluations of every row: in the middle of the third
        patch.setattr(lm_models, "evaluate", interrupted(lm_models.evaluate, 5))
        assert started("lm", text, tmp_path / "run") == 130
    assert len(rows(tmp_path / "run")) == 2
    assert main_of("lm")(["--out", str(tmp_path / "run"), "--resume"]) == 0
    assert without_costs(tmp_path / "run") == without_costs(run("lm"))


def test_training_interrupted_within_an_epoch_resumes_to_the_same_rows(run, text, tmp_path, monkeypatch):
    out, make_step = tmp_path / "run", steps.training_step
    with monkeypatch.context() as patch:  # checkpoints after every few steps
        patch.setattr(training, "_steps_between_checks", 2)
        patch.setattr(steps, "train", functools.partial(training.train, checkpoint_seconds=0.0))
        patch.setattr(steps, "training_step", lambda *args, **options: interrupted(make_step(*args, **options), 8))
        assert started("digits", text, out) == 130
    assert [row["method"] for row in rows(out)] == ["explicit"] and list(out.glob("checkpoints/warm_1.partial"))
    assert main_of("digits")(["--out", str(out), "--resume"]) == 0
    assert without_costs(out) == without_costs(run("digits"))


def test_a_loss_has_the_standard_error_of_its_tasks():
    """Of several blocks of tasks, beside NumPy on the single losses."""
    config = TaskFlags(out="", dim=2, context=3, test_tasks=20_000)
    model = make_model(config)
    told = measure_families(config, model, descent_families(config, model))[0]
    step = jax.jit(vmap_tasks(lambda s: gd_plus_plus(s, *(np.full(1, rate) for rate in (told["eta"], 0.0)), steps=1)[-1]))
    keys = [jax.random.fold_in(random_key(config, TEST), block) for block in range(2)]
    batches = [sample_tasks(key, model.tasks, 10_000) for key in keys]
    losses = np.concatenate([np.sum((np.asarray(step(batch)) - batch.y_q) ** 2, axis=0) / 2 for batch in batches])
    assert told["test_tasks"] == len(losses) and told["loss"] == pytest.approx(losses.mean(), rel=1e-9)
    assert told["standard_error"] == pytest.approx(losses.std() / np.sqrt(len(losses)), rel=1e-6)


def test_constructed_layers_are_the_descent_that_trained_ones_approach(run):
    found = rows(run("icl"))
    loss = {row["predictor"]: row["loss"] for row in where(found, seed=(None, 0))}
    assert loss["constructed"] == pytest.approx(loss["gd"], rel=1e-5)
    assert only(found, predictor="constructed")["cosine"] == pytest.approx(1, abs=1e-5)
    assert {row["seed"] for row in where(found, predictor="trained")} == {0, 1}
    assert loss["trained"] > 0


def test_held_out_images_judge_the_explicit_solution_of_the_others(run):
    """By NumPy: `U = log F - (K - 1)/K log Σ F` of nine tenths of the images, on a tenth of the permutation of the seed."""
    data, row = read_images("digits", limit=300), only(rows(run("digits")), method="explicit")
    held_out = np.random.default_rng(0).permutation(300)[:30]
    H, Y = np.asarray(pixel_features(data.train_images, 17), np.float64), np.eye(10)[data.train_labels]
    fitted = np.setdiff1d(np.arange(300), held_out)
    K, F = H.sum(axis=1).mean(), H[fitted].T @ Y[fitted]
    logits = H[held_out] @ (np.log(F) - (K - 1) / K * np.log(F.sum(axis=0)))
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert row["priming_number"] == pytest.approx(K, rel=1e-5)
    assert row["dev_accuracy"] == pytest.approx((logits.argmax(axis=1) == data.train_labels[held_out]).mean())
    assert row["dev_loss"] == pytest.approx(-(log_p * Y[held_out]).sum(axis=1).mean(), rel=0.01)  # float32
    for row in rows(run("digits")):
        model = load_classifier(str(run("digits")), method=row["method"])
        labels = np.asarray(model.logits(data.test_images)).argmax(axis=1)
        np.testing.assert_array_equal(labels, np.load(run("digits") / "guesses" / f"{row_name(row)}.npy"))
        assert (labels == data.test_labels).mean() == pytest.approx(row["test_accuracy"])


def test_rows_have_the_settings_that_were_asked_for(run):
    networks = {row["name"]: row for row in rows(run("networks"))}
    assert list(networks) == ["explicit", "fcnn"] and networks["fcnn"]["train_loss"] < networks["fcnn"]["first_loss"]
    solves = [(row["seed"], row["solve"]) for row in rows(run("feature-machine"))]
    assert solves == [(seed, solve) for seed in (0, 1) for solve in range(1, 5)]
    learned = where(rows(run("blur")), baseline=None)
    kept = load_genome(run("blur") / "genome.json").provenance
    assert learned[0]["step"] == 0 and kept["config"]["limit"] == 400 and {row["unroll"] for row in learned} == {3}
    assert kept["test_accuracy"][str(learned[-1]["step"])] == pytest.approx(learned[-1]["test_accuracy"], abs=1e-4)


# Commands on a model of a run


COMMANDS: dict[ModuleType, str] = {
    score: "--run {lm} --text {text}/dev.txt",
    next: "--run {lm} --prompt the",
    sample: "--run {lm} --length 3",
    explain: "--run {lm} --text the --figure {out}/x.png",
    export: "--run {lm} --out {out}/x.safetensors",
    compare: "--run {lm} --text {text}/dev.txt",
    judge: "--run {lm} --pairs {out}/pairs.jsonl --out {out}/judged",
    classify: "--run {digits} --images {out}/white.png",
    cache: "list",
    shards: "--out {out}/shards --train {text}/train.txt --tokenizer word",
}


def test_json_is_one_object_on_standard_output_and_quiet_is_quiet(run, text, tmp_path, capfd):
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "the cat sat", "sentence_bad": "sat cat the"}')
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "white.png")
    said = {}
    for command, flags in COMMANDS.items():
        given = flags.format(lm=run("lm"), digits=run("digits"), text=text, out=tmp_path).split()
        capfd.readouterr()
        assert command.main([*given, "--json", "--quiet"]) == 0, command
        printed = capfd.readouterr()
        said[command] = json.loads(printed.out)
        assert isinstance(said[command], dict) and not printed.err, command
    best = min(rows(run("lm")), key=lambda row: row["dev_perplexity"])
    assert said[score]["perplexity"] == pytest.approx(best["dev_perplexity"], rel=1e-4)
    assert said[compare]["rows"][0]["bits_per_byte"] == pytest.approx(best["bits_per_byte"], rel=1e-5)
    assert load_model(tmp_path / "x.safetensors").about["method"] == best["method"]
    exported = evaluate(load_model(tmp_path / "x.safetensors").model, dev_stream(load_model(run("lm")).tokenizer))
    assert exported.perplexity == pytest.approx(best["dev_perplexity"], rel=1e-6)

"""Every experiment, run once on little data: rows, report, an exact continuation, and the commands that use its models."""

import importlib
import json
import re

import jax
import numpy as np
import pytest
from lm_runs import DEV, SMALL, TRAIN, dev_stream, text_flags
from PIL import Image
from run_folders import folder, interrupt_training, interrupted, made, main, rows, without_costs

from icl.attention import gd_plus_plus
from icl.tasks import sample_tasks, vmap_tasks
from jexplicit.lm import evaluation
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.text_model import load_model
from jexplicit.runs.files import read_events
from launch import cli
from launch.icl.config import TaskFlags
from launch.icl.trained import TEST, descents, make_model, measure, random_key


def line(name: str) -> str:
    """The command of a run, in its preset `tiny` or in less."""
    return {
        "lm": f"lm {' '.join([*text_flags(), *SMALL])} --methods explicit --features cat",
        "icl": "icl one-step --preset tiny --devices 1",
        "digits": "digits --preset tiny --methods explicit warm --layers 1",
        "networks": "networks mlp-lm --preset tiny --epochs 6 --epoch-examples 90 --batch-size 30",
        "feature-machine": "feature-machine modular --preset tiny",
        "blur": "blur train --preset tiny --unroll 3 --meta-steps 4 --baselines",
    }[name]


@pytest.mark.parametrize("name", ["lm", "icl", "digits", "networks", "feature-machine", "blur"])
def test_a_run_leaves_its_files_and_a_report_and_is_continued_by_nothing(name, capsys):
    out = made(line(name))
    config, found = json.loads((out / "config.json").read_text()), rows(out)
    assert config["launcher"].split()[0] == name and found and len(read_events(out, "row")) == len(found)
    assert (out / "environment.json").exists() and not list(out.rglob("*.partial"))
    report = (out / "report.md").read_text()
    drawn = re.findall(r"^!\[[^\]]*\]\((.*)\)$", report, re.M)
    assert drawn and all((out / path).read_bytes().startswith(b"\x89PNG") for path in drawn) and "\n|---" in report
    again = " ".join(re.findall(r"^\S+(?: [a-z]\S*)?", line(name)))  # the command, and the part of it
    (out / "report.md").unlink()
    capsys.readouterr()
    assert main(again, out, "--resume", "--json", "--quiet") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["rows"] == found == rows(out) and not printed.err
    assert (out / "report.md").read_text() == report
    assert main(again, out, "--resume", "--seed", "9") == 2
    assert "(now 9)" in " ".join(capsys.readouterr().err.split())


def test_language_models_are_loaded_with_the_perplexities_of_their_rows():
    out = made(line("lm"))
    found = rows(out)
    assert [(r["method"], r["context"]) for r in found] == [("unigram", 1), ("bigram", 1), ("explicit", 1), ("explicit", 2)]
    for row in found:
        model = load_model(out, method=row["method"], context=row["context"])
        assert evaluate(model.model, dev_stream(model.tokenizer)).perplexity == pytest.approx(row["dev_perplexity"], rel=1e-6)
        nats = row["dev_tokens"] * row["dev_loss"]
        nats += np.log(256) * 15  # a uniform code for 13 bytes of two unknown words, and their ends
        assert row["bits_per_byte"] == pytest.approx(nats / np.log(2) / sum(len(line.encode()) for line in DEV))
        assert row["word_perplexity"] == pytest.approx(np.exp(nats / sum(len(line.split()) for line in DEV)))
        assert row["bits_per_character"] == pytest.approx(nats / np.log(2) / sum(map(len, DEV)))
        assert row["train_tokens"] == 12 * len(TRAIN) and row["unknown_share"] == 2 / row["dev_tokens"]
        assert row["dev_in_train"] == sum(line in TRAIN for line in DEV) / len(DEV)
        assert f" | {row['dev_perplexity']:.1f} | " in (out / "report.md").read_text()
    assert found[3]["train_perplexity"] < found[2]["train_perplexity"] < found[0]["train_perplexity"]


def test_an_interrupted_run_resumes_to_the_same_rows(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # two evaluations of every row: in the middle of the third
        patch.setattr(evaluation, "evaluate", interrupted(evaluation.evaluate, 5))
        assert main(line("lm"), tmp_path / "lm") == 130
    with monkeypatch.context() as patch:  # within an epoch
        interrupt_training(patch, 8)
        assert main(line("digits"), tmp_path / "digits") == 130
    assert len(rows(tmp_path / "lm")) == 2 and [row["method"] for row in rows(tmp_path / "digits")] == ["explicit"]
    assert list(tmp_path.glob("digits/checkpoints/warm_1.partial"))
    for name in ("lm", "digits"):
        assert main(name, tmp_path / name, "--resume") == 0
        assert without_costs(tmp_path / name) == without_costs(made(line(name)))


def test_a_loss_has_the_standard_error_of_its_tasks():
    """Of several blocks of tasks, beside NumPy on the single losses."""
    config = TaskFlags(out="", dim=2, context=3, test_tasks=20_000)
    model = make_model(config)
    told = measure(config, model, [*descents(config, model).values()])[0]
    step = jax.jit(vmap_tasks(lambda s: gd_plus_plus(s, *(np.full(1, rate) for rate in (told["eta"], 0.0)), steps=1)[-1]))
    keys = [jax.random.fold_in(random_key(config, TEST), block) for block in range(2)]
    batches = [sample_tasks(key, model.tasks, 10_000) for key in keys]
    losses = np.concatenate([np.sum((np.asarray(step(batch)) - batch.y_q) ** 2, axis=0) / 2 for batch in batches])
    assert told["test_tasks"] == len(losses) and told["loss"] == pytest.approx(losses.mean(), rel=1e-9)
    assert told["standard_error"] == pytest.approx(losses.std() / np.sqrt(len(losses)), rel=1e-6)
    assert told["eta"] == pytest.approx(3 * 12 / (1.8 + 3), rel=1e-6)  # by the kurtosis of the inputs


COMMANDS = """
runs {lm}
score --run {lm} --text {dev}
next --run {lm} --prompt the
sample --run {lm} --length 3
explain --run {lm} --text the
export --run {lm} --out {out}/x.safetensors
compare --run {lm} --text {dev}
judge --run {lm} --pairs {out}/pairs.jsonl --out {out}/judged
classify --run {digits} --images {out}/white.png
shards --out {out}/shards --train {dev} --tokenizer word
"""


def test_json_is_one_object_on_standard_output_and_quiet_is_quiet(tmp_path, capfd):
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "the cat sat", "sentence_bad": "sat cat the"}')
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "white.png")
    said, lm = {}, made(line("lm"))
    places = {"lm": lm, "digits": made(line("digits")), "dev": folder() / "dev.txt.gz", "out": tmp_path}
    for words in COMMANDS.strip().splitlines():
        command, *flags = words.format(**places).split()
        capfd.readouterr()
        assert importlib.import_module(cli.COMMANDS[command].module).main([*flags, "--json", "--quiet"]) == 0, command
        printed = capfd.readouterr()
        said[command] = json.loads(printed.out)
        assert isinstance(said[command], dict) and not printed.err, command
    assert len(said["runs"]["rows"]) == len(rows(lm))
    best = min(rows(lm), key=lambda row: row["dev_perplexity"])
    assert said["score"]["perplexity"] == pytest.approx(best["dev_perplexity"], rel=1e-4)
    assert said["compare"]["rows"][0]["bits_per_byte"] == pytest.approx(best["bits_per_byte"], rel=1e-5)
    assert load_model(tmp_path / "x.safetensors").about["method"] == best["method"]

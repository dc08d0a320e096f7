"""launch.networks, end to end on small data: one run of each subcommand, what it refuses, and that it resumes exactly."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest
from run_folders import folder, interrupt_training, made, main, rows, without_costs

from jexplicit.data.corpora import split_documents
from jexplicit.data.images import read_images
from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.generation import next_token
from jexplicit.runs.files import read_events
from jexplicit.runs.loop import load_checkpoint
from launch.networks.training import centred_data

pytestmark = pytest.mark.slow

FIELDS = "model optimizer objective steps seconds train_loss dev_loss test_loss test_accuracy corpus_sha256 vocab_size".split()
MLP = "--limit 400 --tokenizer char --context 2 --embedding 2 --hidden 4 --epochs 2 --batch-size 256 --samples 1"
MLP += " --direct tokens --dropout 0.1"
SEQUENCES = "--tokenizer char --window 32 --width 8 --layers 1 --steps 6 --warmup 2 --evaluations 3 --batch-size 4"
TRANSFORMER = f"{SEQUENCES} --heads 2 --accumulate 2 --dropout 0.1 --samples 1 --eos"


@functools.cache
def text() -> str:
    rng = np.random.default_rng(0)
    return "\n".join("".join(rng.choice(list("abc"), rng.integers(2, 7))) for _ in range(400))


def line(name: str, flags: str) -> str:
    (folder() / "letters").write_text(text())
    (folder() / "unseen").write_text(text()[::-1])
    return f"networks {name} --train {folder()}/letters {flags}".replace("--eos", f"--eos --test {folder()}/unseen")


def by_name(out) -> dict[str, dict]:
    return {row["name"]: row for row in rows(out)}


def pictures(out) -> set[str]:
    return {path.stem for path in (out / "figures").glob("*.png")}


def test_a_language_model_is_trained_and_resumes_exactly(tmp_path, monkeypatch):
    out = made(line("mlp-lm", MLP))
    (network,) = rows(out)
    assert network["name"] == "mlp" and {*FIELDS} <= set(network) and 0 <= network["test_accuracy"] <= 1
    assert network["dev_perplexity"] == pytest.approx(np.exp(network["dev_loss"]))
    assert network["steps"] > 0 and network["dev_positions"] < network["train_positions"] / 7
    assert network["vocab_size"] == 5  # three letters, an end and <unk>
    assert (out / "samples.json").exists() and pictures(out) == {"curves"} and read_events(out, "epoch")
    with monkeypatch.context() as patch:
        interrupt_training(patch, 7)
        assert main(line("mlp-lm", MLP), tmp_path) == 130
    assert main("networks mlp-lm --resume", tmp_path) == 0
    assert without_costs(tmp_path) == without_costs(out)
    jax.tree.map(np.testing.assert_array_equal, *(load_checkpoint(run / "checkpoints" / "mlp") for run in (tmp_path, out)))


def test_a_transformer_has_its_costs_and_serves_as_a_language_model():
    """Its row by hand: 3 evaluations of 2 updates of 2 batches of 4 windows of 32 tokens."""
    out = made(line("transformer-lm", TRANSFORMER))
    (row,) = rows(out)
    assert row["trained_tokens"] == 6 * 2 * 4 * 32 and row["vocab_size"] == 5
    assert row["flops"] == 6 * 2 * 4 * 32 * (6 * (12 * 8**2 + 5 * 8) + 12 * 8 * 32)
    assert row["parameters"] == 5 * 8 + 12 * 8**2 + 3 * 8
    events = read_events(out, "epoch")
    assert [event["step"] for event in events] == [0, 2, 4, 6] and events[-1]["flops"] == row["flops"]
    assert row["window_loss"] == min(event["dev_loss"] for event in events)
    assert row["dev_perplexity"] == np.exp(row["dev_loss"]) and 0 < row["test_loss_se"] < row["dev_loss_se"] < 1
    assert row["test_positions"] > 9 * row["dev_positions"] > 0  # all lines, and a tenth of them
    assert "curves" in pictures(out)
    model = load_model(out)
    stream = model.tokenizer.encode("abc")
    (log_p,) = model.score(["abc"])
    np.testing.assert_allclose(log_p[1], next_token(model.model, stream[:1])[stream[1]], rtol=1e-4)


def test_a_transformer_resumes_to_the_same_bits_and_on_no_other_text(tmp_path, monkeypatch, capsys):
    whole, out = made(line("transformer-lm", TRANSFORMER)), tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_training(patch, 7)
        assert main(line("transformer-lm", TRANSFORMER), out) == 130
    other = shutil.copytree(out, tmp_path / "other")
    assert main("networks transformer-lm --resume", out) == 0
    assert without_costs(out) == without_costs(whole)
    (folder() / "letters").write_text(text().replace("a", "b"))
    assert main("networks transformer-lm --resume", other) == 2
    assert "was started on another text, corpus_sha256" in " ".join(capsys.readouterr().err.split())


def test_networks_of_several_starts_and_seeds():
    flags = "--no-tied --positions learned --width 32 --layers 2 --heads 2 --samples 1 --seeds 2 --seed 3"
    starts = ["none", "induction"]
    out = made(line("transformer-lm", f"{SEQUENCES} {flags} --start {' '.join(starts)}"))
    found = rows(out)
    assert [(row["start"], row["seed"]) for row in found] == [(start, seed) for seed in (3, 4) for start in starts]
    assert all(row["start_seconds"] > 0 for row in found) and len({row["parameters"] for row in found}) == 1
    first = {(e["start"], e["seed"]): e["dev_loss"] for e in read_events(out, "epoch") if e["step"] == 0}
    assert len(first) == len(set(first.values())) == 4
    assert load_model(out, method="transformer-induction-4").generate("ab", 5, seed=1)
    assert len(json.loads((out / "samples.json").read_text())) == 4
    report = (out / "report.md").read_text()
    assert "| induction |" in report


def test_a_transformer_without_ends_of_documents_on_two_devices():
    """Costs are those of the updates made, two before each of four evaluations, where these do not divide the steps."""
    one, two = (made(line("transformer-lm", f"{SEQUENCES} --heads 2 --samples 0 --steps 7 --devices {n}")) for n in (1, 2))
    (row,), (other,), last = rows(one), rows(two), read_events(one, "epoch")[-1]
    assert row["dev_loss"] == pytest.approx(other["dev_loss"], rel=1e-5)  # the order of sums
    assert row["dev_positions"] == len("".join(split_documents(text().splitlines())[1]))
    assert row["steps"] == last["step"] == 8 and row["flops"] == last["flops"] and row["trained_tokens"] == 8 * 4 * 32
    assert row["best_step"] in (0, 2, 4, 6, 8)


def test_autoencoders():
    sizes = "--limit 120 --epochs 2 --memories 2 --memory-width 16 --memory-depth 1 --memory-steps 20 --iterations 5 --width 8"
    out = made(f"networks autoencoder {sizes} --bottleneck 4 --memory-scales 0.4")
    found = by_name(out)
    assert found["linear, solved"]["train_loss"] < found["linear, trained"]["train_loss"]  # nothing of rank 4 is better
    assert all(0 <= row["anomaly_auc"] <= 1 for row in found.values())
    memory = found["over-parameterised, relu, weights x 0.4"]
    assert memory["largest_singular_value"] >= memory["largest_spectral_radius"] > 0
    assert pictures(out) == {"curves"}


def test_pixels_that_never_change_stay_finite():
    images = read_images("digits")
    images = images._replace(train_images=np.full_like(images.train_images, 3))
    assert np.isfinite(centred_data(images).train.X).all()

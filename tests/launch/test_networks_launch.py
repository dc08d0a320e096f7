"""launch.networks, end to end on small data: one run of each subcommand, what it refuses, and that it resumes exactly."""

import functools
import json

import jax
import numpy as np
import pytest
from run_folders import interrupted, rows, without_costs

from jexplicit.data.corpora import split_documents
from jexplicit.data.images import read_images
from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.generation import next_token
from jexplicit.nn import networks as steps
from jexplicit.nn import training
from jexplicit.runs.files import read_events
from jexplicit.runs.loop import load_checkpoint
from launch.kit.views import Results
from launch.networks import __main__ as networks
from launch.networks import mlp_lm
from launch.networks.training import centred_data

pytestmark = pytest.mark.slow

SETTINGS = "model optimizer objective steps seconds".split()
SCORES = "train_loss dev_loss test_loss dev_perplexity test_accuracy".split()
MLP = "--limit 400 --tokenizer char --context 2 --embedding 2 --hidden 4 --epochs 2 --batch-size 512 --samples 1".split()


def by_name(out) -> dict[str, dict]:
    return {row["name"]: row for row in rows(out)}


def pictures(out) -> set[str]:
    return {path.stem for path in (out / "figures").glob("*.png")}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    rng = np.random.default_rng(0)
    path.write_text("\n".join("".join(rng.choice(list("abc"), rng.integers(2, 7))) for _ in range(400)))
    return path


def run(tmp_path_factory, name, *flags):
    out = tmp_path_factory.mktemp("runs") / name
    assert networks.main([name, "--out", str(out), *map(str, flags)]) == 0
    return out


@pytest.fixture(scope="module")
def language_model(tmp_path_factory, text):
    return run(tmp_path_factory, "mlp-lm", "--train", text, *MLP, "--direct", "tokens")


def test_a_language_model_is_trained_beside_the_solved_ones(language_model):
    found = by_name(language_model)
    assert list(found) == ["unigram", "bigram", "explicit", "log-linear", "mlp"]
    for row in found.values():
        assert {*SETTINGS, *SCORES, "corpus_sha256", "vocab_size"} <= set(row)
        assert row["dev_perplexity"] == pytest.approx(np.exp(row["dev_loss"])) and 0 <= row["test_accuracy"] <= 1
    network = found["mlp"]
    assert network["steps"] > 0 and network["dev_positions"] < network["train_positions"] / 7
    assert network["vocab_size"] == 5  # three letters, an end and <unk>


def test_a_run_leaves_the_files_of_the_contract(language_model):
    for name in ("config.json", "environment.json", "report.md", "samples.json", "checkpoints/mlp"):
        assert (language_model / name).exists(), name
    assert json.loads((language_model / "config.json").read_text())["launcher"] == "networks"
    assert pictures(language_model) == {"curves"}
    assert not list((language_model / "checkpoints").glob("*.partial"))
    assert all(read_events(language_model, event) for event in ("epoch", "row"))


def test_the_map_of_an_embedding(tmp_path):
    points = {"names": ["a", "$", "\n"], "points": [[0, 0], [1, 2], [3, 1]]}
    results = Results(tmp_path, {}, [], {"embedding": [points]})
    assert mlp_lm.embedding_figure(results) and pictures(tmp_path) == {"embedding"}


def test_a_run_interrupted_within_an_epoch_resumes_to_the_same_rows(tmp_path, text, monkeypatch):
    flags = ["--train", str(text), *MLP, "--no-baselines", "--dropout", "0.1", "--batch-size", "256"]
    out, whole = tmp_path / "run", tmp_path / "whole"
    assert networks.main(["mlp-lm", "--out", str(whole), *flags]) == 0
    make_step = steps.training_step
    monkeypatch.setattr(training, "_steps_between_checks", 2)
    monkeypatch.setattr(steps, "train", functools.partial(training.train, checkpoint_seconds=0.0))
    monkeypatch.setattr(steps, "training_step", lambda *a, **o: interrupted(make_step(*a, **o), 7))
    assert networks.main(["mlp-lm", "--out", str(out), *flags]) == 130
    monkeypatch.setattr(steps, "training_step", make_step)
    assert networks.main(["mlp-lm", "--out", str(out), "--resume"]) == 0
    assert without_costs(out) == without_costs(whole)
    ours, theirs = (load_checkpoint(folder / "checkpoints" / "mlp") for folder in (out, whole))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


SEQUENCES = "--tokenizer char --window 32 --width 8 --layers 1 --steps 6 --warmup 2 --evaluations 3 --batch-size 4".split()


@pytest.fixture(scope="module")
def unseen(text):
    path = text.with_name("unseen.txt")
    path.write_text(text.read_text()[::-1])
    return path


@pytest.fixture(scope="module")
def transformer(tmp_path_factory, text, unseen):
    flags = ["--test", unseen, "--heads", "2", "--accumulate", "2", "--dropout", "0.1", "--samples", "1", "--eos"]
    return run(tmp_path_factory, "transformer-lm", "--train", text, *SEQUENCES, *flags)


def test_a_transformer_has_its_costs_and_serves_as_a_language_model(transformer, text, capsys):
    """Its row by hand: 3 evaluations of 2 updates of 2 batches of 4 windows of 32 tokens."""
    (row,) = rows(transformer)
    assert row["trained_tokens"] == 6 * 2 * 4 * 32 and row["vocab_size"] == 5
    assert row["flops"] == 6 * 2 * 4 * 32 * (6 * (12 * 8**2 + 5 * 8) + 12 * 8 * 32)
    assert row["parameters"] == 5 * 8 + 12 * 8**2 + 3 * 8
    events = read_events(transformer, "epoch")
    assert [event["step"] for event in events] == [0, 2, 4, 6] and events[-1]["flops"] == row["flops"]
    assert row["window_loss"] == min(event["dev_loss"] for event in events)
    assert row["dev_perplexity"] == np.exp(row["dev_loss"]) and 0 < row["test_loss_se"] < row["dev_loss_se"] < 1
    assert row["test_positions"] > 9 * row["dev_positions"] > 0  # all lines, and a tenth of them
    assert not list((transformer / "checkpoints").glob("*.partial")) and "curves" in pictures(transformer)
    model = load_model(transformer)
    stream = model.tokenizer.encode("abc")
    (log_p,) = model.score(["abc"])
    np.testing.assert_allclose(log_p[1], next_token(model.model, stream[:1])[stream[1]], rtol=1e-4)


def test_a_transformer_resumes_to_the_same_bits(tmp_path, text, unseen, transformer, monkeypatch):
    flags = ["--train", str(text), "--test", str(unseen), *SEQUENCES, "--heads", "2", "--accumulate", "2", "--dropout", "0.1"]
    out, make_step = tmp_path / "run", steps.training_step
    monkeypatch.setattr(training, "_steps_between_checks", 1)
    monkeypatch.setattr(steps, "train", functools.partial(training.train, checkpoint_seconds=0.0))
    monkeypatch.setattr(steps, "training_step", lambda *a, **o: interrupted(make_step(*a, **o), 7))
    assert networks.main(["transformer-lm", "--out", str(out), *flags, "--samples", "1", "--eos"]) == 130
    monkeypatch.setattr(steps, "training_step", make_step)
    assert networks.main(["transformer-lm", "--out", str(out), "--resume"]) == 0
    assert without_costs(out) == without_costs(transformer)


def test_costs_are_those_of_the_updates_made_where_evaluations_do_not_divide_the_steps(tmp_path_factory, text):
    out = run(tmp_path_factory, "lstm-lm", "--train", text, *SEQUENCES, "--samples", "0", "--steps", "7")  # 2 before each of 4
    (row,), last = rows(out), read_events(out, "epoch")[-1]
    assert row["steps"] == last["step"] == 8 and row["flops"] == last["flops"] and row["trained_tokens"] == 8 * 4 * 32
    assert row["best_step"] in (0, 2, 4, 6, 8)


def test_networks_of_several_starts_and_seeds(tmp_path_factory, text):
    starts = ["none", "embedding+output", "induction+bigram"]
    flags = "--no-tied --direct --positions learned --width 32 --layers 2 --heads 2 --samples 1 --seeds 2 --seed 3".split()
    flags = [*SEQUENCES, *flags, "--start", *starts]
    out = run(tmp_path_factory, "transformer-lm", "--train", text, *flags)
    found = rows(out)
    assert [(row["start"], row["seed"]) for row in found] == [(start, seed) for seed in (3, 4) for start in starts]
    assert [row["start_seconds"] > 0 for row in found] == [True] * 6 and len({row["parameters"] for row in found}) == 1
    first = {(e["start"], e["seed"]): e["dev_loss"] for e in read_events(out, "epoch") if e["step"] == 0}
    assert len(first) == 6 and first["embedding+output", 3] < first["none", 3] - 0.1
    assert load_model(out, method="transformer-embedding+output-4").generate("ab", 5, seed=1)
    assert len(json.loads((out / "samples.json").read_text())) == 6
    assert {"curves"} <= pictures(out)
    report = (out / "report.md").read_text()
    assert "| induction+bigram |" in report and "loss after" in report


def test_a_run_is_not_resumed_on_another_text(tmp_path, text, capsys):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text())
    flags = ["--train", str(other), *SEQUENCES, "--heads", "2", "--samples", "0"]
    assert networks.main(["transformer-lm", "--out", str(tmp_path / "run"), *flags]) == 0
    (tmp_path / "run" / "results.json").unlink()  # as if it had been interrupted
    other.write_text(text.read_text().replace("a", "b"))
    assert networks.main(["transformer-lm", "--out", str(tmp_path / "run"), "--resume"]) == 2
    assert "was started on another text, corpus_sha256" in " ".join(capsys.readouterr().err.split())


def test_an_lstm_without_ends_of_documents_on_two_devices(tmp_path_factory, text):
    one, two = (
        run(tmp_path_factory, "lstm-lm", "--train", text, *SEQUENCES, "--samples", "0", "--devices", devices)
        for devices in (1, 2)
    )
    (row,), (other,) = rows(one), rows(two)
    assert row["dev_loss"] == pytest.approx(other["dev_loss"], rel=1e-5)  # the order of sums
    assert row["dev_positions"] == len("".join(split_documents(text.read_text().splitlines())[1]))


def test_a_network_on_images_in_shorter_epochs(tmp_path_factory):
    flags = "--hidden 8 --epochs 6 --limit 200 --epoch-examples 90 --batch-size 30".split()
    out = run(tmp_path_factory, "fcnn", *flags)
    found = by_name(out)
    assert list(found) == ["explicit", "fcnn"] and found["fcnn"]["steps"] == 6 * 3
    assert found["fcnn"]["train_loss"] < found["fcnn"]["first_loss"]


def test_autoencoders(tmp_path_factory):
    sizes = "--limit 120 --epochs 2 --memories 2 --memory-width 16 --memory-depth 1 --memory-steps 20 --iterations 5 --width 8"
    out = run(tmp_path_factory, "autoencoder", *sizes.split(), *"--bottleneck 4 --memory-scales 0.4".split())
    found = by_name(out)
    assert found["linear, solved"]["train_loss"] < found["linear, trained"]["train_loss"]  # nothing of rank 4 is better
    assert all(0 <= row["anomaly_auc"] <= 1 for row in found.values())
    memory = found["over-parameterised, relu, weights x 0.4"]
    assert memory["largest_singular_value"] >= memory["largest_spectral_radius"] > 0
    gains = {event["start"]: event["gain"] for event in read_events(out, "wide linear")}
    assert gains["identity"] == pytest.approx(1, abs=1e-4) and gains["He x 0.001"] < 0.01 and gains["pseudo-inverse"] < 1e-3
    assert "| bottleneck of 4 | 9 |" in (out / "report.md").read_text() and pictures(out) >= {"codes", "curves"}


def test_pixels_that_never_change_stay_finite():
    images = read_images("digits")
    images = images._replace(train_images=np.full_like(images.train_images, 3))
    assert np.isfinite(centred_data(images).train.X).all()

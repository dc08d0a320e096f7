"""launch.networks, end to end on small data: what it writes, what it refuses, and that it resumes exactly."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

from jexplicit.data.images import read_images
from jexplicit.nn import training
from jexplicit.nn.checklist import all_examples_verdict, one_example_verdict
from jexplicit.runs.bounds import check_bounds
from jexplicit.runs.results import read_events
from launch.networks import __main__ as networks
from launch.networks import config as networks_config
from launch.networks import pictures as networks_pictures
from launch.networks import training as networks_training
from launch.networks.report import write_networks_report

SETTINGS = "model start optimizer initializer sampler objective steps seconds".split()
SCORES = "train_loss dev_loss test_loss dev_perplexity test_accuracy".split()
MLP = "--limit 30 --tokenizer char --context 2 --embedding 2 --hidden 4 --epochs 2 --batch-size 512 --samples 1".split()


def rows(out) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((out / "results.json").read_text())["rows"]}


def without_seconds(out) -> dict[str, dict]:
    return {
        name: {field: value for field, value in row.items() if not field.endswith("seconds")} for name, row in rows(out).items()
    }


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    rng = np.random.default_rng(0)
    path.write_text("\n".join("".join(rng.choice(list("abc"), rng.integers(2, 7))) for _ in range(400)))
    return path


@pytest.fixture(scope="module")
def language_model(tmp_path_factory, text):
    """A run that the read-only tests share."""
    out = tmp_path_factory.mktemp("runs") / "mlp"
    starts = ["--direct", "tokens", "--starts", "cold", "explicit"]
    flags = ["--train", str(text), *MLP, "--limit", "400", *starts]
    assert networks.main(["mlp-lm", "--out", str(out), *flags]) == 0
    return out


def test_a_language_model_is_trained_from_every_start_beside_the_solved_ones(language_model):
    found = rows(language_model)
    assert list(found) == ["unigram", "bigram", "explicit", "log-linear", "mlp-cold", "mlp-explicit"]
    for row in found.values():
        assert {*SETTINGS, *SCORES, "corpus_sha256", "vocab_size"} <= set(row)
        assert row["dev_perplexity"] == pytest.approx(np.exp(row["dev_loss"])) and 0 <= row["test_accuracy"] <= 1
    assert found["mlp-cold"]["steps"] == found["mlp-explicit"]["steps"] > 0
    # three letters and an end; the split is of 400 lines
    assert (
        found["mlp-cold"]["vocab_size"] == 5 and found["mlp-cold"]["dev_positions"] < found["mlp-cold"]["train_positions"] / 7
    )
    assert found["mlp-explicit"]["first_loss"] == pytest.approx(found["explicit"]["dev_loss"], rel=1e-5)  # it begins there


def test_a_run_leaves_the_files_of_the_contract(language_model):
    for name in ("config.json", "environment.json", "metrics.jsonl", "report.md", "samples.json", "checkpoints/mlp-cold"):
        assert (language_model / name).exists(), name
    for name in ("curves", "ratios", "histograms"):
        assert (language_model / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not list((language_model / "checkpoints").glob("*.partial"))
    events = [json.loads(line) for line in (language_model / "metrics.jsonl").read_text().splitlines()]
    assert {"epoch", "ratios", "layer", "row"} <= {event["event"] for event in events}


def test_the_report_is_rebuilt_from_the_run_folder_alone(language_model):
    before = (language_model / "report.md").read_text()
    assert "| mlp-explicit |" in before and "log N = 1.609" in before and "## Sampled documents" in before
    (language_model / "report.md").unlink()
    write_networks_report(language_model)
    assert (language_model / "report.md").read_text() == before


def test_the_report_shows_what_an_embedding_has_learned(language_model, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(language_model, run)
    events = [
        {"event": "embedding", "names": ["a", "$", "\n"], "points": [[0, 0], [1, 2], [3, 1]]},
        {"event": "neighbours", "token": "a", "rank": 2, "count": 1234, "neighbours": [["\n", 0.5], ["$", -0.25]]},
    ]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    write_networks_report(run)
    assert "| 2 | 1,234 | `a` | `\\n` 0.50, `$` -0.25 |" in (run / "report.md").read_text()
    assert (run / "figures" / "embedding.png").read_bytes().startswith(b"\x89PNG")


def test_a_stack_of_softmax_layers_starts_cold_or_solved(tmp_path, text):
    out = tmp_path / "run"
    flags = ["--train", str(text), *MLP, "--limit", "400", "--no-baselines", "--stack", "2", "--starts", "cold", "layers"]
    assert networks.main(["mlp-lm", "--out", str(out), *flags]) == 0
    found = rows(out)
    assert list(found) == ["stack-cold", "stack-layers"] and found["stack-layers"]["model"] == "softmax stack, 2 layers"
    assert found["stack-layers"]["first_loss"] < found["stack-cold"]["first_loss"] - 0.1
    assert "## Embedding" not in (out / "report.md").read_text()


@pytest.mark.parametrize("calls", [pytest.param(3, marks=pytest.mark.slow), 7])
@pytest.mark.slow
def test_a_run_interrupted_anywhere_resumes_to_the_same_rows(tmp_path, text, monkeypatch, calls):
    flags = ["--train", str(text), *MLP, "--limit", "400", "--no-baselines", "--norm", "batch", "--batch-size", "256"]
    out, whole = tmp_path / "run", tmp_path / "whole"
    assert networks.main(["mlp-lm", "--out", str(whole), *flags]) == 0
    original, made = networks_training.training_step, 0

    def interrupted(*args, **options):
        step = original(*args, **options)

        def counted(state, batch):
            nonlocal made
            made += 1
            if made == calls:
                raise KeyboardInterrupt
            return step(state, batch)

        return counted

    monkeypatch.setattr(training, "_steps_between_checks", 2)
    monkeypatch.setattr(networks_training, "train", functools.partial(training.train, checkpoint_seconds=0.0))
    monkeypatch.setattr(networks_training, "training_step", interrupted)
    assert networks.main(["mlp-lm", "--out", str(out), *flags]) == 130
    monkeypatch.setattr(networks_training, "training_step", original)
    assert networks.main(["mlp-lm", "--out", str(out), "--resume"]) == 0
    assert without_seconds(out) == without_seconds(whole)
    ours, theirs = (networks_training.load_checkpoint(folder / "checkpoints" / "mlp-cold") for folder in (out, whole))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
def test_a_network_on_images_and_balanced_batches(tmp_path):
    out = tmp_path / "run"
    flags = ["--hidden", "8", "--epochs", "3", "--limit", "200", "--sampler", "balanced", "--norm", "batch"]
    assert networks.main(["fcnn", "--out", str(out), *flags]) == 0
    found = rows(out)
    assert list(found) == ["explicit", "fcnn"] and found["fcnn"]["sampler"] == "balanced"
    assert found["fcnn"]["train_loss"] < found["fcnn"]["first_loss"]
    assert "| explicit | logits |" in (out / "report.md").read_text()


@pytest.mark.slow
def test_the_search_for_a_rate(tmp_path, text):
    out = tmp_path / "run"
    task = ["--task", "mlp-lm", "--train", str(text), "--tokenizer", "char", "--context", "2", "--embedding", "2"]
    sizes = "--hidden 4 --epochs 1 --batch-size 64 --sweep-steps 200 --grid 3 --grid-steps 10".split()
    assert networks.main(["lr-search", "--out", str(out), *task, *sizes]) == 0
    found = rows(out)
    assert list(found) == ["range test", "grid"] and 1e-4 < found["range test"]["learning_rate"] < 10
    assert (out / "figures" / "search.png").exists()


@pytest.mark.slow
def test_autoencoders(tmp_path):
    out = tmp_path / "run"
    flags = "--limit 120 --epochs 2 --memories 2 --memory-width 16 --memory-depth 1 --memory-steps 20 --iterations 5 --width 8"
    flags += " --bottleneck 4 --memory-scales 0.4"
    assert networks.main(["autoencoder", "--out", str(out), *flags.split()]) == 0
    found = rows(out)
    solved, trained = found["linear, solved"], found["linear, trained"]
    assert solved["train_loss"] < trained["train_loss"]  # nothing of rank 4 is better
    assert found["span of the memories"]["train_loss"] < 1e-6
    assert all(0 <= row["anomaly_auc"] <= 1 for row in found.values())
    memory = found["over-parameterised, relu, weights x 0.4"]
    report = (out / "report.md").read_text()
    assert "| bottleneck of 4 | 9 |" in report and (out / "figures" / "codes.png").exists()
    gains = {event["start"]: event["gain"] for event in read_events(out, "wide linear")}
    assert gains["identity"] == pytest.approx(1, abs=1e-4) and gains["He x 0.001"] < 0.01 and gains["pseudo-inverse"] < 1e-3
    assert memory["largest_singular_value"] >= memory["largest_spectral_radius"] > 0
    assert networks.main(["autoencoder", "--out", str(tmp_path / "b"), "--limit", "100", "--anomaly", "10"]) == 2


@pytest.mark.slow
def test_the_checklist_passes_and_says_what_fails(tmp_path):
    small = "--limit 100 --width 64 --widths --depths 2 --learning-rate 0.003 --steps 150 --epochs 40".split()
    assert networks.main(["check", "--out", str(tmp_path / "good"), *small]) == 0
    found = rows(tmp_path / "good")
    assert list(found) == ["one example", "all examples", "with biases", "depth 2"]
    assert all(row["passed"] for row in found.values()) and found["one example"]["train_loss"] < 1e-4
    assert networks.main(["check", "--out", str(tmp_path / "bad"), *small, "--initializer", "zeros", "--steps", "3"]) == 0
    (failed,) = rows(tmp_path / "bad").values()
    assert not failed["passed"] and "gradient is 0 at the start" in failed["reason"]
    assert "**failed**" in (tmp_path / "bad" / "report.md").read_text()


@pytest.mark.parametrize(
    ("losses", "changes", "reason"),
    [
        ([1.0, 2.0], {}, "lower the learning rate"),
        ([1.0, float("nan")], {}, "lower the learning rate"),
        ([1.0, *np.linspace(0.9, 0.5, 40)], {}, "use more steps"),
        ([1.0, *[0.5] * 40], {}, "look for a bug"),
        ([0.5, 0.5], {"gradient_norm": 0.0}, "the gradient is 0"),
        ([0.5, 0.5], {"input_norm": 0.0}, "use another example, or biases"),
        ([0.5, 1e-5, 2e-5], {}, "reached at step 1"),
    ],
)
def test_verdicts_name_the_fault(losses, changes, reason):
    verdict = one_example_verdict(losses, **{"input_norm": 1.0, "gradient_norm": 1.0, "bias": False, **changes})
    assert reason in verdict.reason and verdict.passed == reason.startswith("reached")


def test_a_constant_answer_is_not_enough():
    assert not all_examples_verdict(0.44, 0.45).passed and all_examples_verdict(0.2, 0.45).passed
    assert not all_examples_verdict(0.1, 0.0).passed  # one class: the constant answer is right already


def test_pixels_that_never_change_stay_finite():
    images = read_images("digits")
    images = images._replace(train_images=np.full_like(images.train_images, 3))
    assert np.isfinite(networks_pictures.centred_data(images).train.X).all()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("mlp-lm --starts explicit", "add --direct tokens"),
        ("mlp-lm --starts layers", "add --stack 2"),
        ("mlp-lm --stack 2 --starts output", "use cold or layers"),
        ("mlp-lm --train nowhere.txt", "no such file"),
        ("mlp-lm --dev a.txt", "--dev and --test go together"),
        ("mlp-lm --corpus text", "--corpus text without --train"),
        ("mlp-lm --context 0", "--context 0: use at least 1"),
        ("mlp-lm --hidden 0", "--hidden 0: use at least 1"),
        ("fcnn --limit 5", "--limit 5: use at least 30"),
        ("fcnn --learning-rate 0", "--learning-rate 0.0: use above 0"),
        ("fcnn --batch-size -1", "--batch-size -1: use at least 0"),
        ("fcnn --patience 0", "--patience 0: use at least 1"),
        ("fcnn --data mnist --data-dir nowhere", "nowhere"),
        ("fcnn --preset nothing", "choose one of tiny"),
        ("lr-search --lowest 1 --highest 0.1", "give a lowest rate below the highest"),
        ("lr-search --sweep-steps 1", "--sweep-steps 1: use at least 2"),
        ("compare optimizers --rates 0.1 -1", "--rates 0.1 -1.0: use above 0"),
        ("compare optimizers --rates", "--rates needs at least one value"),
        ("compare colours", "activations"),
        ("compare dropout --depths 0", "--depths 0: use at least 1"),
        ("fcnn --dropout 1", "--dropout 1.0: use at least 0 and below 1"),
        ("sorting", "sorting"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, command, message):
    name, *flags = command.split()
    try:
        assert networks.main([name, "--out", str(tmp_path / "run"), *flags]) == 2
    except SystemExit as refused:  # of the parser
        assert refused.code == 2
    output = capsys.readouterr()
    assert message in (output.err + output.out).replace("\n", " ")


@pytest.mark.parametrize("name", sorted(networks.COMMANDS))
def test_every_preset_is_a_valid_configuration(name):
    assert "tiny" in networks_config.PRESETS[name]
    for preset in networks_config.PRESETS[name].values():
        check_bounds(preset.config)
        networks_config.check(preset.config)
        assert preset.note and isinstance(preset.config, networks.COMMANDS[name].config)

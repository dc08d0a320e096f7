"""launch.blur, end to end on small data: what it writes, what it refuses, and that it resumes exactly."""

import dataclasses
import functools
import json

import pytest

from icl.blur.genome_files import load_genome
from jexplicit.runs.results import read_events
from launch.bench import run as bench
from launch.blur import __main__ as blur
from launch.blur import experiments, measurements
from launch.blur.config import PRESETS, check, designs
from launch.blur.measurements import FIELDS, make_curriculum
from launch.blur.report import write_blur_report

TRAIN = (
    "--limit 300 --hidden 4 --batch-size 8 --learners 1 --steps 3 --far 4 --states 2 --population 2 --unroll 2 --meta-steps 4 "
    "--every 2 --episodes 1 --query-size 20 --baselines"
).split()


def rows(out):
    return json.loads((out / "results.json").read_text())["rows"]


def without_seconds(out):
    return [{field: value for field, value in row.items() if field != "seconds"} for row in rows(out)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that the other tests read."""
    out = tmp_path_factory.mktemp("runs") / "train"
    assert blur.main(["train", "--out", str(out), *TRAIN]) == 0
    return out


@pytest.mark.slow
def test_a_genome_is_meta_trained_beside_descent(trained):
    found = rows(trained)
    assert all(set(FIELDS) <= set(row) and row["experiment"] == "train" for row in found)
    ours = [row for row in found if row["genome"]]
    assert [row["step"] for row in ours] == [0, 1, 2, 4] and {row["states"] for row in ours} == {2}
    assert {row["unroll"] for row in ours} == {2} and all(0 <= row["test_accuracy"] <= 1 for row in found)
    learned = load_genome(trained / "genome.json")
    assert learned.rules.states == 2 and learned.provenance["config"]["limit"] == 300
    assert learned.provenance["test_accuracy"]["4"] == pytest.approx(ours[-1]["test_accuracy"], abs=1e-4)
    for name in ("config.json", "environment.json", "metrics.jsonl", "report.md"):
        assert (trained / name).exists(), name
    for name in ("learning", "meta", "stability"):
        assert (trained / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not list((trained / "checkpoints").glob("*.partial")) if (trained / "checkpoints").exists() else True


@pytest.mark.slow
def test_the_report_is_rebuilt_from_the_run_folder_alone(trained):
    before = (trained / "report.md").read_text()
    assert "genome digits" in before and "![learning](figures/learning.png)" in before
    (trained / "report.md").unlink()
    write_blur_report(trained)
    assert (trained / "report.md").read_text() == before


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_rows(trained, tmp_path, monkeypatch):
    out, original = tmp_path / "run", measurements.meta_train

    def interrupted(*args, **more):
        on_evaluation = more.pop("on_evaluation")

        def stop(entry):
            on_evaluation(entry)
            if entry["step"] == 4:
                raise KeyboardInterrupt

        return original(*args, **more, on_evaluation=stop, checkpoint_seconds=-1.0)

    monkeypatch.setattr(measurements, "meta_train", interrupted)
    assert blur.main(["train", "--out", str(out), *TRAIN]) == 130
    monkeypatch.setattr(measurements, "meta_train", functools.partial(original, checkpoint_seconds=-1.0))
    assert blur.main(["train", "--out", str(out), "--resume"]) == 0
    assert without_seconds(out) == without_seconds(trained)
    assert load_genome(out / "genome.json").genome.nu.tolist() == load_genome(trained / "genome.json").genome.nu.tolist()
    assert {event["step"] for event in read_events(out, "meta")} == {2, 4}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("train --data mnist --data-dir nowhere", "nowhere holds neither"),
        ("train --unroll 5 10 --meta-steps 100", "--unroll (5, 10) and --meta-steps (100,): give one number in each"),
        ("train --states 1", "1 states: neurons have at least 2"),
        ("train --batch-size 2000", "batches of 2000 out of"),
        ("train --meta-rate 0", "--meta-rate 0.0: use above 0"),
        ("train --method evolution --population 2 --unroll 5 --meta-steps 5", "use at least 4 genomes, one stage"),
        ("train --rates -1", "--rates -1.0: use above 0"),
        ("transfer --genome nothing.json", "neither a file nor one of digits"),
        ("transfer --others mnist@x", "write NAME@SIDE"),
        ("ablation --variants louder", "--variants louder: choose some of"),
        ("sgd-check --sizes 3", "layers of (3,) neurons: at least an input and an output layer"),
        ("train --preset huge", "preset 'huge': choose one of tiny"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(tmp_path, capfd, arguments, message):
    assert blur.main([*arguments.split(), "--out", str(tmp_path / "run")]) == 2
    printed = " ".join(capfd.readouterr().err.split())
    assert message in printed and "Traceback" not in printed


@pytest.mark.slow
def test_a_run_is_not_overwritten_and_help_needs_no_run(trained, capfd):
    assert blur.main(["train", "--out", str(trained), *TRAIN]) == 2
    assert "already holds a run: add --resume" in " ".join(capfd.readouterr().err.split())
    for arguments in (["train", "--help"], ["ablation", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            blur.main(arguments)
        assert stopped.value.code == 0
    assert "--synapse-norm" in capfd.readouterr().out


def test_every_named_config_makes_sense():
    for presets in PRESETS.values():
        for preset in presets.values():
            check(preset.config)
            if hasattr(preset.config, "unroll"):
                assert make_curriculum(preset.config)
    made = designs(PRESETS["ablation"]["tiny"].config)
    assert list(made) == ["reference", "normalise none", "normalise both", "2 states", "oja"]
    assert not made["normalise none"].normalise_output and made["oja"].oja


def test_designs_that_are_equal_share_a_genome_but_another_start_does_not(monkeypatch):
    """The reference is also the design normalised in both passes; from the matrices of descent it is another genome."""
    searched = []

    def record(folder, name, design, sets, *, backprop):
        searched.append((name, backprop))
        return load_genome("digits")._replace(provenance={"skipped": 0, "seconds": 0.0})

    monkeypatch.setattr(experiments, "find_genome", record)
    monkeypatch.setattr(experiments, "measure_learners", lambda *args, **key: None)
    config = dataclasses.replace(PRESETS["ablation"]["tiny"].config, variants=("oja", "backprop start"))
    experiments.run_ablation(config, None)  # pyright: ignore[reportArgumentType]
    assert searched == [
        ("reference", False),
        ("normalise none", False),
        ("reference", False),
        ("2 states", False),
        ("oja", False),
        ("backprop start", True),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transfer", "ablation", "sgd-check", "train"])
def test_the_tiny_presets_run(tmp_path, name):
    out = tmp_path / "run"
    assert blur.main([name, "--preset", "tiny", "--out", str(out)]) == 0
    found = rows(out)
    assert all(set(FIELDS) <= set(row) for row in found) and (out / "report.md").exists()
    before = without_seconds(out)
    assert blur.main([name, "--out", str(out), "--resume"]) == 0  # nothing is measured twice
    assert without_seconds(out) == before
    if name == "train":
        baselines = [row for row in found if row["baseline"]]
        assert {row["baseline"] for row in baselines} == {"sgd", "sgd, normalised"}
        assert {row["learning_rate"] for row in baselines} <= {0.1, 1.0}
        assert "sgd, normalised" in (out / "report.md").read_text()
    if name == "sgd-check":
        checks = [row for row in found if row["experiment"] == "sgd-check"]
        assert len(checks) == 24
        assert all(row["max_difference"] < (1e-6 if row["precision"] == "float32" else 1e-12) for row in checks)
        curls = {row["genome"]: row for row in found if row["experiment"] == "curl"}
        assert curls["sgd"]["curl"] < 1e-12 and curls["digits"]["curl"] > 100 * curls["digits"]["numerical_error"]


@pytest.mark.slow
def test_evolution_is_a_method(tmp_path):
    out = tmp_path / "run"
    flags = [*TRAIN, "--method", "evolution", "--population", "4"]
    assert blur.main(["train", "--out", str(out), *flags]) == 0
    assert load_genome(out / "genome.json").provenance["config"]["method"] == "evolution"


@pytest.mark.slow
def test_the_bench_times_steps_of_equal_losses(tmp_path):
    out = tmp_path / "run"
    assert bench.main(["blur", "--preset", "tiny", "--out", str(out)]) == 0
    found = rows(out)
    assert {row["method"] for row in found} == {"icl.blur", "state axis last", "genomes under vmap"}
    assert all(row["cpu_seconds"] > 0 and row["ratio_to_vmap"] > 0 for row in found)

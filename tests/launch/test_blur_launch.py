"""launch.blur, end to end on small data: what it writes, what it refuses, and that it resumes exactly."""

import dataclasses
import functools
import itertools
import json

import pytest

from icl.blur.genome_files import load_genome, shipped_genomes
from jexplicit.runs.results import read_events
from launch.bench import run as bench
from launch.blur import __main__ as blur
from launch.blur import experiments, measurements
from launch.blur.comparison import compare_seeds
from launch.blur.config import AblationConfig, check, designs, hidden_layers
from launch.blur.measurements import FIELDS, make_curriculum, make_evolution_recipe
from launch.blur.presets import PRESETS
from launch.blur.report import blur_table, write_blur_report

TRAIN = (
    "--limit 300 --widths 4 --batch-size 8 --learners 1 --steps 3 --far 4 --states 2 --population 2 --unroll 2 --meta-steps 4 "
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
        (
            "train --unroll 5 10 --meta-steps 100",
            "--unroll (5, 10) and --meta-steps (100,): give each flag one number per stage",
        ),
        ("train --states 1", "1 states: neurons have at least 2"),
        ("train --batch-size 2000", "batches of 2000 out of"),
        ("train --meta-rate 0", "--meta-rate 0.0: use above 0"),
        ("train --method evolution --population 2 --unroll 5 --meta-steps 5", "use at least 4 genomes and one stage"),
        ("train --rates -1", "--rates -1.0: use above 0"),
        ("transfer --genome nothing.json", "neither a file nor one of boolean, digits"),
        ("transfer --others mnist@x", "write NAME@SIDE"),
        ("ablation --variants louder", "--variants louder: choose some of"),
        ("train --classes 3", "--classes 3: give at least two classes, each once"),
        ("train --classes 1 2 1", "--classes 1 2 1: give at least two classes, each once"),
        ("train --classes 3 10", "classes 3 10 of digits: use at least two of 0 .. 9, each once"),
        ("transfer --to-classes 8 11", "classes 8 11 of digits: use at least two of 0 .. 9"),
        ("transfer --networks 16xx", "--networks 16xx: write the widths"),
        ("transfer --networks 0", "--networks 0: write the widths"),
        ("grid --momenta 1", "--momenta 1.0: use at least 0 and below 1"),
        ("grid --momenta", "--momenta: give at least one"),
        ("ablation --seeds 0", "--seeds 0: use at least 1"),
        ("sgd-check --sizes 3", "layers of (3,) neurons: at least an input and an output layer"),
        ("train --data xor", "--data xor: give --data xor and --families boolean together"),
        ("train --data xor --families boolean --side 4", "--data xor with --side 4: it has four points and no images"),
        ("grid --data xor --classes 0 1", "--data xor with --classes 0 1: it has four points and no images"),
        ("transfer --data xor --families boolean", "--data xor with --sides 4 16: it has four points and no images"),
        ("ablation --data xor --families boolean", "--data xor: an ablation also runs its genomes on larger images"),
        ("train --families boolean", "--data digits --families boolean: give --data xor and --families boolean together"),
        ("train --families digits --limit 400", "examples: use at least one of each, and fewer than the examples"),
        ("train --average", "average with synapse_norm"),
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
    assert list(made) == ["reference", "normalise both + output", "normalise both", "2 states", "relu_tanh neurons"]
    assert made["2 states"].states == 2 and made["relu_tanh neurons"].hidden_activation == "relu_tanh"
    assert hidden_layers("16") == (16,) and hidden_layers("256x128") == (256, 128)


def test_the_passes_and_the_output_are_normalised_independently():
    """Eight designs, every combination once, each different from the reference in nothing else."""
    made = {name: design for name, design in designs(AblationConfig("out")).items() if name.startswith("normalise")}
    switches = [(design.normalise, design.normalise_output) for design in made.values()]
    assert sorted(switches) == sorted(itertools.product(("none", "forward", "backward", "both"), (True, False)))
    for name, design in made.items():
        assert name == f"normalise {design.normalise}{' + output' * design.normalise_output}"
        assert dataclasses.replace(design, normalise="both", normalise_output=True) == AblationConfig("out")


def test_presets_have_the_scale_of_the_poster_and_the_paper():
    train, transfer, ablation = (PRESETS[command] for command in ("train", "transfer", "ablation"))
    poster = train["poster"].config
    assert (poster.data, poster.side, poster.widths, poster.states, poster.population) == ("mnist", 10, (256, 128), 4, 8)
    assert poster.unroll == (10, 15, 20, 25, 30, 35, 40, 45, 50) and set(poster.meta_steps) == {10_000}
    assert train["poster-wide"].config.widths == (512, 256) and train["mnist28"].config.side == 28
    assert transfer["class-split"].config.classes == train["class-split"].config.classes == (0, 1, 2, 3, 4)
    assert transfer["class-split"].config.to_classes == (5, 6, 7, 8, 9)
    for name in ("poster", "poster-small", "class-split", "class-split-small"):  # made by the train preset of that name
        assert transfer[name].config.genome == f"{train[name].config.out}/genome.json"
    depth = transfer["depth"].config
    assert (depth.train_depths, depth.depths) == ((1, 2, 4), (1, 2, 4, 5, 10))
    assert list(designs(ablation["states"].config)) == ["reference", *(f"{k} states" for k in (2, 4, 8, 16))]
    recipe = make_evolution_recipe(train["cmaes"].config)
    assert (recipe.hidden, recipe.population, recipe.unroll, recipe.batch_size) == ((512,), 80, 15, 128)
    assert (recipe.query_size, recipe.learners, train["cmaes"].config.meta_steps) == (20 * 128, 1, (400,))
    for presets in PRESETS.values():  # the full ones have small ones, which are less of the same
        for name, preset in presets.items():
            if name not in ("tiny", *shipped_genomes()) and not name.endswith("-small"):
                small = presets[f"{name}-small"].config
                assert small.data == preset.config.data and small.learners <= preset.config.learners
                assert sum(getattr(small, "meta_steps", (0,))) <= sum(getattr(preset.config, "meta_steps", (0,)))


def test_designs_that_are_equal_share_a_genome_but_another_start_does_not(monkeypatch):
    """The reference is also the design normalised in both passes; from the matrices of descent it is another genome."""
    searched, measured = [], []

    def record(folder, name, design, sets):
        searched.append((name, design.seed, design.start))
        return load_genome("digits")._replace(provenance={"skipped": 0, "seconds": 0.0})

    monkeypatch.setattr(experiments, "find_genome", record)
    monkeypatch.setattr(experiments, "measure_learners", lambda *args, **key: measured.append(key))
    config = dataclasses.replace(PRESETS["ablation"]["tiny"].config, variants=("oja", "backprop start"), seed=3)
    experiments.run_ablation(config, None)  # pyright: ignore[reportArgumentType]
    names = ["reference", "reference", "normalise both", "2 states", "relu_tanh neurons", "oja", "backprop start"]
    assert searched == [
        (f"{name}/{seed}", seed, "backprop" if name == "backprop start" else "random") for name in names for seed in (3, 4)
    ]
    assert [key["seed"] for key in measured[:6]] == [3, 3, 3, 4, 4, 4]  # in three places each
    assert len(measured) == len({(key["genome"], key["seed"], key["where"]) for key in measured}) == 7 * 2 * 3


def test_what_seeds_tell_apart():
    """By the formula, with a loop: the standard error of a difference of two means from the squares about each mean."""
    design, reference = (0.9, 0.8, 0.85, 0.87), (0.7, 0.75, 0.71)
    squares = []
    for values in (design, reference):
        mean = sum(values) / len(values)
        squares.append(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    found = compare_seeds(design, reference)
    assert found.spread == pytest.approx(squares[0] ** 0.5, rel=1e-12)
    assert found.error == pytest.approx((squares[0] / 4 + squares[1] / 3) ** 0.5, rel=1e-12)
    assert found.difference == pytest.approx(0.855 - 0.72, rel=1e-12) and found.clear
    assert compare_seeds(reference, design).difference == -found.difference
    assert not compare_seeds(design, design).clear  # the reference itself
    assert not compare_seeds((0.5, 0.9), (0.6, 0.7)).clear
    alone = compare_seeds((0.9,), (0.1,))
    assert (alone.spread, alone.error, alone.clear) == (None, None, False)
    with pytest.raises(ValueError, match="0 and 1 seeds"):
        compare_seeds((), (0.5,))


def test_the_ablation_s_table_is_over_seeds(tmp_path):
    """Rows of four seeds, made by hand: `b` is 10 points better with a spread of 1, `a` differs by less than chance."""
    accuracies = {"reference": (0.80, 0.82, 0.78, 0.80), "a": (0.79, 0.83, 0.80, 0.80), "b": (0.90, 0.91, 0.89, 0.90)}
    shared = dict(experiment="ablation", baseline=None, spread=0.2, inputs=64, hidden=[8])
    made = [
        {**shared, "genome": name, "seed": seed, "where": where, "step": n, "test_accuracy": value - 0.1 * (n < 10)}
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
        for where in ("same", "deeper")
        for n in (5, 10)
    ]
    (tmp_path / "results.json").write_text(json.dumps({"rows": made}))
    config = {"launcher": "blur", "seed": 0, "seeds": 4, "unroll": [10], "meta_steps": [600], "population": 2, "learners": 10}
    (tmp_path / "config.json").write_text(json.dumps(config))
    curves = [
        {"event": "curve", "experiment": "ablation", "genome": name, "seed": 0, "where": "same", "accuracy": [0.1, 0.5, 0.8]}
        | {"size": [1.0, 1.0, 1.0]}
        for name in accuracies
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in curves))
    report = write_blur_report(tmp_path).read_text()
    assert (
        "| b | same | 80.0 | 90.0 | 0.8 | +10.0 | 0.9 | yes |" in report
    )  # √(2/3) over seeds, √(2/3/4 + 8/3/4) of the difference
    assert "| a | deeper | 70.5 | 80.5 | 1.7 | +0.5 | 1.2 |  |" in report
    assert "Better: b. Worse: none." in report and blur_table(made).row_count == 6
    assert (tmp_path / "figures" / "designs.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transfer", "ablation", "grid", "sgd-check", "train"])
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
    if name == "grid":
        cells = [row for row in found if row["baseline"]]
        assert {(row["momentum"], row["learning_rate"], row["normalisation"], row["step"]) for row in cells} == set(
            itertools.product((0.0, 0.9), (0.1, 1.0), ("none", "forward"), (10, 12))
        )
        assert len(cells) == 16 and (out / "figures" / "grid.png").exists() and "n = 12" in (out / "report.md").read_text()
    if name == "ablation":
        assert {row["seed"] for row in found} == {0, 1} and len(list((out / "genomes").glob("*/*.json"))) == 8
        shown = {row["step"]: row["test_accuracy"] for row in found if row["seed"] == 0 and row["where"] == "same"}
        assert set(shown) == {0, 1, 2, 5, 10, 12} and "over twice that" in (out / "report.md").read_text()
    if name == "sgd-check":
        checks = [row for row in found if row["experiment"] == "sgd-check"]
        assert len(checks) == 24
        assert all(row["max_difference"] < (1e-6 if row["precision"] == "float32" else 1e-12) for row in checks)
        curls = {row["genome"]: row for row in found if row["experiment"] == "curl"}
        assert curls["sgd"]["curl"] < 1e-12 and curls["boolean"]["curl"] > 100 * curls["boolean"]["numerical_error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "boolean"])
def test_the_shipped_genomes_can_be_made_again(tmp_path, name):
    """Few meta-steps of the presets: the rules are those of the shipped genome, and meta-training has changed the start."""
    flags = ["--meta-steps", "1", "--unroll", "2", "--population", "1", "--learners", "1", "--steps", "2", "--far", "0"]
    assert blur.main(["train", "--preset", name, "--out", str(tmp_path / "run"), *flags, "--baselines"]) == 0
    made, shipped = load_genome(tmp_path / "run" / "genome.json"), load_genome(name)
    assert made.rules == shipped.rules and made.provenance["config"]["families"] == name
    assert made.provenance["data"] == shipped.provenance["data"]
    assert made.genome.nu.tolist() != shipped.genome.nu.tolist()


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


@pytest.mark.slow
def test_a_genome_of_some_classes_meets_the_others(tmp_path, trained):
    """Its learners on digits 0 to 4, in two layers, and on 5 to 9."""
    flags = "--classes 0 1 2 3 4 --to-classes 5 6 7 8 9 --networks 4x3 --sides --others --train-depths --learners 1 --steps 3"
    out = tmp_path / "run"
    arguments = ["transfer", "--genome", str(trained / "genome.json"), "--limit", "300", "--batch-size", "8", "--widths", "4"]
    assert blur.main([*arguments, *flags.split(), "--out", str(out)]) == 0
    found = rows(out)
    assert {row["where"] for row in found} == {"same", "hidden 4x3", "classes 5 6 7 8 9"}
    assert {tuple(row["hidden"]) for row in found if row["where"] == "hidden 4x3"} == {(4, 3)}
    assert "classes 5 6 7 8 9" in (out / "report.md").read_text()

"""launch.blur, end to end on small data: what it writes, what it refuses, and that it resumes exactly."""

import dataclasses
import functools
import itertools
import json

import pytest
from outlines import check_report

from icl.blur.genome_files import load_genome, shipped_genomes
from icl.blur.judging.classifiers import CLASSIFIERS
from icl.blur.judging.suite import SUITE, select_tasks, task_sets
from icl.names import RATES
from jexplicit.runs.results import read_events, read_rows
from launch.blur import __main__ as blur
from launch.blur import ablation, tasks, train
from launch.blur.ablation import compare_seeds, designs
from launch.blur.config import AblationConfig
from launch.blur.learners import FIELDS
from launch.blur.opponents import EQUAL_COST, equal_lines
from launch.blur.presets import PRESETS
from launch.blur.tasks import task_rates
from launch.blur.train import make_evolution_recipe
from launch.kit.rows import Results, only, where

pytestmark = pytest.mark.slow

NETWORKS = "--limit 300 --widths 4 --batch-size 8 --learners 1 --steps 3"
META = "--states 2 --population 2 --unroll 2 --meta-steps 4 --every 2 --episodes 1 --query-size 20"
RUNS = {
    "train": f"train {NETWORKS} {META} --far 4 --rates 0.1 1 --baselines sgd --baseline-activations tanh",
    "transfer": f"transfer {NETWORKS} {META} --genome hebbian --networks 4x3 --sides 16 --others wine --train-depths 1 "
    "--depths 1 2 --classes 0 1 2 3 4 --to-classes 5 6 7 8 9",
    "ablation": f"ablation {NETWORKS} {META} --seeds 2 --normalisations --numbers-of-states 2 3 --nonlinearities --variants",
    "grid": f"grid {NETWORKS} --steps 12 --genome hebbian --rates 0.1 1 --momenta 0 0.9",
    "tasks": "tasks --learners 1 --batch-size 8 --tasks iris/128 xor/64",
    "speed": "tasks --learners 1 --batch-size 8 --tasks iris/128 --against adam",
}


def without_seconds(out):
    return [{k: x for k, x in row.items() if k not in ("seconds", "meta_seconds")} for row in read_rows(out)]


def printed_error(capfd):
    return " ".join(capfd.readouterr().err.split())


@pytest.fixture(scope="module", autouse=True)
def few():
    """Fewer updates and rates of `blur tasks` than in a real run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "UPDATES", (1, 10))
        patch.setattr(tasks, "RATES", (0.1, 1.0))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(name)`: the folder of a run that all tests read."""

    @functools.cache
    def measure(name):
        out = tmp_path_factory.mktemp("runs") / name
        assert blur.main([*RUNS[name].split(), "--out", str(out)]) == 0
        return out

    return measure


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_rows_report_and_figures(run, name):
    out = run(name)
    rows = read_rows(out)
    check_report(out, f"blur_{name}")
    assert all(set(FIELDS) <= set(row) for row in rows) and json.loads((out / "config.json").read_text())["launcher"] == "blur"
    assert (out / "environment.json").exists() and (out / "metrics.jsonl").exists()


def test_a_genome_is_meta_trained_beside_descent(run):
    out = run("train")
    ours, theirs = (where(read_rows(out), baseline=kinds) for kinds in (None, ("sgd", "sgd, normalised")))
    assert [row["step"] for row in ours] == [0, 1, 2, 4] and {row["states"] for row in ours} == {2}
    assert {row["unroll"] for row in ours} == {2} and all(0 <= row["test_accuracy"] <= 1 for row in ours)
    assert {row["learning_rate"] for row in theirs} <= {0.1, 1.0} and len(theirs) == 2 * 4
    learned = load_genome(out / "genome.json")
    assert learned.rules.states == 2 and learned.provenance["config"]["limit"] == 300
    assert learned.provenance["test_accuracy"]["4"] == pytest.approx(ours[-1]["test_accuracy"], abs=1e-4)
    assert not list(out.rglob("*.partial")) and {event["step"] for event in read_events(out, "meta")} == {2, 4}


def test_places_depths_designs_and_grids(run):
    elsewhere = read_rows(run("transfer"))
    assert {row["where"] for row in where(elsewhere, experiment="transfer")} == {
        *("same", "hidden 4x3", "16 x 16", "wine", "classes 5 6 7 8 9")
    }
    assert {tuple(row["hidden"]) for row in where(elsewhere, where="hidden 4x3")} == {(4, 3)}
    assert {row["layers"] for row in where(elsewhere, experiment="depth", genome="depth 1")} == {1, 2}
    made = read_rows(run("ablation"))
    assert {row["genome"] for row in made} == {"reference", "2 states", "3 states"} and {row["seed"] for row in made} == {0, 1}
    same = {name: where(made, genome=name, where="same", step=3) for name in ("reference", "2 states")}
    assert [row["test_accuracy"] for row in same["reference"]] == [row["test_accuracy"] for row in same["2 states"]]
    assert len(list((run("ablation") / "genomes").glob("*/*.json"))) == 4  # the reference has two states
    cells = [row for row in read_rows(run("grid")) if row["baseline"]]
    found = [(row["momentum"], row["learning_rate"], row["normalisation"], row["step"]) for row in cells]
    assert sorted(found) == sorted(itertools.product((0.0, 0.9), (0.1, 1.0), ("none", "forward"), (10, 12)))


def test_a_task_has_the_best_of_six_baselines_beside_the_rule(run):
    rows = read_rows(run("tasks"))
    assert [(row["task"], row["n"]) for row in rows] == [(task, n) for task in ("iris/128", "xor/64") for n in (1, 10)]
    baselines = json.loads((run("tasks") / "baselines.json").read_text())["tasks"]
    for row in rows:
        assert (row["width"], row["depth"]) in {(128, 1), (64, 1)} and row["layers"] == row["depth"] and row["step"] == row["n"]
        candidates = where(baselines[row["task"]]["rows"], n=row["n"])
        assert len(candidates) == 6 and {one["learning_rate"] for one in candidates} <= {0.1, 1.0}
        assert row["best_baseline"] == max(one["test_accuracy"] for one in candidates)
        assert row["wins"] == (row["rule_accuracy"] > row["best_baseline"] + 1e-9)
        assert row["tie"] == (abs(row["rule_accuracy"] - row["best_baseline"]) <= 1e-9)
        assert row["rule_accuracy"] == row["test_accuracy"] and row["spread"] == row["baseline_spread"] == 0  # one learner
    assert max(row["rule_accuracy"] for row in where(rows, task="iris/128")) > 0.6  # it learns: three classes


@pytest.mark.parametrize("name", ["train", "transfer"])
def test_opponents_have_at_most_the_cost_of_the_rule_and_its_examples(run, name):
    """SGD makes as many updates as fit into the FLOPs of the rule; with its examples too, those are 8 n."""
    rows = read_rows(run(name))
    places = {row.get("where") for row in rows if row["experiment"] == name}
    for place in places:
        own, sgd, equal = (
            {row["step"]: row for row in where(rows, experiment=name, where=place, **fields)}
            for fields in ({"baseline": None}, {"baseline": "sgd"}, {"baseline": EQUAL_COST, "equal": "FLOPs"})
        )
        assert set(equal) == {1, 2}
        for n, row in equal.items():
            update = sgd[1]["flops"]
            assert sgd[n]["flops"] == n * update and own[n]["flops"] == n * own[1]["flops"]
            assert own[n]["flops"] - update < row["flops"] == row["updates"] * update <= own[n]["flops"]
            again = only(rows, experiment=name, where=place, baseline=EQUAL_COST, equal="FLOPs and examples", step=n)
            assert own[n]["examples"] == sgd[n]["examples"] == again["examples"] == 8 * n
            assert 8 * n <= row["examples"] <= 8 * row["updates"] and again["updates"] == row["updates"]
    for classifier in CLASSIFIERS:
        found = where(rows, baseline=classifier)
        assert {row["examples"] for row in found} == {8, 16} and {row["equal"] for row in found} == {"examples"}
        assert {row.get("where") for row in found} == places - {"hidden 4x3"}  # the data of the first place
    assert {"nearest neighbour", "sgd at equal FLOPs"} <= set(
        equal_lines(Results(run(name), {}, where(rows, experiment=name)))[0]
    )


def test_an_interrupted_search_resumes_to_the_same_rows(run, tmp_path, monkeypatch):
    out, original = tmp_path / "run", train.meta_train

    def interrupted(*args, on_evaluation, **more):
        def stop(entry):
            on_evaluation(entry)
            if entry["step"] == 4:
                raise KeyboardInterrupt

        return original(*args, **more, on_evaluation=stop, checkpoint_seconds=-1.0)

    monkeypatch.setattr(train, "meta_train", interrupted)
    assert blur.main([*RUNS["train"].split(), "--out", str(out)]) == 130
    monkeypatch.setattr(train, "meta_train", original)
    assert blur.main(["train", "--out", str(out), "--resume"]) == 0
    assert without_seconds(out) == without_seconds(run("train"))
    assert load_genome(out / "genome.json").genome.nu.tolist() == load_genome(run("train") / "genome.json").genome.nu.tolist()


def test_baselines_of_another_run_are_taken_or_refused(run, tmp_path, monkeypatch, capfd):
    judged, flags = run("tasks"), [*RUNS["tasks"].split(), "--baselines"]

    def refuse(config, task, sets):
        raise AssertionError(f"baselines of {task.name} are there")

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "measure_baselines", refuse)
        out = tmp_path / "run"
        assert blur.main([*flags, str(judged), "--genome", "mnist", "--out", str(out)]) == 0
        assert blur.main(["tasks", "--out", str(out), "--resume"]) == 0
    for ours, theirs in zip(read_rows(out), read_rows(judged), strict=True):
        assert ours["best_baseline"] == theirs["best_baseline"] and ours["genome"] == "mnist"
    assert (out / "baselines.json").read_text() == (judged / "baselines.json").read_text()
    capfd.readouterr()
    stored, elsewhere = json.loads((judged / "baselines.json").read_text()), tmp_path / "elsewhere"
    elsewhere.mkdir()
    stored["tasks"]["xor/64"]["key"]["data"]["sha256"] = "0"
    for folder, changed, text, message in (
        (judged, "--learners 2", None, "other learners 1 (now 2)"),
        (judged, "--seed 1", None, "other seed 0 (now 1)"),
        (elsewhere, "", json.dumps(stored), "with other data, network or rates of xor/64: leave --baselines out"),
        (elsewhere, "", "{}", "cannot be read as baselines"),
    ):
        if text:
            (elsewhere / "baselines.json").write_text(text)
        assert blur.main([*flags, str(folder), *changed.split(), "--out", str(tmp_path / "other")]) == 2
        assert message in printed_error(capfd) and not (tmp_path / "other").exists()


_xor, _boolean = "it has four points and no images", "give --data xor and --families boolean together"
REFUSED = {
    "train --data mnist --data-dir nowhere": "nowhere holds neither",
    "train --unroll 5 10 --meta-steps 100": "--unroll (5, 10) and --meta-steps (100,): give each flag one number per stage",
    "train --states 1": "1 states: neurons have at least 2",
    "train --batch-size 2000": "batches of 2000 out of",
    "train --meta-rate 0": "--meta-rate 0.0: use above 0",
    "train --method evolution --population 2 --unroll 5 --meta-steps 5": "use at least 4 genomes and one stage",
    "train --method evolution --families digits": "evolution has no families; use --method gradient",
    "train --rates -1": "--rates -1.0: use above 0",
    "transfer --genome nothing.json": "neither a file nor one of boolean, digits",
    "transfer --others mnist@x": "write NAME@SIDE",
    "ablation --variants louder": "--variants louder: choose some of",
    "train --classes 3": "--classes 3: give at least two classes, each once",
    "train --classes 1 2 1": "--classes 1 2 1: give at least two classes, each once",
    "train --classes 3 10": "classes 3 10 of digits: use at least two of 0 .. 9, each once",
    "transfer --to-classes 8 11": "classes 8 11 of digits: use at least two of 0 .. 9",
    "transfer --networks 16xx": "--networks 16xx: write the widths",
    "transfer --networks 0": "--networks 0: write the widths",
    "grid --momenta 1": "--momenta 1.0: use at least 0 and below 1",
    "grid --momenta": "--momenta: give at least one",
    "ablation --seeds 0": "--seeds 0: use at least 1",
    "sgd-check --sizes 3": "layers of (3,) neurons: use at least an input and an output layer",
    "train --data xor": f"--data xor: {_boolean}",
    "train --data xor --families boolean --side 4": f"--data xor with --side 4: {_xor}",
    "grid --data xor --classes 0 1": f"--data xor with --classes 0 1: {_xor}",
    "transfer --data xor --families boolean": f"--data xor with --sides 4 16: {_xor}",
    "ablation --data xor --families boolean": "--data xor: an ablation also runs its genomes on larger images",
    "train --families boolean": f"--data digits --families boolean: {_boolean}",
    "train --families digits --limit 400": "examples: use at least one of each, and fewer than the examples",
    "train --average": "average with synapse_norm",
    "train --preset huge": "preset 'huge': choose one of tiny",
    "tasks --tasks iris/7": "tasks iris/7: choose groups (digits, mnist, tables, planes, mixtures), data (digits@4",
    "tasks --tasks mnist@7": "leave them out, and name the other tasks: digits tables planes mixtures",
    "tasks --tasks mnist --data-dir nowhere": "nowhere holds neither",
    "tasks --genome nothing.json": "neither a file nor one of boolean, digits",
    "tasks --learners 0": "--learners 0: use at least 1",
    "tasks --tasks iris --baselines nowhere": "cannot be read as baselines",
    "tasks --against adam --baselines runs/a": "--baselines runs/a with --against adam, which measures no baselines: leave",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_bad_input_is_one_line_that_says_what_to_do(tmp_path, capfd, monkeypatch, arguments):
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    assert blur.main([*arguments.split(), "--out", str(tmp_path / "run")]) == 2
    printed = printed_error(capfd)
    assert REFUSED[arguments] in printed and "Traceback" not in printed
    assert not arguments.startswith("tasks") or not (tmp_path / "run").exists()


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
    assert transfer["class-split"].config.classes == train["class-split"].config.classes == (0, 1, 2, 3, 4)
    for name in ("poster", "poster-small", "class-split", "class-split-small"):  # made by the train preset of that name
        assert transfer[name].config.genome == f"{train[name].config.out}/genome.json"
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
    searched = []

    def record(folder, name, design, sets):
        searched.append((name, design.seed, design.start))
        return load_genome("digits")._replace(provenance={"skipped": 0, "seconds": 0.0})

    monkeypatch.setattr(ablation, "find_genome", record)
    config = dataclasses.replace(PRESETS["ablation"]["tiny"].config, variants=("oja", "backprop start"), seed=3)
    keys = [key for key, _ in ablation.measure(config, None)]  # pyright: ignore[reportArgumentType]
    names = ["reference", "reference", "normalise both", "2 states", "relu_tanh neurons", "oja", "backprop start"]
    assert searched == [
        (f"{name}/{seed}", seed, "backprop" if name == "backprop start" else "random") for name in names for seed in (3, 4)
    ]
    assert [key["seed"] for key in keys[:6]] == [3, 3, 3, 4, 4, 4]  # in three places each
    assert len(keys) == len({(key["genome"], key["seed"], key["where"]) for key in keys}) == 7 * 2 * 3


def test_what_seeds_tell_apart(tmp_path):
    """By the formula, with a loop: the standard error of a difference of two means from the squares about each mean."""
    design, reference = (0.9, 0.8, 0.85, 0.87), (0.7, 0.75, 0.71)
    squares = []
    for values in (design, reference):
        mean = sum(values) / len(values)
        squares.append(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    found = compare_seeds(design, reference)
    assert found["error"] == pytest.approx((squares[0] / 4 + squares[1] / 3) ** 0.5, rel=1e-12)
    assert found["difference"] == pytest.approx(0.855 - 0.72, rel=1e-12)
    accuracies = {"reference": (0.80, 0.82, 0.78, 0.80), "a": (0.79, 0.83, 0.80, 0.80), "b": (0.90, 0.91, 0.89, 0.90)}
    rows = [  # `b` is 10 points better with a spread of 1, `a` differs by less than chance
        {"genome": name, "seed": seed, "where": place, "step": n, "test_accuracy": value - 0.1 * (n < 10)}
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
        for place in ("same", "deeper")
        for n in (5, 10)
    ]
    results = Results(tmp_path, {}, rows)
    assert "| b | 90.0 ± 0.8 | 90.0 ± 0.8 |" in ablation.DESIGNS(results)  # √(2/3) over seeds
    clear = [line for line in ablation.CLEAR(results) if line.startswith("| ")]
    assert clear[1:] == ["| b | same | +10.0 | 0.9 |", "| b | deeper | +10.0 | 0.9 |"]  # √(2/3/4 + 8/3/4)


def test_only_large_networks_have_fewer_rates(monkeypatch):
    monkeypatch.setattr(tasks, "RATES", RATES)
    sets = {data: task_sets(data) for data in ("digits@16", "iris")}
    assert task_rates(next(task for task in SUITE if task.name == "digits@16/256-256"), sets["digits@16"]) == RATES[::2]
    assert task_rates(select_tasks(["iris/128"])[0], sets["iris"]) == RATES


@pytest.mark.parametrize("name", ["digits", "boolean"])
def test_the_shipped_genomes_can_be_made_again(tmp_path, name):
    """Few meta-steps of the presets: the rules are those of the shipped genome, and meta-training has changed the start."""
    flags = "--meta-steps 1 --unroll 2 --population 1 --learners 1 --steps 2 --far 0 --baselines"
    assert blur.main(["train", "--preset", name, "--out", str(tmp_path / "run"), *flags.split()]) == 0
    made, shipped = load_genome(tmp_path / "run" / "genome.json"), load_genome(name)
    assert made.rules == shipped.rules and made.provenance["config"]["families"] == name
    assert made.provenance["data"] == shipped.provenance["data"]
    assert made.genome.nu.tolist() != shipped.genome.nu.tolist()


def test_evolution_is_a_method(tmp_path):
    flags = f"train {NETWORKS} {META} --far 0 --baselines --method evolution --population 4"
    assert blur.main([*flags.split(), "--out", str(tmp_path / "run")]) == 0
    assert load_genome(tmp_path / "run" / "genome.json").provenance["config"]["method"] == "evolution"


def test_a_genome_of_deep_nesting_is_refused(tmp_path):
    (tmp_path / "genome.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="cannot be read as a genome"):
        load_genome(tmp_path / "genome.json")

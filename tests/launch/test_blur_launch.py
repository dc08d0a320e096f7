"""launch.blur and launch.feature_machine on small data: rows, reports, known genomes, and an exact continuation."""

import functools

import numpy as np
import pytest
from run_folders import interrupted, made, main, without_costs
from run_folders import rows as rows_of

from icl.blur.baselines import task_sets
from icl.blur.rules import load_genome
from jexplicit.runs.files import read_events, read_rows
from launch.blur import train
from launch.kit.experiment import RunFolder
from launch.kit.views import Results, where

pytestmark = pytest.mark.slow

NETWORKS = "--limit 300 --batch-size 8 --learners 1"
META = "--states 2 --population 2 --unroll 2 --meta-steps 4 --every 2 --episodes 1 --query-size 20"
RUNS = {
    "train": f"train {NETWORKS} --widths 4 {META} --steps 20 --rates 0.1 1 --baselines sgd --baseline-activations tanh",
    "measured": f"train {NETWORKS} --steps 2 --genome hebbian --widths 4 3 --classes 5 6 7 8 9 --baselines",
    "tasks": "tasks --learners 1 --batch-size 8 --tasks iris",
}


@pytest.fixture(scope="module", autouse=True)
def few():
    """Fewer updates and rates of `blur tasks` than in a real run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "UPDATES", (1, 10))
        patch.setattr(train, "RATES", (0.1, 1.0))
        yield


def run(name):
    return made(f"blur {RUNS[name]}")


def test_a_genome_is_meta_trained_beside_descent_which_is_a_genome_too():
    out = run("train")
    rows = where(read_rows(out), experiment="train")
    ours, theirs = (where(rows, baseline=kinds) for kinds in (None, ("sgd", "sgd, normalised")))
    assert [row["step"] for row in ours] == [0, 1, 2, 5, 10, 15, 20] and {row["states"] for row in ours} == {2}
    assert {row["unroll"] for row in ours} == {2} and all(0 <= row["test_accuracy"] <= 1 for row in ours)
    assert {row["learning_rate"] for row in theirs} <= {0.1, 1.0} and len(theirs) == 2 * 7
    learned, report = load_genome(out / "genome.json"), (out / "report.md").read_text()
    assert learned.rules.states == 2 and learned.provenance["config"]["limit"] == 300
    assert learned.provenance["test_accuracy"]["20"] == pytest.approx(ours[-1]["test_accuracy"], abs=1e-4)
    assert {event["step"] for event in read_events(out, "meta")} == {2, 4}
    assert "| test accuracy in % | n = 1 | n = 2 | n = 5 | n = 10 | n = 20 |" in report
    same = where(read_rows(out), experiment="descent as a genome")
    most = {"float32": 1e-6, "float64": 1e-12}  # over twenty steps, some thousand roundings
    assert [row["precision"] for row in same] == list(most)
    assert all(row["max_difference"] < most[row["precision"]] and row["moved"] > 1e-3 for row in same)


def test_a_known_genome_is_measured_in_other_networks_and_on_other_classes_and_on_tasks_beside_adam():
    rows = read_rows(run("measured"))
    assert {tuple(row["hidden"]) for row in rows} == {(4, 3)} and {row["genome"] for row in rows} == {"hebbian"}
    assert [row["step"] for row in rows] == [0, 1, 2] and not (run("measured") / "genome.json").exists()
    assert sum("genome hebbian" in line for line in train.ACCURACIES(Results(run("measured"), {}, rows))) == 1
    one, ten = read_rows(run("tasks"))
    assert (one["n"], ten["n"]) == (1, 10) and one["task"] == "iris/128" and one["cost"] == ten["cost"] > 1
    assert 1 <= one["adam_updates"] <= 256 and "| updates n | tasks |" in (run("tasks") / "report.md").read_text()
    assert ten["rule_accuracy"] > 0.6 and ten["nearest neighbour"] > 0.6  # three classes


def test_an_interrupted_search_resumes_to_the_same_rows(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # at the second evaluation
        patch.setattr(train, "meta_train", functools.partial(train.meta_train, checkpoint_seconds=-1.0))
        patch.setattr(RunFolder, "log", interrupted(RunFolder.log, 2))
        assert main(f"blur {RUNS['train']}", tmp_path) == 130
    assert main("blur train --resume", tmp_path) == 0
    assert without_costs(tmp_path) == without_costs(run("train"))
    resumed, whole = (load_genome(out / "genome.json").genome.nu.tolist() for out in (tmp_path, run("train")))
    assert resumed == whole


def test_the_shipped_genomes_can_be_made_again():
    """A meta-step of a preset: the rules are those of the shipped genome, and meta-training has changed the start."""
    flags = "--preset boolean --meta-steps 1 --unroll 2 --population 1 --learners 1 --steps 2 --baselines"
    kept, shipped = load_genome(made(f"blur train {flags}") / "genome.json"), load_genome("boolean")
    assert kept.rules == shipped.rules and kept.provenance["config"]["families"] == "boolean"
    assert kept.provenance["data"] == shipped.provenance["data"] and kept.genome.nu.tolist() != shipped.genome.nu.tolist()


def test_descent_is_chosen_on_dev_for_each_number_of_updates(monkeypatch):
    """Two rates: the better one on dev, whatever its test accuracy."""
    dev, test = np.zeros((2, 1, 2)), np.stack([np.full((1, 2), 0.5), np.full((1, 2), 0.25)])
    dev[1, 0, 0], dev[0, 0, 1] = 1.0, 1.0  # the second rate after 1 update, the first one after 2
    monkeypatch.setattr(train, "descent_curves", lambda name, rates, *data, **options: (dev, test))
    found, chosen = train.tuned("adam", (0.1, 1.0), [(False, "tanh")], (4,), task_sets("iris"))
    assert chosen.tolist() == [1, 0] and found.tolist() == test.tolist()


def test_the_other_half_of_modular_addition_is_found():
    found = [row["test_accuracy"] for row in rows_of(made("feature-machine modular --seeds 1 --solves 24"))]
    assert max(found[:8]) < 0.05 and found[-1] > 0.99

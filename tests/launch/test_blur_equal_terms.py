"""What launch.blur compares learned rules with on equal terms, by loops and by hand."""

import functools

import jax
import numpy as np
import pytest

from icl.blur.baselines import initial_layers
from icl.blur.data import image_sets
from icl.blur.descent import network_loss, sgd_rules
from icl.blur.genome_files import load_genome
from icl.blur.judging.flops import descent_flops, rule_flops
from icl.blur.judging.suite import select_tasks, task_sets
from icl.blur.learning import minibatches
from jexplicit.data.images import read_images
from launch.blur import tasks
from launch.blur.config import TasksConfig, TransferConfig
from launch.blur.opponents import descent_at_equal_cost
from launch.kit.rows import Results

pytestmark = pytest.mark.slow


def test_descent_at_equal_cost_is_a_loop_over_the_minibatches_of_the_rule():
    """One rate, so nothing is chosen: `W -= rate dL/dW` by another loss of the same network, twice over two minibatches."""
    sets = image_sets(read_images("digits"), limit=300)
    fields = {"widths": (4,), "batch_size": 8, "learners": 1, "steps": 2}
    config, rule = TransferConfig("out", **fields), load_genome("hebbian")
    found = {row["equal"]: row for row in descent_at_equal_cost(config, rule, (sets, (4,)), (0.7,), (2,))}
    updates = found["FLOPs"]["updates"]
    assert updates == 2 * rule_flops(*rule[:2], (64, 4, 10), 8) // descent_flops((64, 4, 10), 8) > 2
    drawn = minibatches(0, len(sets.train.X), steps=updates, batch_size=8)
    gradient = jax.jit(jax.grad(functools.partial(network_loss, sgd_rules("tanh", "cross_entropy"))))
    for equal, batches in (("FLOPs", drawn), ("FLOPs and examples", [drawn[n % 2] for n in range(updates)])):
        layers = initial_layers(jax.random.key(0), (64, 4, 10), "tanh")
        weights = [np.concatenate([layer["W"], layer["b"][None]]) for layer in layers]
        for batch in batches:
            changes = gradient(weights, sets.train.X[batch], sets.train.Y[batch])
            weights = [W - np.float32(0.7) * np.asarray(g) for W, g in zip(weights, changes, strict=True)]
        logits = np.tanh(sets.test.X @ weights[0][:-1] + weights[0][-1]) @ weights[1][:-1] + weights[1][-1]
        accuracy = np.mean(logits.argmax(axis=1) == sets.test.Y.argmax(axis=1))
        assert found[equal]["test_accuracy"] == pytest.approx(accuracy, abs=1.01 / len(sets.test.X))  # one may change sides
        assert found[equal]["learning_rate"] == 0.7


def test_wins_are_counted_with_and_without_the_tasks_that_the_rule_knows(tmp_path):
    """By hand: of four tasks, two new ones, one won and one lost; transcribed rows have rounded differences alone."""
    found = [
        ("iris/128", None, 0.9, 0.8),
        ("moons/256", None, 0.6, 0.8),
        ("wine/32", "design", 0.9, 0.8),
        ("digits@4/16", "meta-training", 0.8, 0.8),
    ]
    fields = {"genome": "digits", "n": 10, "spread": 0.0, "baseline_spread": 0.0, "baseline": "sgd"}
    rows = [
        {**fields, "task": task, "known_from": known, "rule_accuracy": ours, "best_baseline": theirs}
        | ({"wins": ours > theirs, "tie": ours == theirs} if task != "wine/32" else {"difference": 0.2})
        for task, known, ours, theirs in found
    ]
    results = Results(tmp_path, {}, rows)
    assert "| digits | 10 | 4 | 2 | 1 | 1 | +2.5 | +5.0 | -20.0 | moons/256 |" in tasks.SUMMARY(results)
    assert "| digits | 10 | 2 | 1 | 0 | 1 | -5.0 | -5.0 | -20.0 | moons/256 |" in tasks.NEW(results)
    assert any(line.startswith("| wine/32 | design | 90.0 ± 0.0 | +20.0 |") for line in tasks.TASKS(results))
    kept = [{"genome": "digits", "n": 10, "tasks": 9, "wins": 3, "ties": 2, "mean": 0.1, "median": 0.0}]
    assert "| digits | 10 | 9 | 3 | 2 | 4 | +10.0 | +0.0 |" in tasks.SUMMARY(Results(tmp_path, {}, kept))


def test_speed_ups_are_interquartile_means_over_tasks_by_hand(tmp_path):
    """Of four tasks the middle two count: 20 and 40 updates of Adam for 10 of the rule, each of which costs 8 of Adam's."""
    fields = {"experiment": "speed", "n": 10, "cost": 8.0, "rule_accuracy": 0.9, "nearest neighbour": 0.8}
    rows = [{**fields, "task": str(x), "adam_updates": x, "reached": x < 256} for x in (5.0, 20.0, 40.0, 256.0)]
    found = tasks.SPEED(Results(tmp_path, {}, rows))
    speed = "updates n | tasks | speed-up in updates | speed-up in FLOPs | faster in updates | never reached"
    assert f"| {speed} | rule, % | nearest neighbour, % |" in found
    assert "| 10 | 4 | 3.00 | 0.38 | 3 | 1 | 90.0 | 80.0 |" in found


def test_adam_is_chosen_on_dev_for_each_number_of_updates(monkeypatch):
    """Two rates, both activations, normalised or not: the better one on dev, whatever its test accuracy."""
    dev = np.zeros((1, 2, 1, 2))
    test = np.stack([np.full((1, 1, 2), 0.5), np.full((1, 1, 2), 0.25)], axis=1)
    dev[0, 1, 0, 0], dev[0, 0, 0, 1] = 1.0, 1.0  # the second rate after 1 update, the first one after 2
    monkeypatch.setattr(tasks, "REACHED", (1, 2))
    monkeypatch.setattr(tasks, "descent_grid", lambda rates, *data, **options: (dev, test))
    (task, *_), sets = select_tasks(["iris/128"]), task_sets("iris")
    assert tasks.adam_curve(TasksConfig("out"), task, sets) == pytest.approx([0.25, 0.5], abs=0.02)  # of 38 examples

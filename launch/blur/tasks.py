"""Learners by a genome on small tasks: speed-up over tuned Adam.

The speed-up is the number of updates that Adam needs to reach the rule's accuracy after n updates, divided by n. An update of
either reads one minibatch, so this is the ratio of examples, too. In FLOPs it is divided by the ratio of costs of an update.
"""

import functools
from collections.abc import Iterator
from statistics import fmean

import jax
import numpy as np
from scipy.stats import trim_mean

from icl.blur.baselines import (
    TASKS,
    Task,
    descent_flops,
    nearest_neighbour_accuracies,
    rule_flops,
    select_tasks,
    task_sets,
    updates_to_reach,
)
from icl.blur.learning import Sets, learning_curves
from icl.blur.rules import LearnedRule, load_genome
from icl.names import RATES
from jexplicit.nn.names import Activation
from launch.blur import config as flags
from launch.blur.config import TasksConfig
from launch.blur.train import design_of, learner_options, part, place_of, ready, tuned
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, groups, melt

UPDATES = (1, 2, 5, 10, 20, 50, 100)  # of the rule, with rows
REACHED = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)  # updates after which Adam's accuracy is known
# networks of Adam: normalised or not, and their hidden activation; for each number of updates the best one on dev
KINDS: tuple[tuple[bool, Activation], ...] = ((False, "tanh"), (False, "relu"), (True, "tanh"), (True, "relu"))
_adam = 1.5  # above the learning rates of Adam
_neighbours = (1, 10)  # numbers of updates of the rule whose examples have a nearest neighbour
_large = 60_000  # weights from which on the grid of rates is half as dense


def measure(config: TasksConfig, folder: RunFolder) -> Iterator[Part]:
    """Adam's updates to the rule's accuracy, and the nearest neighbour, by task."""
    rule, tasks = load_genome(config.genome), select_tasks(config.tasks) if config.tasks else TASKS
    data = [task_sets(task.data, seed=config.seed, data_dir=config.data_dir) for task in tasks]
    for task, sets in zip(tasks, data, strict=True):
        compare = functools.partial(speed_rows, config, rule, task, sets)
        yield part(compare, experiment="speed", genome=config.genome, task=task.name)
        jax.clear_caches()  # no other task has these shapes, and the programs of all tasks exhaust a process's memory maps


def speed_rows(config: TasksConfig, rule: LearnedRule, task: Task, sets: Sets) -> list[Row]:
    """The rule's accuracy, Adam's updates, costs and neighbours by number of updates."""
    options, hidden, at = learner_options(config, sets), (task.width,), tuple(n for n in UPDATES if n in _neighbours)
    curves = learning_curves(*rule[:2], hidden, sets.train, sets.test, steps=UPDATES[-1], at=UPDATES, **options)
    # half of the rates in large networks
    rates = tuple(rate for rate in RATES[:: 1 + ((sets.inputs + sets.outputs) * task.width > _large)] if rate < _adam)
    test, best = tuned("adam", rates, KINDS, hidden, sets, steps=REACHED[-1], at=REACHED, **options)
    adam = [mean_and_spread(test[choice, :, i], len(sets.test.X))[0] for i, choice in enumerate(best.tolist())]
    sizes, B = (sets.inputs, *hidden, sets.outputs), options["batch_size"]
    cost = rule_flops(*rule[:2], sizes, B) / descent_flops(sizes, B)
    nearest = nearest_neighbour_accuracies(sets.train, sets.test, at=at, **options).mean(axis=0)
    network = {**place_of(sets, hidden), **design_of(rule), "width": task.width, "learners": config.learners}
    rows = []
    for n, accuracies in zip(UPDATES, curves.T, strict=True):
        ours, spread = mean_and_spread(accuracies, len(sets.test.X))
        needed = updates_to_reach(ours, REACHED, adam)
        found = {"rule_accuracy": ours, "spread": spread, "test_accuracy": ours, "reached": needed <= REACHED[-1]}
        found |= {"adam_updates": min(needed, REACHED[-1]), "cost": cost}
        found |= {"nearest neighbour": float(nearest[at.index(n)])} if n in at else {}
        rows.append({**network, "n": n, "step": n, **found})
    return rows


def mean_and_spread(accuracies: np.ndarray, examples: int) -> tuple[float, float]:
    """Mean and standard deviation over learners, exact from whole numbers."""
    correct = np.rint(accuracies.astype(np.float64) * examples)
    return float(correct.sum() / (examples * len(correct))), float(correct.std() / examples)


# --- views ---------------------------------------------------------------------------------------------------------------


def speed_lines(results: Results) -> list[Row]:
    """Interquartile mean speed-ups against Adam, and mean accuracies, by number of updates."""
    lines = []
    for (n,), own in sorted(groups(results.rows, ["n"]).items()):
        speed = [row["adam_updates"] / n for row in own]
        ratios = {"updates": speed, "FLOPs": [x / row["cost"] for x, row in zip(speed, own, strict=True)]}
        line = {"n": n, "tasks": len(own), **{name: float(trim_mean(values, 0.25)) for name, values in ratios.items()}}
        line |= {"faster": sum(x > 1 for x in speed), "never": sum(not row["reached"] for row in own)}
        known = [name for name in ("rule_accuracy", "nearest neighbour") if all(name in row for row in own)]
        lines.append(line | {name: fmean(row[name] for row in own) for name in known})
    return lines


SPEED = Table(
    [
        *(Column("updates n", "n"), Column("tasks", "tasks")),
        *(Column(f"speed-up in {name}", name, ".2f") for name in ("updates", "FLOPs")),
        *(Column("faster in updates", "faster"), Column("never reached", "never")),
        Column("rule, %", "rule_accuracy", ".1f", 100),
        Column("nearest neighbour, %", "nearest neighbour", ".1f", 100),
    ],
    speed_lines,
    note="Speed-up: updates that Adam needs for the rule's test accuracy after n updates, divided by n, and the same in FLOPs. "
    "Interquartile means over tasks; above 1 the rule is faster. Where Adam does not reach the accuracy within "
    f"{REACHED[-1]} updates, {REACHED[-1]} are counted. Accuracies are means over tasks; the nearest neighbour is among the "
    "examples of the first n minibatches.",
)
_axes = {"xlabel": "updates n", "xscale": "log", "ylabel": "updates or FLOPs of Adam / of the rule", "yscale": "log"}
_speeds = {"updates": "in updates and examples", "FLOPs": "in FLOPs"}
_by_n = lambda results: melt(speed_lines(results), _speeds)  # noqa: E731
views = [SPEED, Lines("speed", "n", "value", "measure", rows=_by_n, axes=_axes, size=(6.5, 3.6))]
EXPERIMENT = Experiment("blur", TasksConfig, measure, views, flags.TASKS, ready, title="A learned rule on small tasks")
run = EXPERIMENT.run

"""Learners by a genome on every task of the suite: beside the best of six tuned baselines, or their speed-up over tuned Adam.

The speed-up is the number of updates that Adam needs to reach the rule's accuracy after n updates, divided by n. An update of
either reads one minibatch, so this is the ratio of examples, too. In FLOPs it is divided by the ratio of costs of an update.

No genome changes the baselines: baselines.json of a run folder keeps them, with the settings that all tasks share, and for each
task what identifies its data and network, and rows.
"""

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast

import jax
import numpy as np

from icl.blur.baselines import GRID_OPTIMIZERS, descent_grid
from icl.blur.data import Sets
from icl.blur.genome_files import LearnedRule, load_genome
from icl.blur.judging.classifiers import CLASSIFIERS, classifier_accuracies
from icl.blur.judging.flops import descent_flops, rule_flops
from icl.blur.judging.speed import interquartile_mean, updates_to_reach
from icl.blur.judging.suite import SUITE, Task, known_from, select_tasks, task_sets
from icl.blur.learning import learning_curves
from icl.names import RATES
from jexplicit.nn.parts.names import Activation
from jexplicit.runs.files import write_json
from jexplicit.runs.progress import stage
from launch.blur.config import TasksConfig
from launch.blur.data import describe_data
from launch.blur.learners import by_updates, design_of, learner_options, part, place_of, ready
from launch.blur.presets import PRESETS
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder, environment
from launch.kit.rows import Results, Row, cell, groups, pivot, where
from launch.kit.tables import Column
from launch.kit.views import Bars, Lines, Section, Table

UPDATES = (1, 2, 5, 10, 20, 50, 100)
"""Numbers of updates that learners are compared after."""
ACTIVATIONS: tuple[Activation, ...] = ("tanh", "relu")
"""Hidden activations of the baselines; for each number of updates the better one on dev."""
REACHED = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)
"""Numbers of updates that the accuracy of Adam is known after."""

_file = "baselines.json"
_adam = 1.5  # above the learning rates of Adam
_classified = (1, 10)  # numbers of updates of the rule whose examples classifiers learn from
_large = 60_000  # weights from which on the grid of rates is half as dense
_libraries = ("jax", "jaxlib", "numpy", "optax")  # whose versions may change a baseline
_tie = 1e-9  # between accuracies that are the same fraction


@functools.cache
def read(config: TasksConfig) -> list[tuple[Task, Sets, dict[str, Any]]]:
    """The tasks with their data, and what the baselines of each depend on besides the settings of all."""
    with stage("reading"):
        tasks = select_tasks(config.tasks)
        data = {name: task_sets(name, seed=config.seed, data_dir=config.data_dir) for name in {task.data for task in tasks}}
    about = {name: describe_data(sets) for name, sets in data.items()}
    rates = {task: list(task_rates(task, data[task.data])) for task in tasks}
    return [(t, data[t.data], {"data": about[t.data], "hidden": list(t.hidden), "rates": rates[t]}) for t in tasks]


def check(config: TasksConfig) -> None:
    """Refuse bad tasks, genomes and baselines, before anything is written."""
    ready(config)
    read(config)
    if config.baselines:
        read_baselines(Path(config.baselines), config)


def measure(config: TasksConfig, folder: RunFolder) -> Iterator[Part]:
    """Learners of every task, with baselines, unless they are known, or with Adam and classifiers."""
    if config.against == "adam":
        yield from speeds(config)
        return
    rule, tasks, file = load_genome(config.genome), read(config), folder.path / _file
    baselines = read_baselines(Path(config.baselines), config) if config.baselines else {}
    baselines |= read_baselines(folder.path, config) if file.exists() else {}
    for number, (task, sets, key) in enumerate(tasks, 1):
        if task.name not in baselines:
            with stage(f"{number}/{len(tasks)} baselines of {task.name}"):
                baselines[task.name] = {"key": key, "rows": measure_baselines(config, task, sets)}
        write_json(file, {"settings": shared_settings(config), "tasks": baselines})
        compare = functools.partial(task_rows, config, rule, task, sets, baselines[task.name]["rows"])
        yield part(compare, experiment="tasks", genome=config.genome, task=task.name)
        jax.clear_caches()  # no other task has these shapes, and the programs of all tasks exhaust a process's memory maps


def shared_settings(config: TasksConfig) -> dict[str, Any]:
    """What the baselines of all tasks depend on."""
    choices = {"updates": list(UPDATES), "optimizers": list(GRID_OPTIMIZERS), "activations": list(ACTIVATIONS)}
    versions = {name: environment()["versions"][name] for name in _libraries}
    return {"learners": config.learners, "batch_size": config.batch_size, "seed": config.seed, **choices, "versions": versions}


def task_rates(task: Task, sets: Sets) -> tuple[float, ...]:
    """The learning rates of a task's baselines: RATES, or every other one for networks of more than 60,000 weights."""
    sizes = (sets.inputs, *task.hidden, sets.outputs)
    return RATES[::2] if sum(a * b for a, b in zip(sizes, sizes[1:], strict=False)) > _large else RATES


def read_baselines(path: Path, config: TasksConfig) -> dict[str, Any]:
    """The baselines in a run folder of the tasks of the flags; tasks that it lacks are left out.

    Raises:
        ValueError: no or damaged baselines there; others settings, versions, data, networks or rates.
    """
    file, remedy = path / _file, "leave --baselines out, or give a run of tasks with the same flags and versions"
    try:
        found = json.loads(file.read_text())
        kept = {task.name: (found["tasks"][task.name], key) for task, _, key in read(config) if task.name in found["tasks"]}
        differ = [(x, found["settings"].get(x), now) for x, now in shared_settings(config).items()]
        wrong = [name for name, (task, key) in kept.items() if not isinstance(task["rows"], list) or task.get("key") != key]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read as baselines ({error}): {remedy}") from error
    others = [f"{name} {was} (now {now})" for name, was, now in differ if was != now]
    if others := [*others, *(f"data, network or rates of {name}" for name in wrong)]:
        raise ValueError(f"{file} was measured with other {'; '.join(others)}: {remedy}")
    return {name: task for name, (task, _) in kept.items()}


def measure_baselines(config: TasksConfig, task: Task, sets: Sets) -> list[dict[str, Any]]:
    """A row for each optimiser, plain and normalised, and each number of updates.

    Learning rate and activation are those with the best mean accuracy on dev after this number of updates; the accuracy is
    that of the same networks on test.
    """
    start, rates, rows = time.perf_counter(), task_rates(task, sets), []
    options: Any = {"at": UPDATES, **learner_options(config, sets)}
    data = task.hidden, sets.train, (sets.dev, sets.test)
    for normalised in (False, True):
        grids = [descent_grid(rates, *data, normalised=normalised, hidden_activation=a, **options) for a in ACTIVATIONS]
        # [optimizers, activations * rates, learners, updates]
        dev, test = (np.concatenate(parts, axis=1) for parts in zip(*grids, strict=True))
        for i, optimizer in enumerate(GRID_OPTIMIZERS):
            for j, (n, best) in enumerate(zip(UPDATES, dev[i].mean(axis=1).argmax(axis=0).tolist(), strict=True)):
                accuracy, spread = mean_and_spread(test[i, best, :, j], len(sets.test.X))
                chosen = {"activation": ACTIVATIONS[best // len(rates)], "learning_rate": rates[best % len(rates)]}
                chosen["dev_accuracy"] = mean_and_spread(dev[i, best, :, j], len(sets.dev.X))[0]
                name = {"n": n, "baseline": optimizer + ", normalised" * normalised}
                rows.append({**name, **chosen, "test_accuracy": accuracy, "spread": spread})
    seconds = time.perf_counter() - start
    return [{**row, "seconds": seconds} for row in rows]


def task_rows(config: TasksConfig, rule: LearnedRule, task: Task, sets: Sets, baselines: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each number of updates: the rule's accuracy, and that of the baseline which is best on the test part."""
    options: Any = {"steps": UPDATES[-1], "at": UPDATES, **learner_options(config, sets)}
    curves = learning_curves(*rule[:2], task.hidden, sets.train, sets.test, **options)
    network = {**place_of(sets, task.hidden), **design_of(rule), "width": task.width, "depth": task.depth}
    network |= {"outputs": sets.outputs, "learners": config.learners, "known_from": known_from(rule, task)}
    rows = []
    for n, accuracies in zip(UPDATES, curves.accuracy.T, strict=True):
        best = max(where(baselines, n=n), key=lambda row: row["test_accuracy"])
        (ours, spread), theirs = mean_and_spread(accuracies, len(sets.test.X)), best["test_accuracy"]
        compared = {"rule_accuracy": ours, "spread": spread, "test_accuracy": ours, "best_baseline": theirs}
        compared |= {"baseline_spread": best["spread"], "learning_rate": best["learning_rate"]}
        compared |= {"baseline": f"{best['baseline']}, {best['activation']}, rate {best['learning_rate']:g}"}
        rows.append({**network, "n": n, "step": n, **compared, "wins": ours > theirs + _tie, "tie": abs(ours - theirs) <= _tie})
    return rows


def speeds(config: TasksConfig) -> Iterator[Part]:
    """For each task the updates that Adam needs to be as good as the rule, and the accuracy of classifiers of its examples."""
    rule = load_genome(config.genome)

    @functools.cache
    def classified(data: str) -> dict[str, dict[int, float]]:  # they do not depend on the network
        sets = next(sets for task, sets, _ in read(config) if task.data == data)
        at = tuple(n for n in UPDATES if n in _classified)
        options, among = learner_options(config, sets), (sets.train, sets.test)
        found = {name: classifier_accuracies(name, *among, at=at, **options).mean(axis=0).tolist() for name in CLASSIFIERS}
        return {name: dict(zip(at, values, strict=True)) for name, values in found.items()}

    for task, sets, _ in read(config):
        compare = functools.partial(speed_rows, config, rule, task, sets, classified)
        yield part(compare, experiment="speed", genome=config.genome, task=task.name)
        jax.clear_caches()  # as above


def adam_curve(config: TasksConfig, task: Task, sets: Sets) -> list[float]:
    """Mean test accuracy after each of REACHED of the Adam that is best on dev then: rate, activation, normalised or not."""
    rates = tuple(rate for rate in task_rates(task, sets) if rate < _adam)
    options: Any = {"at": REACHED, "optimizers": ("adam",), **learner_options(config, sets)}
    data = task.hidden, sets.train, (sets.dev, sets.test)
    kinds = itertools.product((False, True), ACTIVATIONS)
    grids = [descent_grid(rates, *data, normalised=how, hidden_activation=a, **options) for how, a in kinds]
    # [choices, learners, at]
    dev, test = (np.concatenate([curves[0] for curves in parts]) for parts in zip(*grids, strict=True))
    best = dev.mean(axis=1).argmax(axis=0).tolist()
    return [mean_and_spread(test[choice, :, i], len(sets.test.X))[0] for i, choice in enumerate(best)]


def speed_rows(
    config: TasksConfig, rule: LearnedRule, task: Task, sets: Sets, classified: Callable[[str], dict[str, dict[int, float]]]
) -> list[dict[str, Any]]:
    """A row for each number of updates: the rule's accuracy, the updates of Adam to reach it, costs and classifiers."""
    options: Any = {"steps": UPDATES[-1], "at": UPDATES, **learner_options(config, sets)}
    curves = learning_curves(*rule[:2], task.hidden, sets.train, sets.test, **options)
    adam, sizes, B = adam_curve(config, task, sets), (sets.inputs, *task.hidden, sets.outputs), options["batch_size"]
    cost = rule_flops(*rule[:2], sizes, B) / descent_flops(sizes, B)
    network = {**place_of(sets, task.hidden), **design_of(rule), "width": task.width, "depth": task.depth}
    network |= {"learners": config.learners, "known_from": known_from(rule, task)}
    rows = []
    for n, accuracies in zip(UPDATES, curves.accuracy.T, strict=True):
        ours, spread = mean_and_spread(accuracies, len(sets.test.X))
        needed = updates_to_reach(ours, REACHED, adam)
        found = {"rule_accuracy": ours, "spread": spread, "test_accuracy": ours, "reached": needed <= REACHED[-1]}
        found |= {"adam_updates": min(needed, REACHED[-1]), "cost": cost, "adam_accuracy": adam[-1]}
        others = {name: values[n] for name, values in classified(task.data).items() if n in values}
        rows.append({**network, "n": n, "step": n, **found, **others})
    return rows


def mean_and_spread(accuracies: np.ndarray, examples: int) -> tuple[float, float]:
    """Mean and standard deviation over learners, from whole numbers of examples: equal means are equal to the last bit.

    Example:
        >>> mean_and_spread(np.array([0.1, 0.3]), 10) == mean_and_spread(np.array([0.3, 0.1]), 10)
        True
    """
    correct = np.rint(accuracies.astype(np.float64) * examples)
    return float(correct.sum() / (examples * len(correct))), float(correct.std() / examples)


# --- views ---------------------------------------------------------------------------------------------------------------


def difference(row: Row) -> float:
    """The accuracy of the rule less that of the best baseline."""
    return row["difference"] if "difference" in row else row["rule_accuracy"] - row["best_baseline"]


def wins(row: Row) -> bool:
    """Whether the rule is better than the best baseline; transcribed rows have rounded differences alone."""
    return row["wins"] if "wins" in row else difference(row) > _tie


def ties(row: Row) -> bool:
    """Whether the rule and the best baseline have equal accuracies."""
    return row["tie"] if "tie" in row else abs(difference(row)) <= _tie


def new_tasks(rows: Sequence[Row]) -> list[Row]:
    """The rows of tasks that neither the meta-training nor the design of the rule has seen."""
    return [row for row in rows if "task" in row and not row.get("known_from")]


def summaries(rows: Sequence[Row], by: str) -> list[Row]:
    """For each value of a field: wins, ties, mean and worst difference, and the task with the worst."""
    if kept := [row for row in rows if "mean" in row]:  # transcribed results have these instead
        return kept
    lines = []
    for (value,), own in sorted(groups(rows, [by]).items()):
        found, worst = list(map(difference, own)), min(own, key=difference)
        counts = {"tasks": len(own), "wins": sum(map(wins, own)), "ties": sum(map(ties, own))}
        statistics = {"mean": fmean(found), "median": median(found), "worst": min(found), "worst_task": worst["task"]}
        lines.append({"genome": own[0]["genome"], by: value, **counts, **statistics})
    return lines


def summary(by: str, heading: str, of: Callable[[Sequence[Row]], Sequence[Row]] = list) -> Table:
    """Wins, ties, losses and differences in points by a field, of some rows."""
    columns = [Column("genome", lambda line: Path(line["genome"]).name), Column(heading, by)]
    columns += [Column(name, name) for name in ("tasks", "wins", "ties")]
    columns += [Column("losses", lambda line: line["tasks"] - line["wins"] - line["ties"] if "ties" in line else None)]
    columns += [Column(f"{name} difference", name, "+.1f", 100) for name in ("mean", "median", "worst")]
    return Table([*columns, Column("on", "worst_task")], lambda results: summaries(of(results.rows), by))


def speed_lines(results: Results) -> list[Row]:
    """For each number of updates: interquartile means over tasks of the speed-up against Adam, and mean accuracies."""
    lines = []
    for (n,), own in sorted(groups(results.rows, ["n"]).items()):
        speed = [row["adam_updates"] / n for row in own]
        ratios = {"updates": speed, "FLOPs": [x / row["cost"] for x, row in zip(speed, own, strict=True)]}
        line = {"n": n, "tasks": len(own), **{name: interquartile_mean(values) for name, values in ratios.items()}}
        line |= {"faster": sum(x > 1 for x in speed), "never": sum(not row["reached"] for row in own)}
        known = [name for name in ("rule_accuracy", *CLASSIFIERS) if all(name in row for row in own)]
        lines.append(line | {name: fmean(row[name] for row in own) for name in known})
    return lines


def speed_ups(results: Results) -> list[Row]:
    """The speed-up by number of updates, in updates and in FLOPs."""
    words = {"updates": "in updates and examples", "FLOPs": "in FLOPs"}
    return [{**line, "in": words[name], "speed-up": line[name]} for line in speed_lines(results) for name in words]


def shares(results: Results) -> list[Row]:
    """The share of the tasks that the rule wins by number of updates: of all, of new ones, and by number of hidden layers."""
    depths = {f"{depth} hidden layers": where(results.rows, depth=depth) for depth in (1, 2, 3)}
    parts = {"all tasks": results.rows, "new to the rule": new_tasks(results.rows), **depths}
    return [{**x, "tasks": name, "share": x["wins"] / x["tasks"]} for name, rows in parts.items() for x in summaries(rows, "n")]


def _points(row: Row) -> list[float]:
    """The difference, ± its standard deviation over learners."""
    return [100 * (difference(row) + sign * np.hypot(row["spread"], row["baseline_spread"])) for sign in (-1, 0, 1)]


def _finish(axes: np.ndarray) -> None:
    axes[0, 0].tick_params("x", rotation=90)
    axes[0, 0].set_yscale("symlog", linthresh=5)
    axes[0, 0].set_yticks(ticks := (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50), ticks)


def _finish_speed(axes: np.ndarray) -> None:
    axes[0, 0].axhline(1, color="black", linewidth=0.8)
    by_updates(axes[0, 0])


def _accuracy(row: Row) -> str:
    return f"{100 * row['rule_accuracy']:.1f} ± {100 * row['spread']:.1f}"


def _columns(lines: Sequence[Row]) -> list[Column]:
    columns = [Column("task", "task"), Column("known from", "known_from")]
    for n in (n for n in (10, 100) if n in lines[0]):
        columns += [Column(f"rule, n = {n}", cell(n, _accuracy)), Column("difference", cell(n, difference), "+.1f", 100)]
        columns += [Column("best baseline", cell(n, "baseline"))]
    return columns


def _by_task(results: Results) -> list[Row]:
    """A line for each task, in the order of the suite."""
    order = [task.name for task in SUITE]
    rows = sorted((row for row in results.rows if "task" in row), key=lambda row: order.index(row["task"]))
    return pivot(rows, ["task", "known_from"], "n")


TASKS = Table(_columns, _by_task)
_about = (
    "Accuracies are means over learners ± their standard deviation, in % of test examples. A baseline is SGD, momentum or "
    "Adam, plain or normalised over the minibatch, with the learning rate and hidden activation that are best on dev for this "
    "task and number of updates; the best of the six is chosen on *test*, which favours the baselines."
)
_new = (
    "Tasks that are new to the rule: without those on data of its meta-training (other images of them) and those whose results "
    "were inspected while its update was designed."
)
SUMMARY = summary("n", "updates n")
NEW = summary("n", "updates n", new_tasks)
SPEED = Table(
    [
        *(Column("updates n", "n"), Column("tasks", "tasks")),
        *(Column(f"speed-up in {name}", name, ".2f") for name in ("updates", "FLOPs")),
        *(Column("faster in updates", "faster"), Column("never reached", "never")),
        Column("rule, %", "rule_accuracy", ".1f", 100),
        *(Column(f"{name}, %", name, ".1f", 100) for name in CLASSIFIERS),
    ],
    speed_lines,
    note="Speed-up: updates that Adam needs for the rule's test accuracy after n updates, divided by n, and the same in FLOPs. "
    "Interquartile means over tasks; above 1 the rule is faster. Where Adam does not reach the accuracy within "
    f"{REACHED[-1]} updates, {REACHED[-1]} are counted. Accuracies are means over tasks; classifiers have the examples of the "
    "first n minibatches.",
)
_speed = {"ylabel": "updates or FLOPs of Adam / of the rule", "yscale": "log"}
TERMINAL = Table(
    lambda lines: cast(Sequence[Column], (SPEED if "never" in lines[0] else SUMMARY).columns),
    lambda results: speed_lines(results.where(experiment="speed")) or summaries(results.rows, "n"),
)
_lines = functools.partial(Lines, axes={"ylabel": "share of the tasks"}, size=(6.5, 3.6))
_axes = {"xlabel": "", "ylabel": "rule less best baseline, points"}
_bars = functools.partial(Bars, rows={"n": (10, 100)}, axes=_axes, size=(14, 4.5), finish=_finish)
_fields = {"depth": "hidden layers", "width": "width"}
_curve = Lines("speed", "n", "speed-up", "in", rows=speed_ups, axes=_speed, size=(6.5, 3.6), finish=_finish_speed)
_descent = {"experiment": "tasks"}
views = [
    Section(
        "Against tuned descent",
        [SUMMARY, _lines("wins", "n", "share", "tasks", rows=shares, finish=lambda axes: by_updates(axes[0, 0]))],
        _descent,
    ),
    Section("New tasks", [NEW], _descent, _new),
    *(Section(f"After {n} updates", [summary(*field) for field in _fields.items()], _descent | {"n": n}) for n in (10, 100)),
    Section("All tasks", [TASKS, _bars("tasks", "task", _points, lambda row: f"after {row['n']} updates")], _descent, _about),
    Section("Against Adam", [SPEED, _curve], {"experiment": "speed"}),
]
EXPERIMENT = Experiment(
    "blur", TasksConfig, measure, views, PRESETS["tasks"], check, title="A learned rule on small tasks", terminal=TERMINAL
)
run = EXPERIMENT.run

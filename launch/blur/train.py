"""Learned update rules beside gradient descent, and their speed-up over Adam.

The speed-up is the number of updates that Adam needs to reach the rule's accuracy after n updates, divided by n.
"""

import dataclasses
import functools
import hashlib
import itertools
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from scipy.stats import trim_mean

from icl.blur import baselines
from icl.blur.baselines import Task, descent_curves
from icl.blur.design import Rules
from icl.blur.learning import Examples, Sets, corners, image_sets, learning_curves, xor
from icl.blur.rules import LearnedRule, load_genome, random_genome, ridge_genome, save_genome
from icl.blur.search import FAMILIES, MetaRecipe, Stage, meta_train
from icl.names import RATES
from jexplicit.data.images import read_images
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.runs.devices import key_of_seed, use_devices
from jexplicit.runs.progress import console, stage
from launch.blur.config import TasksConfig, TrainConfig, check
from launch.kit.experiment import Experiment, Part, RunFolder, environment
from launch.kit.views import Column, Lines, Results, Row, Table, where

_reported = (0, 1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 400, 800)  # numbers of updates that have rows
_shown = (1, 2, 5, 10, 20, 50, 100, 400)  # numbers of updates in tables


def _ready(config: TrainConfig | TasksConfig) -> None:
    """Refuse bad flags and genomes, then start JAX on the chosen devices."""
    if isinstance(config, TrainConfig):
        check(config)
    use_devices(config.devices)
    if config.genome is not None:
        load_genome(config.genome)


def _learner_options(config: TrainConfig | TasksConfig, sets: Sets) -> dict[str, Any]:
    """The minibatch, and a seed for each learner."""
    seeds = tuple(range(config.seed, config.seed + config.learners))
    return {"batch_size": min(config.batch_size, len(sets.train.X)), "seeds": seeds}


def tuned(
    optimizer: OptimizerName,
    rates: tuple[float, ...],
    kinds: Sequence[tuple[bool, Activation]],
    hidden: tuple[int, ...],
    sets: Sets,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Test accuracies of descent by kind and rate, and the best on dev."""
    data = hidden, sets.train, (_first(sets.dev), _first(sets.test))
    curves = [descent_curves(optimizer, rates, *data, normalised=how, hidden_activation=a, **options) for how, a in kinds]
    dev, test = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    return test, dev.mean(axis=1).argmax(axis=0)


def _first(part: Examples) -> Examples:
    """At most 2000 examples of a part, enough for an accuracy."""
    return Examples(part.X[:2000], part.Y[:2000])


# A genome beside descent.


def _measure(config: TrainConfig, folder: RunFolder) -> Iterator[Part]:
    """Learners of the genome and descent, and their check."""
    sets = _load_sets(config)
    rule = load_genome(config.genome) if config.genome else _search(folder, config, sets)
    key: Row = {"experiment": "train"}
    yield {**key, "genome": config.genome or sets.name}, lambda: _learners(folder, config, rule, sets)
    if not config.genome:
        own = where(folder.rows(), **key, baseline=None)
        accuracy = {str(row["step"]): round(row["test_accuracy"], 4) for row in own}
        save_genome(folder.path / "genome.json", rule._replace(provenance={**rule.provenance, "test_accuracy": accuracy}))
    for optimizer, normalised in itertools.product(config.baselines, (False, True)):
        named = {**key, "baseline": optimizer + ", normalised" * normalised}
        yield named, functools.partial(_descent, folder, config, optimizer, normalised, sets, named)
    if "sgd" in config.baselines:
        yield {"experiment": "descent as a genome", "baseline": "sgd"}, lambda: _descent_as_genome(config, sets)


def _learners(folder: RunFolder, config: TrainConfig, rule: LearnedRule, sets: Sets) -> list[Row]:
    """Rows of the rule's test accuracy, and the learning curve as an event."""
    options = {"steps": config.steps, **_learner_options(config, sets)}
    with stage("learners of the genome"):
        curves = learning_curves(*rule[:2], config.widths, sets.train, _first(sets.test), **options)
    folder.log(event="curve", accuracy=curves.mean(axis=0).round(5).tolist())
    about = {"states": rule.rules.states, "unroll": rule.provenance.get("unroll"), "learners": config.learners}
    return [{**about, **row} for row in _accuracy_rows(config, sets, curves.T)]


def _descent(
    folder: RunFolder, config: TrainConfig, optimizer: OptimizerName, normalised: bool, sets: Sets, key: Row
) -> Sequence[Row]:
    """Rows of tuned descent's test accuracy, and all curves as an event."""
    kinds: Any = [(normalised, activation) for activation in config.baseline_activations]
    options = {"steps": config.steps, **_learner_options(config, sets)}
    with stage(key["baseline"]):
        test, chosen = tuned(optimizer, config.rates, kinds, config.widths, sets, **options)
    best = test[chosen, :, np.arange(config.steps + 1)]  # [n + 1, learners]
    every = test.mean(axis=1).round(4).tolist()
    folder.log(event="descent", **key, rates=config.rates, curves=every, best=best.mean(axis=1).tolist())
    rows = _accuracy_rows(config, sets, best)
    for row in rows:
        activation, rate = divmod(int(chosen[row["step"]]), len(config.rates))
        row |= {"learning_rate": config.rates[rate], "activation": config.baseline_activations[activation]}
    return rows


def _accuracy_rows(config: TrainConfig, sets: Sets, accuracies: np.ndarray) -> list[dict[str, Any]]:
    """A row for each reported number of updates, from accuracies [updates, learners]."""
    about = {"hidden": list(config.widths), "data": sets.name, "inputs": sets.inputs}
    steps = sorted({n for n in _reported if n <= config.steps} | {config.steps})
    found = [(n, accuracies[n]) for n in steps]
    return [{**about, "step": n, "test_accuracy": float(of_n.mean()), "spread": float(of_n.std())} for n, of_n in found]


def _descent_as_genome(config: TrainConfig, sets: Sets) -> Iterator[Row]:
    """The largest difference of weights between the descent genome and `jax.grad`."""
    activation, sizes = config.baseline_activations[0], (sets.inputs, *config.widths, sets.outputs)
    shared: Any = {name: getattr(config, name) for name in ("steps", "batch_size", "seed")}
    for precision in dict.fromkeys(("float32", jax.dtypes.canonicalize_dtype(float).name)):  # float64 with JAX_ENABLE_X64=1
        rules = baselines.sgd_rules(activation, "cross_entropy")
        found = baselines.sgd_difference(rules, sizes, dtype=np.dtype(precision), **shared)
        row = {"network": "-".join(map(str, sizes)), "activation": activation, "precision": precision, "steps": config.steps}
        yield {**row, "max_difference": found.all_steps, "one_step": found.one_step, "moved": found.change}


def _search(folder: RunFolder, config: TrainConfig, sets: Sets) -> LearnedRule:
    """Meta-train a genome; earlier meta-training continues, or is read."""

    def on_evaluation(entry: Row) -> None:
        folder.log(event="meta", genome=sets.name, **entry)
        found = f"dev accuracy {max(entry['accuracy']):.3f}, {np.sum(entry['skipped'])} steps skipped"
        console.print(f"    {sets.name}: step {entry['step']}, T = {entry['unroll']}, {found}, {entry['seconds']:.0f} s")

    def made(kind: Any, **others: Any) -> Any:
        """An instance of `kind` from fields of the config, and others."""
        shared = {name: getattr(config, name) for name in typing.get_type_hints(kind) if hasattr(config, name)}
        return kind(**{**shared, **others})

    rules = made(Rules, hidden=config.hidden_activation, output=config.output_activation)
    families = FAMILIES.get(config.families or "", ())
    recipe = made(MetaRecipe, hidden=config.widths, families=families, learning_rate=config.meta_rate)
    curriculum = tuple(Stage(*stage) for stage in zip(config.unroll, config.meta_steps, strict=True))
    begin = {"random": random_genome, "ridge": ridge_genome}[config.start]
    keys = jax.random.split(key_of_seed(config.seed), config.population)
    genomes = jax.vmap(lambda key: begin(key, config.states))(keys)
    train, dev = sets.train, _first(sets.dev)
    if config.data == "xor":  # four noisy corners
        rng = np.random.default_rng(config.seed)
        train, dev = corners(400, rng), corners(400, rng)
    shown: Any = {"seed": config.seed, "every": config.every, "episodes": config.episodes, "devices": config.devices}
    shown |= {"on_evaluation": on_evaluation, "checkpoints": folder.path / "checkpoints"}
    with stage(f"meta-training {sets.name}", "genome steps") as progress:
        found = meta_train(genomes, rules, recipe, curriculum, train, dev, progress=progress, **shown)
    flags = {flag: value for flag, value in dataclasses.asdict(config).items() if flag not in ("out", "resume", "devices")}
    sha256 = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for part in sets[:3] for leaf in part)).hexdigest()
    provenance = {
        "config": flags,
        "seed": config.seed,
        "data": {"name": sets.name, "inputs": sets.inputs, "outputs": sets.outputs, "sha256": sha256},
        **{"unroll": config.unroll[-1], "meta_steps": sum(config.meta_steps), "versions": environment()["versions"]},
        **{"dev_accuracy": found.score, "seconds": found.seconds, "skipped": found.skipped},
    }
    return LearnedRule(found.best, rules, provenance)


def _load_sets(config: TrainConfig) -> Sets:
    """The images of the config, or exclusive or as four points."""
    if config.data == "xor":
        points = Examples(*(array.astype(np.float32) for array in xor()))
        return Sets(points, points, points, "xor")
    with stage("reading"):
        shown: Any = {name: getattr(config, name) for name in ("side", "limit", "classes", "seed")}
        sets = image_sets(read_images(config.data, config.data_dir), **shown)
    console.print(f"[bold]{sets.name}[/]: {sets.inputs} inputs, {len(sets.train.X):,} images to learn from")
    return sets


def _learner(row: Row) -> str:
    """The name of the optimiser or of the genome."""
    path = Path(str(row.get("genome")))
    return row.get("baseline") or f"genome {path.parent.name if path.suffix else path.name}"


def _lines(rows: Sequence[Row]) -> list[Row]:
    """The percentages of a learner by number of updates; the best are bold."""
    lines: dict[str, dict[str, float]] = {}
    for row in sorted(where(rows, step=_shown), key=lambda row: bool(row.get("baseline"))):
        line, n = lines.setdefault(_learner(row), {}), f"n = {row['step']}"
        line[n] = max(line.get(n, 0.0), round(100 * row["test_accuracy"], 1))
    everywhere = set.intersection(*map(set, lines.values())) if len(lines) > 1 else set()
    best = {n: max(line[n] for line in lines.values()) for n in everywhere}
    bold = lambda n, value: f"**{value}**" if value == best.get(n) else f"{value}"  # noqa: E731
    return [{"learner": name, **{n: bold(n, value) for n, value in line.items()}} for name, line in lines.items()]


def _learning(results: Results) -> Iterator[Row]:
    """Accuracy of the rule and of descent at every rate (paper, Fig. 6)."""
    kinds = ("plain", "normalised")
    found = [("learned rule", kind, [event["accuracy"]]) for event in results.events("curve") for kind in kinds]
    for event in results.events("descent", "baseline"):
        optimizer, _, kind = event["baseline"].partition(", ")
        found.append((f"{optimizer}, best rate for each n", kind or "plain", [event["best"]]))
        if optimizer == "sgd":
            found.append(("sgd, all rates", kind or "plain", event["curves"]))
    for learner, kind, curves in found:
        every = [*zip(*curves, strict=True)][1:]
        yield {"learner": learner, "panel": kind, "x": range(1, len(every) + 1), "y": every}


ACCURACIES = Table(
    [Column("test accuracy in %", "learner"), *(Column(f"n = {n}", f"n = {n}") for n in _shown)],
    lambda results: _lines(results.rows),
)
DIGITS = ACCURACIES._replace(  # two shipped genomes, and descent in two searches
    rows=lambda results: _lines([row for row in results.rows if row.get("baseline") or row["experiment"] == "transfer"])
)
_about = """Accuracies in % are means over learners with other initial synapses and minibatches. For each number of updates n,
descent has the learning rate and hidden activation that are best on dev. *Normalised* networks normalise all layers over the
minibatch, as the learned rule does, with trainable scales and shifts."""
_axes = {"xlabel": "updates n", "xscale": "log", "ylabel": "test accuracy", "ylim": (0.3, 1.0)}
_figure = Lines("learning", "x", "y", "learner", "panel", _learning, axes=_axes, size=(5, 3.9), sharey=True)
_note = "Largest difference of a weight from descent with `jax.grad`, each on its own weights, after one step and after all."
_differences = Table(rows={"experiment": "descent as a genome"}, note=_note)
_views = [ACCURACIES._replace(note=_about), _figure, _differences]
EXPERIMENT = Experiment("blur", TrainConfig, _measure, _views, check=_ready, title="Learned update rules")


# Small tasks.

UPDATES = (1, 2, 5, 10, 20, 50, 100)  # of the rule, with rows
_reached = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)  # updates after which Adam's accuracy is known
# networks of Adam: normalised or not, and their hidden activation; for each number of updates the best one on dev
_kinds: tuple[tuple[bool, Activation], ...] = ((False, "tanh"), (False, "relu"), (True, "tanh"), (True, "relu"))
_adam = 1.5  # above the learning rates of Adam
_neighbours = (1, 10)  # numbers of updates of the rule whose examples have a nearest neighbour
_large = 60_000  # weights from which on the grid of rates is half as dense


def _measure_tasks(config: TasksConfig, folder: RunFolder) -> Iterator[Part]:
    """Adam's updates to the rule's accuracy, and the nearest neighbour, by task."""
    rule, tasks = load_genome(config.genome), baselines.select_tasks(config.tasks) if config.tasks else baselines.TASKS
    data = [baselines.task_sets(task.data, seed=config.seed, data_dir=config.data_dir) for task in tasks]
    for task, sets in zip(tasks, data, strict=True):
        key = {"experiment": "speed", "genome": config.genome, "task": task.name}
        yield key, functools.partial(_speed_rows, config, rule, task, sets)
        jax.clear_caches()  # no other task has these shapes, and the programs of all tasks exhaust a process's memory maps


def _speed_rows(config: TasksConfig, rule: LearnedRule, task: Task, sets: Sets) -> Iterator[Row]:
    """The rule's accuracy, Adam's updates, costs and neighbours by number of updates."""
    options, hidden, at = _learner_options(config, sets), (task.width,), tuple(n for n in UPDATES if n in _neighbours)
    sizes, B = (sets.inputs, *hidden, sets.outputs), options["batch_size"]
    rates = tuple(rate for rate in RATES[:: 1 + ((sets.inputs + sets.outputs) * task.width > _large)] if rate < _adam)
    with stage(task.name):
        curves = learning_curves(*rule[:2], hidden, sets.train, sets.test, steps=UPDATES[-1], at=UPDATES, **options)
        test, best = tuned("adam", rates, _kinds, hidden, sets, steps=_reached[-1], at=_reached, **options)
        nearest = baselines.nearest_neighbour_accuracies(sets.train, sets.test, at=at, **options).mean(axis=0)
    adam = [mean_and_spread(test[choice, :, i], len(sets.test.X))[0] for i, choice in enumerate(best.tolist())]
    about = {"cost": baselines.rule_flops(*rule[:2], sizes, B) / baselines.descent_flops(sizes, B), "data": sets.name}
    about |= {"inputs": sets.inputs, "width": task.width, "learners": config.learners}
    for n, accuracies in zip(UPDATES, curves.T, strict=True):
        ours, spread = mean_and_spread(accuracies, len(sets.test.X))
        needed = baselines.updates_to_reach(ours, _reached, adam)
        found = {"n": n, "rule_accuracy": ours, "spread": spread, "reached": needed <= _reached[-1]}
        found |= {"nearest neighbour": float(nearest[at.index(n)])} if n in at else {}
        yield {**about, **found, "adam_updates": min(needed, _reached[-1])}


def mean_and_spread(accuracies: np.ndarray, examples: int) -> tuple[float, float]:
    """Mean and standard deviation over learners, exact from whole numbers."""
    correct = np.rint(accuracies.astype(np.float64) * examples)
    return float(correct.sum() / (examples * len(correct))), float(correct.std() / examples)


def speed_lines(results: Results) -> list[Row]:
    """Interquartile mean speed-ups against Adam, and mean accuracies, by number of updates."""
    rows = pd.DataFrame(results.rows).assign(updates=lambda rows: rows.adam_updates / rows.n, tasks=1)
    rows = rows.assign(FLOPs=rows.updates / rows.cost, faster=rows.updates > 1, never=~rows.reached)
    by_n: Any = rows.groupby("n")
    found = by_n[["updates", "FLOPs"]].agg(trim_mean, 0.25).join(by_n[["tasks", "faster", "never"]].sum())
    accuracies = by_n[[name for name in ("rule_accuracy", "nearest neighbour") if name in rows]].mean()
    return found.join(accuracies).reset_index().to_dict("records")


SPEED = Table(
    [
        Column("updates n", "n"), Column("tasks", "tasks"),
        *(Column(f"speed-up in {name}", name, ".2f") for name in ("updates", "FLOPs")),
        Column("faster in updates", "faster"), Column("never reached", "never"),
        Column("rule, %", "rule_accuracy", ".1f", 100),
        Column("nearest neighbour, %", "nearest neighbour", ".1f", 100),
    ],
    speed_lines,
    note="Speed-up: updates that Adam needs for the rule's test accuracy after n updates, divided by n, and the same in FLOPs. "
    "Interquartile means over tasks; above 1 the rule is faster. Where Adam does not reach the accuracy within "
    f"{_reached[-1]} updates, {_reached[-1]} are counted. Accuracies are means over tasks; the nearest neighbour is among the "
    "examples of the first n minibatches.",
)  # fmt: skip
_speed_axes = {"xlabel": "updates n", "xscale": "log", "ylabel": "updates or FLOPs of Adam / of the rule", "yscale": "log"}
_speeds = {"updates": "in updates and examples", "FLOPs": "in FLOPs"}
_task_views = [SPEED, Lines("speed", "n", _speeds, "measure", rows=speed_lines, axes=_speed_axes, size=(6.5, 3.6))]
_title = "A learned rule on small tasks"
TASKS_EXPERIMENT = Experiment("blur", TasksConfig, _measure_tasks, _task_views, check=_ready, title=_title)

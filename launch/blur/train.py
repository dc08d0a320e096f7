"""Learned update rules beside gradient descent, and their speed-up over Adam.

Views show accuracy by updates, plain and with the rule's normalisation (the source's Fig. 6), and descent as a genome. The
speed-up is the number of updates that Adam needs to reach the rule's accuracy after n updates, divided by n. An update of
either reads one minibatch, so this is the ratio of examples, too. In FLOPs it is divided by the ratio of costs of an update.
"""

import dataclasses
import hashlib
import time
import typing
from collections.abc import Callable, Iterator, Sequence
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
from launch.kit.views import Column, Lines, Results, Row, Table, groups, where

_reported = (0, 1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 400, 800)  # numbers of updates that have rows
_shown = (1, 2, 5, 10, 20, 50, 100, 400)  # numbers of updates in tables


def _ready(config: TrainConfig | TasksConfig) -> None:
    """Refuse bad flags and genomes, then start JAX on the chosen devices."""
    if isinstance(config, TrainConfig):
        check(config)
    use_devices(config.devices)
    if config.genome is not None:
        load_genome(config.genome)


def _part(rows: Callable[..., Sequence[Row]], *arguments: Any, **key: Any) -> Part:
    """A measurement, with a line on the terminal; its rows have its seconds."""

    def timed() -> list[Row]:
        start = time.perf_counter()
        with stage(", ".join(map(str, key.values()))):
            found = rows(*arguments)
        return [{**key, "seconds": time.perf_counter() - start, **row} for row in found]

    return key, timed


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
    """Test accuracies of descent, and the best choice on dev by updates.

    A choice is a kind of network (normalised or not, hidden activation) and a learning rate, in this order.
    """
    data = hidden, sets.train, (_first(sets.dev), _first(sets.test))
    curves = [descent_curves(optimizer, rates, *data, normalised=how, hidden_activation=a, **options) for how, a in kinds]
    dev, test = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    return test, dev.mean(axis=1).argmax(axis=0)


def _first(part: Examples) -> Examples:
    """At most 2000 examples of a part, enough for an accuracy."""
    return Examples(part.X[:2000], part.Y[:2000])


def _design(rule: LearnedRule) -> Row:
    return {"states": rule.rules.states, "normalisation": rule.rules.normalise, "unroll": rule.provenance.get("unroll")}


def _place(sets: Sets, hidden: Sequence[int]) -> Row:
    return {"layers": len(hidden), "hidden": list(hidden), "data": sets.name, "inputs": sets.inputs}


# --- a genome beside descent ---------------------------------------------------------------------------------------------


def _measure(config: TrainConfig, folder: RunFolder) -> Iterator[Part]:
    """Learners of the genome and descent, and their check."""
    sets = _load_sets(config)
    rule = load_genome(config.genome) if config.genome else _search(folder, config, sets)
    key = {"experiment": "train"}
    yield _part(_learners, folder, config, rule, sets, **key, genome=config.genome or sets.name)
    if not config.genome:
        own = where(folder.rows(), **key, baseline=None)
        accuracy = {str(row["step"]): round(row["test_accuracy"], 4) for row in own}
        save_genome(folder.path / "genome.json", rule._replace(provenance={**rule.provenance, "test_accuracy": accuracy}))
    for optimizer in config.baselines:
        for normalised in (False, True):
            named = {**key, "baseline": optimizer + ", normalised" * normalised}
            yield _part(_descent, folder, config, optimizer, normalised, sets, named, **named)
    for precision in ("float32", "float64") if "sgd" in config.baselines else ():
        sizes = (sets.inputs, *config.widths, sets.outputs)
        about = {"experiment": "descent as a genome", "baseline": "sgd", "precision": precision}
        yield _part(_descent_as_genome, config, sizes, precision, **about)


def _learners(folder: RunFolder, config: TrainConfig, rule: LearnedRule, sets: Sets) -> list[Row]:
    """Rows of the rule's test accuracy, and the learning curve as an event."""
    options = {"steps": config.steps, **_learner_options(config, sets)}
    curves = learning_curves(*rule[:2], config.widths, sets.train, _first(sets.test), **options)
    folder.log(event="curve", accuracy=curves.mean(axis=0).round(5).tolist())
    return [{**_design(rule), "learners": config.learners, **row} for row in _accuracy_rows(config, sets, curves.T)]


def _descent(
    folder: RunFolder, config: TrainConfig, optimizer: OptimizerName, normalised: bool, sets: Sets, key: Row
) -> Sequence[Row]:
    """Rows of tuned descent's test accuracy, and all curves as an event."""
    kinds: Any = [(normalised, activation) for activation in config.baseline_activations]
    options = {"steps": config.steps, **_learner_options(config, sets)}
    test, chosen = tuned(optimizer, config.rates, kinds, config.widths, sets, **options)
    best = test[chosen, :, np.arange(config.steps + 1)]  # [n + 1, learners]
    every = test.mean(axis=1).round(4).tolist()
    folder.log(event="descent", **key, rates=config.rates, curves=every, best=best.mean(axis=1).tolist())
    rows = _accuracy_rows(config, sets, best)
    for row in rows:
        activation, rate = divmod(int(chosen[row["step"]]), len(config.rates))
        row |= {"learning_rate": config.rates[rate], "activation": config.baseline_activations[activation]}
        row["normalisation"] = "forward" if normalised else "none"
    return rows


def _accuracy_rows(config: TrainConfig, sets: Sets, accuracies: np.ndarray) -> list[dict[str, Any]]:
    """A row for each reported number of updates, from accuracies [updates, learners]."""
    steps = sorted({n for n in _reported if n <= config.steps} | {config.steps})
    found = [{"step": n, "test_accuracy": float(accuracies[n].mean()), "spread": float(accuracies[n].std())} for n in steps]
    return [{**_place(sets, config.widths), **row} for row in found]


def _descent_as_genome(config: TrainConfig, sizes: tuple[int, ...], precision: str) -> list[Row]:
    """The largest difference of weights between the descent genome and `jax.grad`."""
    activation = config.baseline_activations[0]
    shared: Any = {name: getattr(config, name) for name in ("steps", "batch_size", "seed")}
    with jax.enable_x64(precision == "float64"):
        rules = baselines.sgd_rules(activation, "cross_entropy")
        found = baselines.sgd_difference(rules, sizes, dtype=np.dtype(precision), **shared)
    row = {"network": "-".join(map(str, sizes)), "activation": activation, "steps": config.steps}
    return [{**row, "max_difference": found.all_steps, "one_step": found.one_step, "moved": found.change}]


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
    shown: Any = {"seed": config.seed, "every": config.every, "episodes": config.episodes, "devices": config.devices}
    with stage(f"meta-training {sets.name}", "genome steps") as progress:
        shown |= {"on_evaluation": on_evaluation, "progress": progress, "checkpoints": folder.path / "checkpoints"}
        genomes = jax.vmap(lambda key: begin(key, config.states))(keys)
        if config.data == "xor":  # four noisy corners
            rng = np.random.default_rng(config.seed)
            train, dev = corners(400, rng), corners(400, rng)
        else:
            train, dev = sets.train, _first(sets.dev)
        found = meta_train(genomes, rules, recipe, curriculum, train, dev, **shown)
    flags = {flag: value for flag, value in dataclasses.asdict(config).items() if flag not in ("out", "resume", "devices")}
    steps = {"unroll": config.unroll[-1], "meta_steps": sum(config.meta_steps), "versions": environment()["versions"]}
    results = {"dev_accuracy": found.score, "seconds": found.seconds, "skipped": found.skipped}
    sha256 = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for part in sets[:3] for leaf in part)).hexdigest()
    data = {"name": sets.name, "inputs": sets.inputs, "outputs": sets.outputs, "sha256": sha256}
    provenance = {"config": flags, "seed": config.seed, "data": data, **steps, **results}
    return LearnedRule(found.best, rules, provenance)


def _load_sets(config: TrainConfig) -> Sets:
    """The images of the config, or exclusive or as four points."""
    with stage("reading"):
        if config.data == "xor":
            points = Examples(*(array.astype(np.float32) for array in xor()))
            sets = Sets(points, points, points, "xor")
        else:
            shown: Any = {name: getattr(config, name) for name in ("side", "limit", "classes", "seed")}
            sets = image_sets(read_images(config.data, config.data_dir), **shown)
    parts = ", ".join(f"{len(part.X):,} {name}" for part, name in zip(sets[:3], ("train", "dev", "test"), strict=True))
    console.print(f"[bold]{sets.name}[/]: {sets.inputs} inputs, {parts}")
    return sets


def _learner(row: Row) -> str:
    """The name of the optimiser or of the genome."""
    path = Path(str(row.get("genome")))
    return row.get("baseline") or f"genome {path.parent.name if path.suffix else path.name}"


def _where(row: Row) -> str:
    """The data or networks where learners run, or their hidden layers."""
    hidden = "-".join(map(str, row.get("hidden") or row.get("widths") or ()))
    return row["where"] if row.get("where") not in (None, "same") else f"hidden {hidden}" if hidden else "same"


def _percent(value: float, among: Sequence[float] = ()) -> str:
    """An accuracy in %, bold if it is the best of its group."""
    text, rounded = f"{100 * value:.1f}", [round(100 * other, 1) for other in among]
    return f"**{text}**" if rounded and min(rounded) < max(rounded) == round(100 * value, 1) else text


def _lines(rows: Sequence[Row]) -> list[Row]:
    """Accuracies by number of updates, a line for each place and learner."""
    lines = []
    for place, here in groups(where(rows, step=_shown, momentum=None, equal=None), _where).items():
        curves = {name: {row["step"]: row["test_accuracy"] for row in own} for name, own in groups(here, _learner).items()}
        for name, curve in curves.items():
            among = {n: [other[n] for other in curves.values()] for n in curve if all(n in other for other in curves.values())}
            lines.append({"where": place, "learner": name, **{n: _percent(x, among.get(n, ())) for n, x in curve.items()}})
    return lines


def _columns(lines: Sequence[Row]) -> list[Column]:
    steps = [Column(f"n = {n}", lambda line, n=n: line.get(n)) for n in _shown if any(n in line for line in lines)]
    places = [Column("", "where")] if len({line["where"] for line in lines}) > 1 else []
    return [*places, Column("test accuracy in %", "learner"), *steps]


def _digits(results: Results) -> list[Row]:
    """Two shipped genomes, and descent at the better rate of two searches."""
    learned = where(results.rows, experiment="transfer", baseline=None)
    found = [row for row in results.rows if row.get("baseline") and not row.get("equal")]
    best = [max(own, key=lambda row: row["test_accuracy"]) for own in groups(found, ["baseline", "step"]).values()]
    return _lines([*learned, *best])


def _learning(results: Results) -> list[Row]:
    """Accuracy of the rule and of descent at every rate (paper, Fig. 6)."""
    rows: list[Row] = []
    for event in results.events("curve"):
        for panel in ("plain", "normalised"):
            found = {"x": range(1, len(event["accuracy"])), "y": event["accuracy"][1:]}
            rows.append({"learner": "learned rule", "panel": panel, **found})
    for event in results.events("descent", "baseline"):
        optimizer, _, normalised = event["baseline"].partition(", ")
        series = {f"{optimizer}, best rate for each n": [event["best"]]}
        series |= {"sgd, all rates": event["curves"]} if optimizer == "sgd" else {}
        for label, curves in series.items():
            every = list(zip(*curves, strict=True))[1:]
            found = {"x": range(1, len(every) + 1), "y": every}
            rows.append({"learner": label, "panel": normalised or "plain", **found})
    return rows


ACCURACIES = Table(_columns, lambda results: _lines(results.rows))
DIGITS = ACCURACIES._replace(rows=_digits)
_about = """Accuracies in % are means over learners with other initial synapses and minibatches. For each number of updates n,
descent has the learning rate and hidden activation that are best on dev. *Normalised* networks normalise all layers over the
minibatch, as the learned rule does, with trainable scales and shifts."""
_grey = {"sgd, all rates": "#999999"}
_learning_axes = {"xlabel": "updates n", "xscale": "log", "ylabel": "test accuracy", "ylim": (0.3, 1.0)}
_figure = Lines("learning", "x", "y", "learner", "panel", _learning, _grey, axes=_learning_axes, size=(5, 3.9), sharey=True)
_differences = Table(
    [
        *(Column(name, name) for name in ("network", "activation", "precision")),
        Column("after one step", "one_step", ".1e"),
        Column("after all steps", "max_difference", ".1e"),
        Column("largest change of a weight", "moved", ".1e"),
    ],
    {"experiment": "descent as a genome"},
    note="Largest difference of a weight from descent with `jax.grad`, each on its own weights.",
)
_views = [ACCURACIES._replace(note=_about), _figure, _differences]
EXPERIMENT = Experiment("blur", TrainConfig, _measure, _views, check=_ready, title="Learned update rules")


# --- small tasks ---------------------------------------------------------------------------------------------------------

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
        yield _part(_speed_rows, config, rule, task, sets, experiment="speed", genome=config.genome, task=task.name)
        jax.clear_caches()  # no other task has these shapes, and the programs of all tasks exhaust a process's memory maps


def _speed_rows(config: TasksConfig, rule: LearnedRule, task: Task, sets: Sets) -> list[Row]:
    """The rule's accuracy, Adam's updates, costs and neighbours by number of updates."""
    options, hidden, at = _learner_options(config, sets), (task.width,), tuple(n for n in UPDATES if n in _neighbours)
    curves = learning_curves(*rule[:2], hidden, sets.train, sets.test, steps=UPDATES[-1], at=UPDATES, **options)
    # half of the rates in large networks
    rates = tuple(rate for rate in RATES[:: 1 + ((sets.inputs + sets.outputs) * task.width > _large)] if rate < _adam)
    test, best = tuned("adam", rates, _kinds, hidden, sets, steps=_reached[-1], at=_reached, **options)
    adam = [mean_and_spread(test[choice, :, i], len(sets.test.X))[0] for i, choice in enumerate(best.tolist())]
    sizes, B = (sets.inputs, *hidden, sets.outputs), options["batch_size"]
    cost = baselines.rule_flops(*rule[:2], sizes, B) / baselines.descent_flops(sizes, B)
    nearest = baselines.nearest_neighbour_accuracies(sets.train, sets.test, at=at, **options).mean(axis=0)
    network = {**_place(sets, hidden), **_design(rule), "width": task.width, "learners": config.learners}
    rows = []
    for n, accuracies in zip(UPDATES, curves.T, strict=True):
        ours, spread = mean_and_spread(accuracies, len(sets.test.X))
        needed = baselines.updates_to_reach(ours, _reached, adam)
        found = {"rule_accuracy": ours, "spread": spread, "test_accuracy": ours, "reached": needed <= _reached[-1]}
        found |= {"adam_updates": min(needed, _reached[-1]), "cost": cost}
        found |= {"nearest neighbour": float(nearest[at.index(n)])} if n in at else {}
        rows.append({**network, "n": n, "step": n, **found})
    return rows


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
_axes = {"xlabel": "updates n", "xscale": "log", "ylabel": "updates or FLOPs of Adam / of the rule", "yscale": "log"}
_speeds = {"updates": "in updates and examples", "FLOPs": "in FLOPs"}
_task_views = [SPEED, Lines("speed", "n", _speeds, "measure", rows=speed_lines, axes=_axes, size=(6.5, 3.6))]
_title = "A learned rule on small tasks"
TASKS_EXPERIMENT = Experiment("blur", TasksConfig, _measure_tasks, _task_views, check=_ready, title=_title)

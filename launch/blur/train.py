"""Meta-train a genome, or take a known one, and compare it with descent.

Views show accuracy by updates beside descent, plain and with the rule's normalisation (the source's Fig. 6), and descent as a
genome. Other widths, depths, classes and states are flags.
"""

import dataclasses
import functools
import hashlib
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from icl.blur.baselines import descent_curves, sgd_difference, sgd_rules
from icl.blur.design import Rules
from icl.blur.learning import Examples, Sets, corners, image_sets, learning_curves, xor
from icl.blur.rules import LearnedRule, load_genome, random_genome, ridge_genome, save_genome
from icl.blur.search import FAMILIES, MetaRecipe, Stage, meta_train
from jexplicit.data.images import read_images
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import use_devices
from jexplicit.runs.progress import console, stage
from launch.blur.config import TRAIN, TasksConfig, TrainConfig, check
from launch.kit.experiment import Experiment, Part, RunFolder, environment
from launch.kit.views import Column, Lines, Results, Row, Table, groups, points, where

REPORTED_STEPS = (0, 1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 400, 800)  # numbers of updates that have rows
_shown = (1, 2, 5, 10, 20, 50, 100, 400)  # numbers of updates in tables


def ready(config: TrainConfig | TasksConfig) -> None:
    """Refuse bad flags and genomes, then start JAX on the chosen devices."""
    if isinstance(config, TrainConfig):
        check(config)
    use_devices(config.devices)
    if config.genome is not None:
        load_genome(config.genome)


def measure(config: TrainConfig, folder: RunFolder) -> Iterator[Part]:
    """Learners of the genome and descent, and their check."""
    sets = load_sets(config)
    rule = load_genome(config.genome) if config.genome else search(folder, config, sets)
    key = {"experiment": "train"}
    yield part(functools.partial(learners, folder, config, rule, sets), **key, genome=config.genome or sets.name)
    if not config.genome:
        own = where(folder.rows(), **key, baseline=None)
        accuracy = {str(row["step"]): round(row["test_accuracy"], 4) for row in own}
        save_genome(folder.path / "genome.json", rule._replace(provenance={**rule.provenance, "test_accuracy": accuracy}))
    for optimizer in config.baselines:
        for normalised in (False, True):
            named = {**key, "baseline": optimizer + ", normalised" * normalised}
            yield part(functools.partial(descent, folder, config, optimizer, normalised, sets, named), **named)
    for precision in ("float32", "float64") if "sgd" in config.baselines else ():
        check_descent = functools.partial(descent_as_genome, config, (sets.inputs, *config.widths, sets.outputs), precision)
        yield part(check_descent, experiment="descent as a genome", baseline="sgd", precision=precision)


def part(rows: Callable[[], Sequence[Row]], **key: Any) -> Part:
    """A measurement, with a line on the terminal; its rows have its seconds."""

    def timed() -> list[Row]:
        start = time.perf_counter()
        with stage(", ".join(map(str, key.values()))):
            found = rows()
        return [{**key, "seconds": time.perf_counter() - start, **row} for row in found]

    return key, timed


def learner_options(config: TrainConfig | TasksConfig, sets: Sets) -> dict[str, Any]:
    """The minibatch, and a seed for each learner."""
    seeds = tuple(range(config.seed, config.seed + config.learners))
    return {"batch_size": min(config.batch_size, len(sets.train.X)), "seeds": seeds}


def learners(folder: RunFolder, config: TrainConfig, rule: LearnedRule, sets: Sets) -> list[Row]:
    """Rows of the rule's test accuracy, and the learning curve as an event."""
    test, options = first_examples(sets.test), learner_options(config, sets)
    curves = learning_curves(*rule[:2], config.widths, sets.train, test, steps=config.steps, **options)
    folder.log(event="curve", accuracy=curves.mean(axis=0).round(5).tolist())
    return [{**design_of(rule), "learners": config.learners, **row} for row in _accuracy_rows(config, sets, curves.T)]


def descent(
    folder: RunFolder, config: TrainConfig, optimizer: OptimizerName, normalised: bool, sets: Sets, key: Row
) -> Sequence[Row]:
    """Rows of tuned descent's test accuracy, and all curves as an event."""
    kinds: Any = [(normalised, activation) for activation in config.baseline_activations]
    options = learner_options(config, sets)
    test, chosen = tuned(optimizer, config.rates, kinds, config.widths, sets, steps=config.steps, **options)
    best = test[chosen, :, np.arange(config.steps + 1)]  # [n + 1, learners]
    every = test.mean(axis=1).round(4).tolist()
    folder.log(event="descent", **key, rates=config.rates, curves=every, best=best.mean(axis=1).tolist())
    rows = _accuracy_rows(config, sets, best)
    for row in rows:
        activation, rate = divmod(int(chosen[row["step"]]), len(config.rates))
        row |= {"learning_rate": config.rates[rate], "activation": config.baseline_activations[activation]}
        row["normalisation"] = "forward" if normalised else "none"
    return rows


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
    data = hidden, sets.train, (first_examples(sets.dev), first_examples(sets.test))
    curves = [descent_curves(optimizer, rates, *data, normalised=how, hidden_activation=a, **options) for how, a in kinds]
    dev, test = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    return test, dev.mean(axis=1).argmax(axis=0)


def descent_as_genome(config: TrainConfig, sizes: tuple[int, ...], precision: str) -> list[Row]:
    """The largest difference of weights between the descent genome and `jax.grad`."""
    activation = config.baseline_activations[0]
    shared = {name: getattr(config, name) for name in ("steps", "batch_size", "seed")}
    with jax.enable_x64(precision == "float64"):
        found = sgd_difference(sgd_rules(activation, "cross_entropy"), sizes, dtype=np.dtype(precision), **shared)
    row = {"network": "-".join(map(str, sizes)), "activation": activation, "steps": config.steps}
    return [{**row, "max_difference": found.all_steps, "one_step": found.one_step, "moved": found.change}]


# --- genomes and data ----------------------------------------------------------------------------------------------------


def search(folder: RunFolder, config: TrainConfig, sets: Sets) -> LearnedRule:
    """Meta-train a genome; earlier meta-training continues, or is read."""

    def on_evaluation(entry: Row) -> None:
        folder.log(event="meta", genome=sets.name, **entry)
        found = f"dev accuracy {max(entry['accuracy']):.3f}, {np.sum(entry['skipped'])} steps skipped"
        console.print(f"    {sets.name}: step {entry['step']}, T = {entry['unroll']}, {found}, {entry['seconds']:.0f} s")

    rules = _made(Rules, config, hidden=config.hidden_activation, output=config.output_activation)
    families = FAMILIES.get(config.families or "", ())
    recipe = _made(MetaRecipe, config, hidden=config.widths, families=families, learning_rate=config.meta_rate)
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
            train, dev = sets.train, first_examples(sets.dev)
        found = meta_train(genomes, rules, recipe, curriculum, train, dev, **shown)
    flags = {flag: value for flag, value in dataclasses.asdict(config).items() if flag not in ("out", "resume", "devices")}
    steps = {"unroll": config.unroll[-1], "meta_steps": sum(config.meta_steps), "versions": environment()["versions"]}
    results = {"dev_accuracy": found.score, "seconds": found.seconds, "skipped": found.skipped}
    sha256 = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for part in sets[:3] for leaf in part)).hexdigest()
    data = {"name": sets.name, "inputs": sets.inputs, "outputs": sets.outputs, "sha256": sha256}
    provenance = {"config": flags, "seed": config.seed, "data": data, **steps, **results}
    return LearnedRule(found.best, rules, provenance)


def _made(kind: Any, config: TrainConfig, **others: Any) -> Any:
    """An instance of `kind` from fields of the config, and others."""
    shared = {name: getattr(config, name) for name in typing.get_type_hints(kind) if hasattr(config, name)}
    return kind(**{**shared, **others})


def load_sets(config: TrainConfig) -> Sets:
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


def first_examples(part: Examples) -> Examples:
    """At most 2000 examples of a part, enough for an accuracy."""
    return Examples(part.X[:2000], part.Y[:2000])


def design_of(rule: LearnedRule) -> Row:
    """The fields of rows about a learned rule."""
    return {"states": rule.rules.states, "normalisation": rule.rules.normalise, "unroll": rule.provenance.get("unroll")}


def place_of(sets: Sets, hidden: Sequence[int]) -> Row:
    """The fields of rows about data and network."""
    return {"layers": len(hidden), "hidden": list(hidden), "data": sets.name, "inputs": sets.inputs}


def _accuracy_rows(config: TrainConfig, sets: Sets, accuracies: np.ndarray) -> list[dict[str, Any]]:
    """A row for each reported number of updates, from accuracies [updates, learners]."""
    steps = sorted({n for n in REPORTED_STEPS if n <= config.steps} | {config.steps})
    found = [{"step": n, "test_accuracy": float(accuracies[n].mean()), "spread": float(accuracies[n].std())} for n in steps]
    return [{**place_of(sets, config.widths), **row} for row in found]


# --- views ---------------------------------------------------------------------------------------------------------------


def learner_name(row: Row) -> str:
    """The name of the optimiser or of the genome."""
    path = Path(str(row.get("genome")))
    return row.get("baseline") or f"genome {path.parent.name if path.suffix else path.name}"


def place_name(row: Row) -> str:
    """The data or networks where learners run, or their hidden layers."""
    hidden = "-".join(map(str, row.get("hidden") or row.get("widths") or ()))
    return row["where"] if row.get("where") not in (None, "same") else f"hidden {hidden}" if hidden else "same"


def percent(value: float, among: Sequence[float] = ()) -> str:
    """An accuracy in %, bold if it is the best of its group."""
    text, rounded = f"{100 * value:.1f}", [round(100 * other, 1) for other in among]
    return f"**{text}**" if rounded and min(rounded) < max(rounded) == round(100 * value, 1) else text


def accuracy_lines(rows: Sequence[Row]) -> list[Row]:
    """Accuracies by number of updates, a line for each place and learner."""
    lines = []
    for place, here in groups(where(rows, step=_shown, momentum=None, equal=None), place_name).items():
        curves = {name: {row["step"]: row["test_accuracy"] for row in own} for name, own in groups(here, learner_name).items()}
        for name, curve in curves.items():
            among = {n: [other[n] for other in curves.values()] for n in curve if all(n in other for other in curves.values())}
            lines.append({"where": place, "learner": name, **{n: percent(x, among.get(n, ())) for n, x in curve.items()}})
    return lines


def _columns(lines: Sequence[Row]) -> list[Column]:
    steps = [Column(f"n = {n}", lambda line, n=n: line.get(n)) for n in _shown if any(n in line for line in lines)]
    places = [Column("", "where")] if len({line["where"] for line in lines}) > 1 else []
    return [*places, Column("test accuracy in %", "learner"), *steps]


def _digits(results: Results) -> list[Row]:
    """Two shipped genomes, and descent at the better rate of two searches."""
    learned = where(results.rows, experiment="transfer", baseline=None)
    baselines = [row for row in results.rows if row.get("baseline") and not row.get("equal")]
    best = [max(own, key=lambda row: row["test_accuracy"]) for own in groups(baselines, ["baseline", "step"]).values()]
    return accuracy_lines([*learned, *best])


def learning(results: Results) -> list[str]:
    """Accuracy of the rule and of descent at every rate (paper, Fig. 6)."""
    rows: list[Row] = []
    for event in results.events("curve"):
        for panel in ("plain", "normalised"):
            rows += points(range(1, len(event["accuracy"])), event["accuracy"][1:], learner="learned rule", panel=panel)
    for event in results.events("descent", "baseline"):
        optimizer, _, normalised = event["baseline"].partition(", ")
        series = {f"{optimizer}, best rate for each n": [event["best"]]}
        series |= {"sgd, all rates": event["curves"]} if optimizer == "sgd" else {}
        for label, curves in series.items():
            every = list(zip(*curves, strict=True))[1:]
            rows += points(range(1, len(every) + 1), every, learner=label, panel=normalised or "plain")

    styles = {"sgd, all rates": {"color": "#999999", "linewidth": 0.7}}
    axes = {"xlabel": "updates n", "xscale": "log", "ylabel": "test accuracy", "ylim": (0.3, 1.0)}
    return Lines("learning", "x", "y", "learner", "panel", rows, styles, axes, size=(5, 3.9), sharey=True)(results)


ACCURACIES = Table(_columns, lambda results: accuracy_lines(results.rows))
DIGITS = ACCURACIES._replace(rows=_digits)
ABOUT = """Accuracies in % are means over learners with other initial synapses and minibatches. For each number of updates n,
descent has the learning rate and hidden activation that are best on dev. *Normalised* networks normalise all layers over the
minibatch, as the learned rule does, with trainable scales and shifts."""
_differences = {"after one step": "one_step", "after all steps": "max_difference", "largest change of a weight": "moved"}
DIFFERENCES = Table(
    [
        *(Column(name, name) for name in ("network", "activation", "precision")),
        *(Column(heading, name, ".1e") for heading, name in _differences.items()),
    ],
    {"experiment": "descent as a genome"},
    note="Largest difference of a weight from descent with `jax.grad`, each on its own weights.",
)
views = [ACCURACIES._replace(note=ABOUT), learning, DIFFERENCES]
EXPERIMENT = Experiment("blur", TrainConfig, measure, views, TRAIN, ready, title="Learned update rules")
run = EXPERIMENT.run

"""Meta-train a genome, and compare its learners with gradient descent at every learning rate."""

import dataclasses
import functools
import shutil
import typing
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from icl.blur.data import Examples, Sets
from icl.blur.design import Rules
from icl.blur.episodes import FAMILIES
from icl.blur.evolution import EvolutionRecipe, evolve
from icl.blur.genome import near_backprop_genome, random_genome, ridge_genome
from icl.blur.genome_files import LearnedRule, load_genome, save_genome
from icl.blur.meta import MetaRecipe, SearchResult, Stage, meta_train
from jexplicit.runs.progress import console, stage
from launch.blur.config import MetaTrainingConfig, TrainConfig
from launch.blur.data import describe_data, load_sets, meta_examples
from launch.blur.learners import (
    ABOUT,
    ACCURACIES,
    ACCURACY,
    accuracy_lines,
    by_updates,
    curve_rows,
    descent,
    learners,
    ready,
    stability,
)
from launch.blur.opponents import EQUAL, opponents
from launch.blur.presets import PRESETS
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder, environment
from launch.kit.rows import Results, Row, groups, where
from launch.kit.tables import Column
from launch.kit.views import Lines, Section, Table

_starts = {"random": random_genome, "backprop": near_backprop_genome, "ridge": ridge_genome}


def measure(config: TrainConfig, folder: RunFolder) -> Iterator[Part]:
    """The learners of a new genome, and descent in the same networks."""
    sets = load_sets(config)
    rule, place = find_genome(folder, sets.name, config, sets), (sets, config.widths)
    yield learners(folder, config, rule, place, max(config.steps, config.far), experiment="train", genome=sets.name)
    accuracy = {str(row["step"]): round(row["test_accuracy"], 4) for row in folder.rows() if row["genome"]}
    save_genome(folder.path / "genome.json", rule._replace(provenance={**rule.provenance, "test_accuracy": accuracy}))
    for optimizer in config.baselines:
        yield from descent(folder, config, optimizer, place, config.rates, experiment="train")
    if config.baselines:
        yield from opponents(config, rule, place, config.rates, experiment="train")


def find_genome(folder: RunFolder, name: str, config: MetaTrainingConfig, sets: Sets) -> LearnedRule:
    """Meta-train a genome, or load it if the run already has it; an interrupted search continues."""
    path, checkpoints = folder.path / "genomes" / f"{name}.json", folder.path / "checkpoints" / f"{name}.partial"
    if path.exists():
        return load_genome(path)
    total = sum(config.meta_steps)
    printed = max(config.every, total // 8 // config.every * config.every)  # steps between two lines on the terminal

    def on_evaluation(entry: Row) -> None:
        folder.log(event="meta", genome=name, **entry)
        if entry["step"] % printed == 0:
            found = f"dev accuracy {max(entry['accuracy']):.3f}, {np.sum(entry['skipped'])} steps skipped"
            console.print(f"    {name}: step {entry['step']}, T = {entry['unroll']}, {found}, {entry['seconds']:.0f} s")

    with stage(f"meta-training {name}", "genome steps") as progress:
        shown: Any = {"on_evaluation": on_evaluation, "progress": progress, "checkpoints": checkpoints}
        found = search_genome(config, *meta_examples(config, sets), **shown)
    flags = {flag: value for flag, value in dataclasses.asdict(config).items() if flag not in ("out", "resume", "devices")}
    steps = {"unroll": config.unroll[-1], "meta_steps": total, "versions": environment()["versions"]}
    results = {"dev_accuracy": found.score, "seconds": found.seconds, "skipped": found.skipped}
    provenance = {"config": flags, "seed": config.seed, "data": describe_data(sets), **steps, **results}
    rule = LearnedRule(found.best, make_rules(config), provenance)
    save_genome(path, rule)
    folder.log(event="meta_trained", genome=name, **results)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return rule


def search_genome(config: MetaTrainingConfig, train: Examples, dev: Examples, **shown: Any) -> SearchResult:
    """Meta-train by the method of the flags."""
    start, key, rules = _starts[config.start], jax.random.key(config.seed), make_rules(config)
    options: Any = {"seed": config.seed, "every": config.every, "episodes": config.episodes, **shown}
    if config.method == "evolution":
        recipe, generations = make_evolution_recipe(config), sum(config.meta_steps)
        return evolve(start(key, config.states), rules, recipe, generations, train, dev, **options)
    genomes = jax.vmap(lambda key: start(key, config.states))(jax.random.split(key, config.population))
    recipe = _made(MetaRecipe, config, families=FAMILIES.get(config.families or "", ()), learning_rate=config.meta_rate)
    curriculum = tuple(Stage(*stage) for stage in zip(config.unroll, config.meta_steps, strict=True))
    return meta_train(genomes, rules, recipe, curriculum, train, dev, devices=config.devices, **options)


def make_rules(config: MetaTrainingConfig) -> Rules:
    """The design that the flags describe."""
    return _made(Rules, config, hidden=config.hidden_activation, output=config.output_activation)


def make_evolution_recipe(config: MetaTrainingConfig) -> EvolutionRecipe:
    """Hyperparameters of evolution, with the T of the last stage."""
    return _made(EvolutionRecipe, config, unroll=config.unroll[-1], learners=config.fitness_learners)


def _made(kind: Any, config: MetaTrainingConfig, **others: Any) -> Any:
    """An instance of `kind` with the fields that the config has under the same name, the widths as `hidden`, and others."""
    shared = {name: getattr(config, name) for name in typing.get_type_hints(kind) if hasattr(config, name)}
    return kind(**{**shared, "hidden": config.widths, **others})


# --- views ---------------------------------------------------------------------------------------------------------------


def meta_events(results: Results) -> list[Row]:
    """Evaluations in meta-training; `search` is the genome, or a design of several seeds, with T where stages differ."""
    events = results.events("meta", "genome", "step")
    stages = len({event["unroll"] for event in events}) > 1
    names = [event["genome"].rpartition("/")[0] or event["genome"] for event in events]  # DESIGN/SEED in an ablation
    return [{**e, "search": f"{name}, T = {e['unroll']}" if stages else name} for name, e in zip(names, events, strict=True)]


def meta_results(results: Results) -> list[Row]:
    """Finished searches, with their last evaluations."""
    last = {event["genome"]: event for event in results.events("meta")}
    return [{**last[event["genome"]], **event} for event in results.events("meta_trained", "genome")]


def learning(results: Results) -> list[str]:
    """Accuracy of the learned rule and of descent at every learning rate, plain and with its normalisation (paper, Fig. 6)."""
    panels = {False: "against plain descent", True: "against descent with the same normalisation"}
    rows = [
        {**row, "learner": "learned rule", "y": [row["accuracy"] + sign * row["spread"] for sign in (-1, 0, 1)], "panel": panel}
        for row in curve_rows(results.events("curve"), "accuracy", "spread")
        for panel in panels.values()
    ]
    for event in results.events("descent", "baseline"):
        optimizer, _, normalised = event["baseline"].partition(", ")
        event = {**event, "every": list(zip(*event["curves"], strict=True)), "panel": panels[bool(normalised)]}
        series = {f"{optimizer}, best rate for each n": "best"} | ({"sgd, all rates": "every"} if optimizer == "sgd" else {})
        rows += [{**r, "learner": label, "y": r[name]} for label, name in series.items() for r in curve_rows([event], name)]

    def finish(axes: np.ndarray) -> None:
        for ax in axes[0]:
            by_updates(ax, max(results.config["unroll"]))
            ax.set(xlim=(1, results.config["steps"]), ylim=(0.3, 1.0))

    styles = {"sgd, all rates": {"color": "#999999", "linewidth": 0.7}}
    draw = functools.partial(Lines, styles=styles, axes={"ylabel": ACCURACY}, size=(5, 3.9), sharey=True, finish=finish)
    return draw("learning", "n", "y", "learner", "panel", lambda _: rows)(results)


_columns = [Column("genome", "genome"), Column("meta-steps", "step"), Column("last T", "unroll")]
_columns += [Column("best dev accuracy, %", "dev_accuracy", ".1f", 100), Column("steps not finite", "skipped")]
_axes = {"xlabel": "meta-step", "ylabel": "dev accuracy, mean and range"}
META = Section(
    "Meta-training",
    [
        Table([*_columns, Column("seconds", "seconds", ".0f")], meta_results),
        Lines("meta", "step", "accuracy", "search", rows=meta_events, axes=_axes, size=(7, 3.6), legend="below"),
    ],
)


def _digits(results: Results) -> list[Row]:
    """Two shipped genomes, from runs of transfer, and descent at the best rate of that run and of a run of train."""
    learned = where(results.rows, experiment="transfer", baseline=None)
    baselines = [row for row in results.rows if row.get("baseline") and not row.get("equal")]
    best = [max(own, key=lambda row: row["test_accuracy"]) for own in groups(baselines, ["baseline", "step"]).values()]
    return accuracy_lines([*learned, *best])


DIGITS = ACCURACIES._replace(rows=_digits)
views = [Section("Learners", [ACCURACIES, learning, stability], note=ABOUT), Section("On equal terms", [EQUAL]), META]
EXPERIMENT = Experiment("blur", TrainConfig, measure, views, PRESETS["train"], ready, title="Learned update rules")
run = EXPERIMENT.run

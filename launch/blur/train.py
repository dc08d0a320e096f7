"""Meta-train a genome, and compare its learners with gradient descent at every learning rate."""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from icl.blur.data import Sets
from icl.blur.episodes import FAMILIES
from icl.blur.evolution import EvolutionRecipe, evolve
from icl.blur.genome import LearnedRule, load_genome, near_backprop_genome, random_genome, ridge_genome, save_genome
from icl.blur.meta import MetaRecipe, Stage, meta_train
from jexplicit.runs.experiment import Experiment, Part
from jexplicit.runs.figures import COLOURS
from jexplicit.runs.folder import RunFolder, environment
from jexplicit.runs.progress import console, stage
from jexplicit.runs.rows import Results, Row
from jexplicit.runs.tables import Column
from jexplicit.runs.views import Lines, Section, Table
from launch.blur.config import MetaTrainingConfig, TrainConfig
from launch.blur.data import describe_data, load_sets, meta_examples
from launch.blur.learners import (
    ACCURACIES,
    ACCURACY,
    accuracy_lines,
    by_updates,
    descent,
    from_fields,
    learners,
    make_rules,
    ready,
    stability,
)
from launch.blur.presets import PRESETS

_starts = {"random": random_genome, "backprop": near_backprop_genome, "ridge": ridge_genome}


def measure(config: TrainConfig, folder: RunFolder) -> Iterator[Part]:
    """The learners of a new genome, and descent in the same networks."""
    sets = load_sets(config)
    rule = find_genome(folder, sets.name, config, sets)
    steps = max(config.steps, config.far)
    yield learners(folder, config, rule, sets, config.widths, steps=steps, experiment="train", genome=sets.name)
    accuracy = {str(row["step"]): round(row["test_accuracy"], 4) for row in folder.rows() if row["genome"]}
    save_genome(folder.path / "genome.json", rule._replace(provenance={**rule.provenance, "test_accuracy": accuracy}))
    choices: Any = {"rates": config.rates, "activations": config.baseline_activations}
    for optimizer in config.baselines:
        yield from descent(folder, config, optimizer, sets, config.widths, **choices, experiment="train")


def find_genome(folder: RunFolder, name: str, config: MetaTrainingConfig, sets: Sets) -> LearnedRule:
    """Meta-train a genome, or load it if the run already has it; an interrupted search continues."""
    path, checkpoints = folder.path / "genomes" / f"{name}.json", folder.path / "checkpoints" / f"{name}.partial"
    if path.exists():
        return load_genome(path)
    rules, total = make_rules(config), sum(config.meta_steps)
    printed = max(config.every, total // 8 // config.every * config.every)  # steps between two lines on the terminal

    def on_evaluation(entry: Mapping[str, Any]) -> None:
        folder.log(event="meta", genome=name, **entry)
        if entry["step"] % printed == 0:
            skipped = f", {np.sum(entry['skipped'])} skipped" if np.sum(entry["skipped"]) else ""
            accuracy = f"dev accuracy {max(entry['accuracy']):.3f}{skipped}, {entry['seconds']:.0f} s"
            console.print(f"    {name}: step {entry['step']}, T = {entry['unroll']}, {accuracy}")

    options: Any = {"seed": config.seed, "every": config.every, "episodes": config.episodes, "checkpoints": checkpoints}
    start, key, data = _starts[config.start], jax.random.key(config.seed), meta_examples(config, sets)
    with stage(f"meta-training {name}", "genome steps") as progress:
        options |= {"on_evaluation": on_evaluation, "progress": progress}
        if config.method == "evolution":
            found = evolve(start(key, config.states), rules, make_evolution_recipe(config), total, *data, **options)
        else:
            genomes = jax.vmap(lambda key: start(key, config.states))(jax.random.split(key, config.population))
            recipe, curriculum = make_meta_recipe(config), make_curriculum(config)
            found = meta_train(genomes, rules, recipe, curriculum, *data, devices=config.devices, **options)
    results = {"dev_accuracy": found.score, "seconds": found.seconds, "skipped": found.skipped}
    provenance = {
        "config": {flag: x for flag, x in dataclasses.asdict(config).items() if flag not in ("out", "resume", "devices")},
        "seed": config.seed,
        "data": describe_data(sets),
        "unroll": config.unroll[-1],
        "meta_steps": total,
        "versions": environment()["versions"],
    }
    rule = LearnedRule(found.best, rules, provenance | results)
    save_genome(path, rule)
    folder.log(event="meta_trained", genome=name, **results)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return rule


def make_meta_recipe(config: MetaTrainingConfig) -> MetaRecipe:
    """Hyperparameters of meta-training by gradient."""
    families = FAMILIES[config.families] if config.families else ()
    return from_fields(MetaRecipe, config, hidden=config.widths, families=families, learning_rate=config.meta_rate)


def make_evolution_recipe(config: MetaTrainingConfig) -> EvolutionRecipe:
    """Hyperparameters of evolution, with the T of the last stage."""
    others: Any = {"hidden": config.widths, "unroll": config.unroll[-1], "learners": config.fitness_learners}
    return from_fields(EvolutionRecipe, config, **others)


def make_curriculum(config: MetaTrainingConfig) -> tuple[Stage, ...]:
    """The stages of meta-training."""
    return tuple(Stage(*stage) for stage in zip(config.unroll, config.meta_steps, strict=True))


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


META = Section(
    "Meta-training",
    [
        Table(
            [
                Column("genome", "genome"),
                Column("meta-steps", "step"),
                Column("last T", "unroll"),
                Column("best dev accuracy, %", "dev_accuracy", ".1f", 100),
                Column("steps not finite", "skipped"),
                Column("seconds", "seconds", ".0f"),
            ],
            meta_results,
        ),
        Lines(
            "meta",
            "step",
            "accuracy",
            "search",
            rows=meta_events,
            axes={"xlabel": "meta-step", "ylabel": "dev accuracy, mean and range of genomes"},
            size=(7, 3.6),
            shared_legend=True,
        ),
    ],
)


def learning(results: Results) -> list[str]:
    """Accuracy of the learned rule and of descent at every learning rate, plain and with its normalisation (paper, Fig. 6)."""
    steps, horizon = results.config["steps"], max(results.config["unroll"])
    panels = {False: "against plain descent", True: "against descent with the same normalisation"}
    series = [
        {"n": n, "accuracy": [mean - spread, mean, mean + spread], "learner": "learned rule", "panel": panel}
        for event in results.events("curve")
        for n, (mean, spread) in enumerate(zip(event["accuracy"], event["spread"], strict=True))
        for panel in panels.values()
    ]
    for event in results.events("descent", "baseline"):
        optimizer, _, normalised = event["baseline"].partition(", ")
        every = {f"_{number}": curve for number, curve in enumerate(event["curves"])} if optimizer == "sgd" else {}
        for name, curve in {**every, f"{optimizer}, best rate for each n": event["best"]}.items():
            fields = {"learner": name, "panel": panels[bool(normalised)]}
            series += [{"n": n, "accuracy": accuracy, **fields} for n, accuracy in enumerate(curve)]

    def finish(axes: np.ndarray) -> None:
        for ax in axes[0]:
            by_updates(ax, horizon, f"meta-trained to n = {horizon}")
            ax.plot([], [], color=COLOURS[-1], alpha=0.6, linewidth=0.7, label="sgd at every rate")
            ax.set(xlim=(1, steps), ylim=(0.3, 1.0))
            ax.legend(fontsize=8, loc="lower right", framealpha=0.9, edgecolor="none")

    greys = {
        row["learner"]: {"color": COLOURS[-1], "alpha": 0.3, "linewidth": 0.7} for row in series if row["learner"][0] == "_"
    }
    view = Lines(
        "learning",
        "n",
        "accuracy",
        "learner",
        "panel",
        rows=lambda _: [row for row in series if 0 < row["n"] <= steps],
        styles=greys,
        axes={"xlabel": "updates n", "ylabel": ACCURACY},
        size=(5, 3.9),
        sharey=True,
        finish=finish,
    )
    return view(results)


DIGITS = ACCURACIES._replace(  # two shipped genomes from runs of transfer, and descent from a run of train
    rows=lambda results: accuracy_lines([r for r in results.rows if bool(r.get("genome")) == (r["experiment"] == "transfer")])
)
EXPERIMENT = Experiment(
    "blur",
    TrainConfig,
    measure,
    views=[ACCURACIES, learning, stability, META],
    presets=PRESETS["train"],
    check=ready,
    title="Learned update rules",
)
run = EXPERIMENT.run

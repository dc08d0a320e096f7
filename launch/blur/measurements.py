"""The measurements of launch.blur: meta-train a genome, run its learners, tune gradient descent, and add rows."""

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from icl.blur.data import Sets
from icl.blur.evolution import EvolutionRecipe, evolve
from icl.blur.families import FAMILIES
from icl.blur.genome import near_backprop_genome, random_genome, ridge_genome
from icl.blur.genome_files import LearnedRule, load_genome, save_genome
from icl.blur.judging.baselines import descent_curves
from icl.blur.judging.momentum import momentum_grid
from icl.blur.learning import learning_curves
from icl.blur.meta import MetaRecipe, Stage, meta_train
from icl.blur.rules import Rules
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.runs.folder import RunFolder, environment
from jexplicit.runs.progress import console, stage
from launch.blur.config import GridConfig, LearnersConfig, MetaTrainingConfig
from launch.blur.data import describe_data, first_examples, meta_examples
from launch.blur.task_config import TasksConfig

FIELDS = (
    "experiment genome states layers normalisation unroll step test_accuracy baseline learning_rate max_difference seconds"
).split()
REPORTED_STEPS = (0, 1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 400, 800)
"""Numbers of updates that have rows."""

_tuning = 1000  # learners for the choice of a learning rate have seeds from here on


def measure_once(folder: RunFolder, measure: Callable[[], list[dict[str, Any]]], **key: Any) -> None:
    """Add the rows of a measurement, unless the run already has rows with this key; the key is part of every row."""
    if any(all(row.get(name) == value for name, value in key.items()) for row in folder.rows()):
        return
    start = time.perf_counter()
    with stage(", ".join(map(str, key.values()))):
        rows = measure()
    shared = {**dict.fromkeys(FIELDS), **key, "seconds": time.perf_counter() - start}
    folder.add_rows([{**shared, **row} for row in rows])


def measure_learners(
    folder: RunFolder,
    config: LearnersConfig,
    rule: LearnedRule,
    sets: Sets,
    hidden: tuple[int, ...],
    *,
    steps: int | None = None,
    fields: Mapping[str, Any] | None = None,
    **key: Any,
) -> None:
    """Rows of the test accuracy of learners with a learned rule, and their learning curve as an event.

    `fields` are more fields of the rows, `key` identifies them (`measure_once`); `steps` is that of the config unless given.
    """

    def measure() -> list[dict[str, Any]]:
        curves = learning_curves(
            rule.genome,
            rule.rules,
            hidden,
            sets.train,
            first_examples(sets.test),
            steps=steps or config.steps,
            batch_size=min(config.batch_size, len(sets.train.X)),
            seeds=learner_seeds(config),
        )
        mean, spread = curves.accuracy.mean(axis=0), curves.accuracy.std(axis=0)
        size = [float(value) if np.isfinite(value) else None for value in curves.size.mean(axis=0)]
        folder.log(event="curve", **key, accuracy=mean.round(5).tolist(), spread=spread.round(5).tolist(), size=size)
        design = {"states": rule.rules.states, "normalisation": rule.rules.normalise, "unroll": rule.provenance.get("unroll")}
        design |= {"learners": config.learners, **(fields or {})}
        return [{**design, **row, "synapse_size": size[row["step"]]} for row in _accuracy_rows(mean, spread, sets, hidden)]

    measure_once(folder, measure, **key)


def measure_descent(
    folder: RunFolder,
    config: LearnersConfig,
    optimizer: OptimizerName,
    sets: Sets,
    hidden: tuple[int, ...],
    *,
    rates: tuple[float, ...],
    activations: tuple[Activation, ...] = ("tanh",),
    **key: Any,
) -> None:
    """Rows of the test accuracy of gradient descent, plain and normalised, and all its curves as an event.

    For each number of updates, learning rate and activation are those with the best accuracy on dev, with other networks.
    """

    def measure(normalised: bool, **key: Any) -> list[dict[str, Any]]:
        def curves(part: str, seeds: tuple[int, ...]) -> np.ndarray:  # [activations * rates, learners, n + 1]
            options: dict[str, Any] = {"steps": config.steps, "seeds": seeds, "normalised": normalised}
            options["batch_size"] = min(config.batch_size, len(sets.train.X))
            examples = sets.train, first_examples(getattr(sets, part))
            return np.concatenate(
                [descent_curves(optimizer, rates, hidden, *examples, hidden_activation=name, **options) for name in activations]
            )

        dev, test = (
            curves("dev", tuple(seed + _tuning for seed in learner_seeds(config))),
            curves("test", learner_seeds(config)),
        )
        chosen = dev.mean(axis=1).argmax(axis=0)  # [n + 1]
        best = test[chosen, :, np.arange(config.steps + 1)]  # [n + 1, learners]
        mean, spread = best.mean(axis=1), best.std(axis=1)
        every = test.mean(axis=1).round(4).tolist()
        folder.log(event="descent", **key, rates=rates, curves=every, best=mean.tolist(), spread=spread.tolist())
        return [
            {
                **row,
                "normalisation": "forward" if normalised else "none",
                "learning_rate": rates[chosen[row["step"]] % len(rates)],
                "activation": activations[chosen[row["step"]] // len(rates)],
            }
            for row in _accuracy_rows(mean, spread, sets, hidden)
        ]

    for normalised in (False, True):
        key["baseline"] = optimizer + ", normalised" * normalised
        measure_once(folder, functools.partial(measure, normalised, **key), **key)


def measure_grid(folder: RunFolder, config: GridConfig, sets: Sets) -> None:
    """Rows of the test accuracy of gradient descent at every learning rate and momentum: early on, and in the end."""
    at = tuple(sorted({min(10, config.steps), config.steps}))

    def measure(normalised: bool) -> list[dict[str, Any]]:
        found = momentum_grid(
            config.rates,
            config.momenta,
            config.widths,
            sets.train,
            first_examples(sets.test),
            normalised=normalised,
            hidden_activation=config.baseline_activation,
            at=at,
            batch_size=min(config.batch_size, len(sets.train.X)),
            seeds=learner_seeds(config),
        )
        mean, spread = found.mean(axis=2), found.std(axis=2)  # [momenta, rates, updates]
        network = {"layers": len(config.widths), "hidden": list(config.widths), "data": sets.name, "inputs": sets.inputs}
        network |= {"activation": config.baseline_activation, "normalisation": "forward" if normalised else "none"}
        return [
            {**network, "momentum": beta, "learning_rate": rate, "step": n}
            | {"test_accuracy": float(mean[b, r, i]), "spread": float(spread[b, r, i])}
            for b, beta in enumerate(config.momenta)
            for r, rate in enumerate(config.rates)
            for i, n in enumerate(at)
        ]

    for normalised in (False, True):
        name = "sgd" + ", normalised" * normalised
        measure_once(folder, functools.partial(measure, normalised), experiment="grid", baseline=name)


def learner_seeds(config: LearnersConfig | TasksConfig) -> tuple[int, ...]:
    """One for each learner."""
    return tuple(range(config.seed, config.seed + config.learners))


def _accuracy_rows(mean: np.ndarray, spread: np.ndarray, sets: Sets, hidden: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each reported number of updates, the last one included."""
    last = len(mean) - 1
    network = {"layers": len(hidden), "hidden": list(hidden), "data": sets.name, "inputs": sets.inputs}
    return [
        {**network, "step": n, "test_accuracy": float(mean[n]), "spread": float(spread[n])}
        for n in sorted({n for n in REPORTED_STEPS if n < last} | {last})
    ]


def find_genome(folder: RunFolder, name: str, config: MetaTrainingConfig, sets: Sets) -> LearnedRule:
    """Meta-train a genome, or load it if the run already has; an interrupted search continues."""
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

    options: dict[str, Any] = {"seed": config.seed, "every": config.every, "episodes": config.episodes}
    options |= {"checkpoints": checkpoints, "on_evaluation": on_evaluation}
    start = {"random": random_genome, "backprop": near_backprop_genome, "ridge": ridge_genome}[config.start]
    data, key = meta_examples(config, sets), jax.random.key(config.seed)
    with stage(f"meta-training {name}", "genome steps") as progress:
        if config.method == "evolution":
            found = evolve(
                start(key, config.states), rules, make_evolution_recipe(config), total, *data, **options, progress=progress
            )
        else:
            recipe, keys = make_meta_recipe(config), jax.random.split(key, config.population)
            genomes = jax.vmap(lambda key: start(key, config.states))(keys)
            options |= {"devices": config.devices, "progress": progress}
            found = meta_train(genomes, rules, recipe, make_curriculum(config), *data, **options)
    results = {"dev_accuracy": found.score, "seconds": found.seconds, "skipped": found.skipped}
    flags = dataclasses.asdict(config)
    provenance = {
        "config": {flag: flags[flag] for flag in flags if flag not in ("out", "resume", "devices")},
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


def make_rules(config: MetaTrainingConfig) -> Rules:
    """The design that the flags describe."""
    return _from_fields(Rules, config, hidden=config.hidden_activation, output=config.output_activation)


def make_meta_recipe(config: MetaTrainingConfig) -> MetaRecipe:
    """Hyperparameters of meta-training by gradient."""
    families = FAMILIES[config.families] if config.families else ()
    return _from_fields(MetaRecipe, config, hidden=config.widths, families=families, learning_rate=config.meta_rate)


def make_evolution_recipe(config: MetaTrainingConfig) -> EvolutionRecipe:
    """Hyperparameters of evolution, with the T of the last stage."""
    choices: Any = {"hidden": config.widths, "unroll": config.unroll[-1], "learners": config.fitness_learners}
    return _from_fields(EvolutionRecipe, config, **choices)


def _from_fields(kind: Any, config: Any, **others: Any) -> Any:
    """An instance of `kind` with the fields that the config has under the same name, and others."""
    return kind(**{**{name: getattr(config, name) for name in kind.__annotations__ if hasattr(config, name)}, **others})


def make_curriculum(config: MetaTrainingConfig) -> tuple[Stage, ...]:
    """The stages of meta-training."""
    return tuple(Stage(*stage) for stage in zip(config.unroll, config.meta_steps, strict=True))

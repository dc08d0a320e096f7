"""What the subcommands of launch.blur do alike: read data, meta-train a genome, measure learners, add rows."""

import dataclasses
import functools
import hashlib
import shutil
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from icl.blur.baselines import descent_curves
from icl.blur.data import Part, Sets, image_sets, table_sets
from icl.blur.evolution import evolve
from icl.blur.genome import Genome, backprop_genome, random_genome
from icl.blur.learning import Curves, learning_curves
from icl.blur.meta import meta_train, population
from icl.blur.rules import Rules
from icl.blur.shipped import Learned, load_genome, save_genome
from jexplicit.data.images import read_images
from jexplicit.nn.activations import Activation
from jexplicit.nn.optimizers import OptimizerName
from jexplicit.runs.folder import RunFolder, environment
from jexplicit.runs.progress import console, stage
from launch.blur.config import (
    MetaTraining,
    Pictures,
    make_curriculum,
    make_evolution,
    make_recipe,
    make_rules,
)

FIELDS = (
    "experiment genome states layers normalisation unroll step test_accuracy baseline learning_rate max_difference seconds"
).split()
TOLD = (0, 1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 400, 800)
"""Numbers of updates that have rows."""

_asked = 2000  # examples of a part that learners are asked, at most
_tuning = 1000  # seeds of the learners that a rate is tuned with start here


class Job(NamedTuple):
    """What every experiment needs."""

    config: Any
    folder: RunFolder


class Tuned(NamedTuple):
    """Descent with the rate that is best on dev, for each number of updates.

    accuracy: [n + 1] mean over learners on test; spread: its standard deviation; rate: [n + 1]; activation: [n + 1].
    """

    accuracy: np.ndarray
    spread: np.ndarray
    rate: list[float]
    activation: list[str]


def read_sets(config: Pictures, name: str | None = None, side: int | None = None) -> Sets:
    """The images that the config asks for, or other data by name: a table of scikit-learn's, xor, images, images@side.

    Raises:
        ValueError: no such data.
    """
    if name in ("wine", "breast_cancer"):
        from sklearn import datasets

        X, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        return table_sets(X, labels.astype(np.int64), name, seed=config.seed)
    if name is not None and "@" in name:
        name, _, wanted = name.partition("@")
        if not wanted.isdigit():
            raise ValueError(f"--others {name}@{wanted}: write NAME@SIDE, e.g. mnist@10")
        side = int(wanted)
    images = read_images(name or config.data, config.data_dir if name in (None, config.data) else None)
    return image_sets(images, side=side, limit=config.limit, seed=config.seed)


def load_sets(config: Pictures) -> Sets:
    """The data of the config, told on the terminal."""
    with stage("reading"):
        sets = read_sets(config, side=config.side)
    parts = ", ".join(f"{len(part.X):,} {what}" for part, what in zip(sets[:3], ("train", "dev", "test"), strict=True))
    console.print(f"[bold]{sets.name}[/]: {sets.inputs} inputs, {parts}")
    return sets


def meta_trained(job: Job, name: str, config: MetaTraining, sets: Sets, *, backprop: bool = False) -> Learned:
    """The genome of a design: that of an earlier run in this folder, or meta-trained now; an interrupted one goes on.

    Args:
        job: of the run.
        name: of the genome.
        config: the design, and how to meta-train it.
        sets: the data.
        backprop: start from the matrices of gradient descent rather than from random ones.
    """
    path = job.folder.path / "genomes" / f"{name}.json"
    if path.exists():
        return load_genome(path)
    rules, curriculum = make_rules(config), make_curriculum(config)
    partial = job.folder.path / "checkpoints" / f"{name}.partial"
    told = max(config.every, sum(config.meta_steps) // 8 // config.every * config.every)

    def on_evaluation(entry: Mapping[str, Any]) -> None:
        job.folder.log(event="meta", genome=name, **entry)
        if entry["step"] % told == 0:
            right = max(entry["accuracy"])
            skipped = f", {np.sum(entry['skipped'])} skipped" if np.sum(entry["skipped"]) else ""
            at = f"step {entry['step']}, T = {entry['unroll']}"
            console.print(f"    {name}: {at}, dev accuracy {right:.3f}{skipped}, {entry['seconds']:.0f} s")

    shared: dict[str, Any] = {
        "seed": config.seed,
        "every": config.every,
        "episodes": config.episodes,
        "checkpoints": partial,
        "on_evaluation": on_evaluation,
    }
    train, dev = sets.train, sample(sets.dev, _asked)
    with stage(f"meta-training {name}", "genome steps") as progress:
        if config.method == "evolution":
            start = _start(jax.random.key(config.seed), rules, backprop)
            found = evolve(
                start, rules, make_evolution(config), sum(config.meta_steps), train, dev, **shared, progress=progress
            )
        else:
            keys = jax.random.split(jax.random.key(config.seed), config.population)
            starts = population(keys, functools.partial(_start, rules=rules, backprop=backprop))
            found = meta_train(
                starts,
                rules,
                make_recipe(config),
                curriculum,
                train,
                dev,
                **shared,
                devices=config.devices,
                progress=progress,
            )
    provenance = {
        "config": {key: value for key, value in dataclasses.asdict(config).items() if key not in ("out", "resume", "devices")},
        "seed": config.seed,
        "data": about(sets),
        "dev_accuracy": found.score,
        "unroll": config.unroll[-1],
        "meta_steps": sum(config.meta_steps),
        "seconds": found.seconds,
        "skipped": found.skipped,
        "versions": environment()["versions"],
    }
    learned = Learned(found.best, rules, provenance)
    save_genome(path, learned)
    job.folder.log(event="meta_trained", genome=name, seconds=found.seconds, dev_accuracy=found.score, skipped=found.skipped)
    shutil.rmtree(partial, ignore_errors=True)
    return learned


def _start(key: jax.Array, rules: Rules, backprop: bool) -> Genome:
    if not backprop:
        return random_genome(key, rules.states)
    start = backprop_genome(rules.states)  # alike in all genomes but for a little noise
    noise = random_genome(key, rules.states)
    return start._replace(**{name: getattr(start, name) + 0.1 * getattr(noise, name) for name in ("nu", "mu", "pre", "post")})


def about(sets: Sets) -> dict[str, Any]:
    """What names the data."""
    digest = hashlib.sha256()
    for part in sets[:3]:
        digest.update(np.ascontiguousarray(part.X).tobytes() + np.ascontiguousarray(part.Y).tobytes())
    return {"name": sets.name, "inputs": sets.inputs, "outputs": sets.outputs, "sha256": digest.hexdigest()}


def fare(config: Pictures, learned: Learned, sets: Sets, hidden: tuple[int, ...], *, steps: int) -> Curves:
    """Accuracy on test of learners by the genome."""
    seeds = tuple(range(config.seed, config.seed + config.learners))
    batch = min(config.batch_size, len(sets.train.X))
    test = sample(sets.test, _asked)
    return learning_curves(learned.genome, learned.rules, hidden, sets.train, test, steps=steps, batch_size=batch, seeds=seeds)


def tuned_descent(
    config: Pictures,
    optimizer: OptimizerName,
    rates: tuple[float, ...],
    activations: tuple[Activation, ...],
    sets: Sets,
    hidden: tuple[int, ...],
    *,
    normalised: bool,
    steps: int,
) -> tuple[Tuned, np.ndarray]:
    """Descent at every rate: tuned on dev with other learners, then measured on test with those that the genome has too.

    Returns:
        The best for each number of updates, and [activations, rates, n + 1] mean accuracies on test.
    """
    seeds = tuple(range(config.seed, config.seed + config.learners))
    parts = {"dev": tuple(s + _tuning for s in seeds), "test": seeds}
    batch = min(config.batch_size, len(sets.train.X))
    found = {
        part: np.stack(
            [
                descent_curves(
                    optimizer,
                    rates,
                    hidden,
                    sets.train,
                    sample(getattr(sets, part), _asked),
                    normalised=normalised,
                    hidden_activation=name,
                    steps=steps,
                    batch_size=batch,
                    seeds=numbers,
                )
                for name in activations
            ]
        )
        for part, numbers in parts.items()
    }  # [activations, rates, learners, n + 1]
    dev = found["dev"].mean(axis=2).reshape(-1, steps + 1)
    test = found["test"].reshape(-1, len(seeds), steps + 1)
    chosen, at = dev.argmax(axis=0), np.arange(steps + 1)
    best = test[chosen, :, at]  # [n + 1, learners]
    names = [activations[n // len(rates)] for n in chosen]
    tuned = Tuned(best.mean(axis=1), best.std(axis=1), [rates[n % len(rates)] for n in chosen], names)
    return tuned, found["test"].mean(axis=2)


def sample(part: Part, most: int) -> Part:
    """At most so many examples: the first, as they are in no order."""
    return Part(part.X[:most], part.Y[:most])


def has_rows(job: Job, **wanted: Any) -> bool:
    """Whether the run has measured this already."""
    return any(all(row.get(name) == value for name, value in wanted.items()) for row in job.folder.rows())


def add_rows(job: Job, rows: list[dict[str, Any]]) -> None:
    """Add rows to results.json, all at once, with the fields that every row has."""
    job.folder.add_rows([{**dict.fromkeys(FIELDS), **row} for row in rows])


def genome_rows(
    experiment: str, name: str, learned: Learned, curves: Curves, sets: Sets, hidden: tuple[int, ...], *, seconds: float
) -> list[dict[str, Any]]:
    """A row for each told number of updates, mean over learners."""
    return [
        {
            "experiment": experiment,
            "genome": name,
            "states": learned.rules.states,
            "layers": len(hidden),
            "normalisation": learned.rules.normalise,
            "unroll": learned.provenance.get("unroll"),
            "step": n,
            "test_accuracy": float(curves.accuracy[:, n].mean()),
            "spread": float(curves.accuracy[:, n].std()),
            "learners": len(curves.accuracy),
            "synapse_size": finite(curves.size[:, n].mean()),
            "hidden": list(hidden),
            "data": sets.name,
            "inputs": sets.inputs,
            "seconds": seconds,
        }
        for n in told(curves.accuracy.shape[1] - 1)
    ]


def descent_rows(
    experiment: str, name: str, tuned: Tuned, sets: Sets, hidden: tuple[int, ...], *, normalised: bool, seconds: float
) -> list[dict[str, Any]]:
    """The same of descent, each with the rate that was best on dev for this number of updates."""
    return [
        {
            "experiment": experiment,
            "baseline": name,
            "layers": len(hidden),
            "normalisation": "forward" if normalised else "none",
            "step": n,
            "test_accuracy": float(tuned.accuracy[n]),
            "spread": float(tuned.spread[n]),
            "learning_rate": tuned.rate[n],
            "activation": tuned.activation[n],
            "hidden": list(hidden),
            "data": sets.name,
            "inputs": sets.inputs,
            "seconds": seconds,
        }
        for n in told(len(tuned.accuracy) - 1)
    ]


def told(steps: int) -> list[int]:
    """The numbers of updates up to so many that have rows, the last one too."""
    return sorted({n for n in TOLD if n <= steps} | {steps})


def finite(value: Any) -> float | None:
    """A number that JSON can hold."""
    return float(value) if np.isfinite(value) else None


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self.start

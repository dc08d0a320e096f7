"""What the subcommands of launch.networks do alike: train a network by the shared loop, watch it, and add its row."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from jexplicit.nn.activations import Activation
from jexplicit.nn.diagnostics import hidden_layers, histogram, hockey_stick, layer_statistics, leaf_names
from jexplicit.nn.objectives import ObjectiveName, objective
from jexplicit.nn.optimizers import CoolingName, OptimizerName, cooled, make_optimizer
from jexplicit.nn.samplers import SamplerName, sampler
from jexplicit.nn.steps import Scores, initial_state, recorded, scorer, training_step, variables_of
from jexplicit.nn.training import train
from jexplicit.runs.checkpoints import load_checkpoint, save_checkpoint
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from launch.networks.report import histograms_path

_watched = 256  # examples whose activations and gradients are looked at
_records = 200  # update-to-data ratios in a run, about
_scored = 100_000  # training examples that a train loss is over, at most


class Part(NamedTuple):
    """Inputs and targets of the train, dev or test examples."""

    X: np.ndarray
    Y: np.ndarray


class Data(NamedTuple):
    """The examples. labels: [M] classes of the training examples, for balanced batches; outputs: N."""

    train: Part
    dev: Part
    test: Part
    labels: np.ndarray
    outputs: int


class Job(NamedTuple):
    """What every measured model needs."""

    config: Any
    folder: RunFolder
    about: dict[str, Any]  # fields that all rows share


class Plan(NamedTuple):
    """A network to train: what its row says of it, and all that training depends on.

    name: of the row, unique within the run; model: the kind, for the table.
    """

    name: str
    model: str
    network: nn.Module
    variables: dict[str, Any]
    objective: ObjectiveName = "softmax_cross_entropy"
    start: str = "cold"
    initializer: str = "he_normal"
    activation: Activation = "relu"
    optimizer: OptimizerName = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.02
    cooling: CoolingName = "constant"
    sampler: SamplerName = "round-robin"
    batch_size: int = 128
    epochs: int = 20
    patience: int | None = None
    classifies: bool = True
    watched: bool = True


def has_row(job: Job, name: str) -> bool:
    """Whether the run has measured a model already."""
    return any(row["name"] == name for row in job.folder.rows())


def add_row(job: Job, row: dict[str, Any]) -> None:
    """Add a row to results.json, with the fields that all rows have."""
    blank = dict.fromkeys(
        ("start", "optimizer", "initializer", "sampler", "objective", "dev_perplexity", "test_accuracy", "steps", "seconds")
    )
    job.folder.add_row({**blank, **row, **job.about})


def plan_from(config: Any, **chosen: Any) -> Plan:
    """A plan with the training flags of a config, but for what is chosen."""
    flags = "initializer activation optimizer learning_rate weight_decay cooling sampler batch_size epochs patience".split()
    return Plan(**{**{name: getattr(config, name) for name in flags}, **chosen})


def measure(
    job: Job, plan: Plan, data: Data, *, finish: Callable[[dict[str, Any], Any], dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    """Train a network, keep its best epoch, add its row with `more`, and give its variables; a row that is there stays.

    finish: `(row, variables) -> more fields`, of what only a trained network can tell.
    """
    if has_row(job, plan.name):
        return load_variables(job, plan.name)
    config, goal = job.config, objective(plan.objective)
    M = len(data.train.X)
    batch_size = min(plan.batch_size or M, M)
    steps = plan.epochs * -(-M // batch_size)
    rate = cooled(plan.cooling, plan.learning_rate, steps)
    optimizer = make_optimizer(plan.optimizer, rate, weight_decay=plan.weight_decay)
    score = scorer(plan.network, goal)
    leaves = leaf_names(plan.variables["params"])
    checkpoints = model_path(job, f"{plan.name}.partial")
    last = Scores(0.0, 0.0)

    def record(step: int, ratios: np.ndarray) -> None:
        job.folder.log(event="ratios", name=plan.name, step=step, ratios=dict(zip(leaves, map(float, ratios), strict=True)))

    def evaluate(variables: dict[str, Any]) -> float:
        nonlocal last
        last = score(variables, *data.dev)
        return last.loss

    def on_epoch(entry: Any) -> None:
        if entry["epoch"] == 0 and plan.watched:
            watch(job, plan, plan.variables, data, "start")
        seen = {"step": int(entry["epoch"]) * -(-M // batch_size), "dev_accuracy": last.accuracy}
        job.folder.log(event="epoch", name=plan.name, **{**entry, "seconds": entry.get("seconds", 0.0)}, **seen)
        if entry["epoch"] and entry["epoch"] % max(1, plan.epochs // 5) == 0:
            told = f"train {entry['train_loss']:.4f}, dev {entry['dev_loss']:.4f}"
            console.print(f"    {plan.name}: epoch {entry['epoch']}, loss {told}, {entry['seconds']:.0f} s")

    step = training_step(plan.network, goal, optimizer)
    with stage(f"training {plan.name}", "examples") as progress:
        trained = train(
            initial_state(plan.variables, optimizer),
            recorded(step, max(1, steps // _records), record) if plan.watched else step,
            lambda drawn: (data.train.X[drawn], data.train.Y[drawn]),
            evaluate,
            params=variables_of,
            size=M,
            batch_size=batch_size,
            epochs=plan.epochs,
            seed=config.seed,
            order=sampler(plan.sampler, data.labels),
            patience=plan.patience,
            checkpoints=checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )
    save_variables(job, plan.name, trained.params)
    if plan.watched:
        watch(job, plan, trained.params, data, "end")
    first = trained.history[0]["dev_loss"]
    row = {
        "name": plan.name,
        "model": plan.model,
        "start": plan.start,
        "optimizer": plan.optimizer,
        "initializer": plan.initializer,
        "sampler": plan.sampler,
        "objective": plan.objective,
        **scores_of(score, trained.params, data, classifies=plan.classifies, perplexity="softmax" in plan.objective),
        "steps": trained.epochs * -(-M // batch_size),
        "seconds": trained.seconds,
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        "first_loss": first,
        "hockey_stick": hockey_stick(first, data.outputs).detected if plan.objective == "softmax_cross_entropy" else None,
        "learning_rate": plan.learning_rate,
        "weight_decay": plan.weight_decay if plan.optimizer == "adamw" else None,
        "cooling": plan.cooling,
        "batch_size": batch_size,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(trained.params["params"])),
        **more,
    }
    add_row(job, {**row, **(finish(row, trained.params) if finish else {})})
    shutil.rmtree(checkpoints, ignore_errors=True)  # the best model is saved; the state was for resuming
    return trained.params


def scores_of(score: Any, variables: Any, data: Data, *, classifies: bool, perplexity: bool) -> dict[str, Any]:
    """The losses of a row: of a sample of the training examples that is always the same, and of all dev and test examples."""
    train, dev, test = (score(variables, *part) for part in (sample(data.train, _scored), data.dev, data.test))
    return {
        "train_loss": train.loss,
        "dev_loss": dev.loss,
        "test_loss": test.loss,
        "dev_perplexity": float(np.exp(dev.loss)) if perplexity else None,
        "test_accuracy": test.accuracy if classifies else None,
    }


def sample(part: Part, most: int) -> Part:
    """At most so many examples, evenly spread."""
    every = -(-len(part.X) // most)
    return Part(part.X[::every], part.Y[::every])


def watch(job: Job, plan: Plan, variables: dict[str, Any], data: Data, when: str) -> None:
    """Log the statistics of every hidden layer on a few training examples, and keep histograms for the figure."""
    X, Y = (part[:_watched] for part in data.train)
    layers = hidden_layers(plan.network, variables, objective(plan.objective), X, Y)
    drawn: dict[str, np.ndarray] = {}
    for name, values in layers.items():
        numbers = layer_statistics(values, plan.activation)
        job.folder.log(event="layer", name=plan.name, when=when, layer=name, **numbers._asdict())
        for what, array in (("z", values.z), ("gradient", values.gradient * len(X))):
            drawn[f"{name} {what}"], drawn[f"{name} {what} edges"] = histogram(array)
    path = histograms_path(job.folder.path, plan.name, when)
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **drawn)  # pyright: ignore[reportArgumentType]


def model_path(job: Job, name: str) -> Path:
    """Where a run keeps the variables of a model."""
    return job.folder.path / "checkpoints" / name


def save_variables(job: Job, name: str, variables: dict[str, Any]) -> None:
    """Write a network's variables to its checkpoint."""
    save_checkpoint(model_path(job, name), {kind: tree for kind, tree in variables.items() if tree})


def load_variables(job: Job, name: str) -> dict[str, Any]:
    """The variables of a network that the run measured."""
    return {"batch_stats": {}, **load_checkpoint(model_path(job, name))}

"""What the subcommands of launch.networks share: train a network by the common loop, watch it, and add its row."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from jexplicit.nn.diagnostics import hidden_layers, histogram, hockey_stick, layer_statistics, leaf_names
from jexplicit.nn.names import Activation, ObjectiveName, OptimizerName, SamplerName, ScheduleName
from jexplicit.nn.networks import init_variables
from jexplicit.nn.objectives import objective
from jexplicit.nn.optimizers import make_optimizer, make_schedule
from jexplicit.nn.samplers import sampler, shorter_epochs
from jexplicit.nn.steps import Scores, initial_state, record_ratios, scorer, training_step, variables_of
from jexplicit.nn.training import train
from jexplicit.runs.checkpoints import load_checkpoint, save_checkpoint
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from launch.networks.report import histograms_path

_watched_examples = 256  # whose activations and gradients are logged
_ratio_records = 200  # per run, approximately
_scored_examples = 100_000  # of the train loss, at most
_settings = ("model", "start", "optimizer", "initializer", "sampler", "objective", "learning_rate", "cooling")  # of a row
_optional = ("start", "optimizer", "initializer", "sampler", "objective", "dev_perplexity", "test_accuracy", "steps", "seconds")


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
    """The configuration, the run folder, and the fields that all rows share."""

    config: Any
    folder: RunFolder
    about: dict[str, Any]


class Plan(NamedTuple):
    """A network to train: how, and what its row says about it.

    name: of the row, unique within the run; model: the kind of network.
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
    cooling: ScheduleName = "constant"
    sampler: SamplerName = "round-robin"
    batch_size: int = 128
    epochs: int = 20
    epoch_examples: int | None = None
    patience: int | None = None
    classifies: bool = True
    watched: bool = True


def make_plan(config: Any, data: Data, network: nn.Module, **changes: Any) -> Plan:
    """A plan with the flags of a config and random variables, unless changed."""
    if "variables" not in changes:
        changes["variables"] = init_variables(network, jax.random.key(config.seed), data.train.X[:2])
    flags = {field: getattr(config, field) for field in Plan._fields if hasattr(config, field)}
    return Plan(**{**flags, "network": network, **changes})


def has_row(job: Job, name: str) -> bool:
    """Whether the run has a row of this name already."""
    return any(row["name"] == name for row in job.folder.rows())


def add_row(job: Job, row: dict[str, Any]) -> None:
    """Add a row to results.json, with the fields that all rows have."""
    job.folder.add_row({**dict.fromkeys(_optional), **row, **job.about})


def add_solved(job: Job, name: str, losses: dict[str, float], *, objective: str = "softmax_cross_entropy", **more: Any) -> None:
    """Add the row of a model in closed form. losses: by part of the data."""
    numbers = {f"{part}_loss": float(loss) for part, loss in losses.items()}
    perplexity = float(np.exp(losses["dev"])) if "softmax" in objective else None
    add_row(job, {"name": name, "objective": objective, **numbers, "dev_perplexity": perplexity, "steps": 0, **more})


def measure(
    job: Job, plan: Plan, data: Data, *, finish: Callable[[dict[str, Any], Any], dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    """Train a network, save its best epoch, add its row with the fields `more`, and return its variables.

    A network that has a row already is loaded. finish: `(row, variables) -> more fields`, of the trained network.
    """
    if has_row(job, plan.name):
        return load_variables(job, plan.name)
    goal, M = objective(plan.objective), len(data.train.X)
    order, size = sampler(plan.sampler, data.labels), min(plan.epoch_examples or M, M)
    batch_size = min(plan.batch_size or size, size)
    epoch_steps = -(-size // batch_size)
    steps = plan.epochs * epoch_steps
    rate = make_schedule(plan.cooling, plan.learning_rate, steps)
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
        epoch = int(entry["epoch"])
        if epoch == 0 and plan.watched:
            watch(job, plan, plan.variables, data, "start")
        more = {"step": epoch * epoch_steps, "dev_accuracy": last.accuracy}
        job.folder.log(event="epoch", name=plan.name, **{"seconds": 0.0, **entry}, **more)
        if epoch and epoch % max(1, plan.epochs // 5) == 0:
            losses = f"train {entry['train_loss']:.4f}, dev {entry['dev_loss']:.4f}"
            console.print(f"    {plan.name}: epoch {epoch}, loss {losses}, {entry['seconds']:.0f} s")

    step = training_step(plan.network, goal, optimizer, seed=job.config.seed)
    with stage(f"training {plan.name}", "examples") as progress:
        result = train(
            initial_state(plan.variables, optimizer),
            record_ratios(step, max(1, steps // _ratio_records), record) if plan.watched else step,
            lambda m: (data.train.X[m], data.train.Y[m]),
            evaluate,
            params=variables_of,
            size=size,
            batch_size=batch_size,
            epochs=plan.epochs,
            seed=job.config.seed,
            order=order if size == M else shorter_epochs(order, M, size),
            patience=plan.patience,
            checkpoints=checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )
    variables = result.params
    save_checkpoint(model_path(job, plan.name), {kind: tree for kind, tree in variables.items() if tree})
    if plan.watched:
        watch(job, plan, variables, data, "end")
    first = result.history[0]["dev_loss"]
    scores = {part: score(variables, *getattr(data, part)) for part in ("dev", "test")}
    scores["train"] = score(variables, *subset(data.train, _scored_examples))
    row = {
        "name": plan.name,
        **{field: getattr(plan, field) for field in _settings},
        **{f"{part}_loss": found.loss for part, found in scores.items()},
        "dev_perplexity": float(np.exp(scores["dev"].loss)) if "softmax" in plan.objective else None,
        "test_accuracy": scores["test"].accuracy if plan.classifies else None,
        "steps": result.epochs * epoch_steps,
        "seconds": result.seconds,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "first_loss": first,
        "hockey_stick": hockey_stick(first, data.outputs).detected if plan.objective == "softmax_cross_entropy" else None,
        "weight_decay": plan.weight_decay if plan.optimizer == "adamw" else None,
        "batch_size": batch_size,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(variables["params"])),
        **more,
    }
    add_row(job, {**row, **(finish(row, variables) if finish else {})})
    shutil.rmtree(checkpoints, ignore_errors=True)  # only for resuming
    return variables


def subset(part: Part, most: int) -> Part:
    """At most this many examples, evenly spaced: always the same ones."""
    every = -(-len(part.X) // most)
    return Part(part.X[::every], part.Y[::every])


def watch(job: Job, plan: Plan, variables: dict[str, Any], data: Data, when: str) -> None:
    """Log the statistics of every hidden layer on a few training examples, and save histograms for the figure."""
    X, Y = (part[:_watched_examples] for part in data.train)
    histograms: dict[str, np.ndarray] = {}
    for name, values in hidden_layers(plan.network, variables, objective(plan.objective), X, Y).items():
        numbers = layer_statistics(values, plan.activation)
        job.folder.log(event="layer", name=plan.name, when=when, layer=name, **numbers._asdict())
        for kind, array in (("z", values.z), ("gradient", values.gradient * len(X))):
            histograms[f"{name} {kind}"], histograms[f"{name} {kind} edges"] = histogram(array)
    path = histograms_path(job.folder.path, plan.name, when)
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **histograms)  # pyright: ignore[reportArgumentType]


def model_path(job: Job, name: str) -> Path:
    """The checkpoint of a model."""
    return job.folder.path / "checkpoints" / name


def load_variables(job: Job, name: str) -> dict[str, Any]:
    """The variables of a network of this run."""
    return {"batch_stats": {}, **load_checkpoint(model_path(job, name))}

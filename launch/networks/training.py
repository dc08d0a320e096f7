"""What the subcommands of launch.networks share: a network trained by the common loop, its row, and the views of rows."""

import shutil
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jexplicit.nn.diagnostics import hockey_stick, leaf_names
from jexplicit.nn.networks import init_variables
from jexplicit.nn.optimizers import make_optimizer, make_schedule
from jexplicit.nn.parts import objectives
from jexplicit.nn.parts.names import ObjectiveName
from jexplicit.nn.samplers import sampler, shorter_epochs
from jexplicit.nn.steps import Scores, initial_state, record_ratios, scorer, training_step, variables_of
from jexplicit.nn.training import train
from jexplicit.runs.checkpoints import load_checkpoint, save_checkpoint
from jexplicit.runs.progress import console, stage
from launch.kit.folder import RunFolder
from launch.kit.rows import Row
from launch.kit.tables import Column
from launch.kit.views import Table
from launch.networks.config import Descent, Training
from launch.networks.data import Data, SplitData
from launch.networks.diagnostics import CURVES, DIAGNOSTICS, watch

_ratio_records = 200  # per run, approximately
_scored_examples = 100_000  # of the train loss, at most
_optional = ("optimizer", "initializer", "sampler", "objective", "dev_perplexity", "test_accuracy", "steps", "seconds")


def flags_of(config: Descent, **changes: Any) -> Training:
    """How to train by the flags of a subcommand that has only some."""
    return Training(**{field.name: getattr(config, field.name) for field in fields(Descent)} | changes)


def row_of(data: Data, **fields: Any) -> dict[str, Any]:
    """A row of results.json, with the fields that all rows have."""
    return {**dict.fromkeys(_optional), **fields, **data.about}


def solved_row(data: Data, losses: dict[str, float], *, objective: str = "softmax_cross_entropy", **fields: Any) -> Row:
    """The row of a model in closed form. losses: by part of the data."""
    numbers = {f"{part}_loss": float(loss) for part, loss in losses.items()}
    perplexity = float(np.exp(losses["dev"])) if "softmax" in objective else None
    return row_of(data, objective=objective, dev_perplexity=perplexity, steps=0, **numbers, **fields)


def train_network(
    folder: RunFolder,
    flags: Training,
    data: Data,
    network: nn.Module,
    name: str,
    model: str,
    *,
    objective: ObjectiveName = "softmax_cross_entropy",
    variables: Any = None,
    classifies: bool = True,
    watched: bool = True,
    finish: Callable[[dict[str, Any], Any], Row] = lambda row, variables: {},
    **more: Any,
) -> list[dict[str, Any]]:
    """Train a network and save its best epoch.

    Args:
        folder: of the run.
        flags: how it is trained.
        data: the examples.
        network: what to train.
        name: of its row, unique within the run.
        model: the kind of network.
        objective: the loss.
        variables: the initial ones; default, random.
        classifies: whether its outputs are of classes.
        watched: whether its layers and updates are logged.
        finish: `(row, variables) -> more fields`, of the trained network.
        more: fields of the row.

    Returns:
        Its row.
    """
    loss, M = objectives.objective(objective), len(data.train.X)
    order, size = sampler(flags.sampler, data.labels), min(flags.epoch_examples or M, M)
    batch_size = min(flags.batch_size or size, size)
    epoch_steps = -(-size // batch_size)
    steps = flags.epochs * epoch_steps
    rate = make_schedule(flags.cooling, flags.learning_rate, steps)
    optimizer = make_optimizer(flags.optimizer, rate, weight_decay=flags.weight_decay)
    step, score = training_step(network, loss, optimizer, seed=flags.seed), scorer(network, loss)
    if variables is None:
        variables = init_variables(network, jax.random.key(flags.seed), data.train.X[:2])
    path, seen, leaves = folder.path / "checkpoints" / name, list[Scores](), leaf_names(variables["params"])
    partial = path.with_name(f"{name}.partial")

    def record(step: int, ratios: np.ndarray) -> None:
        folder.log(event="ratios", name=name, step=step, ratios=dict(zip(leaves, map(float, ratios), strict=True)))

    def evaluate(variables: Any) -> float:
        seen.append(score(variables, *data.dev))
        return seen[-1].loss

    def on_epoch(entry: Any) -> None:
        epoch = int(entry["epoch"])
        if epoch == 0 and watched:
            watch(folder, name, network, variables, loss, data, "start")
        more = {"step": epoch * epoch_steps, "dev_accuracy": seen[-1].accuracy}
        folder.log(event="epoch", name=name, **entry, **more)
        if epoch and epoch % max(1, flags.epochs // 5) == 0:
            losses = f"train {entry['train_loss']:.4f}, dev {entry['dev_loss']:.4f}"
            console.print(f"    {name}: epoch {epoch}, loss {losses}, {entry['seconds']:.0f} s")

    with stage(f"training {name}", "examples") as progress:
        result = train(
            initial_state(variables, optimizer),
            record_ratios(step, max(1, steps // _ratio_records), record) if watched else step,
            lambda m: (data.train.X[m], data.train.Y[m]),
            evaluate,
            params=variables_of,
            size=size,
            batch_size=batch_size,
            epochs=flags.epochs,
            seed=flags.seed,
            order=order if size == M else shorter_epochs(order, M, size),
            patience=flags.patience,
            checkpoints=partial,
            on_epoch=on_epoch,
            progress=progress,
        )
    trained, first, softmax = result.params, result.history[0]["dev_loss"], "softmax" in objective
    save_checkpoint(path, {kind: tree for kind, tree in trained.items() if tree})
    if watched:
        watch(folder, name, network, trained, loss, data, "end")
    few, dev, test = (score(trained, *part) for part in (subset(data.train, _scored_examples), data.dev, data.test))
    settings = ("optimizer", "initializer", "sampler", "learning_rate", "cooling")
    row = row_of(
        data,
        **{"name": name, "model": model, "objective": objective},
        **{field: getattr(flags, field) for field in settings},
        **{f"{part}_loss": found.loss for part, found in {"train": few, "dev": dev, "test": test}.items()},
        **{"steps": result.epochs * epoch_steps, "seconds": result.seconds, "epochs": result.epochs},
        dev_perplexity=float(np.exp(dev.loss)) if softmax else None,
        test_accuracy=test.accuracy if classifies else None,
        best_epoch=result.best_epoch,
        first_loss=first,
        hockey_stick=hockey_stick(first, data.outputs).detected if softmax else None,
        weight_decay=flags.weight_decay if flags.optimizer == "adamw" else None,
        batch_size=batch_size,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(trained["params"])),
        **more,
    )
    row |= finish(row, trained)
    shutil.rmtree(partial, ignore_errors=True)  # only for resuming
    return [row]


def subset(part: SplitData, most: int) -> SplitData:
    """At most this many examples, evenly spaced: always the same ones."""
    every = -(-len(part.X) // most)
    return SplitData(part.X[::every], part.Y[::every])


def load_variables(folder: RunFolder, name: str) -> dict[str, Any]:
    """The variables of a network of this run."""
    return {"batch_stats": {}, **load_checkpoint(folder.path / "checkpoints" / name)}


def _columns(rows: list[Row]) -> list[Column]:
    """The columns of the table of results, with the settings in which networks differ."""
    names = ("optimizer", "initializer", "sampler", "objective")
    shown = [name for name in names if len({row[name] for row in rows if row["optimizer"]}) > 1]
    return [
        Column("network", "name"),
        Column("model", "model"),
        *(Column(name, name) for name in shown),
        Column("first dev", "first_loss", ".3f"),
        Column("hockey stick", lambda row: "yes" if row.get("hockey_stick") else None),
        *(Column(part, f"{part}_loss", ".4f") for part in ("train", "dev", "test")),
        Column("dev perplexity", "dev_perplexity", ".2f"),
        Column("test %", "test_accuracy", ".2f", 100),
        Column("steps", "steps", ",d"),
        Column("s", "seconds", ".1f"),
    ]


RESULTS = Table(
    _columns,
    note="Losses are means per example, in nats for cross-entropies, at the epoch with the lowest dev loss; steps and seconds "
    "are those of the whole training. A hockey stick begins more than a tenth above log N, the loss of a uniform prediction.",
)
VIEWS = [RESULTS, CURVES, DIAGNOSTICS]

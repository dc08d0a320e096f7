"""Shared parts of launch.networks: pictures, training, rows and views."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.nn import training
from jexplicit.nn.names import ObjectiveName
from jexplicit.nn.networks import Scores, init_variables, scorer, train_network
from jexplicit.nn.training import TrainingResult, epoch_order, make_optimizer, make_schedule, shorter_epochs
from jexplicit.runs.devices import key_of_seed, save_checkpoint
from jexplicit.runs.progress import console, stage
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Row, Table
from launch.networks.config import Descent, Pictures

_scored_examples = 100_000  # of the train loss, at most


class SplitData(NamedTuple):
    """Inputs and targets of the train, dev or test examples."""

    X: np.ndarray
    Y: np.ndarray


class Data(NamedTuple):
    """Examples, the number of outputs N, and fields of rows."""

    train: SplitData
    dev: SplitData
    test: SplitData
    outputs: int
    about: dict[str, Any]


def open_pictures(config: Pictures, command: str) -> Data:
    """The centred images of a subcommand."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir, limit=config.limit)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    return centred_data(images, command)


def centred_data(images: Images, command: str = "") -> Data:
    """Centred pixels of standard deviation 1, and one-hot labels; dev is the last tenth."""
    train, test = (
        SplitData(pixel_features(X, images.levels), one_hot(labels, images.outputs))
        for X, labels in ((images.train_images, images.train_labels), (images.test_images, images.test_labels))
    )
    kept = len(train.X) - max(1, len(train.X) // 10)
    train, dev = (SplitData(train.X[m], train.Y[m]) for m in (slice(kept), slice(kept, None)))
    mean = train.X.mean(axis=0)
    scale = float((train.X - mean).std()) or 1.0  # one number: a pixel that never changes stays 0
    parts = (SplitData((X - mean) / scale, Y) for X, Y in (train, dev, test))
    about = {"command": command, "data": images.name, "sha256": images.sha256, "outputs": images.outputs}
    return Data(*parts, outputs=images.outputs, about=about)


def fit(
    folder: RunFolder,
    about: Row,
    network: nn.Module,
    loss: Callable[..., Any],
    optimizer: Any,
    variables: Any,
    batch: Callable[[np.ndarray], Any],
    evaluate: Callable[[Any], float],
    *,
    checkpoints: Path,
    epochs: int,
    epoch_steps: int,
    measured: Callable[[int], Row],
    **options: Any,
) -> TrainingResult:
    """Train a network with its epochs logged; an interrupted training continues.

    about: fields of its events. measured: `step -> more fields`. The other arguments are those of `train_network`.
    """

    def on_epoch(entry: Any) -> None:
        step = round(entry["epoch"]) * epoch_steps
        folder.log(event="epoch", **about, **entry, step=step, **measured(step))
        if round(entry["epoch"]) % max(1, epochs // 20) == 0:
            losses = ", ".join(f"{part} {entry[f'{part}_loss']:.4f}" for part in ("train", "dev") if f"{part}_loss" in entry)
            console.print(f"    step {step:,}: {losses}, {entry.get('seconds', 0):.0f} s")

    options |= {"checkpoints": checkpoints, "epochs": epochs, "on_epoch": on_epoch}
    with stage(f"training {about['name']}", "examples") as progress:
        return train_network(network, loss, optimizer, variables, batch, evaluate, progress=progress, **options)


def train_model(
    folder: RunFolder,
    flags: Descent,
    data: Data,
    network: nn.Module,
    name: str,
    model: str,
    *,
    objective: ObjectiveName = "softmax_cross_entropy",
    variables: Any = None,
    finish: Callable[[Any], Row] = lambda variables: {},
    **more: Any,
) -> list[Row]:
    """Train a network, save its best epoch, and return its row.

    name: of the row, unique within the run. model: the kind of network. variables: the initial ones; default, random. finish:
    `variables -> more fields`, of the trained network. more: fields of the row.
    """
    loss, M, softmax = training.objective(objective), len(data.train.X), "softmax" in objective
    size = min(flags.epoch_examples or M, M)
    batch_size = min(flags.batch_size or size, size)
    epoch_steps = -(-size // batch_size)
    rate = make_schedule("cosine", flags.learning_rate, flags.epochs * epoch_steps)
    optimizer = make_optimizer(flags.optimizer, rate, weight_decay=flags.weight_decay)
    score, seen = scorer(network, loss), list[Scores]()
    variables = variables or init_variables(network, key_of_seed(flags.seed), data.train.X[:2])
    path = folder.path / "checkpoints" / name
    partial = path.with_name(f"{name}.partial")

    def evaluate(variables: Any) -> float:
        seen.append(score(variables, *data.dev))
        return seen[-1].loss

    order: Any = lambda seed, epoch: epoch_order(seed, epoch, M)  # noqa: E731
    options: Any = {"size": size, "batch_size": batch_size, "epochs": flags.epochs, "epoch_steps": epoch_steps}
    options |= {"seed": flags.seed, "order": order if size == M else shorter_epochs(order, M, size), "checkpoints": partial}
    options |= {"measured": lambda step: {"dev_accuracy": seen[-1].accuracy}}
    batch = lambda m: (data.train.X[m], data.train.Y[m])  # noqa: E731
    result = fit(folder, {"name": name}, network, loss, optimizer, variables, batch, evaluate, **options)
    trained = result.params
    save_checkpoint(path, {kind: tree for kind, tree in trained.items() if tree})
    few = slice(None, None, -(-M // _scored_examples))
    parts = {"train": (data.train.X[few], data.train.Y[few]), "dev": data.dev, "test": data.test}
    scores = {part: score(trained, *examples) for part, examples in parts.items()}
    row = {
        "name": name, "model": model, "objective": objective, "optimizer": flags.optimizer,
        **{f"{part}_loss": found.loss for part, found in scores.items()},
        "steps": result.epochs * epoch_steps, "seconds": result.seconds, "epochs": result.epochs,
        "dev_perplexity": float(np.exp(scores["dev"].loss)) if softmax else None,
        "test_accuracy": scores["test"].accuracy if softmax else None,
        "best_epoch": result.best_epoch,
        "first_loss": result.history[0]["dev_loss"],
        "learning_rate": flags.learning_rate,
        "weight_decay": flags.weight_decay if flags.optimizer == "adamw" else None,
        "batch_size": batch_size,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(trained["params"])),
        **{**more, **finish(trained), **data.about},
    }  # fmt: skip
    shutil.rmtree(partial, ignore_errors=True)  # only for resuming
    return [row]


RESULTS = Table(
    [
        Column("network", "name"),
        Column("model", "model"),
        Column("first dev", "first_loss", ".3f"),
        *(Column(part, f"{part}_loss", ".4f") for part in ("train", "dev", "test")),
        Column("dev perplexity", "dev_perplexity", ".2f"),
        Column("test %", "test_accuracy", ".2f", 100),
        Column("steps", "steps", ",d"),
        Column("s", "seconds", ".1f"),
    ],
    note="Losses are means per example, in nats for cross-entropies, at the epoch with the lowest dev loss; steps and seconds "
    "are those of the whole training.",
)
_shown: Any = {"axes": {"xscale": "log", "yscale": "log", "ylabel": "dev loss"}, "size": (6.4, 4.2)}
CURVES = Lines("curves", "step", "dev_loss", "name", rows=lambda results: results.events("epoch", "name", "epoch"), **_shown)

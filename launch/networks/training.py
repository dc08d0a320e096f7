"""Shared parts of launch.networks: pictures, training, rows and views."""

import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.nn import training
from jexplicit.nn.networks import Scores, init_variables, scorer, train_network
from jexplicit.nn.training import TrainingResult, epoch_order, make_optimizer, make_schedule, shorter_epochs
from jexplicit.runs.devices import key_of_seed, save_checkpoint
from jexplicit.runs.progress import console, stage
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Row, Table
from launch.networks import Descent, Pictures

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


def open_pictures(config: Pictures) -> Data:
    """The centred images of a subcommand."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir, limit=config.limit)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    return centred_data(images)


def centred_data(images: Images) -> Data:
    """Centred pixels of standard deviation 1, and one-hot labels; dev is the last tenth."""
    X, X_test = (pixel_features(part, images.levels) for part in (images.train_images, images.test_images))
    Y, Y_test = (one_hot(labels, images.outputs) for labels in (images.train_labels, images.test_labels))
    kept = len(X) - max(1, len(X) // 10)
    mean = X[:kept].mean(axis=0)
    scale = float((X[:kept] - mean).std()) or 1.0  # one number: a pixel that never changes stays 0
    parts = ((X[:kept], Y[:kept]), (X[kept:], Y[kept:]), (X_test, Y_test))
    about = {"data": images.name, "sha256": images.sha256, "outputs": images.outputs}
    return Data(*(SplitData((X - mean) / scale, Y) for X, Y in parts), outputs=images.outputs, about=about)


def fit(
    folder: RunFolder,
    about: Row,
    *network: Any,
    epochs: int,
    size: int,
    batch_size: int,
    measured: Callable[[int], Row],
    **options: Any,
) -> TrainingResult:
    """Train a network with its epochs logged; an interrupted training continues.

    network, options: of `train_network`. about, measured: fields of the events of epochs, always and by step.
    """

    def on_epoch(entry: Any) -> None:
        step = round(entry["epoch"]) * -(-size // batch_size)
        folder.log(event="epoch", **about, **entry, step=step, **measured(step))
        if round(entry["epoch"]) % max(1, epochs // 20) == 0:
            losses = ", ".join(f"{part} {entry[f'{part}_loss']:.4f}" for part in ("train", "dev") if f"{part}_loss" in entry)
            console.print(f"    step {step:,}: {losses}, {entry.get('seconds', 0):.0f} s")

    options |= {"epochs": epochs, "size": size, "batch_size": batch_size, "on_epoch": on_epoch}
    with stage(f"training {about['name']}", "examples") as progress:
        return train_network(*network, progress=progress, **options)


def train_model(
    folder: RunFolder,
    flags: Descent,
    data: Data,
    network: nn.Module,
    objective: str,
    *,
    name: str,
    variables: Any = None,
    epoch_examples: int | None = None,
    finish: Callable[[Any], Row] = lambda variables: {},
    **more: Any,
) -> list[Row]:
    """Train a network by Adam, save its best epoch, and return its row.

    variables: the initial ones; default, random. finish: `variables -> more fields` of the trained network. more: fields.
    """
    loss, M, seen = training.objective(objective), len(data.train.X), list[Scores]()
    size = min(epoch_examples or M, M)
    batch_size = min(flags.batch_size or size, size)
    epoch_steps = -(-size // batch_size)
    rate = make_schedule("cosine", flags.learning_rate, flags.epochs * epoch_steps)
    optimizer = make_optimizer("adamw" if flags.weight_decay else "adam", rate, weight_decay=flags.weight_decay)
    score = scorer(network, loss)
    variables = variables or init_variables(network, key_of_seed(flags.seed), data.train.X[:2])
    path = folder.path / "checkpoints" / name
    partial = path.with_name(f"{name}.partial")

    def evaluate(variables: Any) -> float:
        seen.append(score(variables, *data.dev))
        return seen[-1].loss

    def order(seed: int, epoch: int) -> np.ndarray:
        return epoch_order(seed, epoch, M)

    def batch(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return data.train.X[m], data.train.Y[m]

    options: Any = {"size": size, "batch_size": batch_size, "epochs": flags.epochs, "seed": flags.seed, "checkpoints": partial}
    options |= {"order": order if size == M else shorter_epochs(order, M, size)}
    options |= {"measured": lambda step: {"dev_accuracy": seen[-1].accuracy}}
    result = fit(folder, {"name": name}, network, loss, optimizer, variables, batch, evaluate, **options)
    trained = result.params
    save_checkpoint(path, {kind: tree for kind, tree in trained.items() if tree})
    few = slice(None, None, -(-M // _scored_examples))
    parts = {"train": (data.train.X[few], data.train.Y[few]), "dev": data.dev, "test": data.test}
    scores = {part: score(trained, *examples) for part, examples in parts.items()}
    row = {f"{part}_loss": found.loss for part, found in scores.items()}
    if objective == "softmax_cross_entropy":
        row |= {"dev_perplexity": float(np.exp(row["dev_loss"])), "test_accuracy": scores["test"].accuracy}
    row |= {"steps": result.epochs * epoch_steps, "seconds": result.seconds, "epochs": result.epochs}
    row |= {"best_epoch": result.best_epoch, "first_loss": result.history[0]["dev_loss"]}
    row["parameters"] = sum(leaf.size for leaf in jax.tree.leaves(trained["params"]))
    shutil.rmtree(partial, ignore_errors=True)  # only for resuming
    return [{**row, **more, **finish(trained), **data.about}]


RESULTS = Table(
    [
        Column("network", "name"), Column("model", "model"), Column("first dev", "first_loss", ".3f"),
        *(Column(part, f"{part}_loss", ".4f") for part in ("train", "dev", "test")),
        Column("dev perplexity", "dev_perplexity", ".2f"), Column("test %", "test_accuracy", ".2f", 100),
        Column("steps", "steps", ",d"), Column("s", "seconds", ".1f"),
    ],
    note="Losses are means per example, in nats for cross-entropies, at the epoch with the lowest dev loss; steps and seconds "
    "are those of the whole training.",
)  # fmt: skip
_shown: Any = {"axes": {"xscale": "log", "yscale": "log", "ylabel": "dev loss"}, "size": (6.4, 4.2)}
CURVES = Lines("curves", "step", "dev_loss", "name", rows=lambda results: results.events("epoch", "name", "epoch"), **_shown)

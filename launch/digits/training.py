"""The models of launch.digits that are trained by gradients: cold and warm starts, and a network with a hidden layer."""

import functools
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array

from jexplicit.nn.dense import (
    autodiff_gradient,
    cold_layers,
    hidden_logits,
    hidden_network,
    initial_state,
    stack_gradient,
    training_step,
)
from jexplicit.nn.training import train
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.layerwise import accuracy, stack_logits
from launch.digits.config import Config
from launch.digits.models import Job, Part, add_row, explicit_layers, has_row, mean_loss, model_path, save_model
from launch.digits.report import read_curve, stopping_epoch


class _Model(NamedTuple):
    """A network to train: what it is called, where it starts, its logits, their gradient, and the optimiser."""

    method: str
    layers: int
    params: Any
    logits: Callable[[Any, Array], Array]
    gradient: Callable[..., Any]
    optimizer: optax.GradientTransformation


def measure_trained(job: Job, method: str, layers: int) -> None:
    """A stack of softmax layers from random parameters (cold) or from the explicit solution (warm)."""
    _, N = job.train.Y.shape
    D = job.train.H.shape[1]
    if method == "cold":
        params = cold_layers(jax.random.key(job.config.seed), D, N, layers)
    else:  # of the images it is trained on, so that those held out stay unseen
        params = explicit_layers(job, split(job)[0], layers)
    _measure(job, _Model(method, layers, params, stack_logits, stack_gradient(layers), make_optimizer(job.config)))


def measure_network(job: Job) -> None:
    """A small network trained by backpropagation: one hidden layer of rectified units, by Adam."""
    (_, D), (_, N) = job.train.H.shape, job.train.Y.shape
    params = hidden_network(jax.random.key(job.config.seed), D, job.config.hidden, N)
    _measure(job, _Model("network", 2, params, hidden_logits, autodiff_gradient(hidden_logits), optax.adam(1e-3)))


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """The optimiser of cold and warm starts, on the gradient of the mean loss of a batch."""
    if config.optimizer == "adagrad":  # eps far below any square of a gradient: it only guards against 0/0
        return optax.adagrad(config.learning_rate, initial_accumulator_value=config.accumulator, eps=1e-30)
    return getattr(optax, config.optimizer)(config.learning_rate)


def split(job: Job) -> tuple[Part, Part]:
    """The images to train on, and those whose loss decides when to stop (--stop-on)."""
    if job.config.stop_on != "held_out":
        return job.train, job.train if job.config.stop_on == "train" else job.test
    kept = len(job.train.H) - max(1, len(job.train.H) // 10)
    first, last = (Part(*(x[where] for x in job.train)) for where in (slice(0, kept), slice(kept, None)))
    return first, last


def _measure(job: Job, model: _Model) -> None:
    """Train one model, and add a row for each rule of stopping."""
    name = f"{model.method}_{model.layers}"
    if all(has_row(job, method=model.method, layers=model.layers, stop=stop) for stop in job.config.stop):
        return
    config, (used, deciding) = job.config, split(job)
    H, Y = np.asarray(used.H), np.asarray(used.Y)
    logits = jax.jit(model.logits)
    measured: dict[str, float] = {}

    def evaluate(params: Any) -> float:
        train, test = logits(params, job.train.H), logits(params, job.test.H)
        measured["train_accuracy"], measured["test_accuracy"] = (
            accuracy(train, job.train.labels),
            accuracy(test, job.test.labels),
        )
        measured["train_loss"], measured["test_loss"] = mean_loss(train, job.train.Y), mean_loss(test, job.test.Y)
        return mean_loss(logits(params, deciding.H), deciding.Y)

    def on_epoch(entry: Any) -> None:
        shared = {"method": model.method, "layers": model.layers}
        now = {"epoch": entry["epoch"], "deciding_loss": entry["dev_loss"], "seconds": entry.get("seconds", 0.0), **measured}
        job.folder.log(event="epoch", **shared, **now)
        if entry["epoch"] % 10 == 0 and entry["epoch"]:
            told = f"loss {entry['dev_loss']:.4f}, test accuracy {100 * measured['test_accuracy']:.2f} %"
            console.print(f"    {name}: epoch {entry['epoch']}, {told}, {entry['seconds']:.0f} s")

    checkpoints = model_path(job, f"{name}.partial")
    with stage(f"training {name}", "images") as progress:
        trained = train(
            initial_state(model.params, model.optimizer),
            training_step(model.optimizer, model.gradient),
            functools.partial(_batch, H, Y),
            evaluate,
            params=lambda state: state.params,
            size=len(H),
            batch_size=config.batch_size,
            epochs=config.epochs,
            seed=config.seed,
            patience=config.patience,
            checkpoints=checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )
    save_model(job, name, {"params": trained.params})
    for stop in config.stop:
        if not has_row(job, method=model.method, layers=model.layers, stop=stop):
            add_row(job, _row(job, model, stop))
    shutil.rmtree(checkpoints, ignore_errors=True)  # the best model is saved; the state was for resuming


def _batch(H: np.ndarray, Y: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return H[drawn], Y[drawn]


def _row(job: Job, model: _Model, stop: str) -> dict[str, Any]:
    """The row of one rule of stopping, from the epochs in metrics.jsonl."""
    curve = read_curve(job.folder.path, model.method, model.layers)
    losses = [epoch["deciding_loss"] for epoch in curve]
    last, stopped = stopping_epoch(losses, patience=1 if stop == "rise" else job.config.patience)
    best = int(np.argmin(losses[: last + 1]))
    accuracies = {name: curve[best][name] for name in ("test_accuracy", "train_accuracy", "test_loss", "train_loss")}
    return {
        "method": model.method,
        "layers": model.layers,
        "features": "pixels",
        "solver": "adam" if model.method == "network" else job.config.optimizer,
        "stop": stop,
        "stopped": stopped,
        **accuracies,
        "epochs": last,
        "best_epoch": best,
        "start_loss": curve[0]["test_loss"],
        "seconds": curve[last]["seconds"],
        "priming_number": job.K if model.method == "warm" else None,
        "backprop_free": False,
        "explicit_epoch": _explicit_epoch(job, model, curve),
        "learning_rate": 1e-3 if model.method == "network" else job.config.learning_rate,
        "batch_size": job.config.batch_size,
        "stop_on": job.config.stop_on,
    }


def _explicit_epoch(job: Job, model: _Model, curve: list[dict[str, Any]]) -> int | None:
    """The first epoch that is as accurate on the test images as the explicit solution of as many layers."""
    rows = [row for row in job.folder.rows() if (row["method"], row["layers"]) == ("explicit", model.layers)]
    reached = [epoch["epoch"] for epoch in curve if rows and epoch["test_accuracy"] >= rows[0]["test_accuracy"]]
    return reached[0] if reached else None

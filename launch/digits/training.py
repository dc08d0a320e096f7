"""The networks of launch.digits that are trained by gradients: cold and warm starts, and a network with a hidden layer."""

import functools
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jexplicit.nn.initializers import initializer
from jexplicit.nn.networks import FullyConnected, SoftmaxStack, network_outputs
from jexplicit.nn.objectives import objective
from jexplicit.nn.optimizers import adagrad, optax_optimizer
from jexplicit.nn.steps import initial_state, training_step, variables_of
from jexplicit.nn.training import train
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.layerwise import random_decoders
from jexplicit.solvers.metrics import mean_loss
from launch.digits.config import Config
from launch.digits.methods import (
    Job,
    Part,
    checkpoint_name,
    explicit_decoders,
    has_row,
    model_path,
    new_row,
    save_guesses,
    save_model,
    scores,
)
from launch.digits.report import read_curve


class Plan(NamedTuple):
    """A network to train, and the fields of its row that are known before."""

    row: dict[str, Any]
    model: nn.Module
    params: dict[str, Any]
    optimizer: optax.GradientTransformation


def measure_stacks(job: Job, method: str) -> None:
    """Stacks of softmax layers, trained from random parameters (cold) or from the explicit solution (warm)."""
    config, (_, N) = job.config, job.train.Y.shape
    for layers in config.layers:
        if method == "cold":
            decoders = random_decoders(jax.random.key(config.seed), job.train.H.shape[1], N, layers)
        else:  # solved on the images that it is then trained on: held-out images stay unseen
            decoders = explicit_decoders(split(job)[0], job.K, layers)
        row = new_row(method, config.optimizer, layers=layers, priming_number=job.K if method == "warm" else None)
        params = {f"layer_{n}": {"kernel": U} for n, U in enumerate(decoders, 1)}
        plan = Plan(row | {"learning_rate": config.learning_rate}, SoftmaxStack(N, layers), params, make_optimizer(config))
        measure_trained(job, plan)


def measure_network(job: Job) -> None:
    """A small network trained by backpropagation: one hidden layer of rectified units, by Adam."""
    config, D, N = job.config, job.train.H.shape[1], job.train.Y.shape[1]
    first, last = jax.random.split(jax.random.key(config.seed))
    params = {"hidden_1": {"Dense_0": _dense(first, D, config.hidden)}, "output": _dense(last, config.hidden, N)}
    row = new_row("network", "adam", layers=2, learning_rate=1e-3)
    measure_trained(job, Plan(row, FullyConnected((config.hidden,), N), params, optax.adam(1e-3)))


def _dense(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """He's normal weights, and biases of 0."""
    kernel = initializer("he_normal", "relu")(key, (inputs, outputs), jnp.float32)
    return {"kernel": kernel, "bias": jnp.zeros(outputs, jnp.float32)}


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """The optimiser of cold and warm starts, on the gradient of the mean loss of a batch."""
    if config.optimizer == "adagrad":
        return adagrad(config.learning_rate, accumulator=config.accumulator)
    return optax_optimizer(config.optimizer, config.learning_rate)


def split(job: Job) -> tuple[Part, Part]:
    """The images to train on, and those whose loss decides when to stop (--stop-on)."""
    if job.config.stop_on != "held_out":
        return job.train, job.train if job.config.stop_on == "train" else job.test
    kept = len(job.train.H) - max(1, len(job.train.H) // 10)
    return Part(*(x[:kept] for x in job.train)), Part(*(x[kept:] for x in job.train))


def measure_trained(job: Job, plan: Plan) -> None:
    """Train a network, and add a row for each stopping rule."""
    rows = [plan.row | {"stop": stop} for stop in job.config.stop]
    if all(has_row(job, row) for row in rows):
        return
    config, name, (used, deciding) = job.config, checkpoint_name(plan.row), split(job)
    H, Y = np.asarray(used.H), np.asarray(used.Y)
    logits = jax.jit(functools.partial(network_outputs, plan.model))
    measured: dict[str, float] = {}

    def evaluate(variables: dict[str, Any]) -> float:
        measured.update(scores(job, logits(variables, job.train.H), logits(variables, job.test.H)))
        return mean_loss(logits(variables, deciding.H), deciding.Y)

    def on_epoch(entry: Mapping[str, float]) -> None:
        fields = {"epoch": entry["epoch"], "deciding_loss": entry["dev_loss"], "seconds": entry.get("seconds", 0.0), **measured}
        job.folder.log(event="epoch", method=plan.row["method"], layers=plan.row["layers"], **fields)
        if entry["epoch"] and entry["epoch"] % 10 == 0:
            result = f"loss {entry['dev_loss']:.4f}, test accuracy {100 * measured['test_accuracy']:.2f} %"
            console.print(f"    {name}: epoch {entry['epoch']}, {result}, {entry['seconds']:.0f} s")

    checkpoints = model_path(job, f"{name}.partial")
    with stage(f"training {name}", "images") as progress:
        trained = train(
            initial_state({"params": plan.params, "batch_stats": {}}, plan.optimizer),
            training_step(plan.model, objective("softmax_cross_entropy"), plan.optimizer),
            functools.partial(_batch, H, Y),
            evaluate,
            params=variables_of,
            size=len(H),
            batch_size=config.batch_size,
            epochs=config.epochs,
            seed=config.seed,
            patience=patience(config, kept_rule(config.stop)),
            checkpoints=checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )
    save_model(job, name, trained.params["params"])
    save_guesses(job, plan.row | {"stop": kept_rule(config.stop)}, logits(trained.params, job.test.H))
    for row in rows:
        if not has_row(job, row):
            job.folder.add_row({**_measured_row(job, row), **job.about})
    shutil.rmtree(checkpoints, ignore_errors=True)  # the best model is saved; the state was only for resuming


def kept_rule(stop: Sequence[str]) -> str:
    """The rule whose model is kept: the one that trains longest."""
    return "patience" if "patience" in stop else "rise"


def patience(config: Config, stop: str) -> int:
    """Epochs without a lower loss after which a rule stops."""
    return 1 if stop == "rise" else config.patience


def _batch(H: np.ndarray, Y: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return H[indices], Y[indices]


def _measured_row(job: Job, row: dict[str, Any]) -> dict[str, Any]:
    """The row of one stopping rule, from the epochs in metrics.jsonl."""
    curve = read_curve(job.folder.path, row["method"], row["layers"])
    losses = [epoch["deciding_loss"] for epoch in curve]
    last, stopped = stopping_epoch(losses, patience=patience(job.config, row["stop"]))
    best = int(np.argmin(losses[: last + 1]))
    explicit = [r for r in job.folder.rows() if (r["method"], r["layers"]) == ("explicit", row["layers"])]
    reached = [epoch["epoch"] for epoch in curve if explicit and epoch["test_accuracy"] >= explicit[0]["test_accuracy"]]
    return {
        **row,
        **{name: curve[best][name] for name in ("test_accuracy", "train_accuracy", "test_loss", "train_loss")},
        "stopped": stopped,
        "epochs": last,
        "best_epoch": best,
        "start_loss": curve[0]["test_loss"],
        "seconds": curve[last]["seconds"],
        "backprop_free": False,
        "explicit_epoch": reached[0] if reached else None,
        "batch_size": job.config.batch_size,
        "stop_on": job.config.stop_on,
    }


def stopping_epoch(losses: Sequence[float], *, patience: int) -> tuple[int, bool]:
    """The epoch at which a rule stops, and whether it stops before the losses end.

    Epoch 0 is the start. Patience 1 is the paper's rule: stop as soon as the loss is not lower than before.

    Args:
        losses: by epoch, from epoch 0.
        patience: epochs without a loss below all earlier ones after which to stop.

    Example:
        >>> stopping_epoch([3.0, 2.0, 2.5, 1.0, 1.5, 1.2], patience=1), stopping_epoch([3.0, 2.0, 1.0], patience=1)
        ((2, True), (2, False))
    """
    best = 0
    for epoch, loss in enumerate(losses):
        if loss < losses[best]:
            best = epoch
        if epoch - best >= patience:
            return epoch, True
    return len(losses) - 1, False

"""Networks that are trained by gradients: stacks of softmax layers from cold and warm starts, and one with a hidden layer."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jexplicit.nn.networks import FullyConnected, SoftmaxStack, network_outputs
from jexplicit.nn.optimizers import adagrad, optax_optimizer
from jexplicit.nn.parts.initializers import initializer
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import Batch, NetworkState, initial_state, training_step, variables_of
from jexplicit.nn.training import TrainingResult, train
from jexplicit.runs.progress import stage
from jexplicit.solvers.layerwise import random_decoders
from jexplicit.solvers.metrics import Closeness, closeness, mean_loss
from launch.digits.base import (
    Parts,
    Problem,
    Split,
    dev_scores,
    flops,
    held_out_tenth,
    make_key,
    model_name,
    save_guesses,
    save_model,
    scores,
)
from launch.digits.solved import explicit_decoders
from launch.kit.rows import Row, where

Plan = tuple[nn.Module, dict[str, Any], optax.GradientTransformation, Row]
"""A network, its initial parameters, how it is trained, and fields of its row."""


def stacks(problem: Problem, method: str) -> Parts:
    """Stacks of softmax layers, from random parameters (cold) or from the explicit solution (warm)."""
    for layers in problem.config.layers:
        key = make_key(method, problem.config.optimizer, layers=layers)
        yield key, functools.partial(_train, problem, key, functools.partial(_stack, problem, method, layers))


def _stack(problem: Problem, method: str, layers: int) -> Plan:
    config, (D, N) = problem.config, (problem.train.H.shape[1], problem.train.Y.shape[1])
    if method == "cold":
        decoders = random_decoders(jax.random.key(config.seed), D, N, layers)
    else:  # solved on the images that it is then trained on: held-out images stay unseen
        decoders = explicit_decoders(training_split(problem)[0], problem.K, layers)
    params = {f"layer_{n}": {"kernel": U} for n, U in enumerate(decoders, 1)}
    fields = {"priming_number": problem.K if method == "warm" else None, "learning_rate": config.learning_rate}
    if config.optimizer == "adagrad":
        optimizer = adagrad(config.learning_rate, accumulator=config.accumulator)
    else:
        optimizer = optax_optimizer(config.optimizer, config.learning_rate)
    return SoftmaxStack(N, layers), params, optimizer, fields


def network(problem: Problem) -> Parts:
    """One hidden layer of rectified units, trained by Adam from He's normal weights."""
    key = make_key("network", "adam", layers=2)
    yield key, functools.partial(_train, problem, key, functools.partial(_network, problem))


def _network(problem: Problem) -> Plan:
    hidden, (D, N) = problem.config.hidden, (problem.train.H.shape[1], problem.train.Y.shape[1])

    def dense(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
        kernel = initializer("he_normal", "relu")(key, (inputs, outputs), jnp.float32)
        return {"kernel": kernel, "bias": jnp.zeros(outputs, jnp.float32)}

    first, last = jax.random.split(jax.random.key(problem.config.seed))
    params = {"hidden_1": {"Dense_0": dense(first, D, hidden)}, "output": dense(last, hidden, N)}
    return FullyConnected((hidden,), N), params, optax.adam(1e-3), {"learning_rate": 1e-3}


def training_split(problem: Problem) -> tuple[Split, Split]:
    """The images to train on, and those whose loss decides when to stop (--stop-on)."""
    if problem.config.stop_on != "held_out":
        return problem.train, problem.train if problem.config.stop_on == "train" else problem.test
    tenth = held_out_tenth(problem)
    return problem.train.rows(~tenth), problem.train.rows(tenth)


def _train(problem: Problem, key: Row, make_plan: Callable[[], Plan]) -> list[Row]:
    """Train a network, and measure it under each stopping rule."""
    config, name, (model, params, optimizer, fields) = problem.config, model_name(key), make_plan()
    (used, deciding), tenth = training_split(problem), held_out_tenth(problem)
    H, Y = np.asarray(used.H), np.asarray(used.Y)
    logits = jax.jit(functools.partial(network_outputs, model))
    measured: dict[str, float] = {}
    solved = explicit_decoders(used, problem.K, 1) if name in ("cold_1", "warm_1") else ()

    def evaluate(variables: dict[str, Any]) -> float:
        for U in solved:  # of the same images: how near training stays to it, or comes
            near = closeness(jnp.asarray(variables["params"]["layer_1"]["kernel"]), U, problem.train.H[tenth])
            measured.update({f"explicit_{field}": value for field, value in near._asdict().items()})
        train = logits(variables, problem.train.H)
        measured.update(scores(problem, train, logits(variables, problem.test.H)) | dev_scores(problem, train[tenth]))
        return mean_loss(logits(variables, deciding.H), deciding.Y)

    def on_epoch(entry: Mapping[str, float]) -> None:
        about = {"event": "epoch", "method": key["method"], "layers": key["layers"], "epoch": entry["epoch"]}
        problem.folder.log(**about, deciding_loss=entry["dev_loss"], seconds=entry.get("seconds", 0.0), **measured)

    longest = "patience" if "patience" in config.stop else "rise"  # the rule that trains longest; its model is kept
    start = initial_state({"params": params, "batch_stats": {}}, optimizer)
    options: Any = {"epochs": config.epochs, "patience": _patience(problem, longest), "on_epoch": on_epoch}
    trained, step_flops = run_training(
        problem, name, model, start, optimizer, lambda indices: (H[indices], Y[indices]), evaluate, **options, size=len(H)
    )
    save_model(problem, name, trained.params["params"])
    save_guesses(problem, {**key, "stop": longest}, logits(trained.params, problem.test.H))
    steps = -(-len(H) // config.batch_size)
    return [_row(problem, {**key, **fields, "stop": stop}, steps, step_flops) for stop in config.stop]


def run_training(
    problem: Problem,
    name: str,
    model: nn.Module,
    start: NetworkState,
    optimizer: optax.GradientTransformation,
    batch: Callable[[np.ndarray], Batch],
    evaluate: Callable[[Any], float],
    *,
    size: int,
    **options: Any,
) -> tuple[TrainingResult, float]:
    """Train a network by batches of the flags from its initial state, and the FLOPs of a step; an interrupted one continues."""
    config, step = problem.config, training_step(model, objective("softmax_cross_entropy"), optimizer, seed=problem.config.seed)
    first = batch(np.arange(min(config.batch_size, size)))
    step_flops = flops(step, *jax.eval_shape(lambda *parts: parts, start, first))
    with stage(f"training {name}", "images") as progress:
        trained = train(
            start,
            step,
            batch,
            evaluate,
            params=variables_of,
            size=size,
            batch_size=config.batch_size,
            seed=config.seed,
            checkpoints=problem.folder.path / "checkpoints" / f"{name}.partial",
            progress=progress,
            **options,
        )
    return trained, step_flops


def _patience(problem: Problem, stop: str) -> int:
    """Epochs without a lower loss after which a rule stops."""
    return 1 if stop == "rise" else problem.config.patience


def _row(problem: Problem, row: Row, steps: int, step_flops: float) -> Row:
    """The row of one stopping rule, from the epochs in metrics.jsonl."""
    events = where(problem.folder.events("epoch"), method=row["method"], layers=row["layers"])
    epochs = {event["epoch"]: event for event in events}  # one that a resumed run repeated counts once
    curve = [epochs[n] for n in sorted(epochs)]
    losses = [epoch["deciding_loss"] for epoch in curve]
    last, stopped = stopping_epoch(losses, patience=_patience(problem, row["stop"]))
    best = int(np.argmin(losses[: last + 1]))
    explicit = where(problem.folder.rows(), method="explicit", layers=row["layers"])
    reached = [epoch["epoch"] for epoch in curve if explicit and epoch["test_accuracy"] >= explicit[0]["test_accuracy"]]
    held_out, near = problem.config.stop_on == "held_out", [f"explicit_{field}" for field in Closeness._fields]
    return {
        **row,
        **{name: curve[best][name] for name in ("test_accuracy", "train_accuracy", "test_loss", "train_loss")},
        **{name: curve[best][name] if held_out else None for name in ("dev_accuracy", "dev_loss")},
        **{name: curve[best][name] for name in near if name in curve[best]},
        "steps": last * steps,
        "flops": last * steps * step_flops,
        "stopped": stopped,
        "epochs": last,
        "best_epoch": best,
        "start_loss": curve[0]["test_loss"],
        "seconds": curve[last]["seconds"],
        "backprop_free": False,
        "explicit_epoch": reached[0] if reached else None,
        "batch_size": problem.config.batch_size,
        "stop_on": problem.config.stop_on,
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
    for epoch in range(len(losses)):
        if epoch - int(np.argmin(losses[: epoch + 1])) >= patience:
            return epoch, True
    return len(losses) - 1, False

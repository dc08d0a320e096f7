"""One training loop for every network, the order of examples, optimisers and losses."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jexplicit.nn.names import look_up
from jexplicit.runs.devices import Entry, History, iterate

Rate = float | jax.Array | optax.Schedule


def adagrad(rate: Rate) -> optax.GradientTransformation:
    """Adagrad from G = 0, with a smaller ε than optax's."""
    return optax.adagrad(rate, initial_accumulator_value=0.0, eps=1e-30)


_optimizers: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": functools.partial(optax.sgd, momentum=0.9),
    "adagrad": adagrad,
    "adam": optax.adam,
    "adamw": optax.adamw,
}
_schedules: dict[str, Callable[[float, int], optax.Schedule]] = {
    "constant": lambda rate, steps: optax.constant_schedule(rate),
    "cosine": optax.cosine_decay_schedule,
}


def make_optimizer(name: str, rate: Rate, *, weight_decay: float = 0.02) -> optax.GradientTransformation:
    """The optimiser `name` of optax; momentum is 0.9, and Adagrad's sum begins at 0.

    rate: a number, also traced, or a schedule. weight_decay: of adamw, times the rate.
    """
    options = {"weight_decay": weight_decay} if name == "adamw" else {}
    return look_up("optimizer", _optimizers, name)(rate, **options)


def make_schedule(name: str, rate: float, steps: int) -> optax.Schedule:
    """The learning rate by step: constant, or along half a cosine to 0."""
    if not 0 < rate < float("inf") or steps < 1:
        raise ValueError(f"learning rate {rate} over {steps} steps: both must be positive")
    return look_up("schedule", _schedules, name)(rate, steps)


Objective = Callable[[Array, Array], Array]


def objective(name: str) -> Objective:
    """The loss `(z, y) -> J` of the name, [B]; cross-entropies in nats:

                                J                                       dJ/dz
        squared_error           ½ ||y - z||²                            z - y
        sigmoid_squared_error   ||y - a||²,  a = σ(z)                   -2 (y - a) a (1 - a)
        binary_cross_entropy    -Σ y ln a + (1 - y) ln(1 - a)           a - y
        softmax_cross_entropy   -Σ y ln softmax(z)                      softmax(z) - y

    Targets y are [B, N]; the softmax also takes labels [B].
    """
    return look_up("objective", OBJECTIVES, name)


def _softmax_cross_entropy(z: Float[Array, "B N"], y: Array) -> Float[Array, " B"]:
    loss = optax.softmax_cross_entropy_with_integer_labels if y.ndim == 1 else optax.softmax_cross_entropy
    return loss(z, y)


OBJECTIVES: dict[str, Objective] = {
    "squared_error": lambda z, y: optax.l2_loss(z, y).sum(axis=1),
    "sigmoid_squared_error": lambda z, y: optax.squared_error(jax.nn.sigmoid(z), y).sum(axis=1),
    "binary_cross_entropy": lambda z, y: optax.sigmoid_binary_cross_entropy(z, y).sum(axis=1),
    "softmax_cross_entropy": _softmax_cross_entropy,
}


Order = Callable[[int, int], Int[np.ndarray, " M"]]
_steps_between_checks = 16  # of the losses; a check waits for the device


class TrainingResult(NamedTuple):
    """Parameters of the epoch with the lowest dev loss, and the losses by epoch."""

    params: Any
    best_epoch: int
    history: list[dict[str, float]]

    @property
    def epochs(self) -> int:
        """Epochs trained."""
        return int(self.history[-1]["epoch"])

    @property
    def seconds(self) -> float:
        """Seconds of training, including evaluation."""
        return self.history[-1].get("seconds", 0.0)


def epoch_order(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of examples in an epoch, by (seed, epoch) only."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(size)


def train(
    state: Any,
    step: Callable[[Any, Any], tuple[Any, jax.Array]],
    batch: Callable[[np.ndarray], Any],
    evaluate: Callable[[Any], float],
    *,
    params: Callable[[Any], Any],
    size: int,
    batch_size: int,
    epochs: int,
    seed: int = 0,
    order: Callable[[int, int], np.ndarray] | None = None,
    patience: int | None = None,
    known: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Mapping[str, float]], None] = lambda entry: None,
    progress: Callable[[int, int], None] | None = None,
    **checkpoints: Any,
) -> TrainingResult:
    """Train by mini-batches, and keep the parameters of the best epoch.

    state: pytree of arrays: parameters, optimiser state, and any other state of a step. It is donated.
    step: compiled `(state, batch) -> (state, loss)`, with the loss summed over the batch, in nats.
    batch: the batch of given example indices; the last batch of an epoch may be smaller.
    evaluate: dev loss of parameters. params: extracts the parameters from a state.
    order: `(seed, epoch) -> size example indices`, pure; default: every example once.
    patience: stop after this many epochs without a lower dev loss; default: never.
    known, checkpoints: of `jexplicit.runs.devices.iterate`. progress: called with (done, total examples).
    """
    if batch_size < 1 or epochs < 1 or size < 1:
        raise ValueError(f"batch size {batch_size}, epochs {epochs}, {size} examples: all must be at least 1")
    steps, indices = -(-size // batch_size), functools.lru_cache(1)(order or (lambda s, e: epoch_order(s, e, size)))

    def advance(carry: tuple[Any, Any], history: History) -> tuple[tuple[Any, Any], Entry]:
        """A few steps, and at the end of an epoch the dev loss."""
        (state, best), epoch, n, losses = carry, 0, steps, []
        if history:
            last = history[-1]
            epoch, first = (last["epoch"], last["step"]) if last["step"] < steps else (last["epoch"] + 1, 0)
            examples, n = indices(seed, epoch), min(first + _steps_between_checks, steps)
            if len(examples) != size:
                raise ValueError(f"an order of {len(examples)} examples in epoch {epoch}, of {size}: return {size} indices")
            for k in range(first, n):
                state, loss = step(state, batch(examples[k * batch_size : (k + 1) * batch_size]))
                losses.append(loss)
            losses = [float(loss) for loss in losses]
            for step_number, value in enumerate(losses, first):
                if not np.isfinite(value):
                    raise FloatingPointError(f"loss {value} at epoch {epoch}, step {step_number}: lower the learning rate")
            if progress:
                progress((epoch - 1) * size + min(n * batch_size, size), epochs * size)
        entry: Entry = {"epoch": epoch, "step": n, "losses": losses}
        if n == steps:
            entry["dev_loss"] = loss = float(evaluate(params(state)))
            if not np.isfinite(loss):
                remedy = "lower the learning rate" if epoch else "start from other parameters"
                raise FloatingPointError(f"dev loss {loss} after epoch {epoch}: {remedy}")
            if epoch:
                entry["train_loss"] = sum(sum((e["losses"] for e in history if e["epoch"] == epoch), []) + losses) / size
                if entry["dev_loss"] < min(e["dev_loss"] for e in _epochs(history)):
                    best = jax.tree.map(np.array, params(state))  # a copy on the host, safe from donation
        return (state, best), entry

    def done(history: History) -> bool:
        found = _epochs(history)
        if not found or "dev_loss" not in history[-1]:
            return False
        return len(found) > epochs or (patience is not None and len(found) - 1 - _best(found) >= patience)

    def callback(entry: Entry) -> None:
        if "dev_loss" in entry:
            on_epoch(_epochs([entry])[0])

    start, known = (state, jax.tree.map(np.array, params(state))), {**(known or {}), "batch_size": batch_size, "size": size}
    (_, best), history = iterate(advance, start, done=done, known={**known, "seed": seed}, callback=callback, **checkpoints)
    found = _epochs(history)
    return TrainingResult(best, _best(found), found)


def _epochs(history: History) -> list[dict[str, float]]:
    """The entries of whole epochs."""
    names = ("epoch", "dev_loss", "train_loss", "seconds", "cpu_seconds")
    return [{name: e[name] for name in names if name in e} for e in history if "dev_loss" in e]


def _best(epochs: list[dict[str, float]]) -> int:
    """The first epoch with the lowest dev loss."""
    return int(np.argmin([entry["dev_loss"] for entry in epochs]))


def shorter_epochs(order: Order, size: int, most: int) -> Order:
    """Epochs of `most` of `size` examples: parts of each order."""
    if not 1 <= most <= size:
        raise ValueError(f"epochs of {most} examples, of {size}: use 1 .. {size}")
    parts = size // most

    def part(seed: int, epoch: int) -> Int[np.ndarray, " most"]:
        whole, n = divmod(epoch - 1, parts)
        return order(seed, whole + 1)[n * most : (n + 1) * most]

    return part

"""One training loop for every network, and the order of examples.

A step is a pure, compiled function `(state, batch) -> (state, loss)` that donates its state. The order of the data depends on
(seed, epoch) only (by default a permutation), so an interrupted run resumes from its last checkpoint with the same batches as
an uninterrupted run, and has the same result bit for bit.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int, Integer

from jexplicit.nn.parts.names import look_up
from jexplicit.runs.loop import Entry, History, iterate

Order = Callable[[int, int], Int[np.ndarray, " M"]]
_steps_between_checks = 16  # of the losses; a check waits for the device


class TrainingResult(NamedTuple):
    """The result of `train`.

    params: of the epoch with the lowest dev loss; the initial parameters count as epoch 0.
    best_epoch: number of this epoch.
    history: one dictionary per epoch, from epoch 0: `epoch`, `dev_loss`, `seconds` and `cpu_seconds` since the start, and from
        epoch 1 `train_loss` (mean over the batches of the epoch, nats per position).
    """

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
    checkpoints: Path | None = None,
    checkpoint_seconds: float = 60.0,
    known: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Mapping[str, float]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingResult:
    """Train by mini-batches, and keep the parameters of the best epoch.

    Args:
        state: pytree of arrays: parameters, optimiser state, and any other state of a step. It is donated.
        step: compiled `(state, batch) -> (state, loss)`, with the loss summed over the batch, in nats.
        batch: the batch of given example indices; the last batch of an epoch may be smaller.
        evaluate: dev loss of parameters, nats per position.
        params: extracts the parameters from a state.
        order: `(seed, epoch) -> size example indices`, pure (see `sampler`); default: every example once.
        patience: stop after this many epochs without a lower dev loss; default: never.
        checkpoints: folder for checkpoints, from which training resumes; checkpoint_seconds: time between them.
        known: what else the checkpoints are of, see `jexplicit.runs.loop`.
        progress: called with (examples done, total examples).

    Raises:
        FloatingPointError: a loss that is not finite, with its epoch and step.
        ValueError: a batch size or number of epochs below 1, an order of the wrong length, or a checkpoint of another model.
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
            losses = _finite(losses, epoch, first)
            if progress:
                progress((epoch - 1) * size + min(n * batch_size, size), epochs * size)
        entry: Entry = {"epoch": epoch, "step": n, "losses": losses}
        if n == steps:
            entry["dev_loss"] = _dev_loss(evaluate, params(state), epoch)
            if epoch:
                entry["train_loss"] = sum(sum((e["losses"] for e in history if e["epoch"] == epoch), []) + losses) / size
                if entry["dev_loss"] < min(e["dev_loss"] for e in _epochs(history)):
                    best = _copy(params(state))
        return (state, best), entry

    def done(history: History) -> bool:
        found = _epochs(history)
        if not found or "dev_loss" not in history[-1]:
            return False
        return len(found) > epochs or (patience is not None and len(found) - 1 - _best(found) >= patience)

    (_, best), history = iterate(
        advance,
        (state, _copy(params(state))),
        done=done,
        checkpoints=checkpoints,
        checkpoint_seconds=checkpoint_seconds,
        known={**(known or {}), "seed": seed, "batch_size": batch_size, "size": size},
        callback=lambda entry: on_epoch(_epochs([entry])[0]) if on_epoch and "dev_loss" in entry else None,
    )
    found = _epochs(history)
    return TrainingResult(best, _best(found), found)


def _epochs(history: History) -> list[dict[str, float]]:
    """The entries of whole epochs."""
    names = ("epoch", "dev_loss", "train_loss", "seconds", "cpu_seconds")
    return [{name: e[name] for name in names if name in e} for e in history if "dev_loss" in e]


def _best(epochs: list[dict[str, float]]) -> int:
    """The first epoch with the lowest dev loss."""
    return int(np.argmin([entry["dev_loss"] for entry in epochs]))


def _finite(losses: list[jax.Array], epoch: int, first: int) -> list[float]:
    values = [float(loss) for loss in losses]
    for n, value in enumerate(values, first):
        if not np.isfinite(value):
            raise FloatingPointError(f"loss {value} at epoch {epoch}, step {n}: lower the learning rate")
    return values


def _dev_loss(evaluate: Callable[[Any], float], params: Any, epoch: int) -> float:
    loss = float(evaluate(params))
    if not np.isfinite(loss):
        remedy = "lower the learning rate" if epoch else "start from other parameters"
        raise FloatingPointError(f"dev loss {loss} after epoch {epoch}: {remedy}")
    return loss


def _copy(tree: Any) -> Any:
    """A copy on the host, safe from donation."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


def sampler(name: str, labels: Integer[np.ndarray, " M"]) -> Order:
    """The sampler called `name`: `(seed, epoch) -> M example indices`.

    round-robin: every example once per epoch; uniform: M draws with replacement, which miss about 1/e of the examples;
    balanced: equally many per class of `labels`. Source: Radhakrishnan 2024, Sec. 3.
    """
    if not len(labels):
        raise ValueError("no examples to draw batches from: give at least one")
    orders: dict[str, Order] = {
        "round-robin": functools.partial(epoch_order, size=len(labels)),
        "uniform": lambda seed, epoch: _random(seed, epoch).integers(len(labels), size=len(labels)),
        "balanced": functools.partial(balanced_order, labels=labels),
    }
    return look_up("sampler", orders, name)


def balanced_order(seed: int, epoch: int, labels: Integer[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    """Equally many draws of every class, and within it of examples.

    Examples of rare classes are repeated within an epoch; only some of the frequent ones are drawn.
    """
    rng = _random(seed, epoch)
    classes = rng.permutation(np.unique(labels))
    drawn = []
    for c, part in zip(classes, np.array_split(labels, len(classes)), strict=True):
        members, n = np.flatnonzero(labels == c), len(part)
        rounds = [rng.permutation(members) for _ in range(-(-n // len(members)))]  # without replacement within a round
        drawn.append(np.concatenate([members[:0], *rounds])[:n])
    return rng.permutation(np.concatenate(drawn))


def shorter_epochs(order: Order, size: int, most: int) -> Order:
    """Epochs of `most` of `size` examples: parts of each order."""
    if not 1 <= most <= size:
        raise ValueError(f"epochs of {most} examples, of {size}: use 1 .. {size}")
    parts = size // most

    def part(seed: int, epoch: int) -> Int[np.ndarray, " most"]:
        whole, n = divmod(epoch - 1, parts)
        return order(seed, whole + 1)[n * most : (n + 1) * most]

    return part


def _random(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, epoch]))

"""One training loop for every model trained by gradients.

A step is a pure, compiled function `(state, batch) -> (state, loss)` that donates its state. The order of the data depends on
(seed, epoch) alone (by default a permutation), so a run that stops anywhere continues from its last checkpoint with exactly the
batches of an uninterrupted run, and ends with the same result bit for bit.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jexplicit.runs.checkpoints import load_latest, save_latest

_steps_between_checks = 16  # of the losses, which waits for the device


class TrainingResult(NamedTuple):
    """The result of `train`.

    params: of the epoch with the lowest dev loss; the initial parameters count as epoch 0.
    best_epoch: that epoch.
    history: one dictionary per epoch, from epoch 0: `epoch`, `dev_loss`, and from epoch 1 `train_loss` (mean over the epoch's
        own batches, nats per position) and `seconds` since the start.
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
    """The order in which an epoch visits its `size` examples: a permutation that depends on (seed, epoch) alone.

    Example:
        >>> sorted(epoch_order(0, 1, 5).tolist()), (epoch_order(0, 1, 5) == epoch_order(0, 1, 5)).all().item()
        ([0, 1, 2, 3, 4], True)
    """
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
    on_epoch: Callable[[Mapping[str, float]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingResult:
    """Train by mini-batches, and keep the parameters of the best epoch.

    Args:
        state: pytree of arrays: parameters, optimiser state, and whatever else a step needs. It is donated.
        step: compiled `(state, batch) -> (state, loss)`, with the loss summed over the batch, in nats.
        batch: the batch of given example indices; the last batch of an epoch may be smaller.
        evaluate: dev loss of parameters, nats per position.
        params: extracts the parameters from a state.
        size: number of training examples.
        batch_size: examples per step.
        epochs: maximum number of passes over the data.
        seed: of the order of the data.
        order: `(seed, epoch) -> size example indices`, pure (jexplicit.nn.samplers); default: every example once.
        patience: stop after this many epochs without a lower dev loss; default: never.
        checkpoints: folder for checkpoints; if it holds one, training continues from it.
        checkpoint_seconds: minimum time between checkpoints.
        on_epoch: called with each new entry of the history.
        progress: called with (examples done, total examples).

    Raises:
        FloatingPointError: a loss is not finite; names epoch and step.
        ValueError: a batch size or number of epochs below 1, an order of the wrong length, or a checkpoint of another model.
    """
    if batch_size < 1 or epochs < 1 or size < 1:
        raise ValueError(f"batch size {batch_size}, epochs {epochs}, {size} examples: all must be at least 1")
    steps = -(-size // batch_size)
    best = _copy(params(state))
    epoch, first, losses, best_epoch, before, history = 1, 0, [], 0, 0.0, []
    if checkpoints is not None and (found := load_latest(checkpoints, _with_position((state, best), b""))):
        state, best = found["tree"][0], _copy(found["tree"][1])
        epoch, first, losses, best_epoch, before, history = json.loads(found["position"].tobytes())

    def seconds() -> float:
        return before + time.perf_counter() - start

    def end_epoch(epoch: int) -> None:
        nonlocal best, best_epoch
        dev_loss = _dev_loss(evaluate, params(state), epoch)
        if history and dev_loss < min(entry["dev_loss"] for entry in history):
            best, best_epoch = _copy(params(state)), epoch
        more = {"train_loss": sum(losses) / size, "seconds": seconds()} if epoch else {}
        history.append({"epoch": epoch, "dev_loss": dev_loss, **more})
        if on_epoch:
            on_epoch(history[-1])

    def finished() -> bool:
        return epoch > epochs or (patience is not None and history[-1]["epoch"] - best_epoch >= patience)

    def save(step: int, *, due: bool = False) -> None:
        nonlocal saved
        if checkpoints is not None and (due or time.perf_counter() - saved > checkpoint_seconds):
            position = json.dumps([epoch, step, losses, best_epoch, seconds(), history]).encode()
            save_latest(checkpoints, (epoch - 1) * steps + step, _with_position((state, best), position))
            saved = time.perf_counter()

    if not history:
        end_epoch(0)
    start = saved = time.perf_counter()
    while not finished():
        examples = epoch_order(seed, epoch, size) if order is None else order(seed, epoch)
        if len(examples) != size:
            raise ValueError(f"an order of {len(examples)} examples in epoch {epoch}, of {size}: return {size} indices")
        unchecked: list[jax.Array] = []
        for n in range(first, steps):
            state, loss = step(state, batch(examples[n * batch_size : (n + 1) * batch_size]))
            unchecked.append(loss)
            if len(unchecked) == _steps_between_checks or n == steps - 1:
                losses += _finite(unchecked, epoch, n + 1 - len(unchecked))
                unchecked = []
                if progress:
                    progress((epoch - 1) * size + min((n + 1) * batch_size, size), epochs * size)
                if n < steps - 1:
                    save(n + 1)
        end_epoch(epoch)
        epoch, first, losses = epoch + 1, 0, []
        save(0, due=finished())
    return TrainingResult(best, best_epoch, history)


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


def _with_position(tree: Any, position: bytes) -> dict[str, Any]:
    return {"tree": tree, "position": np.frombuffer(position, np.uint8)}

"""One training loop for every model that is trained by gradients.

A step is a pure function `(state, batch) -> (state, loss)`; its state is donated, so it must be compiled. The order of the
data is drawn from (seed, epoch) alone, by default as a permutation, so a run that stops anywhere continues from its last
checkpoint with the very batches that an uninterrupted run would have seen: the results are the same bit for bit.
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


class Trained(NamedTuple):
    """The outcome of `train`.

    params: of the epoch with the lowest dev loss; the starting point counts as epoch 0.
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
        """Seconds of training, evaluation included."""
        return self.history[-1].get("seconds", 0.0)


class _Position(NamedTuple):
    """Where a run stands: the next step, and all that the end of the run depends on."""

    epoch: int
    step: int
    losses: list[float]  # of the steps of this epoch
    best_epoch: int
    seconds: float
    history: list[dict[str, float]]


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
) -> Trained:
    """Train by mini-batches, and keep the parameters of the best epoch.

    Args:
        state: pytree of arrays: parameters, optimiser state, and whatever else a step needs. It is donated.
        step: compiled `(state, batch) -> (state, loss)` with the loss summed over the batch, in nats.
        batch: the batch of some example indices; the last batch of an epoch may be smaller.
        evaluate: dev loss of parameters, in nats per position.
        params: the parameters within a state.
        size: number of training examples.
        batch_size: examples per step.
        epochs: passes over the data, at most.
        seed: of the order of the data.
        order: `(seed, epoch) -> size example indices`, pure (jexplicit.nn.samplers); default, every example once.
        patience: stop after so many epochs without a lower dev loss; default, never.
        checkpoints: folder for checkpoints; where it holds one, training continues from it.
        checkpoint_seconds: time between two checkpoints.
        on_epoch: called with each new entry of the history.
        progress: called with (examples done, examples in all).

    Raises:
        FloatingPointError: a loss that is not finite, with the epoch and step.
        ValueError: a batch size or number of epochs below 1, an order of another length, or a checkpoint of another model.
    """
    if batch_size < 1 or epochs < 1 or size < 1:
        raise ValueError(f"batch size {batch_size}, epochs {epochs}, {size} examples: all must be at least 1")
    steps = -(-size // batch_size)
    best = _copy(params(state))
    position = _Position(1, 0, [], 0, 0.0, [])
    if checkpoints is not None and (found := load_latest(checkpoints, _with_position((state, best), b""))):
        (state, best), position = found["tree"], _Position(*json.loads(found["position"].tobytes()))
        best = _copy(best)
    if not position.history:
        position.history.append({"epoch": 0, "dev_loss": _dev_loss(evaluate, params(state), 0)})
        _report(on_epoch, position.history[-1])

    epoch, first, losses, best_epoch, before, history = position
    start = saved = time.perf_counter()
    while epoch <= epochs and not _out_of_patience(history, best_epoch, patience):
        drawn = epoch_order(seed, epoch, size) if order is None else order(seed, epoch)
        if len(drawn) != size:
            raise ValueError(f"an order of {len(drawn)} examples in epoch {epoch}, of {size}: draw as many as there are")
        waiting: list[jax.Array] = []
        for n in range(first, steps):
            state, loss = step(state, batch(drawn[n * batch_size : (n + 1) * batch_size]))
            waiting.append(loss)
            if len(waiting) == _steps_between_checks or n == steps - 1:
                losses += _finite(waiting, epoch, n + 1 - len(waiting))
                waiting = []
                if progress:
                    progress((epoch - 1) * size + min((n + 1) * batch_size, size), epochs * size)
                if checkpoints is not None and time.perf_counter() - saved > checkpoint_seconds and n < steps - 1:
                    now = _Position(epoch, n + 1, losses, best_epoch, before + time.perf_counter() - start, history)
                    _save(checkpoints, (epoch - 1) * steps + n + 1, state, best, now)
                    saved = time.perf_counter()
        dev_loss = _dev_loss(evaluate, params(state), epoch)
        if dev_loss < min(entry["dev_loss"] for entry in history):
            best, best_epoch = _copy(params(state)), epoch
        seconds = before + time.perf_counter() - start
        history.append({"epoch": epoch, "dev_loss": dev_loss, "train_loss": sum(losses) / size, "seconds": seconds})
        _report(on_epoch, history[-1])
        epoch, first, losses = epoch + 1, 0, []
        last = epoch > epochs or _out_of_patience(history, best_epoch, patience)
        if checkpoints is not None and (last or time.perf_counter() - saved > checkpoint_seconds):
            _save(checkpoints, (epoch - 1) * steps, state, best, _Position(epoch, 0, [], best_epoch, seconds, history))
            saved = time.perf_counter()
    return Trained(best, best_epoch, history)


def _out_of_patience(history: list[dict[str, float]], best_epoch: int, patience: int | None) -> bool:
    return patience is not None and history[-1]["epoch"] - best_epoch >= patience


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
    """On the host, and safe from donation."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


def _report(on_epoch: Callable[[Mapping[str, float]], None] | None, entry: Mapping[str, float]) -> None:
    if on_epoch:
        on_epoch(entry)


def _with_position(tree: Any, position: bytes) -> dict[str, Any]:
    return {"tree": tree, "position": np.frombuffer(position, np.uint8)}


def _save(folder: Path, number: int, state: Any, best: Any, position: _Position) -> None:
    save_latest(folder, number, _with_position((state, best), json.dumps(position).encode()))

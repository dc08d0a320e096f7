"""The loop of all iterations: training, sweeps, searches. Resumable, bit for bit."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jexplicit.runs.checkpoints import as_json, load_latest, save_latest
from jexplicit.runs.devices import check_threads

Entry = dict[str, Any]
History = Sequence[Mapping[str, Any]]
_clocks = {"seconds": time.perf_counter, "cpu_seconds": time.process_time}


def iterate(
    step: Callable[[Any, History], tuple[Any, Mapping[str, Any]]],
    state: Any,
    *,
    done: Callable[[History], bool],
    checkpoints: str | os.PathLike | None = None,
    checkpoint_seconds: float = 60.0,
    known: Mapping[str, Any] | None = None,
    callback: Callable[[Entry], Any] | None = None,
) -> tuple[Any, list[Entry]]:
    """Repeat `state, entry = step(state, history)` until the history is complete.

    A step depends on its state and on the history only, so an interrupted run resumes from its last checkpoint with exactly the
    steps of an uninterrupted run.

    Args:
        step: `(state, history) -> (state, entry)`; the entry is a JSON object, to which `seconds` and `cpu_seconds` (of all
            cores) since the start are added. A step that donates its state must return one of the same shapes.
        state: pytree of arrays; an empty vector in it may grow.
        done: whether a history is complete.
        checkpoints: folder for checkpoints, from which the iteration resumes. The last one has the final state.
        known: what the steps depend on besides the state, by name: numbers, strings and arrays, such as a seed and the text.

    Returns:
        The last state, and the history.

    Raises:
        ValueError: a checkpoint of other shapes or types, or written for something else than `known`.

    Example:
        >>> step = lambda x, history: (x / 2, {"x": float(x)})
        >>> state, history = iterate(step, np.array(8.0), done=lambda history: len(history) == 3)
        >>> float(state), [entry["x"] for entry in history]
        (1.0, [8.0, 4.0, 2.0])
    """
    check_threads()
    history: list[Entry] = []
    types = {str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in jax.tree.leaves(state)}
    own = {**(known or {}), "dtype": sorted(types)} if checkpoints is not None else {}
    of = {name: as_json(value) for name, value in own.items()}
    if checkpoints is not None and (found := load_latest(checkpoints, _tree(state, history), of)):
        state, history = found["state"], json.loads(found["history"].tobytes())
    before = {name: history[-1].get(name, 0.0) if history else 0.0 for name in _clocks}
    started, saved = {name: clock() for name, clock in _clocks.items()}, time.perf_counter()
    while not done(history):
        state, entry = step(state, history)
        history.append({**entry, **{name: before[name] + clock() - started[name] for name, clock in _clocks.items()}})
        if callback:
            callback(history[-1])
        due = time.perf_counter() - saved > checkpoint_seconds
        if checkpoints is not None and (due or done(history)):
            save_latest(checkpoints, len(history), _tree(state, history), of)
            saved = time.perf_counter()
    return state, history


def _tree(state: Any, history: list[Entry]) -> dict[str, Any]:
    return {"state": state, "history": np.frombuffer(json.dumps(history).encode() if history else b"", np.uint8)}

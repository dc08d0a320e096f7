"""The loop of all iterations, and its checkpoints: resumable, bit for bit.

Orbax writes pytrees of arrays atomically. Of several processes all call these functions, and the first one writes.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jexplicit.runs.devices import check_threads
from jexplicit.runs.files import plain, refuse_errors

_empty = (1,) * 7  # represents an empty vector, which orbax does not save
_series_name = re.compile(r"\d+(\.orbax-checkpoint-tmp.*)?")  # checkpoints, finished or interrupted


@functools.cache
def orbax() -> Any:
    """Orbax, imported when it is first needed: it takes a third of a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports its own deprecated names
        from orbax.checkpoint import v1
    return v1


def save_checkpoint(path: str | os.PathLike, tree: Any) -> None:
    """Write a pytree of arrays, whole or not at all, over an earlier one."""
    with refuse_errors(f"checkpoint {path} cannot be written", "choose another --out", OSError):
        orbax().save(os.path.abspath(path), tree, overwrite=True)


def load_checkpoint(path: str | os.PathLike) -> Any:
    """Read a pytree of arrays; dictionaries and lists keep their type, tuples become lists."""
    path = os.path.abspath(path)
    if not is_checkpoint(path):
        raise ValueError(f"no checkpoint at {path}: finish the run first (--resume continues an interrupted one)")
    with refuse_errors(f"checkpoint {path} cannot be read", "delete it and run again"):
        return orbax().load(path)


def is_checkpoint(path: str | os.PathLike) -> bool:
    """Whether there is a finished checkpoint at a path."""
    path = os.path.abspath(path)
    return os.path.isdir(path) and orbax().is_orbax_checkpoint(path)


def as_json(value: Any) -> Any:
    """A value as JSON; a tree with arrays as a hash."""
    if not any(map(np.ndim, leaves := jax.tree.leaves(value))):
        return json.loads(json.dumps(value, default=plain))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()[:12]


def save_latest(folder: str | os.PathLike, number: int, tree: Any, known: Mapping[str, Any] | None = None) -> None:
    """Write checkpoint `number` of a series, then remove the others."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [leaf if leaf.size else np.zeros(_empty, leaf.dtype) for leaf in leaves]
    about = np.frombuffer(json.dumps(known or {}).encode(), np.uint8)
    save_checkpoint(os.path.join(folder, str(number)), {"leaves": leaves, "written_for": about})
    for entry in list(os.scandir(folder)):
        if entry.is_dir() and _series_name.fullmatch(entry.name) and entry.name != str(number):
            shutil.rmtree(entry.path)


def load_latest(folder: str | os.PathLike, like: Any, known: Mapping[str, Any] | None = None) -> Any | None:
    """The last checkpoint of a series, or None.

    An empty vector in `like` matches any length. ValueError: a checkpoint that is damaged, of other shapes, or written for
    something else than `known` says.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = [int(name) for name in names if name.isdigit() and is_checkpoint(os.path.join(folder, name))]
    if not numbers:
        return None
    path, remedy = os.path.join(folder, str(max(numbers))), "choose another folder for checkpoints, or delete this one"
    stored, (wanted, structure) = load_checkpoint(path), jax.tree.flatten(like)
    about = json.loads(stored["written_for"].tobytes()) if "written_for" in stored else {}
    for name, value in (known or {}).items():
        if about.get(name) != value:
            raise ValueError(f"checkpoint {path} was written for {name} {about.get(name)!r}, not {value!r}: {remedy}")
    leaves = [np.zeros(0, leaf.dtype) if np.shape(leaf) == _empty else leaf for leaf in stored["leaves"]]
    shapes, wanted_shapes = [np.shape(leaf) for leaf in leaves], [np.shape(leaf) for leaf in wanted]
    fits = (a == b or (b == (0,) and len(a) == 1) for a, b in zip(shapes, wanted_shapes, strict=False))
    if len(leaves) != len(wanted) or not all(fits):
        raise ValueError(f"checkpoint {path} holds arrays {shapes}, wanted {wanted_shapes}: it is another model's; delete it")
    pairs = zip(leaves, wanted, strict=True)
    placed = [jax.device_put(leaf, w.sharding) if isinstance(w, jax.Array) else np.asarray(leaf) for leaf, w in pairs]
    return jax.tree.unflatten(structure, placed)


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

    step: `(state, history) -> (state, entry)`; the entry is a JSON object, to which `seconds` and `cpu_seconds` (of all cores)
        since the start are added. A step that donates its state must return one of the same shapes.
    state: pytree of arrays; an empty vector in it may grow.
    done: whether a history is complete.
    checkpoints: folder for checkpoints, from which the iteration resumes. The last one has the final state.
    known: what the steps depend on besides the state, by name: numbers, strings and arrays, such as a seed and the text.

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

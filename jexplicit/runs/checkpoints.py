"""Pytrees of arrays on disk, by orbax: a checkpoint is written atomically.

With several processes all of them call these functions, which orbax synchronises; the first one writes.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jexplicit.runs.files import plain

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
    """Write a pytree of arrays; an interrupted write keeps the previous checkpoint."""
    try:
        orbax().save(os.path.abspath(path), tree, overwrite=True)
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be written ({error}): choose another --out") from error


def load_checkpoint(path: str | os.PathLike) -> Any:
    """Read a pytree of arrays; dictionaries and lists keep their type, tuples become lists."""
    path = os.path.abspath(path)
    if not is_checkpoint(path):
        raise ValueError(f"no checkpoint at {path}: finish the run first (--resume continues an interrupted one)")
    try:
        return orbax().load(path)
    except Exception as error:  # orbax and tensorstore raise many types for damaged files
        raise ValueError(f"checkpoint {path} cannot be read ({error}): delete it and run again") from error


def is_checkpoint(path: str | os.PathLike) -> bool:
    """Whether there is a finished checkpoint at a path."""
    path = os.path.abspath(path)
    return os.path.isdir(path) and orbax().is_orbax_checkpoint(path)


def as_json(value: Any) -> Any:
    """A value as JSON; a tree with arrays as a hash.

    Example:
        >>> as_json(np.int64(3)), as_json(np.array([0, 1], np.uint8))
        (3, 'b413f47d13ee')
    """
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

    Shapes must match, except that an empty vector in `like` matches a vector of any length, such as text.

    Raises:
        ValueError: a checkpoint that is damaged, or of something else than `known` says.
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

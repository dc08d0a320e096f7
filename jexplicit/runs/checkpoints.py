"""Pytrees of arrays on disk, by orbax: a checkpoint is written atomically.

With several processes all of them call these functions, which orbax synchronises; the first one writes.
"""

import functools
import os
import re
import shutil
import warnings
from typing import Any

import jax
import numpy as np

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


def save_latest(folder: str | os.PathLike, number: int, tree: Any) -> None:
    """Write checkpoint `number` of a series from host copies, then remove the others, so that one is always complete."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [leaf if leaf.size else np.zeros(_empty, leaf.dtype) for leaf in leaves]
    save_checkpoint(os.path.join(folder, str(number)), {"leaves": leaves})
    for entry in list(os.scandir(folder)):
        if entry.is_dir() and _series_name.fullmatch(entry.name) and entry.name != str(number):
            shutil.rmtree(entry.path)


def load_latest(folder: str | os.PathLike, like: Any) -> Any | None:
    """The last checkpoint of a series, with the structure and sharding of `like`; None if the series is empty.

    Shapes must match, except that an empty vector in `like` matches a vector of any length, such as text.
    """
    numbers = _numbers(folder)
    if not numbers:
        return None
    path = os.path.join(folder, str(max(numbers)))
    leaves, (wanted, structure) = load_checkpoint(path)["leaves"], jax.tree.flatten(like)
    leaves = [np.zeros(0, leaf.dtype) if np.shape(leaf) == _empty else leaf for leaf in leaves]
    shapes, wanted_shapes = [np.shape(leaf) for leaf in leaves], [np.shape(leaf) for leaf in wanted]
    if len(leaves) != len(wanted) or not all(map(_fits, shapes, wanted_shapes)):
        raise ValueError(f"checkpoint {path} holds arrays {shapes}, wanted {wanted_shapes}: it is another model's; delete it")
    return jax.tree.unflatten(structure, [_place(leaf, w) for leaf, w in zip(leaves, wanted, strict=True)])


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return shape == wanted or (wanted == (0,) and len(shape) == 1)


def _place(leaf: Any, like: Any) -> Any:
    return jax.device_put(leaf, like.sharding) if isinstance(like, jax.Array) else np.asarray(leaf)


def _numbers(folder: str | os.PathLike) -> list[int]:
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [int(name) for name in names if name.isdigit() and is_checkpoint(os.path.join(folder, name))]

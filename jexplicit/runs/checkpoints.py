"""Pytrees of arrays on disk, through orbax: written whole or not at all."""

import os
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # orbax's own imports warn of their own deprecations
    from orbax.checkpoint import v1 as ocp


def save_checkpoint(path: str | os.PathLike, tree: Any) -> None:
    """Write a pytree of arrays; an interrupted write leaves what was there before.

    Raises:
        ValueError: the folder cannot be written.
    """
    try:
        ocp.save(os.path.abspath(path), tree, overwrite=True)
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be written ({error}): choose another --out") from error


def load_checkpoint(path: str | os.PathLike) -> Any:
    """Read a pytree of arrays; dictionaries and lists come back as they were, tuples as lists.

    Raises:
        ValueError: no checkpoint there, or one that cannot be read.
    """
    path = os.path.abspath(path)
    if not is_checkpoint(path):
        raise ValueError(f"no checkpoint at {path}: finish the run first (--resume continues an interrupted one)")
    try:
        return ocp.load(path)
    except Exception as error:  # orbax and tensorstore raise many kinds; all mean that the files are damaged
        raise ValueError(f"checkpoint {path} cannot be read ({error}): delete it and run again") from error


def is_checkpoint(path: str | os.PathLike) -> bool:
    """Whether a finished checkpoint lies there."""
    path = os.path.abspath(path)
    return os.path.isdir(path) and ocp.is_orbax_checkpoint(path)

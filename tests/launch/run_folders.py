"""Runs that several files of tests read, each made once in a process; what tests read of them; and their interruption."""

import atexit
import functools
import importlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch import cli


@functools.cache
def folder() -> Path:
    """A folder for the runs of this process."""
    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def main(line: str, out: Path, *more: str) -> int:
    """The exit status of a command, such as "icl one-step", run in this process."""
    command, *flags = line.split()
    return importlib.import_module(cli.COMMANDS[command].module).main([*flags, "--out", str(out), *more])


@functools.cache
def made(line: str) -> Path:
    """The folder of a finished run of a command."""
    out = folder() / f"run_{made.cache_info().misses}"
    assert main(line, out) == 0
    return out


def rows(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "results.json").read_text())["rows"]


def without_costs(out: Path) -> list[dict[str, Any]]:
    costs = ("seconds", "peak_bytes", "per_second")
    return [{name: value for name, value in row.items() if not name.endswith(costs)} for row in rows(out)]


def interrupted(function: Callable, call: int) -> Callable:
    """The same function, interrupted at a call of this number."""
    calls = 0

    def counted(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return counted


def interrupt_training(patch: pytest.MonkeyPatch, step: int) -> None:
    """Training of networks ends at a step of this number, with checkpoints after every step or two."""
    from jexplicit.nn import networks, training

    make_step = networks.training_step
    patch.setattr(training, "_steps_between_checks", 1)
    patch.setattr(networks, "train", functools.partial(training.train, checkpoint_seconds=0.0))
    patch.setattr(networks, "training_step", lambda *args, **options: interrupted(make_step(*args, **options), step))

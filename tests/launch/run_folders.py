"""Runs that several files of tests read, each made once in a process; what tests read of them; and their interruption."""

import atexit
import functools
import gzip
import importlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jexplicit.data import encode_documents
from launch import cli


@functools.cache
def folder() -> Path:
    """A folder for the runs of this process."""
    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def main(line: str, out: Path, *more: str) -> int:
    """The exit status of a command, such as "icl one-step", run in this process with a cache of its own."""
    command, *flags = line.split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JEXPLICIT_CACHE_DIR", str(folder() / "cache"))
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


# launch.lm on a small text

WORDS = "the cat sat on a mat while some dogs ran over one hill and two birds flew past".split()
METHODS = "explicit cold warm optimum log-linear iterative-scaling ngram context-mixing".split()
SMALL = "--tokenizer word --radius 1 2 --samples 1 --scaling-sample 200 --train-sample 1000".split()
OPTIONS = "--calibration-positions 300 --sweeps 2 --epochs 3 --batch-size 700 --history none all".split()


def small_text(lines: int, seed: int) -> list[str]:
    """Lines of a chain whose next step depends on the last two words, so that contexts of several tokens help."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(lines):
        words = [int(rng.integers(len(WORDS))), int(rng.integers(len(WORDS)))]
        for _ in range(10):
            words.append((words[-1] + words[-2] * (rng.random() < 0.7) + int(rng.integers(1, 3))) % len(WORDS))
        out.append(" ".join(WORDS[w] for w in words))
    return out


TRAIN = small_text(300, seed=0)
DEV = [*small_text(58, seed=1), TRAIN[0], "ünseen wörds"]  # a copy of train, and words that it does not have


@functools.cache
def text_flags() -> list[str]:
    (folder() / "train.txt").write_text("\n".join(TRAIN) + "\n")
    with gzip.open(folder() / "dev.txt.gz", "wt") as file:
        file.write("\n".join(DEV) + "\n")
    return ["--train", f"{folder()}/train.txt", "--dev", f"{folder()}/*.gz"]


def run(out: Path, *flags: str) -> int:
    """launch.lm on little text that is read position by position."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("launch.lm.run._positions_one_by_one", 500)
        return main("lm", out, *flags)


@functools.cache
def finished() -> Path:
    """A run of most methods."""
    out = folder() / "run"
    assert run(out, *text_flags(), *SMALL, *OPTIONS, "--methods", *METHODS) == 0
    return out


def dev_stream(tokenizer) -> np.ndarray:
    return encode_documents(tokenizer, DEV)

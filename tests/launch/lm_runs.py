"""Small runs of launch.lm that several files of tests read; each is made once in a process."""

import functools
import gzip
from pathlib import Path

import numpy as np
import pytest
from run_folders import folder, main

from jexplicit.data import encode_documents

WORDS = "the cat sat on a mat while some dogs ran over one hill and two birds flew past".split()
METHODS = "explicit cold warm optimum log-linear iterative-scaling ngram context-mixing".split()
SMALL = "--tokenizer word --context 1 2 --samples 1 --train-sample 1000".split()
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

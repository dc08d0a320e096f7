"""launch.lm as two processes of this machine, beside one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jexplicit.lm.checkpoints import FROM_COUNTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WORDS = "the cat sat on a mat and the dog ran far from home".split()
COUNTED = ("method", "features", "radius", "train_positions", "dev_positions", "train_tokens")


def rows(out: Path, command: list[str], flags: list[str]) -> list[dict]:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run([*command, *flags, "--out", str(out)], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "results.json").read_text())["rows"]


@pytest.mark.parametrize("tables", ["sparse", "dense"])
def test_two_processes_serve_every_method_of_counts_as_one_does(tables, tmp_path):
    lines, rng = tmp_path / "text.txt", np.random.default_rng(0)
    lines.write_text("\n".join(" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(600)))
    flags = (
        f"--train {lines} --tokenizer word --radius 1 2 --tables {tables} --train-sample 500 --samples 0 --devices 2".split()
    )
    flags += ["--methods", *FROM_COUNTS, *(["ngram"] if tables == "sparse" else [])]
    one = rows(tmp_path / "one", [sys.executable, "-m", "launch.lm"], flags)
    two = rows(tmp_path / "two", ["launch/local.sh", "2"], flags)
    assert {row["method"] for row in two} == {*FROM_COUNTS, *(["ngram"] if tables == "sparse" else [])}
    for ours, theirs in zip(two, one, strict=True):
        assert [ours[name] for name in COUNTED] == [theirs[name] for name in COUNTED]
        for name in ("train_perplexity", "dev_perplexity"):  # float32 sums of blocks that begin at other contexts
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6)

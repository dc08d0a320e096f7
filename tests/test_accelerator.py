"""Checks that also run on accelerators (`make gpu`), here on a CPU, and the script that runs and times them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from unittest.mock import Mock

import pytest

from launch import accelerator as gpu
from launch import cli
from launch.accelerator import CHECKS, PARTS

BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in "jaxtyping sentencepiece safetensors optax flax tyro rich PIL matplotlib".split():
            raise ModuleNotFoundError(f"No module named {name!r}")
"""


@pytest.mark.accelerator
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_results_are_those_of_numpy(check):
    difference, tolerance = check()
    assert difference <= tolerance


def test_the_script_continues_past_what_fails(tmp_path, monkeypatch):
    *parts, _ = PARTS
    failing = Mock(__name__="failing", side_effect=MemoryError("no room"))
    wrong = Mock(__name__="wrong", return_value=(float("nan"), 1e-5))
    monkeypatch.setattr(gpu, "CHECKS", (CHECKS[0], wrong))
    monkeypatch.setattr(gpu, "PARTS", (parts[0], failing, *parts[1:]))
    assert gpu.main(["--tiny", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    right, not_right, first, failed, *others = found["rows"]
    assert [(test["name"], test["passed"]) for test in (right, not_right)] == [("pairs_by_scatter", True), ("wrong", False)]
    assert failed == {"name": "failing", "error": "MemoryError: no room"}
    for row, part in zip([first, *others], parts, strict=True):
        assert row["name"] == part.__name__ and row["device_seconds"] > 0 < row["device_bytes_per_second"], row
    assert found["platform"] == "cpu"  # which is not measured twice
    assert gpu.main(["--tiny", "--minutes", "-1", "--out", str(tmp_path)]) == 1  # nothing starts once the time is over
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert len(rows) == 2 + len(PARTS) and all(row["error"].startswith("not started") for row in rows)


def test_a_python_with_jax_alone_counts_and_a_part_names_what_it_misses():
    script = BLOCK + (
        "sys.meta_path.insert(0, Missing())\n"
        "from launch import accelerator as gpu\n"
        "gpu.name_missing_types()\n"
        "from jexplicit.lm import layers\n"
        "from icl import attention\n"
        "print(gpu.attempt(lambda: gpu.transformer_step(True, None), float('inf')))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert answer.returncode == 0 and "ModuleNotFoundError: No module named 'optax'" in answer.stdout, answer.stderr


@pytest.mark.slow
def test_the_script_of_networks_makes_models_that_combine_with_counts(tmp_path):
    data, documents = tmp_path / "data", sorted(topics.values(), key=len)
    names = ["tinyshakespeare/input.txt", *(f"babylm_like/train/{name}.train" for name in "ab")]
    names += [f"babylm_like/dev/{name}.dev" for name in "mixed_2024 aochildes cbt children_stories switchboard".split()]
    for name, text in zip(names, documents[40:], strict=False):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)
    env = os.environ | {"TINY": "1", "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    script = ["bash", Path(__file__).parents[1] / "launch" / "card.sh", data, tmp_path]
    subprocess.run(script, env=env, check=True, capture_output=True)
    assert {path.parent.name for path in tmp_path.glob("*/results.json")} == {
        *("shakespeare", "shakespeare-gpu", "babylm", "babylm-gpu", "table1-1-0")
    }
    text = {f"--{part}": str(tmp_path / "texts" / f"{part}.txt") for part in ("train", "dev", "test")}
    same = ["--documents", "file", "--out"]
    counts, other = str(tmp_path / "counts"), str(tmp_path / "shakespeare")
    flags = ["--train", text["--train"], "--dev", text["--dev"], "--tokenizer", f"{other}/tokenizer.model"]
    assert cli.main(["lm", *flags, "--methods", "context-mixing", "--history", "window:256", *same, counts]) == 0
    flags = ["--run", counts, "--other", other, "--dev", text["--dev"], "--test", text["--test"]]
    assert cli.main(["combine", *flags, *same, str(tmp_path / "combined")]) == 0
    found = {row["model"]: row["loss"] for row in json.loads((tmp_path / "combined" / "results.json").read_text())["rows"]}
    assert found["both"] < found["other"] and 0.9 * found["counts, refitted"] < found["both"] < 1.1 * found["counts, refitted"]

"""Checks that also run on accelerators (`make gpu`), here on a CPU, and the script that runs and times them."""

import json
import subprocess
import sys
from unittest.mock import Mock

import pytest

from launch import accelerator as gpu
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

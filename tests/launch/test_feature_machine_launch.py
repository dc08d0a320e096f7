"""launch.feature_machine: rows of every solve, the figures, resumption, and what it measures."""

import numpy as np
import pytest
from run_folders import rows

from launch.feature_machine import __main__ as command

FLAGS = ["--modulus", "7", "--train-share", "0.8", "--solves", "6", "--seeds", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("machine") / "run"
    assert command.main([*FLAGS, "--out", str(out)]) == 0
    return out


def test_every_solve_of_every_seed_has_a_row(run):
    found = rows(run)
    assert [(row["seed"], row["solve"]) for row in found] == [(seed, solve) for seed in (0, 1) for solve in range(1, 7)]
    assert all(row["train_accuracy"] == 1 and 0 <= row["test_accuracy"] <= 1 and row["seconds"] > 0 for row in found)
    assert {row["method"] for row in found} == {"feature-machine"} and found[0]["train_examples"] == 39
    report = (run / "report.md").read_text()
    assert "figures/grokking.png" in report and "figures/metrics.png" in report and "| 0 | 6 |" in report


def test_a_run_is_resumed_with_more_seeds_by_none_of_those_it_has(run, capsys):
    before = rows(run)
    assert command.main(["--out", str(run), "--resume"]) == 0
    assert rows(run) == before


def test_the_table_is_that_of_the_operation():
    for name, f in (("add", lambda a, b: a + b), ("subtract", lambda a, b: a - b), ("multiply", lambda a, b: a * b)):
        X, y = command.modular_table(5, name)
        for x, result in zip(X, y, strict=True):
            a, b = x[:5].argmax(), x[5:].argmax()
            assert x.sum() == 2 and result == f(int(a), int(b)) % 5


def test_a_circulant_matrix_has_share_1_and_noise_has_little():
    row = np.random.default_rng(0).normal(size=9)
    circulant = np.stack([np.roll(row, n) for n in range(9)])
    assert command.circulant_share(circulant) == pytest.approx(1)
    assert command.circulant_share(np.random.default_rng(1).normal(size=(9, 9))) < 0.4  # 8 of 80 degrees of freedom
    assert command.circulant_share(np.zeros((9, 9))) == 0


@pytest.mark.slow
def test_the_other_half_of_modular_addition_is_found(tmp_path):
    assert command.main(["--seeds", "1", "--solves", "24", "--out", str(tmp_path / "run")]) == 0
    found = [row["test_accuracy"] for row in rows(tmp_path / "run")]
    assert max(found[:8]) < 0.05 and found[-1] > 0.99

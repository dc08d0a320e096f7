"""launch.feature_machine: rows of every solve, the figures, resumption, and tables."""

from typing import get_args

import numpy as np
import pytest
from run_folders import made, rows
from sklearn.datasets import load_wine

from jexplicit.solvers.feature_machine import KERNELS
from launch.feature_machine.config import Kernel
from launch.feature_machine.tables import read_table

pytestmark = pytest.mark.slow


def test_the_flags_name_the_kernels_of_the_solver():
    assert get_args(Kernel) == KERNELS


def test_every_model_has_a_row_for_every_fold_of_every_table():
    out = made("feature-machine tables --data wine diabetes --folds 2 --inner-folds 2 --limit 60")
    found = rows(out)
    of_both = ["feature machine", "the same, one solve", "gradient boosting"]
    wanted = {*(("wine", name) for name in [*of_both, "support vectors"])}
    wanted |= {*(("diabetes", name) for name in [*of_both, "kernel ridge", "Gaussian process, a scale for each input"])}
    assert {(row["data"], row["method"]) for row in found} == wanted and len(found) == 2 * len(wanted)
    assert all(row["measure"] == ("accuracy" if row["data"] == "wine" else "R2") and row["examples"] == 60 for row in found)
    assert min(row["score"] for row in found if (row["data"], row["method"]) == ("wine", "feature machine")) > 0.85
    assert "| wine | 60 | 13 | feature machine | accuracy |" in (out / "report.md").read_text()


def test_a_table_is_drawn_without_repetition():
    X, y = read_table("wine", 0, 100)
    assert len(np.unique(X, axis=0)) == len(X) == len(y) == 100
    whole, labels = load_wine(return_X_y=True)
    places = [np.flatnonzero((whole == x).all(axis=1))[0] for x in X]
    np.testing.assert_array_equal(labels[places], y)


def test_the_other_half_of_modular_addition_is_found():
    found = [row["test_accuracy"] for row in rows(made("feature-machine modular --seeds 1 --solves 24"))]
    assert max(found[:8]) < 0.05 and found[-1] > 0.99

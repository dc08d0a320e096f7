"""launch.feature_machine: its flags, and what it finds."""

from typing import get_args

import pytest
from run_folders import made, rows

from jexplicit.solvers.feature_machine import KERNELS
from launch.feature_machine.config import Kernel

pytestmark = pytest.mark.slow


def test_the_flags_name_the_kernels_of_the_solver():
    assert get_args(Kernel) == KERNELS


def test_the_other_half_of_modular_addition_is_found():
    found = [row["test_accuracy"] for row in rows(made("feature-machine modular --seeds 1 --solves 24"))]
    assert max(found[:8]) < 0.05 and found[-1] > 0.99

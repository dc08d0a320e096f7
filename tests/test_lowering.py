"""What is lowered for accelerators: no loop that starts a kernel for every row, and products of matrices in full precision.

Nothing is compiled for them, and plain jaxlib is all it takes.
"""

import jax
import pytest
from hot_functions import HOT_FUNCTIONS

from jexplicit.runs.devices import data_mesh


def programs(name, *platforms):
    """The program of a hot function for each platform."""
    function, arguments = HOT_FUNCTIONS[name].make(data_mesh(1))
    return [str(jax.export.export(function, platforms=[platform])(*arguments).mlir_module()) for platform in platforms]


def loops(program):
    return program.count("stablehlo.while")


@pytest.mark.parametrize("name", HOT_FUNCTIONS)
def test_hot_functions_lower_without_serial_loops(name, elsewhere):
    hot = HOT_FUNCTIONS[name]
    for program in elsewhere(programs, name, "cuda", "tpu"):
        assert loops(program) <= hot.loops, "a loop more may start a kernel for every row of something"
        default = [line for line in program.splitlines() if "stablehlo.dot_general" in line and "HIGHEST" not in line]
        assert not (default and hot.exact), "products in full precision, but those of a network's training"


@pytest.mark.parametrize("name", ["Adagrad step", "ICL step, 5 layers", "BLUR scores", "BLUR meta-step"])
def test_the_loops_of_a_cpu_would_be_seen(name):
    (program,) = programs(name, "cpu")
    assert loops(program) > HOT_FUNCTIONS[name].loops

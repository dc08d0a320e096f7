"""Devices as one axis."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jexplicit.counts.dense import count
from jexplicit.runs import devices as devices_module
from jexplicit.runs.devices import AXIS, compile_quickly, data_mesh, default_mesh, slurm_gpus, use_devices


@pytest.mark.parametrize("devices", [None, 1, 2, 8])
def test_a_mesh_has_the_devices_asked_for_on_one_axis(devices):
    mesh = data_mesh(devices)
    assert (mesh.axis_names, mesh.axis_types) == ((AXIS,), (AxisType.Auto,))  # auto: unsharded arrays are accepted
    assert mesh.devices.tolist() == jax.devices()[: devices or 8]


@pytest.mark.parametrize("devices", [-1, 0, 9])
def test_more_devices_than_present_or_none_are_refused(devices):
    with pytest.raises(ValueError, match=f"{devices} devices requested, 8 available: use --devices 8 or fewer"):
        data_mesh(devices)


def test_functions_take_all_accelerators_and_one_cpu(monkeypatch):
    assert default_mesh().size == 1
    monkeypatch.setattr(devices_module, "on_accelerator", lambda: True)
    assert default_mesh() == data_mesh(8)
    stream = np.array([0, 1, 2, 1, 1, 2, 0, 2, 1, 0])
    np.testing.assert_array_equal(
        count(stream, radius=2, vocab_size=3), count(stream, radius=2, vocab_size=3, mesh=data_mesh(1))
    )


@pytest.mark.parametrize("devices, size", [(None, 8), (3, 3)])
def test_a_command_inside_a_running_jax_takes_the_devices_that_there_are(devices, size):
    jax.devices()  # JAX runs from here on
    assert use_devices(devices).size == size


def printed(program, given):
    """The words that a process prints whose environment says nothing of devices but this."""
    chosen = {"NPROC", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"}
    environment = {name: value for name, value in os.environ.items() if name not in chosen} | given
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("given, threads", [({}, "8"), ({"NPROC": "3"}, "3")])
def test_a_command_gets_virtual_devices_with_threads_to_spare_unless_the_user_says_otherwise(given, threads):
    program = "import os; from jexplicit.runs.devices import use_devices; print(use_devices(2).size, os.environ['NPROC'])"
    assert printed(program, {"JAX_PLATFORMS": "cpu", **given}) == ["2", threads]


# As on a machine with a GPU and the package to use it.
WITH_GPU = """
import glob, os
import jax
from jexplicit.runs import devices
glob.glob = lambda pattern: ["/dev/nvidia3"] if pattern == "/dev/nvidia[0-9]*" else []
devices.find_spec = lambda name: name if name == "jax_plugins" else None
devices.request_devices(2)
print(jax.config.values["jax_num_cpu_devices"] == 2, "NPROC" in os.environ)
"""


@pytest.mark.parametrize(
    "given, split",
    [({}, False), ({"JAX_PLATFORMS": "cuda"}, False), ({"JAX_PLATFORMS": "cpu"}, True), ({"CUDA_VISIBLE_DEVICES": ""}, True)],
    ids=str,
)
def test_the_cpu_is_split_only_where_it_computes(given, split):
    assert printed(WITH_GPU, given) == [str(split), str(split)]


@pytest.mark.parametrize(
    "tasks, local, shown, on_node, expected",
    [
        ("1(x4)", 0, "0,1,2,3,4,5,6,7", 8, [0, 1, 2, 3, 4, 5, 6, 7]),  # alone on its node: JAX took the first
        ("1", 0, None, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("4(x2)", 3, "0,1,2,3", 4, [3]),  # --gres=gpu:4 --ntasks-per-node=4
        ("4(x2)", 3, "4,5,6,7", None, [3]),  # numbers are among those shown
        ("2(x2)", 1, "0,1,2,3", 4, [2, 3]),
        ("4(x2)", 3, "0", 4, [0]),  # --gpus-per-task=1: JAX asked for GPU 3 of one
        ("4(x2)", 3, "GPU-5d1e", None, [0]),
        ("2", 1, "0,1", 4, [0, 1]),  # --gpus-per-task=2
        ("3,2(x2)", 1, "0,1", 2, [1]),  # the last nodes run two
        ("1", 0, None, None, None),
        ("1", 0, "", None, None),
    ],
)
def test_processes_of_slurm_share_the_gpus_of_their_node(tasks, local, shown, on_node, expected):
    given = {"CUDA_VISIBLE_DEVICES": shown, "SLURM_GPUS_ON_NODE": on_node}
    environment = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_LOCALID": str(local), "SLURM_NODEID": "0"}
    environment |= {name: str(value) for name, value in given.items() if value is not None}
    if tasks.startswith("3,"):
        environment["SLURM_NODEID"] = "2"
    assert slurm_gpus(environment) == expected
    assert slurm_gpus({**environment, "JAX_LOCAL_DEVICE_IDS": "0"}) is None
    assert slurm_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) is None
    node = {"SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    with pytest.raises(ValueError, match="3 processes on a node of 8 GPUs: use --ntasks-per-node 1, 2, 4, 8"):
        slurm_gpus(node | {"SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_GPUS_ON_NODE": "8"})


@pytest.mark.parametrize("given", [None, "--xla_cpu_use_fusion_emitters=true"])
def test_short_runs_compile_with_the_older_code_unless_the_user_says_otherwise(given, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS") if given is None else monkeypatch.setenv("XLA_FLAGS", given)
    for _ in range(2):  # asked for again, nothing is added
        compile_quickly()
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "fusion_emitters" in flag]
    assert flags == ["--xla_cpu_use_fusion_emitters=false", *([given] if given else [])]  # XLA takes the last

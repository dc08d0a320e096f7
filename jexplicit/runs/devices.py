"""Devices as one axis over which data is split."""

import functools
import glob
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jexplicit.runs.host import host_bytes

AXIS = "data"
# The package through which JAX reaches accelerators, and the files of those that are there.
_accelerators = {
    "jax_plugins": ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd"),  # NVIDIA, either on Windows, AMD
    "libtpu": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
}

_quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

full_precision = jax.default_matmul_precision("highest")
"""Decorator: matrix products in the precision of their inputs, those of gradients included.

By default a GPU rounds float32 to TF32 and a TPU to bfloat16, which closed forms, fits and identities do not survive. The
training of networks does, and goes without. On a CPU nothing changes.
"""


def data_mesh(devices: int | None = None) -> Mesh:
    """A one-axis mesh over the first `devices` devices of this process.

    The axis is `Auto`: jax.make_mesh would make it Explicit, and a scatter on sharded arrays then raises.

    Args:
        devices: how many; default, all of them.

    Raises:
        ValueError: more devices than there are.

    Example:
        >>> data_mesh(1).size
        1
    """
    available = jax.local_devices()
    if devices is not None and not 1 <= devices <= len(available):
        raise ValueError(f"{devices} devices asked for, {len(available)} present: use --devices {len(available)} or fewer")
    return jax.make_mesh((devices or len(available),), (AXIS,), axis_types=(AxisType.Auto,), devices=available[:devices])


def on_cpu(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are CPUs."""
    return mesh.devices.flat[0].platform == "cpu"


def on_gpu(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are GPUs, there or only described."""
    return mesh.devices.flat[0].platform in ("gpu", "cuda", "rocm")


def spreads(mesh: Mesh | None) -> bool:
    """Whether positions are spread over the devices of a mesh: not over one CPU, whose cores share them in threads."""
    return mesh is not None and (mesh.size > 1 or not on_cpu(mesh))


def everywhere(tree: Any, mesh: Mesh) -> Any:
    """The arrays of a pytree, whole on every device; one that is there several times is placed once.

    Devices of a CPU share its memory, and one copy of each array.

    Example:
        >>> table = np.zeros((2, 2))
        >>> one, other = everywhere((table, table), data_mesh(1))
        >>> one is other, one.is_fully_replicated
        (True, True)
    """
    whole = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> jax.Array:
        return jax.device_put(np.asarray(jax.numpy.asarray(leaf)) if on_cpu(mesh) else leaf, whole)

    placed = {id(leaf): place(leaf) for leaf in jax.tree.leaves(tree)}
    return jax.tree.map(lambda leaf: placed[id(leaf)], tree)


def each_row(
    f: Callable[[Any], Any], xs: Any, mesh: Mesh | None = None, *, cpu: int | None = None, elsewhere: int | None = None
) -> Any:
    """f of every row of xs: in turn on a CPU, elsewhere all at once; or so many rows at a time.

    One learner or seed fills a CPU's vector units and its cache; an accelerator would wait for kernels to start.

    Args:
        f: of one row.
        xs: a pytree of arrays with the rows first.
        mesh: where it runs; default, whatever platform it is compiled for, for which f is traced twice.
        cpu: rows at a time on a CPU; default, one.
        elsewhere: rows at a time on other platforms; default, all of them.

    Example:
        >>> import jax.numpy as jnp
        >>> each_row(lambda x: x**2, jnp.arange(3)).tolist()
        [0, 1, 4]
    """
    few = functools.partial(jax.lax.map, f, batch_size=cpu)
    many = functools.partial(jax.lax.map, f, batch_size=elsewhere) if elsewhere else jax.vmap(f)
    if mesh is not None:
        return (few if on_cpu(mesh) else many)(xs)
    return jax.lax.platform_dependent(xs, cpu=few, default=many)


def serial_kernels(mesh: Mesh) -> dict[str, str]:
    """Compiler options for `jax.jit` that run each kernel in one thread on a CPU; none on other platforms.

    XLA splits large elementwise kernels over the cores. In the training step of a small network, a loop of kernels of about a
    megabyte, waking the threads costs as much as they save, and devices that run in parallel compete for them.

    Example:
        >>> double = jax.jit(lambda x: 2 * x, compiler_options=serial_kernels(data_mesh(1)))
        >>> float(double(3.0))
        6.0
    """
    return {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"} if on_cpu(mesh) else {}


def use_devices(devices: int | None = None) -> Mesh:
    """The mesh that a command runs on; launchers call this before JAX's first computation.

    Args:
        devices: how many; default, every accelerator, or one CPU device per core, at most 8, since each has tables of its own.

    Raises:
        ValueError: more devices than there are.
    """
    request_devices(devices)
    return data_mesh(devices)


def request_devices(devices: int | None = None) -> None:
    """Split the CPU into several devices, unless there are accelerators to compute on.

    This has no effect once JAX has started, so call it before `join`, too.
    """
    if not runs_on_cpu():
        return
    # XLA:CPU starts one thread per core (it reads NPROC), and a device that waits for the others occupies one. Without spare
    # threads a collective between devices can deadlock.
    os.environ.setdefault("NPROC", str(4 * (devices or os.cpu_count() or 1)))
    try:
        jax.config.update("jax_num_cpu_devices", devices or min(os.cpu_count() or 1, 8))
    except RuntimeError:  # JAX already runs (in a notebook, in a test): its devices stay as they are
        pass


def compile_quickly() -> None:
    """Compile for CPUs in about half the time: for short runs, as fused loops may take twice as long.

    XLA's older code for fused loops, a module at a time. This has no effect once JAX has started, and flags of the user win.
    A version of XLA that does not know a flag ends the process, so versions of JAX other than 0.10 compile as they do.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if _quick not in given and jax.__version_info__[:2] == (0, 10):
        os.environ["XLA_FLAGS"] = f"{_quick} {given}"


def runs_on_cpu() -> bool:
    """Whether JAX computes on the CPU, as far as that can be known before it starts."""
    if platforms := jax.config.values["jax_platforms"]:
        return platforms.split(",")[0] == "cpu"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return True
    return not any(find_spec(package) and any(map(glob.glob, files)) for package, files in _accelerators.items())


def slurm_gpus(environment: Mapping[str, str]) -> list[int] | None:
    """The GPUs of a process that SLURM has started, as numbers among those that it sees: all, or its share.

    JAX takes the one with the number of the process on its node. That leaves the other GPUs of a process alone on a node idle,
    and where SLURM shows each process a GPU of its own, most processes have no GPU of that number.

    Args:
        environment: of the process.

    Returns:
        None where JAX is to choose: outside of SLURM, without GPUs, and where JAX_LOCAL_DEVICE_IDS names them.

    Raises:
        ValueError: processes of a node that cannot share its GPUs evenly.

    Example:
        >>> node = {"SLURM_LOCALID": "1", "SLURM_NODEID": "0", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
        >>> slurm_gpus({**node, "SLURM_STEP_TASKS_PER_NODE": "2(x8)"})  # the second of two on each node
        [2, 3]
    """
    if not {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"} <= set(environment):
        return None
    on_node, shown = int(environment.get("SLURM_GPUS_ON_NODE") or 0), environment.get("CUDA_VISIBLE_DEVICES")
    gpus = len(shown.split(",")) if shown else on_node
    if not gpus or "JAX_LOCAL_DEVICE_IDS" in environment:
        return None
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])  # such as 4(x2),1
    tasks = [int(tasks) for tasks, nodes in runs for _ in range(int(nodes or 1))][int(environment["SLURM_NODEID"])]
    if gpus < tasks or gpus * tasks == on_node:  # SLURM shows each its own
        return list(range(gpus))
    if gpus % tasks:
        fitting = ", ".join(str(n) for n in range(1, gpus + 1) if gpus % n == 0)
        raise ValueError(f"{tasks} processes on a node of {gpus} GPUs: use --ntasks-per-node {fitting}")
    share = gpus // tasks
    first = share * int(environment["SLURM_LOCALID"])
    return list(range(first, first + share))


_runtime_bytes = 600 * 10**6  # Python, its libraries, XLA and what it compiles


def check_memory(mesh: Mesh, bytes_per_device: int, what: str) -> None:
    """Raise where the devices of a CPU, which share the host's memory, would exceed it and the system kill the process.

    Args:
        mesh: the devices; accelerators are not checked, since their runtime reports when their memory is full.
        bytes_per_device: bytes that each of them allocates.
        what: the arrays, for the message.

    Raises:
        ValueError: the devices together need more than the machine has.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return
    present = host_bytes()
    if mesh.size * bytes_per_device > present:
        raise ValueError(
            f"{what} take {mesh.size} x {bytes_per_device / 1e9:.1f} GB on {mesh.size} devices and this machine has "
            f"{present / 1e9:.1f} GB: use fewer --devices, a smaller --vocab-size or a smaller --radius"
        )


def within_memory(mesh: Mesh, budget: int, table_bytes: int, offsets: int) -> Mesh:
    """A mesh of as many of the devices as the memory budget allows, each with count tables of its own.

    With D devices and tables of T bytes each, counting allocates (D + 1 + 2/K) T bytes beside the runtime: the devices'
    tables, their sum once it has been saved, and while it is formed one offset's sum in 8-byte integers.

    Args:
        mesh: the devices; accelerators, whose tables are not in the host's memory, are returned unchanged.
        budget: bytes that this process may allocate.
        table_bytes: T, bytes of one device's tables over all offsets.
        offsets: K, the number of offsets.

    Raises:
        ValueError: the budget is too small for one device.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return mesh
    host = _runtime_bytes + table_bytes + 2 * table_bytes // offsets
    devices = min(mesh.size, (budget - host) // table_bytes)
    if devices < 1:
        raise ValueError(
            f"--memory {budget / 1e9:.1f}GB: counting with tables of {table_bytes / 1e9:.1f} GB takes "
            f"{(host + table_bytes) / 1e9:.1f} GB; allow that, or use a smaller --vocab-size or --radius"
        )
    return data_mesh(int(devices))

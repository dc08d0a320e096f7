"""Devices as one mesh axis over which data is split."""

import functools
import glob
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge  # JAX has no public name for whether it runs
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jexplicit.runs.host import host_bytes

AXIS = "data"
# Packages of JAX's accelerator plugins, and the device files that indicate an accelerator.
_accelerators = {
    "jax_plugins": ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd"),  # NVIDIA, NVIDIA or AMD on Windows, AMD
    "libtpu": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
}

_quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

full_precision = jax.default_matmul_precision("highest")
"""Decorator: matrix products in the precision of their inputs, also in gradients.

By default a GPU rounds float32 to TF32 and a TPU to bfloat16, too coarse for closed forms, fits and identities, but not for
training networks. No effect on a CPU.
"""


_threads_lost: list[bool] = []  # whether JAX ran when this process was forked


def check_threads() -> None:
    """Refuse to compute in a forked process, where JAX waits for its parent's threads.

    Raises:
        RuntimeError: the parent had started JAX.
    """
    if _threads_lost:
        raise RuntimeError(
            "this process was forked after JAX had started, and has none of its threads: start it by another method, "
            'multiprocessing.get_context("spawn")'
        )


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: _threads_lost.extend([True] * bool(xla_bridge._backends)))


def data_mesh(devices: int | None = None) -> Mesh:
    """A one-axis mesh over the first `devices` devices of this process.

    The axis is `Auto`: jax.make_mesh would make it Explicit, and a scatter on sharded arrays then raises.

    Args:
        devices: number of devices; default, all.

    Raises:
        ValueError: more devices than are available.
        RuntimeError: a process that was forked after JAX had started.

    Example:
        >>> data_mesh(1).size
        1
    """
    check_threads()
    available = jax.local_devices()
    if devices is not None and not 1 <= devices <= len(available):
        raise ValueError(f"{devices} devices requested, {len(available)} available: use --devices {len(available)} or fewer")
    return jax.make_mesh((devices or len(available),), (AXIS,), axis_types=(AxisType.Auto,), devices=available[:devices])


def default_mesh() -> Mesh:
    """The default mesh: all accelerators of this process, or one CPU."""
    return data_mesh() if on_accelerator() else data_mesh(1)


def on_cpu(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are CPUs."""
    return mesh.devices.flat[0].platform == "cpu"


def on_gpu(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are GPUs, real or abstract."""
    return mesh.devices.flat[0].platform in ("gpu", "cuda", "rocm")


def on_accelerator() -> bool:
    """Whether the default devices are no CPUs."""
    return jax.default_backend() != "cpu"


def replicate(tree: Any, mesh: Mesh) -> Any:
    """The arrays of a pytree, replicated on every device."""
    whole = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> jax.Array:
        return jax.device_put(np.asarray(jax.device_put(leaf)) if on_cpu(mesh) else leaf, whole)

    placed = {id(leaf): place(leaf) for leaf in jax.tree.leaves(tree)}
    return jax.tree.map(lambda leaf: placed[id(leaf)], tree)


def map_rows(
    f: Callable[[Any], Any], xs: Any, mesh: Mesh | None = None, *, cpu: int | None = None, elsewhere: int | None = None
) -> Any:
    """f of every row of xs: sequentially on a CPU, else vmapped.

    mesh: where it runs; default, the platform of compilation, for which f is traced twice.
    cpu, elsewhere: rows at a time on a CPU (default, one) and on other platforms (default, all).
    """
    few = functools.partial(jax.lax.map, f, batch_size=cpu)
    many = functools.partial(jax.lax.map, f, batch_size=elsewhere) if elsewhere else jax.vmap(f)
    if mesh is not None:
        return (few if on_cpu(mesh) else many)(xs)
    return jax.lax.platform_dependent(xs, cpu=few, default=many)


def serial_kernels(mesh: Mesh) -> dict[str, str]:
    """Compiler options for one thread a kernel on a CPU.

    XLA splits large elementwise kernels over the cores. In the training step of a small network, a loop of kernels of about a
    megabyte, waking the threads costs as much as they save, and devices that run in parallel compete for them.
    """
    return {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"} if on_cpu(mesh) else {}


def use_devices(devices: int | None = None) -> Mesh:
    """The mesh of a command; called before JAX's first computation.

    devices: default, every accelerator, or one CPU device per core, at most 8, as each has its own tables.
    """
    request_devices(devices)
    return data_mesh(devices)


def request_devices(devices: int | None = None) -> None:
    """Split the CPU into several devices, unless there are accelerators."""
    if not runs_on_cpu():
        return
    # XLA:CPU starts one thread per core (from NPROC), and a device that waits for the others occupies one. Without spare
    # threads a collective between devices can deadlock.
    os.environ.setdefault("NPROC", str(4 * (devices or os.cpu_count() or 1)))
    try:
        jax.config.update("jax_num_cpu_devices", devices or min(os.cpu_count() or 1, 8))
    except RuntimeError:  # JAX already runs (in a notebook, in a test): its devices are unchanged
        pass


def compile_quickly() -> None:
    """Compile for CPUs in half the time, for short runs.

    Selects XLA's older code for fused loops, one module at a time. No effect once JAX has started; flags of the user override.
    Only for JAX 0.10, as XLA ends the process at an unknown flag.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if _quick not in given and jax.__version_info__[:2] == (0, 10):
        os.environ["XLA_FLAGS"] = f"{_quick} {given}"


def runs_on_cpu() -> bool:
    """Whether JAX will compute on the CPU, a guess before JAX starts."""
    if platforms := jax.config.values["jax_platforms"]:
        return platforms.split(",")[0] == "cpu"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return True
    return not any(find_spec(package) and any(map(glob.glob, files)) for package, files in _accelerators.items())


def slurm_gpus(environment: Mapping[str, str]) -> list[int] | None:
    """Indices of the GPUs that a process of SLURM uses.

    JAX's default is the GPU with the process's index on its node. This leaves GPUs idle if a node has fewer processes than
    GPUs, and fails if SLURM shows each process only its own GPU. None to keep the default: outside of SLURM, without GPUs, and
    with JAX_LOCAL_DEVICE_IDS.
    """
    if not {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"} <= set(environment):
        return None
    on_node, shown = int(environment.get("SLURM_GPUS_ON_NODE") or 0), environment.get("CUDA_VISIBLE_DEVICES")
    gpus = len(shown.split(",")) if shown else on_node
    if not gpus or "JAX_LOCAL_DEVICE_IDS" in environment:
        return None
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])  # e.g. 4(x2),1
    tasks = [int(tasks) for tasks, nodes in runs for _ in range(int(nodes or 1))][int(environment["SLURM_NODEID"])]
    if gpus < tasks or gpus * tasks == on_node:  # SLURM shows each its own
        return list(range(gpus))
    if gpus % tasks:
        fitting = ", ".join(str(n) for n in range(1, gpus + 1) if gpus % n == 0)
        raise ValueError(f"{tasks} processes on a node of {gpus} GPUs: use --ntasks-per-node {fitting}")
    share = gpus // tasks
    first = share * int(environment["SLURM_LOCALID"])
    return list(range(first, first + share))


_runtime_bytes = 600 * 10**6  # Python, its libraries, XLA and compiled code


def check_memory(mesh: Mesh, bytes_per_device: int, what: str) -> None:
    """Refuse arrays that exceed the host's memory.

    Accelerators are not checked, as their runtime reports a full memory.
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
    """A mesh of as many devices as the memory budget allows.

    With D devices and tables of T = `table_bytes` each, counting K offsets allocates (D + 1 + 2/K) T bytes beside the runtime:
    the devices' tables, their sum after it is saved, and during the sum one offset in 8-byte integers.
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

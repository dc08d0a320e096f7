"""Devices as one axis over which data is split."""

import glob
import os
from importlib.util import find_spec

import jax
from jax.sharding import AxisType, Mesh

AXIS = "data"
# The package through which JAX reaches accelerators, and the files of those that are there.
_accelerators = {
    "jax_plugins": ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd"),  # NVIDIA, either on Windows, AMD
    "libtpu": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
}


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


def serial_kernels(mesh: Mesh) -> dict[str, str]:
    """Compiler options for `jax.jit` that run each kernel in one thread on a CPU; none on other platforms.

    XLA splits large elementwise kernels over the cores. In the training step of a small network, a loop of kernels of about a
    megabyte, waking the threads costs as much as they save, and devices that run in parallel compete for them.

    Example:
        >>> double = jax.jit(lambda x: 2 * x, compiler_options=serial_kernels(data_mesh(1)))
        >>> float(double(3.0))
        6.0
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    return {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"} if on_cpu else {}


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


def runs_on_cpu() -> bool:
    """Whether JAX computes on the CPU, as far as that can be known before it starts."""
    if platforms := jax.config.values["jax_platforms"]:
        return platforms.split(",")[0] == "cpu"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return True
    return not any(find_spec(package) and any(map(glob.glob, files)) for package, files in _accelerators.items())

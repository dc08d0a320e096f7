"""Devices as one axis over which data is split."""

import os
import re
import sys

import jax
from jax.sharding import AxisType, Mesh

AXIS = "data"
_runtime_bytes = 600 * 10**6  # Python, its libraries, XLA and what it compiles
_units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


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
    """Options of `jax.jit` for a CPU: a kernel runs in one thread.

    XLA splits every larger elementwise kernel over the cores. In a loop of kernels of a megabyte, as a training step of a
    small network is, waking threads costs as much as they save, and devices that work side by side hold each other up.

    Example:
        >>> double = jax.jit(lambda x: 2 * x, compiler_options=serial_kernels(data_mesh(1)))
        >>> float(double(3.0))
        6.0
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    return {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"} if on_cpu else {}


def check_memory(mesh: Mesh, bytes_per_device: int, what: str) -> None:
    """Refuse what the host's memory cannot hold: virtual CPU devices share it, and the system would kill the process.

    Raises:
        ValueError: the devices together need more than the machine has.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return  # an accelerator's own runtime says when its memory is full
    present = host_bytes()
    if mesh.size * bytes_per_device > present:
        raise ValueError(
            f"{what} take {mesh.size} x {bytes_per_device / 1e9:.1f} GB on {mesh.size} devices and this machine has "
            f"{present / 1e9:.1f} GB: use fewer --devices, a smaller --vocab-size or a smaller --radius"
        )


def host_bytes() -> float:
    """The machine's memory; without a bound where the system does not say."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else float("inf")


def parse_bytes(size: str) -> int:
    """A number of bytes, as a person writes it.

    Raises:
        ValueError: no number with a unit.

    Example:
        >>> parse_bytes("2GB"), parse_bytes("1.5 GiB")
        (2000000000, 1610612736)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]+)\s*", size)
    if not found or found[2].upper() not in _units or found[1].count(".") > 1 or not float(found[1]) > 0:
        raise ValueError(f"memory {size!r}: give a number and a unit, such as 2GB or 512MiB")
    return int(float(found[1]) * _units[found[2].upper()])


def within_memory(mesh: Mesh, budget: int, table_bytes: int, offsets: int) -> Mesh:
    """As many devices of a mesh as can hold tables of their own within a memory that they share.

    Beside the devices' tables there are the sum of one offset's and, after the first save, that of all of them.

    Args:
        mesh: the devices.
        budget: bytes of this process.
        table_bytes: of one device's tables, of all offsets.
        offsets: K.

    Raises:
        ValueError: not even one device's fit.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return mesh  # tables lie in the accelerators' own memory
    host = _runtime_bytes + table_bytes + 2 * table_bytes // offsets
    devices = min(mesh.size, (budget - host) // table_bytes)
    if devices < 1:
        raise ValueError(
            f"--memory {budget / 1e9:.1f}GB: counting with tables of {table_bytes / 1e9:.1f} GB takes "
            f"{(host + table_bytes) / 1e9:.1f} GB; allow that, or use a smaller --vocab-size or --radius"
        )
    return data_mesh(int(devices))


def peak_bytes() -> int | None:
    """The most memory that this process has held so far; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def use_devices(devices: int | None = None) -> Mesh:
    """The mesh a command runs on: `devices` of them, or every accelerator, or one CPU device per core (at most 8, since each
    holds tables of its own). Launchers call this before JAX's first computation.
    """
    request_devices(devices)
    return data_mesh(devices)


def request_devices(devices: int | None = None) -> None:
    """Have JAX see a CPU as several devices, for which it must be told before it starts: before processes join, too."""
    # XLA:CPU has one thread per core, and a device that waits for the others keeps one: without spare threads an exchange
    # between devices may wait for ever. NPROC is what it reads as the number of cores.
    os.environ.setdefault("NPROC", str(4 * (devices or os.cpu_count() or 1)))
    try:
        jax.config.update("jax_num_cpu_devices", devices or min(os.cpu_count() or 1, 8))
    except RuntimeError:  # JAX already runs (in a notebook, a test): take what there is
        pass

"""Devices as one axis over which data is split."""

import os

import jax
from jax.sharding import AxisType, Mesh

AXIS = "data"


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


def check_memory(mesh: Mesh, bytes_per_device: int, what: str) -> None:
    """Refuse what the host's memory cannot hold: virtual CPU devices share it, and the system would kill the process.

    Raises:
        ValueError: the devices together need more than the machine has.
    """
    if mesh.devices.flat[0].platform != "cpu" or not hasattr(os, "sysconf"):
        return  # an accelerator's own runtime says when its memory is full
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if mesh.size * bytes_per_device > present:
        raise ValueError(
            f"{what} take {mesh.size} x {bytes_per_device / 1e9:.1f} GB on {mesh.size} devices and this machine has "
            f"{present / 1e9:.1f} GB: use fewer --devices, a smaller --vocab-size or a smaller --radius"
        )


def use_devices(devices: int | None = None) -> Mesh:
    """The mesh a command runs on: `devices` of them, or every accelerator, or one CPU device per core (at most 8, since each
    holds tables of its own).

    JAX sees a CPU as one device unless told otherwise before its first computation, so launchers call this first.
    """
    # XLA:CPU has one thread per core, and a device that waits for the others keeps one: without spare threads an exchange
    # between devices may wait for ever. NPROC is what it reads as the number of cores.
    os.environ.setdefault("NPROC", str(4 * (devices or os.cpu_count() or 1)))
    try:
        jax.config.update("jax_num_cpu_devices", devices or min(os.cpu_count() or 1, 8))
    except RuntimeError:  # JAX already runs (in a notebook, a test): take what there is
        pass
    return data_mesh(devices)

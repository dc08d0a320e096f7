"""Devices as one axis over which data is split."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

AXIS = "data"

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
    """Split the CPU into several devices. This has no effect once JAX has started, so call it before `join`, too."""
    # XLA:CPU starts one thread per core (it reads NPROC), and a device that waits for the others occupies one. Without spare
    # threads a collective between devices can deadlock.
    os.environ.setdefault("NPROC", str(4 * (devices or os.cpu_count() or 1)))
    try:
        jax.config.update("jax_num_cpu_devices", devices or min(os.cpu_count() or 1, 8))
    except RuntimeError:  # JAX already runs (in a notebook, in a test): its devices stay as they are
        pass

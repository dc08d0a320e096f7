"""Devices as one mesh axis over which data is split, and several processes.

Positions are split over the processes first, then over a process's devices. All processes call `barrier`,
`..._across_processes` and `..._over_processes`, or none; a single process gets its argument back.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax._src import xla_bridge  # JAX has no public name for whether it runs
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jexplicit.runs.files import host_bytes, local_path, refuse_errors

if TYPE_CHECKING:
    from filelock import FileLock

AXIS = "data"
_quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

full_precision = jax.default_matmul_precision("highest")
"""Decorator: matrix products in the precision of their inputs. By default a GPU rounds float32 to TF32, a TPU to bfloat16."""


threads_lost: list[bool] = []  # whether JAX ran when this process was forked


def check_threads() -> None:
    """Refuse to compute in a forked process, where JAX waits for its parent's threads."""
    if threads_lost:
        raise RuntimeError(
            "this process was forked after JAX had started, and has none of its threads: start it by another method, "
            'multiprocessing.get_context("spawn")'
        )


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: threads_lost.extend([True] * bool(xla_bridge._backends)))


def data_mesh(devices: int | None = None) -> Mesh:
    """A one-axis mesh over the first `devices` devices of this process; default, all."""
    check_threads()
    available = jax.local_devices()
    if devices is not None and not 1 <= devices <= len(available):
        raise ValueError(f"{devices} devices requested, {len(available)} available: use --devices {len(available)} or fewer")
    # Auto: a scatter on sharded arrays raises with jax.make_mesh's own type, Explicit
    return jax.make_mesh((devices or len(available),), (AXIS,), axis_types=(AxisType.Auto,), devices=available[:devices])


def default_mesh() -> Mesh:
    """The default mesh: all accelerators of this process, or one CPU."""
    return data_mesh(1 if jax.default_backend() == "cpu" else None)


def on_cpu(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are CPUs."""
    return mesh.devices.flat[0].platform == "cpu"


def on_gpu(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are GPUs, real or abstract."""
    return mesh.devices.flat[0].platform in ("gpu", "cuda", "rocm")


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
    """f of all rows: `cpu` (one) at a time there, `elsewhere` (all) elsewhere.

    mesh: where it runs; default, the platform of compilation, for which f is traced twice.
    """
    few = functools.partial(jax.lax.map, f, batch_size=cpu)
    many = functools.partial(jax.lax.map, f, batch_size=elsewhere) if elsewhere else jax.vmap(f)
    if mesh is not None:
        return (few if on_cpu(mesh) else many)(xs)
    return jax.lax.platform_dependent(xs, cpu=few, default=many)


def serial_kernels(mesh: Mesh) -> dict[str, str]:
    """Compiler options: one thread a kernel on a CPU."""
    return {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"} if on_cpu(mesh) else {}


def use_devices(devices: int | None = None) -> Mesh:
    """The mesh of a command: every accelerator, or up to 8 CPU devices."""
    request_devices(devices)
    return data_mesh(devices)


def request_devices(devices: int | None = None) -> None:
    """Split the CPU into several devices, which accelerators take precedence over."""
    # A device that waits for the others holds one of XLA's threads (NPROC): without spare ones a collective can deadlock.
    os.environ.setdefault("NPROC", str(4 * (devices or os.cpu_count() or 1)))
    with contextlib.suppress(RuntimeError):  # JAX already runs (in a notebook, in a test): its devices are unchanged
        jax.config.update("jax_num_cpu_devices", devices or min(os.cpu_count() or 1, 8))


def compile_quickly() -> None:
    """Compile short runs for CPUs in half the time, by XLA's older code."""
    given = os.environ.get("XLA_FLAGS", "")
    if _quick not in given and jax.__version_info__[:2] == (0, 10):  # XLA ends the process at an unknown flag
        os.environ["XLA_FLAGS"] = f"{_quick} {given}"


RUNTIME_BYTES = 600 * 10**6  # Python, its libraries, XLA and compiled code


def check_memory(mesh: Mesh, bytes_per_device: int, what: str) -> None:
    """Refuse arrays on CPU devices that exceed the host's memory."""
    present = host_bytes()
    if on_cpu(mesh) and mesh.size * bytes_per_device > present:
        raise ValueError(
            f"{what} take {mesh.size} x {bytes_per_device / 1e9:.1f} GB on {mesh.size} devices and this machine has "
            f"{present / 1e9:.1f} GB: use fewer --devices, a smaller --vocab-size or a smaller --radius"
        )


def within_memory(mesh: Mesh, budget: int, table_bytes: int, offsets: int) -> Mesh:
    """A mesh of as many devices as the memory budget allows.

    Counting K offsets into tables of T bytes on D devices takes (D + 1 + 2/K) T bytes beside the runtime: the devices' tables,
    their sum, and one offset of it in 8-byte integers.
    """
    if not on_cpu(mesh):
        return mesh
    host = RUNTIME_BYTES + table_bytes + 2 * table_bytes // offsets
    devices = min(mesh.size, (budget - host) // table_bytes)
    if devices < 1:
        raise ValueError(
            f"--memory {budget / 1e9:.1f}GB: counting with tables of {table_bytes / 1e9:.1f} GB takes "
            f"{(host + table_bytes) / 1e9:.1f} GB; allow that, or use a smaller --vocab-size or --radius"
        )
    return data_mesh(int(devices))


AUTOMATIC = "auto"
_heartbeat_seconds = 30  # after the death of a process the others end
_longest_wait_seconds = 7 * 24 * 3600  # for the work of another process; its death is detected by the heartbeat
_waits = itertools.count()
_cells_per_exchange = 1 << 24


def join(coordinator: str, num_processes: int | None, process_id: int | None, *, seconds: int = 60) -> None:
    """Join the other processes of a run, before JAX's first computation, within some seconds.

    coordinator: HOST:PORT of process 0, any free port; "auto" if JAX detects it (SLURM, TPU pods, Open MPI, ...).
    """
    check_process(coordinator, num_processes, process_id)
    late = threading.Timer(seconds, _give_up, (coordinator, num_processes, process_id, seconds))
    late.start()
    try:
        jax.distributed.initialize(
            *((None, None, None) if coordinator == AUTOMATIC else (coordinator, num_processes, process_id)),
            initialization_timeout=seconds + 30,  # JAX aborts the process; `late` ends it earlier, with a message
            heartbeat_timeout_seconds=_heartbeat_seconds,
            shutdown_timeout_seconds=_longest_wait_seconds,  # the first process writes the report after the others
        )
        jax.devices()  # waits until every process has reported its devices
    except RuntimeError as error:
        remedy = "give --coordinator HOST:PORT, --num-processes and --process-id"
        raise ValueError(f"--coordinator {coordinator}: {error}; {remedy}") from error
    finally:
        late.cancel()
    if num_processes not in (None, P := jax.process_count()):
        raise ValueError(f"--num-processes {num_processes}, and {coordinator} was started with {P}: give all the same")


def message_of_process(error: Exception) -> str | None:
    """The message of an error caused by other processes, or None."""
    lost = isinstance(error, jax.errors.JaxRuntimeError)
    if not jax.distributed.is_initialized() or isinstance(error, RuntimeError) and not lost:
        return None
    remedy = ": another process has ended; start all of them again with --resume" * lost
    return f"process {jax.process_index()}: {str(error).splitlines()[0]}{remedy}"


def check_process(coordinator: str, num_processes: int | None, process_id: int | None) -> None:
    """Check the arguments of `join` before JAX starts."""
    if coordinator == AUTOMATIC:
        return
    host, _, port = coordinator.rpartition(":")
    if num_processes is None or process_id is None:
        raise ValueError(f"--coordinator {coordinator} without --num-processes and --process-id: give both")
    if not 0 <= process_id < num_processes:
        raise ValueError(f"--process-id {process_id} of {num_processes} processes: give 0 to {num_processes - 1}")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--coordinator {coordinator}: give HOST:PORT of process 0, or auto on SLURM or a TPU pod")


def is_first() -> bool:
    """Whether this is the process that writes results and prints to the terminal."""
    return jax.process_index() == 0


def barrier(what: str) -> None:
    """Wait until every process has called this; a collective would time out."""
    if not jax.distributed.is_initialized():  # one process, or hosts of a slice that have not joined
        return
    from orbax.checkpoint import multihost  # JAX has no public name for this

    wait = multihost.get_barrier_sync_fn()
    wait(key=f"{what} {next(_waits)}", timeout_ms=1000 * _longest_wait_seconds)


def check_equal_across_processes(what: str, value: str) -> None:
    """Check that all processes have the same value, or raise in all."""
    # the AssertionError of multihost_utils.assert_equal prints the arrays instead of the differing processes
    digests = gather_over_processes(np.frombuffer(hashlib.sha256(value.encode()).digest(), np.int32)[None])
    others = np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()
    if others:
        raise ValueError(f"processes {others} have another {what} than process 0: start all with the same flags and files")


def part_of_process(first: int, last: int) -> tuple[int, int]:
    """This process's part of the range first .. last - 1."""
    P, p = jax.process_count(), jax.process_index()
    return first + (last - first) * p // P, first + (last - first) * (p + 1) // P


def sum_over_processes(tables: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The exact sum over processes of integer tables, in wide types."""
    return tuple(tables) if jax.process_count() == 1 else tuple(map(_sum, tables))


def _sum(table: np.ndarray) -> np.ndarray:
    flat, total = table.ravel(), np.empty(table.size, np.int64)
    for start in range(0, table.size, _cells_per_exchange):
        part = slice(start, start + _cells_per_exchange)
        total[part] = gather_over_processes(flat[None, part].astype(np.int64)).sum(axis=0)
    return total.astype(np.int32 if total.max(initial=0) < 2**31 else np.int64, copy=False).reshape(table.shape)


def gather_over_processes(part: np.ndarray) -> np.ndarray:
    """The parts [n_p, ...] of all processes, concatenated, on every host."""
    if jax.process_count() == 1:
        return part
    if part.dtype.itemsize == 8:  # JAX without x64 would truncate them to 4 bytes
        halves = gather_over_processes(np.ascontiguousarray(part)[..., None].view(np.int32))
        return halves.view(part.dtype)[..., 0]
    barrier("gather")
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(part)))).tolist()
    padded = np.zeros((max(lengths), *part.shape[1:]), part.dtype)
    padded[: len(part)] = part
    gathered = np.asarray(multihost_utils.process_allgather(padded))
    return np.concatenate([rows[:n] for rows, n in zip(gathered, lengths, strict=True)])


def lock_run_folder(out: str | os.PathLike, process_id: int) -> "FileLock":
    """Lock a run folder against other processes; one lock in each process."""
    from filelock import FileLock, Timeout  # not for every program

    path = local_path(out, "--out") / f".process_{process_id}.lock"
    with refuse_errors(f"run folder {out} cannot be written", "choose another --out", OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0, thread_local=False, is_singleton=True)
        try:
            if not lock.is_locked:
                lock.acquire()
        except Timeout as error:
            remedy = "wait for its end, or choose another --out; processes of one run have different --process-id"
            raise ValueError(f"process {process_id} of another run is active in {out}: {remedy}") from error
        return lock


def _give_up(coordinator: str, num_processes: int | None, process_id: int | None, seconds: int) -> None:
    from jexplicit.runs.progress import console  # rich is not for every program

    # The main thread waits inside the runtime, which exceptions do not interrupt.
    late = f"process {process_id} of {num_processes}: not all processes have joined at {coordinator} within {seconds} s"
    remedy = "Process 0 must run on that host, with the port open to the others; start each id from 0 once, all with the same "
    console.print(f"[bold red]error:[/] {late}. {remedy}--num-processes, or raise --join-seconds.", soft_wrap=True)
    os._exit(2)

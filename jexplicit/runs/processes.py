"""Several processes as one run, by JAX's distributed runtime.

Every process runs the same program on its own part of the data: positions are split over the processes first, and a process's
part over its own devices. Processes communicate rarely: once to sum their counts, and once per evaluation. The communicating
functions (`check_equal_across_processes`, `sum_over_processes`, `gather_over_processes`, `barrier`) are called by all processes
or by none; in a single process they return their argument. Each waits until all processes have called it.
"""

import functools
import hashlib
import itertools
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jexplicit.runs.devices import runs_on_cpu, slurm_gpus
from jexplicit.runs.files import local_path

if TYPE_CHECKING:
    from filelock import FileLock

AUTOMATIC = "auto"
_heartbeat_seconds = 30  # after the death of a process the others end
_longest_wait_seconds = 7 * 24 * 3600  # for the work of another process; its death is detected by the heartbeat
_waits = itertools.count()
_cells_per_exchange = 1 << 24


def join(coordinator: str, num_processes: int | None, process_id: int | None, *, seconds: int = 60) -> None:
    """Join the other processes of a run, before JAX's first computation.

    coordinator: HOST:PORT of process 0, any free port; "auto" if JAX detects it (SLURM, TPU pods, Open MPI, ...).
    num_processes, process_id: P and the index 0 .. P - 1; None only with "auto". seconds: to wait for the others.
    """
    check_process(coordinator, num_processes, process_id)
    late = threading.Timer(seconds, _give_up, (coordinator, num_processes, process_id, seconds))
    late.start()
    try:
        jax.distributed.initialize(
            *((None, None, None) if coordinator == AUTOMATIC else (coordinator, num_processes, process_id)),
            local_device_ids=None if runs_on_cpu() else slurm_gpus(os.environ),
            initialization_timeout=seconds + 30,  # JAX aborts the process; `late` ends it earlier, with a message
            heartbeat_timeout_seconds=_heartbeat_seconds,
            shutdown_timeout_seconds=_longest_wait_seconds,  # the first process writes the report after the others
        )
        jax.devices()  # waits until every process has reported its devices
    except RuntimeError as error:
        raise ValueError(
            f"--coordinator {coordinator}: {error}; give --coordinator HOST:PORT, --num-processes and --process-id"
        ) from error
    finally:
        late.cancel()
    if num_processes not in (None, jax.process_count()):
        raise ValueError(
            f"--num-processes {num_processes}, and the coordinator at {coordinator} was started with {jax.process_count()}: "
            "give all the same"
        )


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
    if num_processes is None or process_id is None:
        raise ValueError(f"--coordinator {coordinator} without --num-processes and --process-id: give both")
    if not 0 <= process_id < num_processes:
        raise ValueError(f"--process-id {process_id} of {num_processes} processes: give 0 to {num_processes - 1}")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--coordinator {coordinator}: give HOST:PORT of process 0, or auto on SLURM or a TPU pod")


def is_first() -> bool:
    """Whether this is the process that writes results and prints to the terminal."""
    return jax.process_index() == 0


def barrier(what: str) -> None:
    """Wait until every process has called this with the same `what`.

    A collective does not wait: on CPUs the first one of some devices times out after 30 s, a later one after 30 minutes. So all
    communicating functions of this module first wait here, by JAX's coordination service.
    """
    if not jax.distributed.is_initialized():  # one process, or hosts of a slice that have not joined
        return
    from orbax.checkpoint import multihost  # JAX has no public name for this

    wait = multihost.get_barrier_sync_fn()
    wait(key=f"{what} {next(_waits)}", timeout_ms=1000 * _longest_wait_seconds)


def check_equal_across_processes(what: str, value: str) -> None:
    """Check that all processes have the same value, or raise in all."""
    if jax.process_count() == 1:
        return
    barrier("agreement")
    # the AssertionError of multihost_utils.assert_equal prints the arrays instead of the differing processes
    digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8).astype(np.int32)
    digests = np.asarray(multihost_utils.process_allgather(digest))
    others = np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()
    if others:
        raise ValueError(f"processes {others} have another {what} than process 0: start all with the same flags and files")


def part_of_process(first: int, last: int) -> tuple[int, int]:
    """This process's part of the range first .. last - 1."""
    P, p = jax.process_count(), jax.process_index()
    return first + (last - first) * p // P, first + (last - first) * (p + 1) // P


def sum_over_processes(tables: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The exact sum over processes of integer tables, in wide types."""
    if jax.process_count() == 1:
        return tuple(tables)
    barrier("sum")
    return tuple(_sum(table) for table in tables)


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
    """Lock a run folder against other runs while the result is referenced.

    The lock is one of operating-system processes: within one process, a second call returns the same lock.
    """
    from filelock import FileLock, Timeout  # not for every program

    path = local_path(out, "--out") / f".process_{process_id}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0, thread_local=False, is_singleton=True)
        if not lock.is_locked:
            lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"process {process_id} of another run is active in {out}: wait for its end, or choose another --out; "
            "processes of one run have different --process-id"
        ) from error
    except OSError as error:
        raise ValueError(f"run folder {out} cannot be written ({error.strerror}): choose another --out") from error
    return lock


def _give_up(coordinator: str, num_processes: int | None, process_id: int | None, seconds: int) -> None:
    from jexplicit.runs.progress import console  # rich is not for every program

    # The main thread waits inside the runtime, which exceptions do not interrupt.
    console.print(
        f"[bold red]error:[/] process {process_id} of {num_processes}: not all processes have joined at {coordinator} within "
        f"{seconds} s. Process 0 must run on that host, with the port open to the others; start each id from 0 to "
        f"{(num_processes or 1) - 1} once, all with the same --num-processes, or raise --join-seconds.",
        soft_wrap=True,
    )
    os._exit(2)


def _process_mesh() -> Mesh:
    """One device of each process."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([firsts[p] for p in sorted(firsts)]), ("process",), axis_types=(AxisType.Auto,))


@functools.cache
def _adder(mesh: Mesh):
    """The sharding of one part per process, and their compiled sum."""
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("process",), ()))
    return split, jax.jit(lambda parts: parts.sum(axis=0), out_shardings=whole)


def _sum(table: np.ndarray) -> np.ndarray:
    split, add = _adder(_process_mesh())
    with jax.enable_x64(True):

        def total(part: np.ndarray) -> np.ndarray:
            return np.asarray(add(jax.make_array_from_process_local_data(split, part[None])))

        largest = int(total(np.asarray([table.max(initial=0)], np.int64))[0])  # an upper bound of any cell's sum
        dtype = np.int32 if largest < 2**31 else np.int64
        flat, summed = table.ravel(), np.empty(table.size, dtype)
        for start in range(0, table.size, _cells_per_exchange):
            part = slice(start, start + _cells_per_exchange)
            summed[part] = total(flat[part].astype(dtype))
    return summed.reshape(table.shape)

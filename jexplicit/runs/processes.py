"""Several processes as one run, on one machine or on many hosts, through JAX's own distributed runtime.

Every process runs the same program on its own part of the data: positions are split over the processes first, and a process's
part over its own devices. Processes meet rarely: once to sum their counts, and where each has evaluated its own contexts. The
functions here that meet (`agree`, `sum_over_processes`, `gather_over_processes`, `meet`) are called by all processes or by
none; of a single process they return what they are given.
"""

import functools
import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jexplicit.runs.progress import console

AUTOMATIC = "auto"
_heartbeat_seconds = 30  # after which the others end, when a process has died without a word
_cells_per_exchange = 1 << 24


def join(coordinator: str, num_processes: int | None, process_id: int | None, *, seconds: int = 60) -> None:
    """Become one of several processes, before JAX's first computation but after `request_devices`, as this starts JAX.

    Args:
        coordinator: HOST:PORT of process 0, any free port; "auto" where JAX knows it itself (SLURM, TPU pods, Open MPI, ...).
        num_processes: how many; only "auto" finds out.
        process_id: which one this is, 0 .. num_processes - 1; only "auto" finds out.
        seconds: to wait for the others.

    Raises:
        ValueError: an id out of range, an address that is none, another number of processes than the coordinator's.
        SystemExit: not all have come in time.
    """
    check_process(coordinator, num_processes, process_id)
    late = threading.Timer(seconds, _give_up, (coordinator, num_processes, process_id, seconds))
    late.start()
    try:
        jax.distributed.initialize(
            *((None, None, None) if coordinator == AUTOMATIC else (coordinator, num_processes, process_id)),
            initialization_timeout=seconds + 30,  # its own end is an abort: ours comes first
            heartbeat_timeout_seconds=_heartbeat_seconds,
        )
        jax.devices()  # all of them have told theirs
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


def check_process(coordinator: str, num_processes: int | None, process_id: int | None) -> None:
    """Refuse arguments of `join` that no process can join with.

    Raises:
        ValueError: an id out of range, an address that is none, or one of them missing.
    """
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
    """Whether this process is the one that writes results and speaks on the terminal."""
    return jax.process_index() == 0


def meet(what: str) -> None:
    """Wait for all processes."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def agree(what: str, value: str) -> None:
    """Make sure that all processes hold the same value.

    Raises:
        ValueError: in every process, with those that hold another value than process 0.
    """
    if jax.process_count() == 1:
        return
    digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8).astype(np.int32)
    digests = np.asarray(multihost_utils.process_allgather(digest))
    others = np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()
    if others:
        raise ValueError(f"processes {others} have another {what} than process 0: start all with the same flags and files")


def part_of_process(first: int, last: int) -> tuple[int, int]:
    """This process's part of the range first .. last - 1, as equal as can be.

    Example:
        >>> part_of_process(1, 8)  # one process: all of it
        (1, 8)
    """
    P, p = jax.process_count(), jax.process_index()
    return first + (last - first) * p // P, first + (last - first) * (p + 1) // P


def sum_over_processes(tables: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Tables of integers summed over all processes, exactly: the one reduction of a run. int64 where a cell could pass 2^31.

    Args:
        tables: of this process, as many and of the same shapes in all.
    """
    if jax.process_count() == 1:
        return tuple(tables)
    return tuple(_summed(table) for table in tables)


def gather_over_processes(part: np.ndarray) -> np.ndarray:
    """The parts [n_p, ...] of all processes one after the other, on every host; of 4- or 8-byte numbers."""
    if jax.process_count() == 1:
        return part
    if part.dtype.itemsize == 8:  # JAX would make 4 bytes of them
        halves = gather_over_processes(np.ascontiguousarray(part)[..., None].view(np.int32))
        return halves.view(part.dtype)[..., 0]
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(part)))).tolist()
    padded = np.zeros((max(lengths), *part.shape[1:]), part.dtype)
    padded[: len(part)] = part
    gathered = np.asarray(multihost_utils.process_allgather(padded))
    return np.concatenate([rows[:n] for rows, n in zip(gathered, lengths, strict=True)])


def hold_place(out: str | os.PathLike, process_id: int) -> BinaryIO:
    """Lock a run folder for a process id, until the process ends however it ends; keep what is returned.

    Raises:
        ValueError: a process with this id runs there already; a folder that cannot be written.
    """
    import fcntl  # not there on Windows, where only single processes run

    path = Path(out) / f".process_{process_id}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "wb")
    except OSError as error:
        raise ValueError(f"run folder {out} cannot be written ({error.strerror}): choose another --out") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ValueError(
            f"--process-id {process_id} already runs in {out}: give every process an id of its own, or wait for that run to end"
        ) from error
    return file


def _give_up(coordinator: str, num_processes: int | None, process_id: int | None, seconds: int) -> None:
    # The main thread waits inside the runtime, where no exception reaches it.
    console.print(
        f"[bold red]error:[/] process {process_id} of {num_processes}: not all processes have met at {coordinator} within "
        f"{seconds} s. Process 0 must run on that host and the port be open to the others; start each id from 0 to "
        f"{(num_processes or 1) - 1} once, all with the same --num-processes. --join-seconds waits longer.",
        soft_wrap=True,
    )
    os._exit(2)


def _process_mesh() -> Mesh:
    """One device of each process."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([firsts[p] for p in sorted(firsts)]), ("process",), axis_types=(AxisType.Auto,))


@functools.cache
def _adder(mesh: Mesh):
    """Where the parts of the processes lie, and the compiled `[P, ...] -> [...]` that sums them."""
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("process",), ()))
    return split, jax.jit(lambda parts: parts.sum(axis=0), out_shardings=whole)


def _summed(table: np.ndarray) -> np.ndarray:
    split, add = _adder(_process_mesh())
    with jax.enable_x64(True):

        def total(part: np.ndarray) -> np.ndarray:
            return np.asarray(add(jax.make_array_from_process_local_data(split, part[None])))

        largest = int(total(np.asarray([table.max(initial=0)], np.int64))[0])  # at least as large as any sum of cells
        dtype = np.int32 if largest < 2**31 else np.int64
        flat, summed = table.ravel(), np.empty(table.size, dtype)
        for start in range(0, table.size, _cells_per_exchange):
            part = slice(start, start + _cells_per_exchange)
            summed[part] = total(flat[part].astype(dtype))
    return summed.reshape(table.shape)

"""Speed as paired ratios: every round times every case, and a ratio is the median of the ratios by round.

A single timing depends on other load of the machine; cases timed close together are disturbed equally. CPU seconds are those of
the whole process, kernel included. First use of memory costs kernel time, on a virtual machine often more than counting itself
and with a large variance: `kept_memory` removes this cost from a comparison.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jexplicit.runs.host import set_malloc

T = TypeVar("T")


class Timing(NamedTuple):
    """Seconds of one call: CPU time of the process, wall clock, and the part of the CPU time spent in the kernel."""

    cpu_seconds: float
    wall_seconds: float
    kernel_seconds: float


def time_call(call: Callable[[], Any], *, at_least: float = 0.05) -> Timing:
    """Seconds of one call, the mean over as many calls as fill `at_least` seconds; the last result is freed off the clock."""
    start, result, calls = _clocks(), None, 0
    while True:
        result, calls = call(), calls + 1
        cpu, wall, kernel = (now - then for now, then in zip(_clocks(), start, strict=True))
        if wall >= at_least:
            del result
            return Timing(cpu / calls, wall / calls, kernel / calls)


def interleave_calls(
    cases: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    seed: int = 0,
    clock: Callable[[Callable[[], Any]], T] = time_call,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[T]]:
    """Timings of every case, once per round in a new random order; equal indices are the same round.

    cases: calls, already compiled, that return only when their result is ready. clock: times one call.
    """
    timings: dict[str, list[T]] = {name: [] for name in cases}
    orders, names = np.random.default_rng(seed), list(cases)
    for done in range(rounds):
        for n, name in enumerate(orders.permutation(names)):
            timings[name].append(clock(cases[name]))
            if progress:
                progress(done * len(names) + n + 1, rounds * len(names))
    return timings


class Ratio(NamedTuple):
    """The median of paired ratios, and their quartiles."""

    median: float
    low: float
    high: float


def paired_ratio(peer: Sequence[float], own: Sequence[float]) -> Ratio:
    """Median and quartiles over rounds of the speed-up `peer seconds / own seconds`."""
    low, median, high = np.quantile(np.asarray(peer, np.float64) / np.asarray(own, np.float64), [0.25, 0.5, 0.75]).tolist()
    return Ratio(median, low, high)


def cpu_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def one_thread() -> Iterator[str]:
    """Restrict JAX and NumPy to one CPU thread at a time; yields a description.

    XLA reads the size of its thread pool from NPROC at its start, so enter this before JAX's first computation. On Linux all
    threads of the process are also pinned to one core, which works even if JAX is already running. NumPy's BLAS reads
    OPENBLAS_NUM_THREADS at import; the launcher sets it.
    """
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"
    jax.config.update("jax_platforms", "cpu")
    try:
        if jax.default_backend() != "cpu":
            raise ValueError(f"a one-thread comparison on {jax.default_backend()}: set JAX_PLATFORMS=cpu")
    finally:
        os.environ.pop("NPROC") if before is None else os.environ.update(NPROC=before)
    if not hasattr(os, "sched_setaffinity"):
        yield "one XLA thread (NPROC=1); this system does not pin processes to a core"
        return
    cores = os.sched_getaffinity(0)
    _pin({max(cores)})
    try:
        yield f"one XLA thread (NPROC=1), process pinned to core {max(cores)} of {len(cores)}"
    finally:
        _pin(cores)


@contextlib.contextmanager
def kept_memory() -> Iterator[str]:
    """Make the process keep the memory that it frees; yields a description. Only for glibc (Linux), before JAX's threads start.

    By default the C library returns large blocks to the system, and every call faults its tables and buffers in again.
    """
    if not set_malloc(mmap_max=0, trim_threshold=-1, arena_max=1):  # all blocks from one heap that never shrinks
        yield "default allocator, page faults included"
        return
    try:
        yield "freed memory kept by the process"
    finally:
        set_malloc(mmap_max=65536, trim_threshold=128 * 1024, arena_max=0)  # glibc's defaults


def _clocks() -> tuple[float, float, float]:
    return time.process_time(), time.perf_counter(), os.times().system


def _pin(cores: set[int]) -> None:
    """Pin all existing threads; later ones inherit it."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)

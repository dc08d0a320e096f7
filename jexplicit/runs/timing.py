"""Speed measured as ratios: every round times every method, and a ratio is the median of the rounds' own ratios.

A single figure lies on a machine that other work shares; two neighbours in time are disturbed alike. CPU seconds are those
of the whole process, kernel included. Memory that a process touches for the first time costs kernel time, on a virtual
machine more than counting itself and never twice the same, so `kept_memory` takes it out of a comparison.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np


class Timing(NamedTuple):
    """Seconds of one call: of the process's CPU time, by the clock, and the part of the CPU time spent in the kernel."""

    cpu: float
    wall: float
    kernel: float


def timed(call: Callable[[], Any], *, at_least: float = 0.05) -> Timing:
    """Seconds of one call, the mean of as many as fill `at_least` seconds, so that the tick of the clocks does not show.

    The last answer is freed off the clock.
    """
    start, answer, calls = _clocks(), None, 0
    while True:
        answer, calls = call(), calls + 1
        cpu, wall, kernel = (now - then for now, then in zip(_clocks(), start, strict=True))
        if wall >= at_least:
            del answer
            return Timing(cpu / calls, wall / calls, kernel / calls)


def interleaved(
    methods: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[Timing]]:
    """Time every method once per round, in a new order each round.

    Args:
        methods: what to call, warmed up already; each returns only when its answer is there.
        rounds: how often, at least 1.
        seed: of the orders.
        progress: called with (calls done, calls in all).

    Returns:
        Per method one Timing per round; the same index is the same round.

    Example:
        >>> timings = interleaved({"one": lambda: 1, "two": lambda: 2}, rounds=3)
        >>> [(name, len(times)) for name, times in timings.items()]
        [('one', 3), ('two', 3)]
    """
    timings: dict[str, list[Timing]] = {name: [] for name in methods}
    orders, names = np.random.default_rng(seed), list(methods)
    for done in range(rounds):
        for n, name in enumerate(orders.permutation(names)):
            timings[name].append(timed(methods[name]))
            if progress:
                progress(done * len(names) + n + 1, rounds * len(names))
    return timings


def median_ratio(peer: Sequence[float], method: Sequence[float]) -> float:
    """How many times faster a method is than its peer: the median over rounds of `peer seconds / method seconds`.

    Example:
        >>> median_ratio([1.0, 8.0, 3.0], [2.0, 2.0, 2.0])  # of 0.5, 4 and 1.5
        1.5
    """
    return float(np.median(np.asarray(peer, np.float64) / np.asarray(method, np.float64)))


@contextlib.contextmanager
def one_thread() -> Iterator[str]:
    """Hold JAX and NumPy to one CPU thread at a time, and say by what means.

    XLA reads the size of its thread pool from NPROC when it starts, so enter this before JAX's first computation. Linux also
    pins every thread of the process to one core, which holds where JAX runs already. NumPy's BLAS fixes its own threads at
    import, by OPENBLAS_NUM_THREADS, which a launcher sets.

    Raises:
        ValueError: JAX runs on an accelerator already.
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
    """Let the process keep the memory that it frees, and say whether it does.

    The C library else returns large blocks to the system, and every call faults its tables and buffers in again. Only glibc
    (Linux) can be told, before JAX starts its threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        yield "memory as the system gives it, page faults included"
        return
    mmap_max, trim_threshold, arena_max = -4, -1, -8  # of malloc.h
    kept = {mmap_max: 0, trim_threshold: -1, arena_max: 1}  # every block from one heap that never shrinks
    usual = {mmap_max: 65536, trim_threshold: 128 * 1024, arena_max: 0}
    for option, value in kept.items():
        mallopt(option, value)
    try:
        yield "freed memory kept by the process"
    finally:
        for option, value in usual.items():
            mallopt(option, value)


def _clocks() -> tuple[float, float, float]:
    return time.process_time(), time.perf_counter(), os.times().system


def _pin(cores: set[int]) -> None:
    """Pin the threads that there are; those to come inherit it."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            os.sched_setaffinity(int(thread), cores)

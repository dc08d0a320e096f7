"""Processes that count on request. The number of virtual devices is fixed when JAX starts, so each setting has its own."""

import contextlib
import functools
import hashlib
import multiprocessing
import os
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jexplicit.counts.dense import DenseCounter
from jexplicit.counts.stream import Saving, check_stream, feed
from jexplicit.data.corpus.shards import read_shards
from jexplicit.runs.devices import use_devices, within_memory
from jexplicit.runs.host import parse_bytes, peak_bytes
from jexplicit.runs.processes import barrier, join, part_of_process, sum_over_processes

_join_seconds = 600  # all settings start at the same time, on few cores
_process_id = 0  # of this process among those of its setting


class Setting(NamedTuple):
    """The configuration of processes that count together.

    devices: virtual CPU devices of each process.
    vocab_size: N.
    radius: K.
    memory: budget of counting of each process, such as "2GB"; None: no limit.
    processes: how many there are.
    coordinator: HOST:PORT of process 0, where there are several.
    """

    devices: int
    vocab_size: int
    radius: int
    memory: str | None = None
    processes: int = 1
    coordinator: str | None = None


class Answer(NamedTuple):
    """The cost of one count.

    seconds: wall clock, from token ids to tables on the host.
    cpu_seconds: of all threads.
    count_seconds: the part of `seconds` up to the last position counted.
    reduce_seconds: the rest: the one reduction.
    devices: number of devices.
    peak_bytes: peak memory so far; 0 if the system does not report it.
    digest: hash of the tables.
    """

    seconds: float
    cpu_seconds: float
    count_seconds: float
    reduce_seconds: float
    devices: int
    peak_bytes: int
    digest: str


class Workers:
    """The processes of one setting. They are idle between requests."""

    def __init__(self, setting: Setting):
        if setting.processes > 1:
            setting = setting._replace(coordinator=f"localhost:{_free_port()}")
        context = multiprocessing.get_context("spawn")
        numbers = context.SimpleQueue()
        for p in range(setting.processes):
            numbers.put(p)
        self.setting = setting
        self.pool = ProcessPoolExecutor(setting.processes, context, _take_number, (numbers,))

    def ask(self, stream: str, *, whole: bool = False, saving: Saving | None = None) -> Answer:
        """One count by all processes together: seconds of the slowest, CPU seconds and memory of all.

        Args:
            stream: a .npy file, read into memory off the clock, or a folder of shards.
            whole: read the shards into memory off the clock, too.
            saving: of partial counts; None: none are saved.

        Raises:
            ValueError: a process has ended, or counted another table than the others.
        """
        # they wait for each other at the start, so each process takes one request
        pending = [self.pool.submit(answer, self.setting, stream, whole, saving) for _ in range(self.setting.processes)]
        try:
            answers = [each.result() for each in pending]
        except BrokenExecutor as error:
            raise ValueError(f"a process of {self.setting} has ended: has the machine enough memory for it?") from error
        if len({each.digest for each in answers}) > 1:
            raise ValueError(f"the processes of {self.setting} counted different tables: fix it before timing it")
        seconds = max(each.seconds for each in answers)
        reduce_seconds = min(each.reduce_seconds for each in answers)  # of the last to count: the others wait for it
        _, cpu, _, _, devices, peaks, digests = zip(*answers, strict=True)
        return Answer(seconds, sum(cpu), seconds - reduce_seconds, reduce_seconds, sum(devices), sum(peaks), digests[0])


@contextlib.contextmanager
def working(settings: Mapping[Any, Setting]) -> Iterator[dict[Any, Workers]]:
    """Workers of several settings; they end when the block is left, by an exception too."""
    with contextlib.ExitStack() as stack:
        workers = {name: Workers(setting) for name, setting in settings.items()}
        for each in workers.values():
            stack.enter_context(each.pool)
        yield workers


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def _take_number(numbers: Any) -> None:
    """Begin a worker process, whose libraries then print nothing."""
    global _process_id
    _process_id = numbers.get()
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@functools.cache
def _mesh(setting: Setting) -> Mesh:
    """The devices of this process, which joins the others."""
    os.environ.pop("XLA_FLAGS", None)
    os.environ["NPROC"] = str(4 * setting.devices)  # threads to spare, as in use_devices
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", setting.devices)  # before the processes join, which starts JAX
    if setting.coordinator:
        join(setting.coordinator, setting.processes, _process_id, seconds=_join_seconds)
    mesh, (N, K) = use_devices(setting.devices), setting[1:3]
    return within_memory(mesh, parse_bytes(setting.memory), 4 * K * N * N, K) if setting.memory else mesh


def answer(setting: Setting, path: str, whole: bool, saving: Saving | None) -> Answer:
    """Count once, on the clock: `jexplicit.counts.dense.count` step by step."""
    mesh = _mesh(setting)
    stream = np.load(path) if path.endswith(".npy") else read_shards(path)
    stream = stream[:] if whole else stream
    barrier("start")
    start, cpu = time.perf_counter(), time.process_time()
    check_stream(stream)
    first, last = part_of_process(1, len(stream))
    counter = DenseCounter(radius=setting.radius, vocab_size=setting.vocab_size, mesh=mesh, positions=last - first)
    feed(counter, stream, first, last, saving=saving)
    jax.block_until_ready(jax.live_arrays())  # the devices are still counting the last window
    counted = time.perf_counter()
    counts = sum_over_processes(counter.tables())
    end, cpu = time.perf_counter(), time.process_time() - cpu
    peak, digest = peak_bytes() or 0, hashlib.sha256()
    for C in counts:
        digest.update(C.data)
    return Answer(end - start, cpu, counted - start, end - counted, mesh.size, peak, digest.hexdigest())

"""A process that counts on request: `python -m launch.bench.counting_worker SETTING`, started by `launch.bench.workers`.

The number of virtual devices is fixed when JAX starts, so each configuration of a bench needs a process of its own. The process
reads one JSON request per line of standard input and answers each with one JSON line, until the input ends.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jexplicit.counts.dense import Counts, DenseCounter
from jexplicit.counts.stream import Saving, check_stream, feed
from jexplicit.data.shards import Stream, read_shards
from jexplicit.runs.devices import use_devices
from jexplicit.runs.host import parse_bytes, peak_bytes
from jexplicit.runs.memory import within_memory
from jexplicit.runs.processes import join, meet, part_of_process, sum_over_processes

_join_seconds = 600  # all configurations start at the same time, on few cores


class Setting(NamedTuple):
    """The configuration of a worker.

    devices: virtual CPU devices of this process.
    vocab_size: N.
    radius: K.
    memory: budget of counting, such as "2GB"; None: no limit.
    processes: how many count together.
    process_id: of this process.
    coordinator: HOST:PORT of process 0, where there are several.
    """

    devices: int
    vocab_size: int
    radius: int
    memory: str | None = None
    processes: int = 1
    process_id: int = 0
    coordinator: str | None = None


class Request(NamedTuple):
    """What to count.

    stream: a .npy file, read into memory off the clock, or a folder of shards.
    whole: read the shards into memory off the clock, too.
    saving: folder of partial counts; None: none are saved.
    saving_seconds: seconds between two saves.
    """

    stream: str
    whole: bool = False
    saving: str | None = None
    saving_seconds: float = 60.0


class Answer(NamedTuple):
    """The cost of one count.

    seconds: wall clock, from token ids to tables on the host.
    cpu_seconds: of all threads of this process.
    count_seconds: the part of `seconds` up to the last position counted.
    reduce_seconds: the rest: the one reduction.
    devices: number of devices.
    peak_bytes: peak memory of this process so far.
    digest: hash of the tables.
    """

    seconds: float
    cpu_seconds: float
    count_seconds: float
    reduce_seconds: float
    devices: int
    peak_bytes: int | None
    digest: str


def count_stream(stream: Stream, setting: Setting, mesh: Mesh, saving: Saving | None) -> tuple[Counts, float]:
    """`jexplicit.counts.dense.count` step by step, and the time at which the last position was counted."""
    check_stream(stream)
    first, last = part_of_process(1, len(stream))
    counter = DenseCounter(radius=setting.radius, vocab_size=setting.vocab_size, mesh=mesh, positions=last - first)
    feed(counter, stream, first, last, saving=saving)
    jax.block_until_ready(jax.live_arrays())  # the devices are still counting the last window
    end = time.perf_counter()
    return sum_over_processes(counter.tables()), end


def answer(request: Request, setting: Setting, mesh: Mesh) -> Answer:
    """Count once, on the clock."""
    stream = np.load(request.stream) if request.stream.endswith(".npy") else read_shards(request.stream)
    stream = stream[:] if request.whole else stream
    saving = Saving(Path(request.saving), request.saving_seconds) if request.saving else None
    meet("start")
    start, cpu = time.perf_counter(), time.process_time()
    counts, last = count_stream(stream, setting, mesh, saving)
    end, cpu = time.perf_counter(), time.process_time() - cpu
    peak, digest = peak_bytes(), hashlib.sha256()
    for C in counts:
        digest.update(C.data)
    return Answer(end - start, cpu, last - start, end - last, mesh.size, peak, digest.hexdigest())


def main() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries of the runtime write to standard output too
    setting = Setting(**json.loads(sys.argv[1]))
    jax.config.update("jax_num_cpu_devices", setting.devices)  # before the processes join, which starts JAX
    os.environ.setdefault("NPROC", str(4 * setting.devices))  # threads to spare, as in use_devices
    if setting.coordinator:
        join(setting.coordinator, setting.processes, setting.process_id, seconds=_join_seconds)
    mesh = use_devices(setting.devices)
    if setting.memory:
        N, K = setting.vocab_size, setting.radius
        mesh = within_memory(mesh, parse_bytes(setting.memory), 4 * K * N * N, K)
    for line in sys.stdin:
        found: Any = answer(Request(**json.loads(line)), setting, mesh)
        print(json.dumps(found._asdict()), file=replies, flush=True)


if __name__ == "__main__":
    main()

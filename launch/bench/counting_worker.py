"""A process that counts on demand: `python -m launch.bench.counting_worker SETTING`, started by `launch.bench.workers`.

The number of virtual devices is fixed when JAX starts, so every configuration of a bench is a process of its own. It reads a
request per line of its standard input and answers each with a line, both JSON, until the input ends.
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
from jexplicit.runs.memory import parse_bytes, peak_bytes, within_memory
from jexplicit.runs.processes import join, meet, part_of_process, sum_over_processes

_join_seconds = 600  # all configurations start at once, on few cores


class Setting(NamedTuple):
    """What a worker is.

    devices: virtual CPU devices of this process.
    vocab_size: N.
    radius: K.
    memory: bytes that counting may take, as a person writes them; None, as many as there are.
    processes: how many count together.
    process_id: which one this is.
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
    whole: the shards are read into memory off the clock too.
    saving: folder of partial counts; None, none are saved.
    saving_seconds: between two saves.
    """

    stream: str
    whole: bool = False
    saving: str | None = None
    saving_seconds: float = 60.0


class Answer(NamedTuple):
    """What it took.

    seconds: by the clock, from token ids to tables on the host.
    cpu_seconds: of all threads of this process.
    reduce_seconds: of `seconds`, those after the last position was counted: the one reduction.
    devices: that counted.
    peak_bytes: the most memory that this process has held so far.
    digest: names the tables.
    """

    seconds: float
    cpu_seconds: float
    reduce_seconds: float
    devices: int
    peak_bytes: int | None
    digest: str


def counted(stream: Stream, setting: Setting, mesh: Mesh, saving: Saving | None) -> tuple[Counts, float]:
    """`jexplicit.counts.dense.count` step by step, and the time at which the last position was counted."""
    check_stream(stream)
    first, last = part_of_process(1, len(stream))
    counter = DenseCounter(radius=setting.radius, vocab_size=setting.vocab_size, mesh=mesh, positions=last - first)
    feed(counter, stream, first, last, saving=saving)
    jax.block_until_ready(jax.live_arrays())  # the devices still count when the last window was given to them
    end = time.perf_counter()
    return sum_over_processes(counter.tables()), end


def answer(request: Request, setting: Setting, mesh: Mesh) -> Answer:
    """Count once, on the clock."""
    stream = np.load(request.stream) if request.stream.endswith(".npy") else read_shards(request.stream)
    stream = stream[:] if request.whole else stream
    saving = Saving(Path(request.saving), request.saving_seconds) if request.saving else None
    meet("start")
    start, cpu = time.perf_counter(), time.process_time()
    counts, last = counted(stream, setting, mesh, saving)
    end, cpu = time.perf_counter(), time.process_time() - cpu
    peak, digest = peak_bytes(), hashlib.sha256()
    for C in counts:
        digest.update(C.data)
    return Answer(end - start, cpu, end - last, mesh.size, peak, digest.hexdigest())


def main() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the runtime's libraries write to the standard output too
    setting = Setting(**json.loads(sys.argv[1]))
    jax.config.update("jax_num_cpu_devices", setting.devices)  # before the processes meet, which starts JAX
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

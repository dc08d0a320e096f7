"""What counting a large corpus on many devices would take, by arithmetic from stated assumptions.

Counting reduces once per run, data-parallel training once per step: with tables of `K V^2` cells and n devices, a device sends
`4 K V^2 (n - 1) / n` bytes per run against as many or more per step. Nothing here is measured; every rate is a field of
`Machine`. Tables that one device cannot hold are split by output column over a group of g devices, each of which sees the
tokens of the whole group and counts its own columns; groups count parts of their own.
"""

import math
from typing import NamedTuple

import numpy as np

FLUSH_POSITIONS = 2**31
"""Positions after which a cell of an int32 table could pass 2^31 - 1: it is added into int64 before."""


class Machine(NamedTuple):
    """Assumptions about a device and its share of what it shares with others. Rates are per device and second.

    name: of the device.
    increments: random increments into a table in its memory.
    looks: pairs of which it finds out that their columns are not its own, in a group that splits the columns.
    link: bytes that it sends to other devices, and receives at the same time.
    read: bytes that it reads from storage, where storage keeps up.
    storage: bytes per second that storage gives all devices together.
    host: bytes that it moves into its host's memory, int64 addition there included.
    bandwidth: bytes read from or written to its own memory, for the training it is compared with.
    memory: bytes of its own.
    host_memory: bytes of its share of its host's; 0 where its own memory is the host's.
    usable: the part of a memory that tables may take.
    """

    name: str
    increments: float
    looks: float
    link: float
    read: float
    storage: float
    host: float
    bandwidth: float
    memory: float
    host_memory: float
    usable: float = 0.8


GPU = Machine(
    name="GPU",
    increments=20e9,
    looks=200e9,
    link=50e9,
    read=0.25e9,
    storage=100e9,
    host=25e9,
    bandwidth=4.3e12,
    memory=141e9,
    host_memory=256e9,
)
"""An accelerator of the H200's size, in hosts of eight. From its data sheet: memory, bandwidth (a copy's part of 4.8 TB/s).
Assumed: increments (atomic scatter, between 10 and 30 G/s), looks, link (one 400 Gb/s network port each), read (2 GB/s per
host), storage, host (half of PCIe 5), host_memory (2 TB per host)."""

HOST_CORES = 64
"""Cores of `HOST`."""

HOST = Machine(
    name="CPU host",
    increments=30e6 * HOST_CORES,
    looks=1e9 * HOST_CORES,
    link=25e9,
    read=2e9,
    storage=100e9,
    host=80e9,
    bandwidth=400e9,
    memory=512e9,
    host_memory=0,
)
"""A host of 64 cores that count into one table. Assumed: increments (30 M/s a core; a measured rate is better, `calibrated`),
looks (vector comparisons), link (a 200 Gb/s port), read, storage, bandwidth, host (4 bytes read, 8 read and written back at
that bandwidth), memory."""

LARGE_TABLE = 78 / 206
"""Increments per second spread evenly over 268 MB, divided by those of Zipf pairs into 67 MB, measured in C on one core (78 M/s
and 206 M/s): what is left of a core's rate when tables no longer lie in its cache."""


class Work(NamedTuple):
    """What is counted: tokens, vocabulary V, offsets K."""

    tokens: float
    vocab_size: int
    radius: int


class Counting(NamedTuple):
    """A counting pass on n devices.

    split: g, devices that hold one set of tables together.
    flushes: times that a device's int32 tables are added into int64 ones.
    read_seconds: tokens from storage.
    exchange_seconds: tokens to the other devices of the group.
    count_seconds: increments, and looks at others' columns.
    flush_seconds: int32 tables into int64.
    reduce_seconds: the one reduction, a reduce-scatter over the groups.
    seconds: in all; windows are read ahead, so the longest of the first three, and the last two.
    limit: which of the five is longest.
    exchanged_bytes: tokens that a device receives.
    reduced_bytes: cells that a device sends.
    memory_bytes: of a device's tables.
    """

    split: int
    flushes: int
    read_seconds: float
    exchange_seconds: float
    count_seconds: float
    flush_seconds: float
    reduce_seconds: float
    seconds: float
    limit: str
    exchanged_bytes: float
    reduced_bytes: float
    memory_bytes: float


class Training(NamedTuple):
    """One epoch of data-parallel Adagrad on n devices, on the same model and tokens. Bytes are those that a device sends.

    split: g, devices that hold one set of tables, gradients and accumulators together.
    steps: of the epoch.
    all_reduce_bytes: dense gradients summed into every replica.
    sharded_bytes: gradients reduce-scattered to the owner of a part of the state, tables gathered: the same volume.
    touched_bytes: an all-reduce of the rows alone that a step's contexts touch.
    columns_bytes: no replicas at all, every device with 1/n of the columns: tokens gathered, two scalars per position summed.
    communication_seconds: of all_reduce_bytes.
    columns_seconds: of columns_bytes.
    compute_seconds: K rows read, their gradients written and read per position, five passes per step over the state's part.
    """

    split: int
    steps: int
    all_reduce_bytes: float
    sharded_bytes: float
    touched_bytes: float
    columns_bytes: float
    communication_seconds: float
    columns_seconds: float
    compute_seconds: float


def table_bytes(work: Work, *, cell: int = 4) -> int:
    """Bytes of all offsets' tables, `cell K V^2`.

    Example:
        >>> table_bytes(Work(1e12, 50_000, 4))
        40000000000
    """
    return cell * work.radius * work.vocab_size**2


def reduce_scatter_bytes(size: float, devices: int) -> float:
    """What each of n devices sends so that each ends with its n-th of the sum of arrays of `size` bytes, `size (n - 1) / n`.

    Example:
        >>> reduce_scatter_bytes(800, 1), reduce_scatter_bytes(800, 4)
        (0.0, 600.0)
    """
    return size * (devices - 1) / devices


def all_reduce_bytes(size: float, devices: int) -> float:
    """The same so that each ends with all of the sum: a reduce-scatter and a gathering of as many bytes.

    Example:
        >>> all_reduce_bytes(800, 4)
        1200.0
    """
    return 2 * reduce_scatter_bytes(size, devices)


def token_bytes(vocab_size: int) -> int:
    """Bytes of a token id in the smallest unsigned integer type.

    Example:
        >>> token_bytes(65_536), token_bytes(65_537)
        (2, 4)
    """
    return np.min_scalar_type(vocab_size - 1).itemsize


def touched_rows(vocab_size: int, positions: float) -> float:
    """Distinct tokens expected among draws from Zipf's law, `sum_i 1 - (1 - p_i)^positions` with `p_i ~ 1 / i`.

    Example:
        >>> touched_rows(100, 1), round(touched_rows(100, 1e9), 6)
        (1.0, 100.0)
    """
    p = 1 / np.arange(1, vocab_size + 1)
    p /= p.sum()
    return float(np.sum(-np.expm1(positions * np.log1p(-p)))) if vocab_size > 1 else 1.0


def calibrated(host: Machine, pairs_per_second: float) -> Machine:
    """A host with the increments of a core's measured rate of pairs, less what large tables cost (`LARGE_TABLE`).

    Example:
        >>> calibrated(HOST, 206e6).increments == 64 * 78e6
        True
    """
    return host._replace(increments=pairs_per_second * LARGE_TABLE * HOST_CORES)


def flushes(work: Work, devices: int, split: int) -> int:
    """How often a device's int32 tables are added into int64 ones: not at all below 2^31 positions, else after each 2^31.

    Example:
        >>> [flushes(Work(2.0**34, 10, 1), n, 1) for n in (16, 8, 4)]
        [0, 1, 2]
    """
    positions = work.tokens * split / devices
    return math.ceil(positions / FLUSH_POSITIONS) if positions >= FLUSH_POSITIONS else 0


def counting_split(work: Work, machine: Machine, devices: int) -> int | None:
    """g, the fewest devices (a power of two that divides n) whose memory holds one set of tables; None where n are too few.

    Example:
        >>> counting_split(Work(1e12, 50_000, 4), GPU, 64), counting_split(Work(1e12, 256_000, 4), GPU, 64)
        (1, 16)
    """

    def holds(split: int) -> bool:
        int32 = table_bytes(work) / split
        int64 = table_bytes(work, cell=8) / split if flushes(work, devices, split) else 0
        if machine.host_memory == 0:
            return int32 + int64 <= machine.usable * machine.memory
        return int32 <= machine.usable * machine.memory and int64 <= machine.usable * machine.host_memory

    return next((split for split in _splits(devices) if holds(split)), None)


def training_split(work: Work, machine: Machine, devices: int) -> int | None:
    """g of training, whose tables, gradients and accumulators take 12 bytes a cell; None where n devices are too few.

    Example:
        >>> training_split(Work(1e12, 50_000, 4), GPU, 64)
        2
    """
    room = machine.usable * machine.memory
    return next((split for split in _splits(devices) if table_bytes(work, cell=12) / split <= room), None)


def counting(work: Work, machine: Machine, devices: int) -> Counting:
    """Seconds and bytes of a counting pass.

        read     = b T / min(n read, storage)
        exchange = b T (g - 1) / n / link
        count    = K T / n (1 / increments + (g - 1) / looks)
        flush    = flushes 4 K V^2 / g / host
        reduce   = c K V^2 / g (n / g - 1) / (n / g) / link

    with T tokens of b bytes, groups of g devices, and cells of c = 4 bytes on the link, or 8 where there was a flush.

    Args:
        work: what is counted.
        machine: rates and memory.
        devices: n.

    Raises:
        ValueError: tables that all devices together cannot hold.

    Example:
        >>> run = counting(Work(1e12, 50_000, 4), GPU, 1024)
        >>> run.limit, round(run.read_seconds, 2), round(run.count_seconds, 3), round(run.reduce_seconds, 3)
        ('reading', 20.0, 0.195, 0.799)
    """
    T, n, K = work.tokens, devices, work.radius
    g = counting_split(work, machine, n)
    if g is None:
        raise ValueError(
            f"tables of {table_bytes(work) / 1e9:,.0f} GB do not fit into {n} x {machine.memory / 1e9:,.0f} GB: "
            "use more devices, a smaller vocabulary or radius, or sparse counts"
        )
    b, int32, times = token_bytes(work.vocab_size), table_bytes(work) / g, flushes(work, n, g)
    exchanged = b * T * (g - 1) / n
    reduced = reduce_scatter_bytes(int32 * (2 if times else 1), n // g)
    terms = {
        "reading": b * T / min(n * machine.read, machine.storage),
        "exchanging tokens": exchanged / machine.link,
        "counting": K * T / n * (1 / machine.increments + (g - 1) / machine.looks),
        "flushing": times * int32 / machine.host,
        "reducing": reduced / machine.link,
    }
    read, exchange, count, flush, reduce = terms.values()
    return Counting(
        split=g,
        flushes=times,
        read_seconds=read,
        exchange_seconds=exchange,
        count_seconds=count,
        flush_seconds=flush,
        reduce_seconds=reduce,
        seconds=max(read, exchange, count) + flush + reduce,
        limit=max(terms, key=lambda name: terms[name]),
        exchanged_bytes=exchanged,
        reduced_bytes=reduced,
        memory_bytes=int32,
    )


def training(work: Work, machine: Machine, devices: int, *, batch: float = 1e6) -> Training:
    """Bytes and seconds of one epoch of data-parallel Adagrad.

    Args:
        work: the same as for counting.
        machine: rates and memory.
        devices: n.
        batch: tokens per step, of all devices together.

    Raises:
        ValueError: tables that all devices together cannot hold.

    Example:
        >>> run = training(Work(1e12, 50_000, 4), GPU, 1024)
        >>> run.steps, round(run.all_reduce_bytes / run.steps / 1e9, 2)  # GB per step
        (1000000, 39.92)
    """
    n, K, V = devices, work.radius, work.vocab_size
    g = training_split(work, machine, n)
    if g is None:
        raise ValueError(
            f"tables, gradients and accumulators of {table_bytes(work, cell=12) / 1e9:,.0f} GB do not fit into {n} x "
            f"{machine.memory / 1e9:,.0f} GB: use more devices, or a smaller vocabulary or radius"
        )
    steps = math.ceil(work.tokens / batch)
    dense = steps * all_reduce_bytes(table_bytes(work) / g, n // g)
    scalars = all_reduce_bytes(2 * 4 * work.tokens, n)
    columns = scalars + reduce_scatter_bytes(token_bytes(V) * work.tokens, n)
    moved = 12 * K * V * work.tokens / n + 5 * steps * table_bytes(work) / n
    return Training(
        split=g,
        steps=steps,
        all_reduce_bytes=dense,
        sharded_bytes=dense,
        touched_bytes=dense * touched_rows(V, batch) / V,
        columns_bytes=columns,
        communication_seconds=dense / machine.link,
        columns_seconds=columns / machine.link,
        compute_seconds=moved / machine.bandwidth,
    )


def _splits(devices: int) -> list[int]:
    return [2**i for i in range(devices.bit_length()) if devices % 2**i == 0]

"""What counting and solving a text costs on a pod, on paper, from compiled numbers: stages, seconds, bytes, limits, price."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from matplotlib.ticker import NullLocator

from jexplicit.counts.dense import INT32_CELLS
from jexplicit.runs.bounds import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from jexplicit.runs.command import Command, Preset
from jexplicit.runs.figures import COLOURS, figure, legend_outside
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.tables import markdown_table, rich_table
from launch.bench import hot_functions as hot
from launch.bench.compile import BASELINE, PLATFORMS, START
from launch.bench.harness import free_folder
from launch.bench.hlo import Work
from launch.bench.stages import COLUMNS

_usable = 0.8  # of a memory: what tables may occupy
_nothing = Work(0, 0)
_pcie = 25e9  # bytes a second from a chip to its host
STAGES = ("tokenise", "read", "count", "reduce", "smooth", "evaluate", "fit")
TOTAL = "total"
TRAINING = ("Adagrad, replicas", "Adagrad, columns split")
LIMITS = {"host": "host", "memory": "memory bandwidth", "kernels": "kernels started", "link": "interconnect"}


class Chip(NamedTuple):
    """A chip and what it is connected to.

    memory: bytes.
    bandwidth: of the memory, bytes a second.
    per_host: chips of a host.
    fabric: bytes a second that a chip sends to others of its host.
    link: bytes a second that a chip sends to other hosts.
    price: dollars an hour.
    """

    memory: float
    bandwidth: float
    per_host: int
    fabric: float
    link: float
    price: float


CHIPS = {
    "h100": Chip(80e9, PLATFORMS["h100"].bandwidth, 8, fabric=450e9, link=50e9, price=4.0),
    "v5e": Chip(16e9, PLATFORMS["v5e"].bandwidth, 4, fabric=200e9, link=200e9, price=1.2),
}


@dataclass(frozen=True)
class Pod:
    """Estimate what counting and solving a text costs on a pod of chips: seconds, bytes, what limits each stage, and dollars.
    The work of the chips is that of compiled programs, scaled to the job; rates of hosts and links, and prices, are assumptions
    that flags change. Nothing runs on a chip."""

    out: str | None = None
    """New run folder. Default: the first free one of runs/bench-pod, runs/bench-pod-2, ..."""
    platform: Literal["h100", "v5e"] = "h100"
    """Chip: an NVIDIA H100, or a TPU v5e."""
    compiled: str | None = None
    """results.json of a run of `launch.bench compile`. Default: the numbers kept in launch/bench/kernels.json."""
    tokens: PositiveInt = 10**12
    """Number of tokens of the text."""
    vocab_size: PositiveInt = 32_768
    """Vocabulary size. The table of an offset has this number squared of cells."""
    radius: PositiveInt = 4
    """Context length K, in tokens: K tables."""
    chips: PositiveInt = 256
    """Number of chips; they fill whole hosts."""
    evaluated: NonNegativeInt = 1_000_000
    """Number of positions to evaluate the loss on, each with its own context and partition function."""
    fitted: NonNegativeInt = 15_000
    """Number of positions that exponents are fitted on, by one chip."""
    passes: PositiveInt = 4
    """Number of passes over them in that fit."""
    rows: PositiveInt = 11
    """Number of rows of the mixture, each with an exponent to fit."""
    tokenise: NonNegativeFloat = 100e6
    """Tokens per second that a host makes from raw text, a million on each of 100 cores; 0: the text is already tokenised."""
    read: PositiveFloat = 2e9
    """Bytes of tokens per second that a host reads."""
    storage: PositiveFloat = 100e9
    """Bytes per second that the storage delivers to all hosts together."""
    sector: Annotated[int, Bounds(at_least=4)] = 32
    """Bytes that memory reads and writes for a table cell that is in no cache; 4: the cell alone, as compiled programs
    count."""
    kernel_start: NonNegativeFloat = START
    """Seconds to start a kernel."""
    link: PositiveFloat | None = None
    """Bytes per second that a chip sends to other hosts. Default: 50e9 for an H100, 200e9 for a TPU v5e."""
    price: NonNegativeFloat | None = None
    """Dollars per chip and hour. Default: 4.0 for an H100, 1.2 for a TPU v5e."""


def table_bytes(vocab_size: int, radius: int, cell: int = 4) -> int:
    """Bytes of the tables of all offsets, `cell K V^2`."""
    return cell * radius * vocab_size**2


def reduce_scatter_bytes(size: float, devices: int) -> float:
    """Bytes that each of n devices sends to reduce-scatter arrays of `size` bytes, `size (n - 1) / n`."""
    return size * (devices - 1) / devices


def all_reduce_bytes(size: float, devices: int) -> float:
    """The same for a reduce-scatter followed by an all-gather, `2 size (n - 1) / n`."""
    return 2 * reduce_scatter_bytes(size, devices)


def token_bytes(vocab_size: int) -> int:
    """Bytes of a token id: 1 up to a vocabulary of 256, 2 up to one of 65,536.

    Example:
        >>> token_bytes(65_536), token_bytes(65_537)
        (2, 4)
    """
    return np.min_scalar_type(vocab_size - 1).itemsize


def gradient_bytes(tokens: float, size: float, devices: int, batch: float) -> float:
    """Bytes that a device sends per epoch of data-parallel training: an all-reduce of gradients of `size` bytes per step."""
    return math.ceil(tokens / batch) * all_reduce_bytes(size, devices)


def column_bytes(tokens: float, vocab_size: int, devices: int) -> float:
    """The same where each device holds 1/n of the columns: tokens are gathered, two float32 per position are summed."""
    return all_reduce_bytes(8 * tokens, devices) + reduce_scatter_bytes(token_bytes(vocab_size) * tokens, devices)


def smallest_split(pod: Pod, chip: Chip, *, cell: int = 4) -> int | None:
    """Fewest chips g, a power of two that divides their number, that hold one set of tables together; None if all do not."""
    size = table_bytes(pod.vocab_size, pod.radius, cell)
    splits = (2**i for i in range(pod.chips.bit_length()) if pod.chips % 2**i == 0)
    return next((g for g in splits if size / g <= _usable * chip.memory), None)


# What the bytes of a compiled function are proportional to, in the call that is compiled.
_sizes = {
    "counting": hot.CHUNK * hot.K,  # pairs
    "counting by columns": hot.COLUMN_CHUNK * hot.K,
    "noisy co-occurrences": hot.N**2,  # cells of a table
    "explicit solution": hot.N**2,
    "noisy rows": hot.N**2,
    "log partition functions": hot.CONTEXTS * hot.K * hot.N,  # entries of the rows that are added
    "moments of a mixture": hot.BLOCK * hot.ROWS * hot.N,
    "Adagrad step": hot.K * hot.N**2,  # cells of all tables, and as many positions as tokens of the vocabulary
}


def compiled_work(platform: str, path: str | None = None) -> dict[str, Work]:
    """Function -> kernels and bytes of its compiled program.

    Args:
        platform: of the programs.
        path: results.json of a run of `launch.bench compile`; None for the numbers kept with this module.

    Raises:
        ValueError: a file without them, or without a function that is needed.
    """
    try:
        found = json.loads(Path(path or BASELINE).read_text())
        rows = (
            found["rows"]
            if path
            else [{"function": name, "platform": platform, **row} for name, row in found[platform].items()]
        )
        works = {row["function"]: Work(row["kernels"], row["bytes"]) for row in rows if row["platform"] == platform}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--compiled {path}: {error!r}; give results.json of a run of launch.bench compile") from error
    if missing := [name for name in _sizes if name not in works]:
        raise ValueError(
            f"--compiled {path}: no {', '.join(missing)} for {platform}; give a run that compiled all functions for it"
        )
    return works


def stage_row(
    pod: Pod,
    chip: Chip,
    name: str,
    work: Work = _nothing,
    *,
    host_seconds: float = 0,
    host_bytes: float = 0,
    fabric_bytes: float = 0,
    link_bytes: float = 0,
) -> dict[str, Any]:
    """The row of a stage, whose seconds are those of the host, of the memory, of the kernels and of the links, added up.

    Args:
        pod: the job.
        chip: what it runs on.
        name: of the stage.
        work: of a chip.
        host_seconds, host_bytes: of a host.
        fabric_bytes, link_bytes: that a chip sends within its host, and to others.
    """
    seconds = {
        "host": host_seconds,
        "memory": work.bytes / chip.bandwidth,
        "kernels": work.kernels * pod.kernel_start,
        "link": fabric_bytes / chip.fabric + link_bytes / chip.link,
    }
    sent = {"host_bytes": round(host_bytes), "memory_bytes": work.bytes, "link_bytes": round(fabric_bytes + link_bytes)}
    limit = LIMITS[max(seconds, key=lambda key: seconds[key])] if any(seconds.values()) else ""
    parts = {f"{key}_seconds": value for key, value in seconds.items()}
    return {"stage": name, "seconds": sum(seconds.values()), **parts, **sent, "kernels": work.kernels, "limit": limit}


def forecast(pod: Pod, chip: Chip, works: Mapping[str, Work]) -> list[dict[str, Any]]:
    """The rows of all stages, of their total, and of an epoch of training on the same tables.

    Args:
        pod: the job.
        chip: what it runs on.
        works: function -> kernels and bytes of its compiled program.

    Raises:
        ValueError: tables that do not fit, chips that are not whole hosts.
    """
    n, per_host, split = pod.chips, min(chip.per_host, pod.chips), smallest_split(pod, chip)
    if n % per_host:
        raise ValueError(f"--chips {n}: a host has {per_host} chips; use a multiple of that")
    if not split:
        raise ValueError(
            f"tables of {table_bytes(pod.vocab_size, pod.radius) / 1e9:,.0f} GB do not fit into {n} x {chip.memory / 1e9:,.0f} "
            f"GB, {_usable:.0%} of it for tables: use more --chips (a power of two), or a smaller --vocab-size"
        )
    stages = [*_counting(pod, chip, works, per_host, split), *_solving(pod, chip, works, per_host, split)]
    seconds = {row["stage"]: row["seconds"] for row in stages}
    summed = {key: sum(row[key] for row in stages) for key in ("host_bytes", "memory_bytes", "link_bytes", "kernels")}
    whole = sum(seconds.values()) - min(seconds["read"], seconds["count"])  # text is read ahead
    limit = max(seconds, key=lambda stage: seconds[stage])
    rows = [*stages, {"stage": TOTAL, "seconds": whole, **summed, "limit": limit}, *_training(pod, chip, works)]
    job = {"platform": pod.platform, "chips": n, "split": split, "tokens": pod.tokens}
    job |= {"vocab_size": pod.vocab_size, "radius": pod.radius}
    return [{**row, **job, "dollars": row["seconds"] * n / 3600 * chip.price} for row in rows]


def _counting(pod: Pod, chip: Chip, works: Mapping[str, Work], per_host: int, g: int) -> list[dict[str, Any]]:
    (T, K, n), hosts = (pod.tokens, pod.radius, pod.chips), pod.chips // per_host
    text, size = token_bytes(pod.vocab_size) * T, table_bytes(pod.vocab_size, K)
    seen = math.ceil(T * g / n)  # each chip of a group sees all positions of the group
    function, chunk = ("counting", hot.CHUNK) if g == 1 else ("counting by columns", hot.COLUMN_CHUNK)
    work = _scaled(works, function, K * seen, math.ceil(seen / chunk) * K / hot.K)
    uncached = math.ceil(K * T / n * 2 * (pod.sector - 4))  # of cells that are read and written, beyond themselves
    exchanged = text * (g - 1) / n
    merges = math.ceil(T / hosts / INT32_CELLS)  # before a cell of 32 bits could overflow
    inside = min(g, per_host)
    return [
        stage_row(pod, chip, "tokenise", host_seconds=T / hosts / pod.tokenise if pod.tokenise else 0),
        stage_row(pod, chip, "read", host_seconds=text / min(hosts * pod.read, pod.storage), host_bytes=text / hosts),
        stage_row(
            *(pod, chip, "count", Work(work.kernels, work.bytes + uncached)),
            **{"fabric_bytes" if g <= per_host else "link_bytes": exchanged},
        ),
        stage_row(
            *(pod, chip, "reduce"),
            host_seconds=merges * size * inside / g / _pcie,
            host_bytes=merges * size * inside / g,
            fabric_bytes=merges * all_reduce_bytes(size / g, per_host // inside),
            link_bytes=all_reduce_bytes((2 if merges > 1 else 1) * size / per_host, hosts),
        ),
    ]


def _solving(pod: Pod, chip: Chip, works: Mapping[str, Work], per_host: int, g: int) -> list[dict[str, Any]]:
    K, V = pod.radius, pod.vocab_size
    smoothed = [_scaled(works, name, K * V**2 / g, K) for name in ("noisy co-occurrences", "explicit solution", "noisy rows")]
    contexts = pod.evaluated * g / pod.chips  # of a group, each of whose chips holds V / g columns
    evaluated = _scaled(works, "log partition functions", contexts * K * V / g, math.ceil(contexts / hot.CONTEXTS))
    positions = pod.passes * pod.fitted
    fitted = _scaled(works, "moments of a mixture", positions * pod.rows * V, math.ceil(positions / hot.BLOCK))
    return [
        stage_row(pod, chip, "smooth", Work(*(sum(part) for part in zip(*smoothed, strict=True)))),
        stage_row(
            *(pod, chip, "evaluate", evaluated),
            **{"fabric_bytes" if g <= per_host else "link_bytes": all_reduce_bytes(8 * contexts, g)},
        ),
        stage_row(pod, chip, "fit", fitted),
    ]


def _training(pod: Pod, chip: Chip, works: Mapping[str, Work]) -> list[dict[str, Any]]:
    """Every step takes as many positions in a group of chips as the vocabulary has tokens, as in the compiled step."""
    T, V, K, n = pod.tokens, pod.vocab_size, pod.radius, pod.chips
    rows = []
    for name, g in zip(TRAINING, (smallest_split(pod, chip, cell=12), n), strict=True):  # table, gradient, accumulator
        if g and table_bytes(V, K, 12) / g <= _usable * chip.memory:
            step, batch = _scaled(works, "Adagrad step", K * V**2 / g, 1), V * n // g
            columns = column_bytes(T, V, n) if name == TRAINING[1] else 0
            sent = gradient_bytes(T, table_bytes(V, K) / g, n // g, batch) + columns
            rows.append(stage_row(pod, chip, name, step.times(math.ceil(T / batch)), link_bytes=sent))
    return rows


def _scaled(works: Mapping[str, Work], function: str, size: float, calls: float) -> Work:
    """So many calls of a compiled function: their kernels, and its bytes in proportion to the size of all calls together."""
    compiled = works[function]
    return Work(math.ceil(calls * compiled.kernels), math.ceil(size / _sizes[function] * compiled.bytes))


_lines = {TRAINING[0]: "--", TRAINING[1]: ":"}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds and dollars against chips: stages, their total, and training."""
    with figure(path, columns=2, size=(9, 4), sharex=True) as axes:
        for ax, field in zip(axes[0], ("seconds", "dollars"), strict=True):
            names = list(dict.fromkeys(row["stage"] for row in rows))
            for name, colour in zip(names, [*COLOURS[: len(STAGES)], "black", "gray", "gray"], strict=False):
                shown = [row for row in rows if row["stage"] == name and row[field]]
                style = {
                    "color": colour,
                    "marker": ".",
                    "linestyle": _lines.get(name, "-"),
                    "linewidth": 2.5 if name == TOTAL else 1.5,
                }
                ax.plot([row["chips"] for row in shown], [row[field] for row in shown], label=name, **style)
            n = sorted({row["chips"] for row in rows})
            ax.set(xscale="log", yscale="log", xticks=n, xticklabels=n, xlabel="chips", ylabel=field)
            ax.xaxis.set_minor_locator(NullLocator())
        legend_outside(axes[0, 1])


def sweep(pod: Pod, chip: Chip, works: Mapping[str, Work]) -> list[dict[str, Any]]:
    """The rows of the same job on 1, 2, 4 .. 512 hosts, and on its own chips; without those on which its tables do not fit."""
    rows = []
    for n in sorted({pod.chips, *(chip.per_host * 2**i for i in range(10))}):
        if smallest_split(other := replace(pod, chips=n), chip):
            rows += forecast(other, chip, works)
    return rows


def run(pod: Pod) -> dict[str, Any]:
    """Run the command."""
    start = time.perf_counter()
    chip, works = CHIPS[pod.platform], compiled_work(pod.platform, pod.compiled)
    chip = chip._replace(link=pod.link or chip.link, price=chip.price if pod.price is None else pod.price)
    rows, swept = forecast(pod, chip, works), sweep(pod, chip, works)
    folder = RunFolder(pod.out or free_folder("runs/bench-pod"), pod)
    folder.add_rows(rows)
    draw(swept, folder.path / "figures" / "pod.png")
    report = folder.path / "report.md"
    about = " ".join((Pod.__doc__ or "").split())
    job = f"{pod.tokens:,} tokens, vocabulary {pod.vocab_size:,}, K = {pod.radius}, on {pod.chips} x {pod.platform}."
    lines = ["# Bench: pod", "", about, "", job, *markdown_table(COLUMNS, rows), "![seconds and dollars](figures/pod.png)", ""]
    report.write_text("\n".join(lines))
    return present_run(folder, rich_table(COLUMNS, rows), report, start)


COMMAND = Command(Pod, run, {"tiny": Preset(Pod(tokens=10**9, chips=8), "a billion tokens on one host; a second on a CPU.")})

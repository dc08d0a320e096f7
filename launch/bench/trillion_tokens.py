"""Paper-and-pencil cost of counting a trillion tokens on n devices: the table and the figure of docs/trillion_tokens.md.

python -m launch.bench.trillion_tokens --out docs

Nothing here is measured: every rate is a field of `Machine`, and the page states the formulas and the assumptions.
"""

import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from matplotlib.ticker import NullLocator

from jexplicit.runs.figures import COLOURS, figure, legend_outside
from jexplicit.runs.tables import Column, markdown_table

FLUSH = 2**31  # positions after which an int32 cell could overflow: the table is added into an int64 one before that
USABLE = 0.8  # fraction of a memory that tables may occupy
TERMS = ("reading", "exchanging", "counting", "flushing", "reducing")
TRAINING = {"compute": ":", "gradients": "--", "columns": "-."}


class Machine(NamedTuple):
    """A device: the rates per second of the page's assumptions (counts, otherwise bytes), and memories in bytes."""

    increments: float
    tests: float
    link: float
    read: float
    storage: float
    host: float
    bandwidth: float
    memory: float
    host_memory: float  # 0: the device's memory is the host's


MACHINES = {
    "GPU": Machine(20e9, 200e9, 50e9, 0.25e9, 100e9, host=25e9, bandwidth=4.3e12, memory=141e9, host_memory=256e9),
    "CPU host": Machine(64 * 30e6, 64e9, 25e9, 2e9, 100e9, host=80e9, bandwidth=400e9, memory=512e9, host_memory=0),
}


class Work(NamedTuple):
    """T tokens, vocabulary V, K offsets."""

    T: float
    V: int
    K: int


def table_bytes(work: Work, cell: int = 4) -> int:
    """Bytes of the tables of all offsets, `cell K V^2`."""
    return cell * work.K * work.V**2


def reduce_scatter_bytes(size: float, devices: int) -> float:
    """Bytes that each of n devices sends to reduce-scatter arrays of `size` bytes, `size (n - 1) / n`."""
    return size * (devices - 1) / devices


def all_reduce_bytes(size: float, devices: int) -> float:
    """The same for a reduce-scatter followed by an all-gather, `2 size (n - 1) / n`."""
    return 2 * reduce_scatter_bytes(size, devices)


def token_bytes(vocab_size: int) -> int:
    """Bytes of a token id: 2 up to a vocabulary of 65,536."""
    return np.min_scalar_type(vocab_size - 1).itemsize


def gradient_bytes(work: Work, devices: int, batch: float, split: int = 1) -> float:
    """Bytes that a device sends per epoch of data-parallel training: one all-reduce of the dense gradient per step."""
    return math.ceil(work.T / batch) * all_reduce_bytes(table_bytes(work) / split, devices // split)


def column_bytes(work: Work, devices: int) -> float:
    """The same where each device holds 1/n of the columns: tokens are gathered, two float32 per position are summed."""
    return all_reduce_bytes(8 * work.T, devices) + reduce_scatter_bytes(token_bytes(work.V) * work.T, devices)


def flushes(work: Work, devices: int, split: int) -> int:
    """How often a device adds its int32 tables into int64 ones, 0 below 2^31 positions."""
    positions = work.T * split / devices
    return math.ceil(positions / FLUSH) if positions >= FLUSH else 0


def smallest_split(work: Work, machine: Machine, devices: int, *, training: bool = False) -> int:
    """Fewest devices g, a power of two dividing n, that hold one set of tables; training adds gradient and accumulator."""
    own = table_bytes(work, 12 if training else 4)
    for g in (2**i for i in range(devices.bit_length()) if devices % 2**i == 0):
        wide = table_bytes(work, 8) if not training and flushes(work, devices, g) else 0
        needed = (own / g, wide / g) if machine.host_memory else ((own + wide) / g, 0)
        if needed[0] <= USABLE * machine.memory and needed[1] <= USABLE * machine.host_memory:
            return g
    raise ValueError(f"{own / 1e9:,.0f} GB do not fit into {devices} x {machine.memory / 1e9:,.0f} GB: use more devices")


def counting(work: Work, machine: Machine, devices: int) -> dict[str, Any]:
    """Seconds of each term of a counting pass, and bytes that a device receives (exchange) and sends (reduction)."""
    (T, V, K), n, g = work, devices, smallest_split(work, machine, devices)
    times, int32, b = flushes(work, n, g), table_bytes(work) / g, token_bytes(V)
    exchanged, reduced = b * T * (g - 1) / n, reduce_scatter_bytes(int32 * (2 if times else 1), n // g)
    seconds = {
        "reading": b * T / min(n * machine.read, machine.storage),
        "exchanging": exchanged / machine.link,
        "counting": K * T / n * (1 / machine.increments + (g - 1) / machine.tests),
        "flushing": times * int32 / machine.host,
        "reducing": reduced / machine.link,
    }
    read, exchange, count, flush, reduce = seconds.values()
    total, limit = max(read, exchange, count) + flush + reduce, max(TERMS, key=lambda name: seconds[name])
    sizes = {"table_bytes": int32, "exchanged_bytes": exchanged, "reduced_bytes": reduced}
    return {"split": g, "flushes": times, **seconds, "seconds": total, "limit": limit, **sizes}


def training(work: Work, machine: Machine, devices: int, batch: float = 1e6) -> dict[str, float]:
    """Seconds of an epoch of data-parallel Adagrad on the same tables: its compute, its gradients, columns split instead."""
    (T, V, K), n = work, devices
    sent = gradient_bytes(work, n, batch, smallest_split(work, machine, n, training=True))
    moved = 12 * K * V * T / n + 5 * math.ceil(T / batch) * table_bytes(work) / n
    seconds = {"compute": moved / machine.bandwidth, "gradients": sent / machine.link}
    return {**seconds, "columns": column_bytes(work, n) / machine.link, "gradient_bytes": sent}


def trillion() -> list[dict[str, Any]]:
    """A row per machine, vocabulary and number of devices, for a trillion tokens and K = 4."""
    rows = []
    for name, V, n in itertools.product(MACHINES, (50_000, 128_000, 256_000), (64 * 2**i for i in range(7))):
        job = Work(1e12, V, 4), MACHINES[name], n
        rows.append({"machine": name, "vocab_size": V, "devices": n, **counting(*job), **training(*job)})
    return rows


COLUMNS = [
    *(Column("machine", "machine"), Column("vocabulary", "vocab_size", ","), Column("devices", "devices", "d")),
    *(Column("g", "split", "d"), Column("table GB", "table_bytes", ".1f", 1e-9)),
    *(Column(f"{name} s", name, ".1f") for name in TERMS),
    *(Column("total s", "seconds", ".0f", bold=True), Column("limit", "limit")),
    *(Column(f"training: {name} s", name, ",.0f") for name in TRAINING),
    Column("bytes ratio", lambda row: row["gradient_bytes"] / (row["exchanged_bytes"] + row["reduced_bytes"]), ",.0f"),
]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds against devices, one panel per machine and vocabulary."""
    sizes = sorted({row["vocab_size"] for row in rows})
    lines: dict[str, dict[str, Any]] = {name: {"color": c, "marker": "."} for name, c in zip(TERMS, COLOURS, strict=False)}
    lines["seconds"] = {"color": "black", "marker": ".", "linewidth": 2.5, "label": "counting pass, total"}
    lines |= {name: {"color": "gray", "linestyle": s, "label": f"training: {name}"} for name, s in TRAINING.items()}
    with figure(path, len(MACHINES), len(sizes), size=(13.4, 6.2), sharex=True, sharey=True) as axes:
        for ax, (machine, V) in zip(axes.flat, ((m, V) for m in MACHINES for V in sizes), strict=True):
            shown = [row for row in rows if (row["machine"], row["vocab_size"]) == (machine, V)]
            n = [row["devices"] for row in shown]
            for name, style in lines.items():
                ax.plot(n, [row[name] or math.nan for row in shown], **{"label": name, **style})
            ax.set(xscale="log", yscale="log", xticks=n, xticklabels=n, title=f"{machine}s, vocabulary {V:,}")
            ax.set(xlabel="devices", ylabel="seconds")
            ax.xaxis.set_minor_locator(NullLocator())
            ax.label_outer()
        legend_outside(axes[0, -1])


def main(out: Path = Path("docs")) -> None:
    """Print the table of docs/trillion_tokens.md, and draw its figure into the folder --out."""
    rows = trillion()
    draw(rows, out / "trillion_tokens.png")
    print("\n".join(markdown_table(COLUMNS, [row for row in rows if row["devices"] in (64, 256, 1024, 4096)])))


if __name__ == "__main__":
    tyro.cli(main)

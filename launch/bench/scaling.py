"""The bench of counting over devices and processes: weak and strong scaling, and the bytes that it moves."""

import functools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import NullLocator

from jexplicit.data.contexts import PAD
from jexplicit.runs.bounds import PositiveInt
from jexplicit.runs.command import Preset
from jexplicit.runs.figures import COLOURS, figure, legend_outside
from jexplicit.runs.progress import stage
from jexplicit.runs.tables import Column, markdown_table
from jexplicit.runs.timing import cpu_cores
from launch.bench.counting_worker import Request, Setting
from launch.bench.harness import Bench, BenchConfig, Comparison, Timings, all_cores, ratio_columns
from launch.bench.pod import all_reduce_bytes, column_bytes, gradient_bytes, reduce_scatter_bytes, table_bytes
from launch.bench.streams import StreamTokens, VocabSize, zipf_stream
from launch.bench.workers import Workers, peak_of, working

_batch = 8192  # positions per step of the training that counting is compared with


@dataclass(frozen=True)
class Scaling(BenchConfig):
    """Weak and strong scaling of counting a Zipf stream over virtual CPU devices and processes, and the bytes that counting and
    data-parallel training exchange. All configurations count the same tables, which is checked first."""

    tokens: StreamTokens = 16_000_000
    """Number of positions per device in weak scaling. In strong scaling every configuration counts as many as the largest one
    in weak scaling."""
    vocab_size: VocabSize = 2050
    """Vocabulary size, including <pad>. The default is small, so that there are four times as many pairs as table cells, as
    with a trillion tokens on some hundred devices."""
    radius: PositiveInt = 4
    """Context length K, in tokens: K pairs per position."""
    devices: tuple[PositiveInt, ...] = (1, 2, 4, 8)
    """Numbers of virtual CPU devices, of all processes together. One device in one process is always measured."""
    processes: tuple[PositiveInt, ...] = (1, 2)
    """Numbers of processes, which share the devices evenly; combinations that do not divide are left out."""


class Case(NamedTuple):
    """Weak or strong scaling on so many devices in total, shared by so many processes."""

    mode: str
    devices: int
    processes: int

    def __str__(self) -> str:
        return f"{self.mode}, {self.devices} devices of {self.processes} processes"


def configurations(config: Scaling) -> list[tuple[int, int]]:
    """Pairs of devices and processes."""
    shared = {(n, P) for n in config.devices for P in config.processes if n % P == 0}
    return sorted({(1, 1), *shared}, key=lambda pair: pair[::-1])


def comparisons(config: Scaling, folder: Path) -> Iterator[Comparison]:
    """All configurations, in weak and in strong scaling, in the same rounds."""
    pairs, N, K = configurations(config), config.vocab_size, config.radius
    most = max(n for n, _ in pairs)
    cases = {str(case): case for case in (Case(mode, n, P) for mode in ("weak", "strong") for n, P in pairs)}
    tokens = {name: config.tokens * (case.devices if case.mode == "weak" else most) for name, case in cases.items()}
    stream = zipf_stream(np.random.default_rng(config.seed), config.tokens * most, N)
    with tempfile.TemporaryDirectory(prefix="jexplicit-") as scratch:
        requests = {}
        for length in sorted(set(tokens.values())):
            x = stream[: length + 1].copy()
            x[-1] = PAD  # the last document ends where the stream is cut
            np.save(Path(scratch, f"{length}.npy"), x)
            requests[length] = Request(str(Path(scratch, f"{length}.npy")))
        del stream
        with working({(n, P): Setting(n // P, N, K, processes=P) for n, P in pairs}) as workers:
            with stage("checking that all configurations agree"):
                check_agreement(workers, [(case, requests[tokens[name]]) for name, case in cases.items()])
            yield Comparison(
                cases={
                    name: functools.partial(workers[case.devices, case.processes].ask, requests[tokens[name]])
                    for name, case in cases.items()
                },
                fields={"experiment": "measured", "vocab_size": N, "radius": K, "counts_equal": True},
                row=lambda name, timings: _row(config, cases[name], tokens[name], name, timings),
            )


def check_agreement(workers: dict[tuple[int, int], Workers], asked: Sequence[tuple[Case, Request]]) -> None:
    """Refuse a configuration that counts other tables than one device does; this compiles all of them."""
    alone = functools.cache(lambda request: workers[1, 1].ask(request).digest)
    for case, request in asked:
        if workers[case.devices, case.processes].ask(request).digest != alone(request):
            raise ValueError(f"{case} disagree with one device: the counts differ; fix it before timing it")


def touched_rows(vocab_size: int, positions: float) -> float:
    """Expected number of distinct tokens in draws from Zipf's law: `sum_i 1 - (1 - p_i)^positions`, `p_i ~ 1 / i`.

    Example:
        >>> touched_rows(100, 1), round(touched_rows(100, 1e9), 6)
        (1.0, 100.0)
    """
    p = 1 / np.arange(1, vocab_size + 1)
    p /= p.sum()
    return float(np.sum(-np.expm1(positions * np.log1p(-p)))) if vocab_size > 1 else 1.0


def _row(config: Scaling, case: Case, tokens: int, name: str, timings: Timings) -> dict[str, Any]:
    n, P, cores = case.devices, case.processes, cpu_cores()
    share = n if case.mode == "strong" else 1  # of the work of one device
    clocks = ("seconds", "count_seconds", "cpu_seconds")
    wall, count, cpu = (timings.ratio(name, str(Case(case.mode, 1, 1)), clock) for clock in clocks)
    N, size, steps = config.vocab_size, table_bytes(config.vocab_size, config.radius), ceil(tokens / _batch)
    gradients = gradient_bytes(tokens, size, n, _batch)
    return {
        **case._asdict(),
        "tokens": tokens,
        "tokens_per_second": tokens / timings.medians(name)["seconds"],
        "efficiency": wall.median / share,
        "efficiency_low": wall.low / share,
        "efficiency_high": wall.high / share,
        "count_efficiency": count.median / share,
        "cpu_efficiency": cpu.median * n / share,
        "limit": min(n, cores) / n,
        "peak_bytes": peak_of(timings.rounds[name]),
        # an all-reduce over the devices of a process, then one over the processes
        "bytes_reduced": all_reduce_bytes(size, n // P) + all_reduce_bytes(size, P),
        "bytes_reduce_scattered": reduce_scatter_bytes(size, n),
        "training_batch": _batch,
        "training_steps": steps,
        "training_bytes_per_step": gradients / steps,
        "training_all_reduce_bytes": gradients,
        "training_sharded_bytes": gradients,  # gradients reduce-scattered, tables gathered: the same volume
        "training_touched_bytes": gradients * touched_rows(N, _batch) / N,
        "training_columns_bytes": column_bytes(tokens, N, n),
    }


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Weak and strong scaling: efficiency against devices, and what the cores allow."""
    limits = {row["devices"]: row["limit"] for row in sorted(rows, key=lambda row: row["devices"])}
    with figure(path, columns=2, size=(9.5, 3.7), sharey=True) as axes:
        titles = {"weak": "weak: equal tokens per device", "strong": "strong: equal tokens in total"}
        for ax, (mode, title) in zip(axes.flat, titles.items(), strict=True):
            ax.plot(list(limits), list(limits.values()), "k--", label="limit of the cores")
            for P, colour, marker in zip(sorted({row["processes"] for row in rows}), COLOURS, "os^vDPX", strict=False):
                shown = [row for row in rows if (row["mode"], row["processes"]) == (mode, P)]
                n, label = [row["devices"] for row in shown], f"{P} process{'es' * (P > 1)}"
                style = {"marker": marker, "color": colour}
                low, middle, high = ([row[f"efficiency{end}"] for row in shown] for end in ("_low", "", "_high"))
                ax.plot(n, middle, label=label, **style)
                ax.vlines(n, low, high, color=colour)
                counting = [row["count_efficiency"] for row in shown]
                ax.plot(n, counting, linestyle=":", alpha=0.6, label=f"{label}, without the reduction", **style)
            ax.set(xscale="log", title=title, xlabel="virtual devices", xticks=list(limits), xticklabels=list(limits))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_ylim(bottom=0)
        axes[0, 0].set_ylabel("efficiency against one device")
        legend_outside(axes[0, 1])


def bytes_moved(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The section on communication."""
    shown = [row for row in rows if row["mode"] == "strong" and row["processes"] == 1 and row["devices"] > 1]
    return [
        "## Bytes that a device sends",
        "",
        f"One counting pass against one epoch of data-parallel Adagrad in steps of {_batch} positions, in GB:",
        *markdown_table(_byte_columns, shown),
        _byte_notes,
        "docs/trillion_tokens.md extrapolates both to a trillion tokens (`python -m launch.bench pod`).",
        "",
    ]


_byte_columns = [
    Column("devices", "devices", "d"),
    Column("steps", "training_steps", ",d"),
    Column("counting, sharded", "bytes_reduce_scattered", ",.3g", 1e-9),
    Column("counting, everywhere", "bytes_reduced", ",.3g", 1e-9),
    Column("gradients per step", "training_bytes_per_step", ",.3g", 1e-9),
    Column("gradients", "training_all_reduce_bytes", ",.0f", 1e-9),
    Column("touched rows", "training_touched_bytes", ",.0f", 1e-9),
    Column("columns split", "training_columns_bytes", ",.3g", 1e-9),
]
_byte_notes = """\
* *Counting, sharded* is a reduce-scatter, `4 K V^2 (n - 1) / n`: enough if every device keeps its own columns. *Counting,
  everywhere* is the all-reduce of the measured runs.
* *Gradients* are all-reduced in every step. With sharded state they are reduce-scattered and the tables gathered: the same
  volume.
* *Touched rows* exchanges only the rows that the contexts of a step touch, without their indices. A noise model whose gradient
  touches every row has no such saving.
* *Columns split* keeps 1/n of the columns on each device and no replicas: tokens are gathered and two scalars per position are
  summed. It moves the least of any training, but needs an exchange within every step.
"""

BENCH = Bench(
    name="scaling",
    config=Scaling,
    comparisons=comparisons,
    methods={},
    timer=lambda call: call(),
    machine=all_cores,
    sizes=(),
    notes="""\
Efficiency is the median over rounds of T1 / Tn (weak) or T1 / (n Tn) (strong), with its quartiles; T1 is the time of one device
in the same round. *Limit* is what c cores allow n devices, min(n, c) / n; cores shared with other work give less. *Counting*
leaves out the reduction; *CPU* compares CPU seconds per token, whatever the number of cores. *Reduced* is what a device sends.
""",
    columns=[
        Column("mode", "mode"),
        Column("devices", "devices", "d"),
        Column("processes", "processes", "d"),
        Column("M tokens", "tokens", ".3g", 1e-6),
        Column("s", "seconds", ".2f"),
        Column("reduction s", "reduce_seconds", ".2f"),
        Column("M tokens/s", "tokens_per_second", ".2f", 1e-6),
        *ratio_columns("efficiency", "efficiency"),
        Column("limit", "limit", ".2f"),
        Column("counting", "count_efficiency", ".2f"),
        Column("CPU", "cpu_efficiency", ".2f"),
        Column("MB reduced", "bytes_reduced", ",.0f", 1e-6),
        Column("GB peak", "peak_bytes", ".2f", 1e-9),
    ],
    presets={
        "tiny": Preset(
            Scaling(tokens=5_000, vocab_size=100, radius=2, devices=(1, 2), processes=(1,), rounds=2),
            "5,000 tokens per device on 1 and 2 devices; half a minute on 2 CPU cores.",
        ),
        "full": Preset(Scaling(rounds=9), "16 M tokens per device; 6 minutes and 4 GB on 2 CPU cores."),
    },
    appendix=bytes_moved,
    draw=draw,
    figure="scaling_measured.png",
)

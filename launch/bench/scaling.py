"""The bench of counting over devices and processes: weak and strong scaling, and the bytes that it moves."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.experiments.rows import Results, Row
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Lines, Table
from jexplicit.runs.progress import stage
from launch.bench.config import Scaling
from launch.bench.shared.harness import Comparison, Timings, bench, job_columns, ratio_columns
from launch.bench.shared.streams import zipf_stream
from launch.bench.shared.timing import cpu_cores
from launch.bench.shared.workers import Answer, Setting, working

_batch = 8192  # positions per step of the training that counting is compared with


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
    """All configurations, in weak and in strong scaling, count in the same rounds, each in processes of its own that stay.

    * *Efficiency* is the median over rounds of T1 / Tn (weak) or T1 / (n Tn) (strong), with its quartiles; T1 is the time of
      one device in the same round.
    * *Limit* is what c cores allow n devices, min(n, c) / n; cores shared with other work give less.
    * *Counting* leaves out the reduction; *CPU* compares CPU seconds per token, whatever the number of cores.
    * *Reduced* is what a device sends. The epoch is one of data-parallel training in steps of 8192 positions.
    """
    pairs, N, K = configurations(config), config.vocab_size, config.radius
    most = max(n for n, _ in pairs)
    cases = {str(case): case for case in (Case(mode, n, P) for mode in ("weak", "strong") for n, P in pairs)}
    tokens = {name: config.tokens * (case.devices if case.mode == "weak" else most) for name, case in cases.items()}
    stream = zipf_stream(np.random.default_rng(config.seed), config.tokens * most, N)
    with tempfile.TemporaryDirectory(prefix="jexplicit-") as scratch:
        paths = {length: str(Path(scratch, f"{length}.npy")) for length in tokens.values()}
        for length, path in paths.items():
            np.save(path, np.append(stream[:length], stream[:1]))  # the last document ends where the stream is cut
        del stream
        with working({(n, P): Setting(n // P, N, K, processes=P) for n, P in pairs}) as workers:
            calls = {name: partial(workers[case[1:]].ask, paths[tokens[name]]) for name, case in cases.items()}
            with stage("checking that all configurations agree"):
                check_counts(calls, {name: partial(workers[1, 1].ask, paths[tokens[name]]) for name in cases})
            fields = {"experiment": "measured", "vocab_size": N, "radius": K, "counts_equal": True}
            yield Comparison(calls, fields, lambda name, timings: _row(config, cases[name], tokens[name], timings))


def check_counts(calls: Mapping[str, Callable[[], Answer]], alone: Mapping[str, Callable[[], Answer]]) -> None:
    """Refuse a configuration that counts other tables than one device does; this compiles all of them."""
    for name, call in calls.items():
        if call().digest != alone[name]().digest:
            raise ValueError(f"{name} disagree with one device: the counts differ; fix it before timing it")


def touched_rows(vocab_size: int, positions: float) -> float:
    """Expected number of distinct tokens in draws from Zipf's law: `sum_i 1 - (1 - p_i)^positions`, `p_i ~ 1 / i`.

    Example:
        >>> touched_rows(100, 1), round(touched_rows(100, 1e9), 6)
        (1.0, 100.0)
    """
    p = 1 / np.arange(1, vocab_size + 1)
    return float(np.sum(-np.expm1(positions * np.log1p(-p / p.sum())))) if vocab_size > 1 else 1.0


def all_reduce_bytes(size: float, n: int) -> float:
    """Bytes that each of n devices sends to all-reduce arrays of `size` bytes; half of them to reduce-scatter them."""
    return 2 * size * (n - 1) / n


def _row(config: Scaling, case: Case, tokens: int, timings: Timings) -> dict[str, Any]:
    (mode, n, P), N, name = case, config.vocab_size, str(case)
    share = n if mode == "strong" else 1  # of the work of one device
    clocks = ("seconds", "count_seconds", "cpu_seconds")
    wall, count, cpu = (timings.ratio(name, str(Case(mode, 1, 1)), clock) for clock in clocks)
    size, steps = 4 * config.radius * N**2, ceil(tokens / _batch)
    gradients = steps * all_reduce_bytes(size, n)
    return {
        **case._asdict(),
        "tokens": tokens,
        "tokens_per_second": tokens / timings.median(name, "seconds"),
        **{f"efficiency{end}": ratio / share for end, ratio in zip(("", "_low", "_high"), wall, strict=True)},
        "count_efficiency": count.median / share,
        "cpu_efficiency": cpu.median * n / share,
        "limit": min(n, cpu_cores()) / n,
        "peak_bytes": timings.peak_bytes(name),
        # an all-reduce over the devices of a process, then one over the processes
        "bytes_reduced": all_reduce_bytes(size, n // P) + all_reduce_bytes(size, P),
        "bytes_reduce_scattered": all_reduce_bytes(size, n) / 2,
        "training_batch": _batch,
        "training_steps": steps,
        "training_bytes_per_step": gradients / steps,
        "training_all_reduce_bytes": gradients,
        "training_sharded_bytes": gradients,  # gradients reduce-scattered, tables gathered: the same volume
        "training_touched_bytes": gradients * touched_rows(N, _batch) / N,
        # tokens are gathered, two float32 per position are summed
        "training_columns_bytes": all_reduce_bytes(8 * tokens + np.min_scalar_type(N - 1).itemsize * tokens / 2, n),
    }


def _curves(results: Results) -> list[Row]:
    """Efficiency with and without the reduction, and what the cores allow."""
    panels = {"efficiency": "", "count_efficiency": ", without the reduction"}
    return [
        {"devices": row["devices"], "panel": f"{row['mode']} scaling{label}", "curve": curve, "y": y}
        for field, label in panels.items()
        for row in results.rows
        for curve, y in {f"processes: {row['processes']}": row[field], "limit of the cores": row["limit"]}.items()
    ]


COLUMNS = [
    *job_columns("M tokens", "s"),
    Column("reduction s", "reduce_seconds", ".2f"),
    *job_columns("M tokens/s"),
    *ratio_columns("efficiency", "efficiency"),
    Column("limit", "limit", ".2f"),
    Column("counting", "count_efficiency", ".2f"),
    Column("CPU", "cpu_efficiency", ".2f"),
    Column("MB reduced", "bytes_reduced", ",.0f", 1e-6),
    *job_columns("GB peak"),
]
SENT = [
    Column("devices", "devices", "d"),
    Column("GB that a device sends to count", "bytes_reduced", ",.3g", 1e-9),
    Column("in an epoch of Adagrad", "training_all_reduce_bytes", ",.0f", 1e-9),
    Column("that exchanges only touched rows", "training_touched_bytes", ",.0f", 1e-9),
    Column("with columns split over devices", "training_columns_bytes", ",.3g", 1e-9),
]
MEASURED = Lines(
    *("scaling_measured", "devices", "y", "curve", "panel", _curves),
    styles={"limit of the cores": {"color": "black", "linestyle": "--"}},
    axes={"xlabel": "virtual devices", "ylabel": "efficiency against one device"},
    size=(3.4, 3.4),
    sharey=True,
    finish=lambda axes: [ax.xaxis.get_major_locator().set_params(integer=True) for ax in axes.flat],
)
VIEWS = [MEASURED, Table(SENT, rows={"mode": "strong", "processes": 1})]
run = bench("scaling", comparisons, COLUMNS, sizes=(), jobs=True, more=VIEWS)

"""What every bench does alike: the clock, the rows, the table, the figure, the report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from jexplicit.runs.command import Preset
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from jexplicit.runs.timing import Timing, interleaved, kept_memory, median_ratio, one_thread
from launch.bench.figures import ratio_bars

_reading = """\
A ratio is the median, over interleaved rounds, of peer CPU seconds / own CPU seconds in the same round: above 1 is faster
than the peer. Rates are per CPU second of one thread; seconds are medians, of the whole process. *Kernel* is the part of
the CPU seconds spent in the operating system, mostly on memory that is touched for the first time: a ratio of methods that
spend much of their time there says more of the system than of them. Every timing is in metrics.jsonl.
"""


class Bench(NamedTuple):
    """A subcommand of launch.bench.

    config: a frozen dataclass with `out`, `rounds` and `seed`; its docstring and those of its fields become `--help`.
    check: raises ValueError on flags that make no sense, before anything is written.
    measure: `config, folder -> rows`, each with `method`, the size and what the columns name.
    methods: what is compared; their docstrings go into the report.
    ours: the methods that the figure colours.
    ratio: the field that the figure draws, None where there is no peer, and the label of its axis.
    columns: heading -> (field of a row, factor, format), for the terminal and the report.
    presets: named configs.
    machine: where to run; yields a statement of it for the rows.
    size: the flag, and field of a row, that has the K of each comparison.
    """

    config: type
    check: Callable[[Any], None]
    measure: Callable[[Any, RunFolder], Iterator[dict[str, Any]]]
    methods: Mapping[str, Callable]
    ours: Sequence[str]
    ratio: tuple[str, str]
    columns: Mapping[str, tuple[str, float, str]]
    presets: Mapping[str, Preset]
    machine: Callable[[], AbstractContextManager[str]] = one_thread
    size: str = "radius"


SECONDS = {
    "CPU s": ("cpu_seconds", 1, ".3f"),
    "kernel s": ("kernel_seconds", 1, ".3f"),
    "wall s": ("wall_seconds", 1, ".3f"),
}


def run_bench(name: str, bench: Bench, config: Any) -> None:
    """The whole job of a subcommand."""
    if config.rounds < 1:
        raise ValueError(f"--rounds {config.rounds}: time every method at least once")
    sizes = getattr(config, bench.size)
    if not sizes or min(sizes) < 1:
        what = {"radius": "context lengths of at least 1 token", "layers": "numbers of layers, at least 1"}[bench.size]
        raise ValueError(f"--{bench.size} {sizes}: give {what}")
    bench.check(config)
    config = replace(config, out=config.out or free_folder(f"runs/bench-{name}"))
    with kept_memory() as memory, bench.machine() as threads:
        folder = RunFolder(config.out, config)
        console.print(f"[bold]bench {name}[/] on {threads}; {memory}")
        for row in bench.measure(config, folder):
            folder.add_row({"bench": name, **row, "rounds": config.rounds, "threads": threads, "memory": memory})
    rows = folder.rows()
    figure = folder.path / "figures" / f"bench_{name}.png"
    drawn = [row for row in rows if row[bench.ratio[0]] is not None]
    if drawn:
        ratio_bars(drawn, ratio=bench.ratio[0], ours=bench.ours, label=bench.ratio[1], path=figure, size=bench.size)
    (folder.path / "report.md").write_text(_report(name, bench, rows, with_figure=bool(drawn)))
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("method", "K", *bench.columns):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=heading == "method")
    for row in rows:
        table.add_row(*_cells(bench, row))
    console.print(table)
    console.print(f"report {folder.path / 'report.md'}{f', figure {figure}' if drawn else ''}", soft_wrap=True)


def compare(
    config: Any, folder: RunFolder, calls: Mapping[str, Callable[[], Any]], K: int, **setting: int
) -> Iterator[tuple[str, dict[str, float], Callable[[str], float]]]:
    """Time the calls, log every timing, and give per method its median seconds and its ratio to a peer.

    setting: what sets this comparison apart from another at the same K.
    """
    told = "".join(f", {name.replace('_', ' ')} {value}" for name, value in setting.items())
    with stage(f"timing, K = {K}{told}", "calls") as progress:
        timings = interleaved(calls, rounds=config.rounds, seed=config.seed, progress=progress)
    cpu = {name: [timing.cpu for timing in times] for name, times in timings.items()}
    for name, times in timings.items():
        folder.log(event="timings", method=name, radius=K, **setting, seconds=[timing._asdict() for timing in times])
        medians = np.median(times, axis=0).tolist()
        seconds = {f"{clock}_seconds": median for clock, median in zip(Timing._fields, medians, strict=True)}
        yield name, seconds, lambda peer, name=name: median_ratio(cpu[peer], cpu[name])


def free_folder(path: str) -> str:
    """The path, or the first of path-2, path-3, ... that is not there."""
    taken, n = path, 1
    while Path(taken).exists():
        n += 1
        taken = f"{path}-{n}"
    return taken


def _cells(bench: Bench, row: dict[str, Any]) -> list[str]:
    values = ((row[field], factor, form) for field, factor, form in bench.columns.values())
    cells = ("-" if value is None else format(value * factor, form) for value, factor, form in values)
    return [row["method"], str(row[bench.size]), *cells]


def _report(name: str, bench: Bench, rows: Sequence[dict[str, Any]], *, with_figure: bool) -> str:
    headings = ["method", "K", *bench.columns]
    shown = dict.fromkeys(row["method"] for row in rows)
    lines = [
        f"# Bench: {name}",
        "",
        f"{bench.config.__doc__} {rows[0]['rounds']} rounds on {rows[0]['threads']}; {rows[0]['memory']}.",
        "",
        "| " + " | ".join(headings) + " |",
        "|---" * len(headings) + "|",
        *("| " + " | ".join(_cells(bench, row)) + " |" for row in rows),
        "",
        _reading,
        "## What is on the clock",
        "",
        *(f"* **{method}**: {' '.join((bench.methods[method].__doc__ or '').split())}" for method in shown),
        "",
        *([f"![{name}](figures/bench_{name}.png)", ""] if with_figure else []),
    ]
    return "\n".join(lines)

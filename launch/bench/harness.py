"""The harness of every bench: time named cases in interleaved rounds, write rows, report and figure, print the table."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD

from jexplicit.runs.bounds import NonNegativeInt, PositiveInt
from jexplicit.runs.command import Preset
from jexplicit.runs.figures import COLOURS, figure
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.progress import console, stage
from jexplicit.runs.tables import Column, markdown_table, rich_table
from jexplicit.runs.timing import Ratio, cpu_cores, interleave_calls, kept_memory, one_thread, paired_ratio, time_call


@dataclass(frozen=True)
class BenchConfig:
    """Flags of every bench."""

    out: str | None = None
    """New run folder. Default: the first free one of runs/bench-NAME, runs/bench-NAME-2, ..."""
    rounds: PositiveInt = 5
    """Number of rounds. Each times every case once. More rounds give steadier medians."""
    seed: NonNegativeInt = 0
    """Seed of the data, of initial parameters, and of the order of the cases in each round."""


class Timings(NamedTuple):
    """The timings of one comparison: per case one NamedTuple of seconds per round."""

    rounds: Mapping[str, Sequence[Any]]

    def medians(self, case: str) -> dict[str, float]:
        """The median over rounds of every clock (fields that end in `seconds`)."""
        clocks = [name for name in self.rounds[case][0]._fields if name.endswith("seconds")]
        return {name: float(np.median([getattr(timing, name) for timing in self.rounds[case]])) for name in clocks}

    def ratio(self, case: str, peer: str, clock: str) -> Ratio:
        """How many times faster a case is than a peer, by one clock."""
        peers, own = ([getattr(timing, clock) for timing in self.rounds[name]] for name in (peer, case))
        return paired_ratio(peers, own)


class Comparison(NamedTuple):
    """Cases that are timed together.

    cases: name -> call; what is off the clock is done already.
    fields: of every row, the sizes of the bench among them.
    row: `case, timings -> fields` of one case.
    reference: the case whose result the others must reproduce; None if they were compiled and checked already.
    difference: `result, reference result -> text` that describes how they differ, "" if they agree.
    unchecked: cases whose results may differ.
    inspect: `case, result -> fields` that depend on the result.
    """

    cases: Mapping[str, Callable[[], Any]]
    fields: Mapping[str, Any]
    row: Callable[[str, Timings], Mapping[str, Any]]
    reference: str | None = None
    difference: Callable[[Any, Any], str] = lambda result, reference: ""
    unchecked: Sequence[str] = ()
    inspect: Callable[[str, Any], Mapping[str, Any]] = lambda case, result: {}


@contextlib.contextmanager
def one_core() -> Iterator[tuple[str, dict[str, Any]]]:
    """One thread of one core, with freed memory kept: its description, and the fields that it adds to a row."""
    with kept_memory() as memory, one_thread() as threads:
        yield f"{threads}; {memory}", {"threads": threads, "memory": memory}


@contextlib.contextmanager
def all_cores() -> Iterator[tuple[str, dict[str, Any]]]:
    """All cores of the machine."""
    yield f"{cpu_cores()} CPU cores", {"cores": cpu_cores()}


class Bench(NamedTuple):
    """A subcommand of launch.bench.

    name: the subcommand.
    config: a `BenchConfig`; its docstring and those of its fields become `--help`.
    comparisons: `config, run folder -> comparisons`.
    methods: case -> its description, or a function whose docstring describes it, for the report.
    columns: of the table.
    presets: named configs.
    sizes: flags with several values, each a comparison of its own.
    peers: ratio field -> peers, of which the fastest counts. The figure draws the first field.
    ours: the cases that the figure highlights.
    without_peer: cases that no peer compares with: their ratios are None.
    clock: the clock of the ratios.
    timer: times one call.
    machine: context manager that prepares the machine.
    check: raises ValueError for a bad config, before anything is written.
    notes: text below the table.
    appendix: `rows -> lines` at the end of the report.
    draw: `rows, path -> None`, instead of bars of ratios.
    figure: its file name; default bench_NAME.png.
    """

    name: str
    config: type
    comparisons: Callable[[Any, Path], Iterator[Comparison]]
    methods: Mapping[str, Callable | str]
    columns: Sequence[Column]
    presets: Mapping[str, Preset]
    sizes: Sequence[str] = ("radius",)
    peers: Mapping[str, Sequence[str]] = {}
    ours: Sequence[str] = ()
    without_peer: Sequence[str] = ()
    clock: str = "cpu_seconds"
    timer: Callable[[Callable[[], Any]], Any] = time_call
    machine: Callable[[], contextlib.AbstractContextManager[tuple[str, dict[str, Any]]]] = one_core
    check: Callable[[Any], object] = lambda config: None
    notes: str = """\
A ratio is the median over interleaved rounds of peer CPU seconds / own CPU seconds in the same round, with its quartiles; above
1 is faster than the peer. Rates are per CPU second of one thread; seconds are medians, of the whole process. *Kernel* is the
part of the CPU seconds spent in the operating system, mostly on memory touched for the first time: ratios of cases that spend
much of their time there describe the system more than the code. Every timing is in metrics.jsonl.
"""
    appendix: Callable[[Sequence[dict[str, Any]]], list[str]] = lambda rows: []
    draw: Callable[[Sequence[dict[str, Any]], Path], None] | None = None
    figure: str | None = None


METHOD, RADIUS, LAYERS = Column("method", "method"), Column("K", "radius", "d"), Column("K", "layers", "d")
SECONDS = [Column(f"{clock} s", f"{clock.lower()}_seconds", ".3f") for clock in ("CPU", "kernel", "wall")]
_only_in_report = ("quartiles", "kernel s", "wall s", "reduction s", "MB reduced")
_labels = {"radius": "K =", "layers": "K =", "batch_size": "batch size"}


def ratio_columns(heading: str, field: str) -> tuple[Column, Column]:
    """A ratio, and its quartiles."""

    def quartiles(row: Mapping[str, Any]) -> str | None:
        return None if row[field] is None else f"{row[f'{field}_low']:.2f}-{row[f'{field}_high']:.2f}"

    return Column(heading, field, ".2f"), Column("quartiles", quartiles)


def run_bench(bench: Bench, config: Any) -> dict[str, Any]:
    """Run a subcommand."""
    start = time.perf_counter()
    for size in bench.sizes:
        if not getattr(config, size):
            raise ValueError(f"--{size.replace('_', '-')}: give at least one value")
    bench.check(config)
    config = replace(config, out=config.out or free_folder(f"runs/bench-{bench.name}"))
    with bench.machine() as (statement, machine):
        folder = RunFolder(config.out, config)
        console.print(f"[bold]bench {bench.name}[/] on {statement}")
        with contextlib.closing(bench.comparisons(config, folder.path)) as comparisons:  # pyright: ignore[reportArgumentType]
            for comparison in comparisons:
                folder.add_rows(
                    [{**row, "rounds": config.rounds, **machine} for row in measure(bench, comparison, config, folder)]
                )
    rows = folder.rows()
    name = f"figures/{bench.figure or f'bench_{bench.name}.png'}"
    draw = bench.draw or partial(ratio_bars, bench)
    if drawn := bench.draw is not None or any(row[field] is not None for row in rows for field in bench.peers):
        draw(rows, folder.path / name)
    report = [
        *(f"# Bench: {bench.name}", "", f"{' '.join((bench.config.__doc__ or '').split())}", ""),
        f"{config.rounds} interleaved rounds on {statement}.",
        *(*markdown_table(bench.columns, rows), bench.notes),
        *([f"![{bench.name}]({name})", ""] if drawn else []),
        *([*("## What is timed", ""), *_descriptions(bench, rows), ""] if bench.methods else []),
        *bench.appendix(rows),
    ]
    (folder.path / "report.md").write_text("\n".join(report))
    table = rich_table([column for column in bench.columns if column.heading not in _only_in_report], rows)
    table.box, table.padding, table.show_edge, table.columns[0].no_wrap = SIMPLE_HEAD, 0, False, True  # fits 80 columns
    return present_run(folder, table, folder.path / "report.md", start)


def measure(bench: Bench, comparison: Comparison, config: Any, folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Check that the cases agree, time them, log every timing; one row per case."""
    where = _where(bench, comparison.fields)
    inspected = check_agreement(comparison, where)
    with stage(f"timing {where}".strip(), "calls") as progress:
        rounds = interleave_calls(
            comparison.cases, rounds=config.rounds, seed=config.seed, clock=bench.timer, progress=progress
        )
    timings = Timings(rounds)
    for case in comparison.cases:
        folder.log(event="timings", method=case, **comparison.fields, timings=[timing._asdict() for timing in rounds[case]])
        row = {
            "bench": bench.name,
            "method": case,
            **comparison.fields,
            **comparison.row(case, timings),
            **timings.medians(case),
        }
        for field, peers in bench.peers.items():
            present = [] if case in bench.without_peer else [peer for peer in peers if peer in comparison.cases]
            ratio = min((timings.ratio(case, peer, bench.clock) for peer in present), default=Ratio(*[None] * 3))  # pyright: ignore
            row |= {field: ratio.median, f"{field}_low": ratio.low, f"{field}_high": ratio.high}
        yield {**row, **inspected.get(case, {})}


def check_agreement(comparison: Comparison, where: str = "") -> dict[str, Mapping[str, Any]]:
    """Call every case once, which compiles it, and refuse one whose result is not that of the reference.

    Returns:
        case -> fields of its row that depend on the result.

    Raises:
        ValueError: a case that gives another result.
    """
    if comparison.reference is None:
        return {}
    reference = comparison.cases[comparison.reference]()
    inspected = {comparison.reference: comparison.inspect(comparison.reference, reference)}
    for case, call in comparison.cases.items():
        if case == comparison.reference:
            continue
        result = call()
        inspected[case] = comparison.inspect(case, result)
        difference = "" if case in comparison.unchecked else comparison.difference(result, reference)
        if difference:
            raise ValueError(f"{case} disagrees with {comparison.reference} at {where}: {difference}; fix it before timing it")
    return inspected


def ratio_bars(bench: Bench, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel per comparison, one bar per case: its median paired ratio with quartiles, and the peer at 1."""
    field, peers = next(iter(bench.peers.items()))
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: [row[size] for size in bench.sizes]):
        if row[field] is not None:
            panels.setdefault(_where(bench, row), []).append(row)
    size = (3.6 * len(panels) + 1.8, 0.36 * max(map(len, panels.values())) + 1.3)
    with figure(path, columns=len(panels), size=size) as axes:
        for ax, (title, shown) in zip(axes.flat, panels.items(), strict=True):
            ratios = np.array([[row[field], row[f"{field}_low"], row[f"{field}_high"]] for row in shown]).T
            bars = ax.barh(
                [row["method"] for row in shown],
                ratios[0],
                xerr=[ratios[0] - ratios[1], ratios[2] - ratios[0]],
                error_kw={"elinewidth": 1, "capsize": 2},
                color=[COLOURS[0] if row["method"] in bench.ours else COLOURS[-1] for row in shown],
            )
            ax.bar_label(bars, fmt="{:.2f}", padding=3, fontsize=8)
            ax.axvline(1, color="black", linewidth=1, linestyle="--")
            ax.grid(False)
            ax.invert_yaxis()
            ax.margins(x=0.15)
            ax.set(title=title, xlabel="times faster than\n" + " or ".join(peers))


def losses_differ(*, rtol: float) -> Callable[[Any, Any], str]:
    """A `Comparison.difference` of losses."""

    def difference(losses: Any, reference: Any) -> str:
        return "" if np.allclose(losses, reference, rtol=rtol) else f"losses {losses} instead of {reference}"

    return difference


def free_folder(path: str) -> str:
    """The path, or the first of path-2, path-3, ... that does not exist."""
    names = itertools.chain([path], (f"{path}-{n}" for n in itertools.count(2)))
    return next(name for name in names if not Path(name).exists())


def _where(bench: Bench, fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{_labels[size]} {fields[size]}" for size in bench.sizes if size in fields)


def _descriptions(bench: Bench, rows: Sequence[dict[str, Any]]) -> list[str]:
    cases = dict.fromkeys(row["method"] for row in rows)
    texts = {case: about if isinstance(about := bench.methods[case], str) else about.__doc__ or "" for case in cases}
    return [f"* **{case}**: {' '.join(text.split())}" for case, text in texts.items()]

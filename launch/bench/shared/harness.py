"""The one mechanism of the benches: an `Experiment` whose rows are named cases, timed in interleaved rounds.

A ratio to a peer is the median over rounds of the ratios within a round, with its quartiles (launch.bench.shared.timing).
"""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.experiments.experiment import Experiment, Part
from jexplicit.experiments.figures import COLOURS, figure
from jexplicit.experiments.folder import RunFolder
from jexplicit.experiments.rows import Results, Row, groups
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Table, View, picture
from jexplicit.runs.progress import console, stage
from launch.bench.shared.timing import Ratio, cpu_cores, interleave_calls, kept_memory, one_thread, paired_ratio


class Timings(NamedTuple):
    """The timings of one comparison: per case one NamedTuple of seconds per round."""

    rounds: Mapping[str, Sequence[Any]]

    def all(self, case: str, field: str) -> list[Any]:
        """A field of the timings of a case, of each round."""
        return [getattr(timing, field) for timing in self.rounds[case]]

    def median(self, case: str, field: str) -> float:
        """The median over rounds."""
        return float(np.median(self.all(case, field)))

    def peak_bytes(self, case: str) -> int | None:
        """The largest peak memory; None if the system does not report it."""
        return max(self.all(case, "peak_bytes")) or None

    def ratio(self, case: str, peer: str, clock: str) -> Ratio:
        """How many times faster a case is than a peer, by one clock."""
        return paired_ratio(self.all(peer, clock), self.all(case, clock))


class Comparison(NamedTuple):
    """Cases that are timed together.

    cases: name -> call; what is off the clock is done already.
    fields: of every row, the sizes of the bench among them; no other comparison of the bench has the same.
    row: `case, timings -> fields` of one case.
    reference: the case whose result the others must reproduce; None if they were compiled and checked already.
    difference: `result, reference result -> text` that describes how they differ, "" if they agree.
    unchecked: cases whose results may differ.
    inspect: `case, result -> fields` that depend on the result.
    """

    cases: Mapping[str, Callable[[], Any]]
    fields: Row
    row: Callable[[str, Timings], Row] = lambda case, timings: {}
    reference: str | None = None
    difference: Callable[[Any, Any], str] = lambda result, reference: ""
    unchecked: Sequence[str] = ()
    inspect: Callable[[str, Any], Row] = lambda case, result: {}


@contextlib.contextmanager
def one_core(jobs: bool) -> Iterator[Row]:
    """One thread of one core, with freed memory kept, or for jobs all cores: what they add to a row."""
    if jobs:
        yield {"cores": cpu_cores()}
        return
    with kept_memory() as memory, one_thread() as threads:
        yield {"threads": threads, "memory": memory}


_of_jobs = [
    Column("M tokens", "tokens", ".3g", 1e-6),
    Column("s", "seconds", ".2f"),
    Column("CPU s", "cpu_seconds", ".2f"),
    Column("M tokens/s", "tokens_per_second", ".2f", 1e-6),
    Column("GB peak", "peak_bytes", ".2f", 1e-9),
]


def job_columns(*headings: str) -> list[Column]:
    """Columns of benches whose cases are jobs."""
    return [column for heading in headings for column in _of_jobs if column.heading == heading]


_seconds = [Column(f"{clock} s", f"{clock.lower()}_seconds", ".3f") for clock in ("CPU", "kernel", "wall")]
_only_in_report = ("quartiles", "CPU s", "kernel s", "wall s", "reduction s", "MB reduced")
_labels = {"radius": "K", "layers": "K", "batch_size": "batch size", "contexts": "tokens of a context"}
_of_ratios = """A ratio is the median over interleaved rounds of the peer's seconds / own seconds in the same round, with its
quartiles; above 1 is faster. """
_of_seconds = "Seconds are medians; *kernel* is the part of the CPU seconds spent in the operating system."


def ratio_columns(heading: str, field: str) -> list[Column]:
    """A ratio, and its quartiles."""

    def quartiles(row: Row) -> str:
        return "" if row.get(field) is None else f"{row[f'{field}_low']:.2f}-{row[f'{field}_high']:.2f}"

    return [Column(heading, field, ".2f"), Column("quartiles", quartiles)]


def bench(
    name: str,
    comparisons: Callable[[Any, Path], Iterator[Comparison]],
    columns: Sequence[Column],
    *,
    sizes: Sequence[str] = ("radius",),
    peers: Mapping[str, tuple[str, Sequence[str]]] = {},
    ours: Sequence[str] = (),
    without_peer: Sequence[str] = (),
    clock: str = "cpu_seconds",
    jobs: bool = False,
    check: Callable[[Any], object] = lambda config: None,
    more: Sequence[View] = (),
) -> Callable[[Any], dict[str, Any]]:
    """The `run` of a subcommand of launch.bench.

    Args:
        name: the subcommand.
        comparisons: `config, run folder -> comparisons`; its docstring says in the report what is timed.
        columns: of the table, beside those of the method, the sizes and the ratios.
        sizes: flags with several values, each a comparison of its own.
        peers: ratio field -> heading, and peers of which the fastest counts. The figure draws the first field.
        ours: the cases that the figure highlights.
        without_peer: cases that no peer compares with: their ratios are None.
        clock: the clock of the ratios.
        jobs: the cases are jobs on all cores that return their own timing; otherwise calls, which are timed on one core.
        check: raises ValueError for a bad config, before anything is written.
        more: views at the end of the report.
    """

    def run(config: Any) -> dict[str, Any]:
        if empty := [size for size in sizes if not getattr(config, size)]:
            raise ValueError(f"--{empty[0].replace('_', '-')}: give at least one value")
        check(config)
        with one_core(jobs) as about:  # before the experiment starts JAX
            measure = partial(timed_parts, about)
            experiment = Experiment("bench", type(config), measure, views, title=f"Bench: {name}", terminal=terminal)
            return experiment.run(replace(config, out=config.out or free_folder(f"runs/bench-{name}")))

    def where(row: Row) -> str:
        return ", ".join(f"{_labels[size]} = {row[size]}" for size in sizes if size in row)

    def timed_parts(about: Row, config: Any, folder: RunFolder) -> Iterator[Part]:
        console.print(f"[bold]bench {name}[/] on {_machine(about)}")
        with contextlib.closing(comparisons(config, folder.path)) as found:  # pyright: ignore[reportArgumentType]
            for comparison in found:
                yield {**comparison.fields}, partial(rows, comparison, config, folder, about)

    def rows(comparison: Comparison, config: Any, folder: RunFolder, about: Row) -> Iterator[Row]:
        at = where(comparison.fields)
        inspected = check_agreement(comparison, at)
        with stage(f"timing {at}".strip(), "calls") as progress:
            clocks: Any = {"clock": lambda call: call()} if jobs else {}
            rounds = interleave_calls(comparison.cases, rounds=config.rounds, seed=config.seed, progress=progress, **clocks)
        timings = Timings(rounds)
        for case, timed in rounds.items():
            folder.log(event="timings", method=case, **comparison.fields, timings=[timing._asdict() for timing in timed])
            seconds = {field: timings.median(case, field) for field in timed[0]._fields if field.endswith("seconds")}
            row = {"bench": name, "method": case, **comparison.row(case, timings), **seconds}
            for field, (_, names) in peers.items():
                present = [] if case in without_peer else [peer for peer in names if peer in comparison.cases]
                ratio = min((timings.ratio(case, peer, clock) for peer in present), default=(None, None, None))
                row |= dict(zip((field, f"{field}_low", f"{field}_high"), ratio, strict=True))
            yield {**row, **inspected.get(case, {}), "rounds": config.rounds, **about}

    bars = [partial(ratio_bars, f"bench_{name}", field, names, where, ours) for field, (_, names) in [*peers.items()][:1]]
    shown = [Column("method", "method"), *(Column(_labels[size], size, "d") for size in sizes), *columns]
    shown += [column for field, (heading, _) in peers.items() for column in ratio_columns(heading, field)]
    shown += [] if jobs else _seconds
    terminal = Table([column for column in shown if column.heading not in _only_in_report])
    about_cases = [inspect.getdoc(comparisons) or "", ""]
    note = "" if jobs else (_of_ratios if peers else "") + _of_seconds
    views = [_rounds, Table(shown, note=note), *bars, lambda results: about_cases, *more]
    return run


def check_agreement(comparison: Comparison, where: str = "") -> dict[str, Row]:
    """Call every case once, which compiles it, and refuse one whose result is not that of the reference.

    Returns:
        case -> fields of its row that depend on the result.

    Raises:
        ValueError: a case that gives another result.
    """
    if comparison.reference is None:
        return {}
    reference, inspected = comparison.cases[comparison.reference](), {}
    for case, call in comparison.cases.items():
        result = reference if case == comparison.reference else call()
        inspected[case] = comparison.inspect(case, result)
        if case not in comparison.unchecked and (difference := comparison.difference(result, reference)):
            raise ValueError(f"{case} disagrees with {comparison.reference} at {where}: {difference}; fix it before timing it")
    return inspected


def ratio_bars(
    name: str, field: str, peers: Sequence[str], where: Callable[[Row], str], ours: Sequence[str], results: Results
) -> list[str]:
    """A panel for each comparison: a bar for the median paired ratio of each case, with its quartiles, and the peer at 1."""
    panels = groups([row for row in results.rows if row.get(field) is not None], where)
    if not panels:
        return []
    size = (3.6 * len(panels) + 1.8, 0.36 * max(map(len, panels.values())) + 1.3)
    with figure(results.path / "figures" / f"{name}.png", columns=len(panels), size=size) as axes:
        for ax, (title, shown) in zip(axes.flat, panels.items(), strict=True):
            ratio, low, high = np.array([[row[field], row[f"{field}_low"], row[f"{field}_high"]] for row in shown]).T
            colours = [COLOURS[0] if row["method"] in ours else COLOURS[-1] for row in shown]
            style = {"xerr": [ratio - low, high - ratio], "error_kw": {"elinewidth": 1, "capsize": 2}, "color": colours}
            ax.bar_label(ax.barh([row["method"] for row in shown], ratio, **style), fmt="{:.2f}", padding=3, fontsize=8)
            ax.axvline(1, color="black", linewidth=1, linestyle="--")
            ax.grid(False)
            ax.invert_yaxis()
            ax.margins(x=0.15)
            ax.set(title=title, xlabel="times faster than\n" + " or ".join(peers))
    return picture(results, name)


def losses_differ(rtol: float) -> Callable[[Any, Any], str]:
    """A `Comparison.difference` of losses."""
    return lambda loss, right: "" if np.allclose(loss, right, rtol=rtol) else f"losses {loss} instead of {right}"


def step_by_step(step: Callable[[Any, jax.Array], tuple[Any, jax.Array]], first: Any, steps: int) -> Callable[[], np.ndarray]:
    """A case of so many compiled steps `state, n -> (state, loss)` from the same state each time: losses [..., steps]."""
    numbers = [jnp.asarray(n, jnp.int32) for n in range(steps)]

    def call() -> np.ndarray:
        state, losses = first, []
        for n in numbers:
            state, loss = step(state, n)
            losses.append(loss)
        return np.asarray(jnp.stack(losses, axis=-1))

    return call


def free_folder(path: str) -> str:
    """The path, or the first of path-2, path-3, ... that does not exist."""
    names = itertools.chain([path], (f"{path}-{n}" for n in itertools.count(2)))
    return next(name for name in names if not Path(name).exists())


def _machine(row: Row) -> str:
    return f"{row['threads']}; {row['memory']}" if "threads" in row else f"{row['cores']} CPU cores"


def _rounds(results: Results) -> list[str]:
    row = results.rows[0]
    return [f"{row['rounds']} interleaved rounds on {_machine(row)}.", ""]

"""Writes the tables, numbers and picture of README.md and docs/ from docs/results/ (CONTRIBUTING.md, docs/numbers.toml).

`python -m tools.tables --check` only says which pages differ. docs/headline.toml has the models of the picture.
"""

import functools
import itertools
import pkgutil
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from launch.kit.views import COLOURS, Column, Results, Row, Table, figure, groups, log_ticks, markdown_table, only, where
from tools.results import RESULTS, read_results

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "numbers.toml"
PICTURE = ROOT / "docs" / "headline.png"
_as_written = Table(lambda rows: [Column(name, name) for name in rows[0] if name not in ("file", "run")])
_marked = re.compile(r"<!-- table: (.+?) -->((?!<!-- table: ).)*?<!-- /table -->", re.S)
_one = r"-?\d[\d.,]*(?:e[+-]?\d+)?(?<![.,])%?"
_number = rf"{_one}(?:, {_one})*(?: and {_one})?"


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(page: Path) -> str:
    """The text of a page of this repository as the results have it."""
    return filled(page.read_text(), tomllib.loads(NUMBERS.read_text()).get(page.relative_to(ROOT).as_posix(), {}))


def filled(text: str, numbers: Mapping[str, Sequence[str]] | None = None) -> str:
    """A page with its tables and numbers; numbers: pieces of the text, with addresses."""
    if len(_marked.findall(text)) != text.count("<!-- table: "):
        raise ValueError("a table is not closed before the next one: close it with <!-- /table -->")
    text = _marked.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{evaluate(found[1])}\n\n<!-- /table -->", text)
    for piece, addresses in (numbers or {}).items():
        text = with_numbers(text, piece, [value(address) for address in addresses])
    return text


def with_numbers(text: str, piece: str, numbers: Sequence[str]) -> str:
    """A text with these numbers in a piece of it, which stands there once."""
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in piece.split("{}")]
    mixed = lambda found: "".join(itertools.chain(*itertools.zip_longest(found.groups(), numbers, fillvalue="")))  # noqa: E731
    renewed, times = re.subn(_number.join(f"({part})" for part in parts), mixed, text)
    if times != 1 or len(parts) != len(numbers) + 1:
        raise ValueError(f"docs/numbers.toml: {piece!r}, {len(numbers)} numbers, is {times} times in its page: mend either")
    return renewed


def value(address: str) -> str:
    """The number, or the numbers, of `NAMES = EXPRESSION : FORMAT`."""
    expression, _, form = address.rpartition(" : ")
    *first, last = [format(x, form) for x in np.ravel(evaluate(expression)).tolist()]
    return f"{', '.join(first)} and {last}" if first else last


def evaluate(address: str) -> Any:
    """The value of `NAMES = EXPRESSION` over the rows of results."""
    names, _, expression = address.partition(" = ")
    results = kept(*names.split())

    def each(field: str, **values: Any) -> list[Any]:
        return [row[field] for row in where(results.rows, **values) if row.get(field) is not None]

    def table(view: str = "", columns: str = "", **values: Any) -> str:
        shown: Any = pkgutil.resolve_name(view) if view else _as_written
        shown = shown.with_columns(columns.split(", ")) if columns else shown
        return "\n".join(shown(results.where(**values))).strip()

    known: dict[str, Any] = {
        "each": each, "rows": functools.partial(where, results.rows), "events": results.events, "results": results,
        "the": lambda field, **values: only(results.rows, **values)[field], "find": pkgutil.resolve_name, "table": table,
        "mean": lambda field, **values: fmean(each(field, **values)), "commands": lambda: commands(names),
        "least": lambda field, **values: min(each(field, **values)), "most": lambda field, **values: max(each(field, **values)),
    }  # fmt: skip
    return eval(expression, known)


def commands(names: str) -> str:
    """The commands of the runs of results, with machines and dates."""
    runs = [run for name in names.split() for run in read_results(name)]
    words = dict.fromkeys(f"`{run['command']}`" for run in runs)
    about = dict.fromkeys(f"{run['machine']}, JAX {run['versions']['jax']}, {run['date']}" for run in runs)
    return ",\n".join(words) + f": {'; '.join(about)}."


@functools.cache
def kept(*names: str) -> Results:
    """Results of docs/results/: rows with further flags, `file` and `run`."""
    runs = [(name, n, run) for name in names for n, run in enumerate(read_results(name))]
    rows, events = list[Row](), dict[str, list[Row]]()
    for name, n, run in runs:
        known = set(itertools.chain(*run["rows"]))
        about = {field: value for field, value in run["config"].items() if field not in known} | run["shared"]
        rows += [{**about, **row, "file": name, "run": n} for row in run["rows"]]
        for event, entries in run.get("events", {}).items():
            events.setdefault(event, []).extend(entries)
    return Results(RESULTS, runs[0][2]["config"] if runs else {}, rows, events)


# The tables of docs/results.md and the picture of README.md: every model, fitted and trained.

TASKS = groups(tomllib.loads(PICTURE.with_suffix(".toml").read_text())["model"], lambda model: model["task"])
COLUMNS = (
    Column("model", "model"), Column("fitted", "found"), Column("context or input", "reads"),
    Column("MB", "bytes", ",.4g", 1e-6), Column("TFLOP", "flops", ",.2f", 1e-12), Column("CPU s", "cpu", ",.0f"),
    Column("loss", "error", ".4g"), Column("on test", "test"), Column("range over seeds", "spread", ".2g"),
)  # fmt: skip
NOTE = (
    "CPU seconds cover one seed and both cores: measured, or else twice wall-clock seconds. MB count the model in memory. "
    "TFLOP count its training, by formula where there is one. ± is a standard error. An empty cell is not known."
)


def measured(model: Row) -> dict[str, Any]:
    """A row of a model, with loss, CPU seconds, test; its points and end."""
    trained, known, results = model.get("trained", False), model.get("known", {}), kept(*model["results"].split())
    about = {"model": model["name"], "reads": model["reads"], "found": "trained" if trained else "without SGD"}
    if not model["results"]:
        return {**about, "error": model["loss"], **known}

    def chosen(rows: Sequence[Row]) -> list[Row]:  # missing fields match
        return [row for row in rows if all(row.get(name, value) == value for name, value in model["where"].items())]

    def cpu_seconds(row: Row, seeds: int) -> Any:  # of one seed: measured, or twice the wall-clock time; None if unknown
        clock = row.get("solve_seconds", row.get("seconds"))
        cpu = row.get("cpu_seconds") or (clock and 2 * clock)
        return cpu and cpu / seeds

    own = chosen(results.rows)
    together = Counter(row.get("run") for row in own)  # rows of one run were trained together
    errors, costs = zip(*((row[model["loss"]], cpu_seconds(row, together[row.get("run")])) for row in own), strict=True)
    found = {**own[0], **about, "error": np.mean(errors), "cpu": costs[0], **known}
    found |= {"spread": np.ptp(errors) if len(own) > 1 else None, "test": evaluate(model["test"]) if "test" in model else ""}
    found["points"] = [(own[0].get("seconds") if trained else found["cpu"], found["error"])]
    if "curve" in model:
        event, field = model["curve"]
        entries = chosen(results.events(event))
        found["points"] = [(found["cpu"], np.mean([row[field] for row in entries]))]
        if trained:
            steps = {n: own for n, own in groups(entries, lambda row: row.get("step", row.get("epoch"))).items() if n}
            seconds = [np.mean([cpu_seconds(row, np.size(row[field])) for row in own]) for own in steps.values()]
            losses = np.array([np.mean([row[field] for row in own]) for own in steps.values()])
            losses = np.exp(losses) if model["loss"].endswith("perplexity") else losses  # curves are in nats
            found |= {"points": [*zip(seconds, losses, strict=True)], "cpu": seconds[-1]}
    if model.get("end"):  # the cost and the loss of its rows, where its curve is measured in another way
        found |= {"cpu": np.mean(costs), "end": (np.mean(costs), found["error"])}
    return found


def compared(results: Results) -> list[str]:
    """The tables of docs/results.md, a row for every model."""
    tasks = {f"## {task[0].upper()}{task[1:]}": map(measured, models) for task, models in TASKS.items()}
    return [*(line for task, rows in tasks.items() for line in (task, *markdown_table(COLUMNS, rows))), NOTE]


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    with figure(path, 2, 2, size=(9.0, 7.6)) as axes:
        for n, (ax, (task, models)) in enumerate(zip(axes.flat, TASKS.items(), strict=False)):
            drawn = [(model, *_draw(ax, measured(model))) for model in models if model.get("drawn", True)]
            ax.set_title(task, fontsize=9)
            ax.set(xscale="log", yscale="log" if n >= 2 else "linear", xlabel="CPU seconds of one seed (H100: seconds)")
            for axis in "xy" if n >= 2 else "x":  # losses are near 0
                log_ticks(ax, axis)
            middle = np.sqrt(np.prod(ax.get_xlim()))
            for model, x, y in drawn:
                above = (0, 7) if model.get("trained") else (6, -3)
                place, side = ((10, -10) if "curve" in model else (-6, -3), "right") if x > middle else (above, "left")
                ax.annotate(model["name"], (x, y), model.get("place", place), textcoords="offset points", fontsize=8, ha=side)


def _draw(ax: Any, found: Row) -> tuple[float, float]:
    """Draw a model; the point where its name stands."""
    shown, trained = found["points"], found["found"] == "trained"
    style: Any = {"linewidth": 0.8} if len(shown) > 50 else {"marker": "o", "markersize": 3 if len(shown) > 1 else 5}
    style |= {"marker": "D", "markerfacecolor": "white"} if trained and len(shown) == 1 else {}
    ax.plot(*zip(*shown, strict=True), **style, color=(colour := COLOURS[trained]))
    if "end" in found:
        ax.plot(*zip(shown[-1], found["end"], strict=True), linestyle=":", color=colour)
        ax.plot(*found["end"], marker="o", markersize=5, color=colour, markerfacecolor="white")
    return found.get("end", shown[-1])


def main(check: bool) -> int:
    """Write the tables, numbers and picture again, or only name the pages that differ."""
    differ = {page: new for page in pages() if (new := renewed(page)) != page.read_text()}
    print(*differ, sep="\n", end="\n" * bool(differ))
    if not check:
        draw()
        for page, new in differ.items():
            page.write_text(new)
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv))

"""Rows of results, and their views: tables and figures for terminal, report and docs.

A view is a function `Results -> lines of Markdown`, which also draws its figure. Most views are a `Table`, `Lines` or `Images`;
any other figure is a function.
"""

import contextlib
import itertools
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import rich.table
from rich.text import Text

from jexplicit.runs.files import read_config, read_events, read_rows, read_texts

Row = Mapping[str, Any]
T = TypeVar("T")


class Results(NamedTuple):
    """Input of views: a run.

    kept: events by name, of results without a metrics.jsonl.
    """

    path: Path
    config: Row
    rows: Sequence[Row]
    kept: Mapping[str, Sequence[Row]] | None = None

    def events(self, name: str, *last_of: str) -> list[Row]:
        """The events of a name, the last of equals `last_of`."""
        found = self.kept.get(name, []) if self.kept is not None else read_events(self.path, name)
        return list({tuple(event[field] for field in last_of) or n: event for n, event in enumerate(found)}.values())

    def arrays(self, name: str) -> Mapping[str, np.ndarray]:
        """The arrays of a run's .npz file; empty if missing."""
        path = self.path / name
        return np.load(path) if path.exists() else {}

    def where(self, **fields: Any) -> "Results":
        """The same results, restricted to rows and events with these values."""
        kept = {
            name: [event for event in events if where([event], **{field: fields[field] for field in fields if field in event})]
            for name, events in (self.kept or {}).items()
        }
        return self._replace(rows=where(self.rows, **fields), kept=kept if self.kept is not None else None)


def read_results(out: Path) -> Results:
    """The results of a run folder."""
    return Results(out, read_config(out) or {}, read_rows(out))


def where(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """The rows that have these values; a tuple matches any of its values."""
    wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()}
    return [row for row in rows if all(row.get(name) in values for name, values in wanted.items())]


def only(rows: Iterable[Row], **fields: Any) -> Row:
    """The one row that has these values; a ValueError for none or several."""
    found = where(rows, **fields)
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows with {fields}: give fields of exactly one row")
    return found[0]


def groups(rows: Iterable[T], by: Sequence[str] | Callable[[T], Any]) -> dict[Any, list[T]]:
    """Rows grouped by the values of some fields, or any objects by a function."""
    found: dict[Any, list[T]] = {}
    for row in rows:
        key = by(row) if callable(by) else tuple(_hashable(cast(Row, row).get(name)) for name in by)
        found.setdefault(key, []).append(row)
    return found


def means(rows: Iterable[Row], by: Sequence[str] | Callable[[Row], Any]) -> list[Row]:
    """One row per group: floats as means, group size as `number`."""
    found: list[Row] = []
    for own in groups(rows, by).values():
        floats = {name: [value for row in own if isinstance(value := row.get(name), float)] for name in own[0]}
        found.append({**own[0], **{name: float(np.mean(of)) for name, of in floats.items() if of}, "number": len(own)})
    return found


def _hashable(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def pivot(rows: Iterable[Row], by: Sequence[str], across: str | Callable[[Row], Any]) -> list[Row]:
    """One line per value of `by`; field V is the row across = V."""
    lines: dict[tuple[Any, ...], dict[Any, Any]] = {}
    for row in rows:
        line = lines.setdefault(tuple(_hashable(row.get(name)) for name in by), {name: row.get(name) for name in by})
        line[row.get(across) if isinstance(across, str) else across(row)] = row
    return list(lines.values())


def cell(key: Any, value: str | Callable[[Row], Any]) -> Callable[[Row], Any]:
    """A column of a pivoted table: a field of a key's row."""

    def find(line: Row) -> Any:
        row = line.get(key)
        return row if row is None else row.get(value) if isinstance(value, str) else value(row)

    return find


def melt(rows: Iterable[Row], measures: Mapping[str, str]) -> list[Row]:
    """A row per measure, with its name as `measure` and `value`."""
    found, shown = [*rows], measures.items()
    return [{**r, "measure": label, "value": r[name]} for name, label in shown for r in found if r.get(name) is not None]


def points(x: Iterable[Any], y: Iterable[Any], **fields: Any) -> list[Row]:
    """A row per point of a curve, with its coordinates as `x` and `y`."""
    return [{**fields, "x": a, "y": b} for a, b in zip(x, y, strict=True)]


def mean_std(values: Iterable[float], form: str) -> str:
    """Mean ± standard deviation, formatted."""
    numbers = list(values)
    return f"{mean(numbers):{form}} ± {stdev(numbers):{form}}" if len(numbers) > 1 else f"{numbers[0]:{form}}"


class Column(NamedTuple):
    """One column of a table; a missing value is an empty cell.

    value: a field of the row, or a function of it. format: of a number, after the factor `scale`.
    """

    heading: str
    value: str | Callable[[Any], Any]
    format: str = ""
    scale: float | None = None
    bold: bool = False

    def cell(self, row: Any) -> str:
        """The text of a row's cell."""
        value = row.get(self.value) if isinstance(self.value, str) else self.value(row)
        if value is None or value == "":
            return ""
        if isinstance(value, str):
            return value
        return format(value if self.scale is None else value * self.scale, self.format)


def markdown_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of a Markdown table, with an empty line before and after it."""
    lines = [[column.heading for column in columns]]
    for row in rows:
        cells = [(column.bold, column.cell(row).replace("|", "\\|")) for column in columns]
        lines.append([f"**{cell}**" if bold and cell else cell for bold, cell in cells])
    heading, *others = [f"| {' | '.join(cells)} |" for cells in lines]
    return ["", heading, "|" + "---|" * len(columns), *others, ""]


def rich_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], *, title: str = "") -> rich.table.Table:
    """The same table for the terminal; `**x**` is bold x."""
    table = rich.table.Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.format else "left", style="bold" if column.bold else None)
    for row in rows:
        parts = [re.split(r"\*\*(.+?)\*\*", column.cell(row)) for column in columns]
        table.add_row(*(Text.assemble(*((part, "bold" * (n % 2)) for n, part in enumerate(own))) for own in parts))
    return table


STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")  # safe for colour-blind readers
FEW = 12  # points of a line with markers, and values on a log axis with one tick each


@contextlib.contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any) -> Iterator[np.ndarray]:
    """A figure in the project's style, written to `path`; yields the axes.

    Log axes with values that have no logarithm become symmetrical log axes. size: inches. options: of matplotlib's `subplots`.
    """
    import matplotlib
    import matplotlib.pyplot as plt  # half a second, which commands that draw nothing need not wait for
    from matplotlib.ticker import AutoLocator

    matplotlib.use("Agg")
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Data has no positive values")  # _show_zeros changes the scale
        fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **options)
        try:
            yield axes
            for ax in axes.flat:
                _show_zeros(ax)
                numbers = np.concatenate([np.asarray(line.get_xdata(), float) for line in ax.get_lines()] or [np.zeros(0)])
                locator = ax.xaxis.get_major_locator()
                if isinstance(locator, AutoLocator) and len(np.unique(numbers)) > 2 and not (numbers % 1).any():
                    locator.set_params(integer=True)  # such as layers
            path.parent.mkdir(parents=True, exist_ok=True)
            fig.savefig(path)
        finally:
            plt.close(fig)


def shared_legend(axes: np.ndarray, **options: Any) -> None:
    """One small legend for all panels, with each label once."""
    labelled = [ax.get_legend_handles_labels() for ax in axes.flat]
    handles = {name: handle for handles, names in labelled for handle, name in zip(handles, names, strict=True)}
    axes.flat[0].figure.legend(handles.values(), handles.keys(), fontsize=8, frameon=False, **options)


def log_ticks(ax: Any, which: str = "y", places: Collection[float] = ()) -> None:
    """Plain numbers on a log axis, at given places or by decades."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    low, high = getattr(ax, f"get_{which}lim")()
    decades, axis = np.log10(high / low) if low > 0 else np.inf, getattr(ax, f"{which}axis")
    subs = (1, 1.5, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
    few = 0 < len(places) <= FEW and all(float(f"{x:.4g}") == x for x in places)
    axis.set_major_locator(FixedLocator(sorted(places)) if few else LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _show_zeros(ax: Any) -> None:
    """Make a log axis linear near 0 if its lines reach 0."""
    for n, axis in enumerate((ax.xaxis, ax.yaxis)):
        lines = [line for line in ax.get_lines() if line.get_transform().contains_branch_seperately(ax.transData)[n]]
        data = np.concatenate([np.asarray(line.get_data()[n], float) for line in lines] or [np.zeros(0)])
        if axis.get_scale() != "log" or not (data <= 0).any():
            continue
        positive = data[(data > 0) & np.isfinite(data)]
        set_scale = (ax.set_xscale, ax.set_yscale)[n]
        set_scale("symlog", linthresh=positive.min()) if len(positive) else set_scale("linear")


View = Callable[[Results], list[str]]
# Fields of rows, a function of results, or rows.
Select = Mapping[str, Any] | Callable[[Results], Iterable[Row]] | Sequence[Row]
Field = str | Callable[[Row], Any]
ALL: Mapping[str, Any] = {}


def selected(rows: Select, results: Results) -> list[Row]:
    """The rows of a view."""
    if isinstance(rows, Mapping):
        return where(results.rows, **rows)
    return list(rows(results) if callable(rows) else rows)


def picture(results: Results, name: str, caption: str = "") -> list[str]:
    """The Markdown lines of figures/NAME.png."""
    return [f"![{caption or name.replace('_', ' ')}](figures/{name}.png)", ""]


class Table(NamedTuple):
    """A table of rows with a note; empty ones and empty columns are omitted.

    columns: or a function of the rows; default, the fields of the first row.
    rows: values of fields that select rows, or a function of the results.
    """

    columns: Sequence[Column] | Callable[[list[Row]], Sequence[Column]] = ()
    rows: Select = {}
    note: str = ""

    def __call__(self, results: Results) -> list[str]:
        """The table in Markdown."""
        rows = selected(self.rows, results)
        return [*markdown_table(self._columns(rows), rows), *([self.note, ""] if self.note else [])] if rows else []

    def terminal(self, results: Results, title: str = "") -> rich.table.Table:
        """The table for the terminal."""
        rows = selected(self.rows, results)
        return rich_table(self._columns(rows), rows, title=title)

    def with_columns(self, headings: Sequence[str]) -> "Table":
        """The same table with these columns only, without note."""
        return self._replace(columns=lambda rows: [c for c in self._columns(rows) if c.heading in headings], note="")

    def _columns(self, rows: list[Row]) -> Sequence[Column]:
        columns = self.columns(rows) if callable(self.columns) else self.columns or [Column(name, name) for name in rows[0]]
        return [column for column in columns if not rows or any(map(column.cell, rows))]


def pivot_table(
    by: Sequence[Column],
    across: str,
    value: Field,
    form: str = "",
    *,
    scale: float | None = None,
    heading: str = "{}",
    rows: Select = ALL,
    note: str = "",
) -> Table:
    """A table with a line per `by` and a column per `across`."""
    fields = [str(column.value) for column in by]

    def columns(lines: list[Row]) -> list[Column]:
        keys = dict.fromkeys(key for line in lines for key in line if key not in fields)
        return [*by, *(Column(heading.format(key), cell(key, value), form, scale) for key in keys)]

    return Table(columns, lambda results: pivot(selected(rows, results), fields, across), note)


class Section(NamedTuple):
    """Views of some rows, below a heading and a note; omitted without rows."""

    title: str
    views: Sequence[View]
    rows: Mapping[str, Any] = {}
    note: str = ""

    def __call__(self, results: Results) -> list[str]:
        """The lines of the section."""
        own = results.where(**self.rows)
        if not own.rows:
            return []
        lines = [line for view in self.views for line in view(own)]
        return [f"## {self.title}", "", *([self.note, ""] if self.note else []), *lines]


class Lines(NamedTuple):
    """`y` against `x`: a line per `hue`, in a panel per `panel`.

    Several rows at one x, such as seeds, are their mean and a band of their range. `y` may be a list over seeds. A row without
    x is a horizontal line. Rows without y, and NaN, are gaps. Fields are names, or functions of a row.

    name: of the figure's file. rows: values of fields that select rows, or a function of the results. styles: options of
    matplotlib's `plot` by hue. axes, by_panel: of `ax.set`, for all panels and by title. size: inches of a panel.
    finish: called with the axes, [rows, panels], before the figure is saved. row: one row of panels per value.
    legend: "below" or "right" of all panels, for one legend instead of one per panel.
    """

    name: str
    x: Field
    y: Field
    hue: Field = ""
    panel: Field = ""
    rows: Select = {}
    styles: Mapping[Any, Mapping[str, Any]] = {}
    axes: Mapping[str, Any] = {}
    by_panel: Mapping[Any, Mapping[str, Any]] = {}
    size: tuple[float, float] = (4.4, 3.4)
    sharey: bool = False
    finish: Callable[[np.ndarray], Any] | None = None
    caption: str = ""
    row: Field = ""
    legend: str = ""

    def __call__(self, results: Results) -> list[str]:
        """Draw the figure, and the line that shows it."""
        rows = selected(self.rows, results)
        if not rows:
            return []
        grid = [groups(own, lambda row: _of(row, self.panel)) for own in groups(rows, lambda row: _of(row, self.row)).values()]
        columns, (width, height) = max(map(len, grid)), self.size
        size = width * columns + 1.6 * (self.legend == "right"), height * len(grid)
        styles = self._styles(rows)
        path = results.path / "figures" / f"{self.name}.png"
        with figure(path, len(grid), columns, size=size, sharey="row" if self.sharey else False) as axes:
            for line, panels in zip(axes, grid, strict=True):
                for ax in line[len(panels) :]:
                    ax.axis("off")
                for ax, (title, own) in zip(line, panels.items(), strict=False):
                    self._draw(ax, own, styles)
                    labels = {"xlabel": _label(self.x), "ylabel": _label(self.y) if ax is line[0] else "", "title": title or ""}
                    ax.set(**{**labels, **self.axes, **self.by_panel.get(title, {})})
                    if self.sharey and ax is not line[0]:
                        ax.set_ylabel("")
                    if ax.get_xscale() == "log":
                        log_ticks(ax, "x", {x for row in own if isinstance(x := _of(row, self.x), int | float)})
                    if ax.get_yscale() == "log":
                        log_ticks(ax)
                    if ax.get_legend_handles_labels()[0] and not self.legend:
                        ax.legend(fontsize=8, frameon=False)
            if self.legend == "below":
                shared_legend(axes, loc="outside lower center", ncols=max(2, round(size[0] / 2.2)))
            if self.legend == "right":
                shared_legend(axes, loc="outside right upper", ncols=1)
            if self.finish:
                self.finish(axes)
        return picture(results, self.name, self.caption)

    def _styles(self, rows: list[Row]) -> dict[Any, dict[str, Any]]:
        """Options of `plot` by hue, the same in all panels."""
        hues = dict.fromkeys(_of(row, self.hue) for row in rows)
        lines = [{"linestyle": line, "color": colour} for line in ("-", ":", "-.") for colour in COLOURS]
        free = itertools.cycle(lines)
        return {
            hue: {"label": str(hue) if self.hue else None, **({} if "color" in own else next(free)), **own}
            for hue in hues
            for own in [self.styles.get(hue, {})]
        }

    def _draw(self, ax: Any, rows: list[Row], styles: Mapping[Any, Mapping[str, Any]]) -> None:
        for hue, own in groups(rows, lambda row: _of(row, self.hue)).items():
            placed = [row for row in own if _of(row, self.x) is not None]
            if levels := [_of(row, self.y) for row in own if _of(row, self.x) is None]:
                style = {**styles[hue], "linestyle": "--", "linewidth": 1, **self.styles.get(hue, {})}
                number = "" if self.legend == "right" else f" {np.mean(levels):.4g}"  # which differs between panels
                ax.axhline(float(np.mean(levels)), **{**style, "label": f"{style['label']}{number}"})
            if placed:
                xs, (low, mean, high) = band(placed, self.x, self.y)
                style = {"marker": "o" if len(xs) <= FEW else "", "markersize": 4, **styles[hue]}
                ax.plot(xs, mean, **({"marker": "o"} if len(xs) == 1 else {}) | style)
                if (high > low).any():
                    ax.fill_between(xs, low, high, color=style.get("color"), alpha=0.2, linewidth=0)


def band(rows: Iterable[Row], x: Field, y: Field) -> tuple[np.ndarray, np.ndarray]:
    """The distinct x of rows; least, mean and greatest number at each."""
    by_x = groups(rows, lambda row: _of(row, x))
    numbers = {at: np.concatenate([np.atleast_1d(np.array(_of(row, y), float)) for row in own]) for at, own in by_x.items()}
    ordered = sorted(numbers) if all(isinstance(at, int | float) for at in numbers) else list(numbers)
    return np.array(ordered), np.array([[f(numbers[at]) for at in ordered] for f in (np.min, np.mean, np.max)])


class Texts(NamedTuple):
    """Texts of a list in a JSON file of the run, below a heading."""

    title: str
    file: str

    def __call__(self, results: Results) -> list[str]:
        """The texts as they are."""
        texts = read_texts(results.path / self.file)
        return [f"## {self.title}", "", *(f"```text\n{text}\n```\n" for text in texts)] if texts else []


class Images(NamedTuple):
    """Matrices as a grid of pictures, red and blue around 0.

    grid: the results -> {label of the row: {title: matrix}}; numbers are not shown as titles.
    """

    name: str
    grid: Callable[[Results], Mapping[str, Mapping[Any, np.ndarray]]]

    def __call__(self, results: Results) -> list[str]:
        """Draw the figure, and the line that shows it."""

        grid = self.grid(results)
        if not grid:
            return []
        wide = max(map(len, grid.values()))
        size = (2.6 * wide, 2.6 * len(grid))
        with figure(results.path / "figures" / f"{self.name}.png", len(grid), wide, size=size) as axes:
            for row, (label, matrices) in zip(axes, grid.items(), strict=True):
                for ax in row[len(matrices) :]:
                    ax.axis("off")
                for ax, (title, values) in zip(row, matrices.items(), strict=False):
                    limit = max(1e-12, float(np.abs(values).max()))
                    image = ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
                    ax.grid(False)
                    ax.set(xticks=[], yticks=[])
                    ax.figure.colorbar(image, ax=ax, shrink=0.75)
                    ax.set_title("" if isinstance(title, int) else title, fontsize=9)
                row[0].set_ylabel(label, fontsize=9)
        return picture(results, self.name)


def _of(row: Row, field: Field) -> Any:
    return field(row) if callable(field) else row.get(field)


def _label(field: Field) -> str:
    return "" if callable(field) else field.replace("_", " ")

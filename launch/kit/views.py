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
Field = str | Callable[[Any], Any]  # of a row: its name, or a function of the row
T = TypeVar("T")


class Results(NamedTuple):
    """A run, the input of views; kept: events of one without metrics.jsonl."""

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


def _getter(field: Field) -> Callable[[Any], Any]:
    return field if callable(field) else lambda row: row.get(field)


def groups(rows: Iterable[T], by: Sequence[str] | Callable[[T], Any]) -> dict[Any, list[T]]:
    """Rows grouped by the values of some fields, or any objects by a function."""

    def key(row: T) -> Any:
        values = (cast(Row, row).get(name) for name in cast(Sequence[str], by))
        return tuple(json.dumps(value) if isinstance(value, list | dict) else value for value in values)

    found: dict[Any, list[T]] = {}
    for row in rows:
        found.setdefault(by(row) if callable(by) else key(row), []).append(row)
    return found


def means(rows: Iterable[Row], by: Sequence[str] | Callable[[Row], Any]) -> list[Row]:
    """One row per group: floats as means, group size as `number`."""
    found: list[Row] = []
    for own in groups(rows, by).values():
        floats = {name: [value for row in own if isinstance(value := row.get(name), float)] for name in own[0]}
        found.append({**own[0], **{name: float(np.mean(of)) for name, of in floats.items() if of}, "number": len(own)})
    return found


def pivot(rows: Iterable[Row], by: Sequence[str], across: Field) -> list[Row]:
    """One line per value of `by`; field V is the row across = V."""
    key = _getter(across)
    return [{**{name: own[0].get(name) for name in by}, **{key(row): row for row in own}} for own in groups(rows, by).values()]


def cell(key: Any, value: Field) -> Callable[[Row], Any]:
    """A column of a pivoted table: a field of a key's row."""
    return lambda line: None if line.get(key) is None else _getter(value)(line[key])


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
    """A column of a table: a field's format, after a factor; nothing if missing."""

    heading: str
    value: Field
    format: str = ""
    scale: float | None = None
    bold: bool = False

    def cell(self, row: Any) -> str:
        """The text of a row's cell."""
        value = _getter(self.value)(row)
        if value is None or isinstance(value, str):
            return value or ""
        return format(value if self.scale is None else value * self.scale, self.format)


def markdown_table(columns: Sequence[Column], rows: Iterable[Row]) -> list[str]:
    """The lines of a Markdown table, with an empty line before and after it."""
    lines = [[column.heading for column in columns]]
    for row in rows:
        cells = [(column.bold, column.cell(row).replace("|", "\\|")) for column in columns]
        lines.append([f"**{cell}**" if bold and cell else cell for bold, cell in cells])
    heading, *others = [f"| {' | '.join(cells)} |" for cells in lines]
    return ["", heading, "|" + "---|" * len(columns), *others, ""]


def rich_table(columns: Sequence[Column], rows: Iterable[Row], *, title: str = "") -> rich.table.Table:
    """The same table for the terminal; `**x**` is bold x."""
    table = rich.table.Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.format else "left", style="bold" if column.bold else None)
    for row in rows:
        parts = [re.split(r"\*\*(.+?)\*\*", column.cell(row)) for column in columns]
        table.add_row(*(Text.assemble(*((part, "bold" * (n % 2)) for n, part in enumerate(own))) for own in parts))
    return table


_style: dict[Any, Any] = {
    "font.size": 10, "figure.constrained_layout.use": True, "savefig.dpi": 150,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.25,
}  # fmt: skip
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")  # safe for colour-blind readers
_few = 12  # points of a line with markers, and values on a log axis with one tick each


@contextlib.contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any) -> Iterator[np.ndarray]:
    """A figure in the project's style, written to `path`; yields the axes.

    Log axes with values that have no logarithm become symmetrical, and axes without data are not shown. size: inches. options:
    of matplotlib's `subplots`.
    """
    import matplotlib
    import matplotlib.pyplot as plt  # half a second, which commands that draw nothing need not wait for
    from matplotlib.ticker import AutoLocator

    matplotlib.use("Agg")
    with plt.rc_context(_style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Data has no positive values")  # _show_zeros changes the scale
        fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **options)
        try:
            yield axes
            for ax in axes.flat:
                if not ax.has_data():
                    ax.axis("off")
                _show_zeros(ax)
                numbers = np.concatenate([np.zeros(0), *(np.asarray(line.get_xdata(), float) for line in ax.get_lines())])
                locator = ax.xaxis.get_major_locator()
                if isinstance(locator, AutoLocator) and len(np.unique(numbers)) > 2 and not (numbers % 1).any():
                    locator.set_params(integer=True)  # such as layers
            path.parent.mkdir(parents=True, exist_ok=True)
            fig.savefig(path)
        finally:
            plt.close(fig)


def _show_zeros(ax: Any) -> None:
    """Make a log axis linear near 0 if its lines reach 0."""
    for n, which in enumerate("xy"):
        lines = [line for line in ax.get_lines() if line.get_transform().contains_branch_seperately(ax.transData)[n]]
        data = np.concatenate([np.zeros(0), *(np.asarray(line.get_data()[n], float) for line in lines)])
        if getattr(ax, f"get_{which}scale")() == "log" and (data <= 0).any():
            positive = data[(data > 0) & np.isfinite(data)]
            set_scale = getattr(ax, f"set_{which}scale")
            set_scale("symlog", linthresh=positive.min()) if len(positive) else set_scale("linear")


def log_ticks(ax: Any, which: str = "y", places: Collection[float] = ()) -> None:
    """Plain numbers on a log axis, at given places or by decades."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    low, high = getattr(ax, f"get_{which}lim")()
    decades, axis = np.log10(high / low) if low > 0 else np.inf, getattr(ax, f"{which}axis")
    subs = (1, 1.5, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
    few = 0 < len(places) <= _few and all(float(f"{x:.4g}") == x for x in places)
    axis.set_major_locator(FixedLocator(sorted(places)) if few else LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


View = Callable[[Results], list[str]]
Select = Mapping[str, Any] | Callable[[Results], Iterable[Row]] | Sequence[Row]  # fields of rows, a function, or rows


def _selected(rows: Select, results: Results) -> list[Row]:
    """The rows of a view."""
    return where(results.rows, **rows) if isinstance(rows, Mapping) else [*(rows(results) if callable(rows) else rows)]


def _picture(name: str) -> list[str]:
    """The Markdown lines of figures/NAME.png."""
    return [f"![{name.replace('_', ' ')}](figures/{name}.png)", ""]


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
        columns, rows = self._content(results)
        return [*markdown_table(columns, rows), *([self.note, ""] if self.note else [])] if rows else []

    def terminal(self, results: Results) -> rich.table.Table:
        """The table for the terminal."""
        return rich_table(*self._content(results))

    def with_columns(self, headings: Sequence[str]) -> "Table":
        """The same table with these columns only, without note."""
        return Table(lambda rows: [column for column in self._columns(rows) if column.heading in headings], self.rows)

    def _columns(self, rows: list[Row]) -> Sequence[Column]:
        return self.columns(rows) if callable(self.columns) else self.columns or [Column(name, name) for name in rows[0]]

    def _content(self, results: Results) -> tuple[list[Column], list[Row]]:
        rows = _selected(self.rows, results)
        return [column for column in self._columns(rows) if any(map(column.cell, rows))] if rows else [], rows


def pivot_table(
    by: Sequence[Column], across: str, value: Field, form: str = "", *, heading: str = "{}", rows: Select = (), **column: Any
) -> Table:
    """A table with a line per `by` and a column per `across`."""
    fields = [str(one.value) for one in by]

    def columns(lines: list[Row]) -> list[Column]:
        keys = dict.fromkeys(key for line in lines for key in line if key not in fields)
        return [*by, *(Column(heading.format(key), cell(key, value), form, **column) for key in keys)]

    return Table(columns, lambda results: pivot(_selected(rows or {}, results), fields, across))


class Section(NamedTuple):
    """Views of some rows, below a heading and a note; omitted without rows."""

    title: str
    views: Sequence[View]
    rows: Mapping[str, Any] = {}

    def __call__(self, results: Results) -> list[str]:
        """The lines of the section."""
        own = results.where(**self.rows)
        return [f"## {self.title}", "", *(line for view in self.views for line in view(own))] if own.rows else []


class Lines(NamedTuple):
    """`y` against `x`: a line per `hue`, in a panel per `panel`.

    Several rows at one x, such as seeds, are their mean and a band of their range. `y` may be a list over seeds. A row without
    x is a horizontal line. Rows without y, and NaN, are gaps. Fields are names, or functions of a row.

    name: of the figure's file. rows: values of fields that select rows, or a function of the results. styles: options of
    matplotlib's `plot` by hue. axes, by_panel: of `ax.set`, for all panels and by title. size: inches of a panel.
    row: one row of panels per value. legend: "below" or "right" of all panels, for one legend instead of one per panel.
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
    row: Field = ""
    legend: str = ""

    def __call__(self, results: Results) -> list[str]:
        """Draw the figure, and the line that shows it."""
        rows, x, hue = _selected(self.rows, results), _getter(self.x), _getter(self.hue)
        if not rows:
            return []
        free = itertools.cycle({"linestyle": line, "color": colour} for line in ("-", ":", "-.") for colour in COLOURS)
        styles: dict[Any, dict[str, Any]] = {}
        for name in dict.fromkeys(map(hue, rows)):  # the same in all panels
            own = self.styles.get(name, {})
            styles[name] = {"label": str(name) if self.hue else None, **({} if "color" in own else next(free)), **own}
        grid = [groups(own, _getter(self.panel)) for own in groups(rows, _getter(self.row)).values()]
        columns = max(map(len, grid))
        size = self.size[0] * columns + 1.6 * (self.legend == "right"), self.size[1] * len(grid)
        labels = ["" if callable(field) else field.replace("_", " ") for field in (self.x, self.y)]
        path = results.path / "figures" / f"{self.name}.png"
        with figure(path, len(grid), columns, size=size, sharey="row" if self.sharey else False) as axes:
            for line, panels in zip(axes, grid, strict=True):
                for ax, (title, own) in zip(line, panels.items(), strict=False):
                    for name, some in groups(own, hue).items():
                        self._draw(ax, some, styles[name], self.styles.get(name, {}))
                    texts = {"xlabel": labels[0], "ylabel": labels[1] if ax is line[0] else "", "title": title or ""}
                    ax.set(**{**texts, **self.axes, **self.by_panel.get(title, {})})
                    if self.sharey and ax is not line[0]:
                        ax.set_ylabel("")
                    if ax.get_xscale() == "log":
                        log_ticks(ax, "x", {at for row in own if isinstance(at := x(row), int | float)})
                    if ax.get_yscale() == "log":
                        log_ticks(ax)
                    if ax.get_legend_handles_labels()[0] and not self.legend:
                        ax.legend(fontsize=8, frameon=False)
            if self.legend:
                labelled = [pair for ax in axes.flat for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
                handles = {name: handle for handle, name in labelled}  # each label once
                place = {"loc": "outside right upper"}
                if self.legend == "below":
                    place = {"loc": "outside lower center", "ncols": max(2, round(size[0] / 2.2))}
                axes.flat[0].figure.legend(handles.values(), handles.keys(), fontsize=8, frameon=False, **place)
        return _picture(self.name)

    def _draw(self, ax: Any, rows: list[Row], style: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """One line, with its band and level."""
        x, y = _getter(self.x), _getter(self.y)
        by_x = groups((row for row in rows if x(row) is not None), x)
        if levels := [y(row) for row in rows if x(row) is None]:
            number = "" if self.legend == "right" else f" {np.mean(levels):.4g}"  # which differs between panels
            look = {**style, "linestyle": "--", "linewidth": 1, **given, "label": f"{style['label']}{number}"}
            ax.axhline(float(np.mean(levels)), **look)
        if by_x:
            numbers = {at: np.concatenate([np.atleast_1d(np.array(y(row), float)) for row in own]) for at, own in by_x.items()}
            places = sorted(numbers) if all(isinstance(at, int | float) for at in numbers) else list(numbers)
            low, mean, high = np.array([[f(numbers[at]) for at in places] for f in (np.min, np.mean, np.max)])
            ax.plot(np.array(places), mean, **{"marker": "o" if len(places) <= _few else "", "markersize": 4, **style})
            if (high > low).any():
                ax.fill_between(np.array(places), low, high, color=style.get("color"), alpha=0.2, linewidth=0)


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
                for ax, (title, values) in zip(row, matrices.items(), strict=False):
                    limit = max(1e-12, float(np.abs(values).max()))
                    image = ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
                    ax.grid(False)
                    ax.set(xticks=[], yticks=[])
                    ax.figure.colorbar(image, ax=ax, shrink=0.75)
                    ax.set_title("" if isinstance(title, int) else title, fontsize=9)
                row[0].set_ylabel(label, fontsize=9)
        return _picture(self.name)

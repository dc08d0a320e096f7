"""Rows of results, and views: functions `Results -> Markdown lines` that draw figures."""

import contextlib
import itertools
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import rich.table
from rich.text import Text

from jexplicit.runs.files import read_config, read_events, read_rows, read_texts

if TYPE_CHECKING:
    import pandas as pd

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

    def where(self, **fields: Any) -> "Results":
        """The same results, restricted to rows with these values."""
        return self._replace(rows=where(self.rows, **fields))


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
    found: dict[Any, list[T]] = {}
    for row in rows:
        key = by(row) if callable(by) else tuple(cast(Row, row).get(name) for name in by)
        found.setdefault(key, []).append(row)
    return found


def means(rows: Iterable[Row], by: Sequence[str]) -> list[Row]:
    """One row per group: floats as means, group size as `number`."""
    found: list[Row] = []
    for own in groups(rows, by).values():
        floats = {name: [value for row in own if isinstance(value := row.get(name), float)] for name in own[0]}
        found.append({**own[0], **{name: float(np.mean(of)) for name, of in floats.items() if of}, "number": len(own)})
    return found


def pivot(rows: Iterable[Row], by: str, across: Field) -> list[Row]:
    """A line per `by`, with field F of across = V as `V F`."""
    lines: dict[Any, dict[str, Any]] = {}
    for row in rows:
        line, key = lines.setdefault(row[by], {by: row[by]}), _getter(across)(row)
        line |= {f"{key} {name}": value for name, value in row.items()}
    return [*lines.values()]


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
        if value is None or isinstance(value, str) or value != value:  # a data frame's missing numbers are NaN
            return value if isinstance(value, str) else ""
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
    "font.size": 10, "savefig.dpi": 150, "legend.fontsize": 8, "legend.frameon": False, "lines.markersize": 4,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.25,
}  # fmt: skip
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")  # safe for colour-blind readers
_few = 12  # points of a line with markers, and values on a log axis with one tick each


@contextlib.contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float]) -> Iterator[np.ndarray]:
    """A figure in the project's style, written to `path`; yields the axes. size: inches."""
    with _drawn(path) as plt:
        yield plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")[1]


@contextlib.contextmanager
def _drawn(path: Path) -> Iterator[Any]:
    """Draw by pyplot in the project's style, and write the figure without empty axes."""
    import matplotlib
    import matplotlib.pyplot as plt  # half a second, which commands that draw nothing need not wait for

    matplotlib.use("Agg")
    with plt.rc_context(_style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Data has no positive values")  # which changes the scale
        try:
            yield plt
            for ax in plt.gcf().axes:
                if not ax.has_data():
                    ax.axis("off")
            path.parent.mkdir(parents=True, exist_ok=True)
            plt.savefig(path)
        finally:
            plt.close(plt.gcf())


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
Select = Mapping[str, Any] | Callable[[Results], Iterable[Row]]  # fields of rows, or a function


def _selected(rows: Select, results: Results) -> list[Row]:
    """The rows of a view."""
    return where(results.rows, **rows) if isinstance(rows, Mapping) else [*rows(results)]


class Table(NamedTuple):
    """A table of rows with a note; empty ones and empty columns are omitted."""

    columns: Sequence[Column] | Callable[[list[Row]], Sequence[Column]] = ()  # default, all fields
    rows: Select = {}
    note: str = ""

    def __call__(self, results: Results) -> list[str]:
        """The table in Markdown."""
        columns, rows = self.content(results)
        return [*markdown_table(columns, rows), *([self.note, ""] if self.note else [])] if rows else []

    def with_columns(self, headings: Sequence[str]) -> "Table":
        """The same table with these columns only, without note."""
        return Table(lambda rows: [column for column in self._columns(rows) if column.heading in headings], self.rows)

    def _columns(self, rows: list[Row]) -> Sequence[Column]:
        fields = [Column(name, name) for name in dict.fromkeys(itertools.chain(*rows))]
        return self.columns(rows) if callable(self.columns) else self.columns or fields

    def content(self, results: Results) -> tuple[list[Column], list[Row]]:
        """The columns with a cell, and the rows."""
        rows = _selected(self.rows, results)
        return [column for column in self._columns(rows) if any(map(column.cell, rows))], rows


def pivot_table(by: Sequence[Column], across: str, shown: Column, rows: Select) -> Table:
    """A table with a line per `by` and a column per value of `across`."""

    def lines(results: Results) -> list[Row]:
        found: dict[tuple[str, ...], dict[str, str]] = {}
        for row in _selected(rows, results):
            line = {column.heading: column.cell(row) for column in by}
            found.setdefault(tuple(line.values()), line)[Column("", across).cell(row)] = shown.cell(row)
        return [*found.values()]

    return Table(rows=lines)


def section(title: str, *views: View, **fields: Any) -> View:
    """Views of the rows with these values, below a heading; omitted without rows."""

    def view(results: Results) -> list[str]:
        own = results.where(**fields)
        return [f"## {title}", "", *(line for view in views for line in view(own))] if own.rows else []

    return view


class Lines(NamedTuple):
    """`y` against `x` by seaborn: a line per `hue`, in a panel per `panel`.

    Several numbers at one x, such as seeds, are their mean and a band of their range. x and y may be lists, of a
    curve, and y of lists over seeds. A row without x is a dashed line across. Rows without y are left out. Several y, with
    labels, are rows with the fields `measure` and `value`.

    name: of the figure's file. colours, dashes: by hue. axes, by_panel: of `ax.set`, for all panels and by title. size: inches.
    """

    name: str
    x: Field
    y: Field | Mapping[str, str]
    hue: Field = ""
    panel: Field = ""
    rows: Select = {}
    colours: Mapping[str, str] = {}
    dashes: Mapping[str, Any] = {}
    axes: Mapping[str, Any] = {}
    by_panel: Mapping[Any, Mapping[str, Any]] = {}
    size: tuple[float, float] = (4.4, 3.4)
    sharey: bool = False

    def __call__(self, results: Results) -> list[str]:
        """Draw the figure, and the line that shows it."""
        import pandas as pd

        rows, y = _selected(self.rows, results), self.y
        if isinstance(y, Mapping):
            rows = [{**row, "measure": label, "value": row.get(name)} for name, label in y.items() for row in rows]
            y = "value"
        points = []
        for row in rows:
            hue, panel = (str(_getter(field)(row)) if field else "" for field in (self.hue, self.panel))
            points.append({"x": _getter(self.x)(row), "y": _getter(y)(row), "hue": hue, "panel": panel})
        if not (points := [point for point in points if point["y"] is not None]):
            return []
        curves = any(isinstance(point["x"], Sequence) for point in points)
        frame = pd.DataFrame(points).explode(["x", "y"] if curves else ["y"]).explode("y").astype({"x": float, "y": float})
        if frame.dropna().empty:
            return []
        with _drawn(results.path / "figures" / f"{self.name}.png"):
            self._draw(frame.dropna(subset="y"))
        return [f"![{self.name.replace('_', ' ')}](figures/{self.name}.png)", ""]

    def _draw(self, frame: "pd.DataFrame") -> None:
        import seaborn as sns  # half a second more

        across, own = frame[frame.x.isna()], frame.dropna()
        few = own.groupby(["hue", "panel"]).x.nunique().max() <= _few
        free = itertools.cycle(itertools.product(("", (1, 1), (5, 1, 1, 1)), COLOURS))
        looks = dict(zip(frame.hue.unique(), free, strict=False))
        dashes: dict[str, Any] = {hue: line if hue in set(own.hue) else (4, 2) for hue, (line, _) in looks.items()}
        palette = {hue: self.colours.get(hue, colour) for hue, (_, colour) in looks.items()}
        panels = list(frame.panel.unique())
        grid = sns.relplot(
            own, kind="line", x="x", y="y", errorbar=("pi", 100), marker="o" if few else None, legend=bool(self.hue),
            hue="hue", hue_order=list(looks), palette=palette, style="hue", style_order=list(looks),
            dashes=dashes | {**self.dashes}, col="panel", col_order=panels, col_wrap={1: 1, 2: 2, 4: 2}.get(len(panels), 3),
            height=self.size[1], aspect=self.size[0] / self.size[1], facet_kws={"sharex": False, "sharey": self.sharey},
        )  # fmt: skip
        labels = [field.replace("_", " ") if isinstance(field, str) else "" for field in (self.x, self.y)]
        for title, ax in grid.axes_dict.items():
            for hue in across.hue[across.panel == title].unique():
                level = across.y[(across.panel == title) & (across.hue == hue)].mean()
                ax.axhline(level, color=palette[hue], dashes=(4, 2), linewidth=1)
            named = {"title": title, "xlabel": labels[0], "ylabel": labels[1]}
            ax.set(**named | {**self.axes, **self.by_panel.get(title, {})})
            for which in ("x", "y"):
                values, scale = np.array(frame.loc[frame.panel == title, which], float), getattr(ax, f"get_{which}scale")()
                if scale == "log" and (values <= 0).any():  # linear near 0
                    getattr(ax, f"set_{which}scale")("symlog", linthresh=min(values[values > 0], default=1.0))
                elif scale == "log":
                    log_ticks(ax, which, {*values[values > 0]} if which == "x" else ())
                elif which == "x":
                    locator: Any = ax.xaxis.get_major_locator()
                    locator.set_params(integer=not np.nan_to_num(values % 1).any())  # such as layers
        if grid.legend:
            grid.legend.set_title("")
        grid.tight_layout()


def texts(title: str, file: str) -> View:
    """Texts of a list in a JSON file of the run, below a heading."""

    def view(results: Results) -> list[str]:
        found = read_texts(results.path / file)
        return [f"## {title}", "", *(f"```text\n{text}\n```\n" for text in found)] if found else []

    return view

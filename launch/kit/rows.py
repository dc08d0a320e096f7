"""Rows of results as flat dictionaries, tables, and a run's results."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from rich.table import Table
from rich.text import Text

from jexplicit.runs.results import read_config, read_events, read_rows

Row = Mapping[str, Any]
T = TypeVar("T")


class Results(NamedTuple):
    """Input of views: the rows of a run, with its configuration, events and arrays.

    path: the run folder, or docs/results/ for results stored with the documentation.
    config: fields of the configuration.
    rows: of results.json.
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
    """One column of a table of rows.

    heading: its title.
    value: a field of the row, or a function of it; the cell is empty if it is missing or None.
    format: format specification of a number, such as ".1f" or ",".
    scale: factor on a number.
    bold: whether its cells are bold.
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
    lines = [_line(column.heading for column in columns), "|" + "---|" * len(columns)]
    for row in rows:
        cells = [column.cell(row).replace("|", "\\|") for column in columns]
        lines.append(_line(f"**{cell}**" if c.bold and cell else cell for c, cell in zip(columns, cells, strict=True)))
    return ["", *lines, ""]


def rich_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], *, title: str = "") -> Table:
    """The same table for the terminal; `**x**` is bold x."""
    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.format else "left", style="bold" if column.bold else None)
    for row in rows:
        table.add_row(*(_text(column.cell(row)) for column in columns))
    return table


def _text(cell: str) -> Text:
    """A cell for the terminal, in which brackets are no markup."""
    parts = re.split(r"\*\*(.+?)\*\*", cell)
    return Text.assemble(*((part, "bold" if n % 2 else "") for n, part in enumerate(parts)))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

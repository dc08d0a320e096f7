"""Tables of results: the same columns as Markdown in a report and, by rich, on the terminal."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text


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
    """The same table for the terminal; columns with a format are right-aligned, and `**x**` is bold x."""
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

"""Tables of rows, for the terminal and for a report."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

Columns = Mapping[str, tuple[str, float, str]]
"""Heading -> (field of a row, factor, format and perhaps a unit after a space)."""


def cells(columns: Columns, row: Mapping[str, Any]) -> list[str]:
    """The texts of one row; a value that is None is a dash.

    Example:
        >>> cells({"size": ("bytes", 1e-6, ".1f MB"), "name": ("name", 1, "")}, {"bytes": 2_500_000, "name": "a"})
        ['2.5 MB', 'a']
    """
    texts = []
    for field, factor, described in columns.values():
        value, (form, _, unit) = row[field], described.partition(" ")
        text = "-" if value is None else value if isinstance(value, str) else format(value * factor, form)
        texts.append(f"{text} {unit}".strip())
    return texts


def markdown_table(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a report."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return lines + ["| " + " | ".join(cells(columns, row)) + " |" for row in rows]


def terminal_table(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Table:
    """What the console prints."""
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in columns:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*cells(columns, row))
    return table


def cpu_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

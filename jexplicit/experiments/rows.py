"""Rows of results, which are flat dictionaries: choosing, averaging and pivoting them, and what a run has of them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from jexplicit.experiments.results import read_config, read_events, read_rows

Row = Mapping[str, Any]
T = TypeVar("T")


class Results(NamedTuple):
    """What views show: the rows of a run, with its configuration, events and arrays.

    path: the run folder, or docs/results/ for results that the documentation keeps.
    config: fields of the configuration.
    rows: of results.json.
    kept: events by name, of results without a metrics.jsonl.
    """

    path: Path
    config: Row
    rows: Sequence[Row]
    kept: Mapping[str, Sequence[Row]] | None = None

    def events(self, name: str, *last_of: str) -> list[Row]:
        """The events of this name; of those with equal fields `last_of` the last one, since a resumed run repeats some."""
        found = self.kept.get(name, []) if self.kept is not None else read_events(self.path, name)
        return list({tuple(event[field] for field in last_of) or n: event for n, event in enumerate(found)}.values())

    def arrays(self, name: str) -> Mapping[str, np.ndarray]:
        """The arrays of a .npz file of the run; none where it has no such file."""
        path = self.path / name
        return np.load(path) if path.exists() else {}

    def where(self, **fields: Any) -> "Results":
        """The same with the rows that have these values."""
        return self._replace(rows=where(self.rows, **fields))


def read_results(out: Path) -> Results:
    """The results of a run folder."""
    return Results(out, read_config(out) or {}, read_rows(out))


def where(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """The rows that have these values; of a tuple any value will do.

    Example:
        >>> where([{"K": 1}, {"K": 2}, {"K": 3}], K=(1, 3))
        [{'K': 1}, {'K': 3}]
    """
    wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()}
    return [row for row in rows if all(row.get(name) in values for name, values in wanted.items())]


def only(rows: Iterable[Row], **fields: Any) -> Row:
    """The one row that has these values.

    Raises:
        ValueError: none has, or several have.
    """
    found = where(rows, **fields)
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows with {fields}: name fields that one row has")
    return found[0]


def groups(rows: Iterable[T], by: Sequence[str] | Callable[[T], Any]) -> dict[Any, list[T]]:
    """The rows by the values of some fields, or anything by a function of it."""
    found: dict[Any, list[T]] = {}
    for row in rows:
        key = by(row) if callable(by) else tuple(_hashable(cast(Row, row).get(name)) for name in by)
        found.setdefault(key, []).append(row)
    return found


def means(rows: Iterable[Row], by: Sequence[str] | Callable[[Row], Any]) -> list[Row]:
    """One row for each group: its first row, with floats replaced by means, and as `number` the size of the group.

    Example:
        >>> means([{"K": 1, "loss": 1.0}, {"K": 1, "loss": 2.0}], ["K"])
        [{'K': 1, 'loss': 1.5, 'number': 2}]
    """
    return [
        {name: _mean([row.get(name) for row in own], value) for name, value in own[0].items()} | {"number": len(own)}
        for own in groups(rows, by).values()
    ]


def _mean(values: Sequence[Any], first: Any) -> Any:
    floats = [value for value in values if isinstance(value, float)]
    return float(np.mean(floats)) if floats else first


def _hashable(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def pivot(rows: Iterable[Row], by: Sequence[str], across: str | Callable[[Row], Any]) -> list[Row]:
    """One line for each different value of the fields `by`; its field V is the row whose field or function `across` is V.

    Example:
        >>> pivot([{"K": 1, "method": "a", "x": 3}, {"K": 1, "method": "b", "x": 4}], ["K"], "method")
        [{'K': 1, 'a': {'K': 1, 'method': 'a', 'x': 3}, 'b': {'K': 1, 'method': 'b', 'x': 4}}]
    """
    lines: dict[tuple[Any, ...], dict[Any, Any]] = {}
    for row in rows:
        line = lines.setdefault(tuple(_hashable(row.get(name)) for name in by), {name: row.get(name) for name in by})
        line[row.get(across) if isinstance(across, str) else across(row)] = row
    return list(lines.values())


def cell(key: Any, value: str | Callable[[Row], Any]) -> Callable[[Row], Any]:
    """What a column of a pivoted table shows: a field, or a function, of the row under a key; nothing where there is none.

    Example:
        >>> cell("a", "x")({"K": 1, "a": {"x": 3}})
        3
    """

    def find(line: Row) -> Any:
        row = line.get(key)
        return row if row is None else row.get(value) if isinstance(value, str) else value(row)

    return find


def melt(rows: Iterable[Row], measures: Mapping[str, str]) -> list[Row]:
    """A row for each measure that a row has: its name as `measure` and its number as `value`, for a panel each.

    Example:
        >>> melt([{"K": 1, "loss": 0.5}], {"loss": "loss (nats)"})
        [{'K': 1, 'loss': 0.5, 'measure': 'loss (nats)', 'value': 0.5}]
    """
    found = [row for row in rows]
    return [
        {**row, "measure": label, "value": row[name]}
        for name, label in measures.items()
        for row in found
        if row.get(name) is not None
    ]


def points(x: Iterable[Any], y: Iterable[Any], **fields: Any) -> list[Row]:
    """A row for each point of a curve, with its coordinates as `x` and `y`.

    Example:
        >>> points([1, 2], [0.5, 0.25], series="a")
        [{'series': 'a', 'x': 1, 'y': 0.5}, {'series': 'a', 'x': 2, 'y': 0.25}]
    """
    return [{**fields, "x": a, "y": b} for a, b in zip(x, y, strict=True)]


def mean_std(values: Iterable[float], form: str) -> str:
    """Mean ± standard deviation.

    Example:
        >>> mean_std([1.0, 2.0], ".1f")
        '1.5 ± 0.7'
    """
    numbers = list(values)
    return f"{mean(numbers):{form}} ± {stdev(numbers):{form}}" if len(numbers) > 1 else f"{numbers[0]:{form}}"

"""What a table or a number of the documentation is made of; tools/published/ declares them all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from jexplicit.runs.tables import Column, markdown_table
from tools.results import Row, read_results

_transcribed, _trials = ", transcribed from the report", "Trials without a kept command"


class Table(NamedTuple):
    """A table of the documentation, with the commands of its runs below it.

    files: names of the files of docs/results/ that it is made of.
    columns: its columns.
    rows: the lines of the table, of all rows of the files.
    commands: whether the commands stand below it.
    """

    files: Sequence[str]
    columns: Sequence[Column]
    rows: Callable[[list[Row]], Iterable[Row]] = list
    commands: bool = True

    def text(self) -> str:
        """The Markdown of the table."""
        found = [row for name in self.files for row in read_rows(name)]
        lines = markdown_table(self.columns, self.rows(found))
        return "\n".join([*lines, *(sources(self.files) if self.commands else [])]).strip()


class Value(NamedTuple):
    """A number of the documentation.

    file: name of the file of docs/results/ that it is in.
    value: a field, or a function of the row; without `where`, a function of all rows.
    format: format specification.
    where: fields of the only row that has it.
    """

    file: str
    value: str | Callable[[Any], Any]
    format: str
    where: Mapping[str, Any] | None = None

    @property
    def files(self) -> Sequence[str]:
        """The names of its file, as a table has them."""
        return (self.file,)

    def number(self) -> Any:
        """The number itself."""
        rows = read_rows(self.file)
        found: Any = rows if self.where is None else only(rows, **self.where)
        return found[self.value] if isinstance(self.value, str) else self.value(found)

    def text(self) -> str:
        """The number as it stands in a sentence."""
        return format(self.number(), self.format)


class Said(NamedTuple):
    """Numbers of results that sentences of a page say.

    file: name of the file of docs/results/ that they are in.
    numbers: the fields that have them, or a function of the rows; without any, all fields.
    where: fields of the rows.
    """

    file: str
    numbers: Sequence[str] | Callable[[list[Row]], Iterable[float]] = ()
    where: Mapping[str, Any] = {}

    def found(self) -> list[float]:
        """The numbers themselves; integers are not among them."""
        rows = where(read_rows(self.file), **self.where)
        if callable(self.numbers):
            return list(self.numbers(rows))
        return [number for row in rows for name in self.numbers or row for number in _floats(row.get(name))]


def read_rows(name: str) -> list[Row]:
    """The rows of docs/results/NAME.json, with the fields of their configuration and, as `run`, the number of their run."""
    runs = enumerate(read_results(name))
    return [{**run["config"], **run["shared"], **row, "file": name, "run": n} for n, run in runs for row in run["rows"]]


def read_events(name: str, event: str) -> list[Row]:
    """The events of docs/results/NAME.json that have this name."""
    return [found for run in read_results(name) for found in run["events"][event]]


def sources(names: Iterable[str]) -> list[str]:
    """The commands of the runs in some files of docs/results/ with where and when they ran: transcribed runs at the end, and
    trials, whose commands were not kept, after them."""
    runs = [run for name in names for run in read_results(name)]
    kept = [run for run in runs if not run.get("transcribed")]
    transcribed = [run for run in runs if run.get("transcribed") and "command" in run]
    trials = [run for run in runs if "command" not in run]
    kinds = ((kept, ""), (transcribed, _transcribed), (trials, _transcribed))
    return [line for kind, note in kinds if kind for line in _commands(kind, note)]


def _commands(runs: Sequence[Row], note: str) -> list[str]:
    """The commands of some runs, and at the end where and when they ran, with a note."""
    commands = list(dict.fromkeys(f"`{run['command']}`" if "command" in run else _trials for run in runs))
    about = dict.fromkeys(f"{run['machine']}, JAX {run['versions']['jax']}, {run['date']}" for run in runs)
    return [*(f"{command}," for command in commands[:-1]), f"{commands[-1]}: {'; '.join(about)}{note}."]


def _floats(value: Any) -> list[float]:
    values = value if isinstance(value, list) else [value]
    return [part for part in values if isinstance(part, float)]


def where(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """The rows that have these values; a tuple has several values that will do."""
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


def pivot(rows: Iterable[Row], by: Sequence[str], across: str | Callable[[Row], Any]) -> list[Row]:
    """One line for each different value of the fields `by`; its field V is the row whose field or function `across` is V.

    Example:
        >>> pivot([{"K": 1, "method": "a", "x": 3}, {"K": 1, "method": "b", "x": 4}], ["K"], "method")
        [{'K': 1, 'a': {'K': 1, 'method': 'a', 'x': 3}, 'b': {'K': 1, 'method': 'b', 'x': 4}}]
    """
    lines: dict[tuple[Any, ...], dict[Any, Any]] = {}
    for row in rows:
        line = lines.setdefault(tuple(row.get(name) for name in by), {name: row.get(name) for name in by})
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


def context_length(row: Row) -> int:
    """How many tokens of context a language model reads; the row of a unigram model has a radius of 1."""
    return 0 if row["method"] == "unigram" else row["radius"]


def spread(values: Iterable[float], form: str) -> str:
    """Mean ± standard deviation.

    Example:
        >>> spread([1.0, 2.0], ".1f")
        '1.5 ± 0.7'
    """
    numbers = list(values)
    return f"{mean(numbers):{form}} ± {stdev(numbers):{form}}" if len(numbers) > 1 else f"{numbers[0]:{form}}"

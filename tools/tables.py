"""Writes the tables and numbers of README.md and docs/ from docs/results/.

    python -m tools.tables
    python -m tools.tables --check    # only says which pages differ

CONTRIBUTING.md has the syntax of markers, docs/numbers.toml that of addresses.
"""

import difflib
import functools
import importlib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import tyro

from launch.kit import views
from launch.kit.views import Column, Results, Row, only, where
from tools.results import RESULTS, read_results

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "numbers.toml"
_as_written = views.Table(lambda rows: [Column(name, name) for name in rows[0] if name not in ("file", "run")])
_marked = re.compile(
    r"(?P<open><!-- (?P<kind>table|commands): (?P<name>.+?) -->)(?P<old>.*?)(?P<close><!-- /(?P=kind) -->)", re.S
)
_opening = re.compile(r"<!-- (table|commands): ")
_one = r"-?\d[\d.,]*(?:e[+-]?\d+)?(?<![.,])%?"
_number = rf"({_one}(?:, {_one})*(?: and {_one})?)"


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, numbers: Mapping[str, Sequence[str]] | None = None) -> str:
    """A page with its tables and numbers as the results have them.

    numbers: pieces of the text, each with the addresses of its numbers. A marker that names nothing or is not closed before the
    next one, and a piece that is not there once, are refused.
    """
    complete = {found.start() for found in _marked.finditer(text) if not _opening.search(found["old"])}
    for opening in _opening.finditer(text):
        if opening.start() not in complete:
            raise ValueError(f"{text[opening.start() :].split('-->')[0]}-->: close it with <!-- /{opening[1]} -->")
    made = {"table": table, "commands": commands}
    text = _marked.sub(lambda found: f"{found['open']}\n\n{made[found['kind']](found['name'])}\n\n{found['close']}", text)
    for piece, addresses in (numbers or {}).items():
        text = with_numbers(text, piece, [value(address) for address in addresses])
    return text


def with_numbers(text: str, piece: str, numbers: Sequence[str]) -> str:
    """A text with these numbers in a piece of it.

    Example:
        >>> with_numbers("a loss of 1.5 to\\n2.0 nats", "of {} to {} nats", ["1.4", "1.9"])
        'a loss of 1.4 to\\n1.9 nats'
    """
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in piece.split("{}")]
    found = list(re.finditer(_number.join(parts), text))
    if len(found) != 1 or len(parts) != len(numbers) + 1:
        raise ValueError(
            f"docs/numbers.toml: {piece!r}, {len(numbers)} numbers, is {len(found)} times in its page: mend either"
        )
    for n, number in reversed(list(enumerate(numbers, 1))):
        text = text[: found[0].start(n)] + number + text[found[0].end(n) :]
    return text


def renewed(page: Path) -> str:
    """The text of a page of this repository as the results have it."""
    return filled(page.read_text(), tomllib.loads(NUMBERS.read_text()).get(page.relative_to(ROOT).as_posix(), {}))


def table(address: str) -> str:
    """The Markdown of `VIEW of NAMES`, for some rows and columns."""
    found, _, headings = address.partition(" with ")
    view, _, names = found.rpartition(" of ")
    words = shlex.split(names)
    results = kept(*(word for word in words if "=" not in word)).where(**_conditions(words))
    shown = find(view) if view else _as_written
    return "\n".join((shown.with_columns(headings.split(", ")) if headings else shown)(results)).strip()


def value(address: str) -> str:
    """The number, or the numbers, of an address, in its format."""
    names, _, expression = address.partition(" = ")
    if expression:
        expression, _, form = expression.rpartition(" : ")
        number = evaluate(kept(*names.split()), expression)
    else:
        name, *words, form = shlex.split(address)
        fields = [word for word in words if "=" not in word]
        if len(fields) != 1:
            raise ValueError(f"value: {address}: write NAME field key=value ... format")
        number = only(kept(name).rows, **_conditions(words))[fields[0]]
    *first, last = [format(x, form) for x in (number if isinstance(number, list) else [number])]
    return f"{', '.join(first)} and {last}" if first else last


def evaluate(results: Results, expression: str) -> Any:
    """An expression over the rows of results, as docs/numbers.toml explains."""

    def numbers(field: str, **values: Any) -> list[Any]:
        return [row[field] for row in where(results.rows, **values) if row.get(field) is not None]

    def of_all(function: Any) -> Any:
        return lambda field, **values: function(numbers(field, **values))

    known = {"each": numbers, "mean": of_all(fmean), "least": of_all(min), "most": of_all(max)}
    known |= {"rows": functools.partial(where, results.rows), "events": results.events, "find": find}
    known["the"] = lambda field, **values: only(results.rows, **values)[field]
    return eval(expression, {"results": results, **known})


def commands(names: str) -> str:
    """The commands of the runs of results, with machine and date; transcribed ones last."""
    lines, runs = [], [run for name in names.split() for run in read_results(name)]
    for transcribed, typed in ((False, True), (True, True), (True, False)):
        own = [run for run in runs if (run.get("transcribed", False), "command" in run) == (transcribed, typed)]
        words = dict.fromkeys(f"`{run['command']}`" if typed else "Trials without a kept command" for run in own)
        about = dict.fromkeys(f"{run['machine']}, JAX {run['versions']['jax']}, {run['date']}" for run in own)
        note = ", transcribed from the report" * transcribed
        lines += [",\n".join(words) + f": {'; '.join(about)}{note}."] if own else []
    return "\n".join(lines)


@functools.cache
def kept(*names: str) -> Results:
    """Results of docs/results/: rows with configuration, `file` and `run`."""
    runs = [(name, n, run) for name in names for n, run in enumerate(read_results(name))]
    rows = [{**run["config"], **run["shared"], **row, "file": name, "run": n} for name, n, run in runs for row in run["rows"]]
    events: dict[str, list[Row]] = {}
    for _, _, run in runs:
        for event, entries in run.get("events", {}).items():
            events.setdefault(event, []).extend(entries)
    return Results(RESULTS, runs[0][2]["config"] if runs else {}, rows, events)


def find(address: str) -> Any:
    """The object that `module:NAME` names."""
    module, _, name = address.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{address}: {error}") from error


def _conditions(words: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Words `field=value,value`: any of some values, of JSON or text."""

    def parsed(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    pairs = (word.partition("=") for word in words if "=" in word)
    return {name: tuple(map(parsed, re.split(r",(?! )", text))) for name, _, text in pairs}


def main(check: bool = False) -> int:
    """Write the tables and numbers of the documentation again, or only show what differs."""
    changed = 0
    for page in pages():
        old, new, name = page.read_text(), renewed(page), str(page.relative_to(ROOT))
        if old == new:
            continue
        changed += 1
        differences = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "results", n=0, lineterm="")
        print("\n".join(differences) if check else name)
        if not check:
            page.write_text(new)
    return int(check and changed > 0)


if __name__ == "__main__":
    try:
        sys.exit(tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,)))
    except ValueError as error:
        sys.exit(f"error: {error}")

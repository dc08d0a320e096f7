"""Writes the tables and numbers of README.md and docs/ from docs/results/.

    python -m tools.tables
    python -m tools.tables --check    # only says which pages differ

Results NAME are docs/results/NAME.json. The text between a marker and its closing marker, such as `<!-- /table -->`, is made:

* `<!-- table: launch.icl.rates:STEPS of icl-newton -->`: a view of the launchers, a `Table` or a function of `Results`, of
  some results. Several names are separated by spaces; values that its rows have may follow them, and the columns to show:
  `launch.lm.views:RESULTS of babylm radius=1 method=bigram,explicit with model, train, dev`.
* `<!-- table: speed-lm -->`: the rows of some results, whose fields are the headings, as their report had them.
* `<!-- commands: icl-newton -->`: the commands of the runs behind results, with the machine and the date.

docs/numbers.toml has the numbers of sentences: pieces of the text of each page, with {} for a number, and where it is from:

* `icl-two loss predictor=gd++ .4f`: a field of the only row with these values, with its format.
* `icl-two = mean("loss", predictor="trained") / the("loss", predictor="gd++") : .2f`: an expression of `the(field, **values)`,
  `mean`, `least`, `most`, `each` (all numbers, for "0.1 and 0.2"), `rows(**values)`, `events(name)` and
  `find("launch.icl.rates:steps_per_layer")`, a function of the launchers.
"""

import difflib
import functools
import importlib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import tyro

from launch.kit import views
from launch.kit.views import Column, Results, Row, only, where
from tools.results import RESULTS, read_results

ROOT = Path(__file__).parents[1]
_AS_WRITTEN = views.Table(lambda rows: [Column(name, name) for name in rows[0] if name not in ("file", "run")])
NUMBERS = ROOT / "docs" / "numbers.toml"
_opening = re.compile(r"<!-- (table|commands): ")
marked = re.compile(
    r"(?P<open><!-- (?P<kind>table|commands): (?P<name>.+?) -->)(?P<old>.*?)(?P<close><!-- /(?P=kind) -->)", re.S
)
_one = r"-?\d[\d.,]*(?:e[+-]?\d+)?(?<![.,])%?"
_number = rf"({_one}(?:, {_one})*(?: and {_one})?)"
_transcribed, _trials = ", transcribed from the report", "Trials without a kept command"


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, numbers: Mapping[str, Sequence[str]] | None = None) -> str:
    """A page with its tables and numbers as the results have them.

    numbers: pieces of the text, each with the addresses of its numbers. A marker that names nothing or is not closed before the
    next one, and a piece that is not there once, are refused.
    """
    complete = {found.start() for found in marked.finditer(text) if not _opening.search(found["old"])}
    for opening in _opening.finditer(text):
        if opening.start() not in complete:
            raise ValueError(f"{text[opening.start() :].split('-->')[0]}-->: close it with <!-- /{opening[1]} -->")
    made = {"table": table, "commands": commands}
    text = marked.sub(lambda found: f"{found['open']}\n\n{made[found['kind']](found['name'])}\n\n{found['close']}", text)
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


def differences(page: Path) -> str:
    """How a page differs from the results; empty where it does not."""
    old, name = page.read_text(), str(page.relative_to(ROOT))
    return "\n".join(difflib.unified_diff(old.splitlines(), renewed(page).splitlines(), name, "results", n=0, lineterm=""))


def table(address: str) -> str:
    """The Markdown of `VIEW of NAMES`, for some rows and columns."""
    found, _, headings = address.partition(" with ")
    view, _, names = found.rpartition(" of ")
    words = shlex.split(names)
    results = kept(*(word for word in words if "=" not in word))
    results = results.where(**_conditions(words))
    shown = find(view) if view else _AS_WRITTEN
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
    """An expression over the rows of results; see the head of this file."""

    def numbers(field: str, **values: Any) -> list[Any]:
        return [row[field] for row in where(results.rows, **values) if row.get(field) is not None]

    known: dict[str, Callable[..., Any]] = {
        "the": lambda field, **values: only(results.rows, **values)[field],
        "each": numbers,
        "mean": lambda field, **values: fmean(numbers(field, **values)),
        "least": lambda field, **values: min(numbers(field, **values)),
        "most": lambda field, **values: max(numbers(field, **values)),
        "rows": lambda **values: where(results.rows, **values),
        "events": results.events,
        "find": find,
    }
    return eval(expression, {"results": results, **known})


def commands(names: str) -> str:
    """The commands of the runs of results, with machine and date.
    Transcribed runs come last, then trials without a kept command."""
    runs = [run for name in names.split() for run in read_results(name)]
    kinds = (
        ([run for run in runs if not run.get("transcribed")], ""),
        ([run for run in runs if run.get("transcribed") and "command" in run], _transcribed),
        ([run for run in runs if "command" not in run], _transcribed),
    )
    return "\n".join(line for kind, note in kinds if kind for line in _commands(kind, note))


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
    """What `module:NAME` names."""
    module, _, name = address.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{address}: {error}") from error


def _conditions(words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Words `field=value,value`: any of some values."""
    pairs = (word.partition("=") for word in words if "=" in word)
    return {name: tuple(map(_parsed, re.split(r",(?! )", text))) for name, _, text in pairs}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _commands(runs: Sequence[Row], note: str) -> list[str]:
    """The commands of some runs, then machine, date and a note."""
    lines = list(dict.fromkeys(f"`{run['command']}`" if "command" in run else _trials for run in runs))
    about = dict.fromkeys(f"{run['machine']}, JAX {run['versions']['jax']}, {run['date']}" for run in runs)
    return [*(f"{line}," for line in lines[:-1]), f"{lines[-1]}: {'; '.join(about)}{note}."]


def main(check: bool = False) -> int:
    """Write the tables and numbers of the documentation again, or only show what differs."""
    changed = {page: found for page in pages() if (found := differences(page))}
    for page, found in changed.items():
        print(found if check else page.relative_to(ROOT))
        if not check:
            page.write_text(renewed(page))
    return int(check and bool(changed))


if __name__ == "__main__":
    try:
        sys.exit(tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,)))
    except ValueError as error:
        sys.exit(f"error: {error}")

"""Writes the tables and numbers of README.md and docs/ from docs/results/.

`python -m tools.tables --check` only says which pages differ. CONTRIBUTING.md has the markers of tables, docs/numbers.toml the
addresses of numbers.
"""

import difflib
import functools
import itertools
import pkgutil
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from launch.kit.views import Column, Results, Row, Table, only, where
from tools.results import RESULTS, read_results

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "numbers.toml"
_as_written = Table(lambda rows: [Column(name, name) for name in rows[0] if name not in ("file", "run")])
_marked = re.compile(r"<!-- table: (.+?) -->((?!<!-- table: ).)*?<!-- /table -->", re.S)
_one = r"-?\d[\d.,]*(?:e[+-]?\d+)?(?<![.,])%?"
_number = rf"({_one}(?:, {_one})*(?: and {_one})?)"


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(page: Path) -> str:
    """The text of a page of this repository as the results have it."""
    return filled(page.read_text(), tomllib.loads(NUMBERS.read_text()).get(page.relative_to(ROOT).as_posix(), {}))


def filled(text: str, numbers: Mapping[str, Sequence[str]] | None = None) -> str:
    """A page with its tables and numbers; numbers: pieces of the text, with addresses."""
    made = lambda found: f"<!-- table: {found[1]} -->\n\n{evaluate(found[1])}\n\n<!-- /table -->"  # noqa: E731
    if len(_marked.findall(text)) != text.count("<!-- table: "):
        raise ValueError("a table is not closed before the next one: close it with <!-- /table -->")
    text = _marked.sub(made, text)
    for piece, addresses in (numbers or {}).items():
        text = with_numbers(text, piece, [value(address) for address in addresses])
    return text


def with_numbers(text: str, piece: str, numbers: Sequence[str]) -> str:
    """A text with these numbers in a piece of it, which stands there once.

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


def value(address: str) -> str:
    """The number, or the numbers, of `NAMES = EXPRESSION : FORMAT`."""
    expression, _, form = address.rpartition(" : ")
    number = evaluate(expression)
    *first, last = [format(x, form) for x in (number if isinstance(number, list) else [number])]
    return f"{', '.join(first)} and {last}" if first else last


def evaluate(address: str) -> Any:
    """The value of `NAMES = EXPRESSION` over the rows of results."""
    names, _, expression = address.partition(" = ")
    results = kept(*names.split())

    def each(field: str, **values: Any) -> list[Any]:
        return [row[field] for row in where(results.rows, **values) if row.get(field) is not None]

    def table(view: str = "", columns: str = "", **values: Any) -> str:
        shown: Any = pkgutil.resolve_name(view) if view else _as_written
        shown = shown.with_columns(columns.split(", ")) if columns else shown
        return "\n".join(shown(results.where(**values))).strip()

    known: dict[str, Any] = {
        "each": each, "rows": functools.partial(where, results.rows), "events": results.events, "results": results,
        "the": lambda field, **values: only(results.rows, **values)[field], "find": pkgutil.resolve_name, "table": table,
        "commands": lambda: commands(names),
    }  # fmt: skip
    for name, function in (("mean", fmean), ("least", min), ("most", max)):
        known[name] = lambda field, function=function, **values: function(each(field, **values))
    return eval(expression, known)


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
    """Results of docs/results/: rows with further flags, `file` and `run`."""
    runs = [(name, n, run) for name in names for n, run in enumerate(read_results(name))]
    rows: list[Row] = []
    events: dict[str, list[Row]] = {}
    for name, n, run in runs:
        known = set(itertools.chain(*run["rows"]))
        about = {field: value for field, value in run["config"].items() if field not in known} | run["shared"]
        rows += [{**about, **row, "file": name, "run": n} for row in run["rows"]]
        for event, entries in run.get("events", {}).items():
            events.setdefault(event, []).extend(entries)
    return Results(RESULTS, runs[0][2]["config"] if runs else {}, rows, events)


def main(check: bool) -> int:
    """Write the tables and numbers of the documentation again, or only show the differences."""
    differ = [(page, new) for page in pages() if (new := renewed(page)) != page.read_text()]
    for page, new in differ:
        print(*difflib.unified_diff(page.read_text().splitlines(), new.splitlines(), str(page), n=0, lineterm=""), sep="\n")
        if not check:
            page.write_text(new)
    return int(check and len(differ) > 0)


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv))

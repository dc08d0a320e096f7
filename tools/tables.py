"""Writes the tables and numbers of README.md and docs/ again from docs/results/; tools/published/ says what they are.

    python -m tools.tables
    python -m tools.tables --check    # only says which pages differ

A table stands between `<!-- table: NAME -->` and `<!-- /table -->`, a number between `<!-- value: NAME -->` and
`<!-- /value -->`.
"""

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import tyro

from tools.declarations import Table, Value
from tools.published import TABLES, VALUES

ROOT = Path(__file__).parents[1]
DECLARED: Mapping[str, Mapping[str, Table | Value]] = {"table": TABLES, "value": VALUES}
_opening = re.compile(r"<!-- (table|value): ")
marked = re.compile(r"(?P<open><!-- (?P<kind>table|value): (?P<name>\S+) -->)(?P<old>.*?)(?P<close><!-- /(?P=kind) -->)", re.S)


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page with its tables and numbers as the results have them.

    Raises:
        ValueError: a marker whose name is not declared, or that is not closed before the next one.
    """
    complete = {found.start() for found in marked.finditer(text) if not _opening.search(found["old"])}
    for opening in _opening.finditer(text):
        if opening.start() not in complete:
            raise ValueError(f"{text[opening.start() :].split('-->')[0]}-->: close it with <!-- /{opening[1]} -->")
    return marked.sub(_fill, text)


def used(text: str) -> Iterator[tuple[str, str]]:
    """The markers of a page: kind and name."""
    return ((found["kind"], found["name"]) for found in marked.finditer(text))


def differences(page: Path) -> str:
    """What has to change in a page, as a diff; empty where nothing has."""
    old, name = page.read_text(), str(page.relative_to(ROOT))
    return "\n".join(difflib.unified_diff(old.splitlines(), filled(old).splitlines(), name, "results", n=0, lineterm=""))


def _fill(found: re.Match[str]) -> str:
    declared = DECLARED[found["kind"]].get(found["name"])
    if declared is None:
        raise ValueError(f"{found['open']}: no {found['kind']} has this name: declare it in tools/published/")
    text = declared.text()
    return found["open"] + (f"\n\n{text}\n\n" if found["kind"] == "table" else text) + found["close"]


def main(check: bool = False) -> int:
    """Write the tables and numbers of the documentation again.

    Args:
        check: Only show what differs; then the exit status is 1.
    """
    changed = {page: found for page in pages() if (found := differences(page))}
    for page, found in changed.items():
        print(found if check else page.relative_to(ROOT))
        if not check:
            page.write_text(filled(page.read_text()))
    return int(check and bool(changed))


if __name__ == "__main__":
    try:
        sys.exit(tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,)))
    except ValueError as error:
        sys.exit(f"error: {error}")

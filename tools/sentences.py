"""Whether the decimals in the sentences of README.md and docs/ are numbers of results.

    python -m tools.sentences    # the decimals of each page that are not

A decimal may stand in a sentence of a page

* if a generated table or number of its section shows it,
* if it is a number, or a percentage, of the results that tools/published/sentences.py names for the page, rounded as it
  stands there,
* if that module quotes it, with its source.

Integers, code and the targets of links are not looked at.
"""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import tyro

from tools import tables
from tools.published.sentences import QUOTED, SAID

_hidden = re.compile(r"```.*?```|`[^`]+`|(?<=\])\([^)]*\)|<!--.*?-->", re.S)
_decimal = re.compile(r"(?<![\w.=])\d[\d,]*\.\d+(?:e-?\d+)?(?!\.?\d|\w)")
_section = re.compile(r"^(?=## )", re.M)


class Found(NamedTuple):
    """A decimal, and the line that has it."""

    decimal: str
    line: str


def decimals(page: str) -> Iterator[Found]:
    """The decimals of a page outside of what is generated, code, and targets of links."""
    for line in _hidden.sub(" ", tables.marked.sub(" ", page)).splitlines():
        yield from (Found(decimal, line.strip()) for decimal in _decimal.findall(line))


def shown(page: str) -> set[str]:
    """The decimals of the generated tables and numbers of a page."""
    return {decimal for found in tables.marked.finditer(page) for decimal in _decimal.findall(found["old"])}


def shows(decimal: str, number: float) -> bool:
    """Whether a decimal is a number, or its percentage, without its sign, rounded to the decimal's last digit.

    Example:
        >>> shows("0.61", -0.6149), shows("61.5", 0.6149), shows("0.62", 0.6149)
        (True, True, False)
    """
    exact = Decimal(decimal.replace(",", ""))
    half = 0.500001 * 10.0 ** int(exact.as_tuple().exponent)
    return any(abs(abs(scaled) - float(exact)) <= half for scaled in (number, 100 * number))


def unfounded(page: str, numbers: Sequence[float] = (), quoted: Collection[str] = ()) -> list[Found]:
    """The decimals in the sentences of a page that are not generated in their section, none of these numbers and not quoted."""
    return [
        found
        for section in _section.split(page)
        for known in [shown(section).union(quoted)]
        for found in decimals(section)
        if found.decimal not in known and not any(shows(found.decimal, x) for x in numbers)
    ]


def unfounded_of(page: Path) -> list[Found]:
    """The same for a page of the documentation."""
    name = page.relative_to(tables.ROOT).as_posix()
    said = [number for some in SAID.get(name, ()) for number in some.found()]
    return unfounded(page.read_text(), said, QUOTED.get(name, {}))


def main() -> int:
    """Name the decimals in sentences that are not numbers of results; then the exit status is 1."""
    wrong = [(page.relative_to(tables.ROOT), *found) for page in tables.pages() for found in unfounded_of(page)]
    for page, decimal, line in wrong:
        print(f"{page}: {decimal} of no results in: {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))

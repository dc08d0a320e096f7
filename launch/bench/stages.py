"""How the stages of a run on a pod are shown, in its report and in the documentation."""

from collections.abc import Mapping
from typing import Any

from jexplicit.runs.tables import Column


def _number(heading: str, field: str, scale: float = 1) -> Column:
    """A column of numbers of two digits, or of integers from 100 on; nothing for 0."""

    def text(row: Mapping[str, Any]) -> str:
        x = row[field] * scale
        return f"{x:,.0f}" if x >= 100 else f"{x:.2g}" if x else ""

    return Column(heading, text, "n")


COLUMNS = [
    Column("stage", "stage"),
    _number("seconds", "seconds"),
    _number("GB through a host", "host_bytes", 1e-9),
    _number("GB of a chip's memory", "memory_bytes", 1e-9),
    _number("kernels of a chip", "kernels"),
    _number("GB that a chip sends", "link_bytes", 1e-9),
    Column("limit", "limit"),
    _number("dollars", "dollars"),
]

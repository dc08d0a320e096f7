"""What tests read of run folders, and how they interrupt a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rows(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "results.json").read_text())["rows"]


def without_costs(out: Path) -> list[dict[str, Any]]:
    costs = ("seconds", "peak_bytes", "per_second")
    return [{name: value for name, value in row.items() if not name.endswith(costs)} for row in rows(out)]


def interrupted(function: Callable, call: int) -> Callable:
    """The same function, interrupted at a call of this number."""
    calls = 0

    def counted(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return counted

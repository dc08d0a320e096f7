"""Keeps finished runs in docs/results/, the source of all numbers.

python -m tools.results names runs/names_3 runs/names_8 --events step   # docs/results/names.json, with lines of metrics.jsonl
"""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

from jexplicit.runs.files import read_config, read_events, read_rows, read_stored
from launch.judge import by_model
from launch.kit.command import as_installed

RESULTS = Path(__file__).parents[1] / "docs" / "results"
_digits, _longest_list = 6, 24


def keep(
    name: Positional[str], runs: Positional[tuple[Path, ...]], events: tuple[str, ...] = (), folder: Path = RESULTS
) -> Path:
    """Keep finished runs as docs/results/NAME.json, with these events of metrics.jsonl."""
    if not runs:
        raise ValueError(f"no run to keep as {name}: give one or more run folders")
    path = folder / f"{name}.json"
    path.write_text(_json({"runs": [summary(run, events) for run in runs]}) + "\n")
    return path


def read_results(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The kept runs of a name."""
    path = folder / f"{name}.json"
    if not path.exists():
        raise ValueError(f"no results at {path}: keep some there by python -m tools.results {name} RUN")
    return json.loads(path.read_text())["runs"]


def summary(run: Path, events: Sequence[str] = ()) -> dict[str, Any]:
    """The kept part of a run; `shared` fields are common to rows."""
    environment, rows = json.loads((run / "environment.json").read_text()), read_rows(run)
    devices, processor = environment["devices"], re.search("x86_64|aarch64|arm64", environment["platform"])
    machine = ", ".join(f"{devices.count(name)} {name}" for name in dict.fromkeys(devices))
    if set(devices) == {"cpu"}:
        machine = f"{environment['cores']} CPU cores" + (f" ({processor[0]})".replace("_", "-") if processor else "")
    rows = by_model(rows) if read_stored(run)["launcher"] == "judge" else rows  # which has thousands
    shared = {name: value for name, value in rows[0].items() if all(name in row and row[name] == value for row in rows)}
    without = lambda fields, *names: {name: value for name, value in fields.items() if name not in names}  # noqa: E731
    found = {
        "command": command_line(environment["command"], f"runs/{run.name}"),
        "date": datetime.fromtimestamp(read_events(run, "row")[-1]["time"], UTC).date().isoformat(),
        "machine": machine,
        "versions": {"python": environment["python"], "jax": environment["versions"]["jax"]},
        "commit": environment["commit"],
        "config": without(read_config(run) or {}, "out", "resume"),
        "shared": shared,
        "rows": [without(row, *shared) for row in rows],
        "events": {name: [without(event, "time", "event") for event in read_events(run, name)] for name in events},
    }
    return _rounded(found, str(run))


def command_line(started: Sequence[str], out: str) -> str:
    """The words that started a run, in the installed form and with another --out."""
    pairs = zip(["", *started], started, strict=False)
    words = [word for before, word in pairs if before != "--out" and not re.match(r"--(out(=.*)?|resume)$", word)]
    return as_installed(shlex.join([*words, "--out", out]))


def _rounded(value: Any, where: str) -> Any:
    """JSON with six digits, without nulls, long lists and absolute paths."""
    short = lambda part: not isinstance(part, list) or len(part) <= _longest_list or isinstance(part[0], dict)  # noqa: E731
    kept = lambda fields: {name: part for name, part in fields.items() if part is not None and short(part)}  # noqa: E731
    text = json.dumps(value, ensure_ascii=False)
    if path := re.search(r'(?<=["\s])[/~][^"]*', text):
        raise ValueError(f"{where}: {path[0]!r} is an absolute path: run the command from the folder of its files")
    return json.loads(text, parse_float=lambda number: float(f"{float(number):.{_digits}g}"), object_hook=kept)


def _json(value: Any, indent: str = "") -> str:
    """JSON in which an object or list without objects in it is one line."""
    parts = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(parts, list) or "{" not in json.dumps(parts):
        return json.dumps(value, ensure_ascii=False)
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(parts)
    lines = ",\n".join(f"{indent} {name}{_json(part, f'{indent} ')}" for name, part in zip(names, parts, strict=True))
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{lines}\n{indent}{closing}"


if __name__ == "__main__":
    try:
        print(tyro.cli(keep))
    except ValueError as error:
        sys.exit(f"error: {error}")

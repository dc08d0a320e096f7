"""Keeps finished runs in docs/results/, the source of all numbers.

python -m tools.results babylm runs/babylm                           # docs/results/babylm.json, of one run
python -m tools.results shakespeare runs/shakespeare --events step   # with some lines of its metrics.jsonl
python -m tools.results names runs/names_3 runs/names_8              # of several; transcribed ones have "transcribed": true
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

from jexplicit.runs.files import read_config, read_events, read_rows, read_stored
from launch.judge import by_model
from launch.kit.command import as_installed

RESULTS = Path(__file__).parents[1] / "docs" / "results"
_digits, _longest_list = 6, 24


def keep(name: str, runs: Sequence[Path], events: Sequence[str] = (), folder: Path = RESULTS) -> Path:
    """Write NAME.json of run folders, with these events of metrics.jsonl."""
    if not runs:
        raise ValueError(f"no run to keep as {name}: give one or more run folders")
    path = folder / f"{name}.json"
    path.write_text(_json({"runs": [summary(run, events) for run in runs]}) + "\n")
    return path


def read_results(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The runs in NAME.json; a ValueError without that file."""
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
        about = f" ({processor[0]})".replace("_", "-") if processor else ""
        machine = f"{environment['cores']} CPU cores{about}"
    rows = by_model(rows) if read_stored(run)["launcher"] == "judge" else rows  # which has thousands
    shared = {name: value for name, value in rows[0].items() if all(name in row and row[name] == value for row in rows)}
    found = {
        "command": command_line(environment["command"], f"runs/{run.name}"),
        "date": datetime.fromtimestamp(read_events(run, "row")[-1]["time"], UTC).date().isoformat(),
        "machine": machine,
        "versions": {"python": environment["python"], "jax": environment["versions"]["jax"]},
        "commit": environment["commit"],
        "config": {name: value for name, value in (read_config(run) or {}).items() if name not in ("out", "resume")},
        "shared": shared,
        "rows": [{name: value for name, value in row.items() if name not in shared} for row in rows],
    }
    if events:
        without = lambda event: {name: value for name, value in event.items() if name not in ("time", "event")}  # noqa: E731
        found["events"] = {name: list(map(without, read_events(run, name))) for name in events}
    return _rounded(found, str(run))


def command_line(started: Sequence[str], out: str) -> str:
    """The words that started a run, in the installed form and with another --out."""
    pairs = zip(["", *started], started, strict=False)
    words = [word for before, word in pairs if before != "--out" and not re.match(r"--(out(=.*)?|resume)$", word)]
    return as_installed(shlex.join([*words, "--out", out]))


def _rounded(value: Any, where: str) -> Any:
    """JSON with six digits, without nulls, long lists and absolute paths."""
    if isinstance(value, dict):
        long = {name for name, part in value.items() if isinstance(part, list) and len(part) > _longest_list}
        kept = {n: part for n, part in value.items() if part is not None and (n not in long or isinstance(part[0], dict))}
        return {name: _rounded(part, f"{where}, {name}") for name, part in kept.items()}
    if isinstance(value, list):
        return [_rounded(part, where) for part in value]
    if isinstance(value, str) and any(word.startswith(("/", "~")) for word in value.split()):
        raise ValueError(f"{where}: {value!r} is an absolute path: run the command from the folder of its files")
    return float(f"{value:.{_digits}g}") if isinstance(value, float) else value


def _json(value: Any, indent: str = "") -> str:
    """JSON in which an object or list without objects in it is one line."""
    parts = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(parts, list) or "{" not in json.dumps(parts):
        return json.dumps(value, ensure_ascii=False)
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(parts)
    lines = ",\n".join(f"{indent} {name}{_json(part, f'{indent} ')}" for name, part in zip(names, parts, strict=True))
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{lines}\n{indent}{closing}"


def main(name: tyro.conf.Positional[str], runs: tyro.conf.Positional[tuple[Path, ...]], /, *, events: tuple[str, ...] = ()):
    """Keep finished runs as docs/results/NAME.json, with these events of metrics.jsonl."""
    print(keep(name, runs, events))


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except ValueError as error:
        sys.exit(f"error: {error}")

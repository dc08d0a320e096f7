"""The run folder: what was asked for, where it ran, what came out. Reports and figures read only these files.

config.json, environment.json, metrics.jsonl (a line per event), results.json ({"rows": [...]}), figures/, checkpoints/,
report.md.
"""

import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jexplicit.runs.processes import agree, is_first

_of_one_start = ("coordinator", "num_processes", "process_id")  # fields that a continuation does not take over
# Fields that may differ between a run and its continuation.
_where_not_what = ("out", "resume", "devices", "memory", "checkpoint_seconds", "join_seconds", *_of_one_start)
_libraries = ("flax", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "scikit-learn", "sentencepiece")


class RunFolder:
    """A folder that one launcher's run writes into.

    Opening it writes config.json and environment.json; `resume` continues a run of the same configuration. Of several
    processes the first one writes, and the others hold what they would have written.

    Raises:
        ValueError: the folder holds a run already and `resume` is off; it holds another configuration; it cannot be written.
    """

    def __init__(self, out: str | os.PathLike, config: Any, *, resume: bool = False, extend: Sequence[str] = ()):
        self.path = Path(out)
        described = _plain(config)
        begun = (self.path / "metrics.jsonl").exists()  # a run that measured nothing yet has nothing to lose
        stored = read_config(self.path) if begun else None
        if begun and not resume:
            raise ValueError(f"{self.path} already holds a run: add --resume to continue it, or choose another --out")
        if stored is not None:
            changed = [k for k in described if k not in (*_where_not_what, *extend) and stored.get(k) != described[k]]
            if changed:
                was = ", ".join(f"{k} = {stored.get(k)!r} (now {described[k]!r})" for k in changed)
                raise ValueError(f"{self.path} was run with {was}: resume without changing it, or choose another --out")
        self._rows = read_rows(self.path) if (self.path / "results.json").exists() else []
        agree(f"--out {self.path}, configuration or results", json.dumps([self._rows, _same_everywhere(described)]))
        if not is_first():
            return
        try:
            (self.path / "figures").mkdir(parents=True, exist_ok=True)
            kept = {name: None if name in _of_one_start else value for name, value in described.items()}
            write_json(self.path / "config.json", kept)
            write_json(self.path / "environment.json", environment())
        except OSError as error:
            raise ValueError(f"run folder {self.path} cannot be written ({error}): choose another --out") from error

    def log(self, **event: Any) -> None:
        """Append one line to metrics.jsonl."""
        if not is_first():
            return
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"time": round(time.time(), 3), **event}) + "\n")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl with this `event`, oldest first."""
        return read_events(self.path, name)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of results.json so far."""
        return list(self._rows)

    def add_row(self, row: dict[str, Any]) -> None:
        """Add a measured model to results.json."""
        self.add_rows([row])

    def add_rows(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows to results.json, all of them or, where the run is killed, none; each is an event too."""
        for row in rows:
            self.log(event="row", **row)
        self._rows += json.loads(json.dumps(list(rows)))
        if is_first():
            write_json(self.path / "results.json", {"rows": self._rows})


def read_config(out: str | os.PathLike) -> dict[str, Any] | None:
    """The configuration of the run in a folder, or None where there is no run."""
    path = Path(out) / "config.json"
    return json.loads(path.read_text()) if path.exists() else None


def read_rows(out: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows of a run's results.json.

    Raises:
        ValueError: no results there.
    """
    path = Path(out) / "results.json"
    if not path.exists():
        raise ValueError(f"no results at {path}: is {out} the --out of a finished run?")
    return json.loads(path.read_text())["rows"]


def read_events(out: str | os.PathLike, name: str) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl with this `event`, oldest first; a last line cut short by a kill is left out."""
    path = Path(out) / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, lines) if event.get("event") == name]


def command_name() -> str:
    """The command of this process as typed: a file of launch/, or the __main__ of a folder there."""
    program = Path(sys.argv[0])
    return f"python -m launch.{program.parent.name if program.stem == '__main__' else program.stem}"


def environment() -> dict[str, Any]:
    """Versions, commit and devices: what it takes to run the same again."""
    return {
        "command": [*command_name().split(), *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "commit": _commit(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "versions": {name: metadata.version(name) for name in _libraries},
    }


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


def _same_everywhere(described: dict[str, Any]) -> dict[str, Any]:
    """The fields that all processes of a run share."""
    return {name: value for name, value in described.items() if name not in _where_not_what}


def _plain(config: Any) -> dict[str, Any]:
    """A dataclass as JSON would give it back."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None

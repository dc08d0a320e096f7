"""The run folder: configuration, environment and results of one run.

config.json (the config's fields, and as `launcher` the name of the experiment), environment.json, metrics.jsonl (a line per
event), results.json ({"rows": [...]}), figures/, checkpoints/, report.md.
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

from jexplicit.runs.files import local_path, write_json
from jexplicit.runs.processes import check_equal_across_processes, is_first, lock_run_folder
from jexplicit.runs.results import check_experiment, experiment_of, read_config, read_events, read_rows, read_stored
from launch.kit.program import command_name

_of_one_start = ("coordinator", "num_processes", "process_id")  # fields not stored in config.json
# Fields that do not affect results, such as devices: a resumed run may change them.
_where_not_what = ("out", "resume", "devices", "memory", "checkpoint_seconds", "join_seconds", *_of_one_start)
_libraries = ("flax", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "scikit-learn", "sentencepiece")


class RunFolder:
    """The folder of one run of a launcher.

    Opening it locks it against other runs for the lifetime of this object, and writes config.json and environment.json. Of
    several processes the first one writes; all of them have the same rows in memory.

    Args:
        out: the folder; it is created. An existing one must be empty or have a run.
        config: a frozen dataclass.
        resume: continue a run of the same configuration, except for `extend` and fields that do not affect results.
        extend: fields that a resumed run may change, such as the radii; config.json then has the new values.
        experiment: its name; default, the launcher that defines the config.

    Raises:
        ValueError: a folder with other files, with a run and no `resume`, or with a run of another configuration or experiment;
            another run is active in it; it is damaged or cannot be written.
    """

    def __init__(
        self,
        out: str | os.PathLike,
        config: Any,
        *,
        resume: bool = False,
        extend: Sequence[str] = (),
        experiment: str = "",
    ):
        self.path = local_path(out, "--out")
        described = json.loads(json.dumps(dataclasses.asdict(config)))  # as JSON types
        experiment = experiment or experiment_of(type(config))
        if unknown := sorted(set(extend) - set(described)):
            raise ValueError(f"extend names {', '.join(unknown)}: the config has only {', '.join(described)}")
        _check_empty_or_run(self.path)
        self._lock = lock_run_folder(self.path, jax.process_index())
        check_experiment(self.path, experiment, "choose another --out")
        # a run without measurements may be overwritten
        begun = any((self.path / name).exists() for name in ("metrics.jsonl", "results.json"))
        if begun and not resume:
            raise ValueError(f"{self.path} already holds a run: add --resume to continue it, or choose another --out")
        if begun:
            _check_unchanged(self.path, described, extend)
        self._rows = read_rows(self.path) if (self.path / "results.json").exists() else []
        same = {name: value for name, value in described.items() if name not in _where_not_what}
        check_equal_across_processes(f"--out {self.path}, configuration or results", json.dumps([self._rows, same]))
        if not is_first():
            return
        kept = {name: None if name in _of_one_start else value for name, value in described.items()}
        write_json(self.path / "config.json", {"launcher": experiment, **kept})
        write_json(self.path / "environment.json", environment())
        _drop_torn_line(self.path / "metrics.jsonl")
        (self.path / "figures").mkdir(exist_ok=True)

    def log(self, **event: Any) -> None:
        """Append one line to metrics.jsonl."""
        if not is_first():
            return
        line, path = json.dumps({"time": round(time.time(), 3), **event}) + "\n", self.path / "metrics.jsonl"
        try:
            with open(path, "a") as file:
                file.write(line)
        except OSError as error:
            raise ValueError(f"{path} cannot be written ({error.strerror}): make room, then continue with --resume") from error

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl with this `event`, oldest first."""
        return read_events(self.path, name)

    def note_data(self, what: str, **sums: str) -> None:
        """Note checksums of a run's inputs, and refuse others on resuming."""
        for before in self.events(what):
            if other := [part for part in sums if before[part] != sums[part]]:
                was = ", ".join(f"{part} {before[part][:12]} (now {sums[part][:12]})" for part in other)
                raise ValueError(
                    f"{self.path} was started on another {what}, {was}: restore the {what}, or choose another --out"
                )
        if not self.events(what):
            self.log(event=what, **sums)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of results.json so far."""
        return list(self._rows)

    def add_rows(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows to results.json atomically, and log each as an event."""
        for row in rows:
            self.log(event="row", **row)
        self._rows += json.loads(json.dumps(list(rows)))
        self._write_rows()

    def extend_row(self, row: dict[str, Any], **fields: Any) -> None:
        """Add fields to one of `rows()`, such as what is measured after all rows."""
        self._rows[self._rows.index(row)] |= fields
        self._write_rows()

    def _write_rows(self) -> None:
        if is_first():
            write_json(self.path / "results.json", {"rows": self._rows})


def environment() -> dict[str, Any]:
    """Versions, commit, devices and command, for reproducing a run."""
    return {
        "command": [*command_name().split(), *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "commit": _commit(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "versions": {name: metadata.version(name) for name in _libraries},
    }


def _check_empty_or_run(path: Path) -> None:
    """Refuse a folder with other files than a run's."""
    try:
        names = sorted(entry.name for entry in os.scandir(path)) if path.is_dir() else []
    except OSError as error:
        raise ValueError(f"run folder {path} cannot be read ({error.strerror}): choose another --out") from error
    others = [name for name in names if not name.startswith(".") and not name.endswith(".partial")]
    if others and not _is_run(path):
        some = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
        raise ValueError(f"{path} is not the folder of a run and holds {some}: choose another --out, or an empty folder")


def _is_run(path: Path) -> bool:
    """Whether the folder has a run of this program, started or finished."""
    if not (path / "config.json").exists():
        return (path / "metrics.jsonl").exists()
    return (path / "environment.json").exists() or "launcher" in read_stored(path)


def _check_unchanged(path: Path, described: dict[str, Any], extend: Sequence[str]) -> None:
    """Refuse a resumed run with other values of fields that must not change."""
    stored = read_config(path)
    if stored is None:
        raise ValueError(f"{path} has measurements and no config.json: restore it, or choose another --out")
    changed = [k for k in described if k not in (*_where_not_what, *extend) and stored.get(k) != described[k]]
    if changed:
        was = ", ".join(f"{k} = {stored.get(k)!r} (now {described[k]!r})" for k in changed)
        raise ValueError(f"{path} was run with {was}: resume without changing it, or choose another --out")


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line of a killed run."""
    text = path.read_bytes() if path.exists() else b""
    if text and not text.endswith(b"\n"):
        os.truncate(path, text.rfind(b"\n") + 1)


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None

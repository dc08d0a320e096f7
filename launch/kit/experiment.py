"""An experiment: config, `measure`, which yields rows, and views; the folder of a run."""

import contextlib
import dataclasses
import inspect
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jexplicit.runs import files
from jexplicit.runs.devices import check_equal_across_processes, is_first, lock_run_folder
from jexplicit.runs.progress import console, show
from launch.kit.command import Preset, command_name, entry_point
from launch.kit.views import Row, Table, View, read_results, rich_table, where

_of_one_start = ("coordinator", "num_processes", "process_id")  # fields not stored in config.json
# Fields that do not affect results, such as devices: a resumed run may change them.
_where_not_what = ("out", "resume", "devices", "memory", "join_seconds", *_of_one_start)
_libraries = ("flax", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "scikit-learn", "sentencepiece")


class RunFolder:
    """The folder of a run, locked against other runs while it is open.

    Of several processes the first one writes; all of them have the same rows in memory. resume: continue a run of the same
    configuration, except for `extend` and fields that do not affect results.
    """

    def __init__(
        self, out: str | os.PathLike, config: Any, *, resume: bool = False, extend: Sequence[str] = (), experiment: str = ""
    ):
        self.path = path = files.local_path(out, "--out")
        described = json.loads(json.dumps(dataclasses.asdict(config)))  # as JSON types
        experiment = experiment or files.experiment_of(type(config))
        _check_empty_or_run(path)
        self._lock = lock_run_folder(path, jax.process_index())
        files.check_experiment(path, experiment, "choose another --out")
        # a run without measurements may be overwritten
        begun = (path / "metrics.jsonl").exists() or (path / "results.json").exists()
        if begun and not resume:
            raise ValueError(f"{path} already holds a run: add --resume to continue it, or choose another --out")
        stored = files.read_config(path) if begun else described
        if stored is None:
            raise ValueError(f"{path} has measurements and no config.json: restore it, or choose another --out")
        if changed := [k for k in described if k not in (*_where_not_what, *extend) and stored.get(k) != described[k]]:
            was = ", ".join(f"{k} = {stored.get(k)!r} (now {described[k]!r})" for k in changed)
            raise ValueError(f"{path} was run with {was}: resume without changing it, or choose another --out")
        self._rows = files.read_rows(path) if (path / "results.json").exists() else []
        same = {name: value for name, value in described.items() if name not in _where_not_what}
        check_equal_across_processes(f"--out {path}, configuration or results", json.dumps([self._rows, same]))
        if not is_first():
            return
        kept = described | {name: None for name in _of_one_start if name in described}
        files.write_json(path / "config.json", {"launcher": experiment, **kept})
        about = environment()
        with contextlib.suppress(OSError, ValueError, KeyError):  # a continuation adds flags to the command
            if begun:
                before = files.parse_json((path / "environment.json").read_bytes())["command"]
                about["command"] = [*before, *itertools.dropwhile(lambda word: not word.startswith("-"), sys.argv[1:])]
        files.write_json(path / "environment.json", about)
        metrics = path / "metrics.jsonl"
        text = metrics.read_bytes() if metrics.exists() else b""
        if text and not text.endswith(b"\n"):  # a line of a killed run, cut short
            os.truncate(metrics, text.rfind(b"\n") + 1)
        (path / "figures").mkdir(exist_ok=True)

    def log(self, **event: Any) -> None:
        """Append one line to metrics.jsonl."""
        if is_first():
            with open(self.path / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **event}) + "\n")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The logged events of a name, oldest first."""
        return files.read_events(self.path, name)

    def note_data(self, what: str, **sums: str) -> None:
        """Note checksums of a run's inputs, and refuse others on resuming."""
        for before in self.events(what):
            if other := [part for part in sums if before[part] != sums[part]]:
                was = ", ".join(f"{part} {before[part][:12]} (now {sums[part][:12]})" for part in other)
                remedy = f"restore the {what}, or choose another --out"
                raise ValueError(f"{self.path} was started on another {what}, {was}: {remedy}")
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
            files.write_json(self.path / "results.json", {"rows": self._rows})


def _check_empty_or_run(path: Path) -> None:
    """Refuse a folder with other files than a run's."""
    with files.refuse_errors(f"run folder {path} cannot be read", "choose another --out", OSError):
        names = sorted(entry.name for entry in os.scandir(path)) if path.is_dir() else []
    others = [name for name in names if not name.startswith(".") and not name.endswith(".partial")]
    kept = "config.json" in names and ("environment.json" in names or "launcher" in files.read_stored(path))
    if others and not (kept or "metrics.jsonl" in names):
        some = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
        raise ValueError(f"{path} is not the folder of a run and holds {some}: choose another --out, or an empty folder")


def environment() -> dict[str, Any]:
    """Versions, commit, devices and command, for reproducing a run."""
    try:
        git = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    return {
        "command": [*command_name().split(), *sys.argv[1:]],
        "python": platform.python_version(), "platform": platform.platform(), "cores": os.cpu_count(), "commit": commit or None,
        "devices": [str(device.device_kind) for device in jax.devices()],
        "versions": {name: metadata.version(name) for name in _libraries},
    }  # fmt: skip


Part = tuple[Row, Callable[[], Iterable[Row]]]


class Experiment(NamedTuple):
    """An experiment, `python -m launch.NAME`.

    measure(config, folder) yields pairs such as `{"context": K}, lambda: [{"loss": loss_of(K)}]`: a key, and a part that
    computes rows, to which the key is added. A part whose key is in a row of the run is skipped: runs can be extended.
    """

    name: str
    config: Any  # a frozen dataclass with the fields `out` and `resume`; its docstring begins the report
    measure: Callable[[Any, RunFolder], Iterable[Part]]
    views: Sequence[View]
    presets: Mapping[str, Preset] = {}
    check: Callable[[Any], Any] = lambda config: None  # refuses a configuration, or returns another one
    extend: Sequence[str] = ()  # fields that a resumed run may change
    title: str = ""

    def run(self, config: Any) -> dict[str, Any]:
        """Compute missing parts, write the report, and print the first table."""
        start, config = time.perf_counter(), self.check(config) or config
        folder = RunFolder(config.out, config, resume=config.resume, extend=self.extend, experiment=self.name)
        try:
            for key, part in self.measure(config, folder):
                if not where(folder.rows(), **key):
                    folder.add_rows([{**key, **row, **key} for row in part()])
        except FloatingPointError:  # diverged training
            if folder.rows() and is_first():
                console.print(f"report {self.report(folder.path)}, on the rows before", soft_wrap=True)
            raise
        if not is_first():
            return {}
        report = self.report(folder.path)
        for table in [view for view in self.views if isinstance(view, Table)][:1]:
            show(rich_table(*table.content(read_results(folder.path))))
        folder.log(event="finished", seconds=(seconds := time.perf_counter() - start))
        console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)
        return {"out": str(folder.path), "seconds": seconds, "rows": folder.rows()}

    def report(self, out: Path) -> Path:
        """Write report.md and the figures from the files of a run only."""
        results = read_results(out)
        about = [inspect.cleandoc(self.config.__doc__ or "").split("\n\n")[0], ""]
        lines = [f"# {self.title or self.name}", "", *about, *(line for view in self.views for line in view(results))]
        path = out / "report.md"
        path.write_text("\n".join([*(line for line, before in zip(lines, ["-", *lines], strict=False) if line or before), ""]))
        return path

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Entry point of the command line."""
        return entry_point(self.run, self.config, self.config.__doc__, self.presets, experiment=self.name)(argv)

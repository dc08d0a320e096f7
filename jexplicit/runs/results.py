"""Readers of a run folder: its configuration, rows and events. Does not import JAX."""

import functools
import math
import os
import shlex
from pathlib import Path
from typing import Any, TypeVar

from jexplicit.runs.files import local_path, parse_json

J = TypeVar("J", dict, list)


def read_run(out: str | os.PathLike, experiment: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The config and rows of a run of an experiment."""
    config = read_config(out, experiment)
    if config is None:
        raise ValueError(f"no run at {out}: give the --out of a run of launch.{experiment}")
    return config, read_rows(out)


def read_config(out: str | os.PathLike, experiment: str | None = None) -> dict[str, Any] | None:
    """The configuration of the run in a folder, or None."""
    path = local_path(out, "--out")
    if not (path / "config.json").exists():
        return None
    if experiment is not None:
        check_experiment(path, experiment, f"this command reads runs of launch.{experiment}")
    return {name: value for name, value in read_stored(path).items() if name != "launcher"}


def read_rows(out: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows of a run's results.json."""
    path = local_path(out, "--out") / "results.json"
    if not path.exists():
        raise ValueError(f"no results at {path}: is {out} the --out of a finished run?")
    remedy = "delete it and continue the run with --resume, which measures again"
    rows = _read(path, remedy, dict).get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} is damaged (no `rows`, a list of objects): {remedy}")
    return rows


def read_texts(path: Path) -> list[str]:
    """The texts in a list such as samples.json; none without the file."""
    return _read(path, "delete it", list) if path.exists() else []


def is_measured(value: object) -> bool:
    """Whether a value is a number and not NaN, as a best one is."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def read_command(out: str | os.PathLike) -> str | None:
    """The command of a run, from its environment.json, where there is one."""
    path = local_path(out, "--out") / "environment.json"
    words = _read(path, "delete it", dict).get("command", []) if path.exists() else None
    return shlex.join(map(str, words)) if isinstance(words, list) else None


def read_events(out: str | os.PathLike, name: str) -> list[dict[str, Any]]:
    """The events of a name in metrics.jsonl, oldest first."""
    path = local_path(out, "--out") / "metrics.jsonl"
    about = path.stat() if path.exists() else None
    return [event for event in _events(path, about.st_size, about.st_mtime_ns) if event.get("event") == name] if about else []


@functools.lru_cache(maxsize=4)
def _events(path: Path, size: int, changed: int) -> list[dict[str, Any]]:
    """All lines of a log, cached until it grows."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_parse(line, f"{path}, line {n},", "delete the line", dict) for n, line in enumerate(lines, 1)]


def experiment_of(config: type) -> str:
    """The name of the experiment of a config class: "lm" for launch.lm.config."""
    parts = config.__module__.split(".")
    return parts[1].replace("_", "-") if parts[0] == "launch" and len(parts) > 1 else parts[-1]


def check_experiment(path: Path, experiment: str, remedy: str) -> None:
    """Refuse the folder of a run of another experiment."""
    stored = read_stored(path).get("launcher", experiment) if (path / "config.json").exists() else experiment
    if stored != experiment:
        raise ValueError(f"{path} is a run of launch.{stored}; {remedy}")


def read_stored(path: Path) -> dict[str, Any]:
    """The stored config.json."""
    return _read(path / "config.json", "restore it, or choose another --out", dict)


def _read(path: Path, remedy: str, kind: type[J]) -> J:
    """The JSON object or list in a file."""
    try:
        return _parse(path.read_bytes(), str(path), remedy, kind)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {remedy}") from error


def _parse(text: bytes, what: str, remedy: str, kind: type[J]) -> J:
    """A JSON object or list; the ValueError otherwise is `what` is damaged: `remedy`."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{what} is damaged ({error}): {remedy}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{what} is damaged (not a JSON {'object' if kind is dict else 'list'}): {remedy}")
    return value

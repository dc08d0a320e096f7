"""The host, without JAX: memory, files, run folders, types of flags, late imports."""

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import json
import math
import os
import re
import resource
import shlex
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

C = TypeVar("C")
J = TypeVar("J", dict, list)
_units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@contextlib.contextmanager
def refuse_errors(what: str, remedy: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise errors (default, all) as a ValueError `what (error): remedy`."""
    kinds = errors or (Exception,)
    try:
        yield
    except kinds as error:
        raise ValueError(f"{what} ({getattr(error, 'strerror', None) or error}): {remedy}") from error


def host_bytes() -> float:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parse_bytes(size: str) -> int:
    """The bytes of a size such as "2GB" (10^9) or "512MiB" (2^20)."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]+)\s*", size, re.ASCII)
    if not found or found[2].upper() not in _units or float(found[1]) <= 0:
        raise ValueError(f"memory {size!r}: give a number and a unit, such as 2GB or 512MiB")
    return int(float(found[1]) * _units[found[2].upper()])


def peak_bytes() -> int:
    """Peak resident memory in bytes: macOS counts them, others units of 1024."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def trim_heap() -> None:
    """Return freed memory that glibc has kept to the system, between memory-intensive stages."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no such function, or no such library
        ctypes.CDLL(None).malloc_trim(0)


def local_path(path: str | os.PathLike, flag: str = "path") -> Path:
    """The whole path of a user's file or folder, whatever `os.chdir` does later."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{flag} {path!r} of type {type(path).__name__}: give a path, such as runs/demo")
    given = os.fspath(path)
    if not given.strip():
        raise ValueError(f"{flag} {given!r}: give a path, such as runs/demo")
    if "://" in given:
        raise ValueError(f"{flag} {given}: give a path on this machine (a mounted bucket is one) and copy the result")
    try:
        return Path(given).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no home folder, or a working folder that was removed
        raise ValueError(f"{flag} {given}: set HOME, or give the whole path ({error})") from error


def file_inside(folder: Path, name: object, index: str | os.PathLike) -> Path:
    """The file that an index of a folder names, in it or in `blobs`."""
    path = folder / str(name)
    if isinstance(name, str) and name == path.name and "\0" not in name:
        home, target = path.resolve().parent, folder.resolve()
        if home == target or home in [parent / "blobs" for parent in target.parents]:
            return path
    raise ValueError(f"{index} names the file {name!r}, which is not in its folder: restore it, or write the folder again")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, which has each name once."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = max(fields, key=[name for name, _ in pairs].count)
            raise ValueError(f"two values of {twice!r}, rename one")
        return fields

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def check_writable(path: str | os.PathLike, flag: str) -> Path:
    """The path of a writable file, checked before long work; its folder is created."""
    file = local_path(path, flag)
    if file.is_dir():
        raise ValueError(f"{flag} {path}: it is a folder; give the file to write")
    with refuse_errors(f"{flag} {path} cannot be written", "choose another place", OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    return file


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file (and its folder) under a temporary name, then rename it."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ValueError(f"{path} cannot be written ({error.strerror}): make room, or choose another folder") from error


def plain(value: Any) -> Any:
    """A number or array as JSON, the `default` of `json.dumps`."""
    if not hasattr(value, "tolist"):
        raise ValueError(f"{value!r} is of type {type(value).__name__}: give numbers, strings, lists or dicts of these")
    return value.tolist()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    text = json.dumps(value, indent=1, default=plain) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def read_run(out: str | os.PathLike, experiment: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The config and rows of a run of an experiment."""
    if (config := read_config(out)) is None:
        raise ValueError(f"no run at {out}: give the --out of a run of launch.{experiment}")
    check_experiment(local_path(out, "--out"), experiment, f"this command reads runs of launch.{experiment}")
    return config, read_rows(out)


def read_config(out: str | os.PathLike) -> dict[str, Any] | None:
    """The configuration of the run in a folder, or None."""
    path = local_path(out, "--out")
    if not (path / "config.json").exists():
        return None
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
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    events = [_parse(line, f"{path}, line {n},", "delete the line", dict) for n, line in enumerate(lines, 1)]
    return [event for event in events if event.get("event") == name]


def experiment_of(config: type) -> str:
    """The name of the experiment of a config class: "lm" for launch.lm."""
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
    with refuse_errors(f"{path} cannot be read", remedy, OSError):
        return _parse(path.read_bytes(), str(path), remedy, kind)


def _parse(text: bytes, what: str, remedy: str, kind: type[J]) -> J:
    """A JSON object or list; the ValueError otherwise is `what` is damaged: `remedy`."""
    with refuse_errors(f"{what} is damaged", remedy, ValueError):
        value = parse_json(text)
    if not isinstance(value, kind):
        raise ValueError(f"{what} is damaged (not a JSON {'object' if kind is dict else 'list'}): {remedy}")
    return value


@dataclass(frozen=True)
class Bounds:
    """The interval of valid numbers; NaN and infinities are never valid."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def contains(self, x: float) -> bool:
        """Whether a number is valid."""
        return -math.inf < x < math.inf and self.at_least <= x <= self.at_most and self.above < x < self.below

    def __str__(self) -> str:
        bounds = {name.replace("_", " "): bound for name, bound in vars(self).items() if math.isfinite(bound)}
        return " and ".join(f"{name} {bound:g}" for name, bound in bounds.items()) or "a finite number"


_largest = 2**63  # bound of integers in arrays and random keys
PositiveInt = Annotated[int, Bounds(at_least=1)]
NonNegativeInt = Annotated[int, Bounds(at_least=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeFloat = Annotated[float, Bounds(at_least=0)]


def check_bounds(config: Any) -> None:
    """Check every number of a config against the bounds of its field."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        values = value if isinstance(value, tuple | list) else (value,)
        numbers, given = [x for x in values if isinstance(x, int | float)], " ".join(map(str, values))
        if any(isinstance(x, int) and abs(x) >= _largest for x in numbers):
            raise ValueError(f"--{field.name.replace('_', '-')} {given}: use whole numbers below 2^63")
        for bounds in find_bounds(hints[field.name]):
            if not all(map(bounds.contains, numbers)):
                raise ValueError(f"--{field.name.replace('_', '-')} {given}: use {bounds}")


def config_of(kind: type[C], stored: Mapping[str, Any], remedy: str) -> C:
    """The config of a run's config.json; a ValueError names values of other types."""
    hints = typing.get_type_hints(kind)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    if wrong := [f"{name} {stored[name]!r}" for name, value in values.items() if not is_of(value, hints[name])]:
        raise ValueError(f"config.json is damaged ({', '.join(wrong)} of another type): {remedy}")
    return kind(**values)


def is_of(value: Any, hint: Any) -> bool:
    """Whether a value is of a type: plain, array, `Literal` or union."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return any(value is choice or value == choice for choice in args)
    if origin is tuple and isinstance(value, tuple):
        kinds = args[:1] * len(value) if args[1:] == (...,) else args
        return len(kinds) == len(value) and all(map(is_of, value, kinds))
    if origin in (typing.Union, types.UnionType):
        return any(is_of(value, arg) for arg in args)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return hint is Any or not isinstance(origin or hint, type) or isinstance(value, origin or hint)


def refuses(find: Callable[..., Iterator[tuple[Any, str]]]) -> Callable[..., None]:
    """A check of flags from pairs `wrong, message`; raises the first."""

    @functools.wraps(find)
    def check(*args: Any, **options: Any) -> None:
        for wrong, message in find(*args, **options):
            if wrong:
                raise ValueError(message)

    return check


def find_bounds(hint: Any) -> Iterator[Bounds]:
    """The bounds in the type of a field, also of tuples and unions."""
    yield from (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Bounds))
    for part in typing.get_args(hint):
        yield from find_bounds(part)


def lazy_names(package: str, table: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, from names by module ("": modules)."""
    modules = {name: f"{package}.{module or name}" for module, names in table.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}: it has {', '.join(sorted(modules))}")
        module = importlib.import_module(modules[name])
        found = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)  # so that it is looked up once
        return found

    return find, lambda: sorted(modules)

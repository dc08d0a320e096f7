"""Commands: types of a config and bounds of its numbers, results and progress.

@dataclass(frozen=True)
class Config:
    batch_size: PositiveInt = 8192
    widths: tuple[PositiveInt, ...] = (256, 128)
    learning_rate: PositiveFloat = 0.01
    patience: PositiveInt | None = None

Results are on standard output, progress is on standard error: a bar with a rate while a stage runs, and one line at its end.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import signal
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

C = TypeVar("C")


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
        words = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return " and ".join(f"{word} {bound:g}" for word, bound in words.items() if math.isfinite(bound)) or "a finite number"


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
    """A check of flags from pairs `wrong, message`: the first is raised.

    Example:
        >>> @refuses
        ... def check(low, high):
        ...     yield low > high, f"--low {low} above --high {high}"
        >>> check(2, 1)
        Traceback (most recent call last):
        ...
        ValueError: --low 2 above --high 1
    """

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


class _Console(Console):
    """A console that exits quietly on a broken pipe, e.g. when piped to `head`."""

    def on_broken_pipe(self) -> None:
        end_of_reader()


def end_of_reader() -> NoReturn:
    """Exit on a broken pipe of the output with its usual status."""
    for stream in (sys.stdout, sys.stderr):  # discard their buffers
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(128 + signal.SIGPIPE)


_widest = 10_000  # columns, without a terminal
console = _Console(stderr=True, highlight=False, emoji=False, width=None if sys.stderr and sys.stderr.isatty() else _widest)
_results = _Console(highlight=False, markup=False, emoji=False)


def show(*results: RenderableType) -> None:
    """Print results on standard output, tables unwrapped without a terminal; nothing with `--json`."""
    if not _results.is_terminal:
        _results.width = _widest
    for result in results:
        _results.print(result, soft_wrap=isinstance(result, str))


def json_line(value: Any) -> str:
    """A value as a line of JSON, in ASCII if necessary."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, default=str)
    return line


def print_hint(text: str) -> None:
    """Print a suggestion for a next command, except with `--quiet` or `--json`."""
    if not _results.quiet:
        console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def quiet_output(*, progress: bool, results: bool) -> Iterator[None]:
    """Disable progress or results within a context."""
    before = console.quiet, _results.quiet
    console.quiet, _results.quiet = before[0] or progress, before[1] or results
    try:
        yield
    finally:
        console.quiet, _results.quiet = before


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{si_format(task.speed or 0)} {task.fields['unit']}/s")


@contextlib.contextmanager
def stage(name: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """Show a named stage of a run; yields its progress function.

    Example:
        >>> with stage("counting", "tokens") as progress:
        ...     progress(5, 10)
    """
    start, amount, last = time.perf_counter(), 0, 0
    columns = (TextColumn("  {task.description}"), BarColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None, unit=unit)

        def progress(done: int, total: int) -> None:
            nonlocal amount, last
            amount += done - last if done >= last else done  # a new pass over the data
            last = done
            bar.update(task, completed=done, total=total)

        yield progress
    seconds = time.perf_counter() - start
    rate = f": {si_format(amount)} {unit}, {si_format(amount / max(seconds, 1e-9))}/s" if amount else ""
    console.print(f"  {name} {seconds:.1f} s{rate}")


def si_format(x: float) -> str:
    """A number with three digits and a suffix: k, M, G or T."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= factor:
            return f"{x / factor:.3g} {letter}"
    return f"{x:.3g}"

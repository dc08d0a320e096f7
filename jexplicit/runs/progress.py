"""Output of commands: results on standard output, progress on standard error."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Console(Console):
    """A console that exits quietly on a broken pipe."""

    def on_broken_pipe(self) -> None:
        end_of_reader()


def end_of_reader() -> NoReturn:
    """Exit on a broken pipe of the output with its usual status."""
    for stream in (sys.stdout, sys.stderr):  # discard their buffers
        with contextlib.suppress(OSError, ValueError, AttributeError):  # None if closed from the start
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(128 + signal.SIGPIPE)


_narrowest, _widest = 20, 10_000  # columns of a table: of a terminal at least, and without one
console = _Console(stderr=True, highlight=False, emoji=False, width=None if sys.stderr and sys.stderr.isatty() else _widest)
_results = _Console(highlight=False, markup=False, emoji=False)


def show(*results: RenderableType) -> None:
    """Print results on standard output, tables unwrapped without a terminal; nothing with `--json`."""
    if not (sys.stdout and sys.stdout.isatty()) or _results.width < _narrowest:  # FORCE_COLOR is no terminal; COLUMNS=0
        _results.width = _widest
    for result in results:
        _results.print(result, soft_wrap=isinstance(result, str))


def json_line(value: Any) -> str:
    """A value as a line of JSON, in ASCII if necessary."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    try:
        line.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
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
    """Show a named stage with a bar and a rate; yields `progress(done, total)`."""
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

"""Tables of calls that one test goes through: every row is tried, and the failures of all rows are told at once."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from programs import EVENT

from jexplicit.runs.devices import is_concrete


def each_row(check: Callable[..., None], rows: Iterable[tuple[Any, ...]]) -> None:
    """Call the check with the parts of each row, of which the first is its name; ExceptionGroup: all failures."""
    failures, number = [], 0
    for number, row in enumerate(rows, start=1):
        try:
            check(*row)
        except Exception as error:
            error.add_note(f"in row {number}, {row[0]}")
            failures.append(error)
    assert number, "a table without a row"
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {number} rows", failures)


@contextlib.contextmanager
def compiled() -> Iterator[list[str]]:
    """A list that gets an entry for every program that JAX compiles meanwhile to compute something."""
    programs: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == EVENT and kwargs.get("fun_name") != "jit(stage)":  # which places an array of NumPy on a device
            programs.append(str(kwargs.get("fun_name", "a program")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def refuse(
    rows: Iterable[tuple[str, Callable[..., Any]]],
    *arguments: Any,
    errors: type[Exception] | tuple[type[Exception], ...] = ValueError,
    of_values: bool = False,
) -> None:
    """Each call of a table of parts of messages (regular expressions) and calls is refused with its message.

    Nothing is compiled before the refusal, unless it is one of values that are on a device: of_values.
    """

    def check(message: str, call: Callable[..., Any]) -> None:
        with compiled() as programs:
            try:
                result = call(*arguments)
            except errors as error:
                said = str(error)
            else:
                raise AssertionError(f"not refused, with the result {result!r:.200}")
        assert re.search(message, said), f"refused in other words: {said}"
        assert of_values or not programs, f"compiled before the refusal: {programs}"

    is_concrete()  # which has a program of its own, for all functions
    each_row(check, rows)


def products(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The matrix products and convolutions of a function's program."""
    text = jax.jit(function).lower(*arguments).as_text()
    return [line.strip() for line in text.splitlines() if re.search(r"stablehlo\.(dot_general|convolution)\b", line)]

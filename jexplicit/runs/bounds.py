"""Bounds of the numbers in a config: declared with the field, checked by `run_command`.

@dataclass(frozen=True)
class Config:
    batch_size: PositiveInt = 8192
    widths: tuple[PositiveInt, ...] = (256, 128)
    learning_rate: PositiveFloat = 0.01
    patience: PositiveInt | None = None
"""

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any


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


_largest = 2**63  # whole numbers end below it, in arrays and in random keys
PositiveInt = Annotated[int, Bounds(at_least=1)]
NonNegativeInt = Annotated[int, Bounds(at_least=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeFloat = Annotated[float, Bounds(at_least=0)]


def check_bounds(config: Any) -> None:
    """Check every number of a config against the bounds of its field.

    Raises:
        ValueError: a number out of bounds; the message has the flag, the value and the bounds.

    Example:
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     batch_size: PositiveInt = 0
        >>> check_bounds(Config())
        Traceback (most recent call last):
        ...
        ValueError: --batch-size 0: use at least 1
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        values = value if isinstance(value, tuple | list) else (value,)
        flag, given = "--" + field.name.replace("_", "-"), " ".join(map(str, values))
        if any(isinstance(number, int) and abs(number) >= _largest for number in values):
            raise ValueError(f"{flag} {given}: use whole numbers below 2^63")
        for number, bounds in _within(hints[field.name], value):
            if not bounds.contains(number):
                raise ValueError(f"{flag} {given}: use {bounds}")


def _within(hint: Any, value: Any) -> Iterator[tuple[float, Bounds]]:
    """The numbers in a field's value, each with its bounds."""
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        bounds = [note for note in notes if isinstance(note, Bounds)]
        if bounds and isinstance(value, int | float):
            yield value, bounds[0]
        yield from _within(inner, value)
        return
    inner = [part for part in typing.get_args(hint) if part not in (..., type(None))]  # of a tuple, or of a union
    if isinstance(value, tuple | list) and typing.get_origin(hint) in (tuple, list):
        for n, item in enumerate(value):
            yield from _within(inner[min(n, len(inner) - 1)], item)
    elif value is not None:
        for option in inner:
            yield from _within(option, value)

"""Types and bounds of the fields of a config: `batch_size: PositiveInt = 8192`."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

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

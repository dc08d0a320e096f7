"""Bounds declared with config fields."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from jexplicit.runs.bounds import Bounds, NonNegativeInt, PositiveFloat, PositiveInt, check_bounds, config_of


@dataclass(frozen=True)
class Config:
    size: PositiveInt = 1
    widths: tuple[PositiveInt, ...] = (3, 4)
    rates: tuple[PositiveFloat, ...] = (0.5,)
    seed: NonNegativeInt = 0
    patience: PositiveInt | None = None
    several: tuple[PositiveInt, ...] | None = None
    share: Annotated[float, Bounds(above=0, below=1)] = 0.5
    name: str = "free"
    free: float = -1.0


def test_a_stored_config_is_read_with_the_types_of_its_fields():
    stored = json.loads(json.dumps(dataclasses.asdict(Config(patience=2, several=(1, 2), free=3))))
    assert config_of(Config, stored, "restore it") == Config(patience=2, several=(1, 2), free=3)
    changes = {"size": ("x", None, 1.5, True, [1]), "widths": (3, ["x"], {}, None), "patience": ("x", [1]), "name": (None, 7)}
    for name, value in ((name, value) for name, values in changes.items() for value in values):
        with pytest.raises(ValueError, match=f"config.json is damaged .{name} .* of another type.: restore it"):
            config_of(Config, {**stored, name: value}, "restore it")


def test_values_within_their_bounds_pass():
    check_bounds(Config())
    check_bounds(Config(patience=1, several=(1, 2), free=float("inf")))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"widths": (3, 0)}, "--widths 3 0: use at least 1"),
        ({"seed": -1}, "--seed -1: use at least 0"),
        ({"seed": 2**63}, "--seed 9223372036854775808: use whole numbers below 2.63"),
        ({"patience": 0}, "--patience 0: use at least 1"),
        ({"share": 1.0}, "--share 1.0: use above 0 and below 1"),
        ({"share": float("nan")}, "--share nan: use above 0 and below 1"),
        ({"rates": (1.0, float("inf"))}, "--rates 1.0 inf: use above 0"),
    ],
)
def test_values_outside_are_refused_with_flag_value_and_remedy(changed, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_bounds(Config(**changed))

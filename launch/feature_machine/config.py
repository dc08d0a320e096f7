"""The configuration of launch.feature_machine."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from jexplicit.runs.files import Bounds, PositiveInt
from launch.kit.command import Command, Preset, Run


@dataclass(frozen=True, kw_only=True)
class ModularConfig(Run):
    """Learn modular arithmetic by a recursive feature machine."""

    GROUPS: ClassVar = {"modulus": "task", "solves": "machine"}

    modulus: Annotated[int, Bounds(at_least=3)] = 61
    """p: the table has p x p entries, a and b as two one-hot vectors."""
    operation: Literal["add", "subtract", "multiply"] = "add"
    """What is learned, modulo p."""
    train_share: Annotated[float, Bounds(above=0, below=1)] = 0.5
    """Share of the table that is trained on; the rest is the test."""
    seeds: PositiveInt = 3
    """Number of splits of the table."""
    solves: PositiveInt = 30
    """How many times the regression is solved."""


_tiny = Preset(ModularConfig(out="runs/modular", modulus=7, seeds=2, solves=4, train_share=0.8), "p = 7; seconds.")
COMMANDS = {"modular": Command(ModularConfig, "launch.feature_machine.modular", {"tiny": _tiny})}

"""The configurations of launch.feature_machine."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from jexplicit.runs.bounds import Bounds, PositiveFloat, PositiveInt
from launch.kit.command import Preset, Run

Kernel = Literal["quadratic", "gaussian", "laplace"]


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
    kernel: Kernel = "quadratic"
    """Kernel. quadratic: (xᵀMz)². gaussian, laplace: of the distance by the metric M."""
    ridge: PositiveFloat = 1e-6
    """Ridge, relative to the mean of the kernel's diagonal."""


PRESETS = {
    "modular": {
        "tiny": Preset(ModularConfig(out="runs/modular", modulus=7, seeds=2, solves=4, train_share=0.8), "p = 7; seconds.")
    },
}

"""Names of parts of networks for command lines, without JAX."""

from collections.abc import Mapping
from typing import Literal, TypeVar

V = TypeVar("V")

Activation = Literal["relu", "leaky_relu", "tanh", "sigmoid", "relu_tanh", "silu", "linear"]
Direct = Literal["none", "embedding"]
InitializerName = Literal[
    "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "backward_normal", "fan_in_uniform", "standard", "zeros"
]
NormName = Literal["none", "batch", "layer", "group"]
ObjectiveName = Literal["squared_error", "sigmoid_squared_error", "binary_cross_entropy", "softmax_cross_entropy"]
OptimizerName = Literal["sgd", "momentum", "adagrad", "adam", "adamw"]
ScheduleName = Literal["constant", "cosine"]


def look_up(what: str, table: Mapping[str, V], name: str) -> V:
    """`table[name]`; a ValueError with the known names otherwise."""
    if name not in table:
        raise ValueError(f"{what} {name!r}: choose one of {', '.join(table)}")
    return table[name]

"""Names for command lines; does not import JAX."""

from typing import Literal

from jexplicit.nn.names import Activation

Inputs = Literal["uniform", "normal", "laplace"]

# Learned update rules.
BackwardMode = Literal["additive", "multiplicative_second_state"]
Normalisation = Literal["none", "forward", "backward", "both"]
Output = Activation | Literal["softmax"]
Update = Literal["hebbian", "ridge"]
Over = Literal["batch", "mixed"]
Pre = Literal["backward", "sequential"]
Objective = Literal["end", "curve"]
Feedback = Literal["label", "squared_error", "cross_entropy"]
Start = Literal["random", "ridge"]
Families = Literal["digits", "boolean"]
RATES = tuple(float(f"{1e-3 * 32_000 ** (n / 15):.3g}") for n in range(16))
"""Learning rates from 1e-3 to 32."""

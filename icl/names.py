"""What the tasks of in-context learning are called, for command lines: JAX is not needed."""

from typing import Literal, get_args

Kind = Literal["linear", "sparse", "noisy", "quadratic", "relu", "tree"]
KINDS: tuple[Kind, ...] = get_args(Kind)

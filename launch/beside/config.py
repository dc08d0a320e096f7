"""The configuration of launch.beside."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from jexplicit.experiments.bounds import Bounds
from jexplicit.lm.core.names import History
from launch.shared.groups import Reading, Run


@dataclass(frozen=True, kw_only=True)
class Config(Reading, Run):
    """Make one language model of two, with exponents fitted on a new text."""

    GROUPS: ClassVar = {"first": "models", "text": "text"}

    first: str
    """Run folder of launch.lm, or an exported .safetensors file: a model of counts, such as a mixture, whose rows each have
    exponents of their own."""
    second: str
    """Run folder of launch.lm or launch.networks, or an exported file, with the same tokenizer."""
    history: History | None = None
    """What the mixture of --first sees beyond its context. Default: the model of the run with the lowest dev perplexity."""
    text: tuple[str, ...]
    """Text that neither model has seen: files (compressed or not), pipes, globs or folders; plain text, or records (see
    --field)."""
    calibration_positions: Annotated[int, Bounds(at_least=10)] = 100_000
    """How many positions exponents are fitted on, at most, spread evenly over the text."""

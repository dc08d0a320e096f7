"""Names of parts of a language model and options of fits, without JAX."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from jexplicit.runs.files import Bounds, NonNegativeFloat, PositiveFloat, PositiveInt

Features = Literal["sum", "cat"]
History = str  # none, document, window:W, all, online or online:document; see jexplicit.lm.counted.contexts.window_of
Smoothing = Literal["kneser-ney", "add-alpha"]
Method = Literal[
    "unigram", "bigram", "ngram", "explicit", "delta", "cold", "warm", "optimum",
    "log-linear", "iterative-scaling", "context-mixing",
]  # fmt: skip


def label(row: Mapping[str, Any]) -> str:
    """The name of a model: its method and all fields that distinguish it."""
    parts = [row["method"], *([] if row["features"] == "none" else [row["features"], f"K = {row['context']}"])]
    parts += [f"history {row['history']}"] if row["method"] == "context-mixing" else []
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How models are fitted. Each method has its own options."""

    GROUPS: ClassVar = {"gates": "mixing", "calibration_positions": "smoothed", "epochs": "trained"}

    gates: Annotated[int, Bounds(at_least=0, at_most=4)] = 4
    """context-mixing: number of gates, which weigh the evidence by the place in the word or the tree, by the node of the tree
    and by the token before; 0: all decisions share their weights."""
    stages: PositiveInt | None = None
    """context-mixing: stages of contexts; gates mix the evidence of one before the next is measured against the mix. Default: 2
    with characters, else 1."""
    frozen: bool = False
    """context-mixing with --history online: the text that is read is counted, but no weight moves."""
    calibration_positions: Annotated[int, Bounds(at_least=10)] = 15_000
    """log-linear, iterative-scaling: number of positions to fit weights on, in held-out documents (2 %), drawn by --seed."""
    sweeps: PositiveInt = 10
    """iterative-scaling: number of sweeps over the distinct contexts."""
    discount: NonNegativeFloat | None = None
    """iterative-scaling: tolerance, in counts, between expected and observed co-occurrences. Default: the Kneser-Ney discount.
    0 starts from the explicit solution, with its noise model, and approaches the optimum of the training loss."""
    epochs: PositiveInt = 32
    """Training: maximum number of passes over the data."""
    batch_size: PositiveInt = 8192
    """Training: positions per step."""
    learning_rate: PositiveFloat = 0.01
    """Training: Adagrad's learning rate, for the mean loss per position."""
    patience: PositiveInt | None = None
    """Training: stop after this many epochs without a lower dev perplexity; the best epoch is kept. Default: never."""

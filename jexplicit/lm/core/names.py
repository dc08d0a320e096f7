"""What the parts of a language model are called, for command lines: JAX is not needed."""

from collections.abc import Mapping
from typing import Any, Literal

Features = Literal["sum", "cat"]
History = str  # none, document, window:W, all, adaptive or adaptive:document; see window_of
ADAPTIVE = ("adaptive", "adaptive:document")
SMALLEST_WINDOW = 32
Smoothing = Literal["kneser-ney", "add-alpha"]
Method = Literal[
    "unigram",
    "bigram",
    "ngram",
    "explicit",
    "delta",
    "cold",
    "warm",
    "optimum",
    "log-linear",
    "iterative-scaling",
    "context-mixing",
]


def window_of(history: str) -> int | None:
    """The tokens that a history of "window:W" has; None for the others.

    Raises:
        ValueError: another history.

    Example:
        >>> window_of("window:256"), window_of("all")
        (256, None)
    """
    kind, _, size = history.partition(":")
    if history in ("none", "document", "all", *ADAPTIVE):
        return None
    if kind == "window" and size.isdecimal() and int(size) >= SMALLEST_WINDOW:
        return int(size)
    known = f"none, document, window:W (W at least {SMALLEST_WINDOW} tokens), all, {' or '.join(ADAPTIVE)}"
    raise ValueError(f"history {history!r}: choose {known}")


def label(row: Mapping[str, Any]) -> str:
    """What a model is called: its method and all that tells two models of a method apart."""
    parts = [row["method"], *([] if row["features"] == "none" else [row["features"], f"K = {row['radius']}"])]
    parts += [f"history {row['history']}"] if row["method"] == "context-mixing" else []
    return ", ".join(parts)

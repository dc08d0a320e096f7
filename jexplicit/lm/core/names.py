"""What the parts of a language model are called, for command lines: JAX is not needed."""

from collections.abc import Mapping
from typing import Any, Literal

Features = Literal["sum", "cat"]
History = str  # none, document, window:W or all; see window_of
Smoothing = Literal["kneser-ney", "modified-kneser-ney", "absolute-discount", "dirichlet", "add-alpha", "noise"]
Method = Literal[
    "unigram",
    "bigram",
    "ngram",
    "explicit",
    "delta",
    "mean-cooccurrence",
    "intercept",
    "cold",
    "warm",
    "optimum",
    "log-linear",
    "iterative-scaling",
    "mixture",
    "bitcipher",
    "word-vectors",
]

# Rows of mixtures, by what tokens are.
SUBWORD_ROWS = ("offsets", "contexts-4", "gaps")
CLASS_ROWS = (*SUBWORD_ROWS, "classes", "repeats", "confidence")
GRAMMAR_ROWS = ("coarse",)
CHARACTER_ROWS = ("contexts-8", "skips", "words", "word-classes", "confidence", "selectors")


def label(row: Mapping[str, Any]) -> str:
    """What a model is called: its method and all that tells two models of a method apart."""
    parts = [row["method"], *([] if row["features"] == "none" else [row["features"], f"K = {row['radius']}"])]
    parts += [f"history {row['history']}"] if row["method"] == "mixture" else []
    return ", ".join(parts + ([f"{row['bits']} bits"] if "bits" in row else []))

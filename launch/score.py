"""Log-probabilities of a text under a saved language model, as JSON lines.

    python -m launch.score --run runs/demo --text essay.txt > scores.jsonl

One line per document (a line of the text that is not blank), then one line for the whole text. Natural logarithms.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from jexplicit.data.text import read_documents
from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.evaluation import score
from jexplicit.runs.command import run_command
from jexplicit.runs.progress import show, stage
from launch.choose import ModelChoice, load_choice


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoice):
    """Log-probabilities of a text under a saved language model, as JSON lines."""

    text: tuple[str, ...]
    """Text to score: files, .gz files, globs or folders."""


def run(config: Config) -> dict[str, Any]:
    """Load, score the whole text at once, print a line per document to standard output."""
    model, tokenizer, about = load_choice(config)
    documents = read_documents(config.text)
    stream = encode_documents(tokenizer, documents)
    with stage("scoring", "positions") as progress:
        log_p = score(model, stream, progress=progress).astype(np.float64)
    predicted = stream[1:] if model.eos else stream[1:][stream[1:] != tokenizer.pad_id]
    tokens = np.diff(np.flatnonzero(stream == tokenizer.pad_id)) - (0 if model.eos else 1)  # of each document
    ends = np.cumsum(tokens)[:-1]
    lines = []
    for n, (ids, scores) in enumerate(zip(np.split(predicted, ends), np.split(log_p, ends), strict=True)):
        line = {
            "document": n,
            "tokens": [tokenizer.piece(int(i)) for i in ids],
            "log_probabilities": [round(float(p), 6) for p in scores],
        }
        lines.append(line | _summary(scores))
        show(json.dumps(lines[-1], ensure_ascii=False))
    unknown = int(np.count_nonzero(predicted == tokenizer.unk_id))
    whole = {"documents": len(documents), "unknown_tokens": unknown, "history": about.get("history", "none")}
    whole |= _summary(log_p)
    show(json.dumps(whole))
    return {**whole, "lines": lines}


def _summary(log_p: np.ndarray) -> dict[str, Any]:
    return {
        "token_count": len(log_p),
        "log_probability": round(float(log_p.sum()), 6),
        "perplexity": round(float(np.exp(-log_p.mean())), 6),
    }


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())

"""Log-probabilities of a text under a saved language model, as JSON lines.

    python -m launch.score --run runs/demo --text essay.txt > scores.jsonl

One line per document (a line of the text that is not blank), then one line for the whole text. Natural logarithms.
"""

import json
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.data.text import read_documents
from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.evaluation import log_probabilities
from jexplicit.lm.explicit import Features
from jexplicit.runs.command import run_command
from jexplicit.runs.progress import stage


@dataclass(frozen=True)
class Config:
    """Log-probabilities of a text under a saved language model, as JSON lines."""

    run: str
    """Run folder of launch.lm, or an exported .safetensors file."""
    text: tuple[str, ...]
    """Text to score: files, .gz files, globs or folders."""
    method: Literal["explicit", "cold", "warm", "optimum"] | None = None
    """Which model of the run; default, the one with the lowest dev perplexity."""
    features: Features | None = None
    """Which model of the run; default likewise."""
    radius: int | None = None
    """Which model of the run; default likewise."""


def run(config: Config) -> None:
    """Load, score the whole text at once, print a line per document to standard output."""
    model, tokenizer = load_model(config.run, method=config.method, features=config.features, radius=config.radius)
    documents = read_documents(config.text)
    stream = encode_documents(tokenizer, documents)
    X, Y = contexts(stream, model.radius, eos=model.eos)
    with stage("scoring", "contexts") as progress:
        log_p = log_probabilities(model, X, Y, progress=progress).astype(np.float64)
    tokens = np.diff(np.flatnonzero(stream == tokenizer.pad_id)) - (0 if model.eos else 1)  # of each document
    for n, (ids, scores) in enumerate(zip(*(np.split(v, np.cumsum(tokens)[:-1]) for v in (Y, log_p)), strict=True)):
        line = {
            "document": n,
            "tokens": [tokenizer.piece(int(i)) for i in ids],
            "log_probabilities": [round(float(p), 6) for p in scores],
        }
        print(json.dumps(line | _summary(scores), ensure_ascii=False))
    unknown = int(np.count_nonzero(Y == tokenizer.unk_id))
    print(json.dumps({"documents": len(documents), "unknown_tokens": unknown, **_summary(log_p)}))


def _summary(log_p: np.ndarray) -> dict[str, float]:
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

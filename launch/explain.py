"""Why a language model expects each next token: the exact contribution of every context token.

    python -m launch.explain --run runs/demo --text "Return the number of items"

The logits of the model are a sum over its context tokens, so the attribution is exact. `logit` is what a context token adds
to the logit of the token that came; `evidence` is the same less its mean over the model's prediction, positive where the
context token speaks for this token.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jexplicit.data.contexts import contexts
from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.evaluation import Attribution, attribute
from jexplicit.lm.explicit import Features
from jexplicit.runs.command import run_command
from jexplicit.runs.figures import attribution_map


@dataclass(frozen=True)
class Config:
    """Why a language model expects each next token: the exact contribution of every context token."""

    run: str
    """Run folder of launch.lm, or an exported .safetensors file."""
    text: str
    """The text to explain, as one document."""
    figure: str | None = None
    """Where to write the heat map; default, figures/explain.png in the run folder, or explain.png."""
    method: Literal["explicit", "cold", "warm", "optimum"] | None = None
    """Which model of the run; default, the one with the lowest dev perplexity."""
    features: Features | None = None
    """Which model of the run; default likewise."""
    radius: int | None = None
    """Which model of the run; default likewise. A larger radius shows more context."""


def run(config: Config) -> None:
    """Load, attribute, print a table and draw the heat map."""
    model, tokenizer = load_model(config.run, method=config.method, features=config.features, radius=config.radius)
    if not config.text.strip():
        raise ValueError(f"--text {config.text!r}: give at least one word to explain")
    X, Y = contexts(encode_documents(tokenizer, [config.text]), model.radius, eos=model.eos)
    why = attribute(model, X, Y)
    folder = Path(config.run)
    figure = Path(config.figure) if config.figure else (folder / "figures" if folder.is_dir() else Path()) / "explain.png"
    predicted = [tokenizer.piece(int(i)) for i in Y]
    context = [[tokenizer.piece(int(j)) for j in x] for x in X]
    Console().print(attribution_table(predicted, context, why))
    attribution_map(context, predicted, why.evidence, figure)
    print(f"heat map {figure}")


def attribution_table(predicted: list[str], context: list[list[str]], why: Attribution) -> Table:
    """A row per prediction: its probability, and each context token with its logit and its evidence (nats)."""
    table = Table(title="logit (evidence) of each context token, nats", title_justify="left", show_lines=True)
    table.add_column("predicted")
    table.add_column("p", justify="right")
    for k in range(1, why.logits.shape[1] + 1):
        table.add_column(f"{k} back")
    for i, row, logits, evidence, log_p in zip(predicted, context, why.logits, why.evidence, why.log_probability, strict=True):
        cells = [f"{escape(j)}\n{u:.2f}\n({e:+.2f})" for j, u, e in zip(row, logits, evidence, strict=True)]
        table.add_row(f"[bold]{escape(i)}[/]", f"{np.exp(log_p):.4f}", *cells)
    return table


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())

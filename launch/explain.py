"""Why a language model expects each next token: the exact contribution of every context token, or of every row.

    python -m launch.explain --run runs/demo --text "Return the number of items"

The logits of the model are a sum over rows, so the attribution is exact. `logit` is a context token's contribution to the
logit of the observed token. `evidence` is that contribution minus its mean under the model's prediction; it is positive if the
context token favours the observed token. A row of several tokens is attributed to the one furthest back; --by row shows every
row on its own.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from rich.table import Table

from jexplicit.data.tokenizers import encode_documents
from jexplicit.runs.command import run_command
from jexplicit.runs.files import check_writable
from jexplicit.runs.progress import show
from launch.choose import ModelChoice, load_choice, visible, warn_unknown

if TYPE_CHECKING:
    from jexplicit.lm.attribution import Attribution

_shown = 4  # columns: more do not fit a terminal


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoice):
    """Why a language model expects each next token: the exact contribution of every context token, or of every row."""

    GROUPS: ClassVar = {"text": "text"}

    text: str
    """The text to explain, as one document."""
    by: Literal["token", "row"] = "token"
    """token: the contribution of each context token, summed over its rows. row: every row on its own: offsets, contexts of
    several tokens, caches."""
    figure: str | None = None
    """File for the heat map, .png, .pdf or .svg. Default: figures/explain.png in the run folder; explain.png if --run is a
    file."""


def run(config: Config) -> dict[str, Any]:
    """Load, attribute, print a table and draw the heat map."""
    from jexplicit.lm.attribution import explain
    from jexplicit.lm.evaluation import read_text
    from launch.lm.figures import attribution_map

    if not config.text.strip():
        raise ValueError(f"--text {config.text!r}: give at least one word to explain")
    model, tokenizer, _ = load_choice(config)
    warn_unknown(tokenizer, config.text)
    figure = figure_path(config)
    text = read_text(encode_documents(tokenizer, [config.text]), model.radius, eos=model.eos)
    why = explain(model, text.X, text.Y, past=text.past)
    why = why.by_token(model.radius) if config.by == "token" else why
    predicted = [tokenizer.piece(int(i)) for i in text.Y]
    context = [[tokenizer.piece(int(x[k - 1])) if k else "" for k in why.tokens] for x in text.X]
    show(attribution_table(predicted, context, why))
    seen = [[visible(token) for token in tokens] for tokens in context], [visible(token) for token in predicted]
    attribution_map(why.names, *seen, why.evidence, figure)
    show(f"heat map {figure}")
    return {
        "rows": list(why.names),
        "figure": str(figure),
        "predictions": [
            {"token": token, "context": tokens, "logits": u.tolist(), "evidence": e.tolist(), "log_probability": float(p)}
            for token, tokens, u, e, p in zip(predicted, context, why.logits, why.evidence, why.log_probability, strict=True)
        ],
    }


def figure_path(config: Config) -> Path:
    """Where the heat map goes.

    Raises:
        ValueError: a place where nothing can be written, or a kind of file that matplotlib does not write.
    """
    folder = Path(config.run).expanduser()
    place = (folder / "figures" if folder.is_dir() else Path()) / "explain.png"
    path = check_writable(place if config.figure is None else config.figure, "--figure")
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--figure {path}: give a name that ends in .png, .pdf or .svg")
    return path


def attribution_table(predicted: list[str], context: list[list[str]], why: "Attribution") -> Table:
    """A row per prediction: its probability, and what speaks most for or against it, with its logit and evidence (nats)."""
    G = len(why.names)
    title = "logit (evidence), nats" + (f"; the {_shown} strongest of {G}" if G > _shown else "")
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("predicted", style="bold")
    table.add_column("p", justify="right")
    for n in range(min(G, _shown)):
        table.add_column(why.names[n] if G <= _shown else "")
    for i, row, logits, evidence, log_p in zip(predicted, context, why.logits, why.evidence, why.log_probability, strict=True):
        order = range(G) if G <= _shown else np.argsort(-np.abs(evidence), kind="stable")[:_shown]
        cells = [
            f"{why.names[g] + ' ' if G > _shown else ''}{visible(row[g])}\n{logits[g]:.2f}\n({evidence[g]:+.2f})" for g in order
        ]
        table.add_row(visible(i), f"{np.exp(log_p):.4f}", *cells)
    return table


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())

"""Exact contributions of context tokens, or rows, to each prediction of a model.

    python -m launch.explain --run runs/demo --text "Return the number of items"

The logits of the model are a sum over rows, so the attribution is exact. `logit` is a context token's contribution to the
logit of the observed token. `evidence` is that contribution minus its mean under the model's prediction; it is positive if the
context token favours the observed token. A row of several tokens is attributed to the one furthest back; --by row shows every
row on its own. --html writes a page instead, on which one moves over the text and sees, for each token, the likeliest
alternatives and what every row added to the logits of the token and of an alternative.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from rich.table import Table

from jexplicit.data.inputs import is_input
from jexplicit.runs.files import check_writable
from jexplicit.runs.progress import console, show
from launch.kit.command import entry_point
from launch.shared.flags import ModelChoice, load_choice, visible

if TYPE_CHECKING:
    from jexplicit.lm.attribution import Attribution

_shown = 4  # columns: more do not fit a terminal


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoice):
    """Exact contributions of context tokens, or rows, to each prediction of a model."""

    GROUPS: ClassVar = {"text": "text"}

    text: str
    """The text to explain, as one document."""
    by: Literal["token", "row"] = "token"
    """token: the contribution of each context token, summed over its rows. row: of every row: offsets, contexts, caches. Of
    context-mixing a row is always a context: the log-odds that it adds on the path to a token, and its share of log p."""
    html: str | None = None
    """Page .html to write instead of the table. It has for each token the likeliest alternatives, and the
    exact contribution of every row to the logits of both. One file, which needs no network and no server."""


def run(config: Config) -> dict[str, Any]:
    """Load, attribute, and print a table; or write the page."""
    from jexplicit.data.tokenizers import encode_documents
    from jexplicit.lm.attribution import explain
    from jexplicit.lm.core.model import LanguageModel, read_text

    if not config.text.strip():
        raise ValueError(f"--text {config.text!r}: give at least one word to explain")
    page = None if config.html is None else check_writable(config.html, "--html")
    if page and page.suffix != ".html":
        raise ValueError(f"--html {page}: give a name that ends in .html")
    if is_input(config.text):
        hint = f'is also the name of a file; to explain what is in it, give --text "$(cat {config.text})"'
        console.print(f"hint: --text {config.text} {hint}", markup=False, soft_wrap=True)
    model, tokenizer, _ = saved = load_choice(config, config.text)
    text = read_text(encode_documents(tokenizer, [config.text]), model.radius, eos=model.eos)
    if page:
        from launch.shared.page import explain_alternatives, write_page

        write_page(page, explained := explain_alternatives(saved, text))
        show(f"page {page}")
        return explained | {"html": str(page)}
    why = explain(model, text.X, text.Y, past=text.past)
    by_token = config.by == "token" and isinstance(model, LanguageModel)
    why = why.by_token(model.radius) if by_token else why
    predicted = [tokenizer.piece(int(i)) for i in text.Y]
    context = [[tokenizer.piece(int(x[k - 1])) if k else "" for k in why.tokens] for x in text.X]
    show(attribution_table(predicted, context, why))
    parts = zip(predicted, context, why.logits.tolist(), why.evidence.tolist(), why.log_probability.tolist(), strict=True)
    names = ("token", "context", "logits", "evidence", "log_probability")
    predictions = [dict(zip(names, part, strict=True)) for part in parts]
    return {"rows": list(why.names), "predictions": predictions}


def attribution_table(predicted: list[str], context: list[list[str]], why: "Attribution") -> Table:
    """A row per prediction: its probability, and its strongest evidence in nats."""
    G = len(why.names)
    few = G <= _shown  # which have columns of their own
    title = "logit (evidence), nats" + (f"; the {_shown} strongest of {G}" if not few else "")
    table = Table(
        "predicted", "p", *(why.names[:G] if few else [""] * _shown), title=title, title_justify="left", show_lines=True
    )
    table.columns[0].style, table.columns[1].justify = "bold", "right"
    for i, row, logits, evidence, log_p in zip(predicted, context, why.logits, why.evidence, why.log_probability, strict=True):
        order = range(G) if few else np.argsort(-np.abs(evidence), kind="stable")[:_shown]
        names = [visible(row[g]) if few else f"{why.names[g]} {visible(row[g])}" for g in order]
        cells = [f"{name}\n{logits[g]:.2f}\n({evidence[g]:+.2f})" for name, g in zip(names, order, strict=True)]
        table.add_row(visible(i), f"{np.exp(log_p):.4f}", *cells)
    return table


main = entry_point(run, Config, __doc__)

if __name__ == "__main__":
    sys.exit(main())

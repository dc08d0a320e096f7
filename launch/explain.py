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
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from rich.table import Table

from jexplicit.data.inputs import is_input
from jexplicit.runs.files import check_writable, local_path
from jexplicit.runs.progress import console, show
from launch.kit.command import entry_point
from launch.shared.flags import ModelChoice, load_choice, visible

if TYPE_CHECKING:
    from jexplicit.lm.attribution import Attribution

_shown = 4  # columns: more do not fit a terminal
_tokens_per_line, _most_lines = 25, 12  # of the heat map


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoice):
    """Exact contributions of context tokens, or rows, to each prediction of a model."""

    GROUPS: ClassVar = {"text": "text"}

    text: str
    """The text to explain, as one document."""
    by: Literal["token", "row"] = "token"
    """token: the contribution of each context token, summed over its rows. row: of every row: offsets, contexts, caches. Of
    context-mixing a row is always a context: the log-odds that it adds on the path to a token, and its share of log p."""
    figure: str | None = None
    """Heat map to write, .png, .pdf or .svg. Default: figures/explain.png in the run folder; explain.png if --run is a file."""
    html: str | None = None
    """Page .html to write instead of the table and the heat map. It has for each token the likeliest alternatives, and the
    exact contribution of every row to the logits of both. One file, which needs no network and no server."""


def run(config: Config) -> dict[str, Any]:
    """Load, attribute, print a table and draw the heat map; or write the page."""
    from jexplicit.data.tokenizers import encode_documents
    from jexplicit.lm.attribution import explain
    from jexplicit.lm.core.model import LanguageModel, read_text

    if not config.text.strip():
        raise ValueError(f"--text {config.text!r}: give at least one word to explain")
    if config.html is not None and config.figure is not None:
        raise ValueError(f"--figure {config.figure} with --html: the page stands for the heat map; leave one of them out")
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
    folder = local_path(config.run, "--run")
    place = (folder / "figures" if folder.is_dir() else Path()) / "explain.png"
    figure = check_writable(place if config.figure is None else config.figure, "--figure")
    if figure.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--figure {figure}: give a name that ends in .png, .pdf or .svg")
    why = explain(model, text.X, text.Y, past=text.past)
    by_token = config.by == "token" and isinstance(model, LanguageModel)
    why = why.by_token(model.radius) if by_token else why
    predicted = [tokenizer.piece(int(i)) for i in text.Y]
    context = [[tokenizer.piece(int(x[k - 1])) if k else "" for k in why.tokens] for x in text.X]
    show(attribution_table(predicted, context, why))
    draw_attribution(predicted, context, why, figure)
    show(f"heat map {figure}")
    parts = zip(predicted, context, why.logits.tolist(), why.evidence.tolist(), why.log_probability.tolist(), strict=True)
    names = ("token", "context", "logits", "evidence", "log_probability")
    predictions = [dict(zip(names, part, strict=True)) for part in parts]
    return {"rows": list(why.names), "figure": str(figure), "predictions": predictions}


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


def draw_attribution(predicted: list[str], context: list[list[str]], why: "Attribution", path: Path) -> None:
    """Heat map [M, G] of the evidence in nats; long texts wrap."""
    from launch.kit.views import figure

    M, G = why.evidence.shape
    tokens = max(_tokens_per_line, -(-M // _most_lines))  # of a line
    lines, columns = -(-M // tokens), min(M, tokens)
    limit = max(float(np.abs(why.evidence).max()), 1e-6)
    with figure(path, lines, size=(min(max(5.0, 0.55 * columns + 1.6), 40.0), lines * (0.45 * G + 1.1) + 0.9)) as axes:
        for line, ax in enumerate(axes[:, 0]):
            there = range(line * tokens, min((line + 1) * tokens, M))
            ax.grid(False)
            ax.imshow(why.evidence[there].T, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
            ax.set(xlim=(-0.5, columns - 0.5))  # cells of one width, in a short last line too
            labels = [visible(predicted[m]) for m in there]
            ax.set_xticks(range(len(there)), labels, rotation=60, ha="right", fontsize=8, parse_math=False)
            ax.set_yticks(range(G), why.names, fontsize=8)
            for m, g in np.ndindex(len(there) if tokens <= 70 else 0, G):  # longer lines leave no room for labels
                colour = "white" if abs(why.evidence[there[m], g]) > 0.6 * limit else "black"
                style = {"ha": "center", "va": "center", "fontsize": 6, "color": colour, "parse_math": False}
                ax.text(m, g, visible(context[there[m]][g]), **style)
        axes[0, 0].set(title="evidence of each context token (nats)")
        axes[-1, 0].set(xlabel="token that came")
        axes[0, 0].figure.colorbar(axes[0, 0].images[0], ax=list(axes[:, 0]), shrink=0.8)


main = entry_point(run, Config, __doc__)

if __name__ == "__main__":
    sys.exit(main())

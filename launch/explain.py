"""Exact contributions of context tokens to each prediction of a model.

    python -m launch.explain --run runs/demo --text "Return the number of items"

The table shows the part of each context token in the logit of the observed token, and in brackets less its mean over all
tokens. Parts of several tokens stand at the furthest. Of context-mixing: log-odds, and the share of log p that a context adds.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from jexplicit.data.text import is_input
from jexplicit.runs.files import check_writable, write_whole
from jexplicit.runs.progress import console, show
from launch.kit.command import entry_point
from launch.kit.text import ModelChoice, load_choice, visible

if TYPE_CHECKING:
    from jexplicit.lm.attribution import Attribution
    from jexplicit.lm.model import EncodedText
    from jexplicit.lm.text_model import TextModel

_shown = 4  # columns: more do not fit a terminal
_alternatives, _digits, _most_tokens = 10, 6, 4000  # of a page


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoice):
    text: str
    """The text to explain, as one document."""
    html: str | None = None
    """Page .html to write instead of the table, with likely alternatives to each token and the parts of contexts in both."""


def run(config: Config) -> dict[str, Any]:
    """Load, attribute, and print a table; or write the page."""
    from jexplicit.data.tokenizers import encode_documents
    from jexplicit.lm.attribution import explain
    from jexplicit.lm.model import LanguageModel, read_text

    if not config.text.strip():
        raise ValueError(f"--text {config.text!r}: give at least one word to explain")
    page = None if config.html is None else check_writable(config.html, "--html")
    if page and page.suffix != ".html":
        raise ValueError(f"--html {page}: give a name that ends in .html")
    if is_input(config.text):
        hint = f'is also the name of a file; to explain what is in it, give --text "$(cat {config.text})"'
        console.print(f"hint: --text {config.text} {hint}", markup=False, soft_wrap=True)
    model, tokenizer, _ = saved = load_choice(config, config.text)
    text = read_text(encode_documents(tokenizer, [config.text]), model.context, eos=model.eos)
    if page:
        write_page(page, explained := explain_alternatives(saved, text))
        show(f"page {page}")
        return explained | {"html": str(page)}
    why = explain(model, text.X, text.Y, past=text.past)
    why = why.by_token(model.context) if isinstance(model, LanguageModel) else why
    predicted = [tokenizer.piece(int(i)) for i in text.Y]
    context = [[tokenizer.piece(int(x[k - 1])) if k else "" for k in why.tokens] for x in text.X]
    show(_attribution_table(predicted, context, why))
    parts = zip(predicted, context, why.logits.tolist(), why.evidence.tolist(), why.log_probability.tolist(), strict=True)
    names = ("token", "context", "logits", "evidence", "log_probability")
    return {"rows": list(why.names), "predictions": [dict(zip(names, part, strict=True)) for part in parts]}


def _attribution_table(predicted: list[str], context: list[list[str]], why: "Attribution") -> Table:
    """A row per prediction: its probability, and its strongest evidence in nats."""
    columns = [""] * min(_shown, len(why.names))
    table = Table("predicted", "p", *columns, title="logit (evidence), nats; the strongest first", title_justify="left")
    table.show_lines, table.columns[0].style, table.columns[1].justify = True, "bold", "right"
    for i, row, logits, evidence, log_p in zip(predicted, context, why.logits, why.evidence, why.log_probability, strict=True):
        order = np.argsort(-np.abs(evidence), kind="stable")[:_shown]
        cells = [f"{why.names[g]} {visible(row[g])}\n{logits[g]:z.2f}\n({evidence[g]:+.2f})" for g in order]
        table.add_row(visible(i), f"{np.exp(log_p):.4f}", *cells)
    return table


def explain_alternatives(model: "TextModel", text: "EncodedText") -> dict[str, Any]:
    """The page's JSON: rows, likeliest tokens and their contributions.

    sum of rows - log of the partition function = log p, also rounded. null is -inf. The observed token stands last if
    it is not among the likeliest.
    """
    from jexplicit.lm.attribution import check_explainable, explain
    from jexplicit.lm.evaluation import log_distributions
    from jexplicit.lm.model import LanguageModel
    from jexplicit.lm.text_model import model_name

    lm, M = model.model, len(text.Y)
    if M > _most_tokens:
        raise ValueError(f"a text of {M:,} tokens: a page holds {_most_tokens:,}; give a shorter --text, or leave out --html")
    check_explainable(lm)  # before long work
    log_P = log_distributions(lm, text.X, past=text.past)
    tokens = np.argsort(-log_P, axis=1, kind="stable")[:, :_alternatives]
    rank = (log_P > np.take_along_axis(log_P, text.Y[:, None], axis=1)).sum(axis=1)
    tokens[:, -1] = np.where((tokens == text.Y[:, None]).any(axis=1), tokens[:, -1], text.Y)
    why = explain(lm, text.X, tokens, past=text.past)
    counted = not isinstance(lm, LanguageModel)  # its evidence adds up to log p, and nothing is normalised
    rows = np.round((why.evidence if counted else why.logits).astype(np.float64), _digits)
    log_Z = np.round(rows[:, 0].sum(axis=1) - why.log_probability[:, 0], _digits) * (not counted)
    log_p = np.round(rows.sum(axis=2) - log_Z[:, None], _digits)
    observed = np.argmax(tokens == text.Y[:, None], axis=1)
    texts = [[model.tokenizer.piece(int(i)) for i in some] for some in tokens]
    pieces = [["".join(c if c in "\n\t" else visible(c) for c in text) for text in some] for some in texts]
    columns = {"observed": observed, "rank": 1 + rank, "log_Z": log_Z, "log_p": log_p, "rows": rows}
    values = zip(pieces, *(_finite(column.tolist()) for column in columns.values()), strict=True)
    about = {"model": model_name(model.about), "vocabulary": lm.vocab_size, "rows": list(why.names), "back": list(why.tokens)}
    predictions = [dict(zip(("tokens", *columns), of_one, strict=True)) for of_one in values]
    return {**about, "loss": _finite(-float(log_p[np.arange(M), observed].mean())), "predictions": predictions}


def write_page(path: Path, explained: dict[str, Any]) -> None:
    """Write the page of `explain_alternatives`, one file without anything from elsewhere."""
    template = files("launch").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps(explained, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")  # no tag within the script
    write_whole(path, lambda file: file.write(template.replace("{{explained}}", data).encode()))


def _finite(value: Any) -> Any:
    """Nested numbers with None for those that JSON does not have."""
    if isinstance(value, list):
        return list(map(_finite, value))
    return value if np.isfinite(value) else None


main = entry_point(run, Config, __doc__, module=__name__)

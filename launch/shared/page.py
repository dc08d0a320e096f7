"""A page that shows alternatives and contributions for each prediction.

    sum of rows - log of the partition function = log p

holds for every token that the page shows: numbers are rounded first and added up after.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jexplicit.runs.files import write_whole
from launch.shared.flags import visible

if TYPE_CHECKING:
    from jexplicit.lm.checkpoints import TextModel
    from jexplicit.lm.core.model import EncodedText

_alternatives, _digits, _most_tokens = 10, 6, 4000


def explain_alternatives(model: "TextModel", text: "EncodedText") -> dict[str, Any]:
    """The page's JSON: rows, likeliest tokens and their contributions.

    The observed token stands last where it is not among the likeliest. null stands for -inf, the logit of what cannot occur.
    """
    from jexplicit.lm.attribution import check_explainable, explain
    from jexplicit.lm.checkpoints import model_name
    from jexplicit.lm.core.model import LanguageModel
    from jexplicit.lm.evaluation import log_distributions

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
    loss = -float(log_p[np.arange(M), observed].mean())
    texts = [[model.tokenizer.piece(int(i)) for i in some] for some in tokens]
    pieces = [["".join(c if c in "\n\t" else visible(c) for c in text) for text in some] for some in texts]
    columns = {"observed": observed, "rank": 1 + rank, "log_Z": log_Z, "log_p": log_p, "rows": rows}
    values = zip(pieces, *(_finite(column.tolist()) for column in columns.values()), strict=True)
    return {
        "model": model_name(model.about),
        "vocabulary": lm.vocab_size,
        "loss": _finite(loss),
        "rows": list(why.names),
        "back": list(why.tokens),
        "predictions": [dict(zip(("tokens", *columns), of_one, strict=True)) for of_one in values],
    }


def write_page(path: Path, explained: dict[str, Any]) -> None:
    """Write the page, one file without anything from elsewhere, of what `explain_alternatives` gives."""
    template = files("launch.shared").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps(explained, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")  # no tag within the script
    write_whole(path, lambda file: file.write(template.replace("{{explained}}", data).encode()))


def _finite(value: Any) -> Any:
    """Nested numbers with None for those that JSON does not have."""
    if isinstance(value, list):
        return list(map(_finite, value))
    return value if np.isfinite(value) else None

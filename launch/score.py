"""Log-probabilities of a text under a saved language model, as JSON lines.

    python -m launch.score --run runs/demo --text essay.txt > scores.jsonl
    python -m launch.score --run runs/demo --text - --per token < essay.txt
    python -m launch.score --run runs/demo --text reviews.jsonl --field body --id-field id

Prints a JSON line for each document or token, with the line number at which the document begins in its file (blank lines are
counted but not scored), and then one for the whole text. Logarithms are natural. A file that is named twice is scored twice.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from jexplicit.data.corpora import text_sizes
from jexplicit.data.inputs import expand_paths, file_lines
from jexplicit.data.records import json_records
from jexplicit.data.text import Document, check_reading, line_documents, locate_documents, record_documents
from jexplicit.runs.bounds import refuses
from jexplicit.runs.progress import json_line, show, stage
from launch.kit.command import entry_point
from launch.shared.choose import ModelChoice, load_choice
from launch.shared.groups import Reading

_stdin = "-"


@dataclass(frozen=True, kw_only=True)
class Config(Reading, ModelChoice):
    """Log-probabilities of a text under a saved language model, as JSON lines."""

    GROUPS: ClassVar = {"text": "text"}

    text: tuple[str, ...]
    """Text to score: files, compressed or not, globs or folders; plain text, or records (see --field). - reads standard input:
    plain text, or JSON lines with --field."""
    id_field: str | None = None
    """For files of records: a field to copy to every printed line as `id`."""
    per: Literal["document", "token"] = "document"
    """Print a line for each document, or for each token."""


def run(config: Config) -> dict[str, Any]:
    """Load, score the whole text at once, print a line per document or token to standard output."""
    from jexplicit.lm.measures import comparable_measures, spelling

    check(config)
    files = expand_paths([path for path in config.text if path != _stdin]) if set(config.text) != {_stdin} else []
    if files:
        check_reading(files, field=config.field, documents=config.documents)
    saved = load_choice(config)
    documents = list(read_documents(config))
    if not documents:
        raise ValueError("--text -: standard input holds no text")
    texts, lines = [document.text for document in documents], []
    with stage("scoring", "positions") as progress:
        scores = saved.score_tokens(texts, progress=progress)
    for n, (document, (ids, log_p)) in enumerate(zip(documents, scores, strict=True)):
        place = {"file": document.file} if len(set(config.text)) > 1 or len(files) > 1 else {}
        place |= {"line": document.line} | ({} if config.id_field is None else {"id": document.id})
        pieces, numbers = [saved.tokenizer.piece(int(i)) for i in ids], [round(float(p), 6) for p in log_p]
        if config.per == "token":
            lines += [{**place, "token": t, "log_probability": p} for t, p in zip(pieces, numbers, strict=True)]
        else:
            lines.append({"document": n, **place, "tokens": pieces, "log_probabilities": numbers, **_summary(log_p)})
    show(*map(json_line, lines))
    every = np.concatenate([log_p for _, log_p in scores])
    unknown = sum(int(np.count_nonzero(ids == saved.tokenizer.unk_id)) for ids, _ in scores)
    sizes = text_sizes(texts)
    nats = spelling(saved.tokenizer, np.concatenate([ids for ids, _ in scores]), sizes) - float(every.sum(dtype=np.float64))
    whole = {
        **{"documents": len(documents), "unknown_tokens": unknown, "unknown_share": unknown / len(every)},
        **{"history": saved.about.get("history", "none"), **_summary(every)},
        **comparable_measures(nats, sizes),
    }
    show(json_line(whole))
    return {**whole, "lines": lines}


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that make no sense, before anything is read."""
    yield config.text.count(_stdin) > 1, "--text - -: standard input can be read only once"
    nameless = config.id_field is not None and config.field is None
    yield nameless, f"--id-field {config.id_field} without --field: also name the field that holds the text"
    unused = _stdin in config.text and config.field is not None and config.documents != "line"
    remedy = "every JSON line is a document; leave the flag out"
    yield unused, f"--documents {config.documents} with --field and --text -: {remedy}"


def read_documents(config: Config) -> Iterator[Document]:
    """The documents of standard input and of files, as often as they are named."""
    fields: Any = {"field": config.field, "id_field": config.id_field}
    for path in config.text:
        if path != _stdin:
            for file in expand_paths(path):
                yield from locate_documents(file, documents=config.documents, **fields)
            continue
        lines = file_lines("standard input", content=sys.stdin.buffer.read())
        if config.field is None:
            yield from line_documents(lines, _stdin, config.documents)
        else:
            yield from record_documents(json_records(lines, "standard input"), "standard input", **fields)


def _summary(log_p: np.ndarray) -> dict[str, Any]:
    return {
        "token_count": len(log_p),
        "log_probability": round(float(log_p.sum()), 6),
        "perplexity": round(float(np.exp(-log_p.mean())), 6) if len(log_p) else None,
    }


main = entry_point(run, Config, __doc__)

if __name__ == "__main__":
    sys.exit(main())

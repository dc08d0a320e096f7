"""Log-probabilities of a text under a saved language model, as JSON lines; natural logarithms.

    python -m launch.score --run runs/demo --text essay.txt > scores.jsonl
    python -m launch.score --run runs/demo --text reviews.jsonl --field body --max-perplexity 100 --kept kept.jsonl

Prints a line for each document or token, with its line number in the file, and one for all on the standard error.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jexplicit.data.text import Document, check_reading, expand_paths, locate_documents, text_sizes
from jexplicit.runs.files import PositiveFloat, local_path, refuses, write_whole
from jexplicit.runs.progress import console, json_line, show, stage
from launch.kit.command import entry_point
from launch.kit.text import ModelChoice, Reading, load_choice

_stdin = "-"


@dataclass(frozen=True, kw_only=True)
class Config(Reading, ModelChoice):
    text: tuple[str, ...]
    """Text to score: files, globs or folders of plain text or records; - is standard input."""
    keep_fields: bool = False
    """For files of records: pass all their fields through; those that are measured here take precedence."""
    no_text: bool = False
    """Leave out the tokens, their log-probabilities and the field of the text."""
    max_perplexity: PositiveFloat | None = None
    """Write the documents or records of at most this perplexity per token to --kept."""
    kept: str | None = None
    """File for --max-perplexity: JSON lines of records, or plain text."""
    per: Literal["document", "token"] = "document"
    """Print a line for each document, or for each token."""


def run(config: Config) -> dict[str, Any]:
    """Score the whole text, and print documents or tokens."""
    from jexplicit.lm.evaluation import comparable_measures, spelling

    check(config)
    files = expand_paths([path for path in config.text if path != _stdin]) if set(config.text) != {_stdin} else []
    if files:
        check_reading(files, field=config.field, documents=config.documents)
    saved = load_choice(config)
    documents = list(read_documents(config))
    texts, lines = [document.text for document in documents], []
    with stage("scoring", "positions") as progress:
        scores = saved.score_tokens(texts, progress=progress)
    if config.kept is not None:
        most, scored = config.max_perplexity, zip(documents, scores, strict=True)
        kept = [document for document, (_, log_p) in scored if len(log_p) and np.exp(-log_p.mean()) <= most]
        between = "\n" if config.documents == "line" else "\n\n"  # plain documents; records are JSON lines
        parts = [one.text + between if one.fields is None else json.dumps(one.fields, default=str) + "\n" for one in kept]
        content = "".join(parts).encode("utf-8", "surrogatepass")
        write_whole(local_path(config.kept, "--kept"), lambda file: file.write(content))
    for n, (document, (ids, log_p)) in enumerate(zip(documents, scores, strict=True)):
        fields, without = document.fields or {}, config.field if config.no_text else None
        place = {name: value for name, value in fields.items() if config.keep_fields and name != without}
        place |= ({"file": document.file} if len(set(config.text)) > 1 or len(files) > 1 else {}) | {"line": document.line}
        pieces, numbers = [saved.tokenizer.piece(int(i)) for i in ids], [round(float(p), 6) for p in log_p]
        if config.per == "token":
            lines += [{**place, "token": t, "log_probability": p} for t, p in zip(pieces, numbers, strict=True)]
        else:
            tokens = {} if config.no_text else {"tokens": pieces, "log_probabilities": numbers}
            lines.append({**place, "document": n, **tokens, **_summary(log_p)})
    show(*map(json_line, lines))
    stream, every = (np.concatenate(parts) for parts in zip(*scores, strict=True))
    unknown, sizes = int(np.count_nonzero(stream == saved.tokenizer.unk_id)), text_sizes(texts)
    nats = spelling(saved.tokenizer, stream, sizes) - float(every.sum(dtype=np.float64))
    whole = {
        "documents": len(documents), "unknown_tokens": unknown, "unknown_share": unknown / max(len(every), 1),
        "history": saved.about.get("history", "none"), **_summary(every),
        **comparable_measures(nats, sizes),
    }  # fmt: skip
    console.print(json_line(whole), markup=False, soft_wrap=True)
    return {**whole, "lines": lines}


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that make no sense, before anything is read."""
    yield config.text.count(_stdin) > 1, "--text - -: standard input can be read only once"
    alone = (config.max_perplexity is None) != (config.kept is None)
    yield alone, "--max-perplexity and --kept go together: give the largest perplexity and the file for what is kept"
    yield config.keep_fields and config.field is None, "--keep-fields without --field: also name the field that holds the text"
    yield config.no_text and config.per == "token", "--no-text --per token: a line for each token has its text; leave out one"
    over = config.kept is not None and os.path.realpath(config.kept) in map(os.path.realpath, config.text)
    yield over, f"--kept {config.kept} is read by --text: choose another file"
    unused = _stdin in config.text and config.field is not None and config.documents != "line"
    remedy = "every JSON line is a document; leave the flag out"
    yield unused, f"--documents {config.documents} with --field and --text -: {remedy}"


def read_documents(config: Config) -> Iterator[Document]:
    """The documents of standard input and of files, as often as they are named."""
    reading: Any = {"field": config.field, "documents": config.documents, "every": config.field is not None}
    for path in config.text:
        if path == _stdin:
            yield from locate_documents("standard input", content=sys.stdin.buffer.read(), **reading)
        for file in expand_paths(path) if path != _stdin else ():
            yield from locate_documents(file, **reading)


def _summary(log_p: np.ndarray) -> dict[str, Any]:
    perplexity = round(float(np.exp(-log_p.mean())), 6) if len(log_p) else None
    return {"token_count": len(log_p), "log_probability": round(float(log_p.sum()), 6), "perplexity": perplexity}


main = entry_point(run, Config, __doc__, module=__name__)

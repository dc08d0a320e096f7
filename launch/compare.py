"""Compare language models on one new text, whatever their tokenizers.

    python -m launch.compare --run runs/demo model.safetensors --text essay.txt

Perplexity is per token of each model's own tokenizer; the other measures are comparable. ± are standard errors over documents.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.markup import escape

from jexplicit.data.text import read_documents, text_sizes
from jexplicit.data.tokenizers import PAD
from jexplicit.lm.names import label
from jexplicit.runs.progress import console, show, stage
from launch.kit.command import entry_point
from launch.kit.text import ModelChoices, Reading
from launch.kit.views import Column, rich_table

_much = 0.01  # of the tokens unknown: more need a warning


@dataclass(frozen=True, kw_only=True)
class Config(Reading, ModelChoices):
    run: tuple[str, ...]
    """Run folders and exported files. Of a run folder, the model with the lowest dev perplexity is compared; with --method,
    --features, --context or --history, all models that match."""
    text: tuple[str, ...]
    """Text to compare on: files, pipes, globs or folders of plain text or records."""


def run(config: Config) -> dict[str, Any]:
    """Score the text with each model, and show a table."""
    from jexplicit.data.tokenizers import encode_documents
    from jexplicit.lm import evaluation
    from jexplicit.lm.text_model import load_models

    documents = read_documents(config.text, field=config.field, documents=config.documents)
    all_sizes, rows, first = [text_sizes([document]) for document in documents], [], np.zeros(0)
    sizes = np.array([size.bytes for size in all_sizes])
    models = {name: load_models(name, best=not config.wanted, **config.wanted) for name in config.run}
    for run, saved in ((name, saved) for name, own in models.items() for saved in own):
        with stage(f"scoring with {label(saved.about)}", "positions") as progress:
            nats = -evaluation.score_documents(saved.model, saved.tokenizer, documents, progress=progress)
        stream = encode_documents(saved.tokenizer, documents)
        positions = evaluation.positions_in_all(stream, eos=saved.model.eos)
        row = {"run": run, "model": label(saved.about), "perplexity": float(np.exp(nats.sum() / positions))}
        ids = np.split(stream, np.flatnonzero(stream == PAD)[1:-1])
        nats += [evaluation.spelling(saved.tokenizer, own, size) for own, size in zip(ids, all_sizes, strict=True)]
        first = first if rows else nats
        mean, error = np.array(evaluation.paired_difference(nats, first, sizes)) / np.log(2) if rows else (None, np.nan)
        row |= evaluation.comparable_measures(float(nats.sum()), text_sizes(documents))
        row |= {"unknown_share": evaluation.unknown_share(stream), "positions": positions}
        row |= {"vocab_size": saved.tokenizer.vocab_size, "difference": None if mean is None else float(mean)}
        rows.append({**row, "standard_error": None if np.isnan(error) else float(error)})  # of one document there is none
    if not rows:
        raise ValueError("--run without a value: give at least one run folder or exported file")
    show(rich_table(COLUMNS, rows, title=f"{len(documents):,} documents, {int(sizes.sum()):,} bytes"))
    worst = max(rows, key=lambda row: row["unknown_share"])
    if worst["unknown_share"] >= _much:
        told = f"{worst['unknown_share']:.1%} of the tokens are <unk> to {worst['model']} of {worst['run']}"
        remedy = "its perplexity is too small to be compared; compare bits per byte, which spell them"
        console.print(f"[yellow]warning:[/] {escape(told)}, which need not say what they are: {remedy}", soft_wrap=True)
    return {"documents": len(documents), "bytes": int(sizes.sum()), "rows": rows}


def _with_error(row: dict[str, Any]) -> str:
    error = "" if row.get("standard_error") is None else f" ± {row['standard_error']:.4f}"
    return "" if row.get("difference") is None else f"{row['difference']:+.4f}{error}"


COLUMNS = (
    Column("run", "run"), Column("model", "model"), Column("perplexity", "perplexity", ",.2f"),
    Column("bits per byte", "bits_per_byte", ".4f", bold=True),
    Column("bits per character", "bits_per_character", ".4f"), Column("word perplexity", "word_perplexity", ",.1f"),
    Column("<unk> %", "unknown_share", ".2f", 100), Column("positions", "positions", ","),
    Column("bits per byte less the first's", _with_error),
)  # fmt: skip
main = entry_point(run, Config, __doc__, module=__name__)

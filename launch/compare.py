"""Compare language models on one new text, whatever their tokenizers.

    python -m launch.compare --run runs/demo runs/mine --text essay.txt
    python -m launch.compare --run runs/demo model.safetensors --text essay.txt
    python -m launch.compare --run runs/demo --method bigram explicit --text essay.txt

Perplexity is per token of each model's own tokenizer. Bits per byte, bits per character and perplexity per word are comparable
across tokenizers. The last column is the difference in bits per byte from the first model, with its standard error over
documents: the models are compared document by document.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.markup import escape

from jexplicit.data.sizes import text_sizes
from jexplicit.data.text import Unit, read_documents
from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.comparison import Difference, paired_difference
from jexplicit.lm.names import label
from jexplicit.runs.command import run_command
from jexplicit.runs.progress import console, show, stage
from jexplicit.runs.tables import Column, rich_table
from launch.choose import ModelChoices, load_choices

if TYPE_CHECKING:
    from jexplicit.lm.text_model import TextModel

Row = dict[str, Any]
_much = 0.01  # of the tokens unknown: more need a warning


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoices):
    """Compare language models on one new text, whatever their tokenizers."""

    GROUPS: ClassVar = {"run": "run", "text": "text"}

    run: tuple[str, ...]
    """Run folders of launch.lm or launch.networks mlp-lm, and exported .safetensors files. Of a run folder, the model with the
    lowest dev perplexity is compared; with --method, --features, --radius or --history, all models that match."""
    text: tuple[str, ...]
    """Text to compare on: files, .gz files, globs or folders; plain text, or records (see --field)."""
    field: str | None = None
    """For files of records (.jsonl, .csv, .tsv, each also .gz, and .parquet): the field that holds the text."""
    documents: Unit = "line"
    """For plain text: what a document is. line: every line that is not blank. paragraph: lines between blank lines. file: each
    file."""


def run(config: Config) -> dict[str, Any]:
    """Score the text with each model, and show a table."""
    documents = read_documents(config.text, field=config.field, documents=config.documents)
    sizes = np.array([text_sizes([document]).bytes for document in documents])
    rows: list[Row] = []
    nats: list[np.ndarray] = []
    for place in config.run:
        for saved in load_choices(place, config, best=True):
            nats.append(nats_by_document(saved, documents))
            rows.append({"run": place, "model": label(saved.about), **measures(saved, documents, nats[-1])})
            rows[-1] |= difference(paired_difference(nats[-1], nats[0], sizes)) if len(nats) > 1 else difference(None)
    if not rows:
        raise ValueError("--run without a value: give at least one run folder or exported file")
    show(rich_table(_columns, rows, title=f"{len(documents):,} documents, {int(sizes.sum()):,} bytes"))
    if unread := [row for row in rows if row["unknown_share"] >= _much]:
        worst = max(unread, key=lambda row: row["unknown_share"])
        told = f"{worst['unknown_share']:.1%} of the tokens are <unk> to {worst['model']} of {worst['run']}"
        remedy = "its numbers are too small to be compared; compare models of subwords or characters"
        console.print(f"[yellow]warning:[/] {escape(told)}, which need not say what they are: {remedy}", soft_wrap=True)
    return {"documents": len(documents), "bytes": int(sizes.sum()), "rows": rows}


def nats_by_document(saved: "TextModel", documents: list[str]) -> np.ndarray:
    """[n] negative log-likelihood of each document; models of the past see the documents before it."""
    from jexplicit.lm.measures import score_documents

    with stage(f"scoring with {label(saved.about)}", "positions") as progress:
        return -score_documents(saved.model, saved.tokenizer, documents, progress=progress)


def measures(saved: "TextModel", documents: list[str], nats: np.ndarray) -> Row:
    """What one model makes of the text."""
    from jexplicit.lm.measures import comparable_measures, positions_in_all, unknown_share

    stream = encode_documents(saved.tokenizer, documents)
    positions = positions_in_all(stream, eos=saved.model.eos)
    return {
        "perplexity": float(np.exp(nats.sum() / positions)),
        **comparable_measures(float(nats.sum()), text_sizes(documents)),
        "unknown_share": unknown_share(stream),
        "positions": positions,
        "vocab_size": saved.tokenizer.vocab_size,
    }


def difference(found: Difference | None) -> Row:
    """The difference to the first model, in bits per byte; a single document has no standard error."""
    mean, error = (None, None) if found is None else (x / np.log(2) for x in found)
    return {"difference": mean, "standard_error": None if error is None or np.isnan(error) else error}


def _with_error(row: Row) -> str:
    if row["difference"] is None:
        return ""
    error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.4f}"
    return f"{row['difference']:+.4f}{error}"


_columns = [
    Column("run", "run"),
    Column("model", "model"),
    Column("perplexity", "perplexity", ",.2f"),
    Column("bits per byte", "bits_per_byte", ".4f", bold=True),
    Column("bits per character", "bits_per_character", ".4f"),
    Column("word perplexity", "word_perplexity", ",.1f"),
    Column("<unk> %", "unknown_share", ".2f", 100),
    Column("positions", "positions", ","),
    Column("bits per byte less the first's", _with_error),
]


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())

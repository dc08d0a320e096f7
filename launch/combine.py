"""Counts of contexts and another model of the same tokens, alone and combined.

python -m launch.combine --run runs/counts --other runs/transformer --dev dev.txt --test test.txt --out runs/combined

The weights of a combination are fitted on dev, which neither model may have counted, and all models are measured on test. The
counts are also fitted to dev alone: their gain is that of a second fit, and all beyond it comes from the other model.
"""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from launch.kit.command import entry_point
from launch.kit.text import ModelChoices, Reading
from launch.kit.views import Column, Row, Table


@dataclass(frozen=True, kw_only=True)
class Config(Reading, ModelChoices):
    """Counts of contexts and another model of the same tokens, alone and combined."""

    run: str
    """Run folder of launch.lm with models of context mixing. All are combined, or those that match the flags of models."""
    other: str
    """Run folder or exported file of the other model, which has the same tokenizer. The best model of a run is taken."""
    dev: tuple[str, ...]
    """Text that the weights of both models are fitted on."""
    test: tuple[str, ...]
    """Text that all models are measured on."""
    out: str
    """Run folder to write: results and report.md."""
    resume: bool = False
    """Continue the interrupted run in --out, or combine more models."""


def run(config: Config) -> dict[str, Any]:
    """Measure the models; what cannot be loaded is refused before a folder is made."""
    from jexplicit.data.text import read_documents
    from jexplicit.data.tokenizers import encode_documents
    from jexplicit.lm.evaluation import BLOCK, combine, document_losses, loss_fields, paired_difference
    from jexplicit.lm.model import LanguageModel
    from jexplicit.lm.names import label
    from jexplicit.lm.ngram import BackOffChain
    from jexplicit.lm.text_model import load_models
    from jexplicit.runs.progress import stage
    from launch.kit.experiment import Experiment, RunFolder

    (other,) = load_models(config.other, best=True)
    models = [saved for saved in load_models(config.run, **config.wanted) if saved.about["method"] == "context-mixing"]
    if not models:
        raise ValueError(f"--run {config.run}: give a run with models of context mixing that match the flags")
    if unlike := [label(saved.about) for saved in models if saved.tokenizer.sha256 != other.tokenizer.sha256]:
        raise ValueError(f"{unlike[0]} and --other {config.other} have two tokenizers: fit one with the other's, --tokenizer")
    dev, test = (
        encode_documents(other.tokenizer, read_documents(files, field=config.field, documents=config.documents))
        for files in (config.dev, config.test)
    )

    def losses_of(name: str, model: Any) -> Any:
        with stage(f"scoring with {name}", "positions") as progress:
            return document_losses(model, test, block=BLOCK, progress=progress)

    alone = functools.cache(lambda: losses_of("other", other.model))  # once for all counts

    def combined(counts: Any) -> Iterator[Row]:
        """Losses of both models, of refitted counts, and of the combination."""
        uniform = LanguageModel(BackOffChain(np.zeros(counts.vocab_size, np.float32)), "none", counts.eos)
        with stage("fitting weights"):
            both, refitted = combine(counts, other.model, dev), combine(counts, uniform, dev)
        own = {"counts": counts, "counts, refitted": refitted, "both": both}
        losses = {"other": alone(), **{name: losses_of(name, model) for name, model in own.items()}}
        for name, found in losses.items():
            difference, error = paired_difference(found.nll, losses["counts, refitted"].nll, found.positions)
            yield {"model": name, **loss_fields([found]), "difference": difference, "difference_se": error}

    def measure(config: Config, folder: RunFolder) -> Iterator[Any]:
        sums = {name: hashlib.sha256(stream.tobytes()).hexdigest() for name, stream in (("dev", dev), ("test", test))}
        folder.note_data("text", **sums)
        for saved in models:
            about: Row = {"history": saved.about["history"], "other": label(other.about)}
            yield about, functools.partial(combined, saved.model)

    return Experiment("combine", Config, measure, [RESULTS], extend=("method", "history"), title="Combined models").run(config)


RESULTS = Table(
    [
        Column("history of the counts", "history"),
        Column("model", "model"),
        Column("nats", "loss", ".4f"),
        Column("±", "loss_se", ".4f"),
        Column("perplexity", "perplexity", ",.2f"),
        Column("above the refitted counts", "difference", "+.4f"),
        Column("± of the difference", "difference_se", ".4f"),
    ],
    note="On the test text. ± are standard errors over documents, or over blocks of 1000 predictions of few documents.",
)
main = entry_point(run, Config, __doc__, module=__name__, experiment="combine")

"""Judge language models by minimal pairs of sentences, each scored on its own.

    python -m launch.judge --run runs/demo --pairs blimp/*.jsonl --out runs/judge

Files of pairs are JSON lines with the keys sentence_good, sentence_bad, UID and field, as in BLiMP.
"""

import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jexplicit.data.text import MinimalPair, read_pairs
from jexplicit.lm.names import label
from jexplicit.runs.progress import stage
from launch.kit.command import entry_point
from launch.kit.text import ModelChoices
from launch.kit.views import Column, Row, Table, groups, pivot_table, section

if TYPE_CHECKING:
    from jexplicit.lm.text_model import TextModel

_name = ("method", "features", "context", "history")  # what tells the models of a run apart


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoices):
    """Judge language models by minimal pairs of sentences."""

    run: str
    """Run folder or exported file. All models are judged, or those that match --method, --features, --context, --history."""
    pairs: tuple[str, ...]
    """Minimal pairs: JSON lines files, globs or folders."""
    out: str
    """Run folder to write: results and report.md."""
    resume: bool = False
    """Continue the interrupted run in --out, or judge more models."""


def run(config: Config) -> dict[str, Any]:
    """Judge the models."""
    from jexplicit.lm.text_model import load_models
    from launch.kit.experiment import Experiment

    pairs, models = read_pairs(config.pairs), load_models(config.run, **config.wanted)
    models = itertools.chain([next(models)], models)  # a run that cannot be loaded is refused before a folder is made

    def measure(config: Config, folder: object) -> Iterator[Any]:
        for saved in models:
            yield {name: saved.about[name] for name in _name if name in saved.about}, functools.partial(judge, saved, pairs)

    found = Experiment("judge", Config, measure, VIEWS, extend=_name, title="Minimal pairs").run(config)
    return {**found, "models": by_model(found["rows"])}


def judge(saved: "TextModel", pairs: Sequence[MinimalPair]) -> list[Row]:
    """A row per paradigm: how often one model is right."""
    from jexplicit.lm.evaluation import judgement, preferences

    start = time.perf_counter()
    with stage(f"judging with {label(saved.about)}", "positions") as progress:
        differences = preferences(saved.model, saved.tokenizer, pairs, progress=progress)
    seconds = (time.perf_counter() - start) / len(pairs)
    rows = []
    for paradigm, which in groups(range(len(pairs)), lambda n: pairs[n].paradigm).items():
        about = {"paradigm": paradigm, "field": pairs[which[0]].field, "term": pairs[which[0]].term}
        rows.append({**about, **judgement(differences[which])._asdict(), "seconds": seconds * len(which)})
    return rows


def by_model(rows: Iterable[Row]) -> list[Row]:
    """Accuracy and ties by model, over all pairs and by field."""

    def mean(rows: Sequence[Row], name: str = "accuracy") -> float:
        return float(np.average([row[name] for row in rows], weights=[row["pairs"] for row in rows]))

    found = []
    for model, own in groups(rows, label).items():
        sums = {name: sum(row[name] for row in own) for name in ("pairs", "seconds")}
        fields = {field: mean(some) for field, some in groups(own, lambda row: row["field"] or "no field").items()}
        name = {key: own[0][key] for key in _name if key in own[0]}
        found.append({"model": model, **name, "accuracy": mean(own), "ties": mean(own, "ties"), **sums, "fields": fields})
    return found


def _of_fields(models: list[Row]) -> Sequence[Column]:
    fields = {field: lambda row, field=field: row["fields"].get(field) for model in models for field in model["fields"]}
    shares = fields | {"all": "accuracy", "ties": "ties"}
    percent = [Column(heading.replace("_", " "), value, ".1f", 100) for heading, value in shares.items()]
    return [Column("model", "model"), *percent, Column("pairs", "pairs", ","), Column("seconds", "seconds", ".1f")]


MODELS = Table(
    _of_fields,
    lambda results: by_model(results.rows),
    note="Accuracy in per cent: the acceptable sentence is the likelier one; ties count half, chance is 50. Every sentence is "
    "scored on its own. *n* pairs have a standard error of at most 50 / √n.",
)
_paradigm = [Column("paradigm", "paradigm"), Column("field", "field"), Column("pairs", "pairs", "d")]
_by_model = lambda results: [{**row, "model": label(row)} for row in results.rows]  # noqa: E731
VIEWS = (MODELS, section("Paradigms", pivot_table(_paradigm, "model", Column("", "accuracy", ".1f", 100), _by_model)))

main = entry_point(run, Config, __doc__, module=__name__, experiment="judge")

"""The whole job of launch.judge, from pairs to accuracies and report."""

import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jexplicit.data.inputs import MinimalPair, read_pairs
from jexplicit.lm.checkpoints import TextModel
from jexplicit.lm.core.names import label
from jexplicit.lm.evaluation import judgement, preferences
from jexplicit.runs.progress import stage
from launch.judge.config import Config
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Results, Row, Section, Table, cell, groups, pivot_table
from launch.shared.flags import load_choices

_name = ("method", "features", "radius", "history")  # what tells the models of a run apart


def run(config: Config) -> dict[str, Any]:
    """Judge the models; what cannot be loaded is refused before a folder is made."""
    pairs, models = read_pairs(config.pairs), load_choices(config.run, config)
    models = itertools.chain([next(models)], models)

    def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
        for saved in models:
            yield {name: saved.about[name] for name in _name if name in saved.about}, functools.partial(judge, saved, pairs)

    found = Experiment("judge", Config, measure, VIEWS, extend=_name[:4], title="Minimal pairs").run(config)
    return {**found, "models": by_model(found["rows"])}


def judge(saved: TextModel, pairs: Sequence[MinimalPair]) -> list[Row]:
    """A row per paradigm: how often one model is right."""
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


def _models(results: Results) -> list[Row]:
    """The models of a run or of kept results, with perplexities."""
    known = {label(row): row for row in results.rows if "accuracy" not in row}
    judged = [row for row in results.rows if "accuracy" in row]
    models = by_model(judged) if all("paradigm" in row for row in judged) else judged
    return [{**known.get(row["model"], {}), **row} for row in models]


def _percent(heading: str, value: Any) -> Column:
    return Column(heading, value, ".1f", 100)


def _of_fields(models: list[Row]) -> Sequence[Column]:
    fields = dict.fromkeys(field for row in models for field in row.get("fields", {}))
    perplexities = Column("dev perplexity", "dev_perplexity", ".1f"), Column("bits per byte", "bits_per_byte", ".3f")
    first = Column("model", "model"), *(_percent(field.replace("_", " "), cell("fields", field)) for field in fields)
    last = Column("pairs", "pairs", ","), Column("seconds", "seconds", ".1f"), *perplexities
    return [*first, _percent("all", "accuracy"), _percent("ties", "ties"), *last]


MODELS = Table(
    _of_fields,
    _models,
    note="Accuracy in per cent: the acceptable sentence is the likelier one; ties count half, chance is 50. Every sentence is "
    "scored on its own. *n* pairs have a standard error of at most 50 / √n.",
)
_paradigm = [Column("paradigm", "paradigm"), Column("field", "field"), Column("pairs", "pairs", "d")]
_by_model = lambda results: [{**row, "model": label(row)} for row in results.rows]  # noqa: E731
PARADIGMS = pivot_table(_paradigm, "model", "accuracy", ".1f", scale=100, rows=_by_model)


VIEWS = (MODELS, Section("Paradigms", [PARADIGMS]))

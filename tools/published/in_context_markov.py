"""docs/in_context.md, Markov chains."""

from collections.abc import Iterable
from statistics import mean

from launch.icl.sections.markov import phases

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, only, read_events, where

_predictors = {
    ("uniform", 0): "uniform",
    ("unigram", 0): "unigrams",
    ("bigram", 0): "bigrams: the posterior mean",
    ("cache row", 0): "row of a language model's cache",
    ("constructed", 3): "constructed",
    ("trained", 0): "trained",
    ("trained", 1): "trained, with a marked start",
}


def _chains(rows: Iterable[Row]) -> list[Row]:
    """A line for each predictor of Markov chains, the mean over seeds."""
    found = list(rows)
    lines = []
    for (predictor, before), name in _predictors.items():
        seeds = [row for row in where(found, predictor=predictor) if row.get("symbols_before", 0) == before]
        measures = {what: [row[what] for row in seeds if what in row] for what in ("loss", "kl_bigram", "matches")}
        lines.append({"name": name, **{what: mean(values) for what, values in measures.items() if values}})
    return lines


def _markov(predictor: str, field: str, form: str) -> Value:
    return Value("icl-markov", field, form, {"predictor": predictor})


def _trained(field: str, form: str, marked: int) -> Value:
    """The mean over the seeds trained with a marked start, 1, or without, 0."""
    fields = {"predictor": "trained", "symbols_before": marked}
    return Value("icl-markov", lambda rows: mean(row[field] for row in where(rows, **fields)), form)


def _above_posterior(predictor: str) -> Value:
    """How far a loss is above that of the posterior mean."""

    def above(rows: list[Row]) -> float:
        return only(rows, predictor=predictor)["loss"] - only(rows, predictor="bigram")["loss"]

    return Value("icl-markov", above, ".3f")


def _curve(model: str) -> list[Row]:
    """The evaluations of the models with a marked start, markov_start, or without, markov, by step."""
    return where(read_events("icl-markov", "evaluation"), model=model)


def _phase(field: str, form: str = "", model: str = "markov_start") -> Value:
    """What both seeds have in a phase of training."""
    return Value("icl-markov", lambda _: " and ".join(format(getattr(one, field), form) for one in phases(_curve(model))), "")


TABLES = {
    "icl-markov": Table(
        ["icl-markov"],
        [
            Column("prediction", "name"),
            Column("loss, nats", "loss", ".4f"),
            Column("KL from the posterior mean", "kl_bigram", ".4f"),
            Column("attention of layer 2 to what followed the same state", "matches", ".2f"),
        ],
        rows=_chains,
    ),
}
VALUES = {
    "markov-constructed": _markov("constructed", "max_difference", ".1e"),
    "markov-cache": _markov("cache row", "max_difference", ".1e"),
    "markov-counts": _markov("cache row", "count_difference", ".1e"),
    "markov-bigram-loss": _markov("bigram", "loss", ".4f"),
    "markov-marked-loss": _trained("loss", ".4f", 1),
    "markov-marked-kl": _trained("kl_bigram", ".3f", 1),
    "markov-kl": _trained("kl_bigram", ".3f", 0),
    "markov-unigram-above": _above_posterior("unigram"),
    "markov-uniform-above": _above_posterior("uniform"),
    "markov-start": Value("icl-markov", lambda _: mean(_curve("markov")[0]["loss"]), ".4f"),
    "markov-unigrams": _phase("nearest"),
    "markov-divergence": _phase("divergence", ".4f"),
    "markov-bigrams": _phase("nearer"),
    "markov-unmarked-unigrams": _phase("nearest", model="markov"),
    "markov-unmarked-divergence": _phase("divergence", ".4f", model="markov"),
    "markov-unmarked-bigrams": _phase("nearer", model="markov"),
}

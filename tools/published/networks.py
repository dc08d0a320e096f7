"""docs/networks.md."""

import math
from collections.abc import Iterable, Mapping

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, context_length, spread, where


def _by_start(rows: Iterable[Row]) -> list[Row]:
    """A line for each depth and learning rate: dev losses of stacks by their start, over seeds."""
    found = where(rows, start=("cold", "layers"))
    lines = []
    for layers, rate in sorted({(row["stack"], row["learning_rate"]) for row in found}):
        line = {"layers": layers, "rate": rate}
        for start in ("cold", "layers"):
            seeds = where(found, stack=layers, learning_rate=rate, start=start)
            for when in ("first_loss", "dev_loss"):
                line[f"{start} {when}"] = spread((row[when] for row in seeds), ".3f")
        lines.append(line)
    return lines


def _model(row: Row) -> str:
    """A network by its sizes, where the configuration has those that are not the defaults."""
    if row["model"] != "MLP":
        return row["model"]
    return f"MLP, embedding {row.get('embedding', 10)}, {row.get('hidden', [200])[0]} tanh units"


_in_words = {
    ("unigram", 1): "unigram",
    ("bigram", 1): "Kneser-Ney bigram",
    ("explicit", 1): "explicit, Cat",
    ("explicit", 3): "explicit, Cat",
    ("ngram", 4): "Kneser-Ney 5-gram",
    ("mixture", 8): "mixture: contexts, offsets, gaps",
    ("mlp-cold", 3): "network, embedding 30, 128 tanh units, direct connections",
}

TABLES = {
    "bengio": Table(
        ["words17", "bengio"],
        [
            Column("model", lambda row: _in_words[row["method"], row["radius"]]),
            Column("words of context", context_length, "d"),
            Column("train", lambda row: row.get("train_perplexity") or math.exp(row["train_loss"]), ".1f"),
            Column("dev", "dev_perplexity", ".1f"),
        ],
        rows=lambda rows: [row for row in rows if (row["method"], row["radius"]) in _in_words],
    ),
    "names": Table(
        ["names"],
        [
            Column("", _model),
            Column("K", "radius", "d"),
            *(Column(part, f"{part}_loss", ".3f") for part in ("train", "dev", "test")),
        ],
        rows=lambda rows: where(rows, method=("explicit", "log-linear", "mlp-cold")),
    ),
    "stacks": Table(
        ["stacks"],
        [
            Column("layers", "layers", "d"),
            Column("learning rate", "rate", "g"),
            Column("cold: before training", "cold first_loss"),
            Column("after 30 epochs", "cold dev_loss"),
            Column("solved: before training", "layers first_loss"),
            Column("after 30 epochs", "layers dev_loss"),
        ],
        rows=_by_start,
        commands=False,
    ),
}
VALUES: Mapping[str, Value] = {}

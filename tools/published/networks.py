"""docs/networks.md."""

import math
import re
from collections.abc import Iterable, Mapping
from statistics import mean

from jexplicit.runs.tables import Column
from launch.networks.config import MLPConfig
from tools.declarations import Row, Table, Value, cell, context_length, pivot, read_events, spread, where


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


_usual_decay = MLPConfig(out="").weight_decay


def _model(row: Row) -> str:
    """A network by its sizes, where the configuration has those that are not the defaults."""
    if row["model"] != "MLP":
        return row["model"]
    decay = f", weight decay {row['weight_decay']:g}" if row["weight_decay"] != _usual_decay else ""
    return f"MLP, embedding {row.get('embedding', 10)}, {row.get('hidden', [200])[0]} tanh units{decay}"


_starts = {
    "cold": "cold",
    "output": "output layer solved on random hidden features",
    "explicit": "direct connection, explicit",
    "log-linear": "direct connection, log-linear",
}
_epochs = (0, 1, 4, 10)


def _curves(rows: Iterable[Row]) -> list[Row]:
    """A line for each start of a network: its dev loss by epoch."""
    names = {row["name"]: row["start"] for row in rows if row.get("start")}
    found = [event for event in read_events("names-starts", "epoch") if event["name"] in names]
    lines = pivot([{**event, "start": names[event["name"]]} for event in found], ["start"], "epoch")
    return [{**line, "name": _starts[line["start"]]} for line in lines]


def _perplexity(part: str) -> Column:
    return Column(part, lambda row: math.exp(row[f"{part}_loss"]), ".1f")


_in_subwords = {
    "unigram": "*unigram*",
    "bigram": "*Kneser-Ney bigram*",
    "explicit": "explicit, Cat",
    "log-linear": "log-linear, Cat",
    "mlp-cold": "network, cold",
    "mlp-log-linear": "network, from the log-linear solution",
}
_in_words = {
    ("unigram", 1): "unigram",
    ("bigram", 1): "Kneser-Ney bigram",
    ("explicit", 1): "explicit, Cat",
    ("explicit", 3): "explicit, Cat",
    ("ngram", 4): "Kneser-Ney 5-gram",
    ("mixture", 8): "mixture: contexts, offsets, gaps",
    ("mlp-cold", 3): "network, embedding 30, 128 tanh units, direct connections",
}

_linear_starts = {
    "He x 0.001": "He's weights x 0.001",
    "He x 0.1": "He's weights x 0.1",
    "He": "He's weights",
    "identity": "identity",
    "pseudo-inverse": "pseudo-inverse",
}


def _wide(_: Iterable[Row]) -> list[Row]:
    """A line for each start of a wide linear autoencoder: means over its seeds."""
    events = read_events("autoencoder", "wide linear")
    lines = []
    for start, name in _linear_starts.items():
        own = where(events, start=start)
        lines.append({"name": name, **{field: mean(event[field] for event in own) for field in ("gain", "distance")}})
    return lines


_autoencoders = {
    "linear, solved": "linear of width 16, one SVD",
    "linear, trained": "linear of width 16, by Adam",
    "bottleneck": "nonlinear bottleneck of 16",
}


def _anomalies(rows: Iterable[Row]) -> list[Row]:
    """A line for each autoencoder: means and spread over its seeds."""
    found = list(rows)
    lines = []
    for model, name in _autoencoders.items():
        own = where(found, name=model)
        error, auc = (
            spread((row[field] for row in own), form) for field, form in (("test_loss", ".2f"), ("anomaly_auc", ".3f"))
        )
        lines.append({"name": name, "error": error, "auc": auc})
    return lines


def _memories(rows: Iterable[Row]) -> list[Row]:
    """A line for each nonlinearity, with its rows by the scale of the initial weights."""
    found = []
    for row in rows:
        if memory := re.fullmatch(r"over-parameterised, (\S+), weights x (\S+)", row["name"]):
            found.append({**row, "activation": memory[1], "scale": float(memory[2])})
    return pivot(found, ["activation"], "scale")


def _recall(row: Row) -> str:
    return f"{row['attractors']}, {100 * row['recalled_from_noise']:.0f} %"


_losses = [Column(part, f"{part}_loss", ".3f") for part in ("train", "dev", "test")]

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
            *_losses,
        ],
        rows=lambda rows: where(rows, method=("explicit", "log-linear", "mlp-cold")),
    ),
    "names-8": Table(
        ["names-8", "names-8-large"],
        [Column("", _model), Column("K", "radius", "d"), *_losses],
        rows=lambda rows: [*where(rows, file="names-8", method=("explicit", "log-linear")), *where(rows, method="mlp-cold")],
    ),
    "names-starts": Table(
        ["names-starts"],
        [Column("start", "name"), *(Column(str(epoch), cell(epoch, "dev_loss"), ".3f") for epoch in _epochs)],
        rows=_curves,
    ),
    "docs-network": Table(
        ["docs-network"],
        [Column("", lambda row: _in_subwords[row["name"]]), *map(_perplexity, ("train", "dev", "test"))],
        rows=lambda rows: where(rows, name=tuple(_in_subwords)),
    ),
    "anomalies": Table(
        ["autoencoder"],
        [Column("autoencoder", "name"), Column("half the squared error", "error"), Column("area under the ROC curve", "auc")],
        rows=_anomalies,
        commands=False,
    ),
    "wide-linear": Table(
        ["autoencoder"],
        [
            Column("start", "name"),
            Column("what is left of orthogonal vectors", "gain", ".2g"),
            Column("distance of A B from the projection, %", "distance", ".1f", 100),
        ],
        rows=_wide,
    ),
    "memories": Table(
        ["memories"],
        [Column("", "activation"), *(Column(f"x {scale:g}", cell(scale, _recall)) for scale in (1.0, 0.4, 0.2))],
        rows=_memories,
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

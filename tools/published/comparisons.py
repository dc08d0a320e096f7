"""docs/comparisons.md."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from jexplicit.runs.tables import Column
from launch.networks.comparisons.report import summaries
from tools.declarations import Row, Table, Value, cell, only, pivot, read_events, where

_names = {
    "fan_in_uniform": "U(±1/√n), as in Glorot & Bengio's Fig. 7",
    "glorot_uniform": "Glorot, uniform",
    "glorot_normal": "Glorot, normal",
    "he_normal": "He with tanh's gain 1",
    "backward_normal": "backward only, 1/n_out",
    "he_normal, gain 1.67": "He with gain 5/3",
    "standard": "standard, c E[φ(z)²] = 1",
    "zeros": "zeros",
    "zero last layer": "zeros in the last layer only",
    "sigmoid_squared_error": "squared error of a sigmoid",
    "binary_cross_entropy": "binary cross-entropy",
    "squared_error": "squared error, linear outputs",
    "softmax_cross_entropy": "softmax cross-entropy",
    "sgd": "descent",
}
_rate = Column("best rate", "learning_rate", ".3g")


def _accuracy(line: Row) -> str:
    """Mean ± standard deviation over seeds in %."""
    if line.get("test_accuracy") is None:
        return "all rates diverge"
    return f"{100 * line['test_accuracy']:.1f} ± {100 * line['test_accuracy_spread']:.1f}"


_test = Column("test %", _accuracy)


def _name(line: Row) -> str:
    return _names.get(line["variant"]) or line["variant"]


def _variants(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """A line for each variant: means over its seeds."""
    return where(summaries(list(map(dict, rows))), **fields)


def _list(what: str, heading: str, *more: Column, commands: bool = True, **fields: Any) -> Table:
    """A line for each variant, with its accuracy and its best rate."""
    columns = [Column(heading, _name), *more, _test, _rate]
    return Table([f"compare-{what}"], columns, lambda rows: _variants(rows, **fields), commands)


def _grid(what: str, columns: dict[float, str]) -> Table:
    """A line for each group of variants, by their value."""
    cells = [Column(heading, cell(value, _accuracy)) for value, heading in columns.items()]
    return Table(
        [f"compare-{what}"], [Column("", "group"), *cells], rows=lambda rows: pivot(_variants(rows), ["group"], "value")
    )


def _initialisers(rows: Iterable[Row]) -> list[Row]:
    """With the spread of activations and gradients in the first and the last hidden layer before training."""
    layers = where(read_events("compare-initializers", "layer"), when="start")
    lines = []
    for line in _variants(rows, group="initialisers"):
        own = where(layers, name=line["variant"])
        first, last = own[0], own[-1]
        ratio = first["gradient_std"] / last["gradient_std"] if last["gradient_std"] else None
        lines.append({**line, "first": first["std"], "last": last["std"], "ratio": ratio})
    return lines


def _objectives(rows: Iterable[Row]) -> list[Row]:
    """A line for each objective, with its sensitivities and its accuracy from saturated and from small outputs."""
    events = read_events("compare-objectives", "sensitivity")
    found = [
        {**line, **only(events, name=line["variant"]), "start": line["group"].split(", ")[1]}
        for line in _variants(rows)
        if line["group"].startswith("descent")
    ]
    return [{**line, "variant": line["objective"]} for line in pivot(found, ["objective"], "start")]


_objective_columns = [
    Column(f"{heading}{name}", cell(f"{start} outputs", value), form)
    for start, heading in (("saturated", "saturated: "), ("small", "small outputs: "))
    for name, value, form in (("output", "output", "#.3g"), ("hidden", "hidden", "#.2g"), ("test %", _accuracy, ""))
]
_noise_columns = [
    Column(f"{heading}{name}", cell(when, field), form)
    for when, heading in (("start", "before training: "), ("end", "after: "))
    for name, field, form in (("drawn", "error", "#.3g"), ("formula", "predicted", "#.3g"), ("cosine", "cosine", ".2f"))
]


def _recalls(_: Iterable[Row]) -> list[Row]:
    """How many training examples a class has, and for each sampler the recall of each class, means over seeds."""
    events = read_events("compare-samplers", "recall")
    lines: list[Any] = [{"name": "*training examples*", **dict(enumerate(map(str, events[0]["counts"])))}]
    for event in events:
        recalls = np.mean(event["recalls"], axis=0)
        lines.append({"name": event["name"], **dict(enumerate(recalls)), "mean": recalls.mean()})
    return lines


_classes = [Column(f"class {c}", lambda line, c=c: line.get(c), ".0f", 100) for c in range(10)]

TABLES = {
    "compare-activations": _list("activations", "activation"),
    "compare-normalisation": _grid("normalisation", {2: "2 layers", 8: "8", 24: "24"}),
    "compare-initializers": Table(
        ["compare-initializers"],
        [
            Column("", _name),
            Column("layer 1", "first", ".2f"),
            Column("layer 5", "last", "#.2g"),
            Column("gradient, layer 1 / layer 5", "ratio", ".2f"),
            _test,
        ],
        rows=_initialisers,
    ),
    "compare-scales": Table(
        ["compare-initializers"],
        [Column("Glorot's weights times", "value", "g"), _test, _rate],
        rows=lambda rows: _variants(rows, group="scales"),
        commands=False,
    ),
    "compare-objectives": Table(["compare-objectives"], [Column("objective", _name), *_objective_columns], rows=_objectives),
    "compare-optimizers": _list("optimizers", "optimiser", group="optimisers"),
    "compare-momentum": _list("optimizers", "descent", group=("momentum", "schedules, descent"), commands=False),
    "compare-batch-size": _list("batch-size", "", Column("steps", "steps", ",d")),
    "compare-noise": Table(
        ["compare-batch-size"],
        [Column("batch", "size", "d"), *_noise_columns],
        rows=lambda _: pivot(read_events("compare-batch-size", "noise"), ["size"], "when"),
        commands=False,
    ),
    "compare-samplers": Table(
        ["compare-samplers"],
        [Column("sampler", "name"), *_classes, Column("mean", "mean", ".1f", 100)],
        rows=_recalls,
    ),
    "compare-dropout": _grid("dropout", {0.0: "0", 0.2: "0.2", 0.5: "0.5", 0.8: "0.8"}),
}
VALUES: dict[str, Value] = {}

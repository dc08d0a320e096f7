"""docs/in_context.md, beyond linear regression with linear layers."""

from collections.abc import Iterable
from statistics import mean
from typing import Any

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, cell, only, pivot, read_events, where

_scalars = {"gd++": "GD++, two scalars a layer", "diagonal": "diagonal, four scalars a layer (Vladymyrov et al. 2024)"}

_functions = {
    ("linear", "none"): "linear",
    ("relu", "none"): "ReLU networks",
    ("quadratic", "none"): "quadratic",
    ("tree", "none"): "trees",
    ("linear", "x times 3"): "linear, inputs three times as large",
    ("linear", "y times 3"): "linear, outputs three times as large",
}
_learners = {
    "trained": "transformer",
    "least squares": "least squares",
    "3 nearest neighbours": "three nearest neighbours",
    "averaging": "averaging",
    "zero": "zero",
    "Newton, 4 steps": "Newton, 4 steps",
    "Newton, 8 steps": "8 steps",
}


def _by_functions(rows: Iterable[Row]) -> list[Row]:
    """A line for each kind of functions: the losses after ten pairs."""
    lines = {(line["task"], line["shift"]): line for line in pivot(where(rows, prefix=10), ["task", "shift"], "predictor")}
    return [lines[functions] for functions in _functions]


def _by_scalars(rows: Iterable[Row]) -> list[Row]:
    """A line for each kind of layers that are fitted to tasks whose noise differs."""
    lines = pivot(where(rows, task="mixed noise", predictor=tuple(_scalars)), ["predictor"], "layers")
    return [{**line, "name": _scalars[line["predictor"]]} for line in lines]


def _adjusted(predictor: str) -> Value:
    """The loss above that of ridge regression that knows the noise."""
    return Value("icl-noisy", "adjusted_loss", ".3f", {"task": "mixed noise", "predictor": predictor})


def _one_layer(predictor: str) -> Value:
    """The loss on inputs N(0, Λ) with noisy labels."""
    return Value("icl-noisy", "loss", ".4f", {"task": "anisotropic, noisy", "predictor": predictor})


def _by_seed(file: str, **fields: Any) -> Value:
    """The losses of trained layers, from the lowest."""

    def losses(rows: list[Row]) -> str:
        *first, last = sorted(row["loss"] for row in where(rows, predictor="trained", **fields))
        return f"{', '.join(f'{loss:.4f}' for loss in first)} and {last:.4f}"

    return Value(file, losses, "")


def _mean(file: str, **fields: Any) -> Value:
    """The mean loss of trained layers over seeds."""
    return Value(file, lambda rows: mean(row["loss"] for row in where(rows, predictor="trained", **fields)), ".4f")


def _by_tasks(measure: str) -> Value:
    """A loss of layers that see the same tasks at every step, by the number of tasks."""
    return Value(
        "icl-finite-data", lambda rows: ", ".join(f"{row[measure]:.3g}" for row in where(rows, predictor="trained")), ""
    )


def _at_twice_the_range(predictor: str) -> Value:
    """The loss of one layer with normalisation, or of a step of descent, on inputs of twice the range."""

    def loss(_: list[Row]) -> float:
        sweeps = where(read_events("icl-layernorm", "sweep"), model="layernorm_K1", predictor=predictor)
        return mean(sweep["losses"][-1] for sweep in sweeps)

    return Value("icl-layernorm", loss, ".2g")


def _above_construction(rows: list[Row]) -> float:
    """How far trained heads with softmax are above constructed ones."""
    trained = mean(row["loss"] for row in where(rows, predictor="trained", heads=2))
    return 100 * (trained / only(rows, predictor="constructed")["loss"] - 1)


TABLES = {
    "icl-function-classes": Table(
        ["icl-function-classes"],
        [
            Column("functions", lambda line: _functions[line["task"], line["shift"]]),
            *(Column(name, cell(predictor, "loss_by_power"), ".1f", 100) for predictor, name in _learners.items()),
        ],
        rows=_by_functions,
    ),
    "icl-noise": Table(
        ["icl-noisy"],
        [Column("", "name"), *(Column(f"K = {K}", cell(K, "adjusted_loss"), ".3f") for K in (1, 2, 3, 4))],
        rows=_by_scalars,
    ),
}
VALUES = {
    "softmax-one": _by_seed("icl-softmax", heads=1),
    "softmax-two": _mean("icl-softmax", heads=2),
    "softmax-constructed": Value("icl-softmax", "loss", ".4f", {"predictor": "constructed"}),
    "softmax-above": Value("icl-softmax", _above_construction, ".1f"),
    "layernorm-1": _mean("icl-layernorm", layers=1),
    "layernorm-2": _mean("icl-layernorm", layers=2),
    "layernorm-gd": Value("icl-layernorm", "loss", ".4f", {"predictor": "gd", "layers": 1}),
    "layernorm-gd++": Value("icl-layernorm", "loss", ".4f", {"predictor": "gd++", "layers": 2}),
    "layernorm-twice": _at_twice_the_range("trained"),
    "layernorm-twice-gd": _at_twice_the_range("gd"),
    "finite-fresh": _by_tasks("loss"),
    "finite-own": _by_tasks("train_loss"),
    "noisy-solved": _one_layer("closed_form"),
    "noisy-trained": _one_layer("trained"),
    "noisy-descent": _one_layer("gd"),
    "noise-ridge": _adjusted("ridge"),
    "noise-adaptive": _adjusted("ridge, adaptive"),
    "noise-tuned": _adjusted("ridge, tuned"),
    "noise-posterior": _adjusted("posterior mean"),
}

"""docs/in_context.md, beyond linear regression with linear layers."""

from collections.abc import Iterable
from statistics import mean
from typing import Any

from launch.icl.sections.run_files import first_steps

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


def _listed(numbers: Iterable[Any], form: str = "") -> str:
    """Numbers in their order, with an "and" before the last."""
    *first, last = (format(number, form) for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _losses(rows: Iterable[Row], measure: str = "loss", predictor: str = "trained", **fields: Any) -> list[float]:
    """A loss of trained layers by seed."""
    return [row[measure] for row in where(rows, predictor=predictor, **fields)]


def _by_seed(file: str, **fields: Any) -> Value:
    """The losses of trained layers, from the lowest."""
    return Value(file, lambda rows: _listed(sorted(_losses(rows, **fields)), ".4f"), "")


def _mean(file: str, measure: str = "loss", form: str = ".4f", **fields: Any) -> Value:
    """The mean loss of trained layers over seeds."""
    return Value(file, lambda rows: mean(_losses(rows, measure, **fields)), form)


def _curve(file: str, model: str) -> list[Row]:
    return where(read_events(file, "evaluation"), model=model)


def _from_to(steps: Iterable[int]) -> str:
    found = list(steps)
    return f"{min(found)} to {max(found)}"


def _attends_before_the_drop(_: list[Row]) -> str:
    """How many steps the first layer looks at the next token before the loss is half-way down, over the seeds."""
    curve = _curve("icl-copying", "copy")
    half = mean(_reference("icl-copying", "copy", predictor) for predictor in ("zero", "gd"))
    attends = first_steps(curve, lambda e, n: e["sensitivity_next"][n] > 2 * e["sensitivity_other"][n])
    drops = first_steps(curve, lambda e, n: e["loss"][n] <= half)
    return _from_to(b - a for a, b in zip(attends, drops, strict=True) if a is not None and b is not None)


def _reference(file: str, model: str, predictor: str) -> float:
    """A loss that a model is compared with, on validation tasks."""
    return only(read_events(file, "reference"), model=model, predictor=predictor)["loss"]


def _half_way(heads: int) -> Value:
    """The steps after which the loss is half-way to that of a step of descent, over the seeds."""

    def steps(_: list[Row]) -> str:
        model = f"phase_{heads}_heads"
        curve, level = _curve("icl-phase", model), _reference("icl-phase", model, "gd")
        found = first_steps(curve, lambda e, n: e["loss"][n] <= (curve[0]["loss"][n] + level) / 2)
        return _from_to(step for step in found if step is not None)

    return Value("icl-phase", steps, "")


def _best_on_fresh(measure: str, form: str = "") -> Value:
    """The lowest loss on fresh tasks, or its step, of blocks that see the same tasks at every step, by seed."""

    def best(_: list[Row]) -> str:
        curve = _curve("icl-blocks", "blocks_softmax_8192_tasks")
        lowest = [min(curve, key=lambda entry, n=n: entry["loss"][n]) for n in range(len(curve[0]["loss"]))]
        return _listed((entry["step"] if measure == "step" else entry["loss"][n] for n, entry in enumerate(lowest)), form)

    return Value("icl-blocks", best, "")


def _solved(file: str, layers: int, predictor: str, form: str) -> Value:
    return Value(file, "loss", form, {"predictor": predictor, "layers": layers, "recurrent": False})


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
    "waves": _by_seed("icl-waves"),
    "waves-control": _by_seed("icl-waves", predictor="control"),
    "waves-zero": Value("icl-waves", "loss", ".4f", {"predictor": "zero"}),
    "waves-cosine": _mean("icl-waves", "cosine", ".2f"),
    "copying": _by_seed("icl-copying", attention="softmax"),
    "copying-linear": _mean("icl-copying", form=".3f", attention="linear"),
    "copying-gd": Value("icl-copying", "loss", ".4f", {"predictor": "gd"}),
    "copying-gd-validation": Value("icl-copying", lambda _: _reference("icl-copying", "copy", "gd"), ".4f"),
    "copying-attends": Value("icl-copying", _attends_before_the_drop, ""),
    "phase-one": _half_way(1),
    "phase-two": _half_way(2),
    "blocks": _mean("icl-blocks", layers=12),
    "blocks-seeds": _by_seed("icl-blocks", layers=12),
    "blocks-gd": _solved("icl-blocks", 12, "gd", ".4f"),
    "blocks-solved-3": _solved("icl-blocks", 3, "gd++", ".4f"),
    "blocks-solved-4": _solved("icl-depths", 4, "gd++", ".4f"),
    "blocks-solved-12": _solved("icl-blocks", 12, "gd++", ".5f"),
    "blocks-own": _mean("icl-blocks", "train_loss", ".3f", training_tasks=8192),
    "blocks-fresh": _mean("icl-blocks", form=".3f", training_tasks=8192),
    "blocks-fresh-best": _best_on_fresh("loss", ".2f"),
    "blocks-fresh-best-steps": _best_on_fresh("step"),
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

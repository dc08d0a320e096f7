"""Tables and figures of several experiments, with the paper's numbers."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from launch.kit.views import Column, Lines, Results, Row, Table, groups, means

COLOURS = {  # distinguishable for colour-blind readers too
    "gd": "#e69f00",
    "gd++": "#009e73",
    "closed_form": "#000000",
    "constructed": "#56b4e9",
    "trained": "#0072b2",
    "warm": "#cc79a7",
    "interpolated": "#d55e00",
    "ridge": "#999999",
}
NAMES = {"gd": "GD", "gd++": "GD++", "closed_form": "closed form"}
LOSS = "loss (half mean square)"
STYLES = {name: {"color": colour, "label": NAMES.get(name, name)} for name, colour in COLOURS.items()}
READING = """Losses are half mean squared errors, means over seeds with their range in brackets. *GD* and *GD++* are K steps at
their best rates, tied across steps where the layers share weights; the best single layer is a *closed form*. *Constructed* are
attention weights that perform the reference, GD for one layer and GD++ for more; *interpolated* is the mean of trained and
constructed weights; *ridge* knows the noise. Cosines and differences compare with the reference. Numbers with a dagger were
measured with the paper's published code on 10,000 tasks, whose losses are 0.3 to 1.5 % above the population's."""
# The paper's numbers, d = N = 10 and inputs U(-1/2, 1/2), by (K, recurrent, predictor). The figures print few numbers.
PAPER_LOSS = {
    (1, True, "gd"): "0.2074†",
    (1, True, "trained"): "0.2076†",
    (1, True, "interpolated"): "0.2074†",
    (2, True, "gd"): "0.1588†",
    (2, True, "gd++"): "0.1116†",
    (5, False, "gd"): "0.1096†",
    (5, False, "gd++"): "0.0363† after 6000 of 30,000 steps",
}
BY_STEP = {"xlabel": "training step", "ylabel": f"validation {LOSS}", "yscale": "log"}
Models = Mapping[str, str]  # names of trained models in files and events, by label

_identity = (
    *("experiment", "task", "layers", "heads", "recurrent", "dim", "context", "predictor", "start"),
    *("training_tasks", "attention", "layernorm"),
)


def over_seeds(results: Results) -> list[Row]:
    """Rows over seeds as one row of means, with `number` and `losses`."""
    losses = [[row["loss"] for row in own] for own in groups(results.rows, _identity).values()]
    return [{**row, "losses": own} for row, own in zip(means(results.rows, _identity), losses, strict=True)]


def curve(results: Results, model: str) -> list[Row]:
    """The evaluations of a trained model by step, measures by seed."""
    return sorted((e for e in results.events("evaluation", "model", "step") if e["model"] == model), key=lambda e: e["step"])


def curves(results: Results, models: Models) -> list[Row]:
    """The evaluations of models as a series `trained`, and constant losses."""
    rows: list[Row] = []
    for label, model in models.items():
        rows += [{"label": label, "series": "trained", **entry} for entry in curve(results, model)]
        found = {event["predictor"]: event["loss"] for event in results.events("reference") if event["model"] == model}
        rows += [{"label": label, "series": name, "loss": loss} for name, loss in found.items()]
    return rows


def loss_by_step(name: str, models: Models | Callable[[Results], Models]) -> Lines:
    """The figure of validation losses by step, a panel for each model."""

    def rows(results: Results) -> list[Row]:
        return curves(results, models(results) if callable(models) else models)

    return Lines(name, "step", "loss", "series", "label", rows, STYLES, BY_STEP, sharey=True)


def _predictor(row: Row) -> str:
    starts = {"warm": " from the solution", "trained": " on the features of trained", "control": " on the features of control"}
    fitted = row["predictor"] == "closed_form" and row.get("reference") == "gd++"
    name = "GD++, separate rates" if fitted else NAMES.get(row["predictor"], row["predictor"])
    return name + starts.get(row.get("start") or "", "") + (f", {row['number']} seeds" if row["number"] > 1 else "")


def _layers(row: Row) -> str:
    return f"{row['layers']}" + ("" if row["layers"] < 2 else " recurrent" if row["recurrent"] else " separate")


def _paper_loss(row: Row) -> str:
    """The paper's loss in the same setting, for cold starts alone."""
    same = row["dim"] == row["context"] == 10 and row.get("start") in (None, "cold")
    same = same and row["experiment"] in ("one-step", "multi-step") and row.get("inputs", "uniform") == "uniform"
    return PAPER_LOSS.get((row["layers"], row["recurrent"], row["predictor"]), "") if same else ""


def _loss_with_range(row: Row) -> str:
    losses = row["losses"]
    return f"{row['loss']:#.5g}" + (f" ({min(losses):#.5g} to {max(losses):#.5g})" if len(losses) > 1 else "")


def _rates(values: Any, form: str) -> str:
    """A rate, or one per layer; of several γ the last has no effect."""
    kept = values[:-1] if form == ".3g" and isinstance(values, list) else values
    return "" if values is None else ", ".join(f"{rate:{form}}" for rate in np.ravel(kept))


_fields = {"task": ("task", "linear"), "K": (_layers, "1"), "heads": ("heads", "1"), "d": ("dim", None), "N": ("context", None)}
_forms = {
    ".5g": "initial_loss population_loss train_loss",
    ".4f": "adjusted_loss cosine model_difference prediction_difference",
    ".3f": "sensitivity_own sensitivity_next sensitivity_other",
    ".0e": "penalty",
}
_measures = [
    Column("loss", _loss_with_range),
    Column("paper", _paper_loss),
    *(Column(name.replace("_", " "), name, form) for form, names in _forms.items() for name in names.split()),
    Column("η/N", lambda row: _rates(None if row.get("eta") is None else np.divide(row["eta"], row["context"]), ".4g")),
    Column("γ", lambda row: _rates(row.get("gamma"), ".3g")),
    Column("steps", lambda row: row["steps"] or None),
    Column("seconds", "seconds", ".0f"),
]


def measures(names: Mapping[str, str] | None = None, note: str = "", tasks: Collection[str] = ()) -> Table:
    """A table of an experiment: varied fields, predictor and measures.

    Args:
        names: further fields, with their headings.
        note: a sentence below the table.
        tasks: values of the field `task` to show; default, all.
    """
    fields = {heading: (name, None) for name, heading in (names or {}).items()} | _fields

    def columns(rows: list[Row]) -> list[Column]:
        about = [
            Column(heading, value)
            for heading, (value, usual) in fields.items()
            if len({Column("", value).cell(row) for row in rows} | {usual} - {None}) > 1
        ]
        return [*about, Column("predictor", _predictor), *(c for c in _measures if any(map(c.cell, rows)))]

    return Table(columns, lambda results: over_seeds(results.where(task=tuple(tasks)) if tasks else results), note)


# Linear layers beside descent.
COMPARISON = measures(note=READING.replace("\n", " "))

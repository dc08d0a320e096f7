"""Tables and figures that several experiments of launch.icl show, with the paper's numbers beside ours."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from launch.icl.shared.base import LOSS, NAMES, STYLES
from launch.kit.rows import Results, Row, groups, means
from launch.kit.tables import Column
from launch.kit.views import Lines, Table

READING = """\
Losses are half mean squared errors, means over seeds with their range in brackets. *GD* and *GD++* are K steps at their best
rates, tied across steps where the layers share weights. Rates of several layers are fitted to the law of the inputs, by least
squares over the eigenvalues of --solver-contexts contexts; the best single layer is a *closed form*. *Constructed* are
attention weights that perform the reference; *interpolated* is the mean of trained and constructed weights; *ridge* knows the
noise. The *cosine* of sensitivities and the differences compare with the reference: GD for one layer, GD++ for more. Numbers
with a dagger were measured with the paper's published code on 10,000 tasks, whose losses are 0.3 to 1.5 % above the
population's; that code finds the rates of GD++ by Adam.
"""
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
    *("experiment", "task", "shift", "layers", "heads", "recurrent", "dim", "context"),
    *("predictor", "start", "training_tasks", "attention", "layernorm", "loops"),
)


def over_seeds(results: Results) -> list[Row]:
    """Rows that differ in the seed only as one row of means, with `number` of seeds and `losses` of each."""
    losses = [[row["loss"] for row in own] for own in groups(results.rows, _identity).values()]
    return [{**row, "losses": own} for row, own in zip(means(results.rows, _identity), losses, strict=True)]


def curve(results: Results, model: str) -> list[Row]:
    """The evaluations of a trained model by step; each measure is a list over seeds."""
    return sorted((e for e in results.events("evaluation", "model", "step") if e["model"] == model), key=lambda e: e["step"])


def reference_losses(results: Results, model: str) -> dict[str, float]:
    """The losses that a model is compared with, by predictor."""
    return {event["predictor"]: event["loss"] for event in results.events("reference") if event["model"] == model}


def curves(results: Results, models: Models) -> list[Row]:
    """The evaluations of models as a series `trained`; and, without a step, the losses that they are compared with."""
    rows: list[Row] = []
    for label, model in models.items():
        rows += [{"label": label, "series": "trained", **entry} for entry in curve(results, model)]
        rows += [{"label": label, "series": name, "loss": x} for name, x in reference_losses(results, model).items()]
    return rows


def loss_by_step(name: str, models: Models | Callable[[Results], Models]) -> Lines:
    """The figure of validation losses by step, a panel for each model."""

    def rows(results: Results) -> list[Row]:
        return curves(results, models(results) if callable(models) else models)

    return Lines(name, "step", "loss", "series", "label", rows, STYLES, BY_STEP, sharey=True)


def first_step(evaluations: list[Row], condition: Callable[[Row], Any]) -> int | None:
    """The first step whose evaluation meets a condition."""
    return next((entry["step"] for entry in evaluations if condition(entry)), None)


def first_steps(evaluations: list[Row], condition: Callable[[Row, int], Any]) -> list[int | None]:
    """By seed n, the first step whose evaluation meets a condition of it and n."""
    return [first_step(evaluations, lambda e, n=n: condition(e, n)) for n in range(len(evaluations[0]["loss"]))]


def kind_of(row: Row) -> str:
    """The number of layers, and whether they share weights."""
    return f"{row['layers']}" + ("" if row["layers"] < 2 else " recurrent" if row["recurrent"] else " separate")


def _predictor(row: Row) -> str:
    starts = {"warm": " from the solution", "trained": " on the features of trained", "control": " on the features of control"}
    seeds = f", {row['number']} seeds" if row["number"] > 1 else ""
    fitted = row["predictor"] == "closed_form" and row.get("reference") == "gd++"
    name = "GD++, separate rates" if fitted else str(NAMES.get(row["predictor"], row["predictor"]))
    return name + starts.get(row.get("start") or "", "") + seeds


def _paper_loss(row: Row) -> str:
    """The paper's loss in the same setting; nothing of a warm start and of other layers."""
    same = row["settings"] == "code" and row["dim"] == row["context"] == 10 and row.get("start") in (None, "cold")
    same = same and row["experiment"] in ("one-step", "multi-step", "scaling-N")
    return PAPER_LOSS.get((row["layers"], row["recurrent"], row["predictor"]), "") if same else ""


def _loss_with_range(row: Row) -> str:
    losses = row["losses"]
    return f"{row['loss']:#.5g}" + (f" ({min(losses):#.5g} to {max(losses):#.5g})" if len(losses) > 1 else "")


def _rates(values: Any, form: str) -> str:
    """A rate, or one per layer."""
    return ", ".join(f"{rate:{form}}" for rate in np.ravel(values))


def _eta(row: Row) -> str:
    return "" if row.get("eta") is None else _rates(np.divide(row["eta"], row["context"]), ".4g")


def _gamma(row: Row) -> str:
    """The last γ of several has no effect."""
    values = row.get("gamma")
    return "" if values is None else _rates(values[:-1] if isinstance(values, list) else values, ".3g")


_fields = {"task": ("task", "linear"), "K": (kind_of, "1"), "heads": ("heads", "1"), "d": ("dim", None), "N": ("context", None)}
_forms = {
    ".5g": "initial_loss population_loss train_loss kl_bigram",
    ".4f": "adjusted_loss loss_by_power cosine model_difference prediction_difference kl_truth kl_unigram",
    ".3f": "sensitivity_own sensitivity_next sensitivity_other previous matches",
    ".0e": "penalty",
}
_measures = [
    Column("loss", lambda row: _loss_with_range(row) if row["loss"] is not None else ""),
    Column("paper", _paper_loss),
    *(Column(name.replace("_", " "), name, form) for form, names in _forms.items() for name in names.split()),
    Column("η/N", _eta),
    Column("γ", _gamma),
    Column("steps", lambda row: row["steps"] or None),
    Column("seconds", "seconds", ".0f"),
]


def measures(
    names: Mapping[str, str] | None = None, rows: Callable[[Results], Any] = over_seeds, only: Collection[str] = ()
) -> Table:
    """A table of any experiment: the fields that vary, the predictor, and all measures that any row has.

    Args:
        names: further fields, with their headings.
        rows: what to show.
        only: headings of measures; default, all.
    """
    fields = {heading: (name, None) for name, heading in (names or {}).items()} | _fields
    chosen = [column for column in _measures if not only or column.heading in only]

    def columns(rows: list[Row]) -> list[Column]:
        about = [
            Column(heading, value)
            for heading, (value, usual) in fields.items()
            if len({Column("", value).cell(row) for row in rows} | {usual} - {None}) > 1
        ]
        return [*about, Column("predictor", _predictor), *(c for c in chosen if any(map(c.cell, rows)))]

    return Table(columns, rows)


# Linear layers beside descent.
COMPARISON = measures()


def _is_shown(row: Row) -> bool:
    """Whether the terminal shows a row: none of shifted tasks, shorter prefixes, other sizes, depths and loops."""
    match row["experiment"]:
        case "out-of-distribution" | "rollout":
            return False
        case "depths":
            return row["predictor"] == "gd++"
        case "looped":
            return row["loops"] == row["layers"]
        case "scaling-N" | "task-diversity":
            return row["predictor"] in (row.get("reference"), "trained")
    return row["prefix"] is None or (row.get("shift", "none") == "none" and row["prefix"] >= row["context"])


OVERVIEW = measures(
    {"experiment": "experiment", "training_tasks": "tasks"},
    lambda results: [row for row in over_seeds(results) if row["loss"] is not None and _is_shown(row)],
    only=("loss", "paper", "cosine", "γ", "seconds"),
)

"""Tables of an in-context learning run, for the terminal and for report.md, with the paper's numbers beside ours."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.tables import Column, markdown_table, rich_table
from launch.icl.config import BEYOND, LINEAR, RECENT

Row = dict[str, Any]
Rows = Sequence[Row]

# The paper's numbers, d = N = 10 and inputs U(-1/2, 1/2), by (K, recurrent, predictor). The figures print few numbers:
# those with a dagger were measured by running its published code.
PAPER_LOSS = {
    (1, True, "gd"): "0.2074†",
    (1, True, "trained"): "0.2076†",
    (1, True, "interpolated"): "0.2074†",
    (2, True, "gd"): "0.1588†",
    (2, True, "gd++"): "0.1116†",
    (5, False, "gd"): "0.1096†",
    (5, False, "gd++"): "0.0363†",
}
_identity = (
    *("experiment", "task", "shift", "layers", "heads", "recurrent", "dim", "context"),
    *("predictor", "start", "training_tasks", "attention", "layernorm", "loops"),
)


def mean_rows(rows: Rows) -> list[Row]:
    """Rows that differ in the seed only as one row of means, with `number` of seeds and `losses` of each.

    Example:
        >>> mean_rows([{"seed": n, "loss": loss} for n, loss in enumerate((1.0, 2.0))])
        [{'seed': 0, 'loss': 1.5, 'number': 2, 'losses': [1.0, 2.0]}]
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _identity), []).append(row)
    means = []
    for group in groups.values():
        mean = dict(group[0])
        for name in mean:
            if values := [row[name] for row in group if isinstance(row.get(name), float)]:
                mean[name] = float(np.mean(values))
        means.append(mean | {"number": len(group), "losses": [row["loss"] for row in group]})
    return means


def is_detail(row: Row) -> bool:
    """Whether a row is of a shifted prompt or of a shorter prefix; overview tables leave these out."""
    return row["prefix"] is not None and (row["shift"] != "none" or row["prefix"] < row["context"])


def kind_of(row: Row) -> str:
    """The number of layers, and whether they share weights."""
    return f"{row['layers']}" + ("" if row["layers"] == 1 else " recurrent" if row["recurrent"] else " separate")


def terminal_table(rows: Rows) -> Table:
    """The results for the terminal, means over seeds."""
    experiments = ("one-step", "multi-step", "depths", "curvature", "scaling-N", *BEYOND, *RECENT)
    hidden = (is_detail, _only_in_report, lambda row: row["loss"] is None)
    shown = [row for row in rows if row["experiment"] in experiments and not any(hide(row) for hide in hidden)]
    columns = [
        Column("", _setting),
        Column("predictor", lambda row: row["predictor"] + (f", {row['start']}" if row["start"] else "")),
        Column("loss", "loss", ".4g", bold=True),
        Column("paper", lambda row: f"[dim]{paper}[/]" if (paper := _paper_loss(row)) else "", "s"),
        Column("cosine", "cosine", ".4f"),
        Column("gamma", lambda row: None if isinstance(row["gamma"], list) else row["gamma"], ".3f"),
        Column("s", "seconds", ".0f"),
    ]
    return rich_table(columns, mean_rows(shown), title="loss (the paper's in grey)")


def comparison_table(rows: Rows) -> list[str]:
    """Linear layers beside descent, seeds as means with the range of the loss, in Markdown."""
    return markdown_table(
        [
            Column("K", kind_of),
            Column("d", "dim"),
            Column("N", "context"),
            Column("predictor", lambda row: row["predictor"] + (f", {row['start']} start, {_seeds(row)}" * bool(row["start"]))),
            Column("loss", _loss_with_range),
            Column("paper", _paper_loss),
            Column("above", "above_reference", "+.5f"),
            Column("cosine", "cosine", ".4f"),
            Column("model diff.", "model_difference", ".4f"),
            Column("prediction diff.", "prediction_difference", ".4f"),
            Column("η", _rates("eta"), ".4g"),
            Column("γ", _rates("gamma"), ".4g"),
            Column("steps", lambda row: row["steps"] or None),
            Column("seconds", "seconds", ".1f"),
        ],
        mean_rows(rows),
    )


_measures = (
    Column("loss", "loss", ".5g"),
    Column("before the layer", "initial_loss", ".5g"),
    Column("population", "population_loss", ".5g"),
    Column("training loss", "train_loss", ".5g"),
    Column("adjusted", "adjusted_loss", ".4f"),
    Column("loss / E[f²]", "loss_by_power", ".4f"),
    Column("cosine", "cosine", ".4f"),
    Column("model diff.", "model_difference", ".4f"),
    Column("prediction diff.", "prediction_difference", ".4f"),
    Column("same token", "sensitivity_own", ".3f"),
    Column("next token", "sensitivity_next", ".3f"),
    Column("other tokens", "sensitivity_other", ".3f"),
    Column("KL from P", "kl_truth", ".4f"),
    Column("from bigrams", "kl_bigram", ".5f"),
    Column("from unigrams", "kl_unigram", ".4f"),
    Column("previous state", "previous", ".3f"),
    Column("after the same", "matches", ".3f"),
    Column("penalty", "penalty", ".0e"),
    Column("seconds", "seconds", ".0f"),
)


def measures_table(rows: Rows, names: Mapping[str, str] | None = None) -> list[str]:
    """Rows of any experiment in Markdown: the fields that vary, the predictor, and all measures that any row has."""

    def predictor(row: Row) -> str:
        features = f" on the features of {row['start']}" if row["start"] in ("trained", "control") else ""
        return row["predictor"] + features + (f", {_seeds(row)}" if row["number"] > 1 else "")

    fields = {"task": "task", "layers": "K", "heads": "heads"} | dict(names or {})
    varying = [Column(heading, name) for name, heading in fields.items() if len({row.get(name) for row in rows}) > 1]
    measures = [c for c in _measures if any(row.get(str(c.value)) is not None for row in rows)]
    return markdown_table([*varying, Column("predictor", predictor), *measures], mean_rows(rows))


def _only_in_report(row: Row) -> bool:
    """Whether a row is one of many that only tables of their own experiment show: other sizes, numbers of tasks, depths
    and loops."""
    if row["experiment"] in ("scaling-N", "task-diversity"):
        return row["predictor"] not in (row.get("reference"), "trained")
    if row["experiment"] == "depths":
        return row["predictor"] != "gd++"
    return row["experiment"] == "looped" and row["loops"] != row["layers"]


def _setting(row: Row) -> str:
    """The experiment and its sizes, for the terminal."""
    if row["experiment"] == "scaling-N" and row["layers"] == 1:  # sizes d = N
        return f"K = 1, d = {row['dim']}"
    if row["experiment"] in LINEAR:
        return f"K = {row['layers']}, N = {row['context']}"
    heads = f", {row['heads']} heads" if row["heads"] > 1 and row["predictor"] == "trained" else ""
    task = f", {row['task']}" if row["task"] != "linear" or row["experiment"] == "function-classes" else ""
    size = f", {row['training_tasks']} tasks" if row.get("training_tasks") else ""
    return f"{row['experiment']}{task}{size}, K = {row['layers']}{heads}"


def _paper_loss(row: Row) -> str:
    comparable = row["settings"] == "code" and row["dim"] == row["context"] == 10 and row["start"] in (None, "cold")
    comparable &= row["task"] == "linear"
    return PAPER_LOSS.get((row["layers"], row["recurrent"], row["predictor"]), "") if comparable else ""


def _loss_with_range(row: Row) -> str:
    losses = row["losses"]
    return f"**{row['loss']:.5g}**" + (f" ({min(losses):.5g} to {max(losses):.5g})" if len(losses) > 1 else "")


def _seeds(row: Row) -> str:
    return f"{row['number']} seed" + "s" * (row["number"] > 1)


def _rates(name: str) -> Callable[[Row], Any]:
    """A rate, or one per layer."""
    return lambda row: ", ".join(f"{rate:.3g}" for rate in row[name]) if isinstance(row[name], list) else row[name]

"""Tables and curves that several experiments of launch.icl show, with the paper's numbers beside ours."""

from collections.abc import Callable, Mapping
from typing import Any

from jexplicit.runs.rows import Results, Row, groups, means
from jexplicit.runs.tables import Column
from jexplicit.runs.views import Table

# The paper's numbers, d = N = 10 and inputs U(-1/2, 1/2), by (K, recurrent, predictor). The figures print few numbers:
# those with a dagger were measured by running its published code, on 10,000 tasks.
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


def first_step(evaluations: list[Row], condition: Callable[[Row], Any]) -> int | None:
    """The first step whose evaluation meets a condition."""
    return next((entry["step"] for entry in evaluations if condition(entry)), None)


def first_steps(evaluations: list[Row], condition: Callable[[Row, int], Any]) -> list[int | None]:
    """By seed n, the first step whose evaluation meets a condition of it and n."""
    return [first_step(evaluations, lambda e, n=n: condition(e, n)) for n in range(len(evaluations[0]["loss"]))]


def kind_of(row: Row) -> str:
    """The number of layers, and whether they share weights."""
    return f"{row['layers']}" + ("" if row["layers"] == 1 else " recurrent" if row["recurrent"] else " separate")


def _seeds(row: Row) -> str:
    return f"{row['number']} seed" + "s" * (row["number"] > 1)


def _paper_loss(row: Row) -> str:
    comparable = row["settings"] == "code" and row["dim"] == row["context"] == 10 and row["start"] in (None, "cold")
    return PAPER_LOSS.get((row["layers"], row["recurrent"], row["predictor"]), "") if comparable else ""


def _rates(name: str) -> Callable[[Row], Any]:
    """A rate, or one per layer."""
    return lambda row: ", ".join(f"{rate:.3g}" for rate in row[name]) if isinstance(row[name], list) else row[name]


def _loss_with_range(row: Row) -> str:
    losses = row["losses"]
    return f"{row['loss']:.5g}" + (f" ({min(losses):.5g} to {max(losses):.5g})" if len(losses) > 1 else "")


def _setting(row: Row) -> str:
    """What was run, for the terminal."""
    heads = f", {row['heads']} heads" if row["heads"] > 1 and row["predictor"] == "trained" else ""
    tasks = f", {row['training_tasks']} tasks" if row.get("training_tasks") else ""
    task = f", {row['task']}" if row["task"] != "linear" else ""
    return f"{row['experiment']}{task}{tasks}, K = {row['layers']}, d = {row['dim']}, N = {row['context']}{heads}"


# Comparisons with descent: linear layers beside it, seeds as means with the range of the loss.
COMPARISON = Table(
    [
        Column("K", kind_of),
        Column("d", "dim"),
        Column("N", "context"),
        Column("predictor", lambda row: row["predictor"] + (f", {row['start']} start, {_seeds(row)}" * bool(row["start"]))),
        Column("loss", _loss_with_range, bold=True),
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
    over_seeds,
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


def measures(names: Mapping[str, str] | None = None, rows: Callable[[Results], Any] = over_seeds) -> Table:
    """A table of any experiment: the fields that vary, the predictor, and all measures that any row has."""
    fields = {"task": "task", "layers": "K", "heads": "heads"} | dict(names or {})

    def columns(rows: list[Row]) -> list[Column]:
        varying = [Column(heading, name) for name, heading in fields.items() if len({row.get(name) for row in rows}) > 1]
        return [*varying, Column("predictor", _predictor), *(c for c in _measures if any(row.get(c.value) for row in rows))]  # pyright: ignore[reportArgumentType, reportCallIssue]

    return Table(columns, rows)


def _predictor(row: Row) -> str:
    features = f" on the features of {row['start']}" if row["start"] in ("trained", "control") else ""
    return row["predictor"] + features + (f", {_seeds(row)}" if row["number"] > 1 else "")


def _on_terminal(results: Results) -> list[Any]:
    """Means over seeds without what only the report shows: shifted prompts, shorter prefixes, other sizes, depths and loops."""
    shown = []
    for row in over_seeds(results):
        detail = row["prefix"] is not None and (row.get("shift", "none") != "none" or row["prefix"] < row["context"])
        single = row["experiment"] not in ("scaling-N", "task-diversity") or row["predictor"] in (
            row.get("reference"),
            "trained",
        )
        deep = row["experiment"] == "depths" and row["predictor"] != "gd++"
        longer = row["experiment"] == "looped" and row["loops"] != row["layers"]
        if row["loss"] is not None and row["experiment"] not in ("out-of-distribution", "rollout") and single:
            shown += [] if detail or deep or longer else [row]
    return shown


OVERVIEW = Table(
    [
        Column("", _setting),
        Column("predictor", lambda row: row["predictor"] + (f", {row['start']}" if row["start"] else "")),
        Column("loss", "loss", ".4g", bold=True),
        Column("paper", _paper_loss),
        Column("cosine", "cosine", ".4f"),
        Column("gamma", lambda row: None if isinstance(row["gamma"], list) else row["gamma"], ".3f"),
        Column("s", "seconds", ".0f"),
    ],
    _on_terminal,
)

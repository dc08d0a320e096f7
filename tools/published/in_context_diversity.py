"""docs/in_context.md, few pretraining tasks or many."""

from collections.abc import Iterable
from typing import Any

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, only, read_events, where

_file = "icl-task-diversity"
_columns = {  # of the table of losses: predictor, and heads where these matter
    "one head: closed form without XᵀX and yᵀy": ("closed_form", 1),
    "one head, solved": ("solved", 1),
    "one head, trained": ("trained", 1),
    "11 heads, solved": ("solved", 11),
    "11 heads, trained": ("trained", 11),
    "dMMSE": ("dmmse", 1),
}
_measured_on = {"train_loss": "the M tasks", "loss": "fresh tasks"}


def _losses(rows: Iterable[Row]) -> list[Row]:
    """A line for each number of tasks that layers are trained on: losses on these tasks, then on fresh ones."""
    found = list(rows)
    numbers = sorted({row["training_tasks"] for row in where(found, predictor="trained")})
    lines = []
    for measure, name in _measured_on.items():
        for M in numbers:
            of_number = where(found, training_tasks=M)
            losses = {column: only(of_number, predictor=p, heads=h)[measure] for column, (p, h) in _columns.items()}
            lines.append({"on": name, "M": str(M), **losses})
    without_training = [column for column, (predictor, _) in _columns.items() if predictor in ("closed_form", "solved")]
    return [*lines, {"on": _measured_on["loss"], "M": "∞", **dict.fromkeys(without_training, _limit(found)["loss"])}]


def _limit(rows: Iterable[Row]) -> Row:
    """The best layer for all tasks."""
    return only([row for row in rows if "training_tasks" not in row])


def _loss(M: int, predictor: str, heads: int = 1) -> Value:
    """A loss on fresh tasks."""
    return Value(_file, "loss", ".2f", {"training_tasks": M, "predictor": predictor, "heads": heads})


def _above_limit(M: int) -> Value:
    """How many per cent the trained head is above the best layer for all tasks, on fresh ones."""

    def relative(rows: list[Row]) -> float:
        return 100 * (only(rows, training_tasks=M, predictor="trained", heads=1)["loss"] / _limit(rows)["loss"] - 1)

    return Value(_file, relative, ".1f")


def _largest_distance(measure: str, least: int = 0) -> Value:
    """How many per cent trained layers are from the solved ones of as many heads at most, from some number of tasks on."""

    def largest(rows: list[Row]) -> float:
        trained = [row for row in where(rows, predictor="trained") if row["training_tasks"] >= least]
        solved = [only(rows, predictor="solved", **{f: row[f] for f in ("training_tasks", "heads")}) for row in trained]
        return max(100 * abs(ours[measure] / theirs[measure] - 1) for ours, theirs in zip(trained, solved, strict=True))

    return Value(_file, largest, ".1f")


def _thresholds(_: Iterable[Row]) -> list[Row]:
    """A line for each dimension."""
    return [{**event, **event["thresholds"]} for event in sorted(read_events(_file, "threshold"), key=lambda e: e["dim"])]


def _threshold(kind: str) -> Value:
    """The threshold at d = 10."""
    return Value(_file, lambda _: only(read_events(_file, "threshold"), dim=10)["thresholds"][kind], ".0f")


def _nearer_to_ridge(rows: list[Row]) -> Any:
    """The number of tasks from which on the best head predicts as ridge regression does rather than dMMSE, on fresh tasks."""
    dmmse, ridge = ({row["training_tasks"]: row for row in where(rows, predictor=name)} for name in ("dmmse", "ridge"))
    further = [M for M in dmmse if ridge[M]["distance_to_solved"] > dmmse[M]["distance_to_solved"]]
    return min(M for M in dmmse if M > max(further, default=0))


TABLES = {
    "icl-diversity": Table(
        [_file],
        [Column("on", "on"), Column("M", "M"), *(Column(name, name, ".3f") for name in _columns)],
        rows=_losses,
    ),
    "icl-diversity-thresholds": Table(
        [_file],
        [
            Column("d = N", "dim", "d"),
            Column("limit of large d", "limit", ".0f"),
            Column("descent", "descent", ".0f"),
            Column("one head", "one_head", ".0f"),
            Column("all heads", "all_heads", ".0f"),
        ],
        rows=_thresholds,
        commands=False,
    ),
}
VALUES = {
    "diversity-own": _largest_distance("train_loss"),
    "diversity-fresh": _largest_distance("loss"),
    "diversity-fresh-8": _largest_distance("loss", least=8),
    "diversity-one-head": _threshold("one_head"),
    "diversity-limit": _threshold("limit"),
    "diversity-above-32": _above_limit(32),
    "diversity-above-128": _above_limit(128),
    "diversity-64": _loss(64, "solved"),
    "diversity-dmmse-64": _loss(64, "dmmse"),
    "diversity-4096": _loss(4096, "solved"),
    "diversity-dmmse-4096": _loss(4096, "dmmse"),
    "diversity-ridge": _loss(4096, "ridge"),
    "diversity-ridge-from": Value(_file, _nearer_to_ridge, "d"),
}

"""The section on blocks of attention and an MLP."""

from pathlib import Path

import numpy as np

from launch.icl import figures
from launch.icl.job import block_model
from launch.icl.panels import NAMES, Curve
from launch.icl.sections.run_files import draw_figure, first_step, step_or_never, training_curve
from launch.icl.tables import Rows, measures_table

_names = {"attention": "attention", "layernorm": "layer norm."}


def blocks(out: Path, rows: Rows) -> list[str]:
    """Blocks on fresh tasks, then on the same tasks again and again."""
    memory = [row for row in rows if row["training_tasks"]]
    many = max(row["layers"] for row in rows)
    fresh = [row for row in rows if row["layers"] == many and row not in memory]
    curves = {_kind(row): training_curve(out, block_model(row)) for row in fresh if row["predictor"] == "trained"}
    lines = measures_table(fresh, _names)
    if curves:
        lines += draw_figure(out, "blocks", figures.curves_figure, curves, _levels(fresh))
    if memory:
        few = [row for row in rows if row["layers"] == memory[0]["layers"] and (row in memory or not row.get("attention"))]
        curves = {_size(row): training_curve(out, block_model(row)) for row in memory}
        lines += ["The same training tasks again and again:", "", *measures_table(few, {"training_tasks": "training tasks"})]
        lines += [f"With {label}: {falls(curve)}." for label, curve in curves.items()] + [""]
        lines += draw_figure(out, "blocks_memory", figures.memory_figure, curves, _levels(few))
    return lines


def falls(curve: Curve) -> str:
    """The steps at which the mean loss on training tasks, and that on fresh ones, are parts of that at the start.

    Example:
        >>> falls([{"step": 0, "loss": [0.4]}, {"step": 9, "loss": [0.3], "training_loss": [0.15]}])
        'the loss is 1/2 and 1/4 of that at the start after these steps: 9, never on training tasks; never, never on fresh ones'
    """
    start, found = float(np.mean(curve[0]["loss"])), {}
    for what in ("training_loss", "loss"):
        steps = (first_step(curve[1:], lambda e, w=what, part=part: np.mean(e[w]) <= start / part) for part in (2, 4))
        found[what] = ", ".join(map(step_or_never, steps))
    beginning = "the loss is 1/2 and 1/4 of that at the start after these steps"
    return f"{beginning}: {found['training_loss']} on training tasks; {found['loss']} on fresh ones"


def _levels(rows: Rows) -> dict[str, float]:
    return {NAMES[row["predictor"]]: row["loss"] for row in rows if row["predictor"] in ("gd", "gd++")}


def _size(row: dict) -> str:
    return f"{row['training_tasks']} tasks, {row['layers']} block{'s' * (row['layers'] > 1)}"


def _kind(row: dict) -> str:
    return row["attention"] + (", layer normalisation" if row["layernorm"] else "")

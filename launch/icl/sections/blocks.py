"""The section on blocks of attention and an MLP."""

from pathlib import Path

import numpy as np

from launch.icl import figures
from launch.icl.job import block_model
from launch.icl.panels import Curve
from launch.icl.sections.run_files import draw_figure, first_step, named_losses, step_or_never, training_curve
from launch.icl.tables import Rows, measures_table

_names = {"attention": "attention", "layernorm": "layer norm."}


def blocks(out: Path, rows: Rows) -> list[str]:
    """Blocks on fresh tasks, then on the same tasks again and again."""
    fresh = [row for row in rows if row["training_tasks"] is None and row["layers"] == max(r["layers"] for r in rows)]
    memory = [row for row in rows if row["training_tasks"]]
    kinds = {_kind(row): block_model(row) for row in fresh if row["predictor"] == "trained"}
    curves = {kind: training_curve(out, model) for kind, model in kinds.items()}
    lines = measures_table(fresh, _names)
    if curves:
        levels = named_losses(out, next(iter(kinds.values())))
        lines += draw_figure(out, "blocks", figures.curves_figure, curves, levels)
    if memory:
        few = [row for row in rows if row["layers"] == memory[0]["layers"] and row not in fresh]
        lines += ["The same training tasks again and again:", "", *measures_table(few, {"training_tasks": "training tasks"})]
        models = {_size(row): block_model(row) for row in memory}
        curves = {label: training_curve(out, model) for label, model in models.items()}
        levels = named_losses(out, next(iter(models.values())))
        lines += [f"With {label}: {falls(curve)}." for label, curve in curves.items()] + [""]
        lines += draw_figure(out, "blocks_memory", figures.memory_figure, curves, levels)
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


def _size(row: dict) -> str:
    return f"{row['training_tasks']} tasks, {row['layers']} block{'s' * (row['layers'] > 1)}"


def _kind(row: dict) -> str:
    return row["attention"] + (", layer normalisation" if row["layernorm"] else "")

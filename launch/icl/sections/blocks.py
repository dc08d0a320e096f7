"""The section on blocks of attention and an MLP."""

from pathlib import Path

import numpy as np

from launch.icl import figures
from launch.icl.panels import Curve
from launch.icl.sections.run_files import draw_figure, first_step, named_losses, step_or_never, training_curve
from launch.icl.tables import Rows, measures_table

_names = {"attention": "attention", "layernorm": "layer norm."}


def blocks(out: Path, rows: Rows) -> list[str]:
    """Blocks on fresh tasks, then on the same tasks again and again."""
    fresh = [row for row in rows if row["training_tasks"] is None and row["layers"] == max(r["layers"] for r in rows)]
    memory = [row for row in rows if row["training_tasks"]]
    kinds = {_kind(row): _model(row) for row in fresh if row["predictor"] == "trained"}
    curves = {kind: training_curve(out, model) for kind, model in kinds.items()}
    lines = measures_table(fresh, _names)
    if curves:
        levels = named_losses(out, next(iter(kinds.values())))
        lines += draw_figure(out, "blocks", figures.curves_figure, curves, levels)
    if memory:
        few = [row for row in rows if row["layers"] == memory[0]["layers"] and row not in fresh]
        lines += ["The same training tasks again and again:", "", *measures_table(few, {"training_tasks": "training tasks"})]
        models = {f"{row['training_tasks']} tasks, {row['layers']} blocks": _model(row) for row in memory}
        curves = {label: training_curve(out, model) for label, model in models.items()}
        levels = named_losses(out, next(iter(models.values())))
        lines += [f"With {label}: {falls(curve)}." for label, curve in curves.items()] + [""]
        lines += draw_figure(out, "blocks_memory", figures.memory_figure, curves, levels)
    return lines


def falls(curve: Curve) -> str:
    """The steps at which the mean losses on training tasks and on fresh ones have fallen to parts of the loss at the start.

    Example:
        >>> falls([{"step": 0, "loss": [0.4]}, {"step": 9, "loss": [0.3], "training_loss": [0.1]}])
        'the loss falls to 1/2 of that at the start after 9 steps on training tasks, never on fresh ones; to 1/4 after 9, never'
    """
    start, steps = float(np.mean(curve[0]["loss"])), []
    for part in (2, 4):
        for what in ("training_loss", "loss"):
            steps.append(step_or_never(first_step(curve[1:], lambda e, w=what, p=part: np.mean(e[w]) <= start / p)))
    half = f"the loss falls to 1/2 of that at the start after {steps[0]} steps on training tasks, {steps[1]} on fresh ones"
    return f"{half}; to 1/4 after {steps[2]}, {steps[3]}"


def _kind(row: dict) -> str:
    return row["attention"] + (", layer normalisation" if row["layernorm"] else "")


def _model(row: dict) -> str:
    kind = row["attention"] + ("-layernorm" if row["layernorm"] else "")
    return f"blocks_{kind}" + (f"_{row['training_tasks']}_tasks" if row["training_tasks"] else "")

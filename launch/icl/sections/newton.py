"""The section on Newton's iteration: solved layers counted in its steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.figures import figure
from jexplicit.runs.results import read_events
from jexplicit.runs.tables import Column, markdown_table
from launch.icl.panels import COLOURS, LOSS, draw_legends, log_ticks
from launch.icl.sections.run_files import draw_figure, last_events
from launch.icl.tables import Rows

_lowest = 1e-9  # of the losses in the figure


def newton(out: Path, rows: Rows) -> list[str]:
    """A table of depths, the steps that a layer counts for, and the figure."""
    columns = [
        *(Column("inputs", "task"), Column("layers K", "layers"), Column("loss", "loss", ".3g")),
        Column("Newton's steps from M₀ = α I", "newton_steps_identity", ".1f"),
        Column("from M₀ = α A", "newton_steps_A", ".1f"),
    ]
    lines = [_sentence(task, [row for row in rows if row["task"] == task]) for task in dict.fromkeys(r["task"] for r in rows)]
    curves = {event["task"]: event for event in last_events(read_events(out, "newton"), "task")}
    return [*markdown_table(columns, rows), *lines, "", *draw_figure(out, "newton", newton_figure, curves)]


def steps_per_layer(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """How many steps from α I one more layer is worth, the slope of a straight line; None where too few layers were solved.

    Example:
        >>> rows = [{"layers": K, "newton_steps_identity": 3.0 * K} for K in (2, 3, 4)]
        >>> round(steps_per_layer(rows), 2)
        3.0
    """
    pairs = [(row["layers"], row["newton_steps_identity"]) for row in rows]
    known = np.array([pair for pair in pairs if pair[0] > 1 and pair[1] is not None])
    return None if len(known) < 2 else float(np.polyfit(known[:, 0], known[:, 1], 1)[0])


def _sentence(task: str, rows: Rows) -> str:
    steps = steps_per_layer(rows)
    if steps is None:
        return f"On {task} inputs too few layers were solved to tell."
    return f"On {task} inputs one more layer is worth {steps:.2f} steps from α I (Chebyshev rates, log₂ 9 = 3.17)."


def newton_figure(curves: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Loss by layers of GD++ and by steps of Newton's iteration, a panel for each kind of inputs (Fu et al. 2023, Fig. 2)."""
    series = {
        "layers": ("layers of GD++, solved", COLOURS["trained"], "o-"),
        "from_identity": ("Newton's steps, M₀ = α I", COLOURS["gd++"], ".-"),
        "from_A": ("Newton's steps, M₀ = α A", COLOURS["gd"], ".-"),
    }
    with figure(path, columns=len(curves), size=(4.4 * len(curves), 3.5), sharey=True) as axes:
        for ax, (task, by_series) in zip(axes[0], curves.items(), strict=True):
            for name, (label, colour, marks) in series.items():
                losses = np.array(by_series[name])
                shown, steps = losses > _lowest, np.arange(len(losses)) + (name == "layers")
                ax.plot(steps[shown], losses[shown], marks, color=colour, label=label, markersize=4)
            ax.set(xlabel="layers or steps", yscale="log", title=f"{task} inputs")
            log_ticks(ax)
        axes[0, 0].set_ylabel(LOSS)
        draw_legends(axes[0, 0])

"""The section on layers that estimate a regression online: a table of estimators, and one figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.figures import COLOURS as PALETTE
from jexplicit.runs.figures import figure, legend_below
from jexplicit.runs.results import read_events
from jexplicit.runs.tables import Column, markdown_table
from launch.icl.panels import LOSS, log_ticks
from launch.icl.sections.run_files import draw_figure, last_events
from launch.icl.tables import Rows

RIDGE = "Σ γᵗ⁻ˢ ‖v_s - W k_s‖² + tr W Λ Wᵀ"
ESTIMATORS = {  # what each minimises, how it proceeds at a token, and its colour
    "linear attention": ("-vᵀ W k", "W + v kᵀ", PALETTE[6]),
    "delta rule": ("½ ‖v - W k‖²", "W + β (v - W k) kᵀ", PALETTE[4]),
    "delta rule, best rates": ("½ ‖v - W k‖²", "the same with the best β_t", PALETTE[1]),
    "mesa, Sherman-Morrison": (RIDGE + ", Λ decaying as γᵗ", "rank one, of the inverse", PALETTE[3]),
    "mesa, recursion": (RIDGE, "rank one, of the inverse's square root", PALETTE[0]),
    "mesa, conjugate gradients": (RIDGE, "steps of conjugate gradients, by chunks", PALETTE[2]),
    "ridge": ("Σ ‖v_s - W k_s‖² + tr W Λ Wᵀ", "a solve at every token", "black"),
    "Kalman filter": ("the posterior given the drift", "rank one, of the covariance", PALETTE[5]),
}


def mesa(out: Path, rows: Rows) -> list[str]:
    rounding = [row for row in rows if row["task"] == "rounding"]
    tasks = list(dict.fromkeys(row["task"] for row in rows if row["task"] != "rounding"))
    positions = last_events(read_events(out, "positions"), "task", "predictor")
    errors = last_events(read_events(out, "rounding"), "inputs", "forgetting", "predictor")
    image = draw_figure(out, "mesa", mesa_figure, positions, errors)
    note = (
        "Layers as estimators of a regression of values on keys (Wang et al. 2025); mesa layers solve it at every token (von "
        "Oswald et al. 2023, 2025). The loss at the end is half the mean squared error of one output after the last pair, with "
        "its expectation in closed form in brackets. *float32 error* is the largest over all tokens of one long sequence with "
        "white keys, relative to the outputs."
    )
    still = "Largest relative error of float32 by keys, and the first token at which it is above 10 %:"
    return [note, *_estimators_table(rows, rounding, tasks), still, *_rounding_table(rounding), *image]


def _estimators_table(rows: Rows, rounding: Rows, tasks: list[str]) -> list[str]:
    table = []
    for name, (objective, update, _) in ESTIMATORS.items():
        first = [row for row in rounding if row["predictor"] == name and row["inputs"] == "white" and row["forgetting"] == 1]
        ends = {
            row["task"]: _loss_with_expectation(row) for row in rows if row["predictor"] == name and row["loss"] is not None
        }
        measured = {what: first[0][what] for what in ("float32_error", "seconds")} if first else {}
        table.append({"estimator": name, "objective": objective, "update": update, **measured, **ends})
    tokens = f"{rounding[0]['context']:,} tokens"
    columns = [Column(name, name) for name in ("estimator", "objective", "update")]
    columns += [Column(f"float32 error, {tokens}", "float32_error", ".1e")]
    columns += [Column(f"loss at the end: {task}", task) for task in tasks]
    columns += [Column(f"CPU seconds, {tokens}", "seconds", ".3f")]
    return markdown_table(columns, table)


def _loss_with_expectation(row: Mapping[str, Any]) -> str:
    expected = "" if row["population_loss"] is None else f" ({row['population_loss']:.5f})"
    return f"{row['loss']:.5f}{expected}"


def _rounding_table(rounding: Rows) -> list[str]:
    by_setting: dict[tuple[str, float], dict[str, Any]] = {}
    names = list(dict.fromkeys(row["predictor"] for row in rounding))
    for row in rounding:
        entry = by_setting.setdefault((row["inputs"], row["forgetting"]), {})
        error = "not finite" if row["float32_error"] is None else f"{row['float32_error']:.1e}"
        entry[row["predictor"]] = error + ("" if row["fails_at"] is None else f", token {row['fails_at']:,}")
    columns = [Column("keys", "keys"), Column("γ", "gamma", "g"), *(Column(name, name) for name in names)]
    return markdown_table(columns, ({"keys": k, "gamma": g, **entry} for (k, g), entry in by_setting.items()))


def mesa_figure(positions: list[dict[str, Any]], errors: list[dict[str, Any]], path: Path) -> None:
    """Loss by position, a panel for each task, and the growth of rounding errors, by keys and forgetting."""
    tasks = list(dict.fromkeys(event["task"] for event in positions))
    settings = list(dict.fromkeys((event["inputs"], event["forgetting"]) for event in errors))
    columns = max(len(tasks), -(-len(settings) // 2))
    with figure(path, rows=3, columns=columns, size=(2.7 * columns, 7.5)) as axes:
        for ax, task in zip(axes[0], tasks, strict=False):
            _draw_losses(ax, [event for event in positions if event["task"] == task])
            ax.set(xscale="log", yscale="log", xlabel="pairs seen")
            ax.set_title(task, fontsize=10)
            log_ticks(ax)
        axes[0, 0].set_ylabel(LOSS)
        for row, gamma in zip(axes[1:], dict.fromkeys(gamma for _, gamma in settings), strict=True):
            inputs = [keys for keys, other in settings if other == gamma]
            for ax in row[len(inputs) :]:
                ax.axis("off")
            for ax, keys in zip(row, inputs, strict=False):
                shown = [event for event in errors if (event["inputs"], event["forgetting"]) == (keys, gamma)]
                for event in shown:
                    values = np.array([np.nan if e is None else e for e in event["errors"]], float)
                    label, colour = event["predictor"], ESTIMATORS[event["predictor"]][2]
                    ax.plot(event["tokens"], values, color=colour, label=label)
                    if len(finite := np.flatnonzero(np.isfinite(values))) < len(values) and len(finite):
                        ax.plot(event["tokens"][finite[-1]], values[finite[-1]], "x", color=colour, markersize=9)
                ax.set(xscale="log", yscale="log", xlabel="tokens")
                ax.set_title(f"{keys}, γ = {gamma:g}", fontsize=10)
                ax.set_ylim(bottom=1e-8, top=min(ax.get_ylim()[1], 1e3))
            row[0].set_ylabel("largest float32 error")
        legend_below(axes)


def _draw_losses(ax: Any, events: list[dict[str, Any]]) -> None:
    """Losses as lines, expectations in closed form as dots."""
    for event in events:
        name = event["predictor"]
        style = {"linestyle": ":", "linewidth": 2.5} if name in ("ridge", "mesa, conjugate gradients") else {}
        at = np.arange(1, len(event["losses"]) + 1)
        ax.plot(at, event["losses"], color=ESTIMATORS[name][2], label=name, **style)
        if event["expected"] and name != "ridge":
            few = np.unique(np.geomspace(1, len(at), 9).astype(int)) - 1
            ax.plot(at[few], np.array(event["expected"])[few], "o", color=ESTIMATORS[name][2], markersize=3.5)

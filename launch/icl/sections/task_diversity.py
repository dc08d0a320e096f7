"""The section on task diversity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icl.problems.task_diversity import crossing
from jexplicit.runs.figures import COLOURS as PALETTE
from jexplicit.runs.figures import figure, legend_outside
from jexplicit.runs.results import read_events
from jexplicit.runs.tables import Column, markdown_table
from launch.icl.panels import COLOURS, LOSS, log_ticks
from launch.icl.sections.run_files import draw_figure, last_events
from launch.icl.tables import Rows, mean_rows

By = Mapping[str, Mapping[int, dict[str, Any]]]  # predictor -> number of tasks -> row


def lines(out: Path, rows: Rows) -> list[str]:
    """Losses on the pretraining tasks and on fresh ones, and thresholds by dimension."""
    by = _by_predictor(rows)
    limit = next(row["loss"] for row in rows if row["training_tasks"] is None)
    events = last_events(read_events(out, "threshold"), "dim")
    own = next(event for event in events if event["dim"] == rows[0]["dim"])
    image = draw_figure(out, "task_diversity", diversity_figure, by, limit, own["thresholds"]["one_head"])
    shown = []
    for what, measure in (("On the pretraining tasks", "train_loss"), ("On fresh tasks", "loss")):
        shown += [f"{what}, by the number M of pretraining tasks:", *_loss_table(by, measure)]
    note = (
        f"Linear layers without training are exact. *closed form* leaves out XᵀX and yᵀy; for all tasks it has {limit:.4f}, as "
        "have all solved layers. dMMSE is the Bayes optimum for the M tasks, ridge for all."
    )
    distances = (
        f"Trained layers are within {_largest(by, 'train_loss'):.1%} of the solved ones on the pretraining tasks, and within "
        f"{_largest(by, 'loss'):.1%} on fresh ones. {_nearer(by)}"
    )
    tolerance = f"{own['tolerance']:.0%} above all tasks', mean over {own['draws']} draws of tasks"
    thresholds = [f"The M from which on the loss on fresh tasks is less than {tolerance}:", *_threshold_table(events)]
    return [note, "", *shown, distances, "", *thresholds, *image]


def _by_predictor(rows: Rows) -> By:
    by: dict[str, dict[int, dict[str, Any]]] = {}
    for row in mean_rows([row for row in rows if row["training_tasks"] is not None]):
        heads = "" if row["predictor"] not in ("solved", "trained") else ", one head" if row["heads"] == 1 else ", all heads"
        by.setdefault(row["predictor"] + heads, {})[row["training_tasks"]] = row
    return by


def _loss_table(by: By, measure: str) -> list[str]:
    numbers = sorted({M for found in by.values() for M in found})
    losses = [{"M": M} | {name: found[M][measure] for name, found in by.items() if M in found} for M in numbers]
    columns = [Column("M", "M"), *(Column(name.replace("_", " "), name, ".4f") for name in by)]
    return markdown_table(columns, losses)


def _threshold_table(events: list[dict[str, Any]]) -> list[str]:
    def value(name: str) -> Any:
        return lambda event: "not reached" if event["thresholds"][name] is None else f"{event['thresholds'][name]:.0f}"

    names = {
        "limit": "closed form, limit of large d",
        "descent": "closed form",
        "one_head": "one head",
        "all_heads": "all heads",
    }
    columns = [Column("d", "dim"), Column("N", "context"), *(Column(label, value(name)) for name, label in names.items())]
    return markdown_table(columns, sorted(events, key=lambda event: event["dim"]))


def _largest(by: By, measure: str) -> float:
    """The largest distance of a trained layer from the solved one of as many heads, relative to it."""
    return max(
        abs(row[measure] / by[f"solved, {heads}"][M][measure] - 1)
        for heads in ("one head", "all heads")
        for M, row in by.get(f"trained, {heads}", {}).items()
    )


def _nearer(by: By) -> str:
    """From which M on the best head predicts fresh tasks as ridge regression does, and has a lower loss than dMMSE."""
    numbers = sorted(by["dmmse"])
    ratios = {
        "its predictions are nearer to ridge regression's than to dMMSE's": [
            by["ridge"][M]["distance_to_solved"] / by["dmmse"][M]["distance_to_solved"] for M in numbers
        ],
        "its loss is lower than dMMSE's": [by["solved, one head"][M]["loss"] / by["dmmse"][M]["loss"] for M in numbers],
    }
    found = {what: crossing(numbers, values, 1.0) for what, values in ratios.items()}
    said = [f"{what} {'for no M' if M is None else f'from M = {M:.0f} on'}" for what, M in found.items()]
    return f"On fresh tasks {' and '.join(said)} (one head)."


def diversity_figure(by: By, limit: float, threshold: float | None, path: Path) -> None:
    """Loss on the pretraining tasks and on fresh ones by their number (Raventós et al. 2023, Fig. 2)."""
    styles: dict[str, dict[str, Any]] = {
        "dmmse": {"color": PALETTE[4], "linestyle": "--", "label": "dMMSE, Bayes for these tasks"},
        "ridge": {"color": COLOURS["ridge"], "linestyle": "--", "label": "ridge, Bayes for all tasks"},
        "closed_form": {"color": COLOURS["closed_form"], "linestyle": ":", "label": "closed form, descent"},
        "solved, one head": {"color": COLOURS["trained"], "label": "solved, one head"},
        "solved, all heads": {"color": COLOURS["gd++"], "label": "solved, all heads"},
        "trained, one head": {
            "color": COLOURS["trained"],
            "marker": "o",
            "markersize": 7,
            "linestyle": "",
            "label": "trained, one head",
        },
        "trained, all heads": {
            "color": COLOURS["gd++"],
            "marker": "s",
            "markersize": 4,
            "linestyle": "",
            "label": "trained, all heads",
        },
    }
    with figure(path, columns=2, size=(9, 3.8)) as axes:
        panels = (("train_loss", "on the pretraining tasks"), ("loss", "on fresh tasks"))
        for ax, (measure, title) in zip(axes[0], panels, strict=True):
            for name, style in styles.items():
                numbers = sorted(by.get(name, {}))
                ax.plot(numbers, [by[name][M][measure] for M in numbers], **style)
            ax.set(xlabel="pretraining tasks M", title=title)
            ax.set_xscale("log", base=2)
            if threshold:
                ax.axvline(threshold, color="black", linewidth=0.8, label=f"threshold, M = {threshold:.0f}")
        fresh = axes[0, 1]
        fresh.axhline(limit, color="black", linewidth=0.8, linestyle="-.", label=f"M = ∞, {limit:.3f}")
        losses = [row["loss"] for name in ("ridge", "closed_form", "dmmse") for row in by[name].values()]
        fresh.set_yscale("log")
        fresh.set_ylim(0.8 * min(losses), 1.5 * max(losses))  # all heads for one task are far above
        log_ticks(fresh)
        axes[0, 0].set_ylabel(LOSS)
        legend_outside(axes[0, 1])

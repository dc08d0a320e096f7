"""The section on depth: the loss of 1, 2, .. K layers that were solved."""

from collections.abc import Mapping
from pathlib import Path

from jexplicit.runs.figures import figure
from jexplicit.runs.tables import Column, markdown_table
from launch.icl.panels import COLOURS, LOSS, draw_legends, log_ticks
from launch.icl.sections.run_files import draw_figure
from launch.icl.tables import Rows

_series = {
    ("gd", True): ("GD, one rate", COLOURS["gd"], "o-"),
    ("gd++", True): ("GD++, recurrent", COLOURS["gd++"], "o-"),
    ("gd++", False): ("GD++, separate rates", COLOURS["trained"], "o-"),
    ("chebyshev", False): ("Chebyshev rates, in closed form", COLOURS["closed_form"], "x:"),
}
Losses = Mapping[tuple[str, bool], Mapping[int, float]]  # (predictor, recurrent) -> layers -> loss


def depths(out: Path, rows: Rows) -> list[str]:
    """Losses by depth, a column for each kind of layers, and the figure."""
    losses: dict[tuple[str, bool], dict[int, float]] = {}
    for row in rows:
        losses.setdefault((row["predictor"], row["recurrent"]), {})[row["layers"]] = row["loss"]
    columns = [Column("K", "layers")]
    columns += [Column(label, label, ".3g") for label, _, _ in _series.values()]
    columns += [Column("standard error, separate rates", "standard_error", ".1g"), Column("seconds", "seconds", ".0f")]
    separate = {row["layers"]: row for row in rows if row["predictor"] == "gd++" and not row["recurrent"]}
    table = [
        {"layers": K, "standard_error": row["standard_error"], "seconds": row["seconds"]}
        | {label: losses[key][K] for key, (label, _, _) in _series.items()}
        for K, row in sorted(separate.items())
    ]
    lines = ["Losses on fresh contexts, expected over weights and queries. The seconds are those of all depths together."]
    return [*lines, *markdown_table(columns, table), *draw_figure(out, "depths", depths_figure, losses)]


def depths_figure(losses: Losses, path: Path) -> None:
    """Loss by the number of layers."""
    with figure(path, size=(5.6, 3.8)) as axes:
        ax = axes[0, 0]
        for key, by_layers in losses.items():
            label, colour, marks = _series[key]
            ax.plot(by_layers.keys(), by_layers.values(), marks, color=colour, label=label, markersize=4)
        ax.set(xlabel="layers K", ylabel=LOSS, yscale="log")
        ax.set_xticks(sorted(next(iter(losses.values()))))
        log_ticks(ax)
        draw_legends(ax)

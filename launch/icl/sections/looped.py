"""The section on looped layers: loss by loops, for layers solved or trained for some number of them."""

from pathlib import Path

import numpy as np

from jexplicit.runs.figures import COLOURS as PALETTE
from jexplicit.runs.figures import figure
from jexplicit.runs.tables import Column, markdown_table
from launch.icl.panels import LOSS, draw_legends, log_ticks, size_ticks
from launch.icl.sections.run_files import draw_figure
from launch.icl.tables import Rows

_titles = {"gd": "GD, solved", "gd++": "GD++, solved", "trained": "trained"}


def looped(out: Path, rows: Rows) -> list[str]:
    """A table of losses by loops run, a row for each layer, and the figure."""
    layers: dict[tuple[str, int], dict[int, list[float]]] = {}
    for row in rows:
        by_loops = layers.setdefault((row["predictor"], row["layers"]), {})
        by_loops.setdefault(row["loops"], []).append(np.inf if row["loss"] is None else row["loss"])
    loops = sorted({row["loops"] for row in rows})
    columns = [Column("layer", "layer"), *(Column(f"{n} loops", str(n), ".4g") for n in loops)]
    table = [
        {"layer": f"{_titles[name]} for {K}"} | {str(n): float(np.mean(losses)) for n, losses in by_loops.items()}
        for (name, K), by_loops in layers.items()
    ]
    return [*markdown_table(columns, table), *draw_figure(out, "looped", looped_figure, layers)]


def looped_figure(layers: dict[tuple[str, int], dict[int, list[float]]], path: Path) -> None:
    """Loss by loops run, a panel for GD and one for GD++, with a mark where each layer was solved for."""
    colours = dict(zip(sorted({K for _, K in layers}), PALETTE, strict=False))
    panels = {"gd": ("gd",), "gd++": ("gd++", "trained")}
    with figure(path, columns=2, size=(9.0, 3.6), sharey=True) as axes:
        for ax, (name, shown) in zip(axes[0], panels.items(), strict=True):
            chosen = {key: by_loops for key, by_loops in layers.items() if key[0] in shown}
            for (what, K), by_loops in chosen.items():
                mean = {loops: float(np.mean(losses)) for loops, losses in by_loops.items()}
                style = {"color": colours[K], "linestyle": "-"} if what != "trained" else {"color": "black", "linestyle": "--"}
                ax.plot(mean.keys(), mean.values(), label=f"{'trained' if what == 'trained' else 'solved'} for {K}", **style)
                ax.plot([K], [mean[K]], "o", color=style["color"])
            ax.set(xscale="log", yscale="log", xlabel="loops run", title=_titles[name].split(",")[0], ylim=(5e-3, 10))
            size_ticks(ax, sorted(next(iter(chosen.values()))))
            log_ticks(ax)
        axes[0, 0].set_ylabel(LOSS)
        draw_legends(*axes[0])

"""Figure of a bench: how fast each method is against a named peer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jexplicit.runs.figures import STYLE, plt, save_figure

_ours, _other = "#0072b2", "#999999"


def ratio_bars(rows: Sequence[dict[str, Any]], *, ratio: str, ours: Sequence[str], label: str, path: Path) -> None:
    """One panel per radius, one bar per method: its median paired ratio, with the peer at 1.

    Args:
        rows: of results.json, with `radius`, `method` and the ratio.
        ratio: the field to draw.
        ours: the methods to colour.
        label: of the axis.
        path: where to write the figure.
    """
    radii = sorted({row["radius"] for row in rows})
    most = max(sum(row["radius"] == radius for row in rows) for radius in radii)
    style: dict[Any, Any] = {**STYLE, "axes.grid": False}
    with plt.rc_context(style):
        size = (3.6 * len(radii) + 1.8, 0.36 * most + 1.3)
        fig, axes = plt.subplots(1, len(radii), figsize=size, squeeze=False)
        for ax, radius in zip(axes.flat, radii, strict=True):
            shown = [row for row in rows if row["radius"] == radius]
            colours = [_ours if row["method"] in ours else _other for row in shown]
            bars = ax.barh([row["method"] for row in shown], [row[ratio] for row in shown], color=colours)
            ax.bar_label(bars, fmt="{:.2f}", padding=3, fontsize=8)
            ax.axvline(1, color="black", linewidth=1, linestyle="--")
            ax.invert_yaxis()
            ax.margins(x=0.15)
            ax.set(title=f"K = {radius}", xlabel=label)
        save_figure(fig, path)

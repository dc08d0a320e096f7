"""Figure of a bench: how fast each method is against a named peer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jexplicit.runs.figures import STYLE, plt, save_figure

_ours, _other = "#0072b2", "#999999"


def ratio_bars(
    rows: Sequence[dict[str, Any]], *, ratio: str, ours: Sequence[str], label: str, path: Path, size: str = "radius"
) -> None:
    """One panel per size (and batch size), one bar per method: its median paired ratio, with the peer at 1.

    Args:
        rows: of results.json, with the size, perhaps several of `batch_size`, `method` and the ratio.
        ratio: the field to draw.
        ours: the methods to colour.
        label: of the axis.
        path: where to write the figure.
        size: the field that has the K of a panel.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row[size], row.get("batch_size", 0))):
        title = f"K = {row[size]}" + (f", batch size {row['batch_size']}" if "batch_size" in row else "")
        panels.setdefault(title, []).append(row)
    most = max(map(len, panels.values()))
    style: dict[Any, Any] = {**STYLE, "axes.grid": False}
    with plt.rc_context(style):
        inches = (3.6 * len(panels) + 1.8, 0.36 * most + 1.3)
        fig, axes = plt.subplots(1, len(panels), figsize=inches, squeeze=False)
        for ax, (title, shown) in zip(axes.flat, panels.items(), strict=True):
            colours = [_ours if row["method"] in ours else _other for row in shown]
            bars = ax.barh([row["method"] for row in shown], [row[ratio] for row in shown], color=colours)
            ax.bar_label(bars, fmt="{:.2f}", padding=3, fontsize=8)
            ax.axvline(1, color="black", linewidth=1, linestyle="--")
            ax.invert_yaxis()
            ax.margins(x=0.15)
            ax.set(title=title, xlabel=label)
        save_figure(fig, path)

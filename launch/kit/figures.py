"""Figures of a run, drawn from its files only."""

import contextlib
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")  # safe for colour-blind readers
FEW = 12  # points of a line with markers, and values on a log axis with one tick each


@contextlib.contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any) -> Iterator[np.ndarray]:
    """A figure in the project's style, written to `path`; yields the axes.

    Log axes with values that have no logarithm become symmetrical log axes. size: inches. options: of matplotlib's `subplots`.
    """
    import matplotlib
    import matplotlib.pyplot as plt  # half a second, which commands that draw nothing need not wait for

    matplotlib.use("Agg")
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Data has no positive values")  # _show_zeros changes the scale
        fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **options)
        try:
            yield axes
            for ax in axes.flat:
                _show_zeros(ax)
                _whole_ticks(ax)
            path.parent.mkdir(parents=True, exist_ok=True)
            fig.savefig(path)
        finally:
            plt.close(fig)


def legend_outside(ax: Any, **options: Any) -> None:
    """A small legend to the right of a panel."""
    ax.legend(**{"fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False, **options})


def legend_below(axes: np.ndarray, **options: Any) -> None:
    """One small legend below all panels, with each label once."""
    labelled = [ax.get_legend_handles_labels() for ax in axes.flat]
    handles = {name: handle for handles, names in labelled for handle, name in zip(handles, names, strict=True)}
    shared = {"fontsize": 8, "loc": "outside lower center", "ncols": 4, "frameon": False, **options}
    axes.flat[0].figure.legend(handles.values(), handles.keys(), **shared)


def log_ticks(ax: Any, which: str = "y", places: Collection[float] = ()) -> None:
    """Plain numbers on a log axis, at given places or by decades."""
    low, high = getattr(ax, f"get_{which}lim")()
    decades, axis = np.log10(high / low) if low > 0 else np.inf, getattr(ax, f"{which}axis")
    subs = (1, 1.5, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
    few = 0 < len(places) <= FEW and all(float(f"{x:.4g}") == x for x in places)
    axis.set_major_locator(FixedLocator(sorted(places)) if few else LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _show_zeros(ax: Any) -> None:
    """Make a log axis linear near 0 if its lines reach 0."""
    for n, axis in enumerate((ax.xaxis, ax.yaxis)):
        lines = [line for line in ax.get_lines() if line.get_transform().contains_branch_seperately(ax.transData)[n]]
        data = np.concatenate([np.asarray(line.get_data()[n], float) for line in lines] or [np.zeros(0)])
        if axis.get_scale() != "log" or not (data <= 0).any():
            continue
        positive = data[(data > 0) & np.isfinite(data)]
        set_scale = (ax.set_xscale, ax.set_yscale)[n]
        set_scale("symlog", linthresh=positive.min()) if len(positive) else set_scale("linear")


def _whole_ticks(ax: Any) -> None:
    """Integer ticks on a linear axis whose values are all integers, such as layers."""
    numbers = np.concatenate([np.asarray(line.get_xdata(), float) for line in ax.get_lines()] or [np.zeros(0)])
    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, MaxNLocator) and len(np.unique(numbers)) > 2 and not (numbers % 1).any():
        locator.set_params(integer=True)

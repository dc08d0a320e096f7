"""What the figures of an in-context learning run share: colours, names, curves with bands, matrices, ticks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.ticker import LogLocator, NullLocator

COLOURS = {  # distinguishable for colour-blind readers too
    "gd": "#e69f00",
    "gd++": "#009e73",
    "closed_form": "#000000",
    "constructed": "#56b4e9",
    "trained": "#0072b2",
    "warm": "#cc79a7",
    "interpolated": "#d55e00",
    "ridge": "#999999",
}
NAMES = {"gd": "GD", "gd++": "GD++", "closed_form": "closed form", "trained": "trained", "interpolated": "interpolated"}
LOSS = "loss (half mean square)"

Curve = Sequence[Mapping[str, Any]]  # evaluations with `step` and, for each measure, a list over seeds
Sweeps = Mapping[str, tuple[Sequence[float], np.ndarray]]  # predictor -> (values, losses [seeds, values])


def draw_band(ax: Any, x: Any, values: np.ndarray, colour: str, label: str | None, **style: Any) -> None:
    """The mean over seeds of values [seeds, x] as a line, their range as a band."""
    ax.plot(x, values.mean(axis=0), color=colour, label=label, **style)
    ax.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)


def draw_curve(ax: Any, curve: Curve, what: str, colour: str, label: str | None, **style: Any) -> None:
    """A measure by training step."""
    draw_band(ax, [entry["step"] for entry in curve], np.array([entry[what] for entry in curve]).T, colour, label, **style)


def draw_levels(ax: Any, levels: Mapping[str, float]) -> None:
    """Losses to compare with, as horizontal lines."""
    for n, (label, loss) in enumerate(levels.items()):
        style = {"linestyle": ("--", ":", "-.")[n % 3], "linewidth": 1}
        ax.axhline(loss, color="black", label=f"{label} {loss:.4g}", **style)


def draw_matrix(ax: Any, values: np.ndarray, limit: float, *, scale: bool = True) -> None:
    """A matrix as an image, red for positive and blue for negative entries, with or without its scale beside it."""
    ax.grid(False)
    image = ax.imshow(values, cmap="RdBu_r", norm=TwoSlopeNorm(0, -limit, limit))
    ax.set(xticks=[], yticks=[])
    if scale:
        ax.figure.colorbar(image, ax=ax, shrink=0.75)


def draw_legends(*axes: Any, **options: Any) -> None:
    for ax in axes:
        ax.legend(**{"fontsize": 8, "frameon": False, **options})


def size_ticks(ax: Any, sizes: Sequence[int]) -> None:
    """A tick at every size."""
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()


def log_ticks(ax: Any) -> None:
    """Plain numbers on a log axis, more of them the fewer decades the losses span."""
    low, high = ax.get_ylim()
    decades = np.log10(high / low)
    subs = (1, 1.5, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")

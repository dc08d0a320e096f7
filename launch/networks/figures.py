"""Figures of a run of launch.networks, drawn from its files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.figures import STYLE, plain_ticks, plt, save_figure

_colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]  # for colour-blind readers


def curves_figure(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    path: Path,
    *,
    label: str,
    levels: Mapping[str, float] | None = None,
    log: bool = True,
) -> None:
    """Training curves, a panel per comparison.

    Args:
        panels: title -> name -> (step, value) by epoch.
        path: where to write the figure.
        label: of the vertical axis.
        levels: name -> value, drawn as dotted lines.
        log: whether the vertical axis is logarithmic.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels) + 1.2, 3.6), squeeze=False)
        for ax, (title, curves) in zip(axes.flat, panels.items(), strict=True):
            for n, (name, curve) in enumerate(curves.items()):
                steps, values = np.array(curve, float).T
                steps = np.maximum(steps, steps[1] / 2)  # the start, on a logarithmic axis
                ax.plot(
                    steps, values, color=_colours[n % len(_colours)], linestyle="-" if n < len(_colours) else "--", label=name
                )
            for n, (name, value) in enumerate((levels or {}).items()):
                ax.axhline(value, color=_colours[-1 - n % len(_colours)], linestyle=":", label=name)
            ax.set(title=title, xscale="log", xlabel="step (start at half of the first)", ylabel=label)
            plain_ticks(ax.xaxis)
            if log:
                ax.set_yscale("log")
                plain_ticks(ax.yaxis)
            ax.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        save_figure(fig, path)


def ratios_figure(ratios: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], path: Path) -> None:
    """Update-to-data ratio of every array of weights by step, with the rule of thumb 0.001.

    Args:
        ratios: network -> array -> (step, ratio).
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, len(ratios), figsize=(4.2 * len(ratios) + 1, 3.4), squeeze=False, sharey=True)
        for ax, (name, arrays) in zip(axes.flat, ratios.items(), strict=True):
            for n, (array, curve) in enumerate(arrays.items()):
                steps, values = np.array(curve, float).T
                ax.plot(steps, np.maximum(values, 1e-8), color=_colours[n % len(_colours)], linewidth=1, label=array)
            ax.axhline(1e-3, color="black", linestyle="--", linewidth=1)
            ax.set(yscale="log", xlabel="step", title=name)
            ax.legend(fontsize=7, frameon=False)
        axes[0, 0].set_ylabel("update / data")
        save_figure(fig, path)


def histograms_figure(drawn: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Pre-activations and gradients by layer, a row per network (Glorot & Bengio 2010, Fig. 6 and 7).

    Args:
        drawn: network -> "layer z", "layer z edges", "layer gradient", "layer gradient edges".
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(len(drawn), 2, figsize=(8.4, 2.1 * len(drawn) + 0.6), squeeze=False)
        for row, (name, arrays) in zip(axes, drawn.items(), strict=True):
            for ax, what in zip(row, ("z", "gradient"), strict=True):
                layers = [key.removesuffix(f" {what}") for key in arrays if key.endswith(f" {what}")]
                for n, layer in enumerate(layers):
                    edges = arrays[f"{layer} {what} edges"]
                    middle = (edges[1:] + edges[:-1]) / 2
                    ax.plot(middle, arrays[f"{layer} {what}"], color=plt.cm.viridis(n / max(1, len(layers) - 1)), label=layer)
                ax.set_yticks([])
                ax.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))
            row[0].set_ylabel(name, fontsize=8)
        axes[0, 0].set_title("pre-activations z")
        axes[0, 1].set_title("gradients by z, per example")
        axes[0, 1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        save_figure(fig, path)


def search_figure(sweep: Mapping[str, Any], grid: Mapping[str, Any], path: Path) -> None:
    """A range test, and the grid of separate runs around the rate that it picks.

    Args:
        sweep: rates, losses, smoothed (None where not finite) and picked.
        grid: rates, losses and picked.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.6))
        rates, losses, smoothed = (np.array(sweep[name], float) for name in ("rates", "losses", "smoothed"))
        ceiling = 3 * losses[0]  # what diverges would flatten the rest
        for values, style in ((losses, {"color": "#999999", "linewidth": 0.7}), (smoothed, {"color": "#0072b2"})):
            axes[0].plot(rates, np.where(values < ceiling, values, np.nan), **style)
        axes[0].set_title("one run whose rate rises")
        axes[1].plot(grid["rates"], np.array(grid["losses"], float), "o-", color="#0072b2")
        axes[1].set_title("separate runs")
        for ax, picked, what in zip(axes, (sweep["picked"], grid["picked"]), ("train loss", "dev loss"), strict=True):
            ax.axvline(picked, color="#d55e00", linestyle="--", label=f"picked {picked:.3g}")
            ax.set(xscale="log", xlabel="learning rate", ylabel=what)
            ax.legend(fontsize=8, frameon=False)
        save_figure(fig, path)


def rows_of_images(pictures: Mapping[str, np.ndarray], path: Path) -> None:
    """Images in rows: title -> [columns, height, width]."""
    columns = max(map(len, pictures.values()))
    with plt.rc_context({**STYLE, "axes.grid": False}):
        size = (0.85 * columns + 1.4, 0.95 * len(pictures) + 0.2)
        fig, axes = plt.subplots(len(pictures), columns, figsize=size, squeeze=False)
        for row, (title, images) in zip(axes, pictures.items(), strict=True):
            for ax in row:
                ax.set(xticks=[], yticks=[])
            for ax, image in zip(row, images, strict=False):
                ax.imshow(image, cmap="gray_r")
            row[0].set_ylabel(title, fontsize=8, rotation=0, ha="right", va="center")
        save_figure(fig, path)

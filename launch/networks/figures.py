"""Figures of a run of launch.networks, drawn from its files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.figures import COLOURS, figure, legend_below, legend_outside, plain_ticks, plt

_most_rows = 6  # of networks below one another
_names = {
    "fan_in_uniform": "uniform, ±1/√n",
    "sigmoid_squared_error": "squared error of a sigmoid",
    "squared_error": "squared error, linear outputs",
}


def readable(name: str) -> str:
    """The name of a network, a layer or an objective in words."""
    return _names.get(name, name.replace("_", " "))


def curves_figure(curves: Mapping[str, Sequence[tuple[float, float]]], path: Path, *, levels: Mapping[str, float]) -> None:
    """Dev loss, name -> (step, loss) by epoch; levels, name -> loss, are dotted lines."""
    with figure(path, size=(5.8, 3.6)) as axes:
        ax = axes[0, 0]
        for n, (name, curve) in enumerate(curves.items()):
            steps, values = np.array(curve, float).T
            steps = np.maximum(steps, steps[1] / 2)  # step 0 on a logarithmic axis
            ax.plot(steps, values, color=COLOURS[n % len(COLOURS)], linestyle="-" if n < len(COLOURS) else "--", label=name)
        for n, (name, value) in enumerate(levels.items()):
            ax.axhline(value, color=COLOURS[-1 - n % len(COLOURS)], linestyle=":", label=name)
        ax.set(xscale="log", yscale="log", xlabel="step (start at half of the first)", ylabel="dev loss")
        plain_ticks(ax.xaxis)
        lowest, highest = ax.get_ylim()
        if highest < 1e4 * lowest:
            plain_ticks(ax.yaxis)
        legend_outside(ax, fontsize=7)


def ratios_figure(ratios: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Update-to-data ratios, network -> array -> step -> ratio, with the rule of thumb 0.001 as a dashed line."""
    with figure(path, columns=len(ratios), size=(4.2 * len(ratios) + 1, 3.4), sharey=True) as axes:
        for ax, (name, arrays) in zip(axes.flat, ratios.items(), strict=True):
            for n, (array, curve) in enumerate(arrays.items()):
                steps, values = np.array(sorted(curve.items()), float).T
                ax.plot(steps, np.maximum(values, 1e-8), color=COLOURS[n % len(COLOURS)], linewidth=1, label=array)
            ax.axhline(1e-3, color="black", linestyle="--", linewidth=1)
            ax.set(yscale="log", xlabel="step", title=name)
            ax.legend(fontsize=7, frameon=False)
        axes[0, 0].set_ylabel("update / data")


def histograms_figure(histograms: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Pre-activations and gradients by layer, a pair of panels per network (Glorot & Bengio 2010, Fig. 6 and 7).

    histograms: network -> "layer z", "layer z edges", "layer gradient", "layer gradient edges".
    """
    pairs = 1 if len(histograms) <= _most_rows else 2
    rows = -(-len(histograms) // pairs)
    with figure(path, rows, 2 * pairs, size=(5.8 + 2.8 * pairs, 1.6 * rows + 0.6)) as axes:
        for ax in axes.flat[2 * len(histograms) :]:
            ax.set_visible(False)
        for panels, (name, arrays) in zip(axes.reshape(-1, 2), histograms.items(), strict=False):
            for ax, kind in zip(panels, ("z", "gradient"), strict=True):
                layers = [key.removesuffix(f" {kind}") for key in arrays if key.endswith(f" {kind}")]
                for n, layer in enumerate(layers):
                    edges, colour = arrays[f"{layer} {kind} edges"], plt.cm.viridis(n / max(1, len(layers) - 1))
                    ax.plot((edges[1:] + edges[:-1]) / 2, arrays[f"{layer} {kind}"], color=colour, label=readable(layer))
                ax.set_yticks([])
                ax.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))
            panels[0].set_ylabel(readable(name), fontsize=8)
        for z, gradient in axes[0].reshape(-1, 2):
            z.set_title("pre-activations z", fontsize=10)
            gradient.set_title("gradients dJ/dz, per example", fontsize=10)
        legend_below(axes[:1], ncols=6)


def search_figure(sweep: Mapping[str, Any], grid: Mapping[str, Any], path: Path) -> None:
    """A range test and a grid of separate runs, as logged; losses that are not finite are None."""
    with figure(path, columns=2, size=(9.2, 3.6)) as axes:
        left, right = axes[0]
        rates, losses, smoothed = (np.array(sweep[name], float) for name in ("rates", "losses", "smoothed"))
        for values, style in ((losses, {"color": COLOURS[-1], "linewidth": 0.7}), (smoothed, {"color": COLOURS[0]})):
            left.plot(rates, np.where(values < 3 * losses[0], values, np.nan), **style)  # divergence would flatten the rest
        right.plot(grid["rates"], np.array(grid["losses"], float), "o-", color=COLOURS[0])
        left.set(title="one run with a rising rate", ylabel="train loss")
        right.set(title="separate runs", ylabel="dev loss", yscale="log")
        for ax, rate in ((left, sweep["picked"]), (right, grid["picked"])):
            ax.axvline(rate, color=COLOURS[1], linestyle="--", label=f"picked {rate:.3g}")
            ax.set(xscale="log", xlabel="learning rate")
            ax.legend(fontsize=8, frameon=False)


def pictures_figure(pictures: Mapping[str, np.ndarray], path: Path) -> None:
    """Rows of images: title -> [columns, height, width]."""
    columns = max(map(len, pictures.values()))
    with figure(path, len(pictures), columns, size=(0.85 * columns + 1.4, 0.95 * len(pictures) + 0.2)) as axes:
        for row, (title, images) in zip(axes, pictures.items(), strict=True):
            for ax, image in zip(row, images, strict=False):
                ax.imshow(image, cmap="gray_r")
                ax.set(xticks=[], yticks=[])
            for ax in row[len(images) :]:
                ax.set_visible(False)
            row[0].set_ylabel(title, fontsize=8, rotation=0, ha="right", va="center")


def codes_figure(codes: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The two main axes of codes, a panel each: `name`, `axes` [M, 2], `labels` [M], `agreement`."""
    with figure(path, columns=len(codes), size=(3.3 * len(codes) + 0.8, 3.4)) as axes:
        for ax, code in zip(axes[0], codes, strict=True):
            points, labels = np.array(code["axes"]), np.array(code["labels"])
            for n, label in enumerate(np.unique(labels)):
                colour = plt.cm.tab10(n % 10)
                ax.plot(*points[labels == label].T, ".", color=colour, markersize=3, label=str(label))
            ax.set(xticks=[], yticks=[], title=f"{code['name']} ({code['agreement']:.2f})")
        legend_outside(axes[0, -1], fontsize=8)


def embedding_figure(names: Sequence[str], points: Sequence[Sequence[float]], path: Path) -> None:
    """Tokens at their points of a map."""
    with figure(path, size=(9.0, 7.0)) as axes:
        ax = axes[0, 0]
        ax.grid(False)
        for name, (x, y) in zip(names, points, strict=True):
            ax.text(x, y, name, fontsize=7, ha="center", va="center", parse_math=False)
        xy = np.array(points)
        margin = 0.04 * np.ptp(xy, axis=0) + 1e-6
        low, high = xy.min(axis=0) - margin, xy.max(axis=0) + margin
        ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])

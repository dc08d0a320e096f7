"""Figures of launch.networks compare."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.trajectories import SURFACES, trajectory
from jexplicit.runs.figures import COLOURS, figure, legend_below, legend_outside, plain_ticks
from launch.networks.figures import readable

_path_steps = 40
_path_rates = {"sgd": 0.09, "momentum": 0.03, "nesterov": 0.03, "adagrad": 0.9, "rmsprop": 0.15, "adam": 0.3}

Lines = Sequence[Mapping[str, Any]]


def comparison_figure(curves: Lines, lines: Lines, path: Path) -> None:
    """Dev accuracy by epoch, a panel per group; groups of numbers, such as depths, as lines of test accuracy in one panel.

    Panels of the same variants have one legend.
    """
    numbers = [line for line in lines if line["value"] is not None]
    named = list(dict.fromkeys(line["group"] for line in lines if line["value"] is None))
    by_group = {group: _by_variant([event for event in curves if event["group"] == group]) for group in named}
    alike = len(by_group) > 1 and len({tuple(variants) for variants in by_group.values()}) == 1
    panels = len(named) + bool(numbers)
    columns = min(panels, 2)
    rows = -(-panels // columns)
    width = 4.0 if alike else 5.6
    with figure(path, rows, columns, size=(width * columns, 3.0 * rows + 0.5)) as axes:
        for ax, (group, variants) in zip(axes.flat, by_group.items(), strict=False):
            _curves(ax, variants)
            ax.set_title(group)
            if not alike:
                legend_outside(ax, fontsize=7)
        if alike:
            legend_below(axes)
        if numbers:
            _against_numbers(axes.flat[len(named)], numbers)
        for ax in axes.flat[panels:]:
            ax.set_visible(False)


def _by_variant(events: Lines) -> dict[str, Mapping[str, Any]]:
    """The curves of a group by the variant's name, without that of the group."""
    return {readable(event["variant"].removesuffix(f", {event['group']}")): event for event in events}


def _curves(ax: Any, variants: Mapping[str, Mapping[str, Any]]) -> None:
    """The mean over seeds, and the range between them."""
    for n, (name, event) in enumerate(variants.items()):
        accuracy = 100 * np.array(event["dev_accuracy"], float)
        epochs = np.arange(accuracy.shape[1])
        style = {"color": COLOURS[n % len(COLOURS)], "linestyle": "-" if n < len(COLOURS) else "--"}
        ax.plot(epochs, accuracy.mean(axis=0), **style, label=name)
        ax.fill_between(epochs, accuracy.min(axis=0), accuracy.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)
    ax.set(xlabel="epochs", ylabel="dev accuracy (%)")


def _against_numbers(ax: Any, lines: Lines) -> None:
    colours: dict[str, str] = {}
    for group in dict.fromkeys(line["group"] for line in lines):
        colour = colours.setdefault(group.removesuffix(", residual"), COLOURS[len(colours)])
        own = [line for line in lines if line["group"] == group and line["test_accuracy"] is not None]
        x = [line["value"] for line in own]
        y, spread = (np.array([line[field] or 0.0 for line in own]) for field in ("test_accuracy", "test_accuracy_spread"))
        style = "--" if group.endswith("residual") else "-"
        ax.errorbar(x, 100 * y, 100 * spread, fmt=f"o{style}", color=colour, capsize=2, markersize=4, label=group)
    values = sorted({line["value"] for line in lines})
    if values[0] > 0 and values[-1] > 5 * values[0]:
        ax.set_xscale("log")
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.minorticks_off()
    ax.set(xlabel=_axis_of(lines), ylabel="test accuracy (%)")
    legend_outside(ax, fontsize=7, handlelength=3.5)


def _axis_of(lines: Lines) -> str:
    return {"normalisation": "hidden layers", "initializers": "factor on the weights", "dropout": "dropout"}[
        lines[0]["comparison"]
    ]


def noise_figure(events: Lines, path: Path) -> None:
    """Errors of mini-batch gradients against the batch size, drawn (points) and by the formula (lines)."""
    with figure(path, size=(5.2, 3.4)) as axes:
        ax = axes[0, 0]
        for n, when in enumerate(dict.fromkeys(event["when"] for event in events)):
            own = [event for event in events if event["when"] == when]
            sizes = [event["size"] for event in own]
            ax.plot(sizes, [event["predicted"] for event in own], color=COLOURS[n])
            name = f"{'before' if when == 'start' else 'after'} training"
            ax.plot(sizes, [event["error"] for event in own], "o", color=COLOURS[n], label=name)
        ax.plot([], [], color="black", label="by the formula")
        ax.axhline(1, color="black", linewidth=0.7, linestyle=":")
        ax.set(xscale="log", yscale="log", xlabel="batch size", ylabel="||g_B - g|| / ||g||")
        for axis in (ax.xaxis, ax.yaxis):
            plain_ticks(axis)
        ax.legend(fontsize=8, frameon=False)


def recall_figure(events: Lines, path: Path) -> None:
    """Recall by class, a group of bars per class, with the range over seeds."""
    classes = np.arange(len(events[0]["counts"]))
    width = 0.8 / len(events)
    with figure(path, size=(7.6, 3.2)) as axes:
        ax = axes[0, 0]
        for n, event in enumerate(events):
            recalls = 100 * np.array(event["recalls"], float)
            mean = recalls.mean(axis=0)
            around = np.stack([mean - recalls.min(axis=0), recalls.max(axis=0) - mean])
            ax.bar(
                classes + (n - (len(events) - 1) / 2) * width, mean, width, yerr=around, color=COLOURS[n], label=event["name"]
            )
        names = [f"{c}\n{count}" for c, count in zip(classes, events[0]["counts"], strict=True)]
        ax.set_xticks(classes, names)
        ax.set(xlabel="class, and its training examples", ylabel="recall (%)")
        legend_outside(ax, fontsize=8)


def paths_figure(path: Path) -> None:
    """Paths of optimisers on a ravine and from near a saddle, and how far their values are above the lowest."""
    with figure(path, 2, 2, size=(8.4, 6)) as axes:
        for column, (name, surface) in zip(axes.T, SURFACES.items(), strict=True):
            top, bottom = column
            limits = surface.start[0] - 0.5, -surface.start[0] / 2 + 0.5
            x, y = np.meshgrid(np.linspace(*limits, 200), np.linspace(-1.6, 1.6, 200))
            heights = np.asarray(surface.f(np.stack([x, y])))  # pyright: ignore[reportArgumentType]
            top.contour(x, y, heights - surface.lowest, levels=np.geomspace(0.02, 40, 14), colors="0.8", linewidths=0.6)
            for n, (optimizer, rate) in enumerate(_path_rates.items()):
                w = np.asarray(trajectory(make_optimizer(optimizer, rate), surface, _path_steps))
                top.plot(*w.T, "o-", color=COLOURS[n], markersize=2, linewidth=1, label=f"{optimizer}, rate {rate:g}")
                above = np.maximum([float(surface.f(point)) - surface.lowest for point in w], 1e-8)
                bottom.plot(above, color=COLOURS[n], linewidth=1)
            top.set(title=name, xlabel="$w_1$", ylabel="$w_2$", xlim=limits, ylim=(-1.6, 1.6))
            bottom.set(yscale="log", xlabel="step", ylabel="above the minimum")
        legend_outside(axes[0, 1], fontsize=8)

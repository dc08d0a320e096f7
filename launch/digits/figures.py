"""Figures of a digits run, drawn from its files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.figures import STYLE, plain_ticks, plt, save_figure

_colours = {1: "#0072b2", 2: "#d55e00"}  # by number of layers; told apart by colour-blind readers too
_lines = {"cold": "--", "warm": "-"}


def scan_figure(scan: Mapping[str, np.ndarray], mean_norm: float, paper: tuple[float, float] | None, path: Path) -> None:
    """Accuracy of the explicit solution by priming number, the mean norm marked (paper, Fig. 2 right).

    Args:
        scan: columns K, train_accuracy, test_accuracy.
        mean_norm: of the training images.
        paper: its mean norm and test accuracy, or None.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.2, 3.6))
        for part, colour in (("train", "#999999"), ("test", "#0072b2")):
            ax.plot(scan["K"], 100 * scan[f"{part}_accuracy"], color=colour, label=part)
        ax.axvline(mean_norm, color="#d55e00", linestyle="--", label=f"mean norm {mean_norm:.1f}")
        if paper:
            ax.plot(paper[0], 100 * paper[1], "k*", markersize=10, label=f"paper: {100 * paper[1]:.2f} % at {paper[0]}")
        ax.set(xscale="log", xlabel="priming number K", ylabel="accuracy (%)", title="the explicit solution by priming number")
        plain_ticks(ax.xaxis)
        ax.legend(fontsize=8, loc="lower right", frameon=False)
        save_figure(fig, path)


def curves_figure(
    curves: Mapping[tuple[str, int], Sequence[dict[str, Any]]], explicit: Mapping[int, float], path: Path
) -> None:
    """Test accuracy and loss by epoch, cold and warm, the value before training at epoch 0.5 (paper, Fig. 2 left).

    Args:
        curves: (method, layers) -> epochs.
        explicit: layers -> test accuracy of the explicit solution.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(9.4, 3.6))
        for (method, layers), curve in sorted(curves.items()):
            x = [max(epoch["epoch"], 0.5) for epoch in curve]
            style = {
                "color": _colours.get(layers),
                "linestyle": _lines[method],
                "label": f"{method}, {layers} layer{'s' * (layers > 1)}",
            }
            axes[0].plot(x, [100 * epoch["test_accuracy"] for epoch in curve], **style)
            axes[1].plot(x, [epoch["test_loss"] for epoch in curve], **style)
        for layers, accuracy in sorted(explicit.items()):
            axes[0].axhline(100 * accuracy, color=_colours.get(layers), linestyle=":", linewidth=1, label=f"explicit, {layers}")
        axes[0].set(xscale="log", xlabel="epoch (before training at 0.5)", ylabel="test accuracy (%)")
        axes[1].set(xscale="log", yscale="log", xlabel="epoch (before training at 0.5)", ylabel="test loss (nats)")
        for ax in axes:
            plain_ticks(ax.xaxis)
        plain_ticks(axes[1].yaxis)
        axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        handles, labels = axes[0].get_legend_handles_labels()
        dotted = [(h, text) for h, text in zip(handles, labels, strict=True) if text.startswith("explicit")]
        axes[0].legend(*zip(*dotted, strict=True), fontsize=8, loc="lower right", frameon=False) if dotted else None
        save_figure(fig, path)


def columns_figure(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """The column of every class in U as an image, one row of pictures per model.

    What all classes share changes no prediction, so each pixel's mean over the classes is taken off; red speaks for the class,
    blue against it.

    Args:
        columns: title -> [height, width, N], nats per unit of H.
        path: where to write the figure.
    """
    N = next(iter(columns.values())).shape[-1]
    with plt.rc_context({**STYLE, "axes.grid": False}):
        fig, axes = plt.subplots(len(columns), N, figsize=(0.95 * N + 0.4, 1.1 * len(columns) + 0.3), squeeze=False)
        for n, (title, U) in enumerate(columns.items()):
            row = axes[n]
            U = U - U.mean(axis=-1, keepdims=True)
            limit = np.quantile(np.abs(U), 0.99)
            for i, ax in enumerate(row):
                ax.imshow(U[..., i], cmap="RdBu_r", vmin=-limit, vmax=limit)
                ax.set(xticks=[], yticks=[])
                ax.set_title(f"{i}" if n == 0 else "", fontsize=9)
            row[0].set_ylabel(title, fontsize=8)
        save_figure(fig, path)


def wrong_figure(images: np.ndarray, labels: np.ndarray, guesses: np.ndarray, title: str, path: Path) -> None:
    """Test images that a model gets wrong, each with its label and the model's guess."""
    columns = 10
    rows = max(1, -(-len(images) // columns))
    with plt.rc_context({**STYLE, "axes.grid": False}):
        fig, axes = plt.subplots(rows, columns, figsize=(0.95 * columns, 1.2 * rows + 0.4), squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, image, label, guess in zip(axes.flat, images, labels, guesses, strict=False):
            ax.imshow(image, cmap="gray_r")
            ax.set_title(f"{label}, said {guess}", fontsize=8)
        fig.suptitle(title, fontsize=10)
        save_figure(fig, path)


def methods_figure(rows: Sequence[dict[str, Any]], names: Sequence[str], path: Path) -> None:
    """Test error against seconds, log-log, of every method: with backpropagation or without."""
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(7.2, 4.2))
        shown: set[str] = set()
        for n, (row, name) in enumerate(sorted(zip(rows, names, strict=True), key=lambda pair: pair[0]["seconds"])):
            free = row["backprop_free"]
            x, y = max(row["seconds"], 1e-3), max(100 * (1 - row["test_accuracy"]), 1e-2)
            label = "no backpropagation" if free else "gradients of a loss, or backpropagation"
            ax.plot(x, y, "o" if free else "s", color="#0072b2" if free else "#d55e00", label="" if label in shown else label)
            ax.annotate(name, (x, y), xytext=(4, (3, -9)[n % 2]), textcoords="offset points", fontsize=7)
            shown.add(label)
        ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="test error (%)")
        ax.margins(x=0.2)
        plain_ticks(ax.yaxis)
        ax.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1.0, 1.12), ncol=2, frameon=False)
        save_figure(fig, path)


def sweeps_figure(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """Train loss by sweep, without autodiff or learning rate: monotone."""
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.6, 3.6))
        for name, losses in curves.items():
            ax.plot(np.maximum(np.arange(len(losses)), 0.5), losses, label=name)
        ax.set(xscale="log", yscale="log", xlabel="sweep (start at 0.5)", ylabel="train loss (nats)")
        plain_ticks(ax.xaxis)
        plain_ticks(ax.yaxis)
        ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)

"""Figures of a digits run, drawn from its files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.figures import COLOURS, figure, legend_outside, plain_ticks

_lines = {"cold": "--", "warm": "-"}


def scan_figure(scan: Mapping[str, np.ndarray], mean_norm: float, paper: tuple[float, float] | None, path: Path) -> None:
    """Accuracy of the explicit solution by priming number, with the mean norm marked (paper, Fig. 2 right).

    Args:
        scan: columns K, train_accuracy, test_accuracy.
        mean_norm: of the training images.
        paper: its mean norm and test accuracy, or None.
        path: where to write the figure.
    """
    with figure(path, size=(5.2, 3.6)) as axes:
        ax = axes[0, 0]
        for part, colour in (("train", COLOURS[6]), ("test", COLOURS[0])):
            ax.plot(scan["K"], 100 * scan[f"{part}_accuracy"], color=colour, label=part)
        ax.axvline(mean_norm, color=COLOURS[1], linestyle="--", label=f"mean norm {mean_norm:.1f}")
        if paper:
            ax.plot(paper[0], 100 * paper[1], "k*", markersize=10, label=f"paper: {100 * paper[1]:.2f} % at {paper[0]}")
        ax.set(xscale="log", xlabel="priming number K", ylabel="accuracy (%)", title="the explicit solution by priming number")
        plain_ticks(ax.xaxis)
        ax.legend(fontsize=8, loc="lower right", frameon=False)


def curves_figure(
    curves: Mapping[tuple[str, int], Sequence[dict[str, Any]]], explicit: Mapping[int, float], path: Path
) -> None:
    """Test accuracy and loss by epoch, cold and warm, with epoch 0 drawn at 0.5 (paper, Fig. 2 left).

    Args:
        curves: (method, layers) -> epochs.
        explicit: layers -> test accuracy of the explicit solution.
        path: where to write the figure.
    """
    with figure(path, columns=2, size=(9.4, 3.6)) as axes:
        left, right = axes[0]
        for (method, layers), curve in sorted(curves.items()):
            epochs = [max(epoch["epoch"], 0.5) for epoch in curve]
            style = {
                "color": _colour(layers),
                "linestyle": _lines[method],
                "label": f"{method}, {layers} layer{'s' * (layers > 1)}",
            }
            left.plot(epochs, [100 * epoch["test_accuracy"] for epoch in curve], **style)
            right.plot(epochs, [epoch["test_loss"] for epoch in curve], **style)
        dotted = {"linestyle": ":", "linewidth": 1}
        lines = [
            left.axhline(100 * accuracy, color=_colour(layers), label=f"explicit, {layers}", **dotted)
            for layers, accuracy in sorted(explicit.items())
        ]
        left.set(xscale="log", xlabel="epoch (start at 0.5)", ylabel="test accuracy (%)")
        right.set(xscale="log", yscale="log", xlabel="epoch (start at 0.5)", ylabel="test loss (nats)")
        for axis in (left.xaxis, right.xaxis, right.yaxis):
            plain_ticks(axis)
        legend_outside(right)
        if lines:
            left.legend(handles=lines, fontsize=8, loc="lower right", frameon=False)


def columns_figure(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """The column of every class in U as an image, one row of images per model.

    What all classes share changes no prediction, so the mean over classes is subtracted; red is evidence for the class, blue
    against it.

    Args:
        columns: title -> [height, width, N], nats per unit of H.
        path: where to write the figure.
    """
    N = next(iter(columns.values())).shape[-1]
    with figure(path, len(columns), N, size=(0.95 * N + 0.4, 1.1 * len(columns) + 0.3)) as axes:
        for row, (title, U) in zip(axes, columns.items(), strict=True):
            U = U - U.mean(axis=-1, keepdims=True)
            limit = np.quantile(np.abs(U), 0.99)
            for i, ax in enumerate(row):
                ax.imshow(U[..., i], cmap="RdBu_r", vmin=-limit, vmax=limit)
                ax.set(xticks=[], yticks=[])
            row[0].set_ylabel(title, fontsize=8)
        for i, ax in enumerate(axes[0]):
            ax.set_title(f"{i}", fontsize=9)


def mistakes_figure(images: np.ndarray, labels: np.ndarray, guesses: np.ndarray, title: str, path: Path) -> None:
    """Test images that a model misclassifies, each with its label and the model's guess."""
    columns = 10
    rows = max(1, -(-len(images) // columns))
    with figure(path, rows, columns, size=(0.95 * columns, 1.2 * rows + 0.4)) as axes:
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, image, label, guess in zip(axes.flat, images, labels, guesses, strict=False):
            ax.imshow(image, cmap="gray_r")
            ax.set_title(f"{label}, guess {guess}", fontsize=8)
        axes[0, 0].figure.suptitle(title, fontsize=10)


# Published test accuracy on MNIST without backpropagation through layers; none of them states seconds on a CPU.
PUBLISHED = {
    "convolutional kernel network, SVM": 0.9961,  # Mairal et al. 2014
    "ScatNet-2, SVM": 0.9957,  # Bruna & Mallat 2013
    "SoftHebb (trained readout), Tsetlin machine, PCANet": 0.994,  # Journé 2023; Granmo 2019; Chan 2015, which has 99.38
    "Forward-Forward (local gradients)": 0.986,  # Hinton 2022; up to 99.4
}


def methods_figure(rows: Sequence[dict[str, Any]], names: Sequence[str], path: Path) -> None:
    """Test error against seconds of every method, with and without backpropagation; on MNIST, published ones, too.

    Points are numbered by error, and a legend names them.
    """
    published = PUBLISHED if rows[0]["data"] == "mnist" else {}
    with figure(path, size=(8.6, 5.0)) as axes:
        ax = axes[0, 0]
        for n, (row, name) in enumerate(sorted(zip(rows, names, strict=True), key=lambda pair: -pair[0]["test_accuracy"]), 1):
            x, y = max(row["seconds"], 1e-3), max(100 * (1 - row["test_accuracy"]), 1e-2)
            marker, colour = ("o", COLOURS[0]) if row["backprop_free"] else ("s", COLOURS[1])
            ax.plot(x, y, marker, color=colour, label=f"{n}  {name}, {100 * row['test_accuracy']:.2f}")
            ax.annotate(f"{n}", (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
        for name, accuracy in published.items():
            y = 100 * (1 - accuracy)
            ax.axhline(y, color="0.6", linewidth=0.7, linestyle=":", zorder=0)
            ax.annotate(name, (0.01, y), xycoords=("axes fraction", "data"), fontsize=6, color="0.35", va="bottom")
        ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="test error (%)")
        ax.set_title("circles: no backpropagation; squares: trained by gradients", fontsize=9)
        ax.margins(x=0.1, y=0.1)
        for axis in (ax.xaxis, ax.yaxis):
            plain_ticks(axis)
        legend_outside(ax, fontsize=7)


def reliability_figure(curves: Mapping[str, Mapping[str, Sequence[float]]], examples: int, path: Path) -> None:
    """Accuracy against confidence of models, by bin; on the diagonal a model is right as often as it says.

    Args:
        curves: model -> confidence, accuracy and share of each bin.
        examples: of which the shares are; bins of fewer than 20 are left out.
        path: where to write the figure.
    """
    with figure(path, size=(6.6, 4.0)) as axes:
        ax = axes[0, 0]
        ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle=":")
        for n, (name, curve) in enumerate(curves.items()):
            drawn = np.array(curve["share"]) * examples >= 20
            points = (np.array(curve[field])[drawn] for field in ("confidence", "accuracy"))
            ax.plot(*points, "o-", markersize=3, color=COLOURS[n % len(COLOURS)], label=name)
        ax.set(xlabel="confidence", ylabel="share of right guesses", xlim=(0, 1.01), ylim=(0, 1.01))
        legend_outside(ax)


def sweeps_figure(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """Train loss by sweep; it never rises."""
    with figure(path, size=(5.6, 3.6)) as axes:
        ax = axes[0, 0]
        for name, losses in curves.items():
            ax.plot(np.maximum(np.arange(len(losses)), 0.5), losses, label=name)
        ax.set(xscale="log", yscale="log", xlabel="sweep (start at 0.5)", ylabel="train loss (nats)")
        plain_ticks(ax.xaxis)
        plain_ticks(ax.yaxis)
        legend_outside(ax)


def _colour(layers: int) -> str:
    return COLOURS[(layers - 1) % len(COLOURS)]

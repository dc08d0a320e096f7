"""Figures of a run of launch.blur, drawn from its files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm

from jexplicit.runs.figures import STYLE, plt, save_figure

GENOME = "#0072b2"  # told apart by colour-blind readers too
COLOURS = {"sgd": "#d55e00", "momentum": "#009e73", "adam": "#cc79a7"}
_others = "#999999"


def learning_figure(
    curve: Mapping[str, Any], descents: Mapping[str, Mapping[str, Any]], steps: int, horizon: int, path: Path
) -> None:
    """Accuracy by updates of the learned rule and of descent at every learning rate, plain and normalised (paper, Fig. 6).

    Args:
        curve: `accuracy` and `spread` of the genome, by updates.
        descents: name -> `best` and `spread` by updates, and `curves`, one for each learning rate.
        steps: where the figure ends.
        horizon: updates that the genome was meta-trained for.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(10, 3.9), sharey=True)
        for ax, (title, ending) in zip(
            axes, (("against plain descent", ""), ("against descent with the same normalisation", ", normalised")), strict=True
        ):
            for name, colour in COLOURS.items():
                found = descents.get(name + ending)
                if found is None:
                    continue
                for rate in found["curves"] if name == "sgd" else ():
                    ax.plot(range(1, steps + 1), rate[1 : steps + 1], color=_others, alpha=0.3, linewidth=0.7)
                ax.plot(range(1, steps + 1), found["best"][1 : steps + 1], color=colour, label=f"{name}, best rate for each n")
            ax.plot([], [], color=_others, alpha=0.6, linewidth=0.7, label="sgd at every rate")
            _band(ax, curve, steps, GENOME, "learned rule")
            ax.axvline(horizon, color="black", linestyle=":", linewidth=1, label=f"meta-trained to n = {horizon}")
            ax.set(xlabel="updates n", title=title, xscale="log", ylim=(0.3, 1.0), xlim=(1, steps))
            ticks = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if n <= steps]
            ax.set_xticks(ticks, [str(n) for n in ticks])
            ax.minorticks_off()
            ax.legend(fontsize=8, loc="lower right", framealpha=0.9, edgecolor="none")
        axes[0].set_ylabel("test accuracy")
        save_figure(fig, path)


def meta_figure(histories: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Dev accuracy of every genome of a population by meta-steps, a panel for each design.

    Args:
        histories: name -> entries with `step`, `unroll` and a list over genomes `accuracy`.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        columns = min(len(histories), 4)
        rows = -(-len(histories) // columns)
        fig, axes = plt.subplots(rows, columns, figsize=(max(5.0, 2.9 * columns), 2.5 * rows + 0.8), squeeze=False, sharey=True)
        for ax in axes.flat[len(histories) :]:
            ax.set_visible(False)
        for ax, (name, history) in zip(axes.flat, histories.items(), strict=False):
            steps = [entry["step"] for entry in history]
            ax.plot(steps, [entry["accuracy"] for entry in history], color=GENOME, alpha=0.6, linewidth=1)
            ax.plot(steps, [max(entry["accuracy"]) for entry in history], color="black", linewidth=1.2)
            for before, after in zip(history, history[1:], strict=False):
                if before["unroll"] != after["unroll"]:
                    ax.axvline(before["step"], color=COLOURS["sgd"], linestyle=":")
                    ax.text(before["step"], 0.02, f" T = {after['unroll']}", fontsize=8, transform=ax.get_xaxis_transform())
            ax.set_title(name, fontsize=9)
            ax.set(xlabel="meta-step")
        for ax in axes[:, 0]:
            ax.set_ylabel("dev accuracy")
        save_figure(fig, path)


def stability_figure(curves: Mapping[str, Mapping[str, Any]], horizon: int, path: Path) -> None:
    """Accuracy and size of the synapses far past the training horizon (paper, Fig. 15 and 16).

    Args:
        curves: name -> `accuracy`, `spread` and `size` by updates.
        horizon: updates that genomes were meta-trained for.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(10, 3.6))
        colours = _hues(len(curves))
        for (name, curve), colour in zip(curves.items(), colours, strict=True):
            steps = np.arange(1, len(curve["accuracy"]))
            axes[0].plot(steps, curve["accuracy"][1:], color=colour, label=name)
            size = np.array([np.nan if value is None else value for value in curve["size"]], float)
            axes[1].plot(steps, size[1:], color=colour, label=name)
        for ax in axes:
            ax.axvline(horizon, color="black", linestyle=":", linewidth=1)
            ax.set(xscale="log", xlabel="updates n")
        axes[0].set(ylabel="test accuracy", ylim=(0, 1))
        axes[1].set(ylabel="root mean square of first synapses", yscale="log")
        axes[1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        save_figure(fig, path)


def transfer_figure(places: Mapping[str, Mapping[str, Mapping[str, Any]]], path: Path) -> None:
    """Accuracy by updates where a genome was not trained, beside tuned descent there (paper, Fig. 5).

    Args:
        places: where -> learner -> `accuracy` by updates (`genome`, `sgd` and `sgd, normalised`).
        path: where to write the figure.
    """
    styles = {"genome": (GENOME, "-"), "sgd": (COLOURS["sgd"], "-"), "sgd, normalised": (COLOURS["sgd"], "--")}
    with plt.rc_context(STYLE):
        columns = min(len(places), 5)
        rows = -(-len(places) // columns)
        fig, axes = plt.subplots(rows, columns, figsize=(2.7 * columns, 2.5 * rows), squeeze=False)
        for ax in axes.flat[len(places) :]:
            ax.set_visible(False)
        for ax, (where, learners) in zip(axes.flat, places.items(), strict=False):
            for name, curve in learners.items():
                colour, line = styles[name]
                label = "learned rule" if name == "genome" else f"{name}, best rates"
                ax.plot(np.arange(1, len(curve["accuracy"])), curve["accuracy"][1:], line, color=colour, label=label)
            ax.set_title(where, fontsize=9)
            ax.set(xscale="log", ylim=(0, 1))
        for ax in axes[-1]:
            ax.set_xlabel("updates n")
        for ax in axes[:, 0]:
            ax.set_ylabel("test accuracy")
        axes.flat[0].legend(fontsize=7, frameon=False, loc="lower right")
        save_figure(fig, path)


def depth_figure(accuracy: Mapping[str, Mapping[int, float]], step: int, path: Path) -> None:
    """Accuracy of genomes meta-trained at one depth and run at others (paper, Fig. 10).

    Args:
        accuracy: genome -> hidden layers -> accuracy.
        step: number of updates that it is after.
        path: where to write the figure.
    """
    depths = sorted({depth for found in accuracy.values() for depth in found})
    with plt.rc_context({**STYLE, "axes.grid": False}):
        fig, ax = plt.subplots(figsize=(1.0 * len(depths) + 2.2, 0.7 * len(accuracy) + 1.6))
        table = np.array([[found.get(depth, np.nan) for depth in depths] for found in accuracy.values()])
        image = ax.imshow(table, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for (row, column), value in np.ndenumerate(table):
            ax.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value < 0.6 else "black")
        ax.set_xticks(range(len(depths)), [str(depth) for depth in depths])
        ax.set_yticks(range(len(accuracy)), [name.replace("depth", "trained at") for name in accuracy])
        ax.set(xlabel="hidden layers it runs at", title=f"test accuracy after {step} updates")
        fig.colorbar(image, ax=ax, shrink=0.9)
        save_figure(fig, path)


def designs_figure(accuracy: Mapping[str, Mapping[str, float]], step: int, path: Path) -> None:
    """Accuracy of genomes of different designs, where they were trained and elsewhere (paper, Fig. 8, 9 and 13).

    Args:
        accuracy: design -> where -> accuracy.
        step: number of updates that it is after.
        path: where to write the figure.
    """
    places = list(dict.fromkeys(where for found in accuracy.values() for where in found))
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(8, 0.42 * len(accuracy) + 1.4))
        height = 0.8 / len(places)
        for n, (where, colour) in enumerate(zip(places, (GENOME, "#56b4e9", "#e69f00"), strict=False)):
            values = [found.get(where, 0.0) for found in accuracy.values()]
            ax.barh(np.arange(len(accuracy)) + n * height, values, height, color=colour, label=where)
        ax.set_yticks(np.arange(len(accuracy)) + 0.4 - height / 2, list(accuracy))
        ax.invert_yaxis()
        ax.set(xlabel=f"test accuracy after {step} updates", xlim=(0, 1))
        ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        save_figure(fig, path)


def curl_figure(jacobians: Mapping[str, np.ndarray], path: Path) -> None:
    """`|J - Jᵀ|` of updates on exclusive or (paper, Fig. 2).

    Args:
        jacobians: name -> [w, w] J.
        path: where to write the figure.
    """
    with plt.rc_context({**STYLE, "axes.grid": False}):
        fig, axes = plt.subplots(1, len(jacobians), figsize=(4.4 * len(jacobians), 3.7), squeeze=False)
        image: Any = None
        for ax, (name, jacobian) in zip(axes.flat, jacobians.items(), strict=True):
            shown = np.maximum(np.abs(jacobian - jacobian.T), 1e-8)
            image = ax.imshow(shown, norm=LogNorm(1e-8, 1.0), cmap="magma")
            ax.set(title=name, xlabel="synapse", ylabel="synapse")
        fig.colorbar(image, ax=axes, shrink=0.8, label=r"$|\partial\Delta w_k/\partial w_m - \partial\Delta w_m/\partial w_k|$")
        save_figure(fig, path)


def _band(ax: Any, curve: Mapping[str, Any], steps: int, colour: str, label: str) -> None:
    mean, spread = (np.array(curve[name][1 : steps + 1]) for name in ("accuracy", "spread"))
    n = np.arange(1, len(mean) + 1)
    ax.plot(n, mean, color=colour, linewidth=2, label=label)
    ax.fill_between(n, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)


def _hues(number: int) -> Any:
    return mpl.colormaps["viridis"](np.linspace(0, 0.92, number))

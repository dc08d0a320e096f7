"""Figures of a run of launch.blur, drawn from its files alone."""

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm

from jexplicit.runs.figures import COLOURS, figure, legend_outside, plain_ticks

_rule, _sgd, *_ = COLOURS
_grey = COLOURS[-1]


def learning_figure(
    curve: Mapping[str, Any], descents: Mapping[str, Mapping[str, Any]], steps: int, horizon: int, path: Path
) -> None:
    """Accuracy by updates of the learned rule and of descent at every learning rate, plain and normalised (paper, Fig. 6).

    `curve` has `accuracy` and `spread` by updates; each baseline `best`, and `curves` for every activation and learning rate.
    """
    panels = {"against plain descent": "", "against descent with the same normalisation": ", normalised"}
    n, mean, spread = np.arange(1, steps + 1), *(np.array(curve[name][1 : steps + 1]) for name in ("accuracy", "spread"))
    with figure(path, columns=2, size=(10, 3.9), sharey=True) as axes:
        for ax, (title, suffix) in zip(axes[0], panels.items(), strict=True):
            optimizers = [name for name in descents if name.endswith(", normalised") == bool(suffix)]
            for name, colour in zip(optimizers, COLOURS[1:], strict=False):
                optimizer, found = name.removesuffix(suffix), descents[name]
                for rate in found["curves"] if optimizer == "sgd" else ():
                    ax.plot(n, rate[1 : steps + 1], color=_grey, alpha=0.3, linewidth=0.7)
                ax.plot(n, found["best"][1 : steps + 1], color=colour, label=f"{optimizer}, best rate for each n")
            ax.plot([], [], color=_grey, alpha=0.6, linewidth=0.7, label="sgd at every rate")
            ax.plot(n, mean, color=_rule, linewidth=2, label="learned rule")
            ax.fill_between(n, mean - spread, mean + spread, color=_rule, alpha=0.2, linewidth=0)
            ax.axvline(horizon, color="black", linestyle=":", linewidth=1, label=f"meta-trained to n = {horizon}")
            ax.set(xlabel="updates n", title=title, xscale="log", ylim=(0.3, 1.0), xlim=(1, steps))
            plain_ticks(ax.xaxis)
            ax.legend(fontsize=8, loc="lower right", framealpha=0.9, edgecolor="none")
        axes[0, 0].set_ylabel("test accuracy")


def meta_figure(histories: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], path: Path) -> None:
    """Dev accuracy of every genome of a population by meta-steps, a panel for each design with its searches."""
    with _panels(path, histories, 4, (2.9, 2.5), "meta-step", "dev accuracy", sharey=True) as axes:
        for ax, searches in zip(axes, histories.values(), strict=True):
            for history in searches:
                steps = [entry["step"] for entry in history]
                ax.plot(
                    steps, [entry["accuracy"] for entry in history], ".-", markersize=3, color=_rule, alpha=0.6, linewidth=1
                )
                ax.plot(steps, [max(entry["accuracy"]) for entry in history], ".-", markersize=3, color="black", linewidth=1.2)
            for before, after in itertools.pairwise(searches[0]):
                if before["unroll"] != after["unroll"]:
                    ax.axvline(before["step"], color=_sgd, linestyle=":")
                    ax.text(before["step"], 0.02, f" T = {after['unroll']}", fontsize=8, transform=ax.get_xaxis_transform())


def stability_figure(curves: Mapping[str, Mapping[str, Any]], horizon: int, path: Path) -> None:
    """Accuracy and size of the synapses, by name, far past the training horizon (paper, Fig. 15 and 16)."""
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.92, len(curves)))
    with figure(path, columns=2, size=(10, 3.6)) as axes:
        for ax, name in zip(axes[0], ("accuracy", "size"), strict=True):
            for (label, curve), colour in zip(curves.items(), colours, strict=True):
                values = np.array(curve[name][1:], float)  # None, not finite, becomes NaN
                ax.plot(np.arange(1, len(values) + 1), values, color=colour, label=label)
            ax.axvline(horizon, color="black", linestyle=":", linewidth=1)
            ax.set(xscale="log", xlabel="updates n")
            plain_ticks(ax.xaxis)
        axes[0, 0].set(ylabel="test accuracy", ylim=(0, 1))
        axes[0, 1].set(ylabel="root mean square of first synapses", yscale="log")
        legend_outside(axes[0, 1], fontsize=7)


def transfer_figure(places: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Accuracy by updates of each learner (`learned rule`, `sgd` and `sgd, normalised`) at each place (paper, Fig. 5)."""
    styles = {"learned rule": (_rule, "-"), "sgd": (_sgd, "-"), "sgd, normalised": (_sgd, "--")}
    with _panels(path, places, 5, (2.7, 2.5), "updates n", "test accuracy") as axes:
        for ax, learners in zip(axes, places.values(), strict=True):
            for name, accuracy in learners.items():
                colour, line = styles[name]
                label = f"{name}, best rates" if name.startswith("sgd") else name
                ax.plot(np.arange(1, len(accuracy)), accuracy[1:], line, color=colour, label=label)
            ax.set(xscale="log", ylim=(0, 1))
            plain_ticks(ax.xaxis)
        axes[0].legend(fontsize=7, frameon=False, loc="lower right")


def depth_figure(accuracy: Mapping[int, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Accuracy by number of updates, of genomes meta-trained at one depth, by number of hidden layers (paper, Fig. 10)."""
    one = next(iter(accuracy.values()))
    depths = sorted({depth for found in one.values() for depth in found})
    with figure(path, columns=len(accuracy), size=((0.9 * len(depths) + 1.8) * len(accuracy), 0.7 * len(one) + 1.6)) as axes:
        for ax, (step, genomes) in zip(axes[0], accuracy.items(), strict=True):
            table = np.array([[found.get(depth, np.nan) for depth in depths] for found in genomes.values()])
            _heat_map(ax, table, [name.replace("depth", "meta-trained at") for name in genomes], depths)
            ax.set(xlabel="hidden layers of the learners", title=f"test accuracy after {step} updates")


def grid_figure(
    tables: Mapping[str, Mapping[int, np.ndarray]],
    learned: Mapping[int, float],
    momenta: Sequence[float],
    rates: Sequence[float],
    path: Path,
) -> None:
    """Accuracy of descent by learning rate and momentum beside that of a learned rule (paper, Fig. 6).

    Args:
        tables: accuracy [momenta, rates] by kind of network, then by number of updates.
        learned: accuracy of the learned rule by number of updates; a line goes round the cells above it.
        momenta, rates: of the rows and columns.
        path: of the figure.
    """
    size = max(3.2, 0.36 * len(rates) + 1.0) * len(learned), (0.36 * len(momenta) + 1.6) * len(tables)
    with figure(path, len(tables), len(learned), size=size) as axes:
        for row, (kind, by_step) in zip(axes, tables.items(), strict=True):
            for ax, (step, table) in zip(row, by_step.items(), strict=True):
                _heat_map(ax, table, [f"{beta:g}" for beta in momenta], [f"{rate:g}" for rate in rates], small=True)
                _frame(ax, table > learned[step])
                ax.tick_params(axis="x", rotation=90)
                ax.set(xlabel="learning rate", ylabel="momentum")
                ax.set_title(f"{kind}, n = {step}\nlearned rule {100 * learned[step]:.1f} %; framed: above it", fontsize=9)


def _heat_map(ax: Any, table: np.ndarray, rows: Sequence[Any], columns: Sequence[Any], *, small: bool = False) -> None:
    """Accuracies in colour, each with its number."""
    ax.imshow(table, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        text = f"{100 * value:.0f}" if small else f"{value:.2f}"
        ax.text(
            column, row, text, ha="center", va="center", fontsize=7 if small else 10, color="white" if value < 0.6 else "black"
        )
    ax.set_xticks(range(len(columns)), [str(column) for column in columns])
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(False)


def _frame(ax: Any, inside: np.ndarray) -> None:
    """A line around the cells of a heat map that are inside."""
    padded = np.pad(inside, 1)
    for row, column in np.argwhere(padded[1:] != padded[:-1]):
        ax.plot((column - 1.5, column - 0.5), (row - 0.5, row - 0.5), color=_sgd, linewidth=2)
    for row, column in np.argwhere(padded[:, 1:] != padded[:, :-1]):
        ax.plot((column - 0.5, column - 0.5), (row - 1.5, row - 0.5), color=_sgd, linewidth=2)


def designs_figure(accuracy: Mapping[str, Mapping[str, tuple[float, float]]], step: int, path: Path) -> None:
    """Accuracy of each design after `step` updates and its spread over seeds, by place (paper, Fig. 8, 9, 12 and 13)."""
    places = list(dict.fromkeys(where for found in accuracy.values() for where in found))
    rows, height = np.arange(len(accuracy)), 0.8 / len(places)
    with figure(path, size=(8, 0.42 * len(accuracy) + 1.4)) as axes:
        ax = axes[0, 0]
        for n, (where, colour) in enumerate(zip(places, (_rule, *COLOURS[5:3:-1]), strict=False)):
            values, spreads = zip(*(found.get(where, (0.0, 0.0)) for found in accuracy.values()), strict=True)
            ax.barh(rows + n * height, values, height, xerr=spreads, color=colour, label=where, error_kw={"elinewidth": 0.8})
        ax.set_yticks(rows + 0.4 - height / 2, list(accuracy))
        ax.invert_yaxis()
        ax.set(xlabel=f"test accuracy after {step} updates, ± standard deviation over seeds", xlim=(0, 1))
        legend_outside(ax)


def curl_figure(jacobians: Mapping[str, np.ndarray], path: Path) -> None:
    """`|J - Jᵀ|` of updates on exclusive or, from their Jacobians J (paper, Fig. 2)."""
    with figure(path, columns=len(jacobians), size=(4.4 * len(jacobians), 3.7)) as axes:
        norm = LogNorm(1e-8, 1.0)
        for ax, (name, jacobian) in zip(axes[0], jacobians.items(), strict=True):
            difference = np.maximum(np.abs(jacobian - jacobian.T), 1e-8)
            ax.imshow(difference, norm=norm, cmap="magma")
            ax.set(title=name, xlabel="synapse", ylabel="synapse")
            ax.grid(False)
        label = r"$|\partial\Delta w_k/\partial w_m - \partial\Delta w_m/\partial w_k|$"
        axes[0, 0].figure.colorbar(ScalarMappable(norm, "magma"), ax=axes, shrink=0.8, label=label)


@contextlib.contextmanager
def _panels(
    path: Path, titles: Collection[str], most: int, size: tuple[float, float], xlabel: str, ylabel: str, **options: Any
) -> Iterator[np.ndarray]:
    """A figure with a panel for each title, at most `most` in a row, each of about `size`."""
    columns = min(len(titles), most)
    rows, (width, height) = -(-len(titles) // columns), size
    with figure(path, rows, columns, size=(max(5.0, width * columns), height * rows + 0.5), **options) as axes:
        for ax, title in zip(axes.flat, titles, strict=False):
            ax.set_title(title, fontsize=9)
            ax.set_xlabel(xlabel)
        for ax in axes.flat[len(titles) :]:
            ax.set_visible(False)
        for ax in axes[:, 0]:
            ax.set_ylabel(ylabel)
        yield axes.flat[: len(titles)]

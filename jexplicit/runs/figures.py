"""Figures of a run, drawn from its files alone."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, NullLocator

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of backend)

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")  # for colour-blind readers too
_colours = {"sum": "#d55e00", "cat": "#0072b2"}  # told apart by colour-blind readers too
_baselines = {"unigram": ("#999999", ":"), "bigram": ("#009e73", "-.")}


def perplexity_by_radius(rows: Sequence[dict[str, Any]], paper: dict[str, dict[int, tuple[float, float]]], path: Path) -> None:
    """Train and dev perplexity of Sum and Cat against the radius K, with the baselines and the paper's explicit solution.

    Args:
        rows: of results.json.
        paper: features -> K -> (train, dev) perplexity.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
        radii = sorted({row["radius"] for row in rows if row["method"] == "explicit"})
        for ax, part, column in zip(axes, ("train", "dev"), (0, 1), strict=True):
            for features, colour in _colours.items():
                ours = sorted(
                    (row["radius"], row[f"{part}_perplexity"])
                    for row in rows
                    if row["method"] == "explicit" and row["features"] == features
                )
                if ours:
                    ax.plot(*zip(*ours, strict=True), "o-", color=colour, label=f"explicit, {features.capitalize()}")
                theirs = [(K, values[column]) for K, values in paper[features].items() if K in radii]
                if theirs:
                    label = f"paper, {features.capitalize()} (other data)"
                    ax.plot(*zip(*theirs, strict=True), "s--", color=colour, alpha=0.4, label=label)
            for row in rows:
                if row["method"] in _baselines:
                    colour, line = _baselines[row["method"]]
                    ax.axhline(row[f"{part}_perplexity"], color=colour, linestyle=line, label=row["method"])
            ax.set(xscale="log", yscale="log", xlabel="radius K (tokens)", title=part, xticks=radii, xticklabels=radii)
            ax.xaxis.set_minor_locator(NullLocator())
            plain_ticks(ax.yaxis)
        axes[0].set_ylabel("perplexity")
        axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def scaling_assumption(panels: Sequence[dict[str, Any]], path: Path) -> None:
    """The scaling assumption (paper, Fig. 1 left): f_i against the mean co-occurrence, with the fitted line.

    Args:
        panels: dictionaries with `title`, `f` [N], `log_means` [N], `slope`, `intercept`.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        columns = min(len(panels), 3)
        rows = -(-len(panels) // columns)
        fig, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.3 * rows), squeeze=False)
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        for ax, panel in zip(axes.flat, panels, strict=False):
            seen = panel["f"] > 0
            f, means = panel["f"][seen].astype(float), np.exp(panel["log_means"][seen].astype(float))
            ax.hexbin(f, means, xscale="log", yscale="log", gridsize=45, mincnt=1, cmap="viridis", norm=LogNorm())
            ends = np.array([f.min(), f.max()])
            fitted = np.exp(panel["intercept"]) * ends ** panel["slope"]
            ax.plot(ends, fitted, color="#d55e00", label=f"fitted slope {panel['slope']:.2f}")
            centre = np.exp(np.log(f).mean()), np.exp(np.log(means).mean())
            ax.plot(ends, centre[1] * ends / centre[0], "--", color="black", linewidth=1, label="slope 1 (assumed)")
            ax.set(title=panel["title"], xlabel="token count $f_i$", ylabel=r"$\langle E_G[F_i] \rangle$")
            ax.legend(fontsize=8, loc="lower right")
        save_figure(fig, path)


def attribution_map(context: Sequence[Sequence[str]], predicted: Sequence[str], evidence: np.ndarray, path: Path) -> None:
    """Heat map of what each context token says for each token that came.

    Args:
        context: M rows of K context tokens, nearest first.
        predicted: M tokens that came, in order.
        evidence: [M, K] nats, from jexplicit.lm.evaluation.attribute.
        path: where to write the figure.
    """
    M, K = evidence.shape
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(min(max(5.0, 0.55 * M + 1.6), 40.0), 0.45 * K + 2.0))
        ax.grid(False)
        limit = max(float(np.abs(evidence).max()), 1e-6)
        image = ax.imshow(evidence.T, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        ax.set_xticks(range(M), predicted, rotation=60, ha="right", fontsize=8, parse_math=False)
        ax.set_yticks(range(K), [f"{k} back" for k in range(1, K + 1)], fontsize=8)
        for m in range(M if M <= 70 else 0):  # longer texts leave no room for labels
            for k in range(K):
                colour = "white" if abs(evidence[m, k]) > 0.6 * limit else "black"
                ax.text(m, k, context[m][k], ha="center", va="center", fontsize=6, color=colour, parse_math=False)
        ax.set(xlabel="token that came", title="evidence of each context token (nats)")
        fig.colorbar(image, ax=ax, shrink=0.8)
        save_figure(fig, path)


@contextlib.contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any) -> Iterator[np.ndarray]:
    """A figure in the project's style: yields the axes, [rows, columns], and writes the figure to `path` at the end.

    Args:
        path: of the file; its folder is created.
        rows, columns: of panels.
        size: width and height of the figure, inches.
        options: of matplotlib's `subplots`, such as `sharey=True`.

    Example::

        with figure(folder / "loss.png", columns=2, size=(9, 3.4), sharey=True) as axes:
            axes[0, 0].plot(steps, losses)
            legend_outside(axes[0, -1])
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **options)
        try:
            yield axes
            path.parent.mkdir(parents=True, exist_ok=True)
            fig.savefig(path)
        finally:
            plt.close(fig)


def legend_outside(ax: Any, **options: Any) -> None:
    """A small legend to the right of a panel."""
    ax.legend(**{"fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False, **options})


def plain_ticks(axis: Any) -> None:
    """Ticks of a log axis at 1, 2 and 5 times the powers of ten, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def save_figure(fig: Any, path: Path) -> None:
    """Write a figure, with its folder, and free its memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path)
    plt.close(fig)

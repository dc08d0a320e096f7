"""Figures of an in-context learning run, drawn from its files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.ticker import LogLocator, NullLocator

from jexplicit.runs.figures import STYLE, plt, save_figure

COLOURS = {  # told apart by colour-blind readers too
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


def training_figure(
    curves: Mapping[str, Sequence[dict[str, Any]]], levels: Mapping[str, float], target: str, title: str, path: Path
) -> None:
    """Loss, agreement with descent and prediction difference by step, mean and range over seeds (paper, Fig. 2, 3, 7).

    Args:
        curves: start -> evaluations with `step` and a list over seeds of each measure.
        levels: predictor -> validation loss.
        target: the descent that sensitivities are compared with.
        title: of the figure.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 3, figsize=(11.5, 3.4))
        for start, curve in curves.items():
            colour = COLOURS["trained" if start == "cold" else "warm"]
            for ax, what in zip(axes, ("loss", "cosine", "prediction_difference"), strict=True):
                band(ax, curve, what, colour, f"trained, {start} start")
            band(axes[2], curve, "model_difference", colour, None, linestyle="--")
        for name, loss in levels.items():
            label = f"{NAMES.get(name, name)} {loss:.4f}"
            axes[0].axhline(loss, color=COLOURS[name], linestyle=":" if name == "closed_form" else "--", label=label)
        axes[0].set(xlabel="training step", ylabel="validation loss (half mean square)", yscale="log")
        plain_log(axes[0])
        axes[1].set(xlabel="training step", ylabel=f"cosine of sensitivities with {NAMES[target]}")
        axes[2].set(xlabel="training step", ylabel=f"distance to {NAMES[target]}", yscale="log")
        axes[2].set_ylim(bottom=max(axes[2].get_ylim()[0], 1e-3))  # a start from the closed form is at 0
        axes[2].plot([], [], color="black", label="predictions")
        axes[2].plot([], [], color="black", linestyle="--", label="sensitivities")
        for ax in (axes[0], axes[2]):
            ax.legend(fontsize=8, frameon=False)
        fig.suptitle(title, fontsize=10)
        save_figure(fig, path)


def sweep_figure(sweeps: Mapping[str, Mapping[str, tuple[Sequence[float], np.ndarray]]], title: str, path: Path) -> None:
    """Loss on tasks of other input ranges, weight scales and laws, mean and range over seeds (paper, Fig. 2 right and 6).

    Args:
        sweeps: shift -> predictor -> (values, losses [seeds, values]).
        title: of the figure.
        path: where to write the figure.
    """
    labels = {
        "input_range": "input range r, U(-r/2, r/2)",
        "weight_scale": "weight scale c",
        "mixture": "norm of X; exponential, normal or Laplace",
    }
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, len(sweeps), figsize=(3.9 * len(sweeps), 3.6), squeeze=False)
        for ax, (shift, by_name) in zip(axes.flat, sweeps.items(), strict=True):
            for name, (values, losses) in by_name.items():
                style = {"color": COLOURS[name], "label": NAMES.get(name, name), "linestyle": "-" if len(losses) > 1 else "--"}
                ax.plot(values, losses.mean(axis=0), **style)
                ax.fill_between(values, losses.min(axis=0), losses.max(axis=0), color=COLOURS[name], alpha=0.2, linewidth=0)
            ax.set(xlabel=labels[shift], yscale="log")
            if "gd" in by_name:  # what is far above descent has left the question
                ax.set_ylim(top=min(ax.get_ylim()[1], 100 * float(np.max(by_name["gd"][1]))))
        axes.flat[0].set_ylabel("loss (half mean square)")
        axes.flat[0].legend(fontsize=8, frameon=False)
        fig.suptitle(title, fontsize=10)
        save_figure(fig, path)


def rollout_figure(paths: Mapping[float, Mapping[str, np.ndarray]], path: Path) -> None:
    """Loss by number of applications of one layer and by steps of descent, a panel for each damping (paper, Fig. 1 and 10).

    Args:
        paths: damping -> predictor -> losses [seeds, steps].
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, len(paths), figsize=(3.6 * len(paths), 3.2), squeeze=False)
        for ax, (damping, by_name) in zip(axes.flat, sorted(paths.items()), strict=True):
            for name, losses in by_name.items():
                steps = np.arange(1, losses.shape[1] + 1)
                label = "one trained layer, applied again" if name == "trained" else NAMES[name]
                ax.plot(steps, losses.mean(axis=0), "--" if name == "gd" else "-", color=COLOURS[name], label=label)
                ax.fill_between(steps, losses.min(axis=0), losses.max(axis=0), color=COLOURS[name], alpha=0.2, linewidth=0)
            most = max(float(np.nanmax(losses[:, :1])) for losses in by_name.values())
            ax.set(xscale="log", yscale="log", xlabel="steps", title=f"damping {damping:g}")
            ax.set_ylim(top=min(ax.get_ylim()[1], 10 * most))
            plain_log(ax)
        axes.flat[0].set_ylabel("loss (half mean square)")
        axes.flat[0].legend(fontsize=8, frameon=False)
        save_figure(fig, path)


def weights_figure(weights: Mapping[str, np.ndarray], title: str, path: Path) -> None:
    """The maps M and R of a trained layer beside the constructed one, and how a context is attended to (paper, Fig. 9).

    Args:
        weights: `trained M`, `trained R`, [layers, width, width], `trained scores`, `trained mean scores` [N, N + 1], and the
            same constructed.
        title: of the figure.
        path: where to write the figure.
    """
    kinds = {
        "M": r"$M = W_K^\top W_Q$",
        "R": r"$R = P W_V$",
        "scores": "scores, one task",
        "mean scores": "scores, mean of 1000",
    }
    with plt.rc_context({**STYLE, "axes.grid": False}):
        fig, axes = plt.subplots(2, 4, figsize=(10.5, 5.4))
        for column, (kind, label) in zip(axes.T, kinds.items(), strict=True):
            shown = [np.asarray(weights[f"{name} {kind}"]) for name in ("trained", "constructed")]
            shown = [first[0] if first.ndim == 3 else first for first in shown]
            limit = max(float(np.abs(values).max()) for values in shown)
            for ax, values in zip(column, shown, strict=True):
                image = ax.imshow(values, cmap="RdBu_r", norm=TwoSlopeNorm(0, -limit, limit))
                ax.set(xticks=[], yticks=[])
                fig.colorbar(image, ax=ax, shrink=0.75)
            column[0].set_title(label, fontsize=10)
        for ax, name in zip(axes[:, 0], ("trained", "constructed"), strict=True):
            ax.set_ylabel(name)
        fig.suptitle(title, fontsize=10)
        save_figure(fig, path)


def curvature_figure(
    spectra: Mapping[int, tuple[np.ndarray, np.ndarray]],
    gammas: Mapping[int, float],
    paper: Mapping[int, float],
    path: Path,
) -> None:
    """Eigenvalues of the context before and after γ turns the inputs, condition numbers, and γ by N (paper, Fig. 13).

    Args:
        spectra: N -> eigenvalues [T, d] before and after.
        gammas: N -> γ of the closed form.
        paper: N -> γ of the paper's trained transformers.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 3, figsize=(11.5, 3.4))
        N = min(spectra)
        before, after = spectra[N]
        bins = np.linspace(0, float(np.quantile(before, 0.999)), 60).tolist()
        for values, label, colour in ((before, "before", COLOURS["gd"]), (after, "after one layer", COLOURS["gd++"])):
            axes[0].hist(values.ravel(), bins=bins, density=True, histtype="step", color=colour, label=label)
        axes[0].set(yscale="log", xlabel=r"eigenvalue of $X^\top X$", ylabel="density", title=f"N = {N}")
        axes[0].legend(fontsize=8, frameon=False)
        sizes = sorted(spectra)
        for place, (label, colour) in enumerate((("before", COLOURS["gd"]), ("after", COLOURS["gd++"]))):
            ratios = [spectra[n][place].max(axis=1) / np.maximum(spectra[n][place].min(axis=1), 1e-12) for n in sizes]
            middle, low, high = (np.array([np.quantile(r, q) for r in ratios]) for q in (0.5, 0.1, 0.9))
            axes[1].errorbar(sizes, middle, [middle - low, high - middle], fmt="o-", color=colour, label=label, capsize=3)
        axes[1].set(xscale="log", yscale="log", xlabel="pairs N", ylabel="condition number, median and 10 to 90 %")
        axes[1].legend(fontsize=8, frameon=False)
        axes[2].plot(sizes, [gammas[n] for n in sizes], "o-", color=COLOURS["closed_form"], label="closed form")
        known = [n for n in sizes if n in paper]
        if known:
            axes[2].plot(
                known, [paper[n] for n in known], "s", color=COLOURS["interpolated"], label="paper, trained", alpha=0.6
            )
        axes[2].set(xscale="log", yscale="log", xlabel="pairs N", ylabel=r"$\gamma$ of two recurrent layers")
        axes[2].legend(fontsize=8, frameon=False)
        for ax in axes[1:]:
            ax.set_xticks(sizes, [str(n) for n in sizes])
            ax.minorticks_off()
            plain_log(ax)
        save_figure(fig, path)


def scaling_figure(losses: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Loss of one layer, closed form and trained, by N = d (paper, Fig. 2).

    Args:
        losses: predictor -> N -> test loss.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.2, 3.4))
        sizes = sorted({n for by_size in losses.values() for n in by_size})
        width = 0.8 / len(losses)
        for place, (name, by_size) in enumerate(losses.items()):
            at = [k + (place - (len(losses) - 1) / 2) * width for k, n in enumerate(sizes) if n in by_size]
            bars = ax.bar(
                at, [by_size[n] for n in sizes if n in by_size], width, color=COLOURS[name], label=NAMES.get(name, name)
            )
            ax.bar_label(bars, fmt="{:.3f}", fontsize=7, rotation=90, padding=2)
        ax.set_xticks(range(len(sizes)), [str(n) for n in sizes])
        ax.set(xlabel="N = d", ylabel="loss (half mean square)", ylim=(0, 1.25 * max(max(b.values()) for b in losses.values())))
        ax.legend(fontsize=8, frameon=False, loc="upper left")
        save_figure(fig, path)


def band(ax: Any, curve: Sequence[dict[str, Any]], what: str, colour: str, label: str | None, **style: Any) -> None:
    """The mean over seeds as a line, their range as a band."""
    steps, values = [entry["step"] for entry in curve], np.array([entry[what] for entry in curve])
    ax.plot(steps, values.mean(axis=1), color=colour, label=label, **style)
    ax.fill_between(steps, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.2, linewidth=0)


def plain_log(ax: Any) -> None:
    """Labels at more places of a log axis than powers of ten where losses span few of them."""
    low, high = ax.get_ylim()
    decades = np.log10(high / low)
    subs = (1, 1.5, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")

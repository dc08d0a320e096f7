"""Figures of the experiments beyond linear regression with linear layers, drawn from a run's files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm

from jexplicit.runs.figures import STYLE, plt, save_figure
from launch.icl.figures import COLOURS, band, plain_log

Curve = Sequence[dict[str, Any]]  # evaluations with `step` and a list over seeds of each measure
_palette = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def waves_figure(curves: Mapping[str, Curve], zero: float, waves: Mapping[str, np.ndarray], path: Path) -> None:
    """Loss by step, and what is said of a few waves before and after the layer (paper, Fig. 4).

    Args:
        curves: "trained" and "control" -> evaluations with `loss` and `initial_loss`.
        zero: loss of the zero predictor.
        waves: `x`, contexts `X` and `Y` [N, waves], and `trained final 0`, `control initial 0`, ..
        path: where to write the figure.
    """
    colours, number = {"trained": COLOURS["trained"], "control": COLOURS["gd"]}, waves["X"].shape[1]
    with plt.rc_context(STYLE):
        fig, grid = plt.subplots(1, 1 + number, figsize=(3.6 * (1 + number), 3.3), squeeze=False)
        axes = grid[0]
        for name, curve in curves.items():
            band(axes[0], curve, "loss", colours[name], f"{name}, after the layer")
            band(axes[0], curve, "initial_loss", colours[name], f"{name}, before it", linestyle=":")
        axes[0].axhline(zero, color=COLOURS["ridge"], linestyle="--", label="zero")
        axes[0].set(xlabel="training step", ylabel="loss (half mean square)", yscale="log")
        plain_log(axes[0])
        for n, ax in enumerate(axes[1:]):
            for name in curves:
                ax.plot(waves["x"], waves[f"{name} final {n}"], color=colours[name], label=f"{name}, after")
                ax.plot(waves["x"], waves[f"{name} initial {n}"], ":", color=colours[name], label=f"{name}, before")
            ax.plot(waves["X"][:, n], waves["Y"][:, n], "o", color="black", markersize=4, label="context")
            ax.set(xlabel="x", ylabel="y" if n == 0 else "")
        axes[0].legend(fontsize=7, frameon=False)
        axes[-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        save_figure(fig, path)


def copy_figure(curve: Curve, levels: Mapping[str, float], path: Path) -> None:
    """Loss, and how the first layer's outputs depend on the own, the next and other tokens, by step (paper, Fig. 5).

    Args:
        curve: evaluations with `loss` and `sensitivity_own`, `.._next`, `.._other`.
        levels: predictor -> loss.
        path: where to write the figure.
    """
    names = {"zero": "zero", "gd": "one step of GD"}
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.3))
        band(axes[0], curve, "loss", COLOURS["trained"], "trained")
        for name, loss in levels.items():
            axes[0].axhline(loss, color=COLOURS.get(name, COLOURS["ridge"]), linestyle="--", label=f"{names[name]} {loss:.4f}")
        axes[0].set(xlabel="training step", ylabel="loss (half mean square)")
        for what, colour in (("own", "#999999"), ("next", "#d55e00"), ("other", "#0072b2")):
            band(axes[1], curve, f"sensitivity_{what}", colour, f"{what} token" + "s" * (what == "other"))
        axes[1].set(xlabel="training step", ylabel="sensitivity of the first layer", yscale="log")
        plain_log(axes[1])
        for ax in axes:
            ax.legend(fontsize=8, frameon=False)
        save_figure(fig, path)


def curves_figure(
    curves: Mapping[str, Curve], levels: Mapping[str, float], path: Path, *, each: bool = False, title: str = ""
) -> None:
    """Validation loss by step of several models (paper, Fig. 11, 14, 15, 16).

    Args:
        curves: label -> evaluations with `loss`.
        levels: label -> loss of what was not trained.
        path: where to write the figure.
        each: a panel for each model with a line for each seed, rather than one panel with means and ranges.
        title: of the figure.
    """
    with plt.rc_context(STYLE):
        panels = len(curves) if each else 1
        fig, axes = plt.subplots(1, panels, figsize=(4.4 * panels, 3.4), squeeze=False, sharey=True)
        for n, (label, curve) in enumerate(curves.items()):
            if each:
                ax = axes[0, n]
                ax.plot([e["step"] for e in curve], [e["loss"] for e in curve], linewidth=1)
                ax.set(title=label)
            else:
                band(axes[0, 0], curve, "loss", _palette[n % len(_palette)], label)
        for ax in axes.flat:
            for n, (label, loss) in enumerate(levels.items()):
                ax.axhline(loss, color="black", linestyle=("--", ":", "-.")[n % 3], linewidth=1, label=f"{label} {loss:.4f}")
            ax.set(xlabel="training step", yscale="log")
            plain_log(ax)
        axes[0, 0].set_ylabel("validation loss (half mean square)")
        axes[0, 0].legend(fontsize=8, frameon=False)
        fig.suptitle(title, fontsize=10)
        save_figure(fig, path)


def heads_figure(products: Mapping[str, np.ndarray], path: Path) -> None:
    """`M_h R_h[-1, -1]` of each head and of all together: two heads with softmax cancel off the diagonal (paper, Fig. 12).

    Args:
        products: label -> [heads, width, width].
        path: where to write the figure.
    """
    with plt.rc_context({**STYLE, "axes.grid": False}):
        fig, axes = plt.subplots(len(products), 3, figsize=(8.4, 2.6 * len(products)), squeeze=False)
        for row, (label, heads) in zip(axes, products.items(), strict=True):
            shown = {f"head {n + 1}": product for n, product in enumerate(heads)} | {"sum": heads.sum(axis=0)}
            for ax in row[len(shown) :]:
                ax.axis("off")
            for ax, (name, product) in zip(row, shown.items(), strict=False):
                limit = max(float(np.abs(product).max()), 1e-12)
                image = ax.imshow(product, cmap="RdBu_r", norm=TwoSlopeNorm(0, -limit, limit))
                ax.set(xticks=[], yticks=[])
                ax.set_title(name, fontsize=9)
                fig.colorbar(image, ax=ax, shrink=0.8)
            row[0].set_ylabel(label, fontsize=9)
        save_figure(fig, path)


def finite_figure(losses: Mapping[int, tuple[float, float]], level: float, path: Path) -> None:
    """Loss on the training tasks and on fresh ones by the number of training tasks (paper, Fig. 16).

    Args:
        losses: number of tasks -> (training loss, test loss).
        level: loss of one step of descent.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(4.6, 3.3))
        sizes = sorted(losses)
        for place, (label, colour) in enumerate((("training tasks", COLOURS["warm"]), ("fresh tasks", COLOURS["trained"]))):
            ax.plot(sizes, [losses[size][place] for size in sizes], "o-", color=colour, label=label)
        ax.axhline(level, color=COLOURS["gd"], linestyle="--", label=f"GD {level:.4f}")
        ax.set(xscale="log", xlabel="training tasks", ylabel="loss (half mean square)")
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.minorticks_off()
        ax.legend(fontsize=8, frameon=False)
        save_figure(fig, path)


def adjusted_figure(by_layers: Mapping[str, Mapping[int, float]], levels: Mapping[str, float], path: Path) -> None:
    """Loss above ridge regression that knows the noise, by number of layers (Vladymyrov et al. 2024, Fig. 2).

    Args:
        by_layers: predictor -> K -> adjusted loss.
        levels: predictor without layers -> adjusted loss.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.6, 3.6))
        for name, colour in (("gd++", COLOURS["gd++"]), ("diagonal", COLOURS["trained"])):
            values = by_layers.get(name, {})
            label = {"gd++": "GD++, two scalars a layer", "diagonal": "diagonal, four scalars a layer"}[name]
            ax.plot(sorted(values), [values[K] for K in sorted(values)], "o-", color=colour, label=label)
        for n, (name, loss) in enumerate(levels.items()):
            ax.axhline(loss, color=_palette[-1 - n], linestyle=("--", ":", "-.", (0, (1, 1)))[n % 4], label=name)
        ax.set(xlabel="layers K", ylabel="loss above the oracle's", yscale="log")
        ax.set_xticks(sorted({K for values in by_layers.values() for K in values}))
        plain_log(ax)
        ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        save_figure(fig, path)


def prefixes_figure(losses: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Loss divided by E[f²] after so many pairs, a panel for each class (Garg et al. 2022, Fig. 2 and 5).

    Args:
        losses: class -> predictor -> [T].
        path: where to write the figure.
    """
    names = list(dict.fromkeys(name for by_name in losses.values() for name in by_name if name != "trained"))
    with plt.rc_context(STYLE):
        columns = min(3, len(losses))
        rows = -(-len(losses) // columns)
        fig, axes = plt.subplots(rows, columns, figsize=(4.0 * columns, 3.0 * rows), squeeze=False)
        for ax in axes.flat[len(losses) :]:
            ax.axis("off")
        for ax, (kind, by_name) in zip(axes.flat, losses.items(), strict=False):
            top = 2 * float(by_name["zero"].max())
            for name, values in by_name.items():
                trained = name == "trained"
                style = {"color": "#0072b2" if trained else _shade(names.index(name)), "linewidth": 2.2 if trained else 1.2}
                ax.plot(range(len(values)), values, label="transformer" if trained else name, **style)
            ax.set(title=kind, xlabel="pairs seen", ylim=(0, top))
        axes[0, 0].set_ylabel("half mean square over E[f²]")
        handles: dict[str, Any] = {}
        for ax in axes.flat:
            handles |= {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1), "fontsize": 8, "frameon": False}
        axes[0, -1].legend(list(handles.values()), list(handles), **place)
        save_figure(fig, path)


def _shade(n: int) -> str:
    return ("#999999", "#d55e00", "#009e73", "#cc79a7", "#f0e442", "#e69f00", "#b35900", "#56b4e9")[n % 8]

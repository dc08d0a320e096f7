"""Figures of an in-context learning run, drawn from its files alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.figures import COLOURS as PALETTE
from jexplicit.runs.figures import figure, legend_outside
from launch.icl.panels import (
    COLOURS,
    LOSS,
    NAMES,
    Curve,
    Sweeps,
    draw_band,
    draw_curve,
    draw_legends,
    draw_levels,
    draw_matrix,
    log_ticks,
    size_ticks,
)


def training_figure(curves: Mapping[str, Curve], levels: Mapping[str, float], target: str, title: str, path: Path) -> None:
    """Loss, agreement with descent and distance to it by step, mean and range over seeds (paper, Fig. 2, 3, 7)."""
    with figure(path, columns=3, size=(9, 3.2)) as axes:
        loss, cosine, distance = axes[0]
        for start, curve in curves.items():
            colour = COLOURS["trained" if start == "cold" else "warm"]
            for ax, what in zip(axes[0], ("loss", "cosine", "prediction_difference"), strict=True):
                draw_curve(ax, curve, what, colour, f"trained, {start} start")
            draw_curve(distance, curve, "model_difference", colour, None, linestyle="--")
        for name, level in levels.items():
            label = f"{NAMES.get(name, name)} {level:.4g}"
            loss.axhline(level, color=COLOURS[name], linestyle=":" if name == "closed_form" else "--", label=label)
        loss.set(xlabel="training step", ylabel=f"validation {LOSS}", yscale="log")
        cosine.set(xlabel="training step", ylabel=f"cosine of sensitivities with {NAMES[target]}")
        distance.set(xlabel="training step", ylabel=f"distance to {NAMES[target]}", yscale="log")
        distance.set_ylim(bottom=max(distance.get_ylim()[0], 1e-3))  # a warm start begins at 0
        distance.plot([], [], color="black", label="predictions")
        distance.plot([], [], color="black", linestyle="--", label="sensitivities")
        log_ticks(loss)
        log_ticks(distance)
        draw_legends(loss, distance)
        loss.figure.suptitle(title, fontsize=10)


def sweep_figure(sweeps: Mapping[str, Sweeps], title: str, path: Path) -> None:
    """Loss on shifted tasks, by shift and predictor, mean and range over seeds (paper, Fig. 2 right and 6)."""
    labels = {
        "input_range": "input range r, U(-r/2, r/2)",
        "weight_scale": "weight scale c",
        "mixture": "norm of X; exponential, normal or Laplace",
    }
    with figure(path, columns=len(sweeps), size=(3.9 * len(sweeps), 3.6)) as axes:
        for ax, (shift, by_name) in zip(axes[0], sweeps.items(), strict=True):
            for name, (values, losses) in by_name.items():
                draw_band(ax, values, losses, COLOURS[name], NAMES.get(name, name), linestyle="-" if len(losses) > 1 else "--")
            ax.set(xlabel=labels[shift], yscale="log")
            if "gd" in by_name:  # leave out what is far above descent
                ax.set_ylim(top=min(ax.get_ylim()[1], 100 * float(np.max(by_name["gd"][1]))))
        axes[0, 0].set_ylabel(LOSS)
        draw_legends(axes[0, 0])
        axes[0, 0].figure.suptitle(title, fontsize=10)


def rollout_figure(paths: Mapping[float, Mapping[str, np.ndarray]], path: Path) -> None:
    """Losses [seeds, steps] of one layer applied repeatedly and of descent, a panel per damping (paper, Fig. 1 and 10)."""
    with figure(path, columns=len(paths), size=(3.6 * len(paths), 3.2)) as axes:
        for ax, (damping, by_name) in zip(axes[0], sorted(paths.items()), strict=True):
            for name, losses in by_name.items():
                label = "one trained layer, applied repeatedly" if name == "trained" else NAMES[name]
                steps = np.arange(1, losses.shape[1] + 1)
                draw_band(ax, steps, losses, COLOURS[name], label, linestyle="--" if name == "gd" else "-")
            most = max(float(np.nanmax(losses[:, :1])) for losses in by_name.values())
            ax.set(xscale="log", yscale="log", xlabel="steps", title=f"damping {damping:g}")
            ax.set_ylim(top=min(ax.get_ylim()[1], 10 * most))
            log_ticks(ax)
        axes[0, 0].set_ylabel(LOSS)
        draw_legends(axes[0, 0])


def weights_figure(weights: Mapping[str, np.ndarray], title: str, path: Path) -> None:
    """The maps M and R of a trained layer and of the constructed one, and the scores of a context (paper, Fig. 9)."""
    kinds = {
        "M": r"$M = W_K^\top W_Q$",
        "R": r"$R = P W_V$",
        "scores": "scores, one task",
        "mean scores": "scores, mean of 1000",
    }
    with figure(path, rows=2, columns=4, size=(10.5, 5.4)) as axes:
        for column, (kind, label) in zip(axes.T, kinds.items(), strict=True):
            shown = [np.asarray(weights[f"{name} {kind}"]) for name in ("trained", "constructed")]
            shown = [first[0] if first.ndim == 3 else first for first in shown]
            limit = max(float(np.abs(values).max()) for values in shown)
            for ax, values in zip(column, shown, strict=True):
                draw_matrix(ax, values, limit)
            column[0].set_title(label, fontsize=10)
        for ax, name in zip(axes[:, 0], ("trained", "constructed"), strict=True):
            ax.set_ylabel(name)
        axes[0, 0].figure.suptitle(title, fontsize=10)


def layers_figure(weights: Mapping[str, np.ndarray], title: str, path: Path) -> None:
    """The maps M and R of every layer, trained above constructed; below each its largest entry, the scale of its colours."""
    L = len(weights["trained M"])
    size = max(1.1, min(1.9, 14 / L))  # inches of a matrix
    with figure(path, rows=4, columns=L, size=(size * L + 0.5, 4.6 * size + 0.8)) as axes:
        kinds = [f"{name} {kind}" for kind in ("M", "R") for name in ("trained", "constructed")]
        for row, kind in zip(axes, kinds, strict=True):
            for ax, values in zip(row, weights[kind], strict=True):
                limit = max(float(np.abs(values).max()), 1e-12)
                draw_matrix(ax, values, limit, scale=False)
                ax.set_xlabel(f"{limit:.2g}", fontsize=8)
            row[0].set_ylabel(kind, fontsize=8)
        for n, ax in enumerate(axes[0]):
            ax.set_title(f"layer {n + 1}", fontsize=9)
        axes[0, 0].figure.suptitle(title, fontsize=10)


def curvature_figure(
    spectra: Mapping[int, tuple[np.ndarray, np.ndarray]],
    gammas: Mapping[str, Mapping[int, float]],
    paper: Mapping[int, float],
    path: Path,
) -> None:
    """Eigenvalues [T, d] of contexts before and after a GD++ step, condition numbers, and γ by predictor and N (Fig. 13)."""
    sizes, series = sorted(spectra), (("before", COLOURS["gd"]), ("after one layer", COLOURS["gd++"]))
    with figure(path, columns=3, size=(11.5, 3.4)) as axes:
        histogram, conditions, rates = axes[0]
        bins = np.linspace(0, float(np.quantile(spectra[sizes[0]][0], 0.999)), 60).tolist()
        for place, (label, colour) in enumerate(series):
            values = spectra[sizes[0]][place].ravel()
            histogram.hist(values, bins=bins, density=True, histtype="step", color=colour, label=label)
            ratios = [spectra[n][place].max(axis=1) / np.maximum(spectra[n][place].min(axis=1), 1e-12) for n in sizes]
            middle, low, high = (np.array([np.quantile(r, q) for r in ratios]) for q in (0.5, 0.1, 0.9))
            error = [middle - low, high - middle]
            conditions.errorbar(sizes, middle, error, fmt="o-", color=colour, label=label, capsize=3)
        histogram.set(yscale="log", xlabel=r"eigenvalue of $X^\top X$", ylabel="density", title=f"N = {sizes[0]}")
        for name, by_size in gammas.items():
            if by_size:
                style = {"color": COLOURS[name], "label": NAMES[name], "linestyle": "-" if name == "closed_form" else "--"}
                rates.plot(sorted(by_size), [by_size[n] for n in sorted(by_size)], marker="o", **style)
        if known := [n for n in sizes if n in paper]:
            style = {"color": COLOURS["interpolated"], "label": "paper, trained", "alpha": 0.6}
            rates.plot(known, [paper[n] for n in known], "s", **style)
        conditions.set_ylabel("condition number, median and 10 to 90 %")
        rates.set_ylabel(r"$\gamma$ of two recurrent layers")
        for ax in (conditions, rates):
            ax.set(xscale="log", yscale="log", xlabel="pairs N")
            size_ticks(ax, sizes)
            log_ticks(ax)
        draw_legends(*axes[0])


def scaling_figure(losses: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Loss of one layer by predictor and N = d (paper, Fig. 2)."""
    with figure(path, size=(5.2, 3.4)) as axes:
        ax, sizes = axes[0, 0], sorted({n for by_size in losses.values() for n in by_size})
        width = 0.8 / len(losses)
        for place, (name, by_size) in enumerate(losses.items()):
            at = [k + (place - (len(losses) - 1) / 2) * width for k, n in enumerate(sizes) if n in by_size]
            heights = [by_size[n] for n in sizes if n in by_size]
            bars = ax.bar(at, heights, width, color=COLOURS[name], label=NAMES.get(name, name))
            ax.bar_label(bars, fmt="{:.3f}", fontsize=7, rotation=90, padding=2)
        ax.set_xticks(range(len(sizes)), [str(n) for n in sizes])
        ax.set(xlabel="N = d", ylabel=LOSS, ylim=(0, 1.25 * max(max(b.values()) for b in losses.values())))
        draw_legends(ax, loc="upper left")


def waves_figure(curves: Mapping[str, Curve], zero: float, waves: Mapping[str, np.ndarray], path: Path) -> None:
    """Loss by step, and the predictions for a few waves before and after attention (paper, Fig. 4)."""
    colours, number = {"trained": COLOURS["trained"], "control": COLOURS["gd"]}, waves["X"].shape[1]
    with figure(path, columns=1 + number, size=(3.6 * (1 + number), 3.3)) as axes:
        loss, *panels = axes[0]
        for name, curve in curves.items():
            draw_curve(loss, curve, "loss", colours[name], f"{name}, after attention")
            draw_curve(loss, curve, "initial_loss", colours[name], f"{name}, before it", linestyle=":")
        loss.axhline(zero, color=COLOURS["ridge"], linestyle="--", label="zero")
        loss.set(xlabel="training step", ylabel=LOSS, yscale="log")
        log_ticks(loss)
        for n, ax in enumerate(panels):
            for name in curves:
                ax.plot(waves["x"], waves[f"{name} final {n}"], color=colours[name], label=f"{name}, after")
                ax.plot(waves["x"], waves[f"{name} initial {n}"], ":", color=colours[name], label=f"{name}, before")
            ax.plot(waves["X"][:, n], waves["Y"][:, n], "o", color="black", markersize=4, label="context")
            ax.set(xlabel="x", ylabel="y" if n == 0 else "")
        draw_legends(loss, fontsize=7)
        legend_outside(panels[-1])


def copy_figure(curve: Curve, linear: Curve, levels: Mapping[str, float], path: Path) -> None:
    """Loss, and sensitivities of the first layer to the same, the next and other tokens, by step (paper, Fig. 5).

    linear: the loss of layers of which the first is linear, too.
    """
    names = {"zero": "zero", "gd": "one step of GD"}
    with figure(path, columns=2, size=(8.4, 3.3)) as axes:
        loss, sensitivity = axes[0]
        draw_curve(loss, linear, "loss", COLOURS["interpolated"], "first layer linear")
        draw_curve(loss, curve, "loss", COLOURS["trained"], "first layer with softmax")
        for name, level in levels.items():
            loss.axhline(level, color=COLOURS.get(name, COLOURS["ridge"]), linestyle="--", label=f"{names[name]} {level:.4f}")
        loss.set(xlabel="training step", ylabel=f"validation {LOSS}")
        for what, label, colour in (("own", "same token", 6), ("next", "next token", 1), ("other", "other tokens", 0)):
            draw_curve(sensitivity, curve, f"sensitivity_{what}", PALETTE[colour], label)
        sensitivity.set(xlabel="training step", ylabel="sensitivity of the first layer", yscale="log")
        log_ticks(sensitivity)
        draw_legends(*axes[0])


def curves_figure(curves: Mapping[str, Curve], levels: Mapping[str, float], path: Path, *, by_seed: bool = False) -> None:
    """Validation loss by step of several models: in one panel, or a panel each by seed (paper, Fig. 11, 14, 15, 16)."""
    panels = len(curves) if by_seed else 1
    with figure(path, columns=panels, size=(4.4 * panels, 3.4), sharey=True) as axes:
        for n, (label, curve) in enumerate(curves.items()):
            if by_seed:
                axes[0, n].plot([e["step"] for e in curve], [e["loss"] for e in curve], linewidth=1)
                axes[0, n].set(title=label)
            else:
                draw_curve(axes[0, 0], curve, "loss", PALETTE[n % len(PALETTE)], label)
        for ax in axes[0]:
            draw_levels(ax, levels)
            ax.set(xlabel="training step", yscale="log")
            log_ticks(ax)
        axes[0, 0].set_ylabel(f"validation {LOSS}")
        draw_legends(axes[0, 0])


def memory_figure(curves: Mapping[str, Curve], levels: Mapping[str, float], path: Path) -> None:
    """Loss by step on the training tasks and on fresh ones, a panel for each number of tasks (paper, Fig. 15 and 16)."""
    with figure(path, columns=len(curves), size=(4.6 * len(curves), 3.4), sharey=True) as axes:
        for ax, (label, curve) in zip(axes[0], curves.items(), strict=True):
            draw_curve(ax, curve, "loss", COLOURS["trained"], "fresh tasks")
            draw_curve(ax, curve[1:], "training_loss", COLOURS["warm"], "training tasks")
            draw_levels(ax, levels)
            ax.set(xlabel="training step", yscale="log", title=label)
            log_ticks(ax)
        axes[0, 0].set_ylabel(LOSS)
        draw_legends(axes[0, 0])


def heads_figure(products: Mapping[str, np.ndarray], path: Path) -> None:
    """`M_h R_h[-1, -1]` of each head and their sum: two softmax heads cancel off the diagonal (paper, Fig. 12)."""
    with figure(path, rows=len(products), columns=3, size=(8.4, 2.6 * len(products))) as axes:
        for row, (label, heads) in zip(axes, products.items(), strict=True):
            shown = {f"head {n + 1}": product for n, product in enumerate(heads)} | {"sum": heads.sum(axis=0)}
            for ax in row[len(shown) :]:
                ax.axis("off")
            for ax, (name, product) in zip(row, shown.items(), strict=False):
                draw_matrix(ax, product, max(float(np.abs(product).max()), 1e-12))
                ax.set_title(name, fontsize=9)
            row[0].set_ylabel(label, fontsize=9)


def finite_figure(losses: Mapping[int, tuple[float, float]], level: float, path: Path) -> None:
    """Loss on the training tasks and on fresh ones, by the number of training tasks (paper, Fig. 16)."""
    sizes = sorted(losses)
    with figure(path, size=(4.6, 3.3)) as axes:
        ax = axes[0, 0]
        for place, (label, colour) in enumerate((("training tasks", COLOURS["warm"]), ("fresh tasks", COLOURS["trained"]))):
            ax.plot(sizes, [losses[size][place] for size in sizes], "o-", color=colour, label=label)
        ax.axhline(level, color=COLOURS["gd"], linestyle="--", label=f"GD {level:.4f}")
        ax.set(xscale="log", xlabel="training tasks", ylabel=LOSS)
        size_ticks(ax, sizes)
        draw_legends(ax)


def adjusted_figure(losses: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Adjusted loss by predictor and K, which is 0 for predictors without layers (Vladymyrov et al. 2024, Fig. 2)."""
    labels = {"gd++": "GD++, two scalars per layer", "diagonal": "diagonal, four scalars per layer"}
    with figure(path, size=(5.6, 3.6)) as axes:
        ax = axes[0, 0]
        for name, colour in (("gd++", COLOURS["gd++"]), ("diagonal", COLOURS["trained"])):
            by_layers = sorted(losses.get(name, {}).items())
            ax.plot([K for K, _ in by_layers], [loss for _, loss in by_layers], "o-", color=colour, label=labels[name])
        levels = {name: by_layers[0] for name, by_layers in losses.items() if 0 in by_layers and name != "oracle"}
        for n, (name, loss) in enumerate(levels.items()):
            style = {"linestyle": ("--", ":", "-.", (0, (1, 1)))[n % 4], "color": ("black", *PALETTE[:2:-1])[n % 4]}
            ax.axhline(loss, label=name, **style)
        ax.set(xlabel="layers K", ylabel="loss above the oracle's", yscale="log")
        ax.set_xticks(sorted({K for by_layers in losses.values() for K in by_layers if K}))
        log_ticks(ax)
        legend_outside(ax)


def prefixes_figure(losses: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Loss over E[f²] by pairs seen, a panel for each class with a line for each predictor (Garg et al. 2022, Fig. 2 and 5)."""
    names = list(dict.fromkeys(name for by_name in losses.values() for name in by_name if name != "trained"))
    shades = ("#999999", "#d55e00", "#009e73", "#cc79a7", "#f0e442", "#e69f00", "#b35900", "#56b4e9")
    columns = min(3, len(losses))
    rows = -(-len(losses) // columns)
    handles: dict[str, Any] = {}
    with figure(path, rows=rows, columns=columns, size=(4.0 * columns, 3.0 * rows)) as axes:
        for ax in axes.flat[len(losses) :]:
            ax.axis("off")
        for ax, (kind, by_name) in zip(axes.flat, losses.items(), strict=False):
            for name, values in by_name.items():
                style = {"color": "#0072b2", "linewidth": 2.2, "label": "transformer"}
                if name != "trained":
                    style = {"color": shades[names.index(name) % 8], "linewidth": 1.2, "label": name}
                handles |= {str(style["label"]): ax.plot(range(len(values)), values, **style)[0]}
            ax.set(title=kind, xlabel="pairs seen", ylim=(0, 2 * float(by_name["zero"].max())))
        axes[0, 0].set_ylabel("half mean square over E[f²]")
        legend_outside(axes[0, -1], handles=list(handles.values()))

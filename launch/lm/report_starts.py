"""The part of a report that compares cold and warm starts with the explicit solution and the optimum."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter

from jexplicit.runs.figures import STYLE, plain_ticks, plt, save_figure
from jexplicit.runs.folder import read_events

_colours = {1: "#009e73", 2: "#0072b2", 4: "#d55e00"}
_lines = {"cold": "--", "warm": "-"}
Curves = dict[tuple[str, str, int], list[dict[str, Any]]]

_reading = """\
*cold* and *warm* are trained by gradients, from random tables and from the explicit solution; *optimum* is the minimum of the
convex training loss, as far as its iterations went. Perplexities are those of the epoch with the lowest dev perplexity; epoch 0
is the start itself. *KKT residual* is `||Hᵀ(Y - P)||_1 / (K M)`: the share of co-occurrences that a model misplaces, counted
where they are and where they should be. *Break-even* is when the cold start reaches the train perplexity of the explicit
solution, which took one pass.
"""


def starts_section(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of report.md, and the figures they show; nothing for a run without trained models."""
    trained = [row for row in rows if row["method"] in ("cold", "warm", "optimum")]
    if not trained:
        return []
    curves = read_curves(out)
    explicit = {(row["features"], row["radius"]): row for row in rows if row["method"] == "explicit"}
    lines = [
        "## Cold and warm starts",
        "",
        _reading,
        "| method | features | K | train | dev | epochs | best | KKT residual | seconds | positions/s | break-even |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (*explicit.values(), *trained):
        lines.append(
            f"| {row['method']} | {row['features']} | {row['radius']} | {row['train_perplexity']:.1f} | "
            f"{row['dev_perplexity']:.1f} | {row.get('epochs', '')} | {row.get('best_epoch', '')} | "
            f"{row['kkt_residual']:.4f} | {row.get('seconds', row['solve_seconds']):.1f} | "
            f"{_count(row.get('positions_per_second'))} | {_break_even(row, curves, explicit)} |"
        )
    if curves:
        loss_curves(curves, out / "figures" / "loss_curves.png")
        compute_curves(curves, explicit, out / "figures" / "compute.png")
        lines += ["", "![loss curves](figures/loss_curves.png)", "", "![perplexity against compute](figures/compute.png)"]
    return [*lines, ""]


def read_curves(out: Path) -> Curves:
    """The epochs of each trained model, from metrics.jsonl; an epoch that a resumed run repeated counts once."""
    curves: dict[tuple[str, str, int], dict[int, dict[str, Any]]] = {}
    for event in read_events(out, "epoch"):
        curves.setdefault((event["method"], event["features"], event["radius"]), {})[event["epoch"]] = event
    return {model: [epochs[n] for n in sorted(epochs)] for model, epochs in curves.items()}


def break_even(curve: Sequence[dict[str, Any]], perplexity: float) -> dict[str, Any] | None:
    """The first epoch of a training curve with at most this train perplexity, or None."""
    return next((epoch for epoch in curve if epoch["train_perplexity"] <= perplexity), None)


def loss_curves(curves: Curves, path: Path) -> None:
    """Perplexity by epoch, log-log, with the value before training at epoch 0.5 (paper, Fig. 1 right and Fig. 3)."""
    features = [name for name in ("sum", "cat") if any(model[1] == name for model in curves)]
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(len(features), 2, figsize=(9, 3.3 * len(features)), squeeze=False, sharex=True)
        for row, name in zip(axes, features, strict=True):
            for ax, part in zip(row, ("train", "dev"), strict=True):
                for (method, of, K), curve in curves.items():
                    if of == name or K == 1:  # where Sum and Cat are one model, trained once
                        x = [max(epoch["epoch"], 0.5) for epoch in curve]
                        y = [epoch[f"{part}_perplexity"] for epoch in curve]
                        ax.plot(x, y, _lines[method], color=_colours.get(K), marker=".", label=f"{method}, K = {K}")
                ax.set(xscale="log", yscale="log", title=f"{name.capitalize()}, {part}")
                plain_ticks(ax.yaxis)
            row[0].set_ylabel("perplexity")
        for ax in axes[-1]:
            ax.set_xlabel("epoch (before training at 0.5)")
        axes[0, 1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def compute_curves(curves: Curves, explicit: dict[tuple[str, int], dict[str, Any]], path: Path) -> None:
    """Perplexity against compute: passes over the data, and seconds, of explicit, cold and warm."""
    models = sorted({model[1:] for model in curves}, key=lambda model: (model[0], model[1]))
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(2, len(models), figsize=(3.1 * len(models) + 0.6, 6), squeeze=False, sharey="col")
        for column, (features, K) in zip(axes.T, models, strict=True):
            solved = explicit.get((features, K))
            spent = solved["count_seconds"] + solved["solve_seconds"] if solved else 0.0
            for ax, against in zip(column, ("passes", "seconds"), strict=True):
                for method in ("cold", "warm"):
                    curve = curves.get((method, features, K), [])
                    first = (1.0 if against == "passes" else spent) if method == "warm" else None
                    _compute_line(ax, curve, against, first, _lines[method], method)
                if solved:
                    x = 1.0 if against == "passes" else spent
                    ax.plot(x, solved["train_perplexity"], "*", markersize=13, color="#d55e00", label="explicit, train")
                    ax.plot(x, solved["dev_perplexity"], "*", markersize=13, color="#0072b2", label="explicit, dev")
                ax.set(xscale="log", yscale="log", xlabel=f"{against} (counting included)" if against == "seconds" else against)
                plain_ticks(ax.yaxis)
                ax.xaxis.set_minor_formatter(NullFormatter())
            column[0].set_title("Sum = Cat, K = 1" if K == 1 else f"{features.capitalize()}, K = {K}")
        for ax in axes[:, 0]:
            ax.set_ylabel("perplexity")
        axes[0, -1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def _compute_line(ax: Any, curve: Sequence[dict[str, Any]], against: str, before: float | None, line: str, method: str) -> None:
    """A training curve against compute; a warm start has spent `before` on its counting pass."""
    epochs = [epoch for epoch in curve if epoch["epoch"] > 0 or before is not None]
    field = "epoch" if against == "passes" else "seconds"
    x = np.array([epoch[field] for epoch in epochs]) + (before or 0.0)
    for part, colour in (("train", "#d55e00"), ("dev", "#0072b2")):
        y = [epoch[f"{part}_perplexity"] for epoch in epochs]
        ax.plot(x, y, line, color=colour, marker=".", label=f"{method}, {part}")


def _break_even(row: dict[str, Any], curves: Curves, explicit: dict[tuple[str, int], dict[str, Any]]) -> str:
    features, K = row["features"], row["radius"]
    curve = curves.get(("cold", features, K))
    if row["method"] != "cold" or curve is None or (features, K) not in explicit:
        return ""
    reached = break_even(curve, explicit[features, K]["train_perplexity"])
    return f"epoch {reached['epoch']}, {reached['seconds']:.0f} s" if reached else "not reached"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"

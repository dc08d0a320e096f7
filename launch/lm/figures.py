"""Figures of launch.lm, drawn from the files of a run alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from jexplicit.runs.figures import COLOURS, figure, legend_outside, plain_ticks

Curves = dict[tuple[str, str, int], list[dict[str, Any]]]

_features = {"sum": "#d55e00", "cat": "#0072b2"}  # colour-blind readers can tell these apart
_baselines = {"unigram": ("#999999", ":"), "bigram": ("#009e73", "-.")}
_by_radius = {1: "#009e73", 2: "#0072b2", 4: "#d55e00"}
_lines = {"cold": "--", "warm": "-"}
_methods = {
    "explicit": "#d55e00",
    "delta": "#d4b9da",
    "mean-cooccurrence": "#f0e442",
    "intercept": "#e69f00",
    "cold": "#999999",
    "warm": "#56b4e9",
    "optimum": "#000000",
    "log-linear": "#0072b2",
    "iterative-scaling": "#cc79a7",
}
_levels = {
    ("bigram", "none"): ("#009e73", ":"),
    ("ngram", "none"): ("#009e73", "-."),
    ("mixture", "none"): ("#009e73", "-"),
    ("mixture", "all"): ("#e69f00", "-"),
}
_panels = {"sum": "Sum", "cat": "Cat"}
_tokens_per_line, _most_lines = 25, 12  # of an attribution map


def perplexity_by_radius(rows: Sequence[dict[str, Any]], paper: dict[str, dict[int, tuple[float, float]]], path: Path) -> None:
    """Train and dev perplexity of Sum and Cat against the radius K, with the baselines and the paper's explicit solution.

    Args:
        rows: of results.json.
        paper: features -> K -> (train, dev) perplexity; empty to leave it out.
        path: where to write the figure.
    """
    with figure(path, 1, 2, size=(9, 3.8), sharey=True) as axes:
        radii = sorted({row["radius"] for row in rows if row["method"] == "explicit"})
        for ax, part, column in zip(axes[0], ("train", "dev"), (0, 1), strict=True):
            for features, colour in _features.items():
                ours = sorted(
                    (row["radius"], row[f"{part}_perplexity"])
                    for row in rows
                    if row["method"] == "explicit" and row["features"] == features
                )
                if ours:
                    ax.plot(*zip(*ours, strict=True), "o-", color=colour, label=f"explicit, {features.capitalize()}")
                theirs = [(K, values[column]) for K, values in paper.get(features, {}).items() if K in radii]
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
        axes[0, 0].set_ylabel("perplexity")
        legend_outside(axes[0, 1])


def scaling_assumption(panels: Sequence[dict[str, Any]], path: Path) -> None:
    """The scaling assumption (paper, Fig. 1 left): f_i against the mean co-occurrence, with the fitted line.

    Args:
        panels: dictionaries with `title`, `f` [N], `log_means` [N], `slope`, `intercept`.
        path: where to write the figure.
    """
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    with figure(path, rows, columns, size=(3.6 * columns, 3.3 * rows)) as axes:
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        for ax, panel in zip(axes.flat, panels, strict=False):
            seen = panel["f"] > 0
            f, means = panel["f"][seen].astype(float), np.exp(panel["log_means"][seen].astype(float))
            ax.hexbin(f, means, xscale="log", yscale="log", gridsize=45, mincnt=1, cmap="viridis", norm=LogNorm())
            ends = np.array([f.min(), f.max()])
            fitted = np.exp(panel["intercept"]) * ends ** panel["slope"]
            ax.plot(ends, fitted, color="#d55e00", label=f"fitted slope {panel['slope']:.3f}")
            centre = np.exp(np.log(f).mean()), np.exp(np.log(means).mean())
            ax.plot(ends, centre[1] * ends / centre[0], "--", color="black", linewidth=1, label="slope 1 (assumed)")
            ax.set(title=panel["title"], xlabel="token count $f_i$", ylabel=r"$\langle E_G[F_i] \rangle$")
            for axis in (ax.xaxis, ax.yaxis):  # of six panels they take seconds to lay out
                axis.set_minor_locator(NullLocator())
            ax.legend(fontsize=8, loc="lower right")


def attribution_map(
    names: Sequence[str], context: Sequence[Sequence[str]], predicted: Sequence[str], evidence: np.ndarray, path: Path
) -> None:
    """Heat map of what each context token, or row, says for each token that came; long texts wrap as lines of text do.

    Args:
        names: of the G rows.
        context: M times the G context tokens that the rows speak for.
        predicted: M tokens that came, in order.
        evidence: [M, G] nats, from jexplicit.lm.attribution.explain.
        path: where to write the figure.
    """
    M, G = evidence.shape
    tokens = max(_tokens_per_line, -(-M // _most_lines))  # of a line
    lines, columns = -(-M // tokens), min(M, tokens)
    with figure(path, lines, size=(min(max(5.0, 0.55 * columns + 1.6), 40.0), lines * (0.45 * G + 1.1) + 0.9)) as axes:
        limit = max(float(np.abs(evidence).max()), 1e-6)
        for line, ax in enumerate(axes[:, 0]):
            there = range(line * tokens, min((line + 1) * tokens, M))
            ax.grid(False)
            ax.imshow(evidence[there].T, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
            ax.set(xlim=(-0.5, columns - 0.5))  # cells of one width, in a short last line too
            ax.set_xticks(
                range(len(there)), [predicted[m] for m in there], rotation=60, ha="right", fontsize=8, parse_math=False
            )
            ax.set_yticks(range(G), names, fontsize=8)
            for column, m in enumerate(there if tokens <= 70 else ()):  # longer lines leave no room for labels
                for g in range(G):
                    colour = "white" if abs(evidence[m, g]) > 0.6 * limit else "black"
                    options = {"ha": "center", "va": "center", "fontsize": 6, "color": colour, "parse_math": False}
                    ax.text(column, g, context[m][g], **options)
        axes[0, 0].set(title="evidence of each context token (nats)")
        axes[-1, 0].set(xlabel="token that came")
        axes[0, 0].figure.colorbar(axes[0, 0].images[0], ax=list(axes[:, 0]), shrink=0.8)


def loss_curves(curves: Curves, path: Path) -> None:
    """Perplexity by epoch, log-log, with the value before training at epoch 0.5 (paper, Fig. 1 right and Fig. 3)."""
    features = [name for name in ("sum", "cat") if any(model[1] == name for model in curves)]
    last = max(epoch["epoch"] for curve in curves.values() for epoch in curve)
    ticks = [0.5, *(2**n for n in range(last.bit_length()))]  # 1, 2, 4, ... up to the last epoch
    with figure(path, len(features), 2, size=(9, 3.3 * len(features)), sharex=True) as axes:
        for row, name in zip(axes, features, strict=True):
            for ax, part in zip(row, ("train", "dev"), strict=True):
                for (method, of, K), curve in curves.items():
                    if of == name or K == 1:  # where Sum and Cat are one model, trained once
                        x = [max(epoch["epoch"], 0.5) for epoch in curve]
                        y = [epoch[f"{part}_perplexity"] for epoch in curve]
                        ax.plot(x, y, _lines[method], color=_by_radius.get(K), marker=".", label=f"{method}, K = {K}")
                ax.set(xscale="log", yscale="log", title=f"{name.capitalize()}, {part}")
                ax.set_xticks(ticks, ["start", *map(str, ticks[1:])])
                ax.xaxis.set_minor_locator(NullLocator())
                plain_ticks(ax.yaxis)
            row[0].set_ylabel("perplexity")
        for ax in axes[-1]:
            ax.set_xlabel("epoch")
        legend_outside(axes[0, 1])


def compute_curves(curves: Curves, explicit: dict[tuple[str, int], dict[str, Any]], path: Path) -> None:
    """Perplexity against compute: passes over the data, and seconds, of explicit, cold and warm."""
    models = sorted({model[1:] for model in curves}, key=lambda model: (model[0], model[1]))
    with figure(path, 2, len(models), size=(3.1 * len(models) + 0.6, 6), sharey="col") as axes:
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
        legend_outside(axes[0, -1])


def _compute_line(ax: Any, curve: Sequence[dict[str, Any]], against: str, before: float | None, line: str, method: str) -> None:
    """A training curve against compute; a warm start has spent `before` on its counting pass."""
    epochs = [epoch for epoch in curve if epoch["epoch"] > 0 or before is not None]
    field = "epoch" if against == "passes" else "seconds"
    x = np.array([epoch[field] for epoch in epochs]) + (before or 0.0)
    for part, colour in (("train", "#d55e00"), ("dev", "#0072b2")):
        y = [epoch[f"{part}_perplexity"] for epoch in epochs]
        ax.plot(x, y, line, color=colour, marker=".", label=f"{method}, {part}")


def perplexity_by_method(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Dev perplexity against the radius K, a line per method; the models of several tokens as levels."""
    present = [features for features in _panels if any(row["features"] == features for row in rows)]
    radii = sorted({row["radius"] for row in rows if row["method"] in _methods})
    with figure(path, 1, len(present), size=(4.0 * len(present) + 1.4, 3.8), sharey=True) as axes:
        for ax, features in zip(axes[0], present, strict=True):
            for method, colour in _methods.items():
                points = sorted(
                    (row["radius"], row["dev_perplexity"])
                    for row in rows
                    if (row["method"], row["features"]) == (method, features)
                )
                if points:
                    ax.plot(*zip(*points, strict=True), "o-", color=colour, label=method)
            for row in rows:
                if (key := (row["method"], row.get("history", "none"))) in _levels:
                    colour, line = _levels[key]
                    name = row["method"] + (", history all" if key[1] == "all" else "")
                    ax.axhline(row["dev_perplexity"], color=colour, linestyle=line, label=name)
            ax.set(xscale="log", yscale="log", xlabel="radius K (tokens)", title=_panels[features])
            ax.set(xticks=radii, xticklabels=radii)
            ax.xaxis.set_minor_locator(NullLocator())
            plain_ticks(ax.yaxis)
        axes[0, 0].set_ylabel("dev perplexity")
        legend_outside(axes[0, -1])


def exponents_by_offset(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The fitted exponents lambda_k of each log-linear model."""
    with figure(path, size=(6.2, 3.6)) as axes:
        for row in rows:
            lambdas = row["exponents"][1:]
            line = "o-" if row["features"] == "cat" else "s--"
            label = f"{_panels[row['features']]}, K = {row['radius']}: mu = {row['exponents'][0]:.2f}"
            axes[0, 0].plot(range(1, len(lambdas) + 1), lambdas, line, label=label)
        axes[0, 0].axhline(0, color="black", linewidth=0.8)
        axes[0, 0].set(xlabel="offset k (tokens)", ylabel=r"exponent $\lambda_k$")
        axes[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_outside(axes[0, 0])


def sweep_curves(events: Sequence[dict[str, Any]], path: Path) -> None:
    """Train and dev perplexity by sweep; a sweep that a resumed run repeated counts once."""
    curves: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for event in events:
        curves.setdefault((event["features"], event["radius"]), {})[event["sweep"]] = event
    with figure(path, 1, 2, size=(9, 3.4)) as axes:
        for (features, K), curve in curves.items():
            x = sorted(curve)
            for ax, part in zip(axes[0], ("train", "dev"), strict=True):
                y = [curve[sweep][f"{part}_perplexity"] for sweep in x]
                ax.plot(x, y, ".-" if features == "cat" else ".--", label=f"{_panels[features]}, K = {K}")
                ax.set(yscale="log", xlabel="sweep", title=part)
                plain_ticks(ax.yaxis)
        axes[0, 0].set_ylabel("perplexity")
        legend_outside(axes[0, 1])


def perplexity_by_bits(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Dev perplexity and the bytes of the tables against the number of features per token."""
    with figure(path, 1, 2, size=(9, 3.4)) as axes:
        for features, K in sorted({(row["features"], row["radius"]) for row in rows}):
            mine = sorted(
                (row for row in rows if (row["features"], row["radius"]) == (features, K)), key=lambda row: row["bits"]
            )
            bits, line = [row["bits"] for row in mine], "o-" if features == "cat" else "s--"
            label = f"{_panels[features]}, K = {K}"
            axes[0, 0].plot(bits, [row["dev_perplexity"] for row in mine], line, label=label)
            axes[0, 1].plot(bits, [row["bytes"] / 1e6 for row in mine], line, label=label)
        for ax, title in zip(axes[0], ("dev perplexity", "tables and codes (MB)"), strict=True):
            ax.set(xscale="log", yscale="log", xlabel="bits b", title=title)
            plain_ticks(ax.xaxis)
            plain_ticks(ax.yaxis)
        legend_outside(axes[0, 1])


def row_kinds(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """How much perplexity rises without each kind of row, a group of bars per history."""
    lines = [line for line in lines if line.get("increase") is not None]
    kinds, histories = (list(dict.fromkeys(line[key] for line in reversed(lines))) for key in ("rows", "history"))
    height = 0.8 / len(histories)
    with figure(path, size=(7.4, 1.3 + 0.42 * len(kinds))) as axes:
        ax = axes[0, 0]
        for n, history in enumerate(histories):
            own = [line for line in lines if line["history"] == history]
            places = [kinds.index(line["rows"]) + (n - (len(histories) - 1) / 2) * height for line in own]
            ax.barh(places, [100 * line["increase"] for line in own], height, color=COLOURS[n], label=f"history {history}")
        ax.set(yticks=range(len(kinds)), yticklabels=kinds, xlabel="rise of perplexity without this kind (%)")
        ax.grid(False, axis="y")
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(handles[::-1], labels[::-1], fontsize=8, frameon=False, loc="best")

"""The part of a report on solutions that generalise: calibrated, scaling, joint and bitcipher, beside all others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator, NullLocator

from jexplicit.runs.figures import STYLE, plain_ticks, plt, save_figure
from jexplicit.runs.folder import read_events

METHODS = ("calibrated", "scaling", "joint", "joint+cache", "bitcipher")
_colours = {
    "explicit": "#d55e00",
    "cold": "#999999",
    "warm": "#56b4e9",
    "optimum": "#000000",
    "calibrated": "#0072b2",
    "scaling": "#cc79a7",
}
_levels = {"bigram": ("#009e73", ":"), "5-gram": ("#009e73", "-."), "joint": ("#009e73", "-"), "joint+cache": ("#e69f00", "-")}
_panels = {"sum": "Sum", "cat": "Cat"}

_reading = """\
All are sums of log rows of counts, as the explicit solution is; *scalars* is how many numbers were fitted, by Newton on
documents held out of the counts. *calibrated* has smoothed rows and an exponent per offset. *scaling* sweeps on from there,
without gradients: expected co-occurrences come within a discount of the observed ones. *joint* adds contexts of two to four
tokens and pairs with a gap, *joint+cache* rows of the recent past. *bitcipher* is the explicit solution with fewer features
than tokens. *MB* are those of the tables, *seconds* all that it takes after the counting pass. *held out* is perplexity on the
documents that the scalars were fitted on.
"""


def generalising_section(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of report.md, and the figures they show; nothing for a run without such models."""
    if not any(row["method"] in METHODS for row in rows):
        return []
    lines = [
        "## Solutions that generalise",
        "",
        _reading,
        "| method | features | K | scalars | MB | seconds | held out | train | dev |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: -row["dev_perplexity"]):
        lines.append(
            f"| {row_name(row)} | {row['features']} | {row['radius']} | {row.get('scalars', '')} | "
            f"{_number(row.get('bytes'), 1e-6)} | {_number(row.get('seconds'))} | {_number(row.get('held_out_perplexity'))} | "
            f"{row['train_perplexity']:.1f} | **{row['dev_perplexity']:.1f}** |"
        )
    folder = out / "figures"
    if any(row["method"] in _colours and row["method"] in METHODS for row in rows):
        perplexity_by_method(rows, folder / "methods.png")
        lines += ["", "![dev perplexity by method](figures/methods.png)"]
    if steps := {event["step"]: event for event in read_events(out, "step")}:
        lines += [
            "",
            "What each step buys, on the held-out positions:",
            "",
            "| model | scalars | perplexity |",
            "|---|---|---|",
        ]
        lines += [f"| {step} | {e['scalars']} | {e['held_out_perplexity']:.2f} |" for step, e in steps.items()]
    calibrated = [row for row in rows if row["method"] == "calibrated"]
    if calibrated:
        exponents_by_offset(calibrated, folder / "exponents.png")
        lines += ["", *_exponents(calibrated), "", "![exponents](figures/exponents.png)"]
    if any(row["method"] == "scaling" for row in rows):
        sweep_curves(read_events(out, "sweep"), folder / "sweeps.png")
        lines += ["", "![perplexity by sweep](figures/sweeps.png)"]
    coded = [row for row in rows if row["method"] == "bitcipher"]
    if coded:
        perplexity_by_bits(coded, folder / "bits.png")
        lines += ["", "![perplexity and memory by bits](figures/bits.png)"]
    return [*lines, ""]


def row_name(row: dict[str, Any]) -> str:
    """The method of a row, and what tells two rows of a method apart."""
    return f"{row['method']}, {row['bits']} bits" if "bits" in row else row["method"]


def perplexity_by_method(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Dev perplexity against the radius K, a line per method; the models of several tokens as levels."""
    present = [features for features in _panels if any(row["features"] == features for row in rows)]
    radii = sorted({row["radius"] for row in rows if row["method"] in _colours})
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, len(present), figsize=(4.0 * len(present) + 1.4, 3.8), sharey=True, squeeze=False)
        for ax, features in zip(axes[0], present, strict=True):
            for method, colour in _colours.items():
                points = sorted(
                    (row["radius"], row["dev_perplexity"])
                    for row in rows
                    if (row["method"], row["features"]) == (method, features)
                )
                if points:
                    ax.plot(*zip(*points, strict=True), "o-", color=colour, label=method)
            for row in rows:
                if row["method"] in _levels:
                    colour, line = _levels[row["method"]]
                    ax.axhline(row["dev_perplexity"], color=colour, linestyle=line, label=row["method"])
            ax.set(xscale="log", yscale="log", xlabel="radius K (tokens)", title=_panels[features])
            ax.set(xticks=radii, xticklabels=radii)
            ax.xaxis.set_minor_locator(NullLocator())
            plain_ticks(ax.yaxis)
        axes[0, 0].set_ylabel("dev perplexity")
        axes[0, -1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def exponents_by_offset(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The fitted exponents lambda_k of each calibrated model."""
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(6.2, 3.6))
        for row in rows:
            lambdas = row["exponents"][1:]
            line = "o-" if row["features"] == "cat" else "s--"
            label = f"{_panels[row['features']]}, K = {row['radius']}: mu = {row['exponents'][0]:.2f}"
            ax.plot(range(1, len(lambdas) + 1), lambdas, line, label=label)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set(xlabel="offset k (tokens)", ylabel=r"exponent $\lambda_k$")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def sweep_curves(events: Sequence[dict[str, Any]], path: Path) -> None:
    """Train and dev perplexity by sweep; a sweep that a resumed run repeated counts once."""
    curves: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for event in events:
        curves.setdefault((event["features"], event["radius"]), {})[event["sweep"]] = event
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(9, 3.4))
        for (features, K), curve in curves.items():
            x = sorted(curve)
            for ax, part in zip(axes, ("train", "dev"), strict=True):
                y = [curve[sweep][f"{part}_perplexity"] for sweep in x]
                ax.plot(x, y, ".-" if features == "cat" else ".--", label=f"{_panels[features]}, K = {K}")
                ax.set(yscale="log", xlabel="sweep", title=part)
                plain_ticks(ax.yaxis)
        axes[0].set_ylabel("perplexity")
        axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def perplexity_by_bits(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Dev perplexity and the bytes of the tables against the number of features per token."""
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(9, 3.4))
        for features, K in sorted({(row["features"], row["radius"]) for row in rows}):
            mine = sorted(
                (row for row in rows if (row["features"], row["radius"]) == (features, K)), key=lambda row: row["bits"]
            )
            bits, line = [row["bits"] for row in mine], "o-" if features == "cat" else "s--"
            label = f"{_panels[features]}, K = {K}"
            axes[0].plot(bits, [row["dev_perplexity"] for row in mine], line, label=label)
            axes[1].plot(bits, [row["bytes"] / 1e6 for row in mine], line, label=label)
        for ax, title in zip(axes, ("dev perplexity", "tables and codes (MB)"), strict=True):
            ax.set(xscale="log", yscale="log", xlabel="bits b", title=title)
            plain_ticks(ax.xaxis)
            plain_ticks(ax.yaxis)
        axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def _exponents(rows: Sequence[dict[str, Any]]) -> list[str]:
    K = max(row["radius"] for row in rows)
    lines = [
        "Fitted exponents: mu of the unigram, lambda_k of offset k, and the slope of the scaling assumption that they imply.",
        "",
        f"| features | K | mu | {' | '.join(f'lambda_{k}' for k in range(1, K + 1))} | slope |",
        "|---" * (K + 4) + "|",
    ]
    for row in rows:
        cells = [f"{a:.3f}" for a in row["exponents"]] + [""] * (K + 1 - len(row["exponents"]))
        lines.append(f"| {row['features']} | {row['radius']} | {' | '.join(cells)} | {row['implied_slope']:.3f} |")
    return lines


def _number(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:,.1f}"

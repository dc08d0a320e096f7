"""Figures of the scaling report: measured efficiency, and extrapolated seconds, against the number of devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullLocator

from jexplicit.runs.figures import STYLE, plt, save_figure

_processes = {1: ("#0072b2", "o"), 2: ("#d55e00", "s")}
_terms = {  # field of a row -> its line
    "read_seconds": ("reading", "#009e73"),
    "exchange_seconds": ("exchanging tokens", "#cc79a7"),
    "count_seconds": ("counting", "#0072b2"),
    "flush_seconds": ("flushing to int64", "#56b4e9"),
    "reduce_seconds": ("the one reduction", "#d55e00"),
    "seconds": ("counting pass in all", "black"),
}
_training = {
    "training_communication_seconds": ("training: gradients summed at every step", "#999999", "--"),
    "training_compute_seconds": ("training: its own reads and writes", "#999999", ":"),
    "training_columns_seconds": ("training: columns split, scalars summed", "#999999", "-."),
}


def measured_scaling(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Weak and strong scaling: efficiency against devices, with what the cores allow.

    Args:
        rows: of results.json, `experiment` measured.
        path: where to write the figure.
    """
    with plt.rc_context(STYLE):
        fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.7), sharey=True)
        devices = sorted({row["devices"] for row in rows})
        limits = {row["devices"]: row["limit"] for row in rows}
        titles = {"weak": "weak: as many tokens per device", "strong": "strong: as many tokens in all"}
        for ax, (mode, title) in zip(axes, titles.items(), strict=True):
            ax.plot(devices, [limits[n] for n in devices], "k--", label="limit of the cores")
            for P in sorted({row["processes"] for row in rows}):
                shown = sorted((row for row in rows if (row["mode"], row["processes"]) == (mode, P)), key=_devices)
                colour, marker = _processes.get(P, ("#009e73", "^"))
                of = "1 process" if P == 1 else f"{P} processes"
                n = [row["devices"] for row in shown]
                ax.plot(n, [row["efficiency"] for row in shown], marker=marker, color=colour, label=of)
                without = [row["count_efficiency"] for row in shown]
                ax.plot(n, without, marker=marker, color=colour, linestyle=":", alpha=0.6, label=f"{of}, without the reduction")
            ax.set(xscale="log", title=title, xlabel="virtual devices", xticks=devices, xticklabels=devices)
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_ylim(bottom=0)
        axes[0].set_ylabel("efficiency against one device")
        axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def extrapolated_scaling(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds against devices, term by term, a panel per machine and vocabulary, with one epoch of training beside them.

    Args:
        rows: of results.json, `experiment` extrapolated.
        path: where to write the figure.
    """
    machines = list(dict.fromkeys(row["machine"] for row in rows))
    sizes = sorted({row["vocab_size"] for row in rows})
    with plt.rc_context(STYLE):
        inches = (3.4 * len(sizes) + 3.2, 3.1 * len(machines))
        fig, axes = plt.subplots(len(machines), len(sizes), figsize=inches, sharex=True, sharey=True, squeeze=False)
        for i, machine in enumerate(machines):
            for ax, V in zip(axes[i], sizes, strict=True):
                shown = sorted((row for row in rows if (row["machine"], row["vocab_size"]) == (machine, V)), key=_devices)
                n = [row["devices"] for row in shown]
                for field, (label, colour) in _terms.items():
                    width = 2.5 if field == "seconds" else 1.5
                    values = [row[field] or None for row in shown]  # nothing to draw where there is no such term
                    ax.plot(n, _gaps(values), "-", marker=".", color=colour, linewidth=width, label=label)
                for field, (label, colour, line) in _training.items():
                    ax.plot(n, _gaps([row[field] for row in shown]), line, color=colour, label=label)
                ax.set(xscale="log", yscale="log", xticks=n, xticklabels=n)
                ax.xaxis.set_minor_locator(NullLocator())
                if i == 0:
                    ax.set_title(f"vocabulary {V:,}")
            axes[i][0].set_ylabel(f"{machine}s: seconds")
        for ax in axes[-1]:
            ax.set_xlabel("devices")
        axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        save_figure(fig, path)


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _devices(row: dict[str, Any]) -> int:
    return row["devices"]

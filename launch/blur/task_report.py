"""Tables, figures and report of a run of `launch.blur tasks`, made from its files alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import NullLocator
from rich.table import Table

from jexplicit.runs.figures import COLOURS, figure, plain_ticks
from jexplicit.runs.results import read_config, read_rows
from jexplicit.runs.tables import Column, markdown_table, rich_table

_Rows = Sequence[dict[str, Any]]
_shown = (10, 100)  # numbers of updates in the table of all tasks

_reading = """\
Every task is new to the genome, which is not trained here; its learners have the width and depth of the table. Accuracies are
means over learners with different initial synapses and minibatches, ± their standard deviation, in % of test examples. A
baseline is SGD, momentum or Adam, plain or normalised over the minibatch as the learned rule is, with the learning rate and
hidden activation that are best on dev *for this task and number of updates*. The *best baseline* is the one of these six with
the highest accuracy on **test**, which favours the baselines. A win is a higher mean accuracy than that; equal ones, as where
both have 100 %, are ties. Networks of more than 60,000 weights have every other of the 16 learning rates. Batch statistics are
used in prediction, too. The digits are unseen by genomes that were meta-trained on digits with `--seed 0`, the default.
"""


def tasks_table(rows: _Rows) -> Table:
    """All tasks, for the terminal."""
    table = rich_table(_task_columns(rows), _by_task(rows), title="test accuracy in %, learned rule beside the best baseline")
    for column in table.columns:
        column.no_wrap = True
    return table


def rates_table(rows: _Rows) -> Table:
    """Wins, ties and differences by number of updates, for the terminal."""
    return rich_table([Column("updates n", "n", "d"), *_summary_columns()], _summaries(rows, "n"), title="all tasks")


def write_task_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.blur tasks` run."""
    rows, config = read_rows(out), read_config(out) or {}
    differences_figure(rows, out / "figures" / "tasks.png")
    wins_figure(rows, out / "figures" / "wins.png")
    lines = [
        "# A learned rule on unseen tasks",
        "",
        f"The genome `{Path(config['genome']).name}` on {len(_names(rows))} tasks, {config['learners']} learners each, "
        f"minibatches of {config['batch_size']}.",
        "",
        "## By number of updates",
        *markdown_table([Column("updates n", "n"), *_summary_columns()], _summaries(rows, "n")),
        "![wins](figures/wins.png)",
        "",
    ]
    for n in _updates(rows):
        found = [row for row in rows if row["n"] == n]
        for field, heading in (("depth", "hidden layers"), ("width", "their width")):
            lines += [f"By {heading}, after {n} updates:"]
            lines += markdown_table([Column(heading, field), *_summary_columns()], _summaries(found, field))
    lines += ["## All tasks", *markdown_table(_task_columns(rows), _by_task(rows)), "![tasks](figures/tasks.png)", "", _reading]
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def differences_figure(rows: _Rows, path: Path) -> None:
    """Accuracy of the rule minus that of the best baseline by task, a panel for each number of updates that is shown.

    Lines are the standard deviation of the difference over learners; below 5 points the axis is linear, then logarithmic.
    """
    names, updates = _names(rows), _updates(rows)
    with figure(path, columns=len(updates), size=(4 + 2.6 * len(updates), 1.4 + 0.2 * len(names)), sharey=True) as axes:
        for ax, n in zip(axes[0], updates, strict=True):
            found = {row["task"]: row for row in rows if row["n"] == n}
            differences = np.array([_difference(found[name]) for name in names])
            spread = 100 * np.array([np.hypot(found[name]["spread"], found[name]["baseline_spread"]) for name in names])
            colours = [COLOURS[0] if found[name]["wins"] else COLOURS[-1 if found[name]["tie"] else 1] for name in names]
            ax.axvline(0, color="black", linewidth=0.8)
            ax.hlines(range(len(names)), differences - spread, differences + spread, color=colours, alpha=0.4)
            ax.scatter(differences, range(len(names)), c=colours, s=14, zorder=3)
            ax.set(title=f"after {n} updates", xlabel="learned rule - best baseline, points")
            ax.set_xscale("symlog", linthresh=5)
            ax.set_xticks(_ticks(differences), map(str, _ticks(differences)))
            ax.xaxis.set_minor_locator(NullLocator())
        axes[0, 0].set_yticks(range(len(names)), names, fontsize=9)
        axes[0, 0].set_ylim(len(names) - 0.4, -0.6)


def wins_figure(rows: _Rows, path: Path) -> None:
    """Part of the tasks that the rule wins or ties, by number of updates: all tasks, and by number of hidden layers."""
    depths, found = sorted({row["depth"] for row in rows}), _summaries(rows, "n")
    n = [line["n"] for line in found]
    with figure(path, size=(6.5, 3.6)) as axes:
        ax = axes[0, 0]
        for depth, colour in zip(depths, COLOURS, strict=False):
            part = _summaries([row for row in rows if row["depth"] == depth], "n")
            rate = [100 * line["rate"] for line in part]
            ax.plot(n, rate, ".--", color=colour, linewidth=1, label=f"wins at depth {depth}")
        ax.plot(n, [100 * line["rate"] for line in found], ".-", color="black", linewidth=2, label="wins")
        either = [100 * (line["wins"] + line["ties"]) / line["tasks"] for line in found]
        ax.plot(n, either, ":", color="black", linewidth=1, label="wins and ties")
        ax.set(xscale="log", xlabel="updates n", ylabel="% of tasks", ylim=(-2, 102))
        plain_ticks(ax.xaxis)
        ax.legend(fontsize=8, framealpha=0.9, edgecolor="none")


def _ticks(differences: np.ndarray) -> list[int]:
    low, high = min(0.0, differences.min()) - 3, max(0.0, differences.max()) + 3
    return [tick for tick in (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50) if low <= tick <= high]


def _names(rows: _Rows) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows))


def _updates(rows: _Rows) -> list[int]:
    return [n for n in _shown if any(row["n"] == n for row in rows)]


def _difference(row: dict[str, Any]) -> float:
    """In points of accuracy."""
    return 100 * (row["rule_accuracy"] - row["best_baseline"])


def _summaries(rows: _Rows, by: str) -> list[dict[str, Any]]:
    """For each value of a field: wins, ties, mean and worst difference, and the task with the worst."""
    found = []
    for value in sorted({row[by] for row in rows}):
        group = [row for row in rows if row[by] == value]
        differences = [_difference(row) for row in group]
        wins, ties = sum(row["wins"] for row in group), sum(row["tie"] for row in group)
        line = {by: value, "tasks": len(group), "wins": wins, "ties": ties, "rate": wins / len(group)}
        line |= {"mean": float(np.mean(differences)), "median": float(np.median(differences)), "worst": min(differences)}
        found.append({**line, "worst_task": min(group, key=_difference)["task"]})
    return found


def _summary_columns() -> list[Column]:
    return [
        Column("tasks", "tasks", "d"),
        Column("wins", "wins", "d"),
        Column("ties", "ties", "d"),
        Column("win rate, %", "rate", ".0f", 100),
        Column("mean difference", "mean", "+.1f"),
        Column("median", "median", "+.1f"),
        Column("worst", "worst", "+.1f"),
        Column("on", "worst_task"),
    ]


def _by_task(rows: _Rows) -> list[dict[Any, Any]]:
    """A line for each task: its rows by number of updates."""
    lines: dict[str, dict[Any, Any]] = {}
    for row in rows:
        lines.setdefault(row["task"], dict(row))[row["n"]] = row
    return list(lines.values())


def _task_columns(rows: _Rows) -> list[Column]:
    columns = [Column("task", "task"), Column("width", "width", "d"), Column("depth", "depth", "d")]
    for n in _updates(rows):
        columns += [
            Column(f"rule, n = {n}", _of(n, lambda row: 100 * row["rule_accuracy"]), ".1f"),
            Column("±", _of(n, lambda row: 100 * row["spread"]), ".1f"),
            Column("best", _of(n, lambda row: 100 * row["best_baseline"]), ".1f"),
            Column("difference", _of(n, _difference), "+.1f"),
            Column("baseline", _of(n, lambda row: row["baseline"])),
        ]
    return columns


def _of(n: int, value: Callable[[dict[str, Any]], Any]) -> Callable[[dict[Any, Any]], Any]:
    """A cell of a line of `_by_task`."""
    return lambda line: value(line[n])

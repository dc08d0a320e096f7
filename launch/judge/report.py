"""Tables and figure of a launch.judge run, from its files alone."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import PercentFormatter
from rich.table import Table

from jexplicit.lm.names import label
from jexplicit.runs.figures import COLOURS, figure, legend_outside
from jexplicit.runs.results import read_config, read_rows
from jexplicit.runs.tables import Column, markdown_table, rich_table

Row = dict[str, Any]

_about = """\
A pair is right where the acceptable sentence has the higher log-probability, a sum over all of its tokens. A model that gives
both the same is right by half; *ties* is how often. Chance is 50 %. Accuracies of a field and of all are over their pairs, in
per cent; every sentence is scored on its own, so of the past a model with history *all* sees its own sentence alone. *n* pairs
give a standard error of at most 50 / √n per cent.
"""


def by_model(rows: Sequence[Row]) -> list[Row]:
    """A row per model: accuracy and ties over all pairs, and in `fields` the accuracy of each field."""
    found = []
    for name, own in _groups(rows, label).items():
        fields = {field: _mean(some, "accuracy") for field, some in _groups(own, _field).items()}
        parts = {key: own[0][key] for key in ("method", "features", "radius", "history", "bits") if key in own[0]}
        totals = {"accuracy": _mean(own, "accuracy"), "ties": _mean(own, "ties"), "pairs": sum(row["pairs"] for row in own)}
        found.append({"model": name, **parts, **totals, "seconds": sum(row["seconds"] for row in own), "fields": fields})
    return found


def results_table(rows: Sequence[Row]) -> Table:
    """Accuracy by model and field, for the terminal."""
    return rich_table(_columns(rows), by_model(rows), title="accuracy on minimal pairs, %")


def write_report(out: Path) -> Path:
    """Write report.md and its figure from the files of a `launch.judge` run."""
    rows, config = read_rows(out), read_config(out) or {}
    models = by_model(rows)
    figure_path = out / "figures" / "accuracy.png"
    accuracy_by_field(models, figure_path)
    paradigms = [
        {"paradigm": paradigm, "field": own[0]["field"], "pairs": own[0]["pairs"], **{label(row): row for row in own}}
        for paradigm, own in _groups(rows, lambda row: row["paradigm"]).items()
    ]
    of_model = [Column(model["model"], _accuracy_of(model["model"]), ".1f", 100) for model in models]
    lines = [
        "# Minimal pairs",
        "",
        f"Models of `{config.get('run')}`: {models[0]['pairs']:,} pairs of {len(paradigms)} paradigms.",
        *markdown_table([*_columns(rows), Column("pairs", "pairs", ","), Column("seconds", "seconds", ".1f")], models),
        _about,
        "![accuracy by field](figures/accuracy.png)",
        "",
        "## Paradigms",
        *markdown_table(
            [Column("paradigm", "paradigm"), Column("field", "field"), Column("pairs", "pairs", "d"), *of_model], paradigms
        ),
    ]
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def accuracy_by_field(models: Sequence[Row], path: Path) -> None:
    """Accuracy of each model in every field, and over all pairs, with chance and the share of ties."""
    fields = [*sorted({field for model in models for field in model["fields"]}), "all"]
    with figure(path, size=(0.9 + (0.5 + 0.16 * len(models)) * len(fields) + 2.4, 3.6)) as axes:
        ax, width = axes[0, 0], 0.84 / len(models)
        for n, model in enumerate(models):
            heights = [{**model["fields"], "all": model["accuracy"]}.get(field, 0) for field in fields]
            places = [x + (n - (len(models) - 1) / 2) * width for x in range(len(fields))]
            name = f"{model['model']} ({model['ties']:.0%} ties)"
            hatch = "//" if n >= len(COLOURS) else None
            ax.bar(places, heights, width, color=COLOURS[n % len(COLOURS)], hatch=hatch, edgecolor="white", label=name)
        ax.axhline(0.5, color="black", linewidth=0.8, linestyle="--")
        ax.annotate("chance", (1, 0.5), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va="bottom")
        ax.set_xticks(range(len(fields)), [field.replace("_", "\n") for field in fields], fontsize=8)
        ax.set(ylabel="accuracy", ylim=(0, 1))
        ax.yaxis.set_major_formatter(PercentFormatter(1))
        legend_outside(ax)


def _columns(rows: Sequence[Row]) -> list[Column]:
    fields = [Column(field.replace("_", " "), _field_of(field), ".1f", 100) for field in _groups(rows, _field)]
    totals = [Column("all", "accuracy", ".1f", 100, bold=True), Column("ties", "ties", ".1f", 100)]
    return [Column("model", "model"), *fields, *totals]


def _field_of(field: str):
    return lambda model: model["fields"].get(field)


def _accuracy_of(model: str):
    return lambda paradigm: paradigm[model]["accuracy"] if model in paradigm else None


def _field(row: Row) -> str:
    return row["field"] or "no field"


def _groups(rows: Iterable[Row], key) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _mean(rows: Sequence[Row], field: str) -> float:
    """Over pairs."""
    return sum(row[field] * row["pairs"] for row in rows) / sum(row["pairs"] for row in rows)

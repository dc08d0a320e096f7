"""The report of launch.networks compare, written from the files of its run alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.results import read_events, read_rows
from jexplicit.runs.tables import Column, markdown_table
from launch.networks.comparisons import figures
from launch.networks.figures import histograms_figure
from launch.networks.report import LAYER_COLUMNS

Rows = Sequence[dict[str, Any]]

COLUMNS = (
    Column("variant", "variant"),
    Column("rate", "learning_rate", ".3g"),
    Column("steps", "steps", ",d"),
    Column("train loss", "train_loss", ".4f"),
    Column("dev loss", "dev_loss", ".4f"),
    Column("±", "dev_loss_spread", ".4f"),
    Column("train %", "train_accuracy", ".2f", scale=100),
    Column("test %", "test_accuracy", ".2f", scale=100, bold=True),
    Column("±", "test_accuracy_spread", ".2f", scale=100),
    Column("seeds", "seeds", "d"),
)
_about = """\
Means over seeds after the last epoch; ± is the standard deviation over seeds. Every variant has the learning rate, of those
tried, with the lowest mean dev loss. Losses of different objectives do not compare. A dash: the run diverged.
"""
_noise = """\
How far the gradient of a mini-batch is from that of all examples, `||g_B - g||/||g||`, over 50 draws, and by the formula
`√(tr Σ/B (M - B)/(M - 1))/||g||`: 100 times as many examples make it 10 times as exact.
"""
_recall = "Recall by class on the test images, %, mean over seeds, from the most frequent class in training to the rarest."
_sensitivity = """\
The gradient with respect to the pre-activations z of the output and of the hidden layer where training starts, by
backpropagation, root mean square over examples. Where a sigmoid is saturated at the wrong value, the squared error's factor
`a (1 - a)` takes it away.
"""


def summaries(rows: Rows) -> list[dict[str, Any]]:
    """One line per variant: means over seeds, and the spread; None where a seed diverged."""
    found = []
    for name in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == name]
        line = {**own[0], "seeds": len(own)}
        for field in [field for field in own[0] if field.endswith(("_loss", "_accuracy"))]:
            values = [row[field] for row in own]
            missing = None in values
            line[field] = None if missing else float(np.mean(values))
            line[f"{field}_spread"] = None if missing or len(own) < 2 else float(np.std(values, ddof=1))
        found.append(line)
    return found


def write_comparison_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a run."""
    rows = read_rows(out)
    what, lines = rows[0]["comparison"], summaries(rows)
    text = [
        f"# launch.networks compare {what}",
        "",
        f"Images `{rows[0]['data']}`, sha256 `{rows[0]['sha256'][:16]}`.",
        "",
        _about,
    ]
    text += markdown_table(COLUMNS, lines)
    curves = {event["variant"]: event for event in read_events(out, "curves")}
    figures.comparison_figure(list(curves.values()), lines, out / "figures" / "comparison.png")
    text += [f"![{what}](figures/comparison.png)", ""]
    for section in (_layers, _sensitivities, _noises, _recalls, _paths):
        text += section(out, what)
    report = out / "report.md"
    report.write_text("\n".join(text))
    return report


def _layers(out: Path, what: str) -> list[str]:
    events = list({(e["name"], e["when"], e["layer"]): e for e in read_events(out, "layer")}.values())
    if not events:
        return []
    files = sorted((out / "histograms").glob("* start.npz"), key=lambda path: path.stat().st_mtime)
    figures_of = {path.stem.removesuffix(" start"): dict(np.load(path)) for path in files}
    histograms_figure(figures_of, out / "figures" / "histograms.png")
    shown = markdown_table(LAYER_COLUMNS, events)
    return ["## By layer", "", *shown, "Before training:", "", "![histograms by layer](figures/histograms.png)", ""]


def _sensitivities(out: Path, what: str) -> list[str]:
    events = list({event["name"]: event for event in read_events(out, "sensitivity")}.values())
    columns = (
        Column("objective", "objective"),
        Column("start", "group"),
        Column("output", "output", ".4f"),
        Column("hidden layer", "hidden", ".4f"),
    )
    return ["## Sensitivities", "", _sensitivity, *markdown_table(columns, events)] if events else []


def _noises(out: Path, what: str) -> list[str]:
    events = list({(event["when"], event["size"]): event for event in read_events(out, "noise")}.values())
    if not events:
        return []
    columns = (
        Column("of the training", "when"),
        Column("batch", "size", "d"),
        Column("error", "error", ".3f"),
        Column("by the formula", "predicted", ".3f"),
        Column("cosine", "cosine", ".3f"),
        Column("noise scale (examples)", "scale", ",.0f"),
    )
    figures.noise_figure(events, out / "figures" / "noise.png")
    return ["## The noise of the gradient", "", _noise, *markdown_table(columns, events), "![noise](figures/noise.png)", ""]


def _recalls(out: Path, what: str) -> list[str]:
    events = list({event["name"]: event for event in read_events(out, "recall")}.values())
    if not events:
        return []
    counts = events[0]["counts"]
    means = [{"name": e["name"], **{str(c): r for c, r in enumerate(np.mean(e["recalls"], axis=0))}} for e in events]
    for line, event in zip(means, events, strict=True):
        line["mean"] = float(np.mean(event["recalls"]))
    by_class = (Column(f"{c} ({count})", str(c), ".0f", scale=100) for c, count in enumerate(counts))
    columns = (Column("sampler", "name"), *by_class, Column("mean", "mean", ".1f", scale=100))
    figures.recall_figure(events, out / "figures" / "recall.png")
    return ["## Recall by class", "", _recall, *markdown_table(columns, means), "![recall](figures/recall.png)", ""]


def _paths(out: Path, what: str) -> list[str]:
    if what != "optimizers":
        return []
    figures.paths_figure(out / "figures" / "paths.png")
    return ["## Paths", "", "On a ravine and from near a saddle, 40 steps each:", "", "![paths](figures/paths.png)", ""]

"""Tables and report of a run of launch.networks: on the terminal and in report.md."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.folder import read_events, read_rows
from launch.networks.figures import curves_figure, histograms_figure, ratios_figure, rows_of_images, search_figure

COLUMNS: dict[str, tuple[str, float, str]] = {
    "train": ("train_loss", 1, ".4f"),
    "dev": ("dev_loss", 1, ".4f"),
    "test": ("test_loss", 1, ".4f"),
    "dev perplexity": ("dev_perplexity", 1, ".2f"),
    "test %": ("test_accuracy", 100, ".2f"),
    "steps": ("steps", 1, ",d"),
    "s": ("seconds", 1, ".1f"),
}
_settings = ("start", "optimizer", "initializer", "sampler", "objective")

_reading = """\
Losses are means per example, in nats for cross-entropies; parameters are those of the epoch with the lowest dev loss. Steps and
seconds are of the whole training.
"""
_diagnosis = """\
Activations of the hidden layers on a few training examples, before training (start) and after (end). *Saturated* is the share
of pre-activations in a flat region of the nonlinearity, *dead* that of units which are there for every example. A layer called
*logits* is the explicit solution's.
"""
_memory = """\
A map contracts near a training example, and iterating it leads back there, where all eigenvalues of its Jacobian are below 1 in
modulus (*spectral radius*); where even its largest singular value is, every single step shrinks distances. *From noise*: noisy
training examples whose iterates end in their own; *from test*: test examples whose iterates end in any training example.
"""


def histograms_path(out: Path, name: str, when: str) -> Path:
    """Where a run keeps the histograms of a network before (start) or after (end) training."""
    return out / "histograms" / f"{name} {when}.npz"


def pictures_path(out: Path) -> Path:
    """Where a run keeps the images of its figure."""
    return out / "pictures.npz"


def networks_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The results as a table for the terminal."""
    table = Table(title="losses in nats per example", title_justify="left")
    for heading in ("network", *COLUMNS):
        table.add_column(heading, justify="left" if heading == "network" else "right", no_wrap=heading != "network")
    for row in rows:
        table.add_row(row["name"], *_cells(row))
    return table


def write_networks_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.networks` run."""
    rows = read_rows(out)
    command = rows[0]["command"]
    lines = [f"# launch.networks {command}", "", _about(rows[0]), "", *_table(rows), "", _reading]
    lines += _checklist(rows) + _search(out) + _curves(out, rows, command) + _first_losses(rows) + _diagnostics(out, command)
    lines += _memories(rows) + _pictures(out) + _samples(out)
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def read_curves(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The epochs of each network, from metrics.jsonl; an epoch that a resumed run repeated counts once."""
    curves: dict[str, dict[int, dict[str, Any]]] = {}
    for event in read_events(out, "epoch"):
        curves.setdefault(event["name"], {})[event["epoch"]] = event
    return {name: [epochs[n] for n in sorted(epochs)] for name, epochs in curves.items()}


def _cells(row: dict[str, Any]) -> list[str]:
    values = ((row.get(field), factor, form) for field, factor, form in COLUMNS.values())
    return ["" if value is None else format(value * factor, form) for value, factor, form in values]


def _about(row: dict[str, Any]) -> str:
    if "corpus" in row:
        return (
            f"Text `{row['corpus']}`, sha256 `{row['corpus_sha256'][:16]}`: {row['train_positions']:,} train, "
            f"{row['dev_positions']:,} dev and {row['test_positions']:,} test positions, ends of documents among them; "
            f"{row['vocab_size']:,} tokens, {row['context']} of context."
        )
    return f"Images `{row['data']}`, {row['outputs']} classes, sha256 `{row['sha256'][:16]}`."


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Settings that no two rows differ in are left to config.json."""
    shown = [name for name in _settings if len({row[name] for row in rows if row["optimizer"]}) > 1]
    headings = ["network", "model", *shown, *COLUMNS]
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for row in rows:
        settings = ["" if row[name] is None else str(row[name]) for name in shown]
        lines.append("| " + " | ".join([row["name"], row["model"], *settings, *_cells(row)]) + " |")
    return lines


def _curves(out: Path, rows: Sequence[dict[str, Any]], command: str) -> list[str]:
    curves = {name: curve for name, curve in read_curves(out).items() if len(curve) > 1}
    if not curves:
        return []
    compared = {row["name"]: row["compared"] for row in rows if "compared" in row}
    by_objective = command == "optimizers"
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, curve in curves.items():
        panel = compared.get(name, "")
        field = "dev_accuracy" if by_objective else "dev_loss"
        points = [(epoch["step"], 100 * epoch[field] if by_objective else epoch[field]) for epoch in curve]
        panels.setdefault(panel, {})[name.removeprefix(f"{panel} ")] = points
    solved = {row["name"]: row["dev_loss"] for row in rows if row["steps"] == 0 and row["objective"] == "softmax_cross_entropy"}
    label = "dev accuracy (%)" if by_objective else "dev loss"
    path = out / "figures" / "curves.png"
    curves_figure(panels, path, label=label, levels=solved if command in ("mlp-lm", "fcnn") else None, log=not by_objective)
    return ["", "## Training", "", "![curves](figures/curves.png)", ""]


def _first_losses(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence per network: how its loss begins."""
    lines = []
    for row in rows:
        if row.get("hockey_stick") is None or "first_loss" not in row:
            continue
        outputs = row.get("vocab_size") or row["outputs"]
        verdict = "a hockey stick: the first steps only undo the start" if row["hockey_stick"] else "no easy gains at the start"
        told = f"first dev loss {row['first_loss']:.3f} nats, log N = {math.log(outputs):.3f}"
        lines.append(f"- {row['name']}: {told}: {verdict}.")
    return [*lines, ""] if lines else []


def _diagnostics(out: Path, command: str) -> list[str]:
    layers = {(e["name"], e["layer"], e["when"]): e for e in read_events(out, "layer")}
    if not layers:
        return []
    lines = ["## Diagnostics", "", _diagnosis]
    lines += [
        "| network | layer | when | mean | std | gradient std | saturated % | dead % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, layer, when), e in layers.items():
        shares = " | ".join(f"{100 * e[share]:.1f}" for share in ("saturated", "dead"))
        lines.append(f"| {name} | {layer} | {when} | {e['mean']:.3f} | {e['std']:.3f} | {e['gradient_std']:.2e} | {shares} |")
    ratios: dict[str, dict[str, dict[int, float]]] = {}
    for event in read_events(out, "ratios"):
        for array, ratio in event["ratios"].items():
            if not array.endswith(("bias", "scale")):
                ratios.setdefault(event["name"], {}).setdefault(array, {})[event["step"]] = ratio
    if ratios:
        shown = {name: {a: sorted(c.items()) for a, c in arrays.items()} for name, arrays in list(ratios.items())[:3]}
        ratios_figure(shown, out / "figures" / "ratios.png")
        lines += ["", "![update-to-data ratio](figures/ratios.png)"]
    files = sorted((out / "histograms").glob("* start.npz"), key=lambda path: path.stat().st_mtime)
    drawn = {path.stem.removesuffix(" start"): dict(np.load(path)) for path in files}
    if drawn := {name: arrays for name, arrays in drawn.items() if arrays}:
        histograms_figure(drawn, out / "figures" / "histograms.png")
        lines += ["", "Before training:", "", "![activations and gradients by layer](figures/histograms.png)"]
    return [*lines, ""]


def _search(out: Path) -> list[str]:
    sweeps, grids = read_events(out, "sweep"), read_events(out, "grid")
    if not sweeps or not grids:
        return []
    search_figure(sweeps[-1], grids[-1], out / "figures" / "search.png")
    told = f"The range test picks {sweeps[-1]['picked']:.3g}, the grid {grids[-1]['picked']:.3g}."
    return ["", "## Learning rate", "", told, "", "![range test and grid](figures/search.png)"]


def _checklist(rows: Sequence[dict[str, Any]]) -> list[str]:
    steps = [row for row in rows if "passed" in row]
    if not steps:
        return []
    lines = ["## Checklist", "", "| step | verdict | why |", "|---|---|---|"]
    lines += [f"| {row['name']} | {'passed' if row['passed'] else '**failed**'} | {row['reason']} |" for row in steps]
    return [*lines, ""]


def _memories(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = [row for row in rows if row.get("anomaly_auc") is not None]
    if not found:
        return []
    lines = ["## Anomalies", "", f"Class {found[0]['anomaly']} is not in the training examples. Area under the ROC curve:", ""]
    lines += ["| network | AUC |", "|---|---|", *(f"| {row['name']} | {row['anomaly_auc']:.3f} |" for row in found), ""]
    memories = [row for row in found if "attractors" in row]
    lines += ["## Memories", "", _memory]
    lines += ["| network | largest singular value | largest spectral radius | attractors | from noise % | from test % |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in memories:
        recalled = " | ".join(f"{100 * row[f'recalled_from_{where}']:.0f}" for where in ("noise", "test"))
        jacobian = f"{row['largest_singular_value']:.3f} | {row['largest_spectral_radius']:.3f}"
        lines.append(f"| {row['name']} | {jacobian} | {row['attractors']} | {recalled} |")
    return [*lines, ""]


def _pictures(out: Path) -> list[str]:
    if not pictures_path(out).exists():
        return []
    rows_of_images(dict(np.load(pictures_path(out))), out / "figures" / "pictures.png")
    return ["![reconstructions and memories](figures/pictures.png)", ""]


def _samples(out: Path) -> list[str]:
    path = out / "samples.json"
    samples = json.loads(path.read_text()) if path.exists() else []
    return ["## Sampled documents", "", *(f"```text\n{sample}\n```\n" for sample in samples)] if samples else []

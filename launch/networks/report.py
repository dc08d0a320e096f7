"""The report of a run of launch.networks, written from its files alone."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.results import read_events, read_rows
from jexplicit.runs.tables import Column, markdown_table
from launch.networks.figures import (
    codes_figure,
    curves_figure,
    embedding_figure,
    histograms_figure,
    pictures_figure,
    ratios_figure,
    search_figure,
)

Rows = Sequence[dict[str, Any]]

COLUMNS = (
    Column("network", "name"),
    Column("train", "train_loss", ".4f"),
    Column("dev", "dev_loss", ".4f"),
    Column("test", "test_loss", ".4f"),
    Column("dev perplexity", "dev_perplexity", ".2f"),
    Column("test %", "test_accuracy", ".2f", scale=100),
    Column("steps", "steps", ",d"),
    Column("s", "seconds", ".1f"),
)
_checklist_columns = (
    Column("step", "name"),
    Column("verdict", lambda row: "passed" if row["passed"] else "**failed**"),
    Column("why", "reason"),
)
LAYER_COLUMNS = (
    Column("network", "name"),
    Column("layer", "layer"),
    Column("when", "when"),
    Column("mean", "mean", ".3f"),
    Column("std", "std", ".3f"),
    Column("gradient std", "gradient_std", ".2e"),
    Column("saturated %", "saturated", ".1f", scale=100),
    Column("dead %", "dead", ".1f", scale=100),
)
_anomaly_columns = Column("network", "name"), Column("AUC", "anomaly_auc", ".3f")
_memory_columns = (
    Column("network", "name"),
    Column("largest singular value", "largest_singular_value", ".3f"),
    Column("largest spectral radius", "largest_spectral_radius", ".3f"),
    Column("attractors", "attractors", "d"),
    Column("from noise %", "recalled_from_noise", ".0f", scale=100),
    Column("from test %", "recalled_from_test", ".0f", scale=100),
)
_settings = ("start", "optimizer", "initializer", "sampler", "objective")
_reading = """\
Losses are means per example, in nats for cross-entropies, at the epoch with the lowest dev loss. Steps and seconds are those of
the whole training.
"""
_diagnosis = """\
Activations of the hidden layers on a few training examples, before (start) and after (end) training. *Saturated*: share of
pre-activations in a flat region of the nonlinearity. *Dead*: share of units that are there for every example. A layer called
*logits* is the explicit solution's.
"""
_neighbours = """\
Tokens of all frequencies and those whose embeddings have the largest cosine with theirs, in the network with the lowest dev
loss. The figure is a map of the most frequent tokens by t-SNE: near ones are used alike."""
_neighbour_columns = (
    Column("rank", "rank", ",d"),
    Column("count", "count", ",d"),
    Column("token", lambda event: _code(event["token"])),
    Column("nearest, cosine", "near"),
)
_clusters = """\
k-means clusters of the test images, as many as classes: their adjusted Rand index with the classes is 1 where both are the same
groups and 0 where they agree by chance. The figure has the two main axes of each code."""
_cluster_columns = (
    Column("of", "name"),
    Column("clusters", "clusters", "d"),
    Column("agreement", "agreement", ".3f"),
    Column("±", "spread", ".3f"),
)
_wide = """\
Linear autoencoders of the memories, as wide as an image, after gradient descent from several starts; means over seeds. All of
them reproduce the memories. *Gain*: what is left of vectors orthogonal to all memories: 0 of the projection on their span, the
solution of the pseudo-inverse, and 1 of the identity. *Distance*: of `A B` from that projection, relative to its norm."""
_wide_columns = (
    Column("start", "start"),
    Column("loss at the start", "first_loss", ".2e"),
    Column("loss", "loss", ".2e"),
    Column("gain", "gain", ".4f"),
    Column("±", "gain_spread", ".4f"),
    Column("distance", "distance", ".3f"),
)
_memory = """\
A map contracts near a training example, and iterates converge to it, if all eigenvalues of its Jacobian have modulus below 1
(*spectral radius*); if its largest singular value is below 1 too, every single step shrinks distances. *From noise*: noisy
training examples whose iterates converge to the original. *From test*: test examples whose iterates converge to any training
example."""


def histograms_path(out: Path, name: str, when: str) -> Path:
    """The histograms of a network before (start) or after (end) training."""
    return out / "histograms" / f"{name} {when}.npz"


def pictures_path(out: Path) -> Path:
    """The arrays of the figure of images."""
    return out / "pictures.npz"


def write_networks_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a run."""
    rows = read_rows(out)
    lines = [f"# launch.networks {rows[0]['command']}", "", _about(rows[0]), *_results(rows), _reading]
    for section in _sections:
        lines += section(out, rows)
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def read_curves(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The epochs of each network, from metrics.jsonl; an epoch that a resumed run repeated counts once."""
    curves: dict[str, dict[int, dict[str, Any]]] = {}
    for event in read_events(out, "epoch"):
        curves.setdefault(event["name"], {})[event["epoch"]] = event
    return {name: [epochs[n] for n in sorted(epochs)] for name, epochs in curves.items()}


def _about(row: dict[str, Any]) -> str:
    if "corpus" not in row:
        return f"Images `{row['data']}`, {row['outputs']} classes, sha256 `{row['sha256'][:16]}`."
    positions = ", ".join(f"{row[f'{part}_positions']:,} {part}" for part in ("train", "dev", "test"))
    about = f" ({row['corpus_about']})" if row.get("corpus_about") else ""
    return (
        f"Text `{row['corpus']}`{about}, sha256 `{row['corpus_sha256'][:16]}`: {positions} positions, including ends of "
        f"documents; {row['vocab_size']:,} tokens, context of {row['context']}."
    )


def _results(rows: Rows) -> list[str]:
    """The table of results, with the settings in which networks differ."""
    shown = [name for name in _settings if len({row[name] for row in rows if row["optimizer"]}) > 1]
    return markdown_table((COLUMNS[0], Column("model", "model"), *(Column(name, name) for name in shown), *COLUMNS[1:]), rows)


def _curves(out: Path, rows: Rows) -> list[str]:
    curves = {name: curve for name, curve in read_curves(out).items() if len(curve) > 1}
    if not curves:
        return []
    command = rows[0]["command"]
    points = {name: [(epoch["step"], epoch["dev_loss"]) for epoch in curve] for name, curve in curves.items()}
    solved = {row["name"]: row["dev_loss"] for row in rows if row["steps"] == 0 and row["objective"] == "softmax_cross_entropy"}
    levels = solved if command in ("mlp-lm", "fcnn") else {}
    curves_figure(points, out / "figures" / "curves.png", levels=levels)
    return ["## Training", "", "![curves](figures/curves.png)", ""]


def _first_losses(out: Path, rows: Rows) -> list[str]:
    """A sentence per network: whether its loss curve begins with a hockey stick."""
    lines = []
    for row in rows:
        if row.get("hockey_stick") is None or "first_loss" not in row:
            continue
        uniform = math.log(row.get("vocab_size") or row["outputs"])
        verdict = "a hockey stick: the first steps only undo the start" if row["hockey_stick"] else "no easy gains at the start"
        lines.append(f"- {row['name']}: first dev loss {row['first_loss']:.3f} nats, log N = {uniform:.3f}: {verdict}.")
    return [*lines, ""] if lines else []


def _diagnostics(out: Path, rows: Rows) -> list[str]:
    layers = {(event["name"], event["layer"], event["when"]): event for event in read_events(out, "layer")}
    if not layers:
        return []
    lines = ["## Diagnostics", "", _diagnosis, *markdown_table(LAYER_COLUMNS, layers.values())[1:-1]]
    ratios: dict[str, dict[str, dict[int, float]]] = {}
    for event in read_events(out, "ratios"):
        for array, ratio in event["ratios"].items():
            if not array.endswith(("bias", "scale")):
                ratios.setdefault(event["name"], {}).setdefault(array, {})[event["step"]] = ratio
    if ratios:
        ratios_figure(dict(list(ratios.items())[:3]), out / "figures" / "ratios.png")
        lines += ["", "![update-to-data ratio](figures/ratios.png)"]
    files = sorted((out / "histograms").glob("* start.npz"), key=lambda path: path.stat().st_mtime)
    histograms = {path.stem.removesuffix(" start"): dict(np.load(path)) for path in files}
    if histograms := {name: arrays for name, arrays in histograms.items() if arrays}:
        histograms_figure(histograms, out / "figures" / "histograms.png")
        lines += ["", "Before training:", "", "![activations and gradients by layer](figures/histograms.png)"]
    return [*lines, ""]


def _search(out: Path, rows: Rows) -> list[str]:
    sweeps, grids = read_events(out, "sweep"), read_events(out, "grid")
    if not sweeps or not grids:
        return []
    search_figure(sweeps[-1], grids[-1], out / "figures" / "search.png")
    rates = f"The range test picks {sweeps[-1]['picked']:.3g}, the grid {grids[-1]['picked']:.3g}."
    return ["## Learning rate", "", rates, "", "![range test and grid](figures/search.png)", ""]


def _checklist(out: Path, rows: Rows) -> list[str]:
    return _section("Checklist", "", _checklist_columns, [row for row in rows if "passed" in row])


def _anomalies(out: Path, rows: Rows) -> list[str]:
    measured = [row for row in rows if row.get("anomaly_auc") is not None]
    about = f"Class {rows[0].get('anomaly')} is not in the training examples. Area under the ROC curve:"
    memories = [row for row in measured if "attractors" in row]
    return _section("Anomalies", about, _anomaly_columns, measured) + _section("Memories", _memory, _memory_columns, memories)


def _section(title: str, about: str, columns: Sequence[Column], rows: Rows) -> list[str]:
    """A heading, a paragraph and a table; nothing without rows."""
    return [f"## {title}", *(["", about] if about else []), *markdown_table(columns, rows)] if rows else []


def _codes(out: Path, rows: Rows) -> list[str]:
    events = list({event["name"]: event for event in read_events(out, "code")}.values())
    if not events:
        return []
    codes_figure(events, out / "figures" / "codes.png")
    return [*_section("Clusters", _clusters, _cluster_columns, events), "![codes](figures/codes.png)", ""]


def _wide_linear(out: Path, rows: Rows) -> list[str]:
    by_start: dict[str, dict[int, dict[str, Any]]] = {}
    for event in read_events(out, "wide linear"):
        by_start.setdefault(event["start"], {})[event["seed"]] = event
    lines = []
    for start, events in by_start.items():
        numbers = {field: [event[field] for event in events.values()] for field in ("first_loss", "loss", "gain", "distance")}
        spread = {f"{field}_spread": float(np.std(values, ddof=1)) for field, values in numbers.items() if len(values) > 1}
        lines.append({"start": start, **{field: float(np.mean(values)) for field, values in numbers.items()}, **spread})
    return _section("As wide as the input", _wide, _wide_columns, lines)


def _code(token: str) -> str:
    """A token in a cell of a table."""
    return f"`{token.encode('unicode_escape').decode() if token.isspace() else token}`"


def _embedding(out: Path, rows: Rows) -> list[str]:
    maps, neighbours = read_events(out, "embedding"), read_events(out, "neighbours")
    if not maps or not neighbours:
        return []
    embedding_figure(maps[-1]["names"], maps[-1]["points"], out / "figures" / "embedding.png")
    lines = [
        {**event, "near": ", ".join(f"{_code(name)} {cosine:.2f}" for name, cosine in event["neighbours"])}
        for event in {event["rank"]: event for event in neighbours}.values()
    ]
    return [*_section("Embedding", _neighbours, _neighbour_columns, lines), "![map](figures/embedding.png)", ""]


def _pictures(out: Path, rows: Rows) -> list[str]:
    if not pictures_path(out).exists():
        return []
    pictures_figure(dict(np.load(pictures_path(out))), out / "figures" / "pictures.png")
    return ["![reconstructions and memories](figures/pictures.png)", ""]


def _samples(out: Path, rows: Rows) -> list[str]:
    path = out / "samples.json"
    samples = json.loads(path.read_text()) if path.exists() else []
    return ["## Sampled documents", "", *(f"```text\n{sample}\n```\n" for sample in samples)] if samples else []


_sections = (
    _checklist,
    _search,
    _curves,
    _first_losses,
    _diagnostics,
    _anomalies,
    _codes,
    _wide_linear,
    _embedding,
    _pictures,
    _samples,
)

"""The part of report.md on the experiments beyond linear regression with linear layers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.runs.folder import read_events
from launch.icl.figures import sweep_figure
from launch.icl.figures_beyond import (
    adjusted_figure,
    copy_figure,
    curves_figure,
    finite_figure,
    heads_figure,
    prefixes_figure,
    waves_figure,
)
from launch.icl.reading import HEADS, WAVES, curve, groups, mean_of

Rows = Sequence[dict[str, Any]]


class Source(NamedTuple):
    """What an experiment is called, the steps and seeds that its source ran, and what it shows."""

    title: str
    steps: int | None
    seeds: int | None
    shows: str


SOURCES = {
    "nonlinear": Source(
        "Nonlinear regression",
        20_000,
        5,
        "attention on learned features and the control that descends say the same, before the layer and after (Fig. 4).",
    ),
    "copy": Source(
        "Copying",
        10_000,
        5,
        "the loss drops to that of one step of descent, just after the first layer begins to look at the next token (Fig. 5).",
    ),
    "softmax": Source(
        "Softmax",
        5000,
        5,
        "one head is clearly worse than descent; two come close, and their products cancel off the diagonal (Fig. 11, 12).",
    ),
    "layernorm": Source(
        "Layer normalisation",
        5000,
        5,
        "worse than descent on the training tasks, flatter on larger inputs (Fig. 14).",
    ),
    "phase": Source(
        "Phase transitions",
        5000,
        10,
        "with one head some seeds stay on a plateau for long; two heads remove it (Fig. 15).",
    ),
    "finite-data": Source(
        "Finite training sets",
        5000,
        1,
        "128 and 512 tasks are too few, from 2048 on the layer is nearly aligned with descent (Fig. 16).",
    ),
    "noisy": Source(
        "Noise",
        None,
        None,
        "the best single layer is descent with a preconditioner (Ahn et al. 2023, Zhang et al. 2024); four scalars a layer "
        "adapt to noise that differs, GD++ is as good as ridge regression with one penalty (Vladymyrov et al. 2024).",
    ),
    "function-classes": Source(
        "Classes of functions",
        500_001,
        1,
        "a transformer of 12 layers in 20 dimensions is near least squares on linear functions and Lasso on sparse ones, and "
        "beats greedy trees on trees (Garg et al. 2022).",
    ),
}
_columns = {  # heading -> measure and form
    "loss": ("loss", ".5f"),
    "before the layer": ("initial_loss", ".5f"),
    "population": ("population_loss", ".5f"),
    "training loss": ("train_loss", ".5f"),
    "adjusted": ("adjusted_loss", ".4f"),
    "loss / E[f²]": ("loss_by_power", ".4f"),
    "cosine": ("cosine", ".4f"),
    "model diff.": ("model_difference", ".4f"),
    "prediction diff.": ("prediction_difference", ".4f"),
    "own": ("sensitivity_own", ".3f"),
    "next": ("sensitivity_next", ".3f"),
    "other": ("sensitivity_other", ".3f"),
    "penalty": ("penalty", ".0e"),
    "seconds": ("seconds", ".0f"),
}


def beyond_sections(out: Path, rows: Rows) -> list[str]:
    """The lines of all sections that a run has rows for, their figures drawn beside."""
    lines: list[str] = []
    for experiment, section in _SECTIONS.items():
        if shown := [row for row in rows if row["experiment"] == experiment]:
            lines += [f"## {SOURCES[experiment].title}", "", extent(experiment, shown), "", *section(out, shown)]
    return lines


def extent(experiment: str, rows: Rows) -> str:
    """What was run, whether in full, and what the paper shows, in a sentence each.

    Example:
        >>> extent("phase", [{"steps": 100, "seed": 0}]).split(". ")[0]
        'Run: 100 steps, 1 seed; the source: 5,000 steps, 10 seeds: shortened'
    """
    _, steps, seeds, shows = SOURCES[experiment]
    ran = max((row["steps"] for row in rows), default=0)
    number = len({row["seed"] for row in rows if row["seed"] is not None})
    told = f"Run: {ran:,} steps, {number} seed{'s' * (number != 1)}"
    if steps and seeds:
        full = ran >= steps and number >= seeds
        told += f"; the source: {steps:,} steps, {seeds} seed{'s' * (seeds != 1)}: " + ("in full" if full else "shortened")
    return f"{told}. The source shows: {shows}"


def is_detail(row: dict[str, Any]) -> bool:
    """Whether a row is of a shifted prompt or of a shorter prefix, which tables of all experiments leave out."""
    return row["prefix"] is not None and (row["shift"] != "none" or row["prefix"] < row["context"])


def _table(rows: Rows, *, names: Mapping[str, str] | None = None) -> list[str]:
    """Rows of several seeds as one line of means, of all measures that any row has."""
    columns = {head: what for head, what in _columns.items() if any(row.get(what[0]) is not None for row in rows)}
    first = {"task": "task", "layers": "K", "heads": "heads"} | dict(names or {})
    varied = {name: head for name, head in first.items() if len({row.get(name) for row in rows}) > 1}
    lines = ["| " + " | ".join([*varied.values(), "predictor", *columns]) + " |"]
    lines += ["|---" * (len(varied) + 1 + len(columns)) + "|"]
    for group in groups(rows):
        row = group[0]
        start = row["start"] if row["start"] in ("trained", "control") else None
        name = row["predictor"] + (f" on the features of {start}" if start else "")
        name += f", {len(group)} seeds" if len(group) > 1 else ""
        cells = ["" if row.get(what) is None else str(row[what]) for what in varied]
        lines.append("| " + " | ".join([*cells, name, *(mean_of(group, *what) for what in columns.values())]) + " |")
    return [*lines, ""]


def _levels(out: Path, model: str) -> dict[str, float]:
    names: dict[str, str] = {"gd": "GD", "gd++": "GD++"}
    events = [event for event in read_events(out, "reference") if event["model"] == model]
    return {names.get(str(event["predictor"]), str(event["predictor"])): event["loss"] for event in events}


def _nonlinear(out: Path, rows: Rows) -> list[str]:
    curves = {name: curve(out, f"nonlinear_{name}") for name in ("trained", "control")}
    zero = next(row["loss"] for row in rows if row["predictor"] == "zero")
    waves_figure(curves, zero, np.load(out / WAVES), out / "figures" / "nonlinear.png")
    return [*_table(rows), "![sine waves](figures/nonlinear.png)", ""]


def _copy(out: Path, rows: Rows) -> list[str]:
    levels = {event["predictor"]: event["loss"] for event in read_events(out, "reference") if event["model"] == "copy"}
    entries = curve(out, "copy")
    copy_figure(entries, levels, out / "figures" / "copy.png")
    return [*_table(rows), *_drop(entries, levels), "![copying](figures/copy.png)", ""]


def _drop(entries: Sequence[dict[str, Any]], levels: Mapping[str, float]) -> list[str]:
    """When each seed began to look at the next token, and when its loss was half of its way, in a sentence."""
    half = (levels["zero"] + levels["gd"]) / 2
    told = []
    for n in range(len(entries[0]["loss"])):
        looks = (e["step"] for e in entries if e["sensitivity_next"][n] > 2 * e["sensitivity_other"][n])
        fell = (e["step"] for e in entries if e["loss"][n] <= half)
        told.append(" and ".join("never" if (step := next(steps, None)) is None else str(step) for steps in (looks, fell)))
    what = (
        "The step from which the next token tells more than twice as much as others, and from which the loss is half of its way"
    )
    return [f"{what} to one step of descent, by seed: {'; '.join(told)}.", ""]


def _softmax(out: Path, rows: Rows) -> list[str]:
    curves = {f"{heads} head{'s' * (heads > 1)}": curve(out, f"softmax_{heads}_heads") for heads in (1, 2)}
    curves_figure(curves, _levels(out, "softmax_1_heads"), out / "figures" / "softmax.png")
    heads_figure(np.load(out / HEADS), out / "figures" / "heads.png")
    return [*_table(rows), "![softmax](figures/softmax.png)", "", "![heads](figures/heads.png)", ""]


def _layernorm(out: Path, rows: Rows) -> list[str]:
    lines, layers = _table(rows), sorted({row["layers"] for row in rows})
    for K in layers:
        sweeps: dict[str, tuple[list[float], Any]] = {}
        events = [event for event in read_events(out, "beyond_sweep") if event["model"] == f"layernorm_K{K}"]
        for event in {(e["predictor"], e["seed"]): e for e in events}.values():
            sweeps.setdefault(event["predictor"], (event["values"], []))[1].append(event["losses"])
        shown = {name: (values, np.array(losses)) for name, (values, losses) in sweeps.items()}
        sweep_figure(
            {"input_range": shown}, f"K = {K}, with layer normalisation", out / "figures" / f"layernorm_shift_K{K}.png"
        )
        lines += [f"![K = {K}](figures/layernorm_shift_K{K}.png)", ""]
    curves = {f"K = {K}": curve(out, f"layernorm_K{K}") for K in layers}
    levels = {f"{name}, K = {K}": loss for K in layers for name, loss in _levels(out, f"layernorm_K{K}").items()}
    curves_figure(curves, levels, out / "figures" / "layernorm.png")
    return [*lines, "![layer normalisation](figures/layernorm.png)", ""]


def _phase(out: Path, rows: Rows) -> list[str]:
    curves = {f"{heads} head{'s' * (heads > 1)}": curve(out, f"phase_{heads}_heads") for heads in (1, 2)}
    levels = _levels(out, "phase_1_heads")
    curves_figure(curves, levels, out / "figures" / "phase.png", each=True)
    lines = []
    for name, entries in curves.items():
        half = (entries[0]["loss"][0] + levels["GD"]) / 2
        steps = [
            next((entry["step"] for entry in entries if entry["loss"][n] <= half), None) for n in range(len(entries[0]["loss"]))
        ]
        told = ", ".join("never" if step is None else str(step) for step in sorted(steps, key=lambda s: s or 10**9))
        lines.append(f"With {name} the loss is half of its way to GD's after steps: {told}.")
    return [*_table(rows), *lines, "", "![phase transitions](figures/phase.png)", ""]


def _finite(out: Path, rows: Rows) -> list[str]:
    sizes = sorted({row["training_tasks"] for row in rows})
    curves = {f"{size} tasks": curve(out, f"finite_{size}") for size in sizes}
    curves_figure(curves, _levels(out, f"finite_{sizes[0]}"), out / "figures" / "finite_curves.png")
    trained = [row for row in rows if row["predictor"] == "trained"]
    by_size = {size: [row for row in trained if row["training_tasks"] == size] for size in sizes}
    losses = {
        size: (float(np.mean([r["train_loss"] for r in of_it])), float(np.mean([r["loss"] for r in of_it])))
        for size, of_it in by_size.items()
    }
    level = next(row["loss"] for row in rows if row["predictor"] == "gd")
    finite_figure(losses, level, out / "figures" / "finite.png")
    shown = _table(trained, names={"training_tasks": "training tasks"})
    return [*shown, "![few tasks](figures/finite.png)", "", "![by step](figures/finite_curves.png)", ""]


def _noisy(out: Path, rows: Rows) -> list[str]:
    first = [row for row in rows if row["task"] != "mixed noise"]
    mixed = [row for row in rows if row["task"] == "mixed noise"]
    lines = ["x ~ N(0, Λ) with eigenvalues 1/k, labels with noise of variance 1:", "", *_table(first)] if first else []
    if not mixed:
        return lines
    by_layers: dict[str, dict[int, float]] = {}
    for row in mixed:
        if row["layers"]:
            by_layers.setdefault(row["predictor"], {})[row["layers"]] = row["adjusted_loss"]
    levels = {row["predictor"]: row["adjusted_loss"] for row in mixed if not row["layers"] and row["predictor"] != "oracle"}
    adjusted_figure(by_layers, levels, out / "figures" / "noisy.png")
    told = "Noise that differs by task; *adjusted* is the loss less that of ridge regression that knows the noise (*oracle*):"
    return [*lines, told, "", *_table(mixed), "![noise that differs](figures/noisy.png)", ""]


def _functions(out: Path, rows: Rows) -> list[str]:
    losses: dict[str, dict[str, np.ndarray]] = {}
    for event in read_events(out, "prefixes"):
        if event["shift"] == "none" and event["seed"] in (None, rows[-1]["seed"]):
            losses.setdefault(event["task"], {})[event["predictor"]] = np.array(event["losses"])
    prefixes_figure(losses, out / "figures" / "function_classes.png")
    plain = [row for row in rows if not is_detail(row)]
    lines = ["After the whole prompt:", "", *_table(plain), "![by pairs seen](figures/function_classes.png)", ""]
    shifted = [row for row in rows if row["task"] == "linear" and row["prefix"] == row["context"]]
    shifts = list(dict.fromkeys(row["shift"] for row in shifted))
    if len(shifts) > 1:
        names = list(dict.fromkeys(row["predictor"] for row in shifted))
        lines += ["Linear functions on shifted prompts, loss / E[f²] at the last point:", ""]
        lines += ["| shift | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
        for shift in shifts:
            by_name = {name: [r for r in shifted if r["shift"] == shift and r["predictor"] == name] for name in names}
            lines.append(f"| {shift} | " + " | ".join(mean_of(by_name[name], "loss_by_power", ".4f") for name in names) + " |")
    return [*lines, ""]


_SECTIONS: dict[str, Callable[[Path, Rows], list[str]]] = {
    "nonlinear": _nonlinear,
    "copy": _copy,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "phase": _phase,
    "finite-data": _finite,
    "noisy": _noisy,
    "function-classes": _functions,
}

"""Sections on what lies beyond linear regression with linear layers."""

from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.results import read_events
from jexplicit.runs.tables import Column, markdown_table
from launch.icl import figures
from launch.icl.job import HEADS, WAVES, copy_model, wave_model
from launch.icl.sections.run_files import (
    curves_by_heads,
    draw_figure,
    first_steps,
    named_losses,
    read_sweeps,
    reference_losses,
    step_or_never,
    training_curve,
)
from launch.icl.tables import Rows, is_detail, mean_rows, measures_table


def nonlinear(out: Path, rows: Rows) -> list[str]:
    images = []
    for K in sorted({row["layers"] for row in rows}):
        curves = {name: training_curve(out, wave_model(name, K)) for name in ("trained", "control")}
        zero = next(row["loss"] for row in rows if row["predictor"] == "zero")
        waves = np.load(out / WAVES.format(layers=K))
        images += draw_figure(out, f"nonlinear_K{K}", figures.waves_figure, curves, zero, waves)
    return [*measures_table(rows), *images]


def copy(out: Path, rows: Rows) -> list[str]:
    curve, linear = (training_curve(out, copy_model(first)) for first in ("softmax", "linear"))
    levels = reference_losses(out, copy_model("softmax"))
    image = draw_figure(out, "copy", figures.copy_figure, curve, linear, levels)
    half = (levels["zero"] + levels["gd"]) / 2
    attends = first_steps(curve, lambda e, n: e["sensitivity_next"][n] > 2 * e["sensitivity_other"][n])
    drops, never = (map(step_or_never, first_steps(of, lambda e, n: e["loss"][n] <= half)) for of in (curve, linear))
    steps = [f"{step_or_never(first)} and {then}" for first, then in zip(attends, drops, strict=True)]
    losses = [f"{row['loss']:.4f}" for row in rows if row["attention"] == "softmax"]
    sentence = (
        "The first step at which the sensitivity to the next token is more than twice that to other tokens, and the first at "
        f"which the loss is halfway to that of one step of descent, by seed: {'; '.join(steps)}. With a linear first layer the "
        f"latter: {', '.join(never)}. Losses with softmax, by seed: {', '.join(losses)}."
    )
    return [*measures_table(rows, {"attention": "first layer"}), sentence, "", *image]


def softmax(out: Path, rows: Rows) -> list[str]:
    levels = named_losses(out, "softmax_1_heads")
    curves = draw_figure(out, "softmax", figures.curves_figure, curves_by_heads(out, "softmax"), levels)
    heads = draw_figure(out, "heads", figures.heads_figure, np.load(out / HEADS))
    return [*measures_table(rows), *curves, *heads]


def layernorm(out: Path, rows: Rows) -> list[str]:
    lines, curves, levels = measures_table(rows), {}, {}
    for K in sorted({row["layers"] for row in rows}):
        name = f"layernorm_K{K}"
        title, sweeps = f"K = {K}, with layer normalisation", read_sweeps(out, "layernorm", name)
        lines += draw_figure(out, f"layernorm_shift_K{K}", figures.sweep_figure, sweeps, title)
        curves[f"K = {K}"] = training_curve(out, name)
        levels |= {f"{descent}, K = {K}": loss for descent, loss in named_losses(out, name).items()}
    image = draw_figure(out, "layernorm", figures.curves_figure, curves, levels)
    return [*lines, *image]


def phase(out: Path, rows: Rows) -> list[str]:
    curves, levels = curves_by_heads(out, "phase"), named_losses(out, "phase_1_heads")
    image = draw_figure(out, "phase", figures.curves_figure, curves, levels, by_seed=True)
    lines = []
    for name, curve in curves.items():
        half = (curve[0]["loss"][0] + levels["GD"]) / 2
        steps = first_steps(curve, lambda e, n, half=half: e["loss"][n] <= half)
        steps.sort(key=lambda step: np.inf if step is None else step)
        lines.append(f"With {name} the steps at which the loss is halfway to GD's: {', '.join(map(step_or_never, steps))}.")
    return [*measures_table(rows), *lines, "", *image]


def finite_data(out: Path, rows: Rows) -> list[str]:
    trained = [row for row in rows if row["predictor"] == "trained"]
    losses = {row["training_tasks"]: (row["train_loss"], row["loss"]) for row in mean_rows(trained)}
    level = next(row["loss"] for row in rows if row["predictor"] == "gd")
    by_size = draw_figure(out, "finite", figures.finite_figure, losses, level)
    sizes = sorted(losses)
    curves = {f"{size} tasks": training_curve(out, f"finite_{size}") for size in sizes}
    levels = named_losses(out, f"finite_{sizes[0]}")
    by_step = draw_figure(out, "finite_curves", figures.curves_figure, curves, levels)
    return [*measures_table(trained, {"training_tasks": "training tasks"}), *by_size, *by_step]


def noisy(out: Path, rows: Rows) -> list[str]:
    first = [row for row in rows if row["task"] != "mixed noise"]
    mixed = [row for row in rows if row["task"] == "mixed noise"]
    lines = ["x ~ N(0, Λ) with eigenvalues 1/k, labels with noise of variance 1:", *measures_table(first)] if first else []
    if not mixed:
        return lines
    by_layers: dict[str, dict[int, float]] = {}
    for row in mixed:
        by_layers.setdefault(row["predictor"], {})[row["layers"]] = row["adjusted_loss"]
    image = draw_figure(out, "noisy", figures.adjusted_figure, by_layers)
    note = "Noise levels that differ by task; *adjusted* is the loss minus that of ridge regression given the noise (*oracle*):"
    return [*lines, note, *measures_table(mixed), *image]


def function_classes(out: Path, rows: Rows) -> list[str]:
    losses: dict[str, dict[str, np.ndarray]] = {}
    for event in read_events(out, "prefixes"):
        if event["shift"] == "none" and event["seed"] in (None, rows[-1]["seed"]):
            losses.setdefault(event["task"], {})[event["predictor"]] = np.array(event["losses"])
    image = draw_figure(out, "function_classes", figures.prefixes_figure, losses)
    whole = [row for row in rows if not is_detail(row)]
    lines = ["After the whole prompt:", *measures_table(whole), *image]
    by_shift: dict[str, dict[str, Any]] = {}
    for row in mean_rows([row for row in rows if row["task"] == "linear" and row["prefix"] == row["context"]]):
        by_shift.setdefault(row["shift"], {"shift": row["shift"]})[row["predictor"]] = row["loss_by_power"]
    if len(by_shift) > 1:
        names = dict.fromkeys(name for row in by_shift.values() for name in row if name != "shift")
        columns = [Column("shift", "shift"), *(Column(name, name, ".4f") for name in names)]
        lines += ["Linear functions on shifted prompts, loss / E[f²] at the last point:"]
        lines += markdown_table(columns, by_shift.values())
    return lines

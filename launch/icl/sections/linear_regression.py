"""Sections on linear regression with linear layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.results import read_events
from jexplicit.runs.tables import Column, markdown_table
from launch.icl import figures
from launch.icl.job import CURVATURE, WEIGHTS, model_name
from launch.icl.panels import Curve
from launch.icl.sections.run_files import draw_figure, first_step, last_events, read_sweeps, reference_losses, training_curve
from launch.icl.tables import Rows, comparison_table, kind_of, mean_rows

PAPER_GAMMA = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}


def training(out: Path, rows: Rows) -> list[str]:
    """The results of K layers, their training curves and weights."""
    row, title = rows[0], f"K = {kind_of(rows[0])}"
    model, target = model_name(row), row["reference"]
    curves = {start: found for start in ("cold", "warm") if (found := training_curve(out, f"{start}_{model}"))}
    levels = reference_losses(out, f"cold_{model}")
    lines = comparison_table(rows)
    lines += draw_figure(out, f"training_{model}", figures.training_figure, curves, levels, target, title)
    if "warm" in curves:
        lines += [steps_saved(curves["cold"], curves["warm"], 1.03 * levels[target]), ""]
    weights = np.load(out / WEIGHTS.format(model=model))
    lines += draw_figure(out, f"weights_{model}", figures.weights_figure, weights, f"first layer, {title}, first seed")
    if len(weights["trained M"]) > 1:
        lines += draw_figure(out, f"layers_{model}", figures.layers_figure, weights, f"all layers, {title}, first seed")
    return lines


def steps_saved(cold: Curve, warm: Curve, level: float) -> str:
    """The steps that each start takes to a mean loss of at most `level`, in a sentence.

    Example:
        >>> curve = [{"step": 0, "loss": [0.4]}, {"step": 100, "loss": [0.1]}]
        >>> steps_saved(curve, curve[1:], 0.2)
        'The mean loss comes within 3 % of GD++: from random weights after 100 steps, from the closed form after 100 steps.'
    """
    first = []
    for curve in (cold, warm):
        step = first_step(curve, lambda entry: np.mean(entry["loss"]) <= level)
        first.append(f"not within {curve[-1]['step']} steps" if step is None else f"after {step} steps")
    return f"The mean loss comes within 3 % of GD++: from random weights {first[0]}, from the closed form {first[1]}."


def shifts(out: Path, rows: Rows) -> list[str]:
    lines = []
    for model, row in {model_name(row): row for row in rows}.items():
        sweeps = read_sweeps(out, "out-of-distribution", model)
        shown = {shift: {n: s for n, s in by_name.items() if n != "constructed"} for shift, by_name in sweeps.items()}
        title = f"K = {kind_of(row)}, d = {row['dim']}, N = {row['context']}"
        lines += draw_figure(out, f"shifts_{model}", figures.sweep_figure, shown, title)
    return lines


def rollout(out: Path, rows: Rows) -> list[str]:
    paths: dict[float, dict[str, Any]] = {}
    for event in last_events(read_events(out, "rollout"), "damping", "predictor", "seed"):
        losses = [np.nan if loss is None else loss for loss in event["losses"]]
        paths.setdefault(event["damping"], {}).setdefault(event["predictor"], []).append(losses)
    paths = {damping: {name: np.array(losses) for name, losses in by.items()} for damping, by in sorted(paths.items())}
    image = draw_figure(out, "rollout", figures.rollout_figure, paths)
    columns = [Column("damping", "damping", "g"), Column("predictor", "predictor")]
    columns += [Column(f"step {n}", lambda row, n=n: row["losses"][:, n - 1].mean(), ".4g") for n in (1, 2, 5, 10, 20, 50)]
    table = [{"damping": d, "predictor": name, "losses": losses} for d, by in paths.items() for name, losses in by.items()]
    return [*markdown_table(columns, table), *image]


def curvature(out: Path, rows: Rows) -> list[str]:
    spectra = np.load(out / CURVATURE)
    by_size = {row["context"]: (spectra[f"before_{row['context']}"], spectra[f"after_{row['context']}"]) for row in rows}
    gammas: dict[str, dict[int, float]] = {"closed_form": {}, "trained": {}}
    for row in mean_rows(rows):
        gammas[row["predictor"]][row["context"]] = row["gamma"]
    image = draw_figure(out, "curvature", figures.curvature_figure, by_size, gammas, PAPER_GAMMA)
    columns = [
        Column("N", "context"),
        Column("predictor", lambda row: row["predictor"].replace("_", " ")),
        Column("γ", "gamma", ".4f", bold=True),
        Column("paper", lambda row: PAPER_GAMMA.get(row["context"])),
        Column("η", "eta", ".2f"),
        Column("loss", "loss", ".5f"),
        Column("condition number before", "condition_before", ".4g"),
        Column("after", "condition_after", ".4g"),
        Column("eigenvalues before", _eigenvalues("")),
        Column("after", _eigenvalues("_after")),
        Column("seconds", "seconds", ".1f"),
    ]
    table = markdown_table(columns, sorted(mean_rows(rows), key=lambda row: (row["context"], row["predictor"])))
    sentence = (
        "The paper's γ are those of its trained transformers. Condition numbers are medians over contexts. Eigenvalues are the "
        "smallest and the largest of all contexts and, in brackets, the means of the smallest and of the largest of a context."
    )
    return [sentence, *table, *image]


def _eigenvalues(when: str) -> Callable[[Any], str]:
    def shown(row: Any) -> str:
        kinds = ("eigenvalue_min", "eigenvalue_max", "mean_eigenvalue_min", "mean_eigenvalue_max")
        low, high, mean_low, mean_high = (row[f"{kind}{when}"] for kind in kinds)
        return f"{low:.3g} to {high:.3g} ({mean_low:.3g} to {mean_high:.3g})"

    return shown


def scaling(out: Path, rows: Rows) -> list[str]:
    losses: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["layers"] == 1 and row["predictor"] in ("closed_form", "trained"):
            losses.setdefault(row["predictor"], {})[row["context"]] = row["loss"]
    image = draw_figure(out, "scaling", figures.scaling_figure, losses)
    return [*comparison_table(rows), *image]

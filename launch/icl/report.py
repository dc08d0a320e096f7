"""Tables of an in-context learning run: on the terminal and in report.md, the paper's numbers beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.folder import read_config, read_events, read_rows
from launch.icl.figures import (
    curvature_figure,
    rollout_figure,
    scaling_figure,
    sweep_figure,
    training_figure,
    weights_figure,
)
from launch.icl.reading import CURVATURE, WEIGHTS, curve, groups, mean_of
from launch.icl.report_beyond import SOURCES, beyond_sections, is_detail

# The paper's numbers, d = N = 10 and inputs U(-1/2, 1/2), by (K, recurrent, predictor). Its figures print few, so those with a
# dagger were measured by running its published code.
PAPER_LOSS = {
    (1, True, "gd"): "0.2074†",
    (1, True, "trained"): "0.2076†",
    (1, True, "interpolated"): "0.2074†",
    (2, True, "gd"): "0.1588†",
    (2, True, "gd++"): "0.1116†",
    (5, False, "gd"): "0.1096†",
    (5, False, "gd++"): "0.0363†",
}
PAPER_GAMMA = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}

_reading = """\
Losses are half mean squared errors. *gd* and *gd++* are K steps with the best rates, tied as the layers are; *closed_form* is
the best that K layers of GD++ with rates of their own can do, found without training; *constructed* are attention weights that
perform the reference; *interpolated* is the mean of trained and constructed weights; *ridge* knows the noise. *cosine*,
*model difference* and *prediction difference* are to the reference, GD for one layer and GD++ for more. *Above* is the loss
less the reference's on the same tasks, which is known far better than either. Numbers with a dagger were measured with the
paper's published code on 10,000 tasks, whose losses are 0.3 to 1.5 % above the population's.
"""


def icl_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The results as a table for the terminal, seeds as mean and range."""
    table = Table(title="loss (the paper's in grey)", title_justify="left")
    for heading in ("", "predictor", "loss", "paper", "cosine", "gamma", "s"):
        number = heading not in ("", "predictor")
        table.add_column(
            heading, justify="right" if number else "left", no_wrap=True, min_width=6 * (heading == "loss") or None
        )
    shown = ("one-step", "multi-step", "curvature", "scaling-N", *SOURCES)
    told = [row for row in rows if row["experiment"] in shown and not is_detail(row) and not _is_one_of_many(row)]
    for group in groups(told):
        row = group[0]
        name = row["predictor"] + (f", {row['start']}" if row["start"] else "")
        gamma = row["gamma"] if not isinstance(row["gamma"], list) else None
        table.add_row(
            _about(row),
            name,
            f"[bold]{mean_of(group, 'loss', '.4f')}[/]",
            f"[dim]{_paper(row)}[/]",
            mean_of(group, "cosine", ".4f"),
            "" if gamma is None else mean_of(group, "gamma", ".3f"),
            mean_of(group, "seconds", ".0f"),
        )
    return table


def _is_one_of_many(row: dict[str, Any]) -> bool:
    """Whether a row of other sizes is neither descent's nor trained: report.md has those."""
    return row["experiment"] == "scaling-N" and row["predictor"] not in (row["reference"], "trained")


def _about(row: dict[str, Any]) -> str:
    """What was asked of a predictor, for the table on the terminal."""
    if row["experiment"] == "scaling-N" and row["layers"] == 1:  # of sizes d = N
        return f"K = 1, d = {row['dim']}"
    if row["experiment"] not in SOURCES:
        return f"K = {row['layers']}, N = {row['context']}"
    heads = f", {row['heads']} heads" if row["heads"] > 1 and row["predictor"] == "trained" else ""
    task = f", {row['task']}" if row["task"] != "linear" or row["experiment"] == "function-classes" else ""
    size = f", {row['training_tasks']} tasks" if row.get("training_tasks") else ""
    return f"{row['experiment']}{task}{size}, K = {row['layers']}{heads}"


def write_icl_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.icl` run."""
    rows, config = read_rows(out), read_config(out) or {}
    lines = [
        "# In-context learning by gradient descent",
        "",
        f"d = {config['dim']}, N = {config['context']}, settings of the paper's {config['settings']}; batches of "
        f"{config['batch_size']} fresh tasks; {config['test_tasks']:,} test tasks.",
        "",
        _reading,
    ]
    for experiment, title in (("one-step", "One layer is one step"), ("multi-step", "Several layers are steps of GD++")):
        if shown := [row for row in rows if row["experiment"] == experiment]:
            lines += [f"## {title}", "", *_table(shown), "", *_training(out, shown, title)]
    lines += _section_shifts(out) + _section_rollout(out) + _section_curvature(out, rows) + _section_scaling(out, rows)
    lines += beyond_sections(out, rows)
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def steps_saved(cold: Sequence[dict[str, Any]], warm: Sequence[dict[str, Any]], level: float) -> str:
    """How many steps each start takes to a mean loss of at most `level`, in a sentence.

    Example:
        >>> curve = [{"step": 0, "loss": [0.4]}, {"step": 100, "loss": [0.1]}]
        >>> steps_saved(curve, curve[1:], 0.2)
        'From random weights the mean loss is within 3 % of GD++ after 100 steps, from the closed form after 100.'
    """
    reached = [[entry["step"] for entry in curve if np.mean(entry["loss"]) <= level] for curve in (cold, warm)]
    lasts = (curve[-1]["step"] for curve in (cold, warm))
    first = [f"after {steps[0]}" if steps else f"not after {last}" for steps, last in zip(reached, lasts, strict=True)]
    return f"From random weights the mean loss is within 3 % of GD++ {first[0]} steps, from the closed form {first[1]}."


def _training(out: Path, rows: Sequence[dict[str, Any]], title: str) -> list[str]:
    """The training curves and weights of an experiment."""
    model = _model_name(rows[0])
    curves = {start: found for start in ("cold", "warm") if (found := curve(out, f"{start}_{model}"))}
    levels = {event["predictor"]: event["loss"] for event in read_events(out, "reference") if event["model"].endswith(model)}
    target = rows[0]["reference"]
    figures, lines = out / "figures", []
    if curves:
        training_figure(curves, levels, target, f"{title}: K = {_kind(rows[0])}", figures / f"training_{model}.png")
        lines += [f"![training](figures/training_{model}.png)", ""]
    if "warm" in curves and "cold" in curves:
        lines += [steps_saved(curves["cold"], curves["warm"], 1.03 * levels[target]), ""]
    path = out / WEIGHTS.format(model=model)
    if path.exists():
        weights_figure(np.load(path), f"first layer, K = {_kind(rows[0])}, first seed", figures / f"weights_{model}.png")
        lines += [f"![weights](figures/weights_{model}.png)", ""]
    return lines


def _section_shifts(out: Path) -> list[str]:
    events = read_events(out, "sweep")
    lines = ["## Other tasks", ""] if events else []
    for model in dict.fromkeys(event["model"] for event in events):
        sweeps: dict[str, dict[str, tuple[list[float], Any]]] = {}
        for event in {(e["shift"], e["predictor"], e["seed"]): e for e in events if e["model"] == model}.values():
            by_name = sweeps.setdefault(event["shift"], {})
            by_name.setdefault(event["predictor"], (event["values"], []))[1].append(event["losses"])
        shown = {
            shift: {name: (values, np.array(losses)) for name, (values, losses) in by_name.items() if name != "constructed"}
            for shift, by_name in sweeps.items()
        }
        sweep_figure(shown, _told_name(model), out / "figures" / f"shifts_{model}.png")
        lines += [f"![other tasks](figures/shifts_{model}.png)", ""]
    return lines


def _section_rollout(out: Path) -> list[str]:
    paths: dict[float, dict[str, list[list[float]]]] = {}
    for event in {(e["damping"], e["predictor"], e["seed"]): e for e in read_events(out, "rollout")}.values():
        losses = [np.nan if loss is None else loss for loss in event["losses"]]
        paths.setdefault(event["damping"], {}).setdefault(event["predictor"], []).append(losses)
    if not paths:
        return []
    shown = {damping: {name: np.array(losses) for name, losses in by.items()} for damping, by in paths.items()}
    rollout_figure(shown, out / "figures" / "rollout.png")
    lines = ["## Roll-out", "", "| damping | predictor | " + " | ".join(f"step {n}" for n in (1, 2, 5, 10, 20, 50)) + " |"]
    lines += ["|---" * 8 + "|"]
    for damping, by_name in sorted(shown.items()):
        for name, losses in by_name.items():
            values = (f"{losses[:, n - 1].mean():.4g}" for n in (1, 2, 5, 10, 20, 50))
            lines.append(f"| {damping:g} | {name} | " + " | ".join(values) + " |")
    return [*lines, "", "![roll-out](figures/rollout.png)", ""]


def _section_curvature(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    shown = {row["context"]: row for row in rows if row["experiment"] == "curvature"}
    if not shown:
        return []
    spectra = np.load(out / CURVATURE)
    by_size = {N: (spectra[f"before_{N}"], spectra[f"after_{N}"]) for N in shown}
    gammas = {N: row["gamma"] for N, row in shown.items()}
    curvature_figure(by_size, gammas, PAPER_GAMMA, out / "figures" / "curvature.png")
    lines = ["## Curvature", "", "The paper's γ are those that its trained transformers ended with.", ""]
    lines += ["| N | γ | paper | η | loss | condition number before | after | seconds |", "|---" * 8 + "|"]
    for N, row in sorted(shown.items()):
        lines.append(
            f"| {N} | **{row['gamma']:.4f}** | {PAPER_GAMMA.get(N, '')} | {row['eta']:.2f} | {row['loss']:.5f} | "
            f"{row['condition_before']:.4g} | {row['condition_after']:.4g} | {row['seconds']:.1f} |"
        )
    return [*lines, "", "![curvature](figures/curvature.png)", ""]


def _section_scaling(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    shown = [row for row in rows if row["experiment"] == "scaling-N"]
    if not shown:
        return []
    one = [row for row in shown if row["layers"] == 1 and row["predictor"] in ("closed_form", "trained")]
    losses: dict[str, dict[int, float]] = {}
    for row in one:
        losses.setdefault(row["predictor"], {})[row["context"]] = row["loss"]
    scaling_figure(losses, out / "figures" / "scaling.png")
    return ["## Other sizes", "", *_table(shown), "", "![one layer by size](figures/scaling.png)", ""]


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows of several seeds as one line of means, with the range of the loss."""
    lines = [
        "| K | d | N | predictor | loss | paper | above | cosine | model diff. | prediction diff. | η | γ | steps | seconds |"
    ]
    lines += ["|---" * 14 + "|"]
    for group in groups(rows):
        row = group[0]
        name = row["predictor"] + (f", {row['start']} start, {_seeds(len(group))}" if row["start"] else "")
        spread = [r["loss"] for r in group]
        loss = f"**{np.mean(spread):.5f}**" + (f" ({min(spread):.5f} to {max(spread):.5f})" if len(group) > 1 else "")
        measures = (mean_of(group, what, ".4f") for what in ("cosine", "model_difference", "prediction_difference"))
        rates = (_rates(group, what) for what in ("eta", "gamma"))
        above = mean_of(group, "above_reference", "+.5f")
        cells = [_kind(row), str(row["dim"]), str(row["context"]), name, loss, _paper(row), above, *measures, *rates]
        lines.append("| " + " | ".join([*cells, str(row["steps"] or ""), mean_of(group, "seconds", ".1f")]) + " |")
    return lines


def _seeds(number: int) -> str:
    return f"{number} seed" + "s" * (number > 1)


def _rates(group: Sequence[dict[str, Any]], what: str) -> str:
    if isinstance(group[0][what], list):
        return ", ".join(f"{rate:.3g}" for rate in group[0][what])
    return mean_of(group, what, ".4g")


def _kind(row: dict[str, Any]) -> str:
    return f"{row['layers']}" + ("" if row["layers"] == 1 else " recurrent" if row["recurrent"] else " separate")


def _model_name(row: dict[str, Any]) -> str:
    kind = "" if row["layers"] == 1 else "_recurrent" if row["recurrent"] else "_layers"
    return f"K{row['layers']}{kind}_d{row['dim']}_N{row['context']}"


def _told_name(model: str) -> str:
    """A model's name for readers: K2_recurrent_d10_N10 is `K = 2 recurrent, d = 10, N = 10`.

    Example:
        >>> _told_name("K2_layers_d3_N4")
        'K = 2 separate, d = 3, N = 4'
    """
    layers, *kind, d, N = model.split("_")
    kinds = {"recurrent": " recurrent", "layers": " separate"}
    return f"K = {layers[1:]}{kinds[kind[0]] if kind else ''}, d = {d[1:]}, N = {N[1:]}"


def _paper(row: dict[str, Any]) -> str:
    told = row["settings"] == "code" and row["dim"] == row["context"] == 10 and row["start"] in (None, "cold")
    return PAPER_LOSS.get((row["layers"], row["recurrent"], row["predictor"]), "") if told else ""

"""report.md of an in-context learning run and its figures, written from the run's files alone."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.runs.results import read_config, read_events, read_rows
from jexplicit.runs.tables import Column, markdown_table
from launch.icl import figures
from launch.icl.config import EXPERIMENTS
from launch.icl.figures import Curve
from launch.icl.job import CURVATURE, HEADS, WAVES, WEIGHTS, model_name
from launch.icl.tables import Rows, comparison_table, is_detail, kind_of, mean_rows, measures_table

PAPER_GAMMA = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}

_reading = """\
Losses are half mean squared errors. *gd* and *gd++* are K steps at their best rates, tied across steps where the layers share
weights; *closed_form* is the best that K layers of GD++ with separate rates can do, found without training; *constructed* are
attention weights that perform the reference; *interpolated* is the mean of trained and constructed weights; *ridge* knows the
noise. *cosine*, *model diff.* and *prediction diff.* compare with the reference: GD for one layer, GD++ for more. *above* is
the loss minus the reference's on the same tasks, which has a much smaller error than either. Numbers with a dagger were
measured with the paper's published code on 10,000 tasks, whose losses are 0.3 to 1.5 % above the population's.
"""


def write_report(out: Path) -> Path:
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
    for experiment in EXPERIMENTS:
        if shown := [row for row in rows if row["experiment"] == experiment]:
            section = SECTIONS[experiment]
            extent = [run_extent(experiment, shown), ""] if section.source_shows else []
            lines += [f"## {section.title}", "", *extent, *section.lines(out, shown)]
    report = out / "report.md"
    report.write_text(re.sub("\n{3,}", "\n\n", "\n".join(lines)))
    return report


def run_extent(experiment: str, rows: Rows) -> str:
    """What was run, whether in full, and what the source shows, a sentence each.

    Example:
        >>> run_extent("phase", [{"steps": 100, "seed": 0}]).split(". ")[0]
        'Run: 100 steps, 1 seed; the source: 5,000 steps, 10 seeds: shortened'
    """
    section = SECTIONS[experiment]
    steps = max((row["steps"] for row in rows), default=0)
    seeds = len({row["seed"] for row in rows if row["seed"] is not None})

    def described(steps: int, seeds: int) -> str:
        return f"{steps:,} steps, {seeds} seed{'s' * (seeds != 1)}"

    sentence = f"Run: {described(steps, seeds)}"
    if section.source_runs:
        full = steps >= section.source_runs[0] and seeds >= section.source_runs[1]
        sentence += f"; the source: {described(*section.source_runs)}: {'in full' if full else 'shortened'}"
    return f"{sentence}. The source shows: {section.source_shows}"


def steps_saved(cold: Curve, warm: Curve, level: float) -> str:
    """The steps that each start takes to a mean loss of at most `level`, in a sentence.

    Example:
        >>> curve = [{"step": 0, "loss": [0.4]}, {"step": 100, "loss": [0.1]}]
        >>> steps_saved(curve, curve[1:], 0.2)
        'The mean loss comes within 3 % of GD++: from random weights after 100 steps, from the closed form after 100 steps.'
    """
    first = []
    for curve in (cold, warm):
        step = _first_step(curve, lambda entry: np.mean(entry["loss"]) <= level)
        first.append(f"not within {curve[-1]['step']} steps" if step is None else f"after {step} steps")
    return f"The mean loss comes within 3 % of GD++: from random weights {first[0]}, from the closed form {first[1]}."


def _training(out: Path, rows: Rows) -> list[str]:
    """The results of K layers, their training curves and weights."""
    row, title = rows[0], f"K = {kind_of(rows[0])}"
    model, target = model_name(row), row["reference"]
    curves = {start: found for start in ("cold", "warm") if (found := _curve(out, f"{start}_{model}"))}
    levels, heading = _levels(out, f"cold_{model}"), f"{SECTIONS[row['experiment']].title}: {title}"
    lines = comparison_table(rows)
    lines += _draw(out, f"training_{model}", figures.training_figure, curves, levels, target, heading)
    if "warm" in curves:
        lines += [steps_saved(curves["cold"], curves["warm"], 1.03 * levels[target]), ""]
    weights = np.load(out / WEIGHTS.format(model=model))
    return lines + _draw(out, f"weights_{model}", figures.weights_figure, weights, f"first layer, {title}, first seed")


def _shifts(out: Path, rows: Rows) -> list[str]:
    lines = []
    for model, row in {model_name(row): row for row in rows}.items():
        sweeps = _sweeps(out, "out-of-distribution", model)
        shown = {shift: {n: s for n, s in by_name.items() if n != "constructed"} for shift, by_name in sweeps.items()}
        title = f"K = {kind_of(row)}, d = {row['dim']}, N = {row['context']}"
        lines += _draw(out, f"shifts_{model}", figures.sweep_figure, shown, title)
    return lines


def _rollout(out: Path, rows: Rows) -> list[str]:
    paths: dict[float, dict[str, Any]] = {}
    for event in _last(read_events(out, "rollout"), "damping", "predictor", "seed"):
        losses = [np.nan if loss is None else loss for loss in event["losses"]]
        paths.setdefault(event["damping"], {}).setdefault(event["predictor"], []).append(losses)
    paths = {damping: {name: np.array(losses) for name, losses in by.items()} for damping, by in sorted(paths.items())}
    image = _draw(out, "rollout", figures.rollout_figure, paths)
    columns = [Column("damping", "damping", "g"), Column("predictor", "predictor")]
    columns += [Column(f"step {n}", lambda row, n=n: row["losses"][:, n - 1].mean(), ".4g") for n in (1, 2, 5, 10, 20, 50)]
    table = [{"damping": d, "predictor": name, "losses": losses} for d, by in paths.items() for name, losses in by.items()]
    return [*markdown_table(columns, table), *image]


def _curvature(out: Path, rows: Rows) -> list[str]:
    spectra = np.load(out / CURVATURE)
    by_size = {row["context"]: (spectra[f"before_{row['context']}"], spectra[f"after_{row['context']}"]) for row in rows}
    gammas = {row["context"]: row["gamma"] for row in rows}
    image = _draw(out, "curvature", figures.curvature_figure, by_size, gammas, PAPER_GAMMA)
    columns = [
        Column("N", "context"),
        Column("γ", "gamma", ".4f", bold=True),
        Column("paper", lambda row: PAPER_GAMMA.get(row["context"])),
        Column("η", "eta", ".2f"),
        Column("loss", "loss", ".5f"),
        Column("condition number before", "condition_before", ".4g"),
        Column("after", "condition_after", ".4g"),
        Column("seconds", "seconds", ".1f"),
    ]
    table = markdown_table(columns, sorted(rows, key=lambda row: row["context"]))
    return ["The paper's γ are those of its trained transformers.", *table, *image]


def _scaling(out: Path, rows: Rows) -> list[str]:
    losses: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["layers"] == 1 and row["predictor"] in ("closed_form", "trained"):
            losses.setdefault(row["predictor"], {})[row["context"]] = row["loss"]
    image = _draw(out, "scaling", figures.scaling_figure, losses)
    return [*comparison_table(rows), *image]


def _nonlinear(out: Path, rows: Rows) -> list[str]:
    curves = {name: _curve(out, f"nonlinear_{name}") for name in ("trained", "control")}
    zero = next(row["loss"] for row in rows if row["predictor"] == "zero")
    image = _draw(out, "nonlinear", figures.waves_figure, curves, zero, np.load(out / WAVES))
    return [*measures_table(rows), *image]


def _copy(out: Path, rows: Rows) -> list[str]:
    levels, curve = _levels(out, "copy"), _curve(out, "copy")
    image = _draw(out, "copy", figures.copy_figure, curve, levels)
    half, steps = (levels["zero"] + levels["gd"]) / 2, []
    for n in range(len(curve[0]["loss"])):
        attends = _first_step(curve, lambda e, n=n: e["sensitivity_next"][n] > 2 * e["sensitivity_other"][n])
        drops = _first_step(curve, lambda e, n=n: e["loss"][n] <= half)
        steps.append(f"{_step(attends)} and {_step(drops)}")
    sentence = (
        "The first step at which the sensitivity to the next token is more than twice that to other tokens, and the first at "
        f"which the loss is halfway to that of one step of descent, by seed: {'; '.join(steps)}."
    )
    return [*measures_table(rows), sentence, "", *image]


def _softmax(out: Path, rows: Rows) -> list[str]:
    levels = _named_levels(out, "softmax_1_heads")
    curves = _draw(out, "softmax", figures.curves_figure, _curves_by_heads(out, "softmax"), levels)
    heads = _draw(out, "heads", figures.heads_figure, np.load(out / HEADS))
    return [*measures_table(rows), *curves, *heads]


def _layernorm(out: Path, rows: Rows) -> list[str]:
    lines, curves, levels = measures_table(rows), {}, {}
    for K in sorted({row["layers"] for row in rows}):
        name = f"layernorm_K{K}"
        title, sweeps = f"K = {K}, with layer normalisation", _sweeps(out, "layernorm", name)
        lines += _draw(out, f"layernorm_shift_K{K}", figures.sweep_figure, sweeps, title)
        curves[f"K = {K}"] = _curve(out, name)
        levels |= {f"{descent}, K = {K}": loss for descent, loss in _named_levels(out, name).items()}
    image = _draw(out, "layernorm", figures.curves_figure, curves, levels)
    return [*lines, *image]


def _phase(out: Path, rows: Rows) -> list[str]:
    curves, levels = _curves_by_heads(out, "phase"), _named_levels(out, "phase_1_heads")
    image = _draw(out, "phase", figures.curves_figure, curves, levels, by_seed=True)
    lines = []
    for name, curve in curves.items():
        half = (curve[0]["loss"][0] + levels["GD"]) / 2
        steps = [_first_step(curve, lambda e, n=n, half=half: e["loss"][n] <= half) for n in range(len(curve[0]["loss"]))]
        steps.sort(key=lambda step: np.inf if step is None else step)
        lines.append(f"With {name} the steps at which the loss is halfway to GD's: {', '.join(map(_step, steps))}.")
    return [*measures_table(rows), *lines, "", *image]


def _finite(out: Path, rows: Rows) -> list[str]:
    trained = [row for row in rows if row["predictor"] == "trained"]
    losses = {row["training_tasks"]: (row["train_loss"], row["loss"]) for row in mean_rows(trained)}
    level = next(row["loss"] for row in rows if row["predictor"] == "gd")
    by_size = _draw(out, "finite", figures.finite_figure, losses, level)
    sizes = sorted(losses)
    curves = {f"{size} tasks": _curve(out, f"finite_{size}") for size in sizes}
    levels = _named_levels(out, f"finite_{sizes[0]}")
    by_step = _draw(out, "finite_curves", figures.curves_figure, curves, levels)
    return [*measures_table(trained, {"training_tasks": "training tasks"}), *by_size, *by_step]


def _noisy(out: Path, rows: Rows) -> list[str]:
    first = [row for row in rows if row["task"] != "mixed noise"]
    mixed = [row for row in rows if row["task"] == "mixed noise"]
    lines = ["x ~ N(0, Λ) with eigenvalues 1/k, labels with noise of variance 1:", *measures_table(first)] if first else []
    if not mixed:
        return lines
    by_layers: dict[str, dict[int, float]] = {}
    for row in mixed:
        by_layers.setdefault(row["predictor"], {})[row["layers"]] = row["adjusted_loss"]
    image = _draw(out, "noisy", figures.adjusted_figure, by_layers)
    note = "Noise levels that differ by task; *adjusted* is the loss minus that of ridge regression given the noise (*oracle*):"
    return [*lines, note, *measures_table(mixed), *image]


def _functions(out: Path, rows: Rows) -> list[str]:
    losses: dict[str, dict[str, np.ndarray]] = {}
    for event in read_events(out, "prefixes"):
        if event["shift"] == "none" and event["seed"] in (None, rows[-1]["seed"]):
            losses.setdefault(event["task"], {})[event["predictor"]] = np.array(event["losses"])
    image = _draw(out, "function_classes", figures.prefixes_figure, losses)
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


class Section(NamedTuple):
    """An experiment's part of the report.

    title: its heading; lines: `(out, rows) -> lines`, which also draws the figures.
    source_runs: steps and seeds of the experiment in its source; source_shows: what it found there.
    """

    title: str
    lines: Callable[[Path, Rows], list[str]]
    source_runs: tuple[int, int] | None = None
    source_shows: str = ""


SECTIONS = {
    "one-step": Section("One layer is one step", _training),
    "multi-step": Section("Several layers are steps of GD++", _training),
    "out-of-distribution": Section("Shifted tasks", _shifts),
    "rollout": Section("Roll-out", _rollout),
    "curvature": Section("Curvature", _curvature),
    "scaling-N": Section("Other sizes", _scaling),
    "nonlinear": Section(
        "Nonlinear regression",
        _nonlinear,
        (20_000, 5),
        "attention on learned features and the control that descends predict the same, before the layer and after (Fig. 4).",
    ),
    "copy": Section(
        "Copying",
        _copy,
        (10_000, 5),
        "the loss drops to that of one step of descent just after the first layer begins to attend to the next token (Fig. 5).",
    ),
    "softmax": Section(
        "Softmax",
        _softmax,
        (5000, 5),
        "one head is clearly worse than descent; two come close, and their products cancel off the diagonal (Fig. 11, 12).",
    ),
    "layernorm": Section(
        "Layer normalisation",
        _layernorm,
        (5000, 5),
        "worse than descent on the training tasks, flatter on larger inputs (Fig. 14).",
    ),
    "phase": Section(
        "Phase transitions",
        _phase,
        (5000, 10),
        "with one head some seeds stay on a plateau for long; with two heads there is none (Fig. 15).",
    ),
    "finite-data": Section(
        "Finite training sets",
        _finite,
        (5000, 1),
        "128 and 512 tasks are too few; from 2048 on the layer is nearly aligned with descent (Fig. 16).",
    ),
    "noisy": Section(
        "Noise",
        _noisy,
        None,
        "the best single layer is preconditioned descent (Ahn et al. 2023, Zhang et al. 2024); four scalars per layer adapt to "
        "noise levels that differ by task, GD++ is as good as ridge regression with one penalty (Vladymyrov et al. 2024).",
    ),
    "function-classes": Section(
        "Classes of functions",
        _functions,
        (500_001, 1),
        "a transformer of 12 layers in 20 dimensions is close to least squares on linear functions and to Lasso on sparse "
        "ones, and beats greedy trees on trees (Garg et al. 2022).",
    ),
}


def _draw(out: Path, name: str, draw: Callable[..., None], *data: Any, **options: Any) -> list[str]:
    """Draw a figure, and return the lines that show it."""
    draw(*data, out / "figures" / f"{name}.png", **options)
    return [f"![{name.replace('_', ' ')}](figures/{name}.png)", ""]


def _last(events: Iterable[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The last event for each value of the named fields: a resumed run may repeat some."""
    return list({tuple(event[name] for name in names): event for event in events}.values())


def _curve(out: Path, model: str) -> list[dict[str, Any]]:
    """The evaluations of a trained model, by step."""
    events = (event for event in read_events(out, "evaluation") if event["model"] == model)
    return sorted(_last(events, "step"), key=lambda event: event["step"])


def _curves_by_heads(out: Path, experiment: str) -> dict[str, list[dict[str, Any]]]:
    return {f"{heads} head{'s' * (heads > 1)}": _curve(out, f"{experiment}_{heads}_heads") for heads in (1, 2)}


def _levels(out: Path, model: str) -> dict[str, float]:
    """The losses that a model is compared with, by predictor."""
    return {event["predictor"]: event["loss"] for event in read_events(out, "reference") if event["model"] == model}


def _named_levels(out: Path, model: str) -> dict[str, float]:
    return {figures.NAMES.get(name, name): loss for name, loss in _levels(out, model).items()}


def _sweeps(out: Path, experiment: str, model: str) -> Mapping[str, figures.Sweeps]:
    """shift -> predictor -> (values, losses [seeds, values])."""
    sweeps: dict[str, dict[str, tuple[list[float], Any]]] = {}
    events = (e for e in read_events(out, "sweep") if (e["experiment"], e["model"]) == (experiment, model))
    for event in _last(events, "shift", "predictor", "seed"):
        values, losses = sweeps.setdefault(event["shift"], {}).get(event["predictor"], (event["values"], []))
        sweeps[event["shift"]][event["predictor"]] = values, np.array([*losses, event["losses"]])
    return sweeps


def _first_step(curve: Curve, condition: Callable[[dict[str, Any]], Any]) -> int | None:
    """The first step whose evaluation meets a condition."""
    return next((entry["step"] for entry in curve if condition(entry)), None)


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)

"""report.md of an in-context learning run and its figures, written from the run's files alone."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jexplicit.runs.results import read_config, read_rows
from launch.icl.config import EXPERIMENTS
from launch.icl.sections import beyond, depths, linear_regression, looped, newton, task_diversity
from launch.icl.sections.blocks import blocks
from launch.icl.sections.markov import markov
from launch.icl.sections.mesa import mesa
from launch.icl.tables import Rows

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

    if not steps:
        return f"Nothing was trained. The source shows: {section.source_shows}"
    sentence = f"Run: {described(steps, seeds)}"
    if section.source_runs:
        full = steps >= section.source_runs[0] and seeds >= section.source_runs[1]
        sentence += f"; the source: {described(*section.source_runs)}: {'in full' if full else 'shortened'}"
    return f"{sentence}. The source shows: {section.source_shows}"


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
    "one-step": Section("One layer is one step", linear_regression.training),
    "multi-step": Section("Several layers are steps of GD++", linear_regression.training),
    "depths": Section("Depth", depths.depths),
    "out-of-distribution": Section("Shifted tasks", linear_regression.shifts),
    "rollout": Section("Roll-out", linear_regression.rollout),
    "curvature": Section("Curvature", linear_regression.curvature),
    "scaling-N": Section("Other sizes", linear_regression.scaling),
    "nonlinear": Section(
        "Nonlinear regression",
        beyond.nonlinear,
        (20_000, 5),
        "attention on learned features and the control that descends predict the same, before the layer and after (Fig. 4).",
    ),
    "copy": Section(
        "Copying",
        beyond.copy,
        (10_000, 5),
        "the loss drops to that of one step of descent just after the first layer begins to attend to the next token (Fig. 5).",
    ),
    "softmax": Section(
        "Softmax",
        beyond.softmax,
        (5000, 5),
        "one head is clearly worse than descent; two come close, and their products cancel off the diagonal (Fig. 11, 12).",
    ),
    "layernorm": Section(
        "Layer normalisation",
        beyond.layernorm,
        (5000, 5),
        "worse than descent on the training tasks, flatter on larger inputs (Fig. 14).",
    ),
    "phase": Section(
        "Phase transitions",
        beyond.phase,
        (5000, 10),
        "with one head some seeds stay on a plateau for long; with two heads there is none (Fig. 15).",
    ),
    "finite-data": Section(
        "Finite training sets",
        beyond.finite_data,
        (5000, 1),
        "128 and 512 tasks are too few; from 2048 on the layer is nearly aligned with descent (Fig. 16).",
    ),
    "noisy": Section(
        "Noise",
        beyond.noisy,
        None,
        "the best single layer is preconditioned descent (Ahn et al. 2023, Zhang et al. 2024); four scalars per layer adapt to "
        "noise levels that differ by task, GD++ is as good as ridge regression with one penalty (Vladymyrov et al. 2024).",
    ),
    "function-classes": Section(
        "Classes of functions",
        beyond.function_classes,
        (500_001, 1),
        "a transformer of 12 layers in 20 dimensions is close to least squares on linear functions and to Lasso on sparse "
        "ones, and beats greedy trees on trees (Garg et al. 2022).",
    ),
    "looped": Section(
        "Looped layers",
        looped.looped,
        None,
        "the best looped layer of linear attention is descent with a preconditioner (Gatmiry et al. 2024).",
    ),
    "newton": Section(
        "Newton's iteration",
        newton.newton,
        None,
        "a layer of a trained transformer does the work of about three steps of Newton's iteration, on ill-conditioned inputs "
        "too (Fu et al. 2023).",
    ),
    "markov": Section(
        "Markov chains",
        markov,
        None,
        "predictions are uniform first, then those of unigrams, then suddenly those of bigrams, by a head that attends to what "
        "followed the same state (Edelman et al. 2024).",
    ),
    "mesa": Section("Layers as online estimators", mesa),
    "task-diversity": Section(
        "Task diversity",
        task_diversity.lines,
        None,
        "below a number of pretraining tasks a transformer is the Bayes optimum for these tasks; above, it beats that on fresh "
        "ones and comes close to ridge regression; the number is proportional to d (Raventós et al. 2023; for linear attention "
        "Lu et al. 2024).",
    ),
    "blocks": Section(
        "Blocks with MLPs",
        blocks,
        (50_000, 5),
        "twelve blocks of four softmax heads and an MLP come close to twelve steps of GD++ (Fig. 8); on 8192 training tasks "
        "blocks generalise late and suddenly (Fig. 15, 16).",
    ),
}

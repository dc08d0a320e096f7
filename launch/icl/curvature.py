"""What one layer of GD++ does to the eigenvalues of XᵀX: it lowers the largest (von Oswald et al. 2023, App. A.10)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from icl.problems.comparison import condition_numbers, curvature_after_step
from icl.solvers.polynomials import evaluate_polynomial
from icl.solvers.spectrum import context_eigenvalues
from jexplicit.runs.checkpoints import is_checkpoint
from launch.icl.shared.base import COLOURS, SPECTRUM, STYLES, Effort, Job, Model, make_tasks, parts, random_key
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import descent, trained_family, with_descent_rates
from launch.kit.experiment import Experiment
from launch.kit.rows import Results, Row, cell, means, pivot, points, where
from launch.kit.tables import Column
from launch.kit.views import Lines, Table

PAPER_GAMMA = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}  # of its trained transformers, by N


@parts()
def measure(job: Job) -> list[Row]:
    """The effect of GD++ on eigenvalues.

    Before and after the first of two recurrent layers, by context length. The layers are the best ones and, where the run
    trains them at that length, those trained from random weights.
    """
    config, rows, spectra = job.config, [], {}
    for N in config.contexts:
        tasks = make_tasks(config, context=N)
        model = Model(tasks, 2, True)
        rates, seconds = descent(job, model, "gd++")
        eta, gamma = float(rates.eta[0]), float(rates.gamma[0])
        values = context_eigenvalues(random_key(config, SPECTRUM + 100), tasks, min(config.solver_contexts, 10_000))
        spectra |= {f"before_{N}": values, f"after_{N}": curvature_after_step(values, gamma)}
        found = [("closed_form", {"loss": rates.loss, "gamma": gamma, "eta": eta, "seconds": seconds})]
        steps = config.scaling_steps if {"scaling-N", "all"} & {*config.experiment} else 0
        if steps or is_checkpoint(job.folder.path / "checkpoints" / f"cold_{model.name}"):  # scaling-N or multi-step train them
            for _, entry in with_descent_rates(model, trained_family(job, model, runs=Effort(steps or 1, 1))).members:
                both = {name: np.full(2, entry[name]) for name in ("eta", "gamma")}
                loss = evaluate_polynomial(values, rates._replace(**both), tasks).loss
                found.append(("trained", {**entry, "loss": loss}))
        rows += [model.row(name, **more, **_spectrum(values, more["gamma"])) for name, more in found]
    np.savez_compressed(job.folder.path / "curvature.npz", **{name: part.astype(np.float32) for name, part in spectra.items()})
    return rows


def _spectrum(values: np.ndarray, gamma: float) -> dict[str, float]:
    """The smallest and the largest eigenvalue, over contexts and in the mean over them, and the median condition number."""
    found = {}
    for when, part in (("", values), ("_after", curvature_after_step(values, gamma))):
        low, high = part.min(axis=1), part.max(axis=1)
        found |= {f"eigenvalue_min{when}": float(low.min()), f"eigenvalue_max{when}": float(high.max())}
        found |= {f"mean_eigenvalue_min{when}": float(low.mean()), f"mean_eigenvalue_max{when}": float(high.mean())}
        found["condition_after" if when else "condition_before"] = float(np.median(condition_numbers(part)))
    return found


def _largest(when: str) -> Callable[[Row], Any]:
    return cell("closed_form", lambda row: f"{row[f'eigenvalue_max{when}']:.2f} ({row[f'mean_eigenvalue_max{when}']:.2f})")


_of_layers = ["context", "predictor"]
CURVATURE = Table(
    [
        Column("N", "context"),
        Column("γ: solved", cell("closed_form", "gamma"), ".4f"),
        Column("trained here", cell("trained", "gamma"), ".4f"),
        Column("steps", cell("trained", "steps")),
        Column("paper, trained", lambda line: PAPER_GAMMA.get(line["context"]), ".3f"),
        Column("largest eigenvalue before", _largest("")),
        Column("after", _largest("_after")),
        Column("median condition number before", cell("closed_form", "condition_before"), ".3g"),
        Column("after", cell("closed_form", "condition_after"), ".3g"),
    ],
    lambda results: pivot(means(where(results.rows, experiment="curvature"), _of_layers), ["context"], "predictor"),
    note="Eigenvalues are the largest of all contexts and, in brackets, the mean of a context's largest.",
)
_eigenvalues, _condition = "density of eigenvalues of XᵀX, smallest N", "condition number of XᵀX, median"


def _curves(results: Results) -> Iterator[Row]:
    """The density of the eigenvalues at the first N, condition numbers and γ by N (paper, Fig. 13)."""
    spectra, shortest = results.arrays("curvature.npz"), min(row["context"] for row in results.rows)
    for when in ("before", "after"):
        density, edges = np.histogram(spectra[f"{when}_{shortest}"], 60, density=True)
        yield from points(edges[1:], np.where(density, density, np.nan), series=when, panel=_eigenvalues)
        solved = {row["context"]: row[f"condition_{when}"] for row in where(results.rows, predictor="closed_form")}
        yield from points(solved, solved.values(), series=when, panel=_condition)
    for row in results.rows:
        N = row["context"]
        for series, gamma in {row["predictor"]: row["gamma"], "paper": PAPER_GAMMA.get(N, np.nan)}.items():
            yield {"panel": "γ of two recurrent layers", "series": series, "x": N, "y": gamma}


_paper = {"color": COLOURS["interpolated"], "linestyle": "", "marker": "s", "label": "paper, trained"}
FIGURE = Lines(
    *("curvature", "x", "y", "series", "panel", _curves),
    styles={**STYLES, "before": {"color": COLOURS["gd"]}, "after": {"color": COLOURS["gd++"]}, "paper": _paper},
    axes={"ylabel": "", "xscale": "log", "yscale": "log", "xlabel": "pairs N"},
    by_panel={_eigenvalues: {"xscale": "linear", "xlabel": "eigenvalue"}},
)
EXPERIMENT = Experiment("curvature", Config, measure, [CURVATURE, FIGURE], title="Curvature")

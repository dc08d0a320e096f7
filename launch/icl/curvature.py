"""GD++ lowers the largest eigenvalues of XᵀX (von Oswald 2023, App. A.10)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from icl.rates import condition_numbers, context_eigenvalues, curvature_after_step, evaluate_polynomial
from launch.icl import base
from launch.icl.config import CurvatureConfig
from launch.kit.views import Column, Row, Table, cell, means, pivot, where

PAPER_GAMMA = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}  # of its trained transformers, by N
_contexts = 10_000  # whose eigenvalues are measured, at most


def measure(job: base.Job[CurvatureConfig]) -> Iterator[base.Part]:
    """A part for each context length."""
    yield from (({"context": N}, partial(both, job, N)) for N in job.config.contexts)


def both(job: base.Job[CurvatureConfig], context: int) -> Iterator[Row]:
    """The best layers, and those trained from random weights, by their γ."""
    config, model = job.config, base.make_model(replace(job.config, context=context), 2)
    rates, seconds = base.descent(config, model, "gd++")
    key = base.random_key(config, base.SPECTRUM + 100)
    values = context_eigenvalues(key, model.tasks, min(config.test_tasks, _contexts))
    about = {"loss": rates.loss, "gamma": float(rates.gamma[0]), "eta": float(rates.eta[0]), "seconds": seconds}
    yield model.row("closed_form", **about, **_spectrum(values, about["gamma"]))
    for _, entry in base.with_descent_rates(model, base.trained_family(job, model)).members:
        tied = {name: np.full(2, entry[name]) for name in ("eta", "gamma")}
        loss = evaluate_polynomial(values, rates._replace(**tied), model.tasks).loss
        yield model.row("trained", **entry, loss=loss, **_spectrum(values, entry["gamma"]))


def _spectrum(values: np.ndarray, gamma: float) -> dict[str, float]:
    """The smallest and largest eigenvalue, and the median condition number, over contexts."""
    found = {}
    for when, part in (("", values), ("_after", curvature_after_step(values, gamma))):
        low, high = part.min(axis=1), part.max(axis=1)
        found |= {f"eigenvalue_min{when}": float(low.min()), f"eigenvalue_max{when}": float(high.max())}
        found |= {f"mean_eigenvalue_min{when}": float(low.mean()), f"mean_eigenvalue_max{when}": float(high.mean())}
        found["condition_after" if when else "condition_before"] = float(np.median(condition_numbers(part)))
    return found


def _largest(when: str) -> Callable[[Row], Any]:
    return cell("closed_form", lambda row: f"{row[f'eigenvalue_max{when}']:.2f} ({row[f'mean_eigenvalue_max{when}']:.2f})")


_by = ["context", "predictor"]
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
    lambda results: pivot(means(where(results.rows, experiment="curvature"), _by), ["context"], "predictor"),
    note="Eigenvalues are the largest of all contexts and, in brackets, the mean of a context's largest.",
)
EXPERIMENT = base.experiment("curvature", measure, [CURVATURE], title="Curvature")

"""The experiment of launch.icl on depth: the best 1, 2, .. K layers without training."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from icl.solvers.continuation import optimal_polynomials
from icl.solvers.polynomials import Polynomial, chebyshev_rates, evaluate_polynomial
from icl.solvers.spectrum import context_eigenvalues
from jexplicit.runs.progress import stage
from launch.icl.experiments.predictors import Model, row_of, spectrum
from launch.icl.job import TEST, Job, add_rows, has_rows, random_key


def depths(job: Job) -> None:
    """GD and GD++ of every depth, with rates that layers share or have of their own, on fresh contexts."""
    if has_rows(job, "depths"):
        return
    config, tasks, K = job.config, job.tasks, job.config.depths
    start = time.perf_counter()
    with stage("spectrum of the contexts"):
        law = spectrum(config, tasks)
        fresh = context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
    shared = time.perf_counter() - start

    def solve(name: str, *, tied: bool) -> tuple[list[Polynomial], float]:
        start = time.perf_counter()
        with stage(f"closed form of 1 to {K} layers of {name}, {'recurrent' if tied else 'separate'}"):
            found = optimal_polynomials(law, tasks, layers=K, tied=tied, plus_plus=name != "gd", seed=config.seed)
        return found, shared + time.perf_counter() - start

    def rows(name: str, recurrent: bool, found: Iterable[Polynomial], seconds: float) -> list[dict[str, Any]]:
        return [_row(job, Model(tasks, len(p.eta), recurrent), name, p, fresh, seconds) for p in found]

    chebyshev = [Polynomial(*chebyshev_rates(law.bound, tasks.context, n), np.nan) for n in range(1, K + 1)]
    add_rows(
        job,
        [
            *rows("gd", True, *solve("gd", tied=True)),
            *rows("gd++", True, *solve("gd++", tied=True)),
            *rows("gd++", False, *solve("gd++", tied=False)),
            *rows("chebyshev", False, chebyshev, shared),
        ],
        test_tasks=config.test_tasks,
    )


def _row(job: Job, model: Model, name: str, found: Polynomial, fresh: np.ndarray, seconds: float) -> dict[str, Any]:
    """The loss of solved layers on fresh contexts, the expectation over their weights and queries."""
    losses = evaluate_polynomial(fresh, found, model.tasks)
    rates = {"eta": found.eta.tolist(), "gamma": found.gamma.tolist(), "seconds": seconds}
    return row_of("depths", model, name, **losses._asdict(), **rates)

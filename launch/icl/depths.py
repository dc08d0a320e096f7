"""How the loss of solved layers of GD++ falls with their number."""

import time

import numpy as np

from icl.solvers.continuation import optimal_polynomials
from icl.solvers.polynomials import Polynomial, chebyshev_rates, evaluate_polynomial, least_loss
from icl.solvers.spectrum import context_eigenvalues
from jexplicit.runs.progress import stage
from launch.icl.shared.base import COLOURS, LOSS, TEST, Job, Model, make_tasks, parts, random_key
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import spectrum
from launch.kit.experiment import Experiment
from launch.kit.rows import Row, cell, pivot
from launch.kit.tables import Column
from launch.kit.views import Lines, Table

BOUND = "any polynomial of the degree"
SERIES = {
    ("gd", True): "GD, one rate",
    ("gd++", True): "GD++, recurrent",
    ("gd++", False): "GD++, separate rates",
    ("chebyshev", False): "Chebyshev rates",
}
_deepest_bound = 5  # layers: of degree 121


@parts()
def measure(job: Job) -> list[Row]:
    """The best 1, 2, .. --depths layers, solved.

    GD and GD++ of every depth, with rates that layers share or have of their own, on fresh contexts.
    """
    config = job.config
    tasks, K, start = make_tasks(config), config.depths, time.perf_counter()
    with stage("spectrum of the contexts"):
        law = spectrum(config, tasks)
        fresh = context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
    shared, rows, solved = time.perf_counter() - start, [], {}
    for name, tied in SERIES:
        start = time.perf_counter()
        with stage(f"1 to {K} layers of {SERIES[name, tied]}"):
            if name == "chebyshev":
                found = [Polynomial(*chebyshev_rates(law.bound, tasks.context, n), np.nan) for n in range(1, K + 1)]
            else:
                found = optimal_polynomials(law, tasks, layers=K, tied=tied, plus_plus=name != "gd", seed=config.seed)
        solved[name, tied] = found
        seconds = shared + time.perf_counter() - start
        for rates in found:  # the expectation of the loss over weights and queries
            about = {"eta": rates.eta.tolist(), "gamma": rates.gamma.tolist(), "seconds": seconds}
            about |= {"test_tasks": config.test_tasks, **evaluate_polynomial(fresh, rates, tasks)._asdict()}
            rows.append(Model(tasks, len(rates.eta), tied).row(name, **about))
    for n, rates in enumerate(solved["gd++", False][:_deepest_bound], 1):
        least = least_loss(law, tasks, (3**n - 1) // 2)
        above = rates.loss / least - 1  # both on the law that the rates were fitted to
        rows.append(Model(tasks, n, False).row("bound", loss=least, above_bound=above, seconds=shared))
    return rows


def _series(row: Row) -> str:
    return BOUND if row["predictor"] == "bound" else SERIES[row["predictor"], row["recurrent"]]


DEPTHS = Table(
    [
        Column("K", "layers"),
        *(Column(name, cell(name, "loss"), "#.3g") for name in (*SERIES.values(), BOUND)),
        Column("solved GD++ above it, %", cell(BOUND, "above_bound"), ".1f", 100),
    ],
    lambda results: pivot(results.rows, ["layers"], _series),
    note="From K = 7 on no separate rates are searched for: they are Chebyshev's. No layers whose residual is a polynomial of "
    "the degree of GD++, (3^K - 1)/2, are below the bound. It and the distance to it are of the law that rates are fitted to, "
    "with its extrapolated tails; the other losses are of fresh contexts.",
)
_marker = {"marker": "o", "markersize": 4}
_styles = {
    "GD, one rate": {"color": COLOURS["gd"], **_marker},
    "GD++, recurrent": {"color": COLOURS["gd++"], **_marker},
    "GD++, separate rates": {"color": COLOURS["trained"], **_marker},
    "Chebyshev rates": {"color": "black", "marker": "x", "linestyle": ":"},
    BOUND: {"color": "grey", "linestyle": "--"},
}
AXES = {"xlabel": "layers K", "ylabel": LOSS, "yscale": "log"}
FIGURE = Lines("depths", "layers", "loss", _series, styles=_styles, axes=AXES)
EXPERIMENT = Experiment("depths", Config, measure, [DEPTHS, FIGURE], title="Depth")

"""How the loss of solved layers of GD++ falls with their number."""

import time
from collections.abc import Iterator

import numpy as np

from icl.solvers.polynomials import Polynomial, chebyshev_rates, evaluate_polynomial, least_loss, optimal_polynomials
from icl.solvers.spectrum import context_eigenvalues
from jexplicit.runs.progress import stage
from launch.icl import base
from launch.icl.config import DepthsConfig
from launch.icl.tables import COLOURS, LOSS
from launch.kit.views import Column, Lines, Row, Table, cell, pivot

BOUND = "any polynomial of the degree"
SERIES = {
    ("gd", True): "GD, one rate",
    ("gd++", True): "GD++, recurrent",
    ("gd++", False): "GD++, separate rates",
    ("chebyshev", False): "Chebyshev rates",
}
_deepest_bound = 5  # layers: of degree 121


def measure(job: base.Job[DepthsConfig]) -> Iterator[base.Part]:
    """The losses of every depth on fresh contexts, in one part."""
    yield {}, lambda: losses(job.config)


def losses(config: DepthsConfig) -> Iterator[Row]:
    """A row for each depth of each series, and each degree bounded."""
    K, start = config.depths, time.perf_counter()
    with stage("spectrum of the contexts"):
        law = base.spectrum(config, tasks := base.make_model(config).tasks)
        fresh = context_eigenvalues(base.random_key(config, base.TEST), tasks, config.test_tasks)
    shared, solved = time.perf_counter() - start, {}
    for name, tied in SERIES:
        start = time.perf_counter()
        with stage(f"1 to {K} layers of {SERIES[name, tied]}"):
            if name == "chebyshev":
                found = [Polynomial(*chebyshev_rates(law.bound, tasks.context, n), np.nan) for n in range(1, K + 1)]
            else:
                found = optimal_polynomials(law, tasks, layers=K, tied=tied, plus_plus=name != "gd", seed=config.seed)
        solved[name, tied], seconds = found, shared + time.perf_counter() - start
        for rates in found:  # the expectation of the loss over weights and queries
            about = {"eta": rates.eta.tolist(), "gamma": rates.gamma.tolist(), "seconds": seconds}
            about |= {"test_tasks": config.test_tasks, **evaluate_polynomial(fresh, rates, tasks)._asdict()}
            yield base.Model(tasks, len(rates.eta), tied).row(name, **about)
    for n, rates in enumerate(solved["gd++", False][:_deepest_bound], 1):
        least = least_loss(law, tasks, (3**n - 1) // 2)
        above = rates.loss / least - 1  # both on the law that the rates were fitted to
        yield base.Model(tasks, n, False).row("bound", loss=least, above_bound=above, seconds=shared)


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
_styles = {name: {"color": COLOURS[c], **_marker} for name, c in zip(SERIES.values(), ("gd", "gd++", "trained"), strict=False)}
_styles |= {"Chebyshev rates": {"color": "black", "marker": "x", "linestyle": ":"}, BOUND: {"color": "grey", "linestyle": "--"}}
AXES = {"xlabel": "layers K", "ylabel": LOSS, "yscale": "log"}
FIGURE = Lines("depths", "layers", "loss", _series, styles=_styles, axes=AXES)
EXPERIMENT = base.experiment("depths", measure, [DEPTHS, FIGURE], title="Depth")

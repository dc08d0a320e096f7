"""Solved layers of GD++ by depth, and Newton's steps with the same loss."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from icl.rates import (
    START_POWERS,
    Polynomial,
    chebyshev_rates,
    context_eigenvalues,
    equivalent_steps,
    evaluate_polynomial,
    least_loss,
    newton_residual,
    optimal_polynomials,
    residual,
    weighted_eigenvalues,
)
from icl.rates import steps_per_layer as slope
from jexplicit.runs.progress import stage
from launch.icl import base
from launch.icl.base import COLOURS, LOSS
from launch.icl.config import DepthsConfig, NewtonConfig
from launch.kit.views import Column, Lines, Results, Row, Table, cell, pivot, points

# How the loss of solved layers of GD++ falls with their number.

BOUND = "any polynomial of the degree"
SERIES = {
    ("gd", True): "GD, one rate",
    ("gd++", True): "GD++, recurrent",
    ("gd++", False): "GD++, separate rates",
    ("chebyshev", False): "Chebyshev rates",
}
_deepest_bound = 5  # layers: of degree 121


def depths(job: base.Job[DepthsConfig]) -> Iterator[base.Part]:
    """The losses of every depth on fresh contexts, in one part."""
    yield {}, lambda: depth_rows(job.config)


def depth_rows(config: DepthsConfig) -> Iterator[Row]:
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


def _depth_series(row: Row) -> str:
    return BOUND if row["predictor"] == "bound" else SERIES[row["predictor"], row["recurrent"]]


DEPTHS_TABLE = Table(
    [
        Column("K", "layers"),
        *(Column(name, cell(name, "loss"), "#.3g") for name in (*SERIES.values(), BOUND)),
        Column("solved GD++ above it, %", cell(BOUND, "above_bound"), ".1f", 100),
    ],
    lambda results: pivot(results.rows, ["layers"], _depth_series),
    note="From K = 7 on no separate rates are searched for: they are Chebyshev's. No layers whose residual is a polynomial of "
    "the degree of GD++, (3^K - 1)/2, are below the bound. It and the distance to it are of the law that rates are fitted to, "
    "with its extrapolated tails; the other losses are of fresh contexts.",
)
_marker = {"marker": "o", "markersize": 4}
_styles = {name: {"color": COLOURS[c], **_marker} for name, c in zip(SERIES.values(), ("gd", "gd++", "trained"), strict=False)}
_styles |= {"Chebyshev rates": {"color": "black", "marker": "x", "linestyle": ":"}, BOUND: {"color": "grey", "linestyle": "--"}}
DEPTHS_AXES = {"xlabel": "layers K", "ylabel": LOSS, "yscale": "log"}
DEPTHS_FIGURE = Lines("depths", "layers", "loss", _depth_series, styles=_styles, axes=DEPTHS_AXES)
DEPTHS = base.experiment("depths", depths, [DEPTHS_TABLE, DEPTHS_FIGURE], title="Depth")


# Newton's steps that a solved layer of GD++ replaces (Fu et al. 2023).

CONDITION = {"well-conditioned": 1.0, "ill-conditioned": 100.0}  # of the covariance of inputs, the latter as in Fu et al.
_steps = 70  # most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


def newton(job: base.Job[NewtonConfig]) -> Iterator[base.Part]:
    """A part for each kind of inputs."""
    yield from (({"task": task}, partial(newton_rows, job, task)) for task in CONDITION)


def newton_rows(job: base.Job[NewtonConfig], task: str) -> Iterator[Row]:
    """Losses of 1, 2, .. solved layers, with equivalent Newton's steps."""
    config, powers = job.config, CONDITION[task] ** -0.5
    tasks = replace(base.make_model(config).tasks, inputs="normal")
    if powers < 1:
        tasks = replace(tasks, scales=tuple(np.geomspace(1, powers, config.dim).tolist()))
    number = min(config.test_tasks, _contexts)
    with stage(f"{task} inputs: layers and Newton's steps"):
        solved = optimal_polynomials(base.spectrum(config, tasks), tasks, layers=config.depths, tied=False, seed=config.seed)
        with jax.enable_x64(True):
            values, weights = map(jnp.asarray, weighted_eigenvalues(base.random_key(config, base.TEST), tasks, number))
            rates = [(jnp.asarray(p.eta), jnp.asarray(p.gamma)) for p in solved]
            layers = [float(layers_loss(values, weights, eta, gamma, tasks)) for eta, gamma in rates]
            newton = {
                name: [float(newton_loss(values, weights, float(k), power=power)) for k in range(_steps)]
                for name, power in START_POWERS.items()
            }
    job.folder.log(event="newton", task=task, layers=layers, **{f"from_{name}": found for name, found in newton.items()})
    for rates, loss in zip(solved, layers, strict=True):
        about = {"loss": loss, "eta": rates.eta.tolist(), "gamma": rates.gamma.tolist(), "test_tasks": number}
        about |= {f"newton_steps_{name}": equivalent_steps(np.array(found), loss) for name, found in newton.items()}
        yield base.Model(tasks, len(rates.eta), False).row("gd++", **about)


def loss_of(weights: jax.Array, r: jax.Array) -> jax.Array:
    """Half the mean of `sum_i w_i r(λ_i)²` over contexts."""
    return jnp.mean(jnp.sum(weights * r**2, axis=1)) / 2


layers_loss = jax.jit(lambda values, weights, eta, gamma, tasks: loss_of(weights, residual(values, eta, gamma, tasks.context)))
newton_loss = jax.jit(lambda values, w, k, power: loss_of(w, newton_residual(values, k, power=power)), static_argnames="power")


def steps_per_layer(rows: list[Row]) -> float:
    """How many steps from α I one more layer is worth."""
    return slope(*([row[field] for row in rows] for field in ("layers", "newton_steps_identity")))


def _newton_curves(results: Results) -> Iterator[Row]:
    starts = {"from_identity": "Newton's steps, M₀ = α I", "from_A": "Newton's steps, M₀ = α A"}
    for event in results.events("newton", "task"):
        for name, label in {"layers": "layers of GD++, solved", **starts}.items():
            drawn = [(step, loss) for step, loss in enumerate(event[name], name == "layers") if loss > _lowest]
            yield from points(*zip(*drawn, strict=True), series=label, inputs=f"{event['task']} inputs")


STEPS = Table(
    [
        Column("inputs", "task"),
        Column("layers K", "layers"),
        Column("loss", "loss", ".3g"),
        Column("Newton's steps from M₀ = α I", "newton_steps_identity", ".1f"),
        Column("from M₀ = α A", "newton_steps_A", ".1f"),
    ],
    note="A layer of a trained transformer does the work of about three steps of Newton's iteration, on ill-conditioned inputs "
    "too (Fu et al. 2023); Chebyshev rates predict log₂ 9 = 3.17 steps from α I.",
)
_newton_axes = {"xlabel": "layers or steps", "yscale": "log", "ylabel": LOSS}
NEWTON_FIGURE = Lines(
    "newton",
    "x",
    "y",
    "series",
    "inputs",
    _newton_curves,
    {"layers of GD++, solved": {"marker": "o"}},
    _newton_axes,
    sharey=True,
)
NEWTON = base.experiment("newton", newton, [STEPS, NEWTON_FIGURE], title="Newton's iteration")

"""Newton's steps that a solved layer of GD++ replaces (Fu et al. 2023)."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from icl.solvers.polynomials import START_POWERS, equivalent_steps, newton_residual, optimal_polynomials, residual
from icl.solvers.polynomials import steps_per_layer as slope
from icl.solvers.spectrum import weighted_eigenvalues
from jexplicit.runs.progress import stage
from launch.icl import base
from launch.icl.config import NewtonConfig
from launch.icl.tables import LOSS
from launch.kit.views import Column, Lines, Results, Row, Table, points

CONDITION = {"well-conditioned": 1.0, "ill-conditioned": 100.0}  # of the covariance of inputs, the latter as in Fu et al.
_steps = 70  # most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


def measure(job: base.Job[NewtonConfig]) -> Iterator[base.Part]:
    """A part for each kind of inputs."""
    yield from (({"task": task}, partial(losses, job, task)) for task in CONDITION)


def losses(job: base.Job[NewtonConfig], task: str) -> Iterator[Row]:
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


def _curves(results: Results) -> Iterator[Row]:
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
AXES = {"xlabel": "layers or steps", "yscale": "log", "ylabel": LOSS}
FIGURE = Lines("newton", "x", "y", "series", "inputs", _curves, {"layers of GD++, solved": {"marker": "o"}}, AXES, sharey=True)
EXPERIMENT = base.experiment("newton", measure, [STEPS, FIGURE], title="Newton's iteration")

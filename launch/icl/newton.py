"""How many steps of Newton's iteration a solved layer of GD++ is worth (Fu et al. 2023)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.solvers.continuation import optimal_polynomials
from icl.solvers.newton import START_POWERS, equivalent_steps, newton_residual, residual_loss
from icl.solvers.newton import steps_per_layer as slope
from icl.solvers.polynomials import residual
from icl.solvers.spectrum import weighted_eigenvalues
from jexplicit.runs.progress import stage
from launch.icl.shared.base import LOSS, TEST, Job, Model, make_tasks, parts, random_key
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import spectrum
from launch.kit.experiment import Experiment
from launch.kit.rows import Results, Row, points
from launch.kit.tables import Column
from launch.kit.views import Lines, Table

CONDITION = 100.0  # of the covariance of ill-conditioned inputs, as in Fu et al.
_layers, _steps = 10, 70  # most layers, and most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


@parts(lambda config: [{"task": "well-conditioned"}, {"task": "ill-conditioned"}])
def measure(job: Job, task: str) -> list[dict[str, Any]]:
    """How many steps of Newton's iteration a solved layer is worth: those that have the same loss."""
    config, tasks = job.config, replace(make_tasks(job.config), inputs="normal")
    if task == "ill-conditioned":
        tasks = replace(tasks, scales=tuple(np.geomspace(1, CONDITION**-0.5, config.dim).tolist()))
    number, most = min(config.test_tasks, _contexts), min(_layers, config.depths)
    with stage(f"{task} inputs: layers and Newton's steps"):
        solved = optimal_polynomials(spectrum(config, tasks), tasks, layers=most, tied=False, seed=config.seed)
        with jax.enable_x64(True):
            values, weights = map(jnp.asarray, weighted_eigenvalues(random_key(config, TEST), tasks, number))
            rates = [(jnp.asarray(p.eta), jnp.asarray(p.gamma)) for p in solved]
            layers = [float(layers_loss(values, weights, eta, gamma, tasks)) for eta, gamma in rates]
            newton = {
                name: [float(newton_loss(values, weights, float(k), power=power)) for k in range(_steps)]
                for name, power in START_POWERS.items()
            }
    job.folder.log(event="newton", task=task, layers=layers, **{f"from_{name}": losses for name, losses in newton.items()})
    return [
        Model(tasks, len(rates.eta), False).row("gd++", loss=loss, eta=rates.eta.tolist(), gamma=rates.gamma.tolist())
        | {f"newton_steps_{name}": equivalent_steps(np.array(losses), loss) for name, losses in newton.items()}
        | {"test_tasks": number}
        for rates, loss in zip(solved, layers, strict=True)
    ]


layers_loss = jax.jit(
    lambda values, weights, eta, gamma, tasks: residual_loss(weights, residual(values, eta, gamma, tasks.context))
)
newton_loss = jax.jit(
    lambda values, weights, steps, power: residual_loss(weights, newton_residual(values, steps, power=power)),
    static_argnames="power",
)


def steps_per_layer(rows: Sequence[Row]) -> float:
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
EXPERIMENT = Experiment("newton", Config, measure, [STEPS, FIGURE], title="Newton's iteration")

"""How many steps of Newton's iteration a solved layer of GD++ is worth (Fu et al. 2023)."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.solvers.continuation import optimal_polynomials
from icl.solvers.newton import START_POWERS, equivalent_steps, newton_residual
from icl.solvers.polynomials import residual
from icl.solvers.spectrum import weighted_eigenvalues
from icl.tasks import Tasks
from jexplicit.experiments.experiment import Experiment, Part
from jexplicit.experiments.folder import RunFolder
from jexplicit.experiments.rows import Results, Row
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Lines, Table
from jexplicit.runs.progress import stage
from launch.icl.shared.base import LOSS, TEST, Flags, Model, make_tasks, random_key
from launch.icl.shared.predictors import spectrum

CONDITION = 100.0  # of the covariance of ill-conditioned inputs, as in Fu et al.
_layers, _steps = 10, 70  # most layers, and most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


def measure(config: Flags, folder: RunFolder) -> Iterator[Part]:
    """How many steps of Newton's iteration a solved layer is worth."""
    well = replace(make_tasks(config), inputs="normal")
    scales = np.geomspace(1, CONDITION**-0.5, config.dim)
    for task, tasks in {"well-conditioned": well, "ill-conditioned": replace(well, scales=tuple(map(float, scales)))}.items():
        yield {"task": task}, functools.partial(compare, config, folder, task, tasks)


def compare(config: Flags, folder: RunFolder, task: str, tasks: Tasks) -> list[dict[str, Any]]:
    """The losses of solved layers, each with the steps of Newton's iteration that have the same loss."""
    number = min(config.test_tasks, _contexts)
    with stage(f"{task} inputs: layers and Newton's steps"):
        solved = optimal_polynomials(
            spectrum(config, tasks), tasks, layers=min(_layers, config.depths), tied=False, seed=config.seed
        )
        with jax.enable_x64(True):
            values, weights = map(jnp.asarray, weighted_eigenvalues(random_key(config, TEST), tasks, number))
            layers = [float(layers_loss(values, weights, jnp.asarray(p.eta), jnp.asarray(p.gamma), tasks)) for p in solved]
            newton = {
                name: [float(newton_loss(values, weights, float(k), power=power)) for k in range(_steps)]
                for name, power in START_POWERS.items()
            }
    folder.log(event="newton", task=task, layers=layers, **{f"from_{name}": losses for name, losses in newton.items()})
    return [
        Model(tasks, len(rates.eta), False).row("gd++", loss=loss, eta=rates.eta.tolist(), gamma=rates.gamma.tolist())
        | {f"newton_steps_{name}": equivalent_steps(np.array(losses), loss) for name, losses in newton.items()}
        | {"test_tasks": number}
        for rates, loss in zip(solved, layers, strict=True)
    ]


@jax.jit
def layers_loss(values: jax.Array, weights: jax.Array, eta: jax.Array, gamma: jax.Array, tasks: Tasks) -> jax.Array:
    """The loss of layers of GD++ whose residual polynomial is r: half the mean of `(wᵀ r(λ))²`."""
    return _mean_loss(weights, residual(values, eta, gamma, tasks.context))


@functools.partial(jax.jit, static_argnames="power")
def newton_loss(values: jax.Array, weights: jax.Array, steps: float, *, power: int) -> jax.Array:
    """The loss of so many steps of Newton's iteration from `M₀ = α A^power`."""
    return _mean_loss(weights, newton_residual(values, steps, power=power))


def _mean_loss(weights: jax.Array, r: jax.Array) -> jax.Array:
    return jnp.mean(jnp.sum(weights * r**2, axis=1)) / 2


def steps_per_layer(rows: Sequence[Row]) -> float:
    """How many steps from α I one more layer is worth: the slope of a straight line from two layers on.

    Example:
        >>> rows = [{"layers": K, "newton_steps_identity": 3.0 * K} for K in (2, 3, 4)]
        >>> round(steps_per_layer(rows), 2)
        3.0
    """
    pairs = [(row["layers"], row["newton_steps_identity"]) for row in rows]
    known = np.array([pair for pair in pairs if pair[0] > 1 and pair[1] is not None])
    return float(np.polyfit(known[:, 0], known[:, 1], 1)[0]) if len(known) > 1 else np.nan


def _curves(results: Results) -> list[Row]:
    series = {
        "layers": "layers of GD++, solved",
        "from_identity": "Newton's steps, M₀ = α I",
        "from_A": "Newton's steps, M₀ = α A",
    }
    return [
        {"series": label, "layers or steps": step, "loss": loss, "inputs": f"{event['task']} inputs"}
        for event in results.events("newton", "task")
        for name, label in series.items()
        for step, loss in enumerate(event[name], name == "layers")
        if loss > _lowest
    ]


EXPERIMENT = Experiment(
    "newton",
    Flags,
    measure,
    title="Newton's iteration",
    views=[
        Table(
            [
                Column("inputs", "task"),
                Column("layers K", "layers"),
                Column("loss", "loss", ".3g"),
                Column("Newton's steps from M₀ = α I", "newton_steps_identity", ".1f"),
                Column("from M₀ = α A", "newton_steps_A", ".1f"),
            ],
            note="A layer of a trained transformer does the work of about three steps of Newton's iteration, on "
            "ill-conditioned inputs too (Fu et al. 2023); Chebyshev rates predict log₂ 9 = 3.17 steps from α I.",
        ),
        Lines(
            "newton",
            "layers or steps",
            "loss",
            "series",
            "inputs",
            rows=_curves,
            styles={"layers of GD++, solved": {"marker": "o"}},
            axes={"yscale": "log", "ylabel": LOSS},
            sharey=True,
        ),
    ],
)

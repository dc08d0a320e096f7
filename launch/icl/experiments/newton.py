"""The experiment of launch.icl on Newton's iteration: how many of its steps a solved layer is worth."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from icl.solvers.continuation import optimal_polynomials
from icl.solvers.newton import START_POWERS, equivalent_steps, newton_residual
from icl.solvers.polynomials import residual
from icl.solvers.spectrum import weighted_eigenvalues
from icl.tasks import Tasks
from jexplicit.runs.progress import stage
from launch.icl.experiments.predictors import Model, row_of, spectrum
from launch.icl.job import TEST, Job, add_rows, has_rows, random_key

CONDITION = 100.0  # of the covariance of ill-conditioned inputs, as in Fu et al.
_layers = 10  # most
_steps = 70  # of Newton's iteration, most
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all


def newton(job: Job) -> None:
    """Layers of GD++ of every depth and steps of Newton's iteration, on well- and ill-conditioned inputs."""
    well = replace(job.tasks, inputs="normal")
    scales = np.geomspace(1, CONDITION**-0.5, job.config.dim)
    for task, tasks in {"well-conditioned": well, "ill-conditioned": replace(well, scales=tuple(map(float, scales)))}.items():
        if not has_rows(job, "newton", task=task):
            _compare(job, task, tasks)


def _compare(job: Job, task: str, tasks: Tasks) -> None:
    config = job.config
    number = min(config.test_tasks, _contexts)
    with stage(f"{task} inputs: layers and Newton's steps"):
        law, depth = spectrum(config, tasks), min(_layers, config.depths)
        found = optimal_polynomials(law, tasks, layers=depth, tied=False, seed=config.seed)
        with jax.enable_x64(True):
            values, weights = map(jnp.asarray, weighted_eigenvalues(random_key(config, TEST), tasks, number))
            losses = [float(_layers_loss(values, weights, jnp.asarray(p.eta), jnp.asarray(p.gamma), tasks)) for p in found]
            newtons = {
                name: [float(_newton_loss(values, weights, float(k), power=power)) for k in range(_steps)]
                for name, power in START_POWERS.items()
            }
    rows = []
    for solved, loss in zip(found, losses, strict=True):
        steps = {f"newton_steps_{name}": equivalent_steps(np.array(of_start), loss) for name, of_start in newtons.items()}
        rates = {"eta": solved.eta.tolist(), "gamma": solved.gamma.tolist()}
        rows.append(row_of("newton", Model(tasks, len(solved.eta), False), "gd++", loss=loss, **steps, **rates))
    job.folder.log(event="newton", task=task, layers=losses, **{f"from_{name}": of_start for name, of_start in newtons.items()})
    add_rows(job, rows, task=task, test_tasks=number)


@jax.jit
def _layers_loss(values: jax.Array, weights: jax.Array, eta: jax.Array, gamma: jax.Array, tasks: Tasks) -> jax.Array:
    return _mean_loss(weights, residual(values, eta, gamma, tasks.context))


@functools.partial(jax.jit, static_argnames="power")
def _newton_loss(values: jax.Array, weights: jax.Array, steps: float, *, power: int) -> jax.Array:
    return _mean_loss(weights, newton_residual(values, steps, power=power))


def _mean_loss(weights: jax.Array, r: jax.Array) -> jax.Array:
    """Half the mean squared error of tasks whose error is `wᵀ r(XᵀX) x_q`."""
    return jnp.mean(jnp.sum(weights * r**2, axis=1)) / 2

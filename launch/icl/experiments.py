"""The experiments of launch.icl, each of which adds rows to results.json and events to metrics.jsonl."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.comparison import condition_numbers, path_losses, sweep_loss, turned_curvature
from icl.models.attention import Layer, maps, roll_out
from icl.solvers.descent import gradient_descent
from icl.solvers.polynomials import context_eigenvalues
from icl.tasks import Tasks, sample_tasks
from jexplicit.runs.progress import stage
from launch.icl.config import make_tasks
from launch.icl.functions import function_classes
from launch.icl.models import (
    SPECTRUM,
    SWEEP,
    VALIDATION,
    Job,
    Model,
    add_rows,
    constructed_layers,
    descent,
    families,
    has_rows,
    measure,
    random_key,
    row_of,
    trained_layers,
)
from launch.icl.noisy import noisy
from launch.icl.reading import CURVATURE, WEIGHTS
from launch.icl.tokens import copy, nonlinear
from launch.icl.variants import finite_data, layernorm, phase, softmax

_sweep_tasks = 5000  # at most
_dampings = (0.5, 0.75, 1.0)
_rollout_steps = 50


def one_step(job: Job) -> None:
    """One layer of attention and one step of gradient descent."""
    model = Model(job.tasks, 1, True)
    params = trained_layers(job, model)
    measure(job, "one-step", model, {"cold": params})
    _save_weights(job, model, params)


def multi_step(job: Job) -> None:
    """K layers, from random weights and from the closed form's, and K steps of GD and GD++."""
    model = _multi(job)
    params = {"cold": trained_layers(job, model)}
    if job.config.warm_steps:
        params["warm"] = trained_layers(job, model, "warm")
    measure(job, "multi-step", model, params)
    _save_weights(job, model, params["cold"])


def out_of_distribution(job: Job) -> None:
    """The same predictors on tasks of other ranges, scales and laws."""
    for model in dict.fromkeys((Model(job.tasks, 1, True), _multi(job))):
        if not has_rows(job, "out-of-distribution", layers=model.layers):
            _shifted(job, model)


def _shifted(job: Job, model: Model) -> None:
    tasks = model.tasks
    named = families(job, model, {"cold": trained_layers(job, model)})
    shifts: dict[str, list[Tasks]] = {
        "input_range": [replace(tasks, input_range=float(tasks.input_range * r)) for r in np.linspace(0.5, 2.0, 16)],
        "weight_scale": [replace(tasks, weight_scale=float(c)) for c in np.linspace(0.5, 5.0, 10)],
        "mixture": [replace(tasks, inputs="mixture", input_range=float(r)) for r in np.linspace(0.5, 5.0, 10)],
    }
    number = min(_sweep_tasks, job.config.test_tasks)
    compiled = {f.predict: sweep_loss(random_key(job, SWEEP), f.predict, number) for f in named.values()}
    rows: list[dict[str, Any]] = []
    with stage(f"other tasks, {model.name}", "sweeps") as progress:
        for done, ((name, _), family) in enumerate(named.items(), 1):
            for n, seed in enumerate(family.seeds):
                weights = jax.tree.map(lambda leaf, n=n: leaf[n], family.weights)
                for shift, laws in shifts.items():
                    values = [float(t.weight_scale if shift == "weight_scale" else t.input_range) for t in laws]
                    losses = [float(compiled[family.predict](weights, law)) for law in laws]
                    about = {"predictor": name, "seed": seed, "shift": shift}
                    job.folder.log(event="sweep", model=model.name, **about, values=values, losses=losses)
                    for at in _told(values):
                        more = {"shift": shift, "value": values[at], "seed": seed, "test_tasks": number}
                        rows.append(row_of("out-of-distribution", model, name, loss=losses[at], **more))
            progress(done, len(named))
    add_rows(job, rows)


def _told(values: list[float]) -> list[int]:
    """The places of a sweep that have rows: both ends, and those nearest to 1 and 1.5."""
    return sorted({0, len(values) - 1, *(int(np.argmin(np.abs(np.array(values) - v))) for v in (1.0, 1.5))})


def rollout(job: Job) -> None:
    """One trained layer applied many times, and as many steps of gradient descent, damped."""
    model = Model(job.tasks, 1, True)
    if has_rows(job, "rollout"):
        return
    params = trained_layers(job, model)
    eta = float(descent(job, model, "gd").rates.eta[0])
    number = min(job.config.validation_tasks, 2000)
    batch = sample_tasks(random_key(job, VALIDATION), model.tasks, number)

    @jax.jit
    def of_layer(layer: Layer, damping: jax.Array) -> jax.Array:
        return path_losses(lambda s: roll_out(layer, s, steps=_rollout_steps, damping=damping, y_only=True), batch)

    @jax.jit
    def of_descent(damping: jax.Array) -> jax.Array:
        return path_losses(lambda s: gradient_descent(s, damping * eta, steps=_rollout_steps), batch)

    rows: list[dict[str, Any]] = []
    with stage("roll-out"):
        for damping in _dampings:
            amount = jnp.asarray(damping)
            paths: list[tuple[str, int | None, jax.Array]] = [("gd", None, of_descent(amount))]
            for n in range(len(params.P)):
                layer = jax.tree.map(lambda leaf, n=n: leaf[n, 0], params)
                paths.append(("trained", job.config.seed + n, of_layer(layer, amount)))
            for name, seed, losses in paths:
                told = [float(loss) if np.isfinite(loss) else None for loss in losses]
                job.folder.log(event="rollout", predictor=name, seed=seed, damping=damping, losses=told)
                more = {"seed": seed, "damping": damping, "steps": _rollout_steps, "loss": told[-1], "eta": damping * eta}
                rows.append(row_of("rollout", model, name, **more))
    add_rows(job, rows)


def curvature(job: Job) -> None:
    """What the first layer of the best two recurrent ones does to the eigenvalues of XᵀX, by context length."""
    kept: dict[str, Any] = {}
    for N in job.config.contexts:
        tasks = make_tasks(job.config, context=N)
        model = Model(tasks, 2, True)
        found = descent(job, model, "gd++")
        gamma = float(found.rates.gamma[0])
        values = context_eigenvalues(random_key(job, SPECTRUM + 100), tasks, min(job.config.solver_contexts, 10_000))
        turned = turned_curvature(values, gamma)
        kept |= {f"before_{N}": values.astype(np.float32), f"after_{N}": turned.astype(np.float32)}
        if not has_rows(job, "curvature", context=N):
            before, after = (float(np.median(condition_numbers(part))) for part in (values, turned))
            more = {"loss": found.rates.loss, "gamma": gamma, "eta": float(found.rates.eta[0])}
            more |= {"condition_before": before, "condition_after": after, "seconds": found.seconds}
            add_rows(job, [row_of("curvature", model, "closed_form", **more)])
    np.savez_compressed(job.folder.path / CURVATURE, **kept)


def scaling_n(job: Job) -> None:
    """One layer at sizes N = d, and two recurrent layers at several N, in closed form and trained."""
    models = [Model(make_tasks(job.config, dim=n, context=n), 1, True) for n in job.config.dims]
    models += [Model(make_tasks(job.config, context=N), 2, True) for N in job.config.contexts]
    for model in models:
        if has_rows(job, "scaling-N", layers=model.layers, dim=model.tasks.dim, context=model.tasks.context):
            continue
        params = {}
        if job.config.scaling_steps:
            path = job.folder.path / "checkpoints" / f"cold_{model.name}"  # of another experiment, where there is one
            steps = None if path.exists() else job.config.scaling_steps
            params["cold"] = trained_layers(job, model, steps=steps, seeds=1)
        measure(job, "scaling-N", model, params)


RUN: dict[str, Callable[[Job], None]] = {
    "one-step": one_step,
    "multi-step": multi_step,
    "out-of-distribution": out_of_distribution,
    "rollout": rollout,
    "curvature": curvature,
    "scaling-N": scaling_n,
    "nonlinear": nonlinear,
    "copy": copy,
    "softmax": softmax,
    "layernorm": layernorm,
    "phase": phase,
    "finite-data": finite_data,
    "noisy": noisy,
    "function-classes": function_classes,
}


def _multi(job: Job) -> Model:
    return Model(job.tasks, job.config.layers, job.config.recurrent or job.config.layers == 1)


def _save_weights(job: Job, model: Model, params: Layer) -> None:
    """Keep the maps M and R of the first seed, trained and constructed, and the scores of a test context."""
    trained, constructed = jax.tree.map(lambda leaf: leaf[0], params), constructed_layers(job, model)

    @jax.jit
    def shown(key: jax.Array, both: dict[str, Layer]) -> dict[str, jax.Array]:
        batch = sample_tasks(key, model.tasks, 1000)
        E = jnp.concatenate([batch.X, batch.Y], axis=1)
        query = jnp.concatenate([batch.x_q, jnp.zeros_like(batch.y_q)])[None]
        kept = {}
        for name, layers in both.items():
            M, R = maps(layers)
            b = jnp.mean(jnp.diagonal(M[:, 0], axis1=-2, axis2=-1)[:, : model.tasks.dim], axis=-1)[:, None, None]
            scores = jnp.einsum("nib,ij,tjb->ntb", E, M[0, 0], jnp.concatenate([E, query])) / b[0, 0, 0]
            kept |= {f"{name} M": M[:, 0] / b, f"{name} R": R[:, 0] * b}
            kept |= {f"{name} scores": scores[..., 0], f"{name} mean scores": jnp.mean(scores, axis=-1)}
        return kept

    path = job.folder.path / WEIGHTS.format(model=model.name)
    kept = shown(random_key(job, VALIDATION), {"trained": trained, "constructed": constructed})
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in kept.items()}
    np.savez_compressed(path, **arrays)

"""The experiments of launch.icl on linear regression with linear layers, which von Oswald et al. 2023 begin with."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.comparison import condition_numbers, curvature_after_step, path_losses
from icl.models.attention import AttentionLayer, head_maps, roll_out
from icl.solvers.descent import gradient_descent
from icl.solvers.polynomials import evaluate_polynomial
from icl.solvers.spectrum import context_eigenvalues
from icl.tasks import Sequence, Tasks, sample_tasks
from jexplicit.runs.checkpoints import is_checkpoint
from jexplicit.runs.devices import full_precision
from jexplicit.runs.progress import stage
from launch.icl.config import Effort, selected_experiments
from launch.icl.experiments import predictors
from launch.icl.experiments.predictors import Family, Model, descent, measure_families, row_of, trained_family
from launch.icl.job import CURVATURE, SPECTRUM, VALIDATION, WEIGHTS, Job, add_rows, has_rows, random_key
from launch.icl.recipes import make_tasks
from launch.icl.training import split_seeds

_dampings = (0.5, 0.75, 1.0)
_rollout_steps = 50


def one_step(job: Job) -> None:
    """One layer of attention and one step of gradient descent."""
    model = Model(job.tasks, 1, True)
    trained = trained_family(job, model)
    _measure(job, "one-step", model, [trained])
    _save_weights(job, model, trained.weights)


def multi_step(job: Job) -> None:
    """K layers, from random weights and from the closed form's, and K steps of GD and GD++."""
    model = _multi(job)
    trained = [trained_family(job, model, start=start) for start in ("cold", *["warm"] * (job.config.warm_steps > 0))]
    _measure(job, "multi-step", model, trained)
    _save_weights(job, model, trained[0].weights)


def out_of_distribution(job: Job) -> None:
    """The same predictors on tasks with other input ranges, weight scales and input distributions."""
    for model in dict.fromkeys((Model(job.tasks, 1, True), _multi(job))):
        if has_rows(job, "out-of-distribution", layers=model.layers):
            continue
        tasks = model.tasks
        shifts: dict[str, list[Tasks]] = {
            "input_range": predictors.input_ranges(tasks),
            "weight_scale": [replace(tasks, weight_scale=float(c)) for c in np.linspace(0.5, 5.0, 10)],
            "mixture": [replace(tasks, inputs="mixture", input_range=float(r)) for r in np.linspace(0.5, 5.0, 10)],
        }
        families = [*predictors.untrained_families(job, model), *_with_interpolated(job, model, trained_family(job, model))]
        rows = []
        with stage(f"shifted tasks, {model.name}", "sweeps") as progress:
            total = len(shifts) * sum(len(family.entries) for family in families)
            sweeps = predictors.sweep_families(job, "out-of-distribution", model.name, families, shifts)
            for done, found in enumerate(sweeps, 1):
                values, losses = found.pop("values"), found.pop("losses")
                for at in _points_of_rows(values):
                    rows.append(row_of("out-of-distribution", model, **found, value=values[at], loss=losses[at]))
                progress(done, total)
        add_rows(job, rows, test_tasks=predictors.sweep_tasks(job))


def _points_of_rows(values: list[float]) -> list[int]:
    """The points of a sweep that have rows: both ends, and those nearest to 1 and 1.5."""
    return sorted({0, len(values) - 1, *(int(np.argmin(np.abs(np.array(values) - v))) for v in (1.0, 1.5))})


def rollout(job: Job) -> None:
    """One trained layer applied many times, and as many steps of gradient descent, damped."""
    model = Model(job.tasks, 1, True)
    if has_rows(job, "rollout"):
        return
    trained = trained_family(job, model)
    eta = float(descent(job, model, "gd")[0].eta[0])
    batch = sample_tasks(random_key(job.config, VALIDATION), model.tasks, min(job.config.validation_tasks, 2000))

    @jax.jit
    def layer_path(layer: AttentionLayer, damping: jax.Array, batch: Sequence) -> jax.Array:
        return path_losses(lambda s: roll_out(layer, s, steps=_rollout_steps, damping=damping, y_only=True), batch)

    @jax.jit
    def descent_path(damping: jax.Array, batch: Sequence) -> jax.Array:
        return path_losses(lambda s: gradient_descent(s, damping * eta, steps=_rollout_steps), batch)

    rows = []
    with stage("roll-out"):
        for damping in _dampings:
            paths: list[tuple[str, int | None, jax.Array]] = [("gd", None, descent_path(jnp.asarray(damping), batch))]
            for layers, entry in zip(split_seeds(trained.weights), trained.entries, strict=True):
                layer = jax.tree.map(lambda leaf: leaf[0], layers)
                paths.append(("trained", entry["seed"], layer_path(layer, jnp.asarray(damping), batch)))
            for name, seed, path in paths:
                losses = [float(loss) if np.isfinite(loss) else None for loss in np.asarray(path)]
                job.folder.log(event="rollout", predictor=name, seed=seed, damping=damping, losses=losses)
                more = {"seed": seed, "damping": damping, "loss": losses[-1], "eta": damping * eta}
                rows.append(row_of("rollout", model, name, **more))
    add_rows(job, rows, steps=_rollout_steps)


def curvature(job: Job) -> None:
    """The effect of the first of two recurrent layers on the eigenvalues of XᵀX, by context length.

    The layers are the best ones and, where the run trains them at that length, those trained from random weights.
    """
    spectra: dict[str, Any] = {}
    for N in job.config.contexts:
        tasks = make_tasks(job.config, context=N)
        model = Model(tasks, 2, True)
        rates, seconds = descent(job, model, "gd++")
        eta, gamma = float(rates.eta[0]), float(rates.gamma[0])
        values = context_eigenvalues(random_key(job.config, SPECTRUM + 100), tasks, min(job.config.solver_contexts, 10_000))
        spectra[f"before_{N}"] = values.astype(np.float32)
        spectra[f"after_{N}"] = curvature_after_step(values, gamma).astype(np.float32)
        if has_rows(job, "curvature", context=N):
            continue
        found = [("closed_form", {"loss": rates.loss, "gamma": gamma, "eta": eta, "seconds": seconds})]
        for entry in _trained_rates(job, model):
            both = {name: np.full(2, entry[name]) for name in ("eta", "gamma")}
            found.append(("trained", entry | {"loss": evaluate_polynomial(values, rates._replace(**both), tasks).loss}))
        add_rows(job, [row_of("curvature", model, name, **more, **_spectrum(values, more["gamma"])) for name, more in found])
    np.savez_compressed(job.folder.path / CURVATURE, **spectra)


def _trained_rates(job: Job, model: Model) -> list[dict[str, Any]]:
    """The row fields, with η and γ, of the layers that scaling-N or multi-step trains; nothing where neither does."""
    steps = job.config.scaling_steps if "scaling-N" in selected_experiments(job.config) else 0
    if not steps and not is_checkpoint(job.folder.path / "checkpoints" / f"cold_{model.name}"):
        return []
    return predictors.with_descent_rates(model, trained_family(job, model, runs=Effort(steps or 1, 1))).entries


def _spectrum(values: np.ndarray, gamma: float) -> dict[str, float]:
    """The smallest and the largest eigenvalue, over contexts and in the mean over them, and the median condition number."""
    found = {}
    for when, part in (("", values), ("_after", curvature_after_step(values, gamma))):
        low, high = part.min(axis=1), part.max(axis=1)
        found |= {f"eigenvalue_min{when}": float(low.min()), f"eigenvalue_max{when}": float(high.max())}
        found |= {f"mean_eigenvalue_min{when}": float(low.mean()), f"mean_eigenvalue_max{when}": float(high.mean())}
        found["condition_after" if when else "condition_before"] = float(np.median(condition_numbers(part)))
    return found


def scaling_n(job: Job) -> None:
    """One layer at sizes N = d, and two recurrent layers at several N, in closed form and trained."""
    models = [Model(make_tasks(job.config, dim=n, context=n), 1, True) for n in job.config.dims]
    models += [Model(make_tasks(job.config, context=N), 2, True) for N in job.config.contexts]
    for model in models:
        runs = Effort(job.config.scaling_steps, 1)
        _measure(job, "scaling-N", model, [trained_family(job, model, runs=runs)] if runs.steps else [])


def _multi(job: Job) -> Model:
    return Model(job.tasks, job.config.layers, job.config.recurrent or job.config.layers == 1)


def _measure(job: Job, experiment: str, model: Model, trained: list[Family]) -> None:
    """Rows of all predictors on fresh test tasks: without training, trained, interpolated."""
    if has_rows(job, experiment, **model.sizes):
        return
    families = predictors.untrained_families(job, model)
    for family in trained:
        families += _with_interpolated(job, model, family)
    measure_families(job, experiment, model, families)


def _with_interpolated(job: Job, model: Model, trained: Family) -> list[Family]:
    """Trained layers and, where they began at random weights, their means with constructed ones."""
    families = [predictors.with_descent_rates(model, trained) if model.recurrent else trained]
    if trained.entries[0]["start"] == "cold":
        families.append(predictors.interpolated_family(job, model, trained))
    return families


def _save_weights(job: Job, model: Model, params: AttentionLayer) -> None:
    """Save the maps M and R of the first seed, trained and constructed, and the scores of a context."""
    layers = {"trained": jax.tree.map(lambda leaf: leaf[0], params), "constructed": predictors.constructed_layers(job, model)}
    batch = sample_tasks(random_key(job.config, VALIDATION), model.tasks, 1000)
    arrays = {}
    for name, one in layers.items():
        found = jax.device_get(_maps_and_scores(one, batch))
        arrays |= {f"{name} {what}": values for what, values in found.items()}
    np.savez_compressed(job.folder.path / WEIGHTS.format(model=model.name), **arrays)


@jax.jit
@full_precision
def _maps_and_scores(layers: AttentionLayer, batch: Sequence) -> dict[str, jax.Array]:
    """The maps of a stack of layers of one head, and the scores of a context, of one task and their mean."""
    E = jnp.concatenate([batch.X, batch.Y], axis=1)
    query = jnp.concatenate([batch.x_q, jnp.zeros_like(batch.y_q)])[None]
    M, R = head_maps(layers)
    b = jnp.mean(jnp.diagonal(M[:, 0], axis1=-2, axis2=-1)[:, : len(batch.x_q)], axis=-1)[:, None, None]
    scores = jnp.einsum("nib,ij,tjb->ntb", E, M[0, 0], jnp.concatenate([E, query])) / b[0, 0, 0]
    return {"M": M[:, 0] / b, "R": R[:, 0] * b, "scores": scores[..., 0], "mean scores": jnp.mean(scores, axis=-1)}

"""The experiments of launch.icl on other layers or fewer tasks: softmax, LayerNorm, several heads, finite training sets."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.attention import head_maps
from icl.models.constructions import softmax_descent_layer
from icl.tasks import sample_tasks
from jexplicit.runs.devices import full_precision
from launch.icl.config import effort
from launch.icl.experiments import predictors
from launch.icl.experiments.predictors import Family, Model, descent_families, predict_of, trained_family
from launch.icl.job import HEADS, VALIDATION, Job, has_rows, random_key
from launch.icl.recipes import make_recipe, make_regression
from launch.icl.training import batch_loss, split_seeds


def softmax(job: Job) -> None:
    """One head and two heads with softmax, trained; and two that are a step of descent by construction."""
    if has_rows(job, "softmax"):
        return
    model = Model(job.tasks, 1, True)
    problem = replace(make_regression(job.config, job.tasks, 1), softmax=True)
    families = _by_heads(job, "softmax", model, softmax=True)
    layer = softmax_descent_layer(job.tasks.dim, job.tasks.context, _centred_rate(job))
    stacked = jax.tree.map(lambda leaf: leaf[None], layer)
    families.append(Family("constructed", predict_of(problem), stacked, [{"heads": 2}]))
    products: dict[str, Any] = {}
    for family in families:
        M, R = head_maps(split_seeds(family.weights)[0])  # [1, heads, width, width]
        products[f"{family.name}, {len(M[0])} head{'s' * (len(M[0]) > 1)}"] = np.asarray(M[0] * R[0, :, -1:, -1:])
    np.savez_compressed(job.folder.path / HEADS, **products)
    _measure(job, "softmax", model, families)


def layernorm(job: Job) -> None:
    """One layer and two recurrent ones that read normalised tokens, and their losses on other input ranges."""
    for layers in (1, 2):
        if has_rows(job, "layernorm", layers=layers):
            continue
        model, name = Model(job.tasks, layers, True), f"layernorm_K{layers}"
        problem = replace(make_regression(job.config, job.tasks, layers), layernorm=True)
        trained = trained_family(job, model, name=name, problem=problem, runs=effort(job.config, "layernorm"))
        shifts = {"input_range": predictors.input_ranges(job.tasks)}
        for _ in predictors.sweep_families(job, "layernorm", name, [trained, descent_families(job, model)[0]], shifts):
            pass  # their events are all that the report needs
        _measure(job, "layernorm", model, [trained])


def phase(job: Job) -> None:
    """When the loss drops, by seed: linear attention of one head and of two."""
    if not has_rows(job, "phase"):
        model = Model(job.tasks, 1, True)
        _measure(job, "phase", model, _by_heads(job, "phase", model))


def finite_data(job: Job) -> None:
    """Training on the same few tasks at every step, and the loss on those and on fresh ones."""
    model, problem = Model(job.tasks, 1, True), make_regression(job.config, job.tasks, 1)
    for size in job.config.training_tasks:
        if has_rows(job, "finite-data", training_tasks=size):
            continue
        recipe = make_recipe(job.config, 1)._replace(batch_size=size, cycle=1)
        trained = trained_family(job, model, name=f"finite_{size}", recipe=recipe, runs=effort(job.config, "finite-data"))
        for entry, layers in zip(trained.entries, split_seeds(trained.weights), strict=True):
            same = sample_tasks(jax.random.fold_in(jax.random.key(entry["seed"]), 0), job.tasks, size)  # as in training
            entry["train_loss"] = float(batch_loss(problem, layers, same))
        _measure(job, "finite-data", model, [trained], training_tasks=size)


def _by_heads(job: Job, experiment: str, model: Model, **changes: Any) -> list[Family]:
    """One layer of one head and one of two, trained."""
    problem, runs = replace(make_regression(job.config, job.tasks, 1), **changes), effort(job.config, experiment)
    return [
        trained_family(job, model, name=f"{experiment}_{heads}_heads", problem=problem, heads=heads, runs=runs)
        for heads in (1, 2)
    ]


def _measure(job: Job, experiment: str, model: Model, families: list[Family], **shared: Any) -> None:
    predictors.measure_families(job, experiment, model, [*descent_families(job, model), *families], **shared)


@full_precision
def _centred_rate(job: Job) -> float:
    """The best η of a step on centred inputs, `E tr S / E tr S²` with S of those inputs."""
    X = sample_tasks(random_key(job.config, VALIDATION), job.tasks, job.config.validation_tasks).X
    centred = X - jnp.mean(X, axis=0, keepdims=True)
    S = jnp.einsum("nib,njb->bij", centred, centred) / job.tasks.context
    return float(jnp.mean(jnp.trace(S, axis1=1, axis2=2)) / jnp.mean(jnp.sum(S**2, axis=(1, 2))))

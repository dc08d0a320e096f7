"""The experiment of launch.icl on copying: x and y in separate tokens, which a first layer has to join."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from icl.models.attention import AttentionLayer, init_layers
from icl.problems import copying
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from launch.icl.config import effort
from launch.icl.experiments.predictors import Family, Model, descent_family
from launch.icl.job import TEST, VALIDATION, Job, add_rows, copy_model, has_rows, random_key
from launch.icl.training import Measure, batch_loss, split_seeds, train_or_load, training_rows


def copy(job: Job) -> None:
    """Two layers that learn to copy and then to descend, with softmax first or linear, and weights that do both exactly."""
    batch = job.tasks.sample(random_key(job.config, TEST), min(job.config.test_tasks, 100_000))
    if not has_rows(job, "copy", predictor="gd"):
        _add_rows(job, batch, _untrained(job, batch))
    for first in ("softmax", "linear"):
        if not has_rows(job, "copy", attention=first):
            _add_rows(job, batch, _trained(job, first, batch))


def _untrained(job: Job, batch: Sequence) -> list[dict[str, Any]]:
    """The rows of predicting zero, of one step of descent, and of constructed layers."""
    tasks, eta = job.tasks, _descent(job).entries[0]["eta"]
    layers = jax.jit(copying.copying_layers, static_argnums=(0, 1))(tasks.dim, tasks.context, eta)
    y, losses = jax.jit(_predict_with_codes)(layers, batch), _levels(job, batch)
    return [
        {"layers": 0, "predictor": "zero", "loss": losses["zero"]},
        {"layers": 1, "predictor": "gd", "loss": losses["gd"], "eta": eta},
        {"layers": 2, "heads": 2, "predictor": "constructed", "loss": float(half_mse(y, batch.y_q)), "eta": eta},
    ]


def _trained(job: Job, first: str, batch: Sequence) -> list[dict[str, Any]]:
    """The rows of trained layers, the first with softmax or linear."""
    config, runs, name = job.config, effort(job.config, "copy"), copy_model(first)
    runs = runs if first == "softmax" else runs._replace(seeds=1)  # that does not train, whatever the seed
    problem = copying.Copying(job.tasks, softmax=(first == "softmax", False))
    validation = problem.sample(random_key(config, VALIDATION), min(config.validation_tasks, 10_000))
    few = jax.tree.map(lambda leaf: leaf[..., :500], validation)

    def sensitivities(layers: AttentionLayer) -> Mapping[str, jax.Array]:
        found = _sensitivity(problem, first == "softmax", layers, few)
        return {f"sensitivity_{what}": value for what, value in found._asdict().items()}

    def evaluation() -> Measure:
        for predictor, loss in _levels(job, validation).items():
            job.folder.log(event="reference", model=name, predictor=predictor, loss=loss)
        return lambda layers: {"loss": batch_loss(problem, layers, validation), **sensitivities(layers)}

    def init(key: jax.Array) -> AttentionLayer:
        return init_layers(key, problem.width, layers=2, scale=0.02 / 2)

    recipe = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0)
    params = train_or_load(job, name, init, problem, recipe, evaluation, effort=runs, every=max(1, min(500, runs.steps // 20)))
    rows = []
    for layers, entry in zip(split_seeds(params), training_rows(job, name), strict=True):
        found = {what: float(value) for what, value in sensitivities(layers).items()}
        loss = float(batch_loss(problem, layers, batch))
        rows.append({"layers": 2, "predictor": "trained", "attention": first, "loss": loss, **entry, **found})
    return rows


def _add_rows(job: Job, batch: Sequence, rows: list[dict[str, Any]]) -> None:
    about = {"experiment": "copy", "task": "tokens apart", "attention": None, "test_tasks": batch.y_q.shape[1]}
    add_rows(job, rows, **about, recurrent=False, dim=job.tasks.dim, context=job.tasks.context)


def _descent(job: Job) -> Family:
    return descent_family(job, Model(job.tasks, 1, True), "gd")


def _levels(job: Job, batch: Sequence) -> dict[str, float]:
    """The losses of predicting zero and of one step of descent."""
    gd = _descent(job)
    y = jax.jit(gd.predict)(split_seeds(gd.weights)[0], batch)
    return {"zero": 0.5 * float(jnp.mean(batch.y_q**2)), "gd": float(half_mse(y, batch.y_q))}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sensitivity(problem: copying.Copying, softmax: bool, layers: AttentionLayer, batch: Sequence) -> copying.CopySensitivity:
    return copying.copy_sensitivity(layers, problem.tokens(batch), softmax=softmax)


def _predict_with_codes(layers: AttentionLayer, batch: Sequence) -> jax.Array:
    """The predictions of constructed layers, whose positions have unit codes."""
    tokens = copying.add_codes(copying.separate_tokens(batch), copying.unit_codes(len(batch.X)))
    return copying.read_out(layers, tokens)

"""The experiment of launch.icl on copying: x and y in separate tokens, which a first layer has to join."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from icl.models.attention import AttentionLayer, init_layers
from icl.problems import copying
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from launch.icl.config import effort
from launch.icl.experiments.predictors import Model, descent_family
from launch.icl.job import TEST, VALIDATION, Job, add_rows, has_rows, random_key
from launch.icl.training import Measure, batch_loss, split_seeds, train_or_load, training_rows


def copy(job: Job) -> None:
    """Two layers that learn to copy and then to descend, and weights that do both exactly."""
    if has_rows(job, "copy"):
        return
    config, tasks = job.config, job.tasks
    problem, runs = copying.Copying(tasks), effort(config, "copy")
    validation = problem.sample(random_key(config, VALIDATION), min(config.validation_tasks, 10_000))
    gd = descent_family(job, Model(tasks, 1, True), "gd")
    predict, copying_layers = jax.jit(gd.predict), jax.jit(copying.copying_layers, static_argnums=(0, 1))

    def levels(batch: Sequence) -> dict[str, float]:
        """The losses of predicting zero and of one step of descent."""
        y = predict(split_seeds(gd.weights)[0], batch)
        return {"zero": 0.5 * float(jnp.mean(batch.y_q**2)), "gd": float(half_mse(y, batch.y_q))}

    few = jax.tree.map(lambda leaf: leaf[..., :500], validation)
    sensitivity = jax.jit(lambda layers, batch: copying.copy_sensitivity(layers, problem.tokens(batch)))

    def sensitivities(layers: AttentionLayer) -> Mapping[str, jax.Array]:
        found = sensitivity(layers, few)
        return {f"sensitivity_{what}": value for what, value in found._asdict().items()}

    def evaluation() -> Measure:
        for name, loss in levels(validation).items():
            job.folder.log(event="reference", model="copy", predictor=name, loss=loss)
        return lambda layers: {"loss": batch_loss(problem, layers, validation), **sensitivities(layers)}

    def init(key: jax.Array) -> AttentionLayer:
        return init_layers(key, problem.width, layers=2, scale=0.02 / 2)

    recipe, every = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0), max(1, min(500, runs.steps // 20))
    params = train_or_load(job, "copy", init, problem, recipe, evaluation, effort=runs, every=every)

    batch = problem.sample(random_key(config, TEST), min(config.test_tasks, 100_000))
    eta, losses = gd.entries[0]["eta"], levels(batch)
    constructed = copying_layers(tasks.dim, tasks.context, eta)
    y = jax.jit(_predict_with_codes)(constructed, batch)
    rows = [
        {"layers": 0, "predictor": "zero", "loss": losses["zero"]},
        {"layers": 1, "predictor": "gd", "loss": losses["gd"], "eta": eta},
        {"layers": 2, "heads": 2, "predictor": "constructed", "loss": float(half_mse(y, batch.y_q)), "eta": eta},
    ]
    for layers, entry in zip(split_seeds(params), training_rows(job, "copy"), strict=True):
        found = {what: float(value) for what, value in sensitivities(layers).items()}
        rows.append({"layers": 2, "predictor": "trained", "loss": float(batch_loss(problem, layers, batch)), **entry, **found})
    about = {"experiment": "copy", "task": "tokens apart", "test_tasks": batch.y_q.shape[1]}
    add_rows(job, rows, **about, recurrent=False, dim=tasks.dim, context=tasks.context)


def _predict_with_codes(layers: AttentionLayer, batch: Sequence) -> jax.Array:
    """The predictions of constructed layers, whose positions have unit codes."""
    tokens = copying.add_codes(copying.separate_tokens(batch), copying.unit_codes(len(batch.X)))
    return copying.read_out(layers, tokens)

"""Copying: a first layer joins x and y, a second descends."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from icl import problems
from icl.attention import AttentionLayer, init_layers
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from launch.icl import base
from launch.icl.config import CopyConfig
from launch.icl.tables import BY_STEP, STYLES, curve, curves, measures
from launch.kit.views import Lines, Results, Row

MODELS = {"softmax": "copy", "linear": "copy_linear"}  # names in files and events, by the first layer


def measure(job: base.Job[CopyConfig]) -> Iterator[base.Part]:
    """What needs no training, then a part for each first layer."""
    yield {"attention": None}, functools.partial(untrained, job.config)
    yield from (({"attention": first}, functools.partial(train_copying, job, first)) for first in MODELS)


def untrained(config: CopyConfig) -> Iterator[Row]:
    """Predicting zero, one step of descent, and weights that copy and descend exactly."""
    about, batch = test_set(config)
    eta, losses = levels(config, batch)
    layers = jax.jit(problems.copying_layers, static_argnums=(0, 1))(config.dim, config.context, eta)
    constructed = float(half_mse(predict_with_codes(layers, batch), batch.y_q))
    yield {**about, "layers": 0, "predictor": "zero", "loss": losses["zero"]}
    yield {**about, "layers": 1, "predictor": "gd", "loss": losses["gd"], "eta": eta}
    yield {**about, "layers": 2, "heads": 2, "predictor": "constructed", "loss": constructed, "eta": eta}


def test_set(config: CopyConfig) -> tuple[Row, Sequence]:
    """Fields of all rows, and the tasks that they are about."""
    about = {"task": "tokens apart", "recurrent": False, "dim": config.dim, "context": config.context}
    batch = base.make_model(config).tasks.sample(base.random_key(config, base.TEST), config.test_tasks)
    return about | {"test_tasks": config.test_tasks}, batch


def train_copying(job: base.Job[CopyConfig], first: str) -> Iterator[Row]:
    """Two trained layers for each seed, or for one if linear."""
    config, name = job.config, MODELS[first]
    problem = problems.Copying(base.make_model(config).tasks, softmax=(first == "softmax", False))
    validation = problem.sample(base.random_key(config, base.VALIDATION), config.validation_tasks)
    few = jax.tree.map(lambda leaf: leaf[..., :500], validation)

    def measured(layers: AttentionLayer, batch: Sequence) -> dict[str, jax.Array]:
        found = sensitivity(problem, first == "softmax", layers, few)._asdict()
        return {"loss": base.batch_loss(problem, layers, batch)} | {f"sensitivity_{what}": x for what, x in found.items()}

    def evaluation() -> base.Measure:
        for predictor, loss in levels(config, validation)[1].items():
            job.folder.log(event="reference", model=name, predictor=predictor, loss=loss)
        return lambda layers: measured(layers, validation)

    init = functools.partial(init_layers, width=problem.width, layers=2, scale=0.02 / 2)
    recipe, every = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0), max(1, min(500, config.steps // 20))
    seeds, (about, batch) = config.seeds if first == "softmax" else 1, test_set(config)
    for layers, entry in base.train_or_load(job, name, init, problem, recipe, evaluation, seeds=seeds, every=every):
        yield {**about, "layers": 2, "predictor": "trained", **jax.tree.map(float, measured(layers, batch)), **entry}


def levels(config: CopyConfig, batch: Sequence) -> tuple[float, dict[str, float]]:
    """The rate of one descent step, and losses of zero and of it."""
    gd = base.descent_family(config, base.make_model(config), "gd")
    weights, entry = gd.members[0]
    loss = float(half_mse(jax.jit(gd.predict)(weights, batch), batch.y_q))
    return entry["eta"], {"zero": 0.5 * float(jnp.mean(batch.y_q**2)), "gd": loss}


@functools.partial(jax.jit, static_argnums=(0, 1))
def sensitivity(problem: problems.Copying, softmax: bool, layers: AttentionLayer, batch: Sequence) -> problems.CopySensitivity:
    """How the outputs of the first layer depend on each token."""
    return problems.copy_sensitivity(layers, problem.tokens(batch), softmax=softmax)


@jax.jit
def predict_with_codes(layers: AttentionLayer, batch: Sequence) -> jax.Array:
    """The predictions of constructed layers, whose positions have unit codes."""
    tokens = problems.add_codes(problems.separate_tokens(batch), problems.unit_codes(len(batch.X)))
    return problems.read_out(layers, tokens)


def figure_rows(results: Results) -> list[Row]:
    """Losses of both, and sensitivities of the first layer with softmax."""
    names = {"own": "same token", "next": "next token", "other": "other tokens"}
    return curves(results, {f"{first} first layer": model for first, model in MODELS.items()}) + [
        {"step": entry["step"], "loss": entry[f"sensitivity_{what}"], "series": name, "label": "sensitivity"}
        for what, name in names.items()
        for entry in curve(results, MODELS["softmax"])
    ]


AXES = {**BY_STEP, "yscale": "linear"}
SENSITIVITY = {"sensitivity": {"ylabel": "sensitivity of the first layer", "yscale": "log"}}
NOTE = "von Oswald et al. 2023, Fig. 5 (10,000 steps): the loss drops just after the first layer attends to the next token."
FIGURE = Lines("copy", "step", "loss", "series", "label", figure_rows, STYLES, AXES, SENSITIVITY)
EXPERIMENT = base.experiment("copy", measure, [measures({"attention": "first layer"}, NOTE), FIGURE], title="Copying")

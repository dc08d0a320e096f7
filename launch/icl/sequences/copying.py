"""Copying: x and y in separate tokens, which a first layer has to join before a second one can descend."""

import functools

import jax
import jax.numpy as jnp

from icl.models.attention import AttentionLayer, init_layers
from icl.problems import copying
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from launch.icl.shared.base import (
    STYLES,
    TEST,
    VALIDATION,
    Job,
    Measure,
    Model,
    batch_loss,
    effort,
    make_tasks,
    parts,
    random_key,
    train_or_load,
)
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import descent_family
from launch.icl.shared.tables import BY_STEP, curve, curves, measures
from launch.kit.experiment import Experiment
from launch.kit.rows import Results, Row
from launch.kit.views import Lines

MODELS = {"softmax": "copy", "linear": "copy_linear"}  # names in files and events, by the first layer


@parts(lambda config: [{"attention": first} for first in (None, *MODELS)])
def measure(job: Job, attention: str | None) -> list[Row]:
    """x and y in separate tokens."""
    return train_copying(job, attention) if attention else untrained(job)


def test_set(config: Config) -> tuple[Row, Sequence]:
    """Fields of all rows, and the tasks that they are about."""
    tasks, number = make_tasks(config), min(config.test_tasks, 100_000)
    about = {"task": "tokens apart", "recurrent": False, "dim": tasks.dim, "context": tasks.context, "test_tasks": number}
    return about, tasks.sample(random_key(config, TEST), number)


def untrained(job: Job) -> list[Row]:
    """Predicting zero, one step of descent, and weights that copy and descend exactly."""
    about, batch = test_set(job.config)
    eta, losses = levels(job, batch)
    layers = jax.jit(copying.copying_layers, static_argnums=(0, 1))(job.config.dim, job.config.context, eta)
    constructed = float(half_mse(predict_with_codes(layers, batch), batch.y_q))
    return [
        {**about, "layers": 0, "predictor": "zero", "loss": losses["zero"]},
        {**about, "layers": 1, "predictor": "gd", "loss": losses["gd"], "eta": eta},
        {**about, "layers": 2, "heads": 2, "predictor": "constructed", "loss": constructed, "eta": eta},
    ]


def train_copying(job: Job, first: str) -> list[Row]:
    """Two trained layers, the first with softmax or linear."""
    config, name, runs = job.config, MODELS[first], effort(job.config, 6000)
    runs = runs if first == "softmax" else runs._replace(seeds=1)  # that does not train, whatever the seed
    problem = copying.Copying(make_tasks(config), softmax=(first == "softmax", False))
    validation = problem.sample(random_key(config, VALIDATION), min(config.validation_tasks, 10_000))
    few = jax.tree.map(lambda leaf: leaf[..., :500], validation)

    def measured(layers: AttentionLayer, batch: Sequence) -> dict[str, jax.Array]:
        found = sensitivity(problem, first == "softmax", layers, few)._asdict()
        return {"loss": batch_loss(problem, layers, batch)} | {f"sensitivity_{what}": value for what, value in found.items()}

    def evaluation() -> Measure:
        for predictor, loss in levels(job, validation)[1].items():
            job.folder.log(event="reference", model=name, predictor=predictor, loss=loss)
        return lambda layers: measured(layers, validation)

    def init(key: jax.Array) -> AttentionLayer:
        return init_layers(key, problem.width, layers=2, scale=0.02 / 2)

    recipe, every = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0), max(1, min(500, runs.steps // 20))
    trained, (about, batch) = train_or_load(job, name, init, problem, recipe, evaluation, runs, every), test_set(config)
    about = {**about, "layers": 2, "predictor": "trained"}
    return [{**about, **jax.tree.map(float, measured(layers, batch)), **entry} for layers, entry in trained]


def levels(job: Job, batch: Sequence) -> tuple[float, dict[str, float]]:
    """The rate of one step of descent, and the losses of predicting zero and of that step."""
    gd = descent_family(job, Model(make_tasks(job.config), 1, True), "gd")
    weights, entry = gd.members[0]
    losses = {
        "zero": 0.5 * float(jnp.mean(batch.y_q**2)),
        "gd": float(half_mse(jax.jit(gd.predict)(weights, batch), batch.y_q)),
    }
    return entry["eta"], losses


@functools.partial(jax.jit, static_argnums=(0, 1))
def sensitivity(problem: copying.Copying, softmax: bool, layers: AttentionLayer, batch: Sequence) -> copying.CopySensitivity:
    """How the outputs of the first layer depend on each token."""
    return copying.copy_sensitivity(layers, problem.tokens(batch), softmax=softmax)


@jax.jit
def predict_with_codes(layers: AttentionLayer, batch: Sequence) -> jax.Array:
    """The predictions of constructed layers, whose positions have unit codes."""
    tokens = copying.add_codes(copying.separate_tokens(batch), copying.unit_codes(len(batch.X)))
    return copying.read_out(layers, tokens)


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
VIEWS = [
    measures({"attention": "first layer"})._replace(note=NOTE),
    Lines("copy", "step", "loss", "series", "label", figure_rows, STYLES, AXES, SENSITIVITY),
]
EXPERIMENT = Experiment("copy", Config, measure, VIEWS, title="Copying")

"""Classes of functions (Garg et al. 2022): a causal transformer and statistical baselines after every pair of a prompt."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.transformer import CausalTransformer
from icl.problems.function_classes import (
    SHIFTS,
    FunctionClass,
    Prompt,
    Prompts,
    Shift,
    at_every_prefix,
    function_baselines,
    prefix_losses,
)
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.shared.base import TEST, Job, effort, random_key, train_or_load, validation_loss
from launch.icl.shared.config import Config
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, groups, means, points, where
from launch.kit.tables import Column
from launch.kit.views import Lines, pivot_table

_batch = 64  # prompts per step, as in Garg et al.
_prompts = 1280  # of the test
_two_dimensional = ("orthogonal query", "half subspace")  # shifts that need at least two dimensions

Predictors = list[tuple[Row, Callable[[Prompt], jax.Array]]]  # row fields, predictions [prompts, T]


def check(config: Config) -> None:
    """Refuse a width that heads do not divide."""
    width, layers, heads = config.transformer
    if width % heads:
        raise ValueError(f"--transformer {width} {layers} {heads}: use a width that is a multiple of the heads")


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """A causal transformer on other classes of functions."""
    for kind in config.functions:  # linear functions also on shifted prompts
        d = config.function_dim
        functions = FunctionClass(kind, dim=d, points=2 * d + 1, nonzero=min(3, d))
        predictors = functools.cache(functools.partial(make_predictors, config, folder, functions))
        for shift in SHIFTS if kind == "linear" else SHIFTS[:1]:
            if d > 1 or shift not in _two_dimensional:
                part = functools.partial(measure_prompts, config, folder, functions, shift, predictors)
                yield {"task": kind, "shift": shift}, part


def make_predictors(config: Config, folder: RunFolder, functions: FunctionClass) -> Predictors:
    """All baselines of a class and every seed's transformer, each compiled once."""
    name, runs, (width, layers, heads) = f"functions_{functions.kind}", effort(config, 3000, 1), config.transformer
    model = CausalTransformer(width, layers, heads, jnp.zeros(()).dtype)
    problem, init = Prompts(functions, model.apply), functools.partial(init_model, model, functions)  # pyright: ignore[reportArgumentType]
    recipe = Recipe(min(_batch, config.batch_size), config.learning_rate, b2=0.999, gradient_clip=1.0)
    evaluation, every = validation_loss(config, problem, min(config.validation_tasks, _prompts)), max(1, runs.steps // 20)
    trained = train_or_load(Job(config, folder), name, init, problem, recipe, evaluation, runs, every)
    predictors: Predictors = [
        ({"predictor": baseline, "layers": 0}, jax.jit(jax.vmap(functools.partial(at_every_prefix, predictor))))
        for baseline, predictor in function_baselines(functions.kind).items()
    ]
    apply: Any = jax.jit(model.apply)
    for one, entry in trained:
        about = {"predictor": "trained", **entry, "layers": layers, "heads": heads, "start": "cold"}
        predictors.append((about, lambda prompts, one=one: apply(one, prompts.X, prompts.y)))
    return predictors


@functools.partial(jax.jit, static_argnums=(0, 1))
def init_model(model: CausalTransformer, functions: FunctionClass, key: jax.Array) -> Any:
    """The weights of a transformer."""
    X = jnp.zeros((1, functions.points, functions.dim))
    return model.init(key, X, X[:, :, 0])


def measure_prompts(
    config: Config, folder: RunFolder, functions: FunctionClass, shift: Shift, predictors: Callable[[], Predictors]
) -> list[Row]:
    """Losses at some prefixes of test prompts; those at every prefix over E[f²] are an event.

    Prompts are padded at the end to the points that the transformer has positions for.
    """
    made, number = predictors(), min(config.test_tasks, _prompts)
    # at most d points are orthogonal to each other
    fits = replace(functions, points=functions.dim) if shift == "orthogonal query" else functions
    T, d, rows = fits.points, fits.dim, []
    with stage(f"testing {fits.kind} functions, {shift}"):
        prompts = jax.vmap(lambda key: fits.sample(key, shift))(jax.random.split(random_key(config, TEST), number))
        left = functions.points - T
        padded = Prompt(*(jnp.asarray(np.pad(leaf, ((0, 0), (0, left), *[(0, 0)] * (leaf.ndim - 2)))) for leaf in prompts))
        for entry, predict in made:
            losses = np.asarray(losses_by_prefix(predict(padded), prompts.y))
            scaled, about = (losses / fits.power).tolist(), {"predictor": entry["predictor"], "seed": entry.get("seed")}
            folder.log(event="prefixes", task=fits.kind, shift=shift, **about, losses=scaled)
            about = {"test_tasks": number, "recurrent": False, "dim": d, "context": T - 1, **entry}
            for t in sorted({0, d // 2, min(d, T - 1), T - 1}):
                rows.append({**about, "prefix": t, "loss": float(losses[t]), "loss_by_power": scaled[t]})
    return rows


@jax.jit
def losses_by_prefix(predictions: jax.Array, y: jax.Array) -> jax.Array:
    """The losses at the prefixes of prompts, whose predictions go on where they are padded."""
    return prefix_losses(predictions[:, : y.shape[1]], y)


def after_prompts(results: Results) -> list[Row]:
    """The means over seeds after the whole prompt, first those of the transformer."""
    rows = sorted(results.rows, key=lambda row: row["predictor"] != "trained")
    return means([row for row in rows if row["prefix"] == row["context"]], ["task", "shift", "predictor"])


def figure_rows(results: Results) -> list[Row]:
    """Losses by pairs seen on prompts that are not shifted, of the transformer those of all seeds."""
    events = where(results.events("prefixes", "task", "shift", "predictor", "seed"), shift="none")
    rows = {task: n // 3 for n, (task,) in enumerate(groups(events, ["task"]))}  # of panels
    return [
        row
        for e in events
        for row in points(range(len(e["losses"])), e["losses"], predictor=e["predictor"], task=e["task"], row=rows[e["task"]])
    ]


FIRST = [Column("functions", "task"), Column("shift", "shift")]
CLASSES = pivot_table(FIRST, "predictor", "loss_by_power", ".1f", scale=100, rows=after_prompts)
STYLES = {"trained": {"label": "transformer", "color": "black", "linestyle": "-", "linewidth": 2}}
AXES = {"xlabel": "pairs seen", "ylabel": "half mean square over E[f²]", "ylim": (0, 1)}
NOTE = """Half the squared error after the whole prompt, in % of E[f²]. Garg et al. 2022 (12 layers, 20 dimensions, 500,001
steps): near least squares on linear functions and Lasso on sparse ones, better than greedy trees on trees."""
VIEWS = [
    CLASSES._replace(note=NOTE),
    Lines("function_classes", "x", "y", "predictor", "task", figure_rows, STYLES, AXES, row="row", sharey=True, legend="below"),
]
EXPERIMENT = Experiment("function-classes", Config, measure, VIEWS, check=check, title="Classes of functions")

"""Classes of functions (Garg et al. 2022): a transformer and statistical baselines."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.transformer import CausalTransformer
from icl.problems import function_classes
from icl.problems.function_classes import SHIFTS, FunctionClass, Prompt, Shift
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl import base
from launch.icl.config import ClassesConfig
from launch.kit.views import Column, Results, Row, means, pivot_table

_two_dimensional = ("orthogonal query", "half subspace")  # shifts that need at least two dimensions

Predictors = list[tuple[Row, Callable[[Prompt], jax.Array]]]  # row fields, predictions [prompts, T]


def check(config: ClassesConfig) -> None:
    """Refuse a width that heads do not divide."""
    width, layers, heads = config.transformer
    if width % heads:
        raise ValueError(f"--transformer {width} {layers} {heads}: use a width that is a multiple of the heads")


def measure(job: base.Job[ClassesConfig]) -> Iterator[base.Part]:
    """A part for each class and shift; linear functions also on shifted prompts."""
    for kind in job.config.functions:
        d = job.config.dim
        functions = FunctionClass(kind, dim=d, points=2 * d + 1, nonzero=min(3, d))
        predictors = functools.cache(functools.partial(make_predictors, job, functions))
        for shift in SHIFTS if kind == "linear" else SHIFTS[:1]:
            if d > 1 or shift not in _two_dimensional:
                yield {"task": kind, "shift": shift}, functools.partial(losses, job.config, functions, shift, predictors)


def make_predictors(job: base.Job[ClassesConfig], functions: FunctionClass) -> Predictors:
    """All baselines of a class and every seed's transformer, each compiled once."""
    config, (width, layers, heads) = job.config, job.config.transformer
    model = CausalTransformer(width, layers, heads, jnp.zeros(()).dtype)
    problem, init = function_classes.Prompts(functions, model.apply), functools.partial(init_model, model, functions)  # pyright: ignore[reportArgumentType]
    recipe = Recipe(config.batch_size, config.learning_rate, b2=0.999, gradient_clip=1.0)
    evaluation, every = base.validation_loss(config, problem), max(1, config.steps // 20)
    trained = base.train_or_load(job, f"functions_{functions.kind}", init, problem, recipe, evaluation, every=every)
    predictors: Predictors = [
        ({"predictor": name, "layers": 0}, jax.jit(jax.vmap(functools.partial(function_classes.at_every_prefix, baseline))))
        for name, baseline in function_classes.function_baselines(functions.kind).items()
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


def losses(
    config: ClassesConfig, functions: FunctionClass, shift: Shift, predictors: Callable[[], Predictors]
) -> Iterator[Row]:
    """Losses at some prefixes of test prompts, padded to the transformer's positions."""
    # at most d points are orthogonal to each other
    fits = replace(functions, points=functions.dim) if shift == "orthogonal query" else functions
    T, d, left = fits.points, fits.dim, functions.points - fits.points
    with stage(f"testing {fits.kind} functions, {shift}"):
        keys = jax.random.split(base.random_key(config, base.TEST), config.test_tasks)
        prompts = jax.vmap(lambda key: fits.sample(key, shift))(keys)
        padded = Prompt(*(jnp.asarray(np.pad(leaf, ((0, 0), (0, left), *[(0, 0)] * (leaf.ndim - 2)))) for leaf in prompts))
        for entry, predict in predictors():
            found = np.asarray(losses_by_prefix(predict(padded), prompts.y))
            about = {"test_tasks": config.test_tasks, "recurrent": False, "dim": d, "context": T - 1, **entry}
            for t in sorted({0, d // 2, min(d, T - 1), T - 1}):
                yield {**about, "prefix": t, "loss": float(found[t]), "loss_by_power": float(found[t] / fits.power)}


@jax.jit
def losses_by_prefix(predictions: jax.Array, y: jax.Array) -> jax.Array:
    """The losses at the prefixes of prompts, without padding."""
    return function_classes.prefix_losses(predictions[:, : y.shape[1]], y)


def after_prompts(results: Results) -> list[Row]:
    """The means over seeds after the whole prompt, the transformer first."""
    rows = sorted(results.rows, key=lambda row: row["predictor"] != "trained")
    return means([row for row in rows if row["prefix"] == row["context"]], ["task", "shift", "predictor"])


NOTE = """Half the squared error after the whole prompt, in % of E[f²]. Garg et al. 2022 (12 layers, 20 dimensions, 500,001
steps): near least squares on linear functions and Lasso on sparse ones, better than greedy trees on trees."""
FIRST = [Column("functions", "task"), Column("shift", "shift")]
CLASSES = pivot_table(FIRST, "predictor", "loss_by_power", ".1f", scale=100, rows=after_prompts)
VIEWS = [CLASSES._replace(note=NOTE)]
EXPERIMENT = base.experiment("function-classes", measure, VIEWS, title="Classes of functions", check=check)

"""The experiment of launch.icl on classes of functions: a causal transformer and statistical baselines at every prefix."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.transformer import CausalTransformer
from icl.problems import function_classes as classes
from icl.problems.function_classes import SHIFTS, FunctionClass, Prompt, Shift
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.config import effort
from launch.icl.job import TEST, Job, add_rows, has_rows, random_key
from launch.icl.recipes import make_functions
from launch.icl.training import split_seeds, train_or_load, training_rows, validation_loss

_batch = 64  # prompts per step, as in Garg et al.
_test_prompts = 1280
_two_dimensional = ("orthogonal query", "half subspace")  # shifts that need at least two dimensions

Predictors = list[tuple[str, dict[str, Any], Callable[[Prompt], jax.Array]]]  # name, row fields, predictions [prompts, T]


def compare_on_functions(job: Job) -> None:
    """A transformer for each class, and baselines; linear functions also on shifted prompts."""
    for kind in job.config.functions:
        functions = make_functions(job.config, kind)
        shifts = [s for s in (SHIFTS if kind == "linear" else SHIFTS[:1]) if functions.dim > 1 or s not in _two_dimensional]
        left = [shift for shift in shifts if not has_rows(job, "function-classes", task=kind, shift=shift)]
        if not left:
            continue
        predictors = _predictors(job, functions)
        with stage(f"testing {kind} functions"):
            for shift in left:
                # at most d points are orthogonal to each other
                fits = replace(functions, points=functions.dim) if shift == "orthogonal query" else functions
                _measure(job, fits, shift, predictors, functions.points)


def _predictors(job: Job, functions: FunctionClass) -> Predictors:
    """All baselines of a class and every seed's transformer, each compiled once."""
    config, name, runs = job.config, f"functions_{functions.kind}", effort(job.config, "function-classes")
    width, layers, heads = config.transformer
    model = CausalTransformer(width, layers, heads, jnp.zeros(()).dtype)
    problem = classes.Prompts(functions, model.apply)  # pyright: ignore[reportArgumentType]

    recipe = Recipe(min(_batch, config.batch_size), config.learning_rate, b2=0.999, gradient_clip=1.0)
    evaluation = validation_loss(job, problem, min(config.validation_tasks, _test_prompts))
    every = max(1, runs.steps // 20)
    init = functools.partial(_init, model, functions.points, functions.dim)
    params = train_or_load(job, name, init, problem, recipe, evaluation, effort=runs, every=every)
    predictors: Predictors = [
        (baseline, {"layers": 0}, jax.jit(jax.vmap(functools.partial(classes.at_every_prefix, predictor))))
        for baseline, predictor in classes.function_baselines(functions.kind).items()
    ]
    apply: Any = jax.jit(model.apply)
    for entry, one in zip(training_rows(job, name), split_seeds(params), strict=True):
        about = {**entry, "layers": layers, "heads": heads, "start": "cold"}
        predictors.append(("trained", about, lambda prompts, one=one: apply(one, prompts.X, prompts.y)))
    return predictors


def _measure(job: Job, functions: FunctionClass, shift: Shift, predictors: Predictors, points: int) -> None:
    """Losses at every prefix of test prompts over E[f²], as an event, and rows at some prefixes.

    Prompts are padded at the end to the points that the transformer has positions for.
    """
    number, T = min(job.config.test_tasks, _test_prompts), functions.points
    keys = jax.random.split(random_key(job.config, TEST), number)
    prompts = jax.vmap(lambda key: functions.sample(key, shift))(keys)
    padded = Prompt(*(jnp.asarray(np.pad(leaf, ((0, 0), (0, points - T), *[(0, 0)] * (leaf.ndim - 2)))) for leaf in prompts))
    rows = []
    for name, entry, predict in predictors:
        losses = np.asarray(_prefix_losses(predict(padded), prompts.y))
        scaled, seed = (losses / functions.power).tolist(), entry.get("seed")
        job.folder.log(event="prefixes", task=functions.kind, shift=shift, predictor=name, seed=seed, losses=scaled)
        for t in sorted({0, functions.dim // 2, min(functions.dim, T - 1), T - 1}):
            rows.append({"predictor": name, **entry, "prefix": t, "loss": float(losses[t]), "loss_by_power": scaled[t]})
    about = {"experiment": "function-classes", "task": functions.kind, "shift": shift, "test_tasks": number}
    add_rows(job, rows, **about, recurrent=False, dim=functions.dim, context=T - 1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _init(model: CausalTransformer, points: int, dim: int, key: jax.Array) -> Any:
    X = jnp.zeros((1, points, dim))
    return model.init(key, X, X[:, :, 0])


@jax.jit
def _prefix_losses(predictions: jax.Array, y: jax.Array) -> jax.Array:
    """The losses at the prefixes of prompts, whose predictions go on where they are padded."""
    return classes.prefix_losses(predictions[:, : y.shape[1]], y)

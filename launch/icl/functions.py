"""The experiment of launch.icl on classes of functions: a causal transformer beside what statistics has, at every prefix."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.transformer import CausalTransformer
from icl.problems.function_classes import (
    SHIFTS,
    FunctionClass,
    Kind,
    Prompt,
    Prompts,
    Shift,
    at_every_prefix,
    baselines,
    prefix_losses,
)
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.config import effort, make_functions
from launch.icl.models import TEST, VALIDATION, Job, add_rows, each, has_rows, random_key, trained_in
from launch.icl.training import load_trained, train_and_save

_batch = 64  # prompts per step, as Garg et al. have it
_test_prompts = 1280
_evaluations = 20
_roomy = ("orthogonal query", "half subspace")  # shifts that need two dimensions


def function_classes(job: Job) -> None:
    """A transformer for each class, and baselines; linear functions also on shifted prompts."""
    for kind in job.config.functions:
        _of_kind(job, kind)


def _of_kind(job: Job, kind: Kind) -> None:
    config, law = job.config, make_functions(job.config, kind)
    shifts = [shift for shift in (SHIFTS if kind == "linear" else SHIFTS[:1]) if law.dim > 1 or shift not in _roomy]
    left = [shift for shift in shifts if not has_rows(job, "function-classes", task=kind, shift=shift)]
    if not left:
        return
    width, layers, heads = config.transformer
    model = CausalTransformer(width, layers, heads, jnp.zeros(()).dtype)
    problem = Prompts(law, model.apply)  # pyright: ignore[reportArgumentType]
    steps, seeds = effort(config, "function-classes")
    numbers = list(range(config.seed, config.seed + seeds))
    name = f"functions_{kind}"

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> Any:
        X = jnp.zeros((1, law.points, law.dim))
        return model.init(jax.random.fold_in(key, 0), X, X[:, :, 0])

    start = draw(jnp.stack([jax.random.key(seed) for seed in numbers]))
    if (params := load_trained(job.folder, name, jax.tree.structure(start))) is None:
        validation = problem.sample(random_key(job, VALIDATION), min(config.validation_tasks, _test_prompts))
        loss = jax.jit(lambda one: problem.loss(one, validation))

        def evaluate(params: Any) -> Mapping[str, Any]:
            return {"loss": [float(loss(one)) for one in each(params)]}

        recipe = Recipe(min(_batch, config.batch_size), config.learning_rate, b2=0.999, gradient_clip=1.0, block=None)
        every = max(1, steps // _evaluations)
        more = {"steps": steps, "seeds": numbers, "evaluate": evaluate, "every": every, "devices": config.devices}
        params = train_and_save(job.folder, name, start, problem, recipe, **more)
    predictors = _predictors(law.kind, model, each(params), numbers)
    with stage(f"testing {kind} functions"):
        for shift in left:
            # a query that is orthogonal to all others comes after d - 1 of them
            fits = replace(law, points=law.dim) if shift == "orthogonal query" else law
            _measure(job, fits, shift, predictors, law.points)


Predictors = dict[tuple[str, int | None], Callable[[Prompt], jax.Array]]


def _predictors(kind: Kind, model: CausalTransformer, params: list[Any], seeds: list[int]) -> Predictors:
    """The answers [prompts, T] of all baselines and of every seed's transformer, each compiled once."""
    named: Predictors = {
        (name, None): jax.jit(jax.vmap(functools.partial(at_every_prefix, predictor)))
        for name, predictor in baselines(kind).items()
    }
    answers = jax.jit(model.apply)
    for seed, one in zip(seeds, params, strict=True):
        named["trained", seed] = lambda prompts, one=one: answers(one, prompts.X, prompts.y)
    return named


def _measure(job: Job, law: FunctionClass, shift: Shift, predictors: Predictors, points: int) -> None:
    """Losses at every prefix of test prompts, divided by E[f²], as an event, and rows at some.

    Prompts are filled up to the points that the transformer has positions for; what is filled in comes after all answers.
    """
    number, T = min(job.config.test_tasks, _test_prompts), law.points
    prompts = jax.vmap(lambda key: law.sample(key, shift))(jax.random.split(random_key(job, TEST), number))
    filled = Prompt(*(jnp.pad(leaf, ((0, 0), (0, points - T), *[(0, 0)] * (leaf.ndim - 2))) for leaf in prompts))
    run, rows = trained_in(job, f"functions_{law.kind}"), []
    for (name, seed), answers in predictors.items():
        losses = np.asarray(prefix_losses(answers(filled)[:, :T], prompts.y))
        told = (losses / law.power).tolist()
        job.folder.log(event="prefixes", task=law.kind, shift=shift, predictor=name, seed=seed, losses=told)
        _, layers, heads = job.config.transformer
        trained = {"layers": layers, "heads": heads, **run, "start": "cold"}
        more: dict[str, Any] = trained if name == "trained" else {"layers": 0}
        about = {"experiment": "function-classes", "task": law.kind, "shift": shift, "predictor": name, "seed": seed}
        sizes = {"recurrent": False, "dim": law.dim, "context": T - 1, "test_tasks": number}
        for t in sorted({0, law.dim // 2, min(law.dim, T - 1), T - 1}):
            rows.append({**about, **sizes, **more, "prefix": t, "loss": float(losses[t]), "loss_by_power": told[t]})
    add_rows(job, rows)

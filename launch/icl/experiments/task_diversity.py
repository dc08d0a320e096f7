"""The experiment of launch.icl on task diversity: layers for few and for many tasks, solved and trained, and Bayes optima."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from icl.models.attention import AttentionLayer, init_layers
from icl.models.batched import Regression, predict_batch
from icl.models.constructions import head_layer, head_tensor
from icl.problems.task_diversity import (
    DiversityCurve,
    FiniteTasks,
    crossing,
    discrete_mmse,
    diversity_curve,
    diversity_threshold,
)
from icl.solvers.descent import ridge
from icl.solvers.single_layer import gaussian_tasks, heads_loss, token_moments
from icl.tasks import Sequence, Tasks, half_mse, sequences
from jexplicit.runs.progress import stage
from launch.icl.config import effort
from launch.icl.job import TEST, Job, add_rows, has_rows, random_key
from launch.icl.recipes import init_scale, make_recipe
from launch.icl.training import split_seeds, train_or_load, training_rows, validation_loss

_noise = 0.5  # standard deviation, of Raventós et al.
_test_tasks, _at_once = 20_000, 250  # sequences of the Bayes-optimal predictors, which have no exact losses
_draws = 8  # of tasks, over which the excess loss is averaged
_tolerance = 0.05


def task_diversity(job: Job) -> None:
    """The best layer and the Bayes optimum by number of tasks, trained layers at some, and thresholds by dimension."""
    config = job.config
    tasks = _make_tasks(config.dim, config.context)
    numbers = sorted({*config.pretraining_tasks, *config.diversity_points})
    W = FiniteTasks(tasks, max(numbers), config.seed).weights()
    if not has_rows(job, "task-diversity", predictor="dmmse"):
        start = time.perf_counter()
        curve = diversity_curve(tasks, W, numbers)
        job.folder.log(event="solved", model="diversity", numbers=numbers, seconds=time.perf_counter() - start)
        add_rows(job, [*_solved_rows(numbers, curve), *_bayes_rows(job, tasks, W, numbers, curve)], **_about(tasks))
    for M in config.diversity_points:
        for heads in (1, config.dim + 1):
            if not has_rows(job, "task-diversity", predictor="trained", training_tasks=M, heads=heads):
                add_rows(job, _trained_rows(job, FiniteTasks(tasks, M, config.seed), W[:M], heads), **_about(tasks))
    known = {event["dim"] for event in job.folder.events("threshold")}
    for d in dict.fromkeys((config.dim, *config.dims)):
        if d not in known:
            _log_threshold(job, _make_tasks(d, config.context if d == config.dim else d))


def _make_tasks(d: int, N: int) -> Tasks:
    """x ~ N(0, I), w ~ N(0, I), and noise."""
    return Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, noise=_noise)


def _about(tasks: Tasks) -> dict[str, Any]:
    about = {"experiment": "task-diversity", "task": "finite tasks", "layers": 1, "recurrent": True}
    return about | {"dim": tasks.dim, "context": tasks.context}


def _solved_rows(numbers: list[int], curve: DiversityCurve) -> list[dict[str, Any]]:
    """Exact losses of the layers without training; without a number of tasks, for all of them."""
    rows: list[dict[str, Any]] = [{"predictor": "closed_form", "loss": float(curve.limit), "training_tasks": None}]
    for name, heads, losses in (
        ("closed_form", 1, curve.descent),
        ("solved", 1, curve.one_head),
        ("solved", curve.heads.A.shape[1], curve.all_heads),
    ):
        for n, M in enumerate(numbers):
            found = {"loss": float(losses.fresh[n]), "train_loss": float(losses.pretraining[n])}
            rows.append({"predictor": name, "heads": heads, "training_tasks": M, **found})
    return rows


def _bayes_rows(job: Job, tasks: Tasks, W: jax.Array, numbers: list[int], curve: DiversityCurve) -> list[dict[str, Any]]:
    """The Bayes optima for the M tasks and for all of them, on both, and how far the best head is from each on fresh tasks."""
    number = min(job.config.test_tasks, _test_tasks)
    key = random_key(job.config, TEST)
    fresh = tasks.sample(key, number)
    rows = []
    with stage("Bayes-optimal predictions", "numbers of tasks") as progress:
        for n, M in enumerate(numbers):
            own = FiniteTasks(tasks, M, job.config.seed).sample(key, number)
            on_own, on_fresh = (_bayes_predictions(batch, W[:M], tasks.noise**2) for batch in (own, fresh))
            p, A = (jnp.asarray(leaf[n], fresh.X.dtype) for leaf in curve.heads)
            layer = predict_batch(head_layer(p, A, tasks.context), fresh)
            for name in on_fresh:
                losses = {"loss": half_mse(on_fresh[name], fresh.y_q), "train_loss": half_mse(on_own[name], own.y_q)}
                losses |= {"distance_to_solved": half_mse(layer, on_fresh[name])}  # as a loss, on fresh tasks
                losses = {what: float(value) for what, value in losses.items()}
                rows.append({"predictor": name, "training_tasks": M, "test_tasks": number, **losses})
            progress(n + 1, len(numbers))
    return rows


@jax.jit
def _bayes_predictions(batch: Sequence, W: jax.Array, v: Any) -> dict[str, jax.Array]:
    def one(sequence: Sequence) -> dict[str, jax.Array]:
        return {"dmmse": discrete_mmse(sequence, W, v), "ridge": ridge(sequence, v)}

    return jax.tree.map(jnp.transpose, lax.map(one, sequences(batch), batch_size=_at_once))


def _trained_rows(job: Job, few: FiniteTasks, W: jax.Array, heads: int) -> list[dict[str, Any]]:
    """Layers trained on M tasks, and their exact losses."""
    config, name, runs = job.config, f"diversity_{few.number}_{heads}_heads", effort(job.config, "task-diversity")
    problem = Regression(few)

    def init(key: jax.Array) -> AttentionLayer:
        return init_layers(key, config.dim + 1, heads=heads, scale=init_scale(config, 1, config.dim + 1))

    evaluation = validation_loss(job, problem, config.validation_tasks)
    params = train_or_load(job, name, init, problem, make_recipe(config, 1), evaluation, effort=runs)
    rows = []
    for entry, layer in zip(training_rows(job, name), split_seeds(params), strict=True):
        loss, train_loss = _exact_losses(layer, few.tasks, W)
        rows.append({"predictor": "trained", "start": "cold", "heads": heads, "training_tasks": few.number, **entry})
        rows[-1] |= {"loss": loss, "train_loss": train_loss}
    return rows


def _exact_losses(layer: AttentionLayer, tasks: Tasks, W: jax.Array) -> tuple[float, float]:
    """Of a layer with any weights: on fresh tasks, and on M tasks."""
    with jax.enable_x64(True):
        layer = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), layer)
        H, of_each = head_tensor(layer, tasks.context), jnp.asarray(np.asarray(W, np.float64))
        every = token_moments(tasks, *gaussian_tasks(tasks))
        return float(heads_loss(H, every)), float(heads_loss(H, token_moments(tasks, of_each)))


def _log_threshold(job: Job, tasks: Tasks) -> None:
    """The excess losses on fresh tasks, mean over draws of the tasks, and the numbers where they come within the tolerance."""
    numbers = sorted(set(job.config.pretraining_tasks))
    curves = []
    with stage(f"threshold, d = {tasks.dim}", "draws") as progress:
        for draw in range(_draws):
            W = FiniteTasks(tasks, max(numbers), job.config.seed + draw).weights()
            curves.append(diversity_curve(tasks, W, numbers))
            progress(draw + 1, _draws)
    fresh = {name: np.mean([getattr(c, name).fresh for c in curves], axis=0) for name in ("descent", "one_head", "all_heads")}
    excess = {name: losses / curves[0].limit - 1 for name, losses in fresh.items()}
    thresholds = {name: crossing(numbers, losses, _tolerance) for name, losses in excess.items()}
    thresholds["limit"] = diversity_threshold(tasks, tolerance=_tolerance)
    about = {"dim": tasks.dim, "context": tasks.context, "tolerance": _tolerance, "draws": _draws, "numbers": numbers}
    curves_of = {name: losses.tolist() for name, losses in excess.items()}
    job.folder.log(event="threshold", **about, thresholds=thresholds, excess=curves_of)

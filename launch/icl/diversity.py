"""Few and many pretraining tasks, unequal inputs and noisy labels."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl import closed_form
from icl.attention import Regression, descent_layers, gradient_descent, init_layers, ridge
from icl.closed_form import FiniteTasks, diversity_curve, exact_moments, optimal_solution, solution_loss
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from jexplicit.runs.progress import stage
from launch.icl import training
from launch.icl.config import NoisyConfig, TaskDiversityConfig
from launch.icl.rates import COLOURS, LOSS, TEST, Job, experiment, random_key
from launch.icl.training import measures
from launch.kit.views import Column, Lines, Results, Row, Table, melt, where

# A layer after few and many pretraining tasks (Raventós et al. 2023).

_noise = 0.5  # standard deviation, of Raventós et al.
_draws = 8  # of tasks, over which the excess loss is averaged
_tolerance = 0.05


def task_diversity(
    job: Job[TaskDiversityConfig], start: None = None, predictor: str = "", training_tasks: int = 0, heads: int = 1
) -> Iterator[Row]:
    """Untrained rows and the `threshold` events, or layers trained on some tasks."""
    config, tasks = job.config, make_tasks(job.config.dim, job.config.context)
    if predictor == "trained":
        yield from _trained_rows(job, FiniteTasks(tasks, training_tasks, config.seed), heads)
        return
    yield from untrained(config, tasks)
    for d in dict.fromkeys((config.dim, *config.dims)):
        job.folder.log(event="threshold", **threshold(config, make_tasks(d, config.context if d == config.dim else d)))


def diversity_keys(config: TaskDiversityConfig) -> list[dict[str, Any]]:
    """A part without training, and one for each number of tasks and heads."""
    pairs = itertools.product(config.diversity_points, (1, config.dim + 1))
    return [{"start": None}, *({"predictor": "trained", "training_tasks": M, "heads": heads} for M, heads in pairs)]


def make_tasks(d: int, N: int) -> Tasks:
    """x ~ N(0, I), w ~ N(0, I), and noise."""
    return Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, noise=_noise)


def _row(tasks: Tasks, predictor: str, M: int | None, **more: Any) -> Row:
    about = {"task": "finite tasks", "layers": 1, "recurrent": True, "dim": tasks.dim, "context": tasks.context}
    return about | {"predictor": predictor, "training_tasks": M} | more


def untrained(config: TaskDiversityConfig, tasks: Tasks) -> Iterator[Row]:
    """Exact losses of the best layers, and the Bayes optima.

    A row without a number of tasks is of the best layer for all of them.
    """
    numbers = sorted({*config.pretraining_tasks, *config.diversity_points})
    W = FiniteTasks(tasks, max(numbers), config.seed).weights()
    curve = diversity_curve(tasks, W, numbers)
    yield _row(tasks, "closed_form", None, loss=float(curve.limit))
    solved = ("closed_form", 1, curve.descent), ("solved", 1, curve.one_head), ("solved", tasks.dim + 1, curve.all_heads)
    for name, heads, losses in solved:
        for M, loss, train_loss in zip(numbers, losses.fresh, losses.pretraining, strict=True):
            yield _row(tasks, name, M, heads=heads, loss=float(loss), train_loss=float(train_loss))
    size, key = config.test_tasks, random_key(config, TEST)
    fresh = tasks.sample(key, size)
    with stage("Bayes-optimal predictions", "numbers of tasks") as progress:
        for n, M in enumerate(numbers):
            own = FiniteTasks(tasks, M, config.seed).sample(key, size)
            on_own, on_fresh = (closed_form.bayes_predictions(batch, W[:M], tasks.noise**2) for batch in (own, fresh))
            for name, y in on_fresh.items():
                losses = {"loss": half_mse(y, fresh.y_q), "train_loss": half_mse(on_own[name], own.y_q)}
                yield _row(tasks, name, M, test_tasks=size, **{what: float(value) for what, value in losses.items()})
            progress(n + 1, len(numbers))


def _trained_rows(job: Job[TaskDiversityConfig], few: FiniteTasks, heads: int) -> Iterator[Row]:
    """Layers trained on M tasks, and their exact losses."""
    config, name, problem = job.config, f"diversity_{few.number}_{heads}_heads", Regression(few)
    init = partial(init_layers, width=config.dim + 1, heads=heads, scale=training.INIT_SCALE)
    evaluation = training.validation_loss(config, problem)
    for layer, entry in training.train(job, name, init, problem, training.make_recipe(config), evaluation):
        loss, train_loss = closed_form.layer_losses(layer, few)
        yield _row(few.tasks, "trained", few.number, start="cold", loss=loss, train_loss=train_loss, **entry)


def threshold(config: TaskDiversityConfig, tasks: Tasks) -> Row:
    """Mean excess losses on fresh tasks, and numbers of tasks within tolerance."""
    numbers, curves = sorted(set(config.pretraining_tasks)), []
    with stage(f"threshold, d = {tasks.dim}", "draws") as progress:
        for draw in range(_draws):
            curves.append(diversity_curve(tasks, FiniteTasks(tasks, max(numbers), config.seed + draw).weights(), numbers))
            progress(draw + 1, _draws)
    fresh = {name: np.mean([getattr(c, name).fresh for c in curves], axis=0) for name in ("descent", "one_head", "all_heads")}
    limit = curves[0].limit
    found = {name: closed_form.crossing(numbers, losses / limit - 1, _tolerance) for name, losses in fresh.items()}
    found["limit"] = closed_form.diversity_threshold(tasks, tolerance=_tolerance)
    return {"dim": tasks.dim, "context": tasks.context, "thresholds": found}


_series_of = {"closed_form": "closed form without XᵀX and yᵀy", "dmmse": "dMMSE", "ridge": "ridge"}
_on = {"train_loss": "the M tasks", "loss": "fresh tasks"}


def _series(row: Row) -> str:
    """The predictor, and its heads where these matter."""
    return _series_of.get(row["predictor"]) or f"{'one head' if row['heads'] == 1 else 'all heads'}, {row['predictor']}"


def _curves(results: Results) -> list[Row]:
    """All losses but those far above the Bayes optimum's."""
    highest = 1.5 * max(row["loss"] for row in where(results.rows, predictor="dmmse"))
    return melt([row for row in results.rows if row["loss"] <= highest], _on)


_limits = {"limit": "limit of large d", "descent": "descent", "one_head": "one head", "all_heads": "all heads"}
THRESHOLDS = Table(
    [Column("d", "dim"), Column("N", "context"), *(Column(label, name, ".0f") for name, label in _limits.items())],
    lambda results: sorted(({**e, **e["thresholds"]} for e in results.events("threshold", "dim")), key=lambda e: e["dim"]),
    note="The M from which on the loss on fresh tasks is within 5 % of that for all tasks, in the mean over draws of tasks: "
    "proportional to d in Raventós et al. 2023.",
)
_series_styles = {  # trained layers as points, of the solved ones' colours
    f"{heads}, {name}": {"color": COLOURS[colour], **style}
    for heads, colour in (("one head", "trained"), ("all heads", "gd++"))
    for name, style in (("solved", {}), ("trained", {"linestyle": "", "marker": "o", "markersize": 5}))
}
_series_styles |= {name: {"color": COLOURS[c], "linestyle": "--"} for name, c in (("dMMSE", "warm"), ("ridge", "ridge"))}
_axes = {"xscale": "log", "xlabel": "pretraining tasks M", "ylabel": LOSS}
_lines = Lines("task_diversity", "training_tasks", "value", _series, "measure", _curves, _series_styles, _axes, legend="right")
DIVERSITY_VIEWS = [THRESHOLDS, _lines._replace(by_panel={"fresh tasks": {"yscale": "log"}})]
TASK_DIVERSITY = experiment("task-diversity", task_diversity, DIVERSITY_VIEWS, title="Task diversity", keys=diversity_keys)


# Regression with unequal inputs and noisy labels.

_label_noise = 1.0  # standard deviation; that of the labels is about sqrt(d)


def noisy(job: Job[NoisyConfig]) -> Iterator[Row]:
    """x ~ N(0, Λ), noisy labels: one layer, and preconditioned descent."""
    config, d, N = job.config, job.config.dim, job.config.context
    scales = tuple(float(k**-0.5) for k in range(1, d + 1))
    tasks = Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, scales=scales, noise=_label_noise)
    moments, eye = exact_moments(tasks), jnp.eye(d)
    G = optimal_solution(moments)
    # the loss is a parabola of η
    below, at, above = (float(solution_loss(eta * eye, moments)) for eta in (-1.0, 0.0, 1.0))
    eta = (below - above) / (2 * (above + below - 2 * at))
    exact = {"gd": float(solution_loss(eta * eye, moments)), "closed_form": float(solution_loss(G, moments))}
    problem, init = Regression(tasks), partial(init_layers, width=d + 1, scale=training.INIT_SCALE)
    evaluation = training.validation_loss(config, problem)
    trained = training.train(job, "anisotropic", init, problem, training.make_recipe(config), evaluation)
    constructed = descent_layers(d, N, 1.0, preconditioner=G.T)
    predictors: list[tuple[Row, Callable[[Sequence], Any]]] = [
        ({"predictor": "zero"}, lambda b: jnp.zeros_like(b.y_q)),
        ({"predictor": "gd", "eta": eta}, vmap_tasks(lambda s: gradient_descent(s, eta)[-1])),
        ({"predictor": "closed_form"}, vmap_tasks(lambda s: gradient_descent(s, 1.0, preconditioner=G.T)[-1])),
        ({"predictor": "constructed"}, partial(problem.predict, constructed)),
        ({"predictor": "ridge"}, vmap_tasks(lambda s: ridge(s, _label_noise**2))),
        *(({"predictor": "trained", **e, "start": "cold"}, partial(problem.predict, one)) for one, e in trained),
    ]
    batch = sample_tasks(random_key(config, TEST), tasks, config.test_tasks)
    about = {"task": "anisotropic, noisy", "reference": "closed_form", "layers": 1, "recurrent": True}
    about |= {"dim": d, "context": N, "test_tasks": config.test_tasks}
    with stage("testing other covariances"):
        found = [training.predictions_of(lambda _, b, predict=predict: predict(b), None, batch) for _, predict in predictors]
    for ours, (entry, _) in zip(found, predictors, strict=True):
        compared = jax.tree.map(float, training.compare(ours, found[2]))
        yield {**about, **compared, "population_loss": exact.get(entry["predictor"]), **entry}


_noise_note = "The best single layer is preconditioned descent (Ahn et al. 2023)."
NOISY = experiment("noisy", noisy, [measures(note=_noise_note)], title="Noise")

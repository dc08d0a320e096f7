"""A layer after few and many pretraining tasks (Raventós et al. 2023)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from icl.models.attention import Regression, init_layers, predict_batch
from icl.models.constructions import head_layer
from icl.problems import task_diversity as diversity
from icl.problems.task_diversity import FiniteTasks, diversity_curve
from icl.tasks import Tasks, half_mse
from jexplicit.runs.progress import stage
from launch.icl import base
from launch.icl.config import TaskDiversityConfig
from launch.icl.tables import COLOURS, LOSS
from launch.kit.views import Column, Lines, Results, Row, Table, melt, where

_noise = 0.5  # standard deviation, of Raventós et al.
_draws = 8  # of tasks, over which the excess loss is averaged
_tolerance = 0.05
_copies = 64  # bytes for each entry of the fourth moments of tokens: eight arrays in float64


def check(config: TaskDiversityConfig) -> None:
    """Refuse more inputs than fit."""
    flags = f"--dim {config.dim} --dims {' '.join(map(str, config.dims))}"
    needed = _copies * (max(config.dim, *config.dims) + 1) ** 4
    base.check_memory(needed, f"{flags}: task-diversity takes", "use fewer inputs")


def measure(job: base.Job[TaskDiversityConfig]) -> Iterator[base.Part]:
    """Untrained rows by numbers of tasks and heads, and the `threshold` events."""
    config, tasks = job.config, make_tasks(job.config.dim, job.config.context)
    yield {"start": None}, partial(untrained, config, tasks)
    for M in config.diversity_points:
        for heads in (1, config.dim + 1):
            few = FiniteTasks(tasks, M, config.seed)
            yield {"predictor": "trained", "training_tasks": M, "heads": heads}, partial(trained_rows, job, few, heads)
    known = {event["dim"] for event in job.folder.events("threshold")}
    for d in dict.fromkeys((config.dim, *config.dims)):
        if d not in known:
            job.folder.log(event="threshold", **threshold(config, make_tasks(d, config.context if d == config.dim else d)))


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
    size, key = config.test_tasks, base.random_key(config, base.TEST)
    fresh = tasks.sample(key, size)
    with stage("Bayes-optimal predictions", "numbers of tasks") as progress:
        for n, M in enumerate(numbers):
            own = FiniteTasks(tasks, M, config.seed).sample(key, size)
            on_own, on_fresh = (diversity.bayes_predictions(batch, W[:M], tasks.noise**2) for batch in (own, fresh))
            p, A = (jnp.asarray(leaf[n], fresh.X.dtype) for leaf in curve.heads)
            layer = predict_batch(head_layer(p, A, tasks.context), fresh)
            for name, y in on_fresh.items():
                losses = {"loss": half_mse(y, fresh.y_q), "train_loss": half_mse(on_own[name], own.y_q)}
                losses["distance_to_solved"] = half_mse(layer, y)  # as a loss, on fresh tasks
                yield _row(tasks, name, M, test_tasks=size, **{what: float(value) for what, value in losses.items()})
            progress(n + 1, len(numbers))


def trained_rows(job: base.Job[TaskDiversityConfig], few: FiniteTasks, heads: int) -> Iterator[Row]:
    """Layers trained on M tasks, and their exact losses."""
    config, name, problem = job.config, f"diversity_{few.number}_{heads}_heads", Regression(few)
    init = partial(init_layers, width=config.dim + 1, heads=heads, scale=base.INIT_SCALE)
    evaluation = base.validation_loss(config, problem)
    for layer, entry in base.train_or_load(job, name, init, problem, base.make_recipe(config), evaluation):
        loss, train_loss = diversity.layer_losses(layer, few)
        yield _row(few.tasks, "trained", few.number, start="cold", loss=loss, train_loss=train_loss, **entry)


def threshold(config: TaskDiversityConfig, tasks: Tasks) -> Row:
    """Mean excess losses on fresh tasks, and numbers of tasks within tolerance."""
    numbers, curves = sorted(set(config.pretraining_tasks)), []
    with stage(f"threshold, d = {tasks.dim}", "draws") as progress:
        for draw in range(_draws):
            curves.append(diversity_curve(tasks, FiniteTasks(tasks, max(numbers), config.seed + draw).weights(), numbers))
            progress(draw + 1, _draws)
    fresh = {name: np.mean([getattr(c, name).fresh for c in curves], axis=0) for name in ("descent", "one_head", "all_heads")}
    excess = {name: losses / curves[0].limit - 1 for name, losses in fresh.items()}
    found = {name: diversity.crossing(numbers, losses, _tolerance) for name, losses in excess.items()}
    found["limit"] = diversity.diversity_threshold(tasks, tolerance=_tolerance)
    about = {"dim": tasks.dim, "context": tasks.context, "tolerance": _tolerance, "draws": _draws, "numbers": numbers}
    return {**about, "excess": {name: losses.tolist() for name, losses in excess.items()}, "thresholds": found}


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
_solved: Any = {"one head, solved": {"color": COLOURS["trained"]}, "all heads, solved": {"color": COLOURS["gd++"]}}
_points = {"linestyle": "", "marker": "o", "markersize": 5}
STYLES = {
    **_solved,
    **{name.replace("solved", "trained"): {**style, **_points} for name, style in _solved.items()},
    **{name: {"color": COLOURS[colour], "linestyle": "--"} for name, colour in (("dMMSE", "warm"), ("ridge", "ridge"))},
    _series_of["closed_form"]: {"color": COLOURS["closed_form"], "linestyle": ":"},
}
AXES = {"xscale": "log", "xlabel": "pretraining tasks M", "ylabel": LOSS}
_lines = Lines("task_diversity", "training_tasks", "value", _series, "measure", _curves, STYLES, AXES, legend="right")
VIEWS = [THRESHOLDS, _lines._replace(by_panel={"fresh tasks": {"yscale": "log"}})]
EXPERIMENT = base.experiment("task-diversity", measure, VIEWS, title="Task diversity", check=check)

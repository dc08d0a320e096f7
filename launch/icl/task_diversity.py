"""What a layer becomes from few and from many pretraining tasks (Raventós et al. 2023; for linear attention Lu et al. 2024)."""

import functools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from icl.models.attention import init_layers
from icl.models.batched import Regression, predict_batch
from icl.models.constructions import head_layer, head_tensor
from icl.problems.task_diversity import FiniteTasks, crossing, discrete_mmse, diversity_curve, diversity_threshold
from icl.solvers.descent import ridge
from icl.solvers.single_layer import gaussian_tasks, heads_loss, token_moments
from icl.tasks import Sequence, Tasks, half_mse, sequences
from jexplicit.runs.progress import stage
from launch.icl.shared.base import (
    COLOURS,
    LOSS,
    TEST,
    Job,
    check_memory,
    effort,
    init_scale,
    make_recipe,
    one_legend,
    random_key,
    train_or_load,
    validation_loss,
)
from launch.icl.shared.config import Config
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, cell, melt, pivot, where
from launch.kit.tables import Column
from launch.kit.views import Lines, Table

_noise = 0.5  # standard deviation, of Raventós et al.
_test_tasks, _at_once = 20_000, 250  # sequences of the Bayes-optimal predictors, which have no exact losses
_draws = 8  # of tasks, over which the excess loss is averaged
_tolerance = 0.05
_copies = 64  # bytes for each entry of the fourth moments of tokens: eight arrays in float64


def check(config: Config) -> None:
    """Refuse more inputs than fit."""
    flags = f"--dim {config.dim} --dims {' '.join(map(str, config.dims))}"
    needed = _copies * (max(config.dim, *config.dims) + 1) ** 4
    check_memory(needed, f"{flags}: task-diversity takes", "use fewer inputs")


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """Few or many pretraining tasks."""
    tasks = _make_tasks(config.dim, config.context)
    yield {"start": None}, functools.partial(_untrained, config, folder, tasks)
    for M in config.diversity_points:
        for heads in (1, config.dim + 1):
            few = FiniteTasks(tasks, M, config.seed)
            key = {"predictor": "trained", "training_tasks": M, "heads": heads}
            yield key, functools.partial(_trained, config, folder, few, heads)
    known = {event["dim"] for event in folder.events("threshold")}
    for d in dict.fromkeys((config.dim, *config.dims)):
        if d not in known:
            _log_threshold(config, folder, _make_tasks(d, config.context if d == config.dim else d))


def _make_tasks(d: int, N: int) -> Tasks:
    """x ~ N(0, I), w ~ N(0, I), and noise."""
    return Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, noise=_noise)


def _row(tasks: Tasks, predictor: str, M: int | None, **more: Any) -> Row:
    about = {"task": "finite tasks", "layers": 1, "recurrent": True, "dim": tasks.dim, "context": tasks.context}
    return about | {"predictor": predictor, "training_tasks": M} | more


def _untrained(config: Config, folder: RunFolder, tasks: Tasks) -> list[Row]:
    """Exact losses of the best layers, and the Bayes optima for the M tasks and for all of them, on both.

    A row without a number of tasks is of the best layer for all of them.
    """
    numbers, start = sorted({*config.pretraining_tasks, *config.diversity_points}), time.perf_counter()
    W = FiniteTasks(tasks, max(numbers), config.seed).weights()
    curve = diversity_curve(tasks, W, numbers)
    folder.log(event="solved", model="diversity", numbers=numbers, seconds=time.perf_counter() - start)
    rows = [_row(tasks, "closed_form", None, loss=float(curve.limit))]
    solved = ("closed_form", 1, curve.descent), ("solved", 1, curve.one_head), ("solved", tasks.dim + 1, curve.all_heads)
    for name, heads, losses in solved:
        for M, loss, train_loss in zip(numbers, losses.fresh, losses.pretraining, strict=True):
            rows.append(_row(tasks, name, M, heads=heads, loss=float(loss), train_loss=float(train_loss)))
    size, key = min(config.test_tasks, _test_tasks), random_key(config, TEST)
    fresh = tasks.sample(key, size)
    with stage("Bayes-optimal predictions", "numbers of tasks") as progress:
        for n, M in enumerate(numbers):
            own = FiniteTasks(tasks, M, config.seed).sample(key, size)
            on_own, on_fresh = (_bayes_predictions(batch, W[:M], tasks.noise**2) for batch in (own, fresh))
            p, A = (jnp.asarray(leaf[n], fresh.X.dtype) for leaf in curve.heads)
            layer = predict_batch(head_layer(p, A, tasks.context), fresh)
            for name, y in on_fresh.items():
                losses = {"loss": half_mse(y, fresh.y_q), "train_loss": half_mse(on_own[name], own.y_q)}
                losses["distance_to_solved"] = half_mse(layer, y)  # as a loss, on fresh tasks
                rows.append(_row(tasks, name, M, test_tasks=size, **{what: float(value) for what, value in losses.items()}))
            progress(n + 1, len(numbers))
    return rows


@jax.jit
def _bayes_predictions(batch: Sequence, W: jax.Array, v: Any) -> dict[str, jax.Array]:
    def one(sequence: Sequence) -> dict[str, jax.Array]:
        return {"dmmse": discrete_mmse(sequence, W, v), "ridge": ridge(sequence, v)}

    return jax.tree.map(jnp.transpose, lax.map(one, sequences(batch), batch_size=_at_once))


def _trained(config: Config, folder: RunFolder, few: FiniteTasks, heads: int) -> list[Row]:
    """Layers trained on M tasks, and their exact losses on fresh tasks and on these."""
    name, width, problem = f"diversity_{few.number}_{heads}_heads", config.dim + 1, Regression(few)
    init = functools.partial(init_layers, width=width, heads=heads, scale=init_scale(config, 1, width))
    evaluation, runs = validation_loss(config, problem, config.validation_tasks), effort(config, 2000, 1)
    trained = train_or_load(Job(config, folder), name, init, problem, make_recipe(config, 1), evaluation, runs)
    W, rows = np.asarray(few.weights(), np.float64), []
    for layer, entry in trained:
        with jax.enable_x64(True):
            H = head_tensor(jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), layer), config.context)
            moments = token_moments(few.tasks, *gaussian_tasks(few.tasks)), token_moments(few.tasks, jnp.asarray(W))
            loss, train_loss = (float(heads_loss(H, of)) for of in moments)
        more = {"start": "cold", "loss": loss, "train_loss": train_loss, **entry}
        rows.append(_row(few.tasks, "trained", few.number, **more))
    return rows


def _log_threshold(config: Config, folder: RunFolder, tasks: Tasks) -> None:
    """The excess losses on fresh tasks, mean over draws of the tasks, and the numbers where they come within the tolerance."""
    numbers, curves = sorted(set(config.pretraining_tasks)), []
    with stage(f"threshold, d = {tasks.dim}", "draws") as progress:
        for draw in range(_draws):
            curves.append(diversity_curve(tasks, FiniteTasks(tasks, max(numbers), config.seed + draw).weights(), numbers))
            progress(draw + 1, _draws)
    fresh = {name: np.mean([getattr(c, name).fresh for c in curves], axis=0) for name in ("descent", "one_head", "all_heads")}
    excess = {name: losses / curves[0].limit - 1 for name, losses in fresh.items()}
    thresholds = {name: crossing(numbers, losses, _tolerance) for name, losses in excess.items()}
    thresholds["limit"] = diversity_threshold(tasks, tolerance=_tolerance)
    about = {"dim": tasks.dim, "context": tasks.context, "tolerance": _tolerance, "draws": _draws, "numbers": numbers}
    about["excess"] = {name: losses.tolist() for name, losses in excess.items()}
    folder.log(event="threshold", thresholds=thresholds, **about)


_series_of = {"closed_form": "closed form without XᵀX and yᵀy", "dmmse": "dMMSE", "ridge": "ridge"}
_on = {"train_loss": "the M tasks", "loss": "fresh tasks"}


def _series(row: Row) -> str:
    """The predictor, and its heads where these matter."""
    heads = "one head" if row["heads"] == 1 else "all heads"
    return _series_of.get(row["predictor"]) or f"{heads}, {row['predictor']}"


def _by_number(results: Results) -> list[Row]:
    """For each M that layers are trained on, losses on these tasks, then on fresh ones; then for all tasks."""
    numbers = {row["training_tasks"] for row in where(results.rows, predictor="trained")} | {None}
    rows = [{"M": row.get("training_tasks") or "∞", **row} for row in results.rows if row.get("training_tasks") in numbers]
    return pivot(melt(sorted(rows, key=lambda row: row.get("training_tasks") or np.inf), _on), ["measure", "M"], _series)


def _columns(lines: list[Row]) -> list[Column]:
    names = dict.fromkeys(name for line in lines for name in line if name not in ("measure", "M"))
    return [Column("on", "measure"), Column("M", "M"), *(Column(name, cell(name, "value"), ".3f") for name in names)]


def _thresholds(results: Results) -> list[Row]:
    events = sorted(results.events("threshold", "dim"), key=lambda event: event["dim"])
    return [{**event, **event["thresholds"]} for event in events]


def _curves(results: Results) -> list[Row]:
    """All losses but those far above the Bayes optimum's, such as that of all heads for one task."""
    highest = 1.5 * max(row["loss"] for row in where(results.rows, predictor="dmmse"))
    return melt([row for row in results.rows if row["loss"] <= highest], _on)


_exact = "Losses of layers are exact; M = ∞: all tasks, for which all solved layers are the closed form."
LOSSES = Table(_columns, _by_number, note=_exact)
_limits = {"limit": "limit of large d", "descent": "descent", "one_head": "one head", "all_heads": "all heads"}
THRESHOLDS = Table(
    [Column("d", "dim"), Column("N", "context"), *(Column(label, name, ".0f") for name, label in _limits.items())],
    _thresholds,
    note="The M from which on the loss on fresh tasks is within 5 % of that for all tasks, in the mean over draws of tasks: "
    "proportional to d in Raventós et al. 2023.",
)
_points = {"linestyle": "", "marker": "o", "markersize": 5}
_solved: Any = {"one head, solved": {"color": COLOURS["trained"]}, "all heads, solved": {"color": COLOURS["gd++"]}}
STYLES = {
    **_solved,
    **{name.replace("solved", "trained"): {**style, **_points} for name, style in _solved.items()},
    "dMMSE": {"color": COLOURS["warm"], "linestyle": "--"},
    "ridge": {"color": COLOURS["ridge"], "linestyle": "--"},
    _series_of["closed_form"]: {"color": COLOURS["closed_form"], "linestyle": ":"},
}
_lines = Lines("task_diversity", "training_tasks", "value", _series, "measure", _curves, STYLES, finish=one_legend)
AXES = {"xscale": "log", "xlabel": "pretraining tasks M", "ylabel": LOSS}
FIGURE = _lines._replace(axes=AXES, by_panel={"fresh tasks": {"yscale": "log"}})
EXPERIMENT = Experiment("task-diversity", Config, measure, [LOSSES, THRESHOLDS, FIGURE], check=check, title="Task diversity")

"""Predictors of linear regression for launch.icl: descents, constructed and trained layers, and how they are measured."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icl.models.attention import AttentionLayer, init_layers
from icl.models.batched import Regression
from icl.models.constructions import descent_layers
from icl.problems.comparison import (
    Predictions,
    PredictorDifference,
    descent_rates,
    difference,
    interpolate,
    predictions,
    sweep_loss,
)
from icl.solvers.closed_form import optimal_rate
from icl.solvers.continuation import optimal_polynomials
from icl.solvers.descent import gd_plus_plus, line_search, paper_rates, ridge
from icl.solvers.polynomials import Polynomial, evaluate_polynomial
from icl.solvers.spectrum import Spectrum, context_eigenvalues, spectral_law
from icl.tasks import QueryLoss, Sequence, Tasks, map_pieces, sample_tasks, vmap_tasks
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.shared.base import (
    SPECTRUM,
    SWEEP,
    TEST,
    VALIDATION,
    Effort,
    Job,
    Measure,
    Member,
    Model,
    effort,
    first_layer,
    init_scale,
    make_recipe,
    make_regression,
    random_key,
    train_or_load,
)
from launch.icl.shared.config import Config
from launch.kit.rows import Row

_block = 10_000  # test tasks per evaluation
_piece = 500  # of these at a time: what deep models keep of 10,000 tasks for their sensitivities takes gigabytes
_sweep_tasks = 5000  # at most
_penalty = 1e-6  # of ridge regression on tasks without noise, relative to the weights' variance
_quantile_contexts = 20_000  # fresh contexts that the quantiles of solved layers are measured on
_warm_clip = 1e3  # of tokens: solved layers stay below, and training that leaves them stays finite
_deepest = 10  # layers of their own in float32: of more, rounding errors push eigenvalues beyond the bound of the spectrum

Predict = Callable[[Any, Sequence], Array]


class Family(NamedTuple):
    """Predictors that differ in their weights only, so that they are compiled once.

    name: of the predictor in rows.
    predict: `(weights, batch) -> [m, B]`.
    members: the weights of each predictor, and its row fields that do not depend on the test, such as its seed.
    """

    name: str
    predict: Predict
    members: list[Member]


@functools.lru_cache(maxsize=16)
def spectrum(config: Config, tasks: Tasks) -> Spectrum:
    """The law of the eigenvalues that layers are solved for."""
    return spectral_law(random_key(config, SPECTRUM), tasks, config.solver_contexts)


@functools.lru_cache(maxsize=64)
def _solve(config: Config, model: Model, name: str) -> tuple[Polynomial, float]:
    tasks, K = model.tasks, model.layers
    start = time.perf_counter()
    with stage(f"best rates of {name}, {K} layer{'s' * (K > 1)}, N = {tasks.context}"):
        tied = {"gd": True, "gd++": model.recurrent, "closed_form": K == 1}[name]
        depth = K if tied else min(K, _deepest)
        law = spectrum(config, tasks)
        rates = optimal_polynomials(law, tasks, layers=depth, tied=tied, plus_plus=name != "gd", seed=config.seed)[-1]
        if depth < K:  # further layers that change nothing
            idle = np.zeros(K - depth)
            rates = rates._replace(eta=np.append(rates.eta, idle), gamma=np.append(rates.gamma, idle))
        if K == 1:  # exactly, from moments
            rates = rates._replace(eta=np.array([optimal_rate(tasks)]))
        if name == "gd" and config.gd_rate == "line-search":
            validation = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks)
            eta, _ = line_search(validation, steps=K, rates=paper_rates())
            rates = rates._replace(eta=np.full(K, float(eta)))
    return rates, time.perf_counter() - start


@functools.lru_cache(maxsize=16)
def _other_contexts(config: Config, tasks: Tasks) -> np.ndarray:
    """Eigenvalues of other contexts than those that layers were solved for."""
    number = min(config.solver_contexts, _quantile_contexts)
    return context_eigenvalues(jax.random.fold_in(random_key(config, SPECTRUM), 1 << 20), tasks, number)


def descent(job: Job, model: Model, name: str) -> tuple[Polynomial, float]:
    """The rates of a descent of K steps, and the seconds that finding them took; each is solved once per process.

    gd: one rate for all steps. gd++: rates tied as the layers are. closed_form: GD++ with rates of its own per layer.
    """
    if model.layers == 1 and name != "gd":
        name = "closed_form"  # the last γ has no effect: GD++ is GD
    elif name == "closed_form" and not model.recurrent:
        name = "gd++"
    return _solve(job.config, model, name)


def constructed_layers(job: Job, model: Model) -> AttentionLayer:
    """The weights that perform GD++ (GD where K = 1), as many as the model has."""
    rates, _ = descent(job, model, "gd++")
    free = 1 if model.recurrent else model.layers
    sizes = model.tasks.dim, model.tasks.context
    return descent_layers(*sizes, rates.eta[:free], gamma=rates.gamma[:free], outputs=model.tasks.outputs)


def descent_family(job: Job, model: Model, name: str) -> Family:
    """One of the descents of `descent`."""
    rates, seconds = descent(job, model, name)
    quantiles = evaluate_polynomial(_other_contexts(job.config, model.tasks), rates, model.tasks).quantiles
    # one number where all layers share it
    eta, gamma = (float(rate[0]) if np.ptp(rate) == 0 else rate.tolist() for rate in (rates.eta, rates.gamma))
    about = {"eta": eta, "gamma": gamma if name != "gd" and model.layers > 1 else None}
    weights = tuple(jnp.asarray(rate, jnp.zeros(()).dtype) for rate in (rates.eta, rates.gamma))
    return Family(name, _by_descent(model.layers), [(weights, {**about, "seconds": seconds, "quantiles": list(quantiles)})])


def descent_families(job: Job, model: Model) -> list[Family]:
    """The descents that K layers are compared with."""
    return [descent_family(job, model, name) for name in ("gd", *["gd++"] * (model.layers > 1), "closed_form")]


def untrained_families(job: Job, model: Model) -> list[Family]:
    """All predictors of a model that need no training: descents, constructed layers and ridge regression."""
    predict = predict_of(Regression(model.tasks, model.layers))  # tokens of solved recurrent layers exceed the paper's clip
    members = [(constructed_layers(job, model), about) for _, about in descent_family(job, model, "gd++").members]
    return [*descent_families(job, model), Family("constructed", predict, members), ridge_family(model.tasks)]


def ridge_family(tasks: Tasks) -> Family:
    """Ridge regression that knows the noise."""
    penalty = max(float(tasks.noise) ** 2, _penalty) / float(tasks.weight_scale) ** 2
    return Family("ridge", _by_ridge, [(jnp.asarray(penalty, jnp.zeros(()).dtype), {})])


@functools.cache
def _by_descent(K: int) -> Predict:
    return lambda rates, batch: vmap_tasks(lambda s: gd_plus_plus(s, *rates, steps=K)[-1])(batch)  # with γ = 0 GD


def _by_ridge(penalty: Array, batch: Sequence) -> Array:
    return vmap_tasks(lambda s: ridge(s, penalty))(batch)


@functools.cache
def predict_of(problem: QueryLoss) -> Predict:
    """The predictions of layers; the same function for equal problems, so that it is compiled once."""
    return problem.predict  # a bound method is a new object each time


def trained_family(
    job: Job,
    model: Model,
    *,
    name: str | None = None,
    problem: QueryLoss | None = None,
    recipe: Recipe | None = None,
    start: str = "cold",
    heads: int = 1,
    runs: Effort | None = None,
    init: Callable[[Array], Any] | None = None,
    every: int | None = None,
) -> Family:
    """Layers of every seed, trained now or earlier in this run.

    start is cold, from random weights, or warm, from those of the closed form or of `init`. Other defaults: the name is that of
    start and model, problem and recipe are those of the configuration, init draws layers of attention, and evaluations are 100
    steps apart, or 1/200 of a longer training.
    """
    config, tasks, runs = job.config, model.tasks, runs or effort(job.config)
    every = every or max(100, runs.steps // 200)
    name, regression = name or f"{start}_{model.name}", make_regression(config, tasks, model.layers)
    width, free = tasks.dim + tasks.outputs, 1 if model.recurrent else model.layers
    if start == "warm":
        constructed = None if init else constructed_layers(job, model)  # solved here: `init` is traced
        regression, init = replace(regression, clip=_warm_clip), init or (lambda key: constructed)
    if init is None:
        scale = init_scale(config, model.layers, width)
        init = functools.partial(init_layers, width=width, layers=free, heads=heads, scale=scale)
    trained, recipe = problem or regression, recipe or make_recipe(config, model.layers)

    def evaluation() -> Measure:
        validation = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks)
        descents = {what: reference_predictions(job, model, validation, what) for what in sorted({"gd", model.reference})}
        for what, theirs in descents.items():
            job.folder.log(event="reference", model=name, predictor=what, loss=float(np.mean(theirs.loss)))

        def measure(layers: Any) -> Row:
            found = compare(predict_of(trained), layers, validation, descents[model.reference])
            return {what: found[what] for what in ("loss", *PredictorDifference._fields)}

        return measure

    members = train_or_load(job, name, init, trained, recipe, evaluation, runs, every)
    about = {"start": start, "heads": heads}
    return Family("trained", predict_of(trained), [(layers, {**entry, **about}) for layers, entry in members])


def with_descent_rates(model: Model, trained: Family) -> Family:
    """The same layers, with the η and γ of the descent that they are nearest to in their rows."""
    rates = jax.jit(functools.partial(descent_rates, dim=model.tasks.dim, context=model.tasks.context))
    found = [tuple(map(float, rates(first_layer(layers)))) for layers, _ in trained.members]
    more = [{"eta": eta, "gamma": gamma if model.layers > 1 else None} for eta, gamma in found]
    return trained._replace(members=[(one, {**entry, **m}) for (one, entry), m in zip(trained.members, more, strict=True)])


def interpolated_family(job: Job, model: Model, trained: Family) -> Family:
    """The means of trained and constructed weights."""
    mean, constructed = jax.jit(functools.partial(interpolate, dim=model.tasks.dim)), constructed_layers(job, model)
    return trained._replace(name="interpolated", members=[(mean(one, constructed), entry) for one, entry in trained.members])


def measure_families(job: Job, model: Model, families: list[Family]) -> list[Row]:
    """A row for each predictor on the same fresh test tasks: its loss, and how it differs from the reference."""
    size = min(_block, job.config.test_tasks)
    blocks, predictors, found = -(-job.config.test_tasks // size), _each(families), []
    with stage(f"testing {model.name}", "tasks") as progress:
        for block in range(blocks):
            batch = sample_tasks(jax.random.fold_in(random_key(job.config, TEST), block), model.tasks, size)
            theirs = reference_predictions(job, model, batch, model.reference)
            found.append([jax.tree.map(float, compare(f.predict, weights, batch, theirs)) for f, weights, _ in predictors])
            progress((block + 1) * size, blocks * size)
    rows, means = [], jax.tree.map(lambda *of_blocks: float(np.mean(of_blocks)), *found)
    for (family, _, entry), one in zip(predictors, means, strict=True):
        variance = max(one.pop("square") - one["loss"] ** 2, 0)
        one |= {"standard_error": float(np.sqrt(variance / (blocks * size))), "test_tasks": blocks * size}
        rows.append(model.row(family.name, **one, **entry))
    return rows


def sweep_families(
    job: Job, experiment: str, name: str, families: list[Family], shifts: dict[str, list[Tasks]]
) -> Iterator[dict[str, Any]]:
    """The losses of predictors on shifted tasks (input_range, weight_scale or mixture), each logged as an event `sweep`."""
    number = min(_sweep_tasks, job.config.test_tasks)
    for family, weights, entry in _each(families):
        for shift, tasks in shifts.items():
            loss_on = sweep_loss(random_key(job.config, SWEEP), family.predict, number)
            values = [float(t.weight_scale if shift == "weight_scale" else t.input_range) for t in tasks]
            about = {"predictor": family.name, "seed": entry.get("seed"), "shift": shift}
            about |= {"values": values, "losses": [float(loss_on(weights, t)) for t in tasks]}
            job.folder.log(event="sweep", experiment=experiment, model=name, **about)
            yield about | {"test_tasks": number}


def _each(families: list[Family]) -> list[tuple[Family, Any, Row]]:
    """Every predictor: its family, its weights and its row fields."""
    return [(family, *member) for family in families for member in family.members]


def input_ranges(tasks: Tasks) -> list[Tasks]:
    """Tasks with 0.5 to 2 times the input range."""
    return [replace(tasks, input_range=float(tasks.input_range * r)) for r in np.linspace(0.5, 2.0, 16)]


def reference_predictions(job: Job, model: Model, batch: Sequence, name: str) -> Predictions:
    """The predictions of a descent that others are compared with."""
    family = descent_family(job, model, name)
    return _predictions(family.predict, family.members[0][0], batch)


@functools.partial(jax.jit, static_argnums=0)
def _predictions(predict: Predict, weights: Any, batch: Sequence) -> Predictions:
    return map_pieces(lambda piece: predictions(lambda b: predict(weights, b), piece), batch, _piece)


def compare(predict: Predict, weights: Any, batch: Sequence, theirs: Predictions) -> dict[str, Array]:
    """Mean loss and mean squared loss of a predictor on a batch, and how far it is from the predictions of another one."""
    return _measures(_predictions(predict, weights, batch), theirs)


@jax.jit  # apart from the predictions, so that it is compiled once for all predictors
def _measures(ours: Predictions, theirs: Predictions) -> dict[str, Array]:
    means = {"loss": ours.loss, "square": ours.loss**2, "above_reference": ours.loss - theirs.loss}
    return {**jax.tree.map(jnp.mean, means), **difference(ours, theirs)._asdict()}

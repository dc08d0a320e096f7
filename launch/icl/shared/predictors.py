"""Predictors of linear regression for launch.icl: descents, constructed and trained layers, and how they are measured."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
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
from jexplicit.experiments.folder import RunFolder
from jexplicit.experiments.rows import Row
from jexplicit.runs.progress import stage
from launch.icl.shared.base import (
    SPECTRUM,
    SWEEP,
    TEST,
    VALIDATION,
    Effort,
    Flags,
    Measure,
    Model,
    effort,
    init_scale,
    make_recipe,
    make_regression,
    random_key,
    split_seeds,
    train_or_load,
    training_rows,
)

_block = 10_000  # test tasks per evaluation
_piece = 500  # of these at a time: what deep models keep of 10,000 tasks for their sensitivities takes gigabytes
_sweep_tasks = 5000  # at most
_penalty = 1e-6  # of ridge regression on tasks without noise, relative to the weights' variance
_quantile_contexts = 20_000  # fresh contexts that the quantiles of solved layers are measured on
_warm_clip = 1e3  # of tokens: solved layers stay below, and training that leaves them stays finite
_deepest = 10  # layers of their own in float32: of more, rounding errors push eigenvalues beyond the bound of the spectrum

Predict = Callable[[Any, Sequence], Array]


class Job(NamedTuple):
    """A run: its folder, and its flags, also those of the experiment."""

    config: Any
    folder: RunFolder


class Family(NamedTuple):
    """Predictors that differ in their weights only, so that they are compiled once.

    name: of the predictor in rows.
    predict: `(weights, batch) -> [m, B]`.
    weights: a pytree whose leaves have a first axis, one entry per predictor.
    entries: the row fields of each predictor that do not depend on the test, such as its seed.
    """

    name: str
    predict: Predict
    weights: Any
    entries: list[dict[str, Any]]


@functools.lru_cache(maxsize=16)
def spectrum(config: Flags, tasks: Tasks) -> Spectrum:
    """The law of the eigenvalues that layers are solved for."""
    return spectral_law(random_key(config, SPECTRUM), tasks, config.solver_contexts)


@functools.lru_cache(maxsize=64)
def _solve(config: Flags, model: Model, name: str) -> tuple[Polynomial, float]:
    tasks, K = model.tasks, model.layers
    start = time.perf_counter()
    with stage(f"closed form of {name}, {K} layer{'s' * (K > 1)}, N = {tasks.context}"):
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
def _other_contexts(config: Flags, tasks: Tasks) -> np.ndarray:
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

    def plain(rates: np.ndarray) -> float | list[float]:  # one number where all layers share it
        return float(rates[0]) if np.ptp(rates) == 0 else rates.tolist()

    rates, seconds = descent(job, model, name)
    gamma = plain(rates.gamma) if name != "gd" and model.layers > 1 else None
    quantiles = evaluate_polynomial(_other_contexts(job.config, model.tasks), rates, model.tasks).quantiles
    entry = {"eta": plain(rates.eta), "gamma": gamma, "seconds": seconds, "quantiles": list(quantiles)}
    weights = jax.tree.map(lambda rate: jnp.asarray(rate, jnp.zeros(()).dtype)[None], (rates.eta, rates.gamma))
    return Family(name, _by_descent(model.layers), weights, [entry])


def descent_families(job: Job, model: Model) -> list[Family]:
    """The descents that K layers are compared with."""
    return [descent_family(job, model, name) for name in ("gd", *["gd++"] * (model.layers > 1), "closed_form")]


def untrained_families(job: Job, model: Model) -> list[Family]:
    """All predictors of a model that need no training: descents, constructed layers and ridge regression."""
    constructed = descent_family(job, model, "gd++")._replace(
        name="constructed",
        predict=predict_of(Regression(model.tasks, model.layers)),  # tokens of solved recurrent layers exceed the paper's clip
        weights=jax.tree.map(lambda leaf: leaf[None], constructed_layers(job, model)),
    )
    return [*descent_families(job, model), constructed, ridge_family(model.tasks)]


def ridge_family(tasks: Tasks) -> Family:
    """Ridge regression that knows the noise."""
    penalty = jnp.full(1, max(float(tasks.noise) ** 2, _penalty) / float(tasks.weight_scale) ** 2)
    return Family("ridge", _by_ridge, penalty, [{}])


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
    every: int = 100,
) -> Family:
    """Layers of every seed, trained now or earlier in this run.

    start is cold, from random weights, or warm, from those of the closed form. Other defaults: the name is that of start and
    model, problem and recipe are those of the configuration, init draws layers of attention.
    """
    (config, folder), tasks = job, model.tasks
    name, regression = name or f"{start}_{model.name}", make_regression(config, tasks, model.layers)
    width, free = tasks.dim + tasks.outputs, 1 if model.recurrent else model.layers
    random = functools.partial(
        init_layers, width=width, layers=free, heads=heads, scale=init_scale(config, model.layers, width)
    )
    if start == "warm":
        constructed = constructed_layers(job, model)  # solved here: `init` is traced
        regression, init = replace(regression, clip=_warm_clip), lambda key: constructed
    trained = problem or regression

    def evaluation() -> Measure:
        validation = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks)
        descents = {what: reference_predictions(job, model, validation, what) for what in sorted({"gd", model.reference})}
        for what, theirs in descents.items():
            folder.log(event="reference", model=name, predictor=what, loss=float(np.mean(theirs.loss)))

        def measure(layers: Any) -> Mapping[str, Any]:
            found = compare(predict_of(trained), layers, validation, descents[model.reference])
            return {what: found[what] for what in ("loss", *PredictorDifference._fields)}

        return measure

    params = train_or_load(
        *(config, folder, name, init or random, trained, recipe or make_recipe(config, model.layers), evaluation),
        effort=runs or effort(config),
        every=every,
    )
    entries = [{**entry, "start": start, "heads": heads} for entry in training_rows(folder, name)]
    return Family("trained", predict_of(trained), params, entries)


def with_descent_rates(model: Model, trained: Family) -> Family:
    """The same layers, with the η and γ of the descent that they are nearest to in their rows."""
    rates = jax.jit(functools.partial(descent_rates, dim=model.tasks.dim, context=model.tasks.context))
    entries = []
    for _, layers, entry in _each([trained]):
        eta, gamma = map(float, rates(jax.tree.map(lambda leaf: leaf[0], layers)))
        entries.append(entry | {"eta": eta, "gamma": gamma if model.layers > 1 else None})
    return trained._replace(entries=entries)


def interpolated_family(job: Job, model: Model, trained: Family) -> Family:
    """The means of trained and constructed weights."""
    mean = jax.jit(jax.vmap(functools.partial(interpolate, dim=model.tasks.dim), in_axes=(0, None)))
    return trained._replace(name="interpolated", weights=mean(trained.weights, constructed_layers(job, model)))


def measure_families(job: Job, model: Model, families: list[Family]) -> list[Row]:
    """A row for each predictor on the same fresh test tasks: its loss, and how it differs from the reference."""
    size = min(_block, job.config.test_tasks)
    blocks = -(-job.config.test_tasks // size)
    predictors = _each(families)
    measures: list[list[dict[str, float]]] = [[] for _ in predictors]  # of each block
    with stage(f"testing {model.name}", "tasks") as progress:
        for block in range(blocks):
            batch = sample_tasks(jax.random.fold_in(random_key(job.config, TEST), block), model.tasks, size)
            theirs = reference_predictions(job, model, batch, model.reference)
            for (family, weights, _), found in zip(predictors, measures, strict=True):
                found.append({what: float(value) for what, value in compare(family.predict, weights, batch, theirs).items()})
            progress((block + 1) * size, blocks * size)
    rows = []
    for (family, _, entry), found in zip(predictors, measures, strict=True):
        one: dict[str, Any] = {what: float(np.mean([of_block[what] for of_block in found])) for what in found[0]}
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
            about = {"predictor": family.name, "seed": entry.get("seed"), "shift": shift, "values": values}
            about |= {"losses": [float(loss_on(weights, t)) for t in tasks]}
            job.folder.log(event="sweep", experiment=experiment, model=name, **about)
            yield about | {"test_tasks": number}


def _each(families: list[Family]) -> list[tuple[Family, Any, dict[str, Any]]]:
    """Every predictor: its family, its weights and its row fields."""
    return [(f, *both) for f in families for both in zip(split_seeds(f.weights), f.entries, strict=True)]


def input_ranges(tasks: Tasks) -> list[Tasks]:
    """Tasks with 0.5 to 2 times the input range."""
    return [replace(tasks, input_range=float(tasks.input_range * r)) for r in np.linspace(0.5, 2.0, 16)]


def reference_predictions(job: Job, model: Model, batch: Sequence, name: str) -> Predictions:
    """The predictions of a descent that others are compared with."""
    _, predict, rates, _ = descent_family(job, model, name)
    return _predictions(predict, split_seeds(rates)[0], batch)


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

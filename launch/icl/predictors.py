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

from icl.comparison import Predictions, descent_rates, difference, interpolate, predictions, sweep_loss
from icl.models.attention import AttentionLayer, init_layers
from icl.models.batched import Regression
from icl.models.constructions import descent_layers
from icl.solvers.closed_form import optimal_rate
from icl.solvers.continuation import optimal_polynomials
from icl.solvers.descent import gd_plus_plus, line_search, paper_rates, ridge
from icl.solvers.polynomials import Polynomial, evaluate_polynomial
from icl.solvers.spectrum import Spectrum, context_eigenvalues, spectral_law
from icl.tasks import QueryLoss, Sequence, Tasks, map_pieces, sample_tasks, vmap_tasks
from icl.training import Recipe
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import stage
from launch.icl.base import (
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
    """A run: its flags and its folder."""

    config: Flags
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
    rates, _ = descent(job, model, name)
    weights = jax.tree.map(lambda rate: jnp.asarray(rate, jnp.zeros(()).dtype)[None], (rates.eta, rates.gamma))
    return Family(name, _by_descent(model.layers), weights, [_solution(job, model, name)])


def descent_families(job: Job, model: Model) -> list[Family]:
    """The descents that K layers are compared with."""
    return [descent_family(job, model, name) for name in ("gd", *["gd++"] * (model.layers > 1), "closed_form")]


def untrained_families(job: Job, model: Model) -> list[Family]:
    """All predictors of a model that need no training: descents, constructed layers and ridge regression."""
    tasks = model.tasks
    layers = jax.tree.map(lambda leaf: leaf[None], constructed_layers(job, model))
    by_layers = predict_of(Regression(tasks, model.layers))  # tokens of solved recurrent layers exceed the paper's clip
    return [
        *descent_families(job, model),
        Family("constructed", by_layers, layers, [_solution(job, model, "constructed")]),
        ridge_family(tasks),
    ]


def ridge_family(tasks: Tasks) -> Family:
    """Ridge regression that knows the noise."""
    penalty = jnp.full(1, max(float(tasks.noise) ** 2, _penalty) / float(tasks.weight_scale) ** 2)
    return Family("ridge", _by_ridge, penalty, [{}])


def _solution(job: Job, model: Model, name: str) -> dict[str, Any]:
    """The rates of a predictor that needs no training, for its row."""

    def plain(rates: np.ndarray) -> float | list[float]:  # one number where all layers share it
        return float(rates[0]) if np.ptp(rates) == 0 else [float(rate) for rate in rates]

    rates, seconds = descent(job, model, "gd++" if name == "constructed" else name)
    gamma = plain(rates.gamma) if name != "gd" and model.layers > 1 else None
    quantiles = evaluate_polynomial(_other_contexts(job.config, model.tasks), rates, model.tasks).quantiles
    return {"eta": plain(rates.eta), "gamma": gamma, "seconds": seconds, "quantiles": list(quantiles)}


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
    model, problem and recipe are those of the configuration, runs those of one-step or --warm-steps, init draws layers of
    attention.
    """
    config, tasks = job.config, model.tasks
    name = name or f"{start}_{model.name}"
    clip = {} if start == "cold" else {"clip": _warm_clip}
    problem = problem or replace(make_regression(config, tasks, model.layers), **clip)
    usual = effort(config, "one-step")
    runs = runs or (usual if start == "cold" else Effort(config.warm_steps, usual.seeds))
    width, free = tasks.dim + tasks.outputs, 1 if model.recurrent else model.layers
    scale = init_scale(config, model.layers, width)
    constructed = constructed_layers(job, model) if start == "warm" else None  # solved here: `init` is traced

    def init_attention(key: Array) -> AttentionLayer:
        return constructed or init_layers(key, width, layers=free, heads=heads, scale=scale)

    def evaluation() -> Measure:
        validation = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks)
        descents = reference_predictions(job, model, validation)
        for what, theirs in descents.items():
            job.folder.log(event="reference", model=name, predictor=what, loss=float(np.mean(theirs.loss)))

        def measure(layers: Any) -> Mapping[str, Any]:
            found = compare(predict_of(problem), layers, validation, descents)
            gd = {f"gd_{what}": value for what, value in found["gd"].items()} if model.layers > 1 else {}
            measures = {"loss": found["loss"], **found[model.reference], **gd}
            return {what: value for what, value in measures.items() if "above" not in what}

        return measure

    recipe = recipe or make_recipe(config, model.layers)
    params = train_or_load(
        config, job.folder, name, init or init_attention, problem, recipe, evaluation, effort=runs, every=every
    )
    shared = {"start": start, "heads": heads}
    return Family("trained", predict_of(problem), params, [entry | shared for entry in training_rows(job.folder, name)])


def with_descent_rates(model: Model, trained: Family) -> Family:
    """The same layers, with the η and γ of the descent that they are nearest to in their rows."""
    entries = []
    for _, layers, entry in _each([trained]):
        eta, gamma = _first_rates(layers, model.tasks.dim, model.tasks.context)
        entries.append(entry | {"eta": float(eta), "gamma": float(gamma) if model.layers > 1 else None})
    return trained._replace(entries=entries)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _first_rates(layers: AttentionLayer, dim: int, context: int) -> tuple[Array, Array]:
    return descent_rates(jax.tree.map(lambda leaf: leaf[0], layers), dim=dim, context=context)


def interpolated_family(job: Job, model: Model, trained: Family) -> Family:
    """The means of trained and constructed weights."""
    constructed = constructed_layers(job, model)
    return trained._replace(name="interpolated", weights=_interpolate(trained.weights, constructed, model.tasks.dim))


@functools.partial(jax.jit, static_argnums=2)
def _interpolate(trained: AttentionLayer, constructed: AttentionLayer, dim: int) -> AttentionLayer:
    return jax.vmap(lambda layers: interpolate(layers, constructed, dim=dim))(trained)


def measure_families(job: Job, model: Model, families: list[Family]) -> list[dict[str, Any]]:
    """A row for each predictor on the same fresh test tasks: its loss, and how it differs from the reference."""
    size = min(_block, job.config.test_tasks)
    blocks = -(-job.config.test_tasks // size)
    predictors = _each(families)
    parts: list[list[dict[str, float]]] = [[] for _ in predictors]
    with stage(f"testing {model.name}", "tasks") as progress:
        for block in range(blocks):
            batch = sample_tasks(jax.random.fold_in(random_key(job.config, TEST), block), model.tasks, size)
            descents = reference_predictions(job, model, batch)
            for n, (family, weights, _) in enumerate(predictors):
                found = compare(family.predict, weights, batch, descents)
                one = {"loss": found["loss"], "square": found["square"], **found[model.reference]}
                parts[n].append({what: float(value) for what, value in one.items()})
            progress((block + 1) * size, blocks * size)
    rows = []
    for n, (family, _, entry) in enumerate(predictors):
        one: dict[str, Any] = {what: float(np.mean([part[what] for part in parts[n]])) for what in parts[n][0]}
        variance = max(one.pop("square") - one["loss"] ** 2, 0)
        one |= {"standard_error": float(np.sqrt(variance / (blocks * size))), "test_tasks": blocks * size}
        rows.append(model.row(family.name, **one, **entry))
    return rows


def sweep_families(
    job: Job, experiment: str, name: str, families: list[Family], shifts: dict[str, list[Tasks]]
) -> Iterator[dict[str, Any]]:
    """The losses of predictors on shifted tasks (input_range, weight_scale or mixture), each logged as an event `sweep`."""
    compiled = {f.predict: sweep_loss(random_key(job.config, SWEEP), f.predict, sweep_tasks(job)) for f in families}
    for family, weights, entry in _each(families):
        for shift, tasks in shifts.items():
            values = [float(t.weight_scale if shift == "weight_scale" else t.input_range) for t in tasks]
            losses = [float(compiled[family.predict](weights, t)) for t in tasks]
            about = {"predictor": family.name, "seed": entry.get("seed"), "shift": shift}
            job.folder.log(event="sweep", experiment=experiment, model=name, **about, values=values, losses=losses)
            yield about | {"values": values, "losses": losses}


def _each(families: list[Family]) -> list[tuple[Family, Any, dict[str, Any]]]:
    """Every predictor: its family, its weights and its row fields."""
    return [(f, *both) for f in families for both in zip(split_seeds(f.weights), f.entries, strict=True)]


def sweep_tasks(job: Job) -> int:
    """Tasks per point of a sweep."""
    return min(_sweep_tasks, job.config.test_tasks)


def input_ranges(tasks: Tasks) -> list[Tasks]:
    """Tasks with 0.5 to 2 times the input range."""
    return [replace(tasks, input_range=float(tasks.input_range * r)) for r in np.linspace(0.5, 2.0, 16)]


def reference_predictions(job: Job, model: Model, batch: Sequence) -> dict[str, Predictions]:
    """The predictions of the descents that others are compared with."""
    families = [descent_family(job, model, name) for name in sorted({"gd", model.reference})]
    return {f.name: _predictions(f.predict, split_seeds(f.weights)[0], batch) for f in families}


@functools.partial(jax.jit, static_argnums=0)
def _predictions(predict: Predict, weights: Any, batch: Sequence) -> Predictions:
    return map_pieces(lambda piece: predictions(lambda b: predict(weights, b), piece), batch, _piece)


def compare(predict: Predict, weights: Any, batch: Sequence, descents: dict[str, Predictions]) -> dict[str, Any]:
    """Mean loss and mean squared loss of a predictor on a batch and, for each descent, how far it is from that."""
    return _measures(_predictions(predict, weights, batch), descents)


@jax.jit  # apart from the predictions, so that it is compiled once for all predictors
def _measures(ours: Predictions, descents: dict[str, Predictions]) -> dict[str, Any]:
    differences = {
        name: {"above_reference": jnp.mean(ours.loss - theirs.loss), **difference(ours, theirs)._asdict()}
        for name, theirs in descents.items()
    }
    return {"loss": jnp.mean(ours.loss), "square": jnp.mean(ours.loss**2), **differences}

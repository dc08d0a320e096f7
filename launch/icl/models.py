"""What the experiments of launch.icl share: trained layers, the descents that they are compared with, and rows."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icl.comparison import Answers, answers, batched, descent_rates, difference, interpolate
from icl.models.attention import Layer, init_layers
from icl.models.batched import Regression
from icl.models.constructions import descent_layers
from icl.solvers.closed_form import optimal_rate
from icl.solvers.descent import gd_plus_plus, line_search, paper_rates, ridge
from icl.solvers.polynomials import Polynomial, context_eigenvalues, optimal_polynomial
from icl.tasks import Sequence, Tasks, sample_tasks
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import stage
from launch.icl.config import Config, effort, init_scale, make_recipe, make_regression
from launch.icl.training import load_trained, train_and_save

_block = 10_000  # test tasks that are measured at a time
_penalty = 1e-6  # of ridge regression on tasks without noise, in units of the weights' variance

# Streams of random numbers that depend on --seed, none of them a training seed's own.
VALIDATION, TEST, SPECTRUM, SWEEP = 101, 102, 103, 104


class Job(NamedTuple):
    """What every experiment needs."""

    config: Config
    folder: RunFolder
    tasks: Tasks


class Model(NamedTuple):
    """Layers to train: K of them, with one set of weights or K, on tasks of a law."""

    tasks: Tasks
    layers: int
    recurrent: bool

    @property
    def name(self) -> str:
        """What files and events call it."""
        kind = "" if self.layers == 1 else "_recurrent" if self.recurrent else "_layers"
        return f"K{self.layers}{kind}_d{self.tasks.dim}_N{self.tasks.context}"


class Descent(NamedTuple):
    """Rates of a descent of K steps, and the seconds that it took to find them."""

    rates: Polynomial
    seconds: float


Predict = Callable[[Any, Sequence], Array]


class Family(NamedTuple):
    """Predictors that differ in numbers alone, and so are compiled once.

    predict: `(weights, batch) -> [m, B]`.
    weights: a pytree whose leaves have a first axis, of seeds where there are several.
    seeds: one per entry; None for what is not trained.
    """

    predict: Predict
    weights: Any
    seeds: list[int | None]


_guard = 1.25  # times the largest eigenvalue of 20,000 contexts: that of 400,000 is 1.13 times as large
_measures = (
    *("seed", "start", "loss", "cosine", "model_difference", "prediction_difference", "gamma", "eta", "seconds"),
    *("sensitivity_own", "sensitivity_next", "sensitivity_other", "adjusted_loss", "prefix"),
)
_structure = jax.tree.structure(Layer(W_K=0, W_Q=0, W_V=0, P=0))  # pyright: ignore[reportArgumentType]
Name = tuple[str, str | None]  # predictor and, where it was trained, its start


def random_key(job: Job, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(jax.random.key(job.config.seed), stream)


@functools.lru_cache(maxsize=16)
def _spectrum(config: Config, tasks: Tasks) -> np.ndarray:
    key = jax.random.fold_in(jax.random.key(config.seed), SPECTRUM)
    return context_eigenvalues(key, tasks, config.solver_contexts)


@functools.lru_cache(maxsize=64)
def _solved(config: Config, model: Model, name: str) -> Descent:
    tasks, K = model.tasks, model.layers
    start = time.perf_counter()
    with stage(f"closed form of {name}, {K} layer{'s' * (K > 1)}, N = {tasks.context}"):
        how: dict[str, Any] = {
            "gd": {"tied": True, "plus_plus": False},
            "gd++": {"tied": model.recurrent},
            "closed_form": {"tied": K == 1},
        }[name]
        starts = 1 if K == 1 else 8 if how["tied"] else 24
        how |= {"guard": _guard if K > 2 and name != "gd" else 0.0, "starts": starts, "seed": config.seed}
        rates = optimal_polynomial(_spectrum(config, tasks), tasks, layers=K, **how)
        if K == 1:  # exactly, from moments
            rates = rates._replace(eta=np.array([optimal_rate(tasks)]))
        if name == "gd" and config.gd_rate == "line-search":
            key = jax.random.fold_in(jax.random.key(config.seed), VALIDATION)
            eta, _ = line_search(sample_tasks(key, tasks, config.validation_tasks), steps=K, rates=paper_rates())
            rates = rates._replace(eta=np.full(K, eta))
    return Descent(rates, time.perf_counter() - start)


def descent(job: Job, model: Model, name: str) -> Descent:
    """The descent of as many steps as a model has layers; each is solved once in a process.

    gd: one rate for all steps. gd++: with rates tied as the layers are. closed_form: GD++ with rates of its own per layer.
    """
    if model.layers == 1 and name != "gd":
        name = "closed_form"  # the last γ changes nothing: GD++ is GD
    elif name == "closed_form" and not model.recurrent:
        name = "gd++"
    return _solved(job.config, model, name)


def families(job: Job, model: Model, params: Mapping[str, Layer] | None = None) -> dict[Name, Family]:
    """All predictors of a model: those that need no training, and trained ones by start.

    Args:
        job: the run.
        model: its sizes.
        params: start -> [seeds, layers, ...].
    """
    K, tasks = model.layers, model.tasks
    penalty = max(float(tasks.noise) ** 2, _penalty) / float(tasks.weight_scale) ** 2

    by_descent, by_attention = _by_descent(K), by_attention_of(make_regression(job.config, tasks, K))

    def single(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)

    def steps(name: str) -> Family:
        rates = descent(job, model, name).rates
        both = jnp.asarray(rates.eta, _dtype()), jnp.asarray(rates.gamma, _dtype())
        return Family(by_descent, single(both), [None])

    constructed = constructed_layers(job, model)
    named: dict[Name, Family] = {(name, None): steps(name) for name in ["gd", *["gd++"] * (K > 1), "closed_form"]}
    named["constructed", None] = Family(by_attention, single(constructed), [None])
    named["ridge", None] = Family(_by_ridge, single(jnp.asarray(penalty, _dtype())), [None])
    for start, layers in (params or {}).items():
        seeds: list[int | None] = [job.config.seed + n for n in range(len(layers.P))]
        named["trained", start] = Family(by_attention, layers, seeds)
        if model.recurrent and start == "cold":
            mixed = jax.jit(jax.vmap(lambda one: interpolate(one, constructed, dim=tasks.dim)))(layers)
            named["interpolated", start] = Family(by_attention, mixed, seeds)
    return named


@functools.cache
def _by_descent(K: int) -> Predict:
    def predict(rates: tuple[Array, Array], batch: Sequence) -> Array:  # with γ = 0 GD
        return batched(lambda s: gd_plus_plus(s, *rates, steps=K)[-1])(batch)

    return predict


@functools.cache
def by_attention_of(regression: Regression) -> Predict:
    """The answers of layers; the same function for the same model, so that it is compiled once."""
    return regression.predict  # a method is another object each time


def _by_ridge(penalty: Array, batch: Sequence) -> Array:
    return batched(lambda s: ridge(s, penalty))(batch)


def constructed_layers(job: Job, model: Model) -> Layer:
    """The weights that perform GD++ (GD where K = 1), as many as the model has."""
    rates = descent(job, model, "gd++").rates
    free = 1 if model.recurrent else model.layers
    sizes = model.tasks.dim, model.tasks.context
    return descent_layers(*sizes, rates.eta[:free], gamma=rates.gamma[:free], outputs=model.tasks.outputs)


def reference(model: Model) -> str:
    """The descent that K layers are expected to be."""
    return "gd" if model.layers == 1 else "gd++"


def trained_layers(job: Job, model: Model, start: str = "cold", *, steps: int | None = None, seeds: int | None = None) -> Layer:
    """The layers of every seed, [seeds, layers, ...], trained now or by the run that this one resumes."""
    config, name = job.config, f"{start}_{model.name}"
    if (done := load_trained(job.folder, name, _structure)) is not None:
        return done
    named = families(job, model)
    usual = effort(config, "one-step")
    steps = steps or (usual.steps if start == "cold" else config.warm_steps)
    numbers = list(range(config.seed, config.seed + (seeds or usual.seeds)))
    validation = sample_tasks(random_key(job, VALIDATION), model.tasks, config.validation_tasks)
    measured = references(named, model, validation)

    def evaluate(params: Layer) -> Mapping[str, Any]:
        entries = []
        for layers in each(params):
            told = compared(named["constructed", None].predict, layers, validation, measured)
            gd = {f"gd_{what}": value for what, value in told["gd"].items()}
            entries.append({"loss": told["loss"], **told[reference(model)], **(gd if model.layers > 1 else {})})
        return {what: [float(entry[what]) for entry in entries] for what in entries[0] if "above" not in what}

    for what, theirs in measured.items():
        job.folder.log(event="reference", model=name, predictor=what, loss=float(np.mean(theirs.loss)))
    return train_and_save(
        job.folder,
        name,
        _start(job, model, start, numbers),
        make_regression(config, model.tasks, model.layers),
        make_recipe(config, model.layers),
        steps=steps,
        seeds=numbers,
        evaluate=evaluate,
        devices=config.devices,
    )


def _start(job: Job, model: Model, start: str, seeds: list[int]) -> Layer:
    """Random weights of every seed, or those of the closed form."""
    width, free = model.tasks.dim + model.tasks.outputs, 1 if model.recurrent else model.layers
    if start == "warm":
        return jax.tree.map(lambda leaf: jnp.asarray(np.stack([leaf] * len(seeds))), constructed_layers(job, model))
    scale = init_scale(job.config, model.layers, width)

    @jax.jit
    @jax.vmap
    def draw(key: Array) -> Layer:
        return init_layers(jax.random.fold_in(key, 0), width, layers=free, scale=scale)

    return draw(jnp.stack([jax.random.key(seed) for seed in seeds]))


def has_rows(job: Job, experiment: str, **wanted: Any) -> bool:
    """Whether the run has finished (a part of) an experiment already."""
    rows = [row for row in job.folder.rows() if row["experiment"] == experiment]
    return any(all(row.get(name) == value for name, value in wanted.items()) for row in rows)


def add_rows(job: Job, rows: Iterable[dict[str, Any]]) -> None:
    """Add the rows of (a part of) an experiment to results.json, all at once; what a row does not say is not measured."""
    blank = {"task": "linear", "heads": 1, "steps": 0, "settings": job.config.settings, **dict.fromkeys(_measures)}
    job.folder.add_rows([blank | row for row in rows])


def row_of(experiment: str, model: Model, predictor: str, **more: Any) -> dict[str, Any]:
    """A row about tasks of linear regression."""
    return {
        "experiment": experiment,
        "predictor": predictor,
        "layers": model.layers,
        "recurrent": model.recurrent,
        "dim": model.tasks.dim,
        "context": model.tasks.context,
        "reference": reference(model),
        "inputs": model.tasks.inputs,
        **more,
    }


def trained_in(job: Job, name: str) -> dict[str, Any]:
    """Steps and seconds of a finished training run, for its rows."""
    event = next(event for event in job.folder.events("trained") if event["model"] == name)
    return {"steps": event["steps"], "seconds": event["seconds"]}


def measure(job: Job, experiment: str, model: Model, params: Mapping[str, Layer]) -> None:
    """Rows of all predictors on fresh test tasks: without training, trained (by start and seed), interpolated.

    Args:
        job: the run.
        experiment: its name.
        model: what was trained.
        params: start -> [seeds, layers, ...].
    """
    if has_rows(job, experiment, layers=model.layers, dim=model.tasks.dim, context=model.tasks.context):
        return
    named = families(job, model, params)
    with stage(f"testing {model.name}", "tasks") as progress:
        measured = test(job, model, named, progress)
    trained_in = {event["model"]: event for event in job.folder.events("trained")}
    rows: list[dict[str, Any]] = []
    for (name, start), family in named.items():
        for n, seed in enumerate(family.seeds):
            more = measured[name, start][n]
            if start is not None:
                run = trained_in[f"{start}_{model.name}"]
                more |= {"start": start, "seed": seed, "steps": run["steps"], "seconds": run["seconds"]}
                if name == "trained" and model.recurrent:
                    layer = jax.tree.map(lambda leaf, start=start, n=n: leaf[n, 0], params[start])
                    eta, gamma = descent_rates(layer, dim=model.tasks.dim, context=model.tasks.context)
                    more |= {"eta": float(eta), "gamma": float(gamma) if model.layers > 1 else None}
            elif name != "ridge":
                more |= _solution(job, model, name)
            rows.append(row_of(experiment, model, name, **more))
    add_rows(job, rows)


def test(job: Job, model: Model, named: Mapping[Name, Family], progress: Any) -> dict[Name, list[dict[str, Any]]]:
    """Loss, its standard error, and differences to the reference, of every predictor on the same fresh tasks."""
    size = min(_block, job.config.test_tasks)
    blocks = -(-job.config.test_tasks // size)
    sums: dict[tuple[Name, int], list[dict[str, float]]] = {}
    for block in range(blocks):
        batch = sample_tasks(jax.random.fold_in(random_key(job, TEST), block), model.tasks, size)
        theirs = references(named, model, batch)
        for name, family in named.items():
            for n, weights in enumerate(each(family.weights)):
                told = compared(family.predict, weights, batch, theirs)
                one = {"loss": told["loss"], "square": told["square"], **told[reference(model)]}
                sums.setdefault((name, n), []).append({what: float(value) for what, value in one.items()})
        progress((block + 1) * size, blocks * size)

    def mean(parts: list[dict[str, float]]) -> dict[str, Any]:
        one = {what: float(np.mean([part[what] for part in parts])) for what in parts[0]}
        variance = max(one.pop("square") - one["loss"] ** 2, 0)
        return one | {"standard_error": float(np.sqrt(variance / (blocks * size))), "test_tasks": blocks * size}

    return {name: [mean(sums[name, n]) for n in range(len(family.seeds))] for name, family in named.items()}


def each(weights: Any) -> list[Any]:
    """The entries of stacked weights."""
    leaves, shape = jax.tree.flatten(jax.tree.map(np.asarray, weights))
    return [jax.tree.unflatten(shape, [jnp.asarray(leaf[n]) for leaf in leaves]) for n in range(len(leaves[0]))]


def references(named: Mapping[Name, Family], model: Model, batch: Sequence) -> dict[str, Answers]:
    """The answers of the descents that others are compared with."""
    families = {what: named[what, None] for what in sorted({"gd", reference(model)})}
    return {what: _answers(family.predict, each(family.weights)[0], batch) for what, family in families.items()}


@functools.partial(jax.jit, static_argnums=0)
def _answers(predict: Predict, weights: Any, batch: Sequence) -> Answers:
    return answers(lambda batch: predict(weights, batch), batch)


@functools.partial(jax.jit, static_argnums=0)
def compared(predict: Predict, weights: Any, batch: Sequence, references: dict[str, Answers]) -> dict[str, Any]:
    """Mean loss and mean squared loss of a predictor on tasks and, by reference, how far from its answers."""
    ours = _answers(predict, weights, batch)
    apart = {
        what: {"above_reference": jnp.mean(ours.loss - theirs.loss), **difference(ours, theirs)._asdict()}
        for what, theirs in references.items()
    }
    return {"loss": jnp.mean(ours.loss), "square": jnp.mean(ours.loss**2), **apart}


def _solution(job: Job, model: Model, name: str) -> dict[str, Any]:
    """The rates of a predictor that needs no training, for its row."""
    found = descent(job, model, "gd++" if name == "constructed" else name)
    rates = {"eta": _plain(found.rates.eta), "gamma": _plain(found.rates.gamma) if name != "gd" and model.layers > 1 else None}
    return rates | {"seconds": found.seconds, "quantiles": list(found.rates.quantiles)}


def _dtype() -> Any:
    return jnp.zeros(()).dtype


def _plain(rates: np.ndarray) -> float | list[float]:
    """One number where all layers share it."""
    return float(rates[0]) if np.ptp(rates) == 0 else [float(rate) for rate in rates]

"""What the experiments of launch.icl share: trained layers, the descents that they are compared with, and rows."""

import functools
import shutil
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icl.attention import Layer, init_layers
from icl.batches import predict_batch
from icl.closed_form import optimal_rate
from icl.comparison import Answers, Predictor, answers, batched, descent_rates, difference, interpolate
from icl.constructions import descent_layers
from icl.descent import gd_plus_plus, gradient_descent, line_search, paper_rates, ridge
from icl.polynomials import Polynomial, context_eigenvalues, optimal_polynomial
from icl.tasks import Tasks, sample_tasks
from icl.training import train
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from launch.icl_config import Config, init_scale, make_recipe

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


class Descents(NamedTuple):
    """The descents of K steps that K layers are compared with, and the seconds that it took to find them.

    gd: one rate for all steps. plus_plus: GD++ with rates tied as the layers are. best: GD++ with rates of its own per layer.
    """

    gd: Polynomial
    plus_plus: Polynomial
    best: Polynomial
    seconds: dict[str, float]


def random_key(job: Job, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(jax.random.key(job.config.seed), stream)


@functools.lru_cache(maxsize=64)
def _solved(config: Config, model: Model) -> Descents:
    tasks, K = model.tasks, model.layers
    key = jax.random.fold_in(jax.random.key(config.seed), SPECTRUM)
    values = context_eigenvalues(key, tasks, config.solver_contexts)
    seconds: dict[str, float] = {}

    def solve(name: str, **how: Any) -> Polynomial:
        start = time.perf_counter()
        found = optimal_polynomial(values, tasks, layers=K, seed=config.seed, **how)
        seconds[name] = time.perf_counter() - start
        return found

    with stage(f"closed form, {K} layer{'s' * (K > 1)}, N = {tasks.context}"):
        gd = solve("gd", tied=True, plus_plus=False)
        if K == 1:  # exactly, from moments
            gd = gd._replace(eta=np.array([optimal_rate(tasks)]))
        plus_plus = gd if K == 1 else solve("gd++", tied=model.recurrent)
        best = plus_plus if K == 1 or not model.recurrent else solve("closed_form", tied=False)
    if config.gd_rate == "line-search":
        validation = sample_tasks(jax.random.fold_in(jax.random.key(config.seed), VALIDATION), tasks, config.validation_tasks)
        gd = gd._replace(eta=np.full(K, line_search(validation, steps=K, rates=paper_rates())[0]))
    seconds.setdefault("gd++", seconds["gd"])
    seconds.setdefault("closed_form", seconds["gd++"])
    return Descents(gd, plus_plus, best, seconds)


def descents(job: Job, model: Model) -> Descents:
    """The optimal descents of as many steps as a model has layers; found once in a process."""
    return _solved(job.config, model)


def predictors(job: Job, model: Model) -> dict[str, Predictor]:
    """The predictors that need no training, by name."""
    found, K, tasks = descents(job, model), model.layers, model.tasks
    penalty = max(float(tasks.noise) ** 2, _penalty) / float(tasks.weight_scale) ** 2

    def plus_plus(rates: Polynomial) -> Predictor:
        eta, gamma = (jnp.asarray(rate, jnp.float32) for rate in (rates.eta, rates.gamma))
        return batched(lambda s: gd_plus_plus(s, eta, gamma, steps=K)[-1])

    gd_eta = jnp.asarray(found.gd.eta, jnp.float32)
    chosen: dict[str, Predictor] = {"gd": batched(lambda s: gradient_descent(s, gd_eta, steps=K)[-1])}
    if K > 1:
        chosen["gd++"] = plus_plus(found.plus_plus)
    return chosen | {
        "closed_form": plus_plus(found.best),
        "constructed": attention_predictor(job, model, constructed_layers(model, found)),
        "ridge": batched(lambda s: ridge(s, penalty)),
    }


def constructed_layers(model: Model, found: Descents) -> Layer:
    """The weights that perform GD++ (GD where K = 1), as many as the model has."""
    rates = found.plus_plus
    free = 1 if model.recurrent else model.layers
    sizes = model.tasks.dim, model.tasks.context
    return descent_layers(*sizes, rates.eta[:free], gamma=rates.gamma[:free], outputs=model.tasks.outputs)


def attention_predictor(job: Job, model: Model, layers: Layer) -> Predictor:
    """Layers of weights as a predictor, their tokens clipped as in training."""
    clip = make_recipe(job.config, model.layers).token_clip
    return lambda batch: predict_batch(layers, batch, depth=model.layers, clip=clip)


def reference(model: Model) -> str:
    """The descent that K layers are expected to be."""
    return "gd" if model.layers == 1 else "gd++"


def of_seed(params: Layer, n: int) -> Layer:
    """The layers of one seed."""
    return jax.tree.map(lambda leaf: leaf[n], params)


def trained_layers(job: Job, model: Model, start: str = "cold", *, steps: int | None = None, seeds: int | None = None) -> Layer:
    """The layers of every seed, [seeds, layers, ...], trained now or by the run that this one resumes."""
    config, name = job.config, f"{start}_{model.name}"
    path = job.folder.path / "checkpoints" / name
    if is_checkpoint(path):
        return Layer(*(jnp.asarray(leaf) for leaf in load_checkpoint(path)["params"]))
    found, recipe = descents(job, model), make_recipe(config, model.layers)
    steps = steps or (config.steps if start == "cold" else config.warm_steps)
    numbers = list(range(config.seed, config.seed + (seeds or config.seeds)))
    validation = sample_tasks(random_key(job, VALIDATION), model.tasks, config.validation_tasks)
    measured = {what: answers(predictors(job, model)[what], validation) for what in {"gd", reference(model)}}

    @jax.jit
    def of_one(params: Layer) -> dict[str, Array]:
        ours = answers(attention_predictor(job, model, params), validation)
        apart = {what: difference(ours, theirs)._asdict() for what, theirs in measured.items()}
        gd = {f"gd_{what}": value for what, value in apart["gd"].items()}
        return {"loss": jnp.mean(ours.loss), **apart[reference(model)], **(gd if model.layers > 1 else {})}

    def evaluate(params: Layer) -> Mapping[str, Any]:
        by_seed = [of_one(of_seed(params, n)) for n in range(len(numbers))]
        return {what: [float(values[what]) for values in by_seed] for what in by_seed[0]}

    def on_evaluation(entry: Mapping[str, Any]) -> None:
        job.folder.log(event="evaluation", model=name, **entry)
        if entry["step"] % 1000 == 0:
            told = f"loss {np.mean(entry['loss']):.4f}, cosine {np.mean(entry['cosine']):.4f}"
            console.print(f"    {name}: step {entry['step']}, {told}, {entry['seconds']:.0f} s")

    for what, theirs in measured.items():
        job.folder.log(event="reference", model=name, predictor=what, loss=float(jnp.mean(theirs.loss)))
    partial = path.with_name(f"{name}.partial")
    with stage(f"training {name}, {len(numbers)} seeds", "steps") as progress:
        trained = train(
            _start(job, model, start, found, numbers),
            model.tasks,
            recipe,
            steps=steps,
            seeds=numbers,
            evaluate=evaluate,
            devices=config.devices,
            checkpoints=partial,
            on_evaluation=on_evaluation,
            progress=progress,
        )
    job.folder.log(event="trained", model=name, steps=steps, seconds=trained.seconds, seeds=numbers)
    save_checkpoint(path, {"params": [np.asarray(leaf) for leaf in trained.params]})
    shutil.rmtree(partial, ignore_errors=True)
    return Layer(*(jnp.asarray(leaf) for leaf in trained.params))


def _start(job: Job, model: Model, start: str, found: Descents, seeds: list[int]) -> Layer:
    """Random weights of every seed, or those of the closed form."""
    width, free = model.tasks.dim + model.tasks.outputs, 1 if model.recurrent else model.layers
    if start == "warm":
        constructed = constructed_layers(model, found)
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * len(seeds)), constructed)
    scale = init_scale(job.config, model.layers, width)
    drawn = [init_layers(jax.random.fold_in(jax.random.key(seed), 0), width, layers=free, scale=scale) for seed in seeds]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)


def has_rows(job: Job, experiment: str, **wanted: Any) -> bool:
    """Whether the run has finished (a part of) an experiment already."""
    rows = [row for row in job.folder.rows() if row["experiment"] == experiment]
    return any(all(row.get(name) == value for name, value in wanted.items()) for row in rows)


def add_row(job: Job, experiment: str, model: Model, predictor: str, **more: Any) -> None:
    """Add a row to results.json; what is not said is not measured."""
    row = {
        "experiment": experiment,
        "predictor": predictor,
        "layers": model.layers,
        "recurrent": model.recurrent,
        "dim": model.tasks.dim,
        "context": model.tasks.context,
        **dict.fromkeys(("seed", "loss", "cosine", "model_difference", "prediction_difference", "gamma", "eta", "seconds")),
        "steps": 0,
        "start": None,
        "reference": reference(model),
        "inputs": model.tasks.inputs,
        "settings": job.config.settings,
    } | more
    job.folder.log(event="row", **row)
    job.folder.add_row(row)


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
    found = descents(job, model)
    named: dict[tuple[str, str | None, int | None], Predictor] = {
        (name, None, None): predictor for name, predictor in predictors(job, model).items()
    }
    constructed = constructed_layers(model, found)
    for start, of_all in params.items():
        for n in range(len(of_all.P)):
            layers = of_seed(of_all, n)
            named["trained", start, n] = attention_predictor(job, model, layers)
            if start == "cold" and model.recurrent:
                named["interpolated", start, n] = attention_predictor(
                    job, model, interpolate(layers, constructed, dim=model.tasks.dim)
                )
    with stage(f"testing {model.name}", "tasks") as progress:
        measured = test(job, model, named, progress)
    trained_in = {event["model"]: event for event in job.folder.events("trained")}
    for (name, start, n), values in measured.items():
        more: dict[str, Any] = {"seconds": found.seconds.get(name)}
        if start is not None and n is not None:
            run = trained_in[f"{start}_{model.name}"]
            more = {"start": start, "seed": run["seeds"][n], "steps": run["steps"], "seconds": run["seconds"]}
            if name == "trained" and model.recurrent:
                eta, gamma = descent_rates(
                    jax.tree.map(lambda leaf, start=start, n=n: leaf[n, 0], params[start]),
                    dim=model.tasks.dim,
                    context=model.tasks.context,
                )
                more |= {"eta": float(eta), "gamma": float(gamma) if model.layers > 1 else None}
        elif name != "ridge":
            rates = {"gd": found.gd, "closed_form": found.best}.get(name, found.plus_plus)
            more |= {"eta": _plain(rates.eta), "gamma": _plain(rates.gamma) if name != "gd" and model.layers > 1 else None}
            more |= {"quantiles": list(rates.quantiles) if name != "constructed" else None}
        add_row(job, experiment, model, name, **values, **more)


def test(job: Job, model: Model, named: Mapping[Any, Predictor], progress: Any) -> dict[Any, dict[str, float]]:
    """Loss, its standard error, and differences to the reference, of every predictor on the same fresh tasks."""
    size = min(_block, job.config.test_tasks)
    blocks = -(-job.config.test_tasks // size)
    compare_with = (reference(model), None, None)

    @jax.jit
    def of_block(key: Array) -> dict[str, dict[str, Array]]:
        batch = sample_tasks(key, model.tasks, size)
        said: dict[Any, Answers] = {name: answers(predictor, batch) for name, predictor in named.items()}
        return {
            str(name): {
                "loss": jnp.mean(ours.loss),
                "square": jnp.mean(ours.loss**2),
                "paired": jnp.mean(ours.loss - said[compare_with].loss),
                **difference(ours, said[compare_with])._asdict(),
            }
            for name, ours in said.items()
        }

    sums: list[dict[str, dict[str, Array]]] = []
    for n in range(blocks):
        sums.append(jax.tree.map(float, of_block(jax.random.fold_in(random_key(job, TEST), n))))
        progress((n + 1) * size, blocks * size)
    means = jax.tree.map(lambda *values: float(np.mean(values)), *sums)
    tested = {}
    for name in named:
        values = dict(means[str(name)])
        square, paired = values.pop("square"), values.pop("paired")
        error = float(np.sqrt(max(square - values["loss"] ** 2, 0) / (blocks * size)))
        tested[name] = values | {"standard_error": error, "above_reference": paired, "test_tasks": blocks * size}
    return tested


def _plain(rates: np.ndarray) -> float | list[float]:
    """One number where all layers share it."""
    return float(rates[0]) if np.ptp(rates) == 0 else [float(rate) for rate in rates]

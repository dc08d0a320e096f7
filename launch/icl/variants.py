"""The experiments of launch.icl on other layers or fewer tasks: softmax, LayerNorm, heads, finite data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.comparison import sweep_loss
from icl.models.attention import Layer, init_layers, maps
from icl.models.batched import Regression
from icl.models.constructions import softmax_descent_layer
from icl.tasks import sample_tasks
from jexplicit.runs.progress import stage
from launch.icl.config import effort, init_scale, make_recipe, make_regression
from launch.icl.models import (
    SWEEP,
    VALIDATION,
    Family,
    Job,
    Model,
    Name,
    add_rows,
    by_attention_of,
    compared,
    each,
    families,
    has_rows,
    random_key,
    reference,
    references,
    row_of,
    test,
)
from launch.icl.reading import HEADS
from launch.icl.training import load_trained, train_and_save

_sweep_tasks = 5000  # at most


def softmax(job: Job) -> None:
    """One head and two heads with softmax, trained; and two that are a step of descent by construction."""
    if has_rows(job, "softmax"):
        return
    model = Model(job.tasks, 1, True)
    problem = replace(make_regression(job.config, job.tasks, 1), softmax=True)
    named: dict[Name, Family] = {}
    for heads in (1, 2):
        params = _layers(job, "softmax", f"softmax_{heads}_heads", model, problem, heads=heads)
        named["trained", f"{heads} heads"] = Family(by_attention_of(problem), params, _seeds(job, "softmax"))
    built = softmax_descent_layer(job.tasks.dim, job.tasks.context, _centred_rate(job))
    named["constructed", "2 heads"] = Family(by_attention_of(problem), jax.tree.map(lambda leaf: leaf[None], built), [None])
    shown: dict[str, Any] = {}
    for name in (("trained", "1 heads"), ("trained", "2 heads"), ("constructed", "2 heads")):
        M, R = maps(each(named[name].weights)[0])  # [1, heads, width, width]
        shown["{}, {}".format(*name)] = np.asarray(M[0] * R[0, :, -1:, -1:])
    np.savez_compressed(job.folder.path / HEADS, **shown)
    _write(job, "softmax", model, named)


def layernorm(job: Job) -> None:
    """One layer and two recurrent ones that read normalised tokens, and how they fare on other input ranges."""
    for layers in (1, 2):
        if has_rows(job, "layernorm", layers=layers):
            continue
        model = Model(job.tasks, layers, True)
        problem = replace(make_regression(job.config, job.tasks, layers), layernorm=True)
        params = _layers(job, "layernorm", f"layernorm_K{layers}", model, problem)
        named: dict[Name, Family] = {("trained", None): Family(by_attention_of(problem), params, _seeds(job, "layernorm"))}
        shown = named | {("gd", None): families(job, model)["gd", None]}
        laws = [replace(job.tasks, input_range=float(job.tasks.input_range * r)) for r in np.linspace(0.5, 2.0, 16)]
        for (name, _), family in shown.items():
            loss = sweep_loss(random_key(job, SWEEP), family.predict, min(_sweep_tasks, job.config.test_tasks))
            for n, weights in enumerate(each(family.weights)):
                about = {"model": f"layernorm_K{layers}", "predictor": name, "seed": family.seeds[n], "shift": "input_range"}
                values = [float(law.input_range) for law in laws]
                job.folder.log(event="beyond_sweep", **about, values=values, losses=[float(loss(weights, law)) for law in laws])
        _write(job, "layernorm", model, named)


def phase(job: Job) -> None:
    """When the loss drops, by seed: linear attention of one head and of two."""
    if has_rows(job, "phase"):
        return
    model = Model(job.tasks, 1, True)
    named: dict[Name, Family] = {}
    problem = make_regression(job.config, job.tasks, 1)
    for heads in (1, 2):
        params = _layers(job, "phase", f"phase_{heads}_heads", model, problem, heads=heads)
        named["trained", f"{heads} heads"] = Family(by_attention_of(problem), params, _seeds(job, "phase"))
    _write(job, "phase", model, named)


def finite_data(job: Job) -> None:
    """Training on the same few tasks at every step, and the loss on those and on fresh ones."""
    model = Model(job.tasks, 1, True)
    problem = make_regression(job.config, job.tasks, 1)
    for size in job.config.training_tasks:
        if has_rows(job, "finite-data", training_tasks=size):
            continue
        name = f"finite_{size}"
        params = _layers(job, "finite-data", name, model, problem, size=size)
        seeds = _seeds(job, "finite-data")
        losses = {}
        for n, seed in enumerate(seeds):
            same = sample_tasks(jax.random.fold_in(jax.random.key(seed or 0), 0), job.tasks, size)  # as training draws them
            losses[seed] = float(problem.loss(each(params)[n], same))
        named: dict[Name, Family] = {("trained", f"{size} tasks"): Family(by_attention_of(problem), params, seeds)}
        _write(job, "finite-data", model, named, training_tasks=size, train_losses=losses)


def _seeds(job: Job, experiment: str) -> list[int | None]:
    return list(range(job.config.seed, job.config.seed + effort(job.config, experiment).seeds))


def _layers(
    job: Job, experiment: str, name: str, model: Model, problem: Regression, *, heads: int = 1, size: int | None = None
) -> Layer:
    """Trained layers of every seed; `size`, where they are trained on so many tasks again and again."""
    config, width = job.config, model.tasks.dim + model.tasks.outputs
    seeds = [seed for seed in _seeds(job, experiment) if seed is not None]

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> Layer:
        scale = init_scale(config, model.layers, width)
        return init_layers(jax.random.fold_in(key, 0), width, heads=heads, scale=scale)

    start = draw(jnp.stack([jax.random.key(seed) for seed in seeds]))
    if (done := load_trained(job.folder, name, jax.tree.structure(start))) is not None:
        return done
    validation = sample_tasks(random_key(job, VALIDATION), model.tasks, config.validation_tasks)
    measured = references(families(job, model), model, validation)
    for what, theirs in measured.items():
        job.folder.log(event="reference", model=name, predictor=what, loss=float(np.mean(theirs.loss)))

    def evaluate(params: Layer) -> Mapping[str, Any]:
        told = [compared(by_attention_of(problem), one, validation, measured) for one in each(params)]
        cosines = [float(one[reference(model)]["cosine"]) for one in told]
        return {"loss": [float(one["loss"]) for one in told], "cosine": cosines}

    recipe = make_recipe(config, model.layers)
    if size is not None:
        recipe = recipe._replace(batch_size=size, cycle=1)
    steps = effort(config, experiment).steps
    more = {"steps": steps, "seeds": seeds, "evaluate": evaluate, "devices": config.devices}
    return train_and_save(job.folder, name, start, problem, recipe, **more)


def _write(
    job: Job,
    experiment: str,
    model: Model,
    named: dict[Name, Family],
    *,
    train_losses: Mapping[int | None, float] | None = None,
    **about: Any,
) -> None:
    """A row for each predictor and seed on fresh test tasks, and for the descents that they are compared with."""
    everything = {name: family for name, family in families(job, model).items() if name[0] in ("gd", "gd++", "closed_form")}
    everything |= named
    with stage(f"testing {experiment}", "tasks") as progress:
        measured = test(job, model, everything, progress)
    trained_in = {event["model"]: event for event in job.folder.events("trained")}
    rows: list[dict[str, Any]] = []
    for (name, kind), family in everything.items():
        for n, seed in enumerate(family.seeds):
            more: dict[str, Any] = {**measured[name, kind][n], **about, "seed": seed}
            if kind:
                more |= {"heads": int(kind[0])} if kind.endswith("heads") else {}
            if name == "trained":
                run = trained_in[_trained_name(experiment, model, kind)]
                more |= {"start": "cold", "steps": run["steps"], "seconds": run["seconds"]}
                more |= {"train_loss": train_losses[seed]} if train_losses else {}
            rows.append(row_of(experiment, model, name, **more))
    add_rows(job, rows)


def _trained_name(experiment: str, model: Model, kind: str | None) -> str:
    if experiment == "layernorm":
        return f"layernorm_K{model.layers}"
    number, what = (kind or "").split(" ")
    return f"finite_{number}" if what == "tasks" else f"{experiment}_{number}_{what}"


def _centred_rate(job: Job) -> float:
    """The best η of a step whose inputs are taken less their mean, `E tr S / E tr S²` with S of those inputs."""
    X = sample_tasks(random_key(job, VALIDATION), job.tasks, job.config.validation_tasks).X
    centred = X - jnp.mean(X, axis=0, keepdims=True)
    S = jnp.einsum("nib,njb->bij", centred, centred) / job.tasks.context
    return float(jnp.mean(jnp.trace(S, axis1=1, axis2=2)) / jnp.mean(jnp.sum(S**2, axis=(1, 2))))

"""One-layer attention changed in one respect: softmax, layer normalisation, several heads, few training tasks."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.attention import head_maps
from icl.models.constructions import softmax_descent_layer
from icl.tasks import Tasks, sample_tasks
from jexplicit.runs.devices import full_precision
from launch.icl.shared.base import (
    LOSS,
    STYLES,
    VALIDATION,
    Job,
    Model,
    batch_loss,
    effort,
    make_recipe,
    make_regression,
    make_tasks,
    parts,
    random_key,
)
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import (
    Family,
    descent_families,
    descent_family,
    input_ranges,
    measure_families,
    predict_of,
    sweep_families,
    trained_family,
)
from launch.icl.shared.tables import curve, curves, first_steps, loss_by_step, measures, reference_losses
from launch.kit.experiment import Experiment
from launch.kit.rows import Results, Row, groups, melt, points, where
from launch.kit.views import Images, Lines, Table


@parts()
def softmax(job: Job) -> list[Row]:
    """One and two heads of softmax attention.

    Trained, and two heads that are a step of descent by construction.
    """
    tasks = make_tasks(job.config)
    predict = predict_of(replace(make_regression(job.config, tasks, 1), softmax=True))
    layer = softmax_descent_layer(tasks.dim, tasks.context, centred_rate(job.config, tasks))
    families = [*by_heads(job, "softmax", 3, softmax=True), Family("constructed", predict, [(layer, {"heads": 2})])]
    products = {}
    for family in families:
        M, R = head_maps(family.members[0][0])  # [1, heads, width, width]
        products[f"{family.name}, {len(M[0])} head{'s' * (len(M[0]) > 1)}"] = np.asarray(M[0] * R[0, :, -1:, -1:])
    np.savez_compressed(job.folder.path / "heads.npz", **products)
    return compare(job, 1, families)


def compare(job: Job, layers: int, families: list[Family]) -> list[Row]:
    """The rows of predictors with so many recurrent layers, after those of descents."""
    model = Model(make_tasks(job.config), layers, True)
    return measure_families(job, model, [*descent_families(job, model), *families])


def by_heads(job: Job, experiment: str, seeds: int, **changes: Any) -> list[Family]:
    """One layer of one head and one of two, trained."""
    model, runs = Model(make_tasks(job.config), 1, True), effort(job.config, seeds=seeds)
    problem, names = replace(make_regression(job.config, model.tasks, 1), **changes), models_by_heads(experiment).values()
    return [trained_family(job, model, name=name, problem=problem, heads=n, runs=runs) for n, name in enumerate(names, 1)]


def models_by_heads(experiment: str) -> dict[str, str]:
    """The names of these models in files and events, by label."""
    return {label: f"{experiment}_{label[0]}_heads" for label in ("1 head", "2 heads")}


@full_precision
def centred_rate(config: Config, tasks: Tasks) -> float:
    """The best η of a step on centred inputs, `E tr S / E tr S²` with S of those inputs."""
    X = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks).X
    centred = X - jnp.mean(X, axis=0, keepdims=True)
    S = jnp.einsum("nib,njb->bij", centred, centred) / tasks.context
    return float(jnp.mean(jnp.trace(S, axis1=1, axis2=2)) / jnp.mean(jnp.sum(S**2, axis=(1, 2))))


@parts(lambda config: [{"layers": 1}, {"layers": 2}])
def layernorm(job: Job, layers: int) -> list[Row]:
    """With layer normalisation.

    Recurrent layers that read normalised tokens; their losses on other input ranges are events.
    """
    model, name = Model(make_tasks(job.config), layers, True), f"layernorm_K{layers}"
    problem = replace(make_regression(job.config, model.tasks, layers), layernorm=True)
    trained = trained_family(job, model, name=name, problem=problem, runs=effort(job.config, seeds=3))
    shown = [trained, descent_family(job, model, "gd")]
    list(sweep_families(job, "layernorm", name, shown, {"input_range": input_ranges(model.tasks)}))
    return compare(job, layers, [trained])


@parts()
def phase(job: Job) -> list[Row]:
    """When the loss drops, by seed and number of heads."""
    return compare(job, 1, by_heads(job, "phase", 10))


@parts(lambda config: [{"training_tasks": size} for size in config.training_tasks])
def finite_data(job: Job, training_tasks: int) -> list[Row]:
    """Few training tasks.

    Training on the same tasks at every step; their loss is `train_loss`.
    """
    size = training_tasks
    model, recipe = Model(make_tasks(job.config), 1, True), make_recipe(job.config, 1)._replace(batch_size=size, cycle=1)
    trained = trained_family(job, model, name=f"finite_{size}", recipe=recipe, runs=effort(job.config, seeds=1))
    problem, members = make_regression(job.config, model.tasks, 1), []
    for layers, entry in trained.members:
        same = sample_tasks(jax.random.fold_in(jax.random.key(entry["seed"]), 0), model.tasks, size)  # as in training
        members.append((layers, {**entry, "train_loss": float(batch_loss(problem, layers, same))}))
    return compare(job, 1, [trained._replace(members=members)])


def models_by_size(results: Results) -> dict[str, str]:
    """The names of models in files and events, by their number of training tasks."""
    return {f"{size} tasks": f"finite_{size}" for (size,) in groups(results.rows, ["training_tasks"])}


def head_products(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """`M_h R_h[-1, -1]` of each head and their sum: two softmax heads cancel off the diagonal (paper, Fig. 12)."""
    return {
        label: {f"head {n + 1}": product for n, product in enumerate(heads)} | {"sum": heads.sum(axis=0)}
        for label, heads in results.arrays("heads.npz").items()
    }


def losses_on_shifts(results: Results, layers: int) -> list[Row]:
    """The losses of normalised layers and of descent by input range."""
    events = where(results.events("sweep", "model", "predictor", "seed"), model=f"layernorm_K{layers}")
    return [row for e in events for row in points(e["values"], e["losses"], predictor=e["predictor"])]


def by_seed(results: Results) -> list[Row]:
    """The curves of single seeds, which the legend leaves out."""
    return [
        {**row, "loss": loss, "series": f"_{n}" if "step" in row else row["series"]}
        for row in curves(results, models_by_heads("phase"))
        for n, loss in enumerate(np.atleast_1d(row["loss"]))
    ]


def half_way(results: Results) -> list[Row]:
    """The first steps at which the loss is half-way to that of a step of descent, by number of heads and seed."""
    found = []
    for label, model in models_by_heads("phase").items():
        own, level = curve(results, model), reference_losses(results, model)["gd"]
        steps = first_steps(own, lambda e, n, own=own, level=level: e["loss"][n] <= (own[0]["loss"][n] + level) / 2)
        found.append({"heads": label, **{f"seed {n}": "never" if step is None else str(step) for n, step in enumerate(steps)}})
    return found


def by_size(results: Results) -> list[Row]:
    """Losses by number of training tasks, and that of a step of descent."""
    rows = [{**row, "x": str(row["training_tasks"])} for row in where(results.rows, predictor="trained")]
    gd = {"measure": "gd", "value": where(results.rows, predictor="gd")[0]["loss"]}
    return [*melt(rows, {"train_loss": "training tasks", "loss": "fresh tasks"}), gd]


AXES = {"xlabel": "input range", "ylabel": LOSS, "yscale": "log"}
NOTES = {
    "softmax": "von Oswald et al. 2023, Fig. 11 and 12 (5000 steps): one head is worse than descent, two come close.",
    "layernorm": "von Oswald et al. 2023, Fig. 14 (5000 steps, five seeds): worse than descent, but flatter on larger inputs.",
    "phase": "von Oswald et al. 2023, Fig. 15 (5000 steps): one head may stay on a plateau. Steps until half-way to GD:",
    "finite-data": "von Oswald et al. 2023, Fig. 16 (5000 steps): 512 tasks are too few, from 2048 on it is nearly descent.",
}
TABLES = {name: measures({"training_tasks": "training tasks"})._replace(note=note) for name, note in NOTES.items()}
RANGES = [
    Lines(f"layernorm_shift_K{K}", "x", "y", "predictor", "", functools.partial(losses_on_shifts, layers=K), STYLES, AXES)
    for K in (1, 2)
]
SIZES = Lines("finite", "x", "value", "measure", "", by_size, STYLES, {"xlabel": "training tasks", "ylabel": LOSS})
SOFTMAX_VIEWS = [TABLES["softmax"], loss_by_step("softmax", models_by_heads("softmax")), Images("heads", head_products)]
LAYERNORM_VIEWS = [TABLES["layernorm"], *RANGES, loss_by_step("layernorm", {f"K = {K}": f"layernorm_K{K}" for K in (1, 2)})]
PHASE_VIEWS = [TABLES["phase"], Table(rows=half_way), loss_by_step("phase", {})._replace(rows=by_seed)]
FINITE_VIEWS = [TABLES["finite-data"], SIZES, loss_by_step("finite_curves", models_by_size)]

SOFTMAX = Experiment("softmax", Config, softmax, SOFTMAX_VIEWS, title="Softmax")
LAYERNORM = Experiment("layernorm", Config, layernorm, LAYERNORM_VIEWS, title="Layer normalisation")
PHASE = Experiment("phase", Config, phase, PHASE_VIEWS, title="Phase transitions")
FINITE_DATA = Experiment("finite-data", Config, finite_data, FINITE_VIEWS, title="Finite training sets")

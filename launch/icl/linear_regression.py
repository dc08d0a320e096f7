"""Linear attention on linear regression, as von Oswald et al. 2023 begin: layers beside steps of gradient descent."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.attention import AttentionLayer, head_maps, roll_out
from icl.problems.comparison import path_losses
from icl.solvers.descent import gradient_descent
from icl.tasks import Sequence, sample_tasks
from jexplicit.runs.devices import full_precision
from jexplicit.runs.progress import stage
from launch.icl.shared.base import (
    LOSS,
    STYLES,
    VALIDATION,
    Effort,
    Job,
    Model,
    effort,
    first_layer,
    make_tasks,
    model_name,
    one_legend,
    parts,
    random_key,
)
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import (
    Family,
    constructed_layers,
    descent,
    input_ranges,
    interpolated_family,
    measure_families,
    sweep_families,
    trained_family,
    untrained_families,
    with_descent_rates,
)
from launch.icl.shared.tables import COMPARISON, curve, reference_losses
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, cell, means, melt, pivot, points, where
from launch.kit.tables import Column
from launch.kit.views import Bars, Images, Lines, Table

_dampings, _rollout_steps = (0.5, 0.75, 1.0), 50


def one_step(config: Config, folder: RunFolder) -> Iterator[Part]:
    """One layer against one step of gradient descent (GD)."""
    yield _compared(Job(config, folder), _one_layer(config), {"cold": effort(config)})


def multi_step(config: Config, folder: RunFolder) -> Iterator[Part]:
    """--layers layers against steps of GD and GD++."""
    warm = {"warm": effort(config)._replace(steps=config.warm_steps)} if config.warm_steps else {}
    yield _compared(Job(config, folder), several_layers(config), {"cold": effort(config), **warm})


def scaling_n(config: Config, folder: RunFolder) -> Iterator[Part]:
    """one-step with other sizes."""
    models = [Model(make_tasks(config, dim=n, context=n), 1, True) for n in config.dims]
    models += [Model(make_tasks(config, context=N), 2, True) for N in config.contexts]
    runs = {"cold": Effort(config.scaling_steps, 1)} if config.scaling_steps else {}
    yield from (_compared(Job(config, folder), model, runs, save=False) for model in models)


def _one_layer(config: Config) -> Model:
    return Model(make_tasks(config), 1, True)


def several_layers(config: Config) -> Model:
    return Model(make_tasks(config), config.layers, config.recurrent or config.layers == 1)


def _compared(job: Job, model: Model, runs: dict[str, Effort], *, save: bool = True) -> Part:
    """All predictors on fresh test tasks: without training, trained from each start, interpolated."""

    def part() -> list[Row]:
        trained = [trained_family(job, model, start=start, runs=run) for start, run in runs.items()]
        if save:
            _save_weights(job, model, trained[0].members[0][0])
        also = [family for of_start in trained for family in _with_interpolated(job, model, of_start)]
        return measure_families(job, model, [*untrained_families(job, model), *also])

    return model.sizes, part


def _with_interpolated(job: Job, model: Model, trained: Family) -> list[Family]:
    """Trained layers and, where they began at random weights, their means with constructed ones."""
    families = [with_descent_rates(model, trained) if model.recurrent else trained]
    return families + [interpolated_family(job, model, trained)] * (trained.members[0][1]["start"] == "cold")


def _save_weights(job: Job, model: Model, trained: AttentionLayer) -> None:
    """Save the maps M and R of the first seed, trained and constructed, and the scores of a context."""
    batch, arrays = sample_tasks(random_key(job.config, VALIDATION), model.tasks, 1000), {}
    for name, layers in {"trained": trained, "constructed": constructed_layers(job, model)}.items():
        arrays |= {f"{name} {what}": np.asarray(values) for what, values in _maps_and_scores(layers, batch).items()}
    np.savez_compressed(job.folder.path / f"weights_{model.name}.npz", **arrays)


@jax.jit
@full_precision
def _maps_and_scores(layers: AttentionLayer, batch: Sequence) -> dict[str, jax.Array]:
    """The maps of a stack of layers of one head, and the scores of a context, of one task and their mean."""
    E = jnp.concatenate([batch.X, batch.Y], axis=1)
    query = jnp.concatenate([batch.x_q, jnp.zeros_like(batch.y_q)])[None]
    M, R = head_maps(layers)
    b = jnp.mean(jnp.diagonal(M[:, 0], axis1=-2, axis2=-1)[:, : len(batch.x_q)], axis=-1)[:, None, None]
    scores = jnp.einsum("nib,ij,tjb->ntb", E, M[0, 0], jnp.concatenate([E, query])) / b[0, 0, 0]
    return {"M": M[:, 0] / b, "R": R[:, 0] * b, "scores": scores[..., 0], "mean scores": jnp.mean(scores, axis=-1)}


def out_of_distribution(config: Config, folder: RunFolder) -> Iterator[Part]:
    """One layer and --layers layers on shifted tasks."""
    for model in dict.fromkeys((_one_layer(config), several_layers(config))):
        yield model.sizes, functools.partial(_shifted, Job(config, folder), model)


def _shifted(job: Job, model: Model) -> list[Row]:
    """Losses by input range, weight scale and input distribution; rows have both ends, and what is nearest to 1 and 1.5."""
    tasks = model.tasks
    shifts = {
        "input_range": input_ranges(tasks),
        "weight_scale": [replace(tasks, weight_scale=float(c)) for c in np.linspace(0.5, 5.0, 10)],
        "mixture": [replace(tasks, inputs="mixture", input_range=float(r)) for r in np.linspace(0.5, 5.0, 10)],
    }
    families = [*untrained_families(job, model), *_with_interpolated(job, model, trained_family(job, model))]
    rows = []
    with stage(f"shifted tasks, {model.name}", "sweeps") as progress:
        total = len(shifts) * sum(len(family.members) for family in families)
        for done, found in enumerate(sweep_families(job, "out-of-distribution", model.name, families, shifts), 1):
            values, losses = found.pop("values"), found.pop("losses")
            nearest = (int(np.argmin(np.abs(np.array(values) - v))) for v in (1.0, 1.5))
            rows += [model.row(**found, value=values[n], loss=losses[n]) for n in sorted({0, len(values) - 1, *nearest})]
            progress(done, total)
    return rows


@parts()
def rollout(job: Job) -> list[Row]:
    """One layer applied 50 times.

    A trained layer, and as many steps of gradient descent, damped.
    """
    model = _one_layer(job.config)
    trained = trained_family(job, model)
    eta = float(descent(job, model, "gd")[0].eta[0])
    batch = sample_tasks(random_key(job.config, VALIDATION), model.tasks, min(job.config.validation_tasks, 2000))

    @jax.jit
    def path(layer: AttentionLayer | None, damping: jax.Array, batch: Sequence) -> jax.Array:
        if layer is None:
            return path_losses(lambda s: gradient_descent(s, damping * eta, steps=_rollout_steps), batch)
        return path_losses(lambda s: roll_out(layer, s, steps=_rollout_steps, damping=damping, y_only=True), batch)

    layers = {None: None, **{entry["seed"]: first_layer(one) for one, entry in trained.members}}
    rows = []
    with stage("roll-out"):
        for damping, (seed, layer) in itertools.product(_dampings, layers.items()):
            name, values = "gd" if layer is None else "trained", np.asarray(path(layer, jnp.asarray(damping), batch))
            losses = [float(loss) if np.isfinite(loss) else None for loss in values]
            job.folder.log(event="rollout", predictor=name, seed=seed, damping=damping, losses=losses)
            more = {"seed": seed, "damping": damping, "loss": losses[-1], "eta": damping * eta, "steps": _rollout_steps}
            rows.append(model.row(name, **more))
    return rows


_panels = {"loss": "validation loss", "cosine": "cosine of sensitivities"}
_distances = {"prediction_difference": "distance of predictions", "model_difference": "distance of sensitivities"}


def training(results: Results) -> list[str]:
    """The figure of loss, agreement with descent and distances to it by step (paper, Fig. 2, 3, 7)."""
    model = model_name(results.rows[0])
    starts = {"trained": f"cold_{model}", "warm": f"warm_{model}"}
    rows = [{**entry, "series": series} for series, name in starts.items() for entry in curve(results, name)]
    rows += [{"series": name, "loss": loss} for name, loss in reference_losses(results, f"cold_{model}").items()]
    by_panel: dict[str, Any] = dict.fromkeys(_distances.values(), {"yscale": "log", "ylim": (1e-3, None)})  # warm begins at 0
    by_panel[_panels["loss"]] = {"yscale": "log"}
    axes, melted = {"xlabel": "training step", "ylabel": ""}, melt(rows, _panels | _distances)
    figure = Lines(f"training_{model}", "step", "value", "series", "measure", melted, STYLES, axes, by_panel, (3.4, 3.2))
    return figure._replace(finish=one_legend)(results)


def weights(results: Results) -> list[str]:
    """The figures of the maps M = W_Kᵀ W_Q and R = P W_V, and of the scores of a context (paper, Fig. 9), of the first seed."""
    name, first, layers = model_name(results.rows[0]), {}, {}
    for key, values in results.arrays(f"weights_{name}.npz").items():
        predictor, _, what = key.partition(" ")
        first.setdefault(predictor, {})[what] = values if values.ndim == 2 else values[0]
        if values.ndim == 3 and len(values) > 1:
            layers[key] = {f"layer {n}": matrix for n, matrix in enumerate(values, 1)}
    of_first = Images(f"weights_{name}", lambda _: first, shared="column")
    return [*of_first(results), *Images(f"layers_{name}", lambda _: layers, size=(2.0, 1.8))(results)]


def shifts(results: Results) -> list[str]:
    """The figures of losses on shifted tasks (paper, Fig. 2 right and 6), without what is far above descent."""
    lines = []
    for model in dict.fromkeys(map(model_name, results.rows)):
        found = results.events("sweep", "experiment", "model", "shift", "predictor", "seed")
        sweeps = where(found, experiment="out-of-distribution", model=model)
        highest = {event["shift"]: 100 * max(event["losses"]) for event in where(sweeps, predictor="gd")}
        rows = []
        for e in sweeps:
            found = points(e["values"], e["losses"], predictor=e["predictor"], shift=e["shift"].replace("_", " "))
            rows += [row for row in found if e["predictor"] != "constructed" and row["y"] <= highest[e["shift"]]]
        axes = {"xlabel": "", "yscale": "log", "ylabel": LOSS}
        figure = Lines(f"shifts_{model}", "x", "y", "predictor", "shift", rows, STYLES, axes, finish=one_legend)
        lines += figure(results)
    return lines


def _paths(results: Results) -> list[Row]:
    """The losses of roll-outs by step; those that diverge end."""
    return [
        {**event, "step": step, "loss": loss, "panel": f"damping {event['damping']:g}"}
        for event in results.events("rollout", "damping", "predictor", "seed")
        for step, loss in enumerate(event["losses"], 1)
        if loss is not None and loss <= 10 * event["losses"][0]
    ]


ROLLOUT = Table(
    [
        Column("damping", "damping", "g"),
        Column("predictor", "predictor"),
        *(Column(f"step {n}", cell(n, "loss"), ".4g") for n in (1, 2, 5, 10, 20, 50)),
    ],
    lambda results: pivot(means(_paths(results), ["damping", "predictor", "step"]), ["damping", "predictor"], "step"),
)

_log = {"xscale": "log", "yscale": "log", "ylabel": LOSS}
_paths_drawn = Lines("rollout", "step", "loss", "predictor", "panel", _paths, STYLES, _log, sharey=True, finish=one_legend)
_sizes = Bars("scaling", "context", "loss", "predictor", "", {"layers": 1, "predictor": ("closed_form", "trained")}, STYLES)
SIZES = _sizes._replace(axes={"xlabel": "N = d", "ylabel": LOSS}, form=".3f")
COMPARED = [COMPARISON, training, weights]
ONE_STEP = Experiment("one-step", Config, one_step, COMPARED, title="One layer is one step")
MULTI_STEP = Experiment("multi-step", Config, multi_step, COMPARED, title="Several layers are steps of GD++")
OUT_OF_DISTRIBUTION = Experiment("out-of-distribution", Config, out_of_distribution, [shifts], title="Shifted tasks")
ROLL_OUT = Experiment("rollout", Config, rollout, [ROLLOUT, _paths_drawn], title="Roll-out")
SCALING = Experiment("scaling-N", Config, scaling_n, [COMPARISON, SIZES], title="Other sizes")

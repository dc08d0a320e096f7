"""Trained layers of attention on linear regression, beside descent and with changes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from icl.attention import head_maps, interpolate, softmax_descent_layer, softmax_layers
from icl.rates import context_eigenvalues, evaluate_polynomial
from icl.tasks import Tasks, sample_tasks
from jexplicit.runs.devices import full_precision
from launch.icl import training
from launch.icl.config import CurvatureConfig, DeepSoftmaxConfig, LayerFlags, MultiStepConfig, OneStepConfig, SoftmaxConfig
from launch.icl.rates import SPECTRUM, VALIDATION, Job, Model, experiment, make_model, model_name, random_key
from launch.icl.training import COMPARISON, STYLES, curves, loss_by_step, measures
from launch.kit.views import Column, Images, Lines, Results, Row, Table, cell, means, melt, pivot, where

# Linear attention on linear regression compared with gradient descent (von Oswald 2023).


def regression(job: Job[OneStepConfig | MultiStepConfig]) -> list[Row]:
    """Untrained, trained and interpolated predictors on fresh test tasks.

    Several layers are also trained from the solution.
    """
    config, runs = job.config, {"cold": job.config.steps}
    model = make_model(config)
    if isinstance(config, MultiStepConfig):
        model = make_model(config, config.layers, recurrent=config.recurrent)
        runs |= {"warm": config.warm_steps} if config.warm_steps else {}
    families = training.untrained_families(config, model)
    for start, steps in runs.items():
        trained = training.trained_family(job, model, start=start, steps=steps)
        families.append(training.with_descent_rates(model, trained) if model.recurrent else trained)
        if start == "cold":
            constructed, dim = training.constructed_layers(config, model), model.tasks.dim
            means = [(interpolate(layers, constructed, dim=dim), entry) for layers, entry in trained.members]
            families.append(trained._replace(name="interpolated", members=means))
    return training.measure_families(config, model, families)


_panels = {
    **{"loss": "validation loss", "cosine": "cosine of sensitivities"},
    **{"prediction_difference": "distance of predictions", "model_difference": "distance of sensitivities"},
}


def training_curves(results: Results) -> list[str]:
    """The figure of training: loss, agreement and distances by step (paper, Fig. 2)."""
    model = model_name(results.rows[0])
    found = curves(results, {"trained": f"cold_{model}", "warm": f"warm_{model}"})
    rows = [{**row, "series": row["label"] if "step" in row else row["series"]} for row in found]
    logs: dict[str, Any] = {label: {"yscale": "log", "ylim": (1e-3, None)} for label in list(_panels.values())[2:]}
    by_panel, axes = {**logs, _panels["loss"]: {"yscale": "log"}}, {"xlabel": "training step", "ylabel": ""}
    size = (3.4, 3.2)  # a warm start begins at a distance of 0
    figure = Lines(f"training_{model}", "step", "value", "series", "measure", melt(rows, _panels), STYLES, axes, by_panel, size)
    return figure._replace(legend="right")(results)


REGRESSION_VIEWS = [COMPARISON, training_curves]
ONE_STEP = experiment("one-step", regression, REGRESSION_VIEWS, title="One layer is one step")
MULTI_STEP = experiment("multi-step", regression, REGRESSION_VIEWS, title="Several layers are steps of GD++")


# Softmax attention, in one layer and in several.


def compared(job: Job[LayerFlags], model: Model, families: list[training.Family]) -> list[Row]:
    """The rows of predictors, after the rows of descents."""
    return training.measure_families(job.config, model, [*training.descent_families(job.config, model), *families])


HEADS = {"1 head": "softmax_1_heads", "2 heads": "softmax_2_heads"}  # names in files and events, by label


def softmax(job: Job[SoftmaxConfig]) -> list[Row]:
    """One softmax layer, and the products of its heads in heads.npz."""
    model = make_model(job.config)
    problem = training.make_regression(model, softmax=True)
    layer = softmax_descent_layer(model.tasks.dim, model.tasks.context, centred_rate(job.config, model.tasks))
    trained = partial(training.trained_family, job, model, problem=problem)
    found = [trained(name=name, heads=n) for n, name in enumerate(HEADS.values(), 1)]
    found.append(training.Family("constructed", training.predict_of(problem), [(layer, {"heads": 2})]))
    products = {}
    for family, heads in zip(found, (*HEADS, "2 heads"), strict=True):
        M, R = head_maps(family.members[0][0])  # [1, heads, width, width]
        products[f"{family.name}, {heads}"] = np.asarray(M[0] * R[0, :, -1:, -1:])
    np.savez_compressed(job.folder.path / "heads.npz", **products)
    return compared(job, model, found)


@full_precision
def centred_rate(config: LayerFlags, tasks: Tasks) -> float:
    """The best η on centred inputs, `E tr S / E tr S²`."""
    X = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks).X
    centred = X - jnp.mean(X, axis=0, keepdims=True)
    S = jnp.einsum("nib,njb->bij", centred, centred) / tasks.context
    return float(jnp.mean(jnp.trace(S, axis1=1, axis2=2)) / jnp.mean(jnp.sum(S**2, axis=(1, 2))))


_sharpness = 0.3  # of the scores of the first layer, which are below 1
STARTS = {"cold": "softmax_cold", "warm": "softmax_warm"}


def deep_softmax(job: Job[DeepSoftmaxConfig]) -> list[Row]:
    """--layers layers with two heads: constructed, and trained from random weights and from these."""
    config, model = job.config, make_model(job.config, job.config.layers, recurrent=job.config.recurrent)
    problem = training.make_regression(model, softmax=True)
    exploding = replace(problem, clip=training.WARM_CLIP)  # constructed layers stay below
    linear, rates = training.constructed_layers(config, model), training.descent(config, model, "gd++")[0].eta
    sharpness = (_sharpness * rates / rates[0])[: len(linear.P)]  # inputs shrink from layer to layer, as rates grow
    layers = softmax_layers(linear, model.tasks.context, sharpness=sharpness)
    trained = partial(training.trained_family, job, model, heads=2)
    constructed = training.Family("constructed", training.predict_of(exploding), [(layers, {"heads": 2})])
    families = [constructed, trained(name=STARTS["cold"], problem=problem)]
    if config.warm_steps:
        warm: Any = {"start": "warm", "init": lambda key: layers, "steps": config.warm_steps}
        families.append(trained(name=STARTS["warm"], problem=exploding, **warm))
    return compared(job, model, families)


def head_products(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """The products of each head and their sum (paper, Fig. 12)."""
    return {
        label: {f"head {n + 1}": product for n, product in enumerate(heads)} | {"sum": heads.sum(axis=0)}
        for label, heads in results.arrays("heads.npz").items()
    }


_softmax = "von Oswald et al. 2023, Fig. 11 and 12 (5000 steps): one head is worse than descent, two come close."
SOFTMAX_VIEWS = [measures(note=_softmax), loss_by_step("softmax", HEADS), Images("heads", head_products)]
DEEP_VIEWS = [measures(), loss_by_step("deep_softmax", STARTS)]
SOFTMAX = experiment("softmax", softmax, SOFTMAX_VIEWS, title="Softmax")
DEEP_SOFTMAX = experiment("deep-softmax", deep_softmax, DEEP_VIEWS, title="Layers of softmax attention")


# GD++ lowers the largest eigenvalues of XᵀX (von Oswald 2023, App. A.10).

_by = ["context", "predictor"]
PAPER_GAMMA = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}  # of its trained transformers, by N
_contexts = 10_000  # whose eigenvalues are measured, at most


def curvature(job: Job[CurvatureConfig], context: int) -> Iterator[Row]:
    """The best layers and trained ones, and eigenvalues before and after a layer."""
    config, model = job.config, make_model(replace(job.config, context=context), 2)
    rates, seconds = training.descent(config, model, "gd++")
    values = context_eigenvalues(random_key(config, SPECTRUM + 100), model.tasks, min(config.test_tasks, _contexts))
    found: Row = {"loss": rates.loss, "gamma": float(rates.gamma[0]), "eta": float(rates.eta[0]), "seconds": seconds}
    after = values * (1 - found["gamma"] * values) ** 2  # von Oswald et al. 2023, Eq. 23
    for name, part in (("", values), ("_after", after)):
        highest = part.max(axis=1)
        found |= {f"eigenvalue_max{name}": float(highest.max()), f"mean_eigenvalue_max{name}": float(highest.mean())}
        with np.errstate(divide="ignore"):  # fewer pairs than inputs
            found |= {f"condition{name or '_before'}": float(np.median(highest / part.min(axis=1)))}
    yield model.row("closed_form", **found)
    for _, entry in training.with_descent_rates(model, training.trained_family(job, model)).members:
        tied = {name: np.full(2, entry[name]) for name in ("eta", "gamma")}
        yield model.row("trained", **entry, loss=evaluate_polynomial(values, rates._replace(**tied), model.tasks).loss)


def _largest(when: str) -> Callable[[Row], Any]:
    return cell("closed_form", lambda row: f"{row[f'eigenvalue_max{when}']:.2f} ({row[f'mean_eigenvalue_max{when}']:.2f})")


CURVATURE_TABLE = Table(
    [
        Column("N", "context"),
        Column("γ: solved", cell("closed_form", "gamma"), ".4f"),
        Column("trained here", cell("trained", "gamma"), ".4f"),
        Column("steps", cell("trained", "steps")),
        Column("paper, trained", lambda line: PAPER_GAMMA.get(line["context"]), ".3f"),
        Column("largest eigenvalue before", _largest("")),
        Column("after", _largest("_after")),
        Column("median condition number before", cell("closed_form", "condition_before"), ".3g"),
        Column("after", cell("closed_form", "condition_after"), ".3g"),
    ],
    lambda results: pivot(means(where(results.rows, experiment="curvature"), _by), ["context"], "predictor"),
    note="Eigenvalues are the largest of all contexts and, in brackets, the mean of a context's largest.",
)
CURVATURE = experiment(
    "curvature",
    curvature,
    [CURVATURE_TABLE],
    title="Curvature",
    keys=lambda config: [{"context": N} for N in config.contexts],
)

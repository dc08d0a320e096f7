"""Attention with one change: softmax, depth, layer normalisation, few tasks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from icl.attention import head_maps, softmax_descent_layer, softmax_layers
from icl.descent import sweep_loss
from icl.tasks import Tasks, sample_tasks
from jexplicit.runs.devices import full_precision
from launch.icl import base
from launch.icl.config import DeepSoftmaxConfig, FiniteDataConfig, LayerFlags, LayernormConfig, SoftmaxConfig
from launch.icl.tables import loss_by_step, measures
from launch.kit.views import Images, Results, Row


def compared(job: base.Job[LayerFlags], model: base.Model, families: list[base.Family]) -> list[Row]:
    """The rows of predictors, after the rows of descents."""
    return base.measure_families(job.config, model, [*base.descent_families(job.config, model), *families])


HEADS = {"1 head": "softmax_1_heads", "2 heads": "softmax_2_heads"}  # names in files and events, by label


def softmax(job: base.Job[SoftmaxConfig]) -> Iterator[base.Part]:
    """One softmax layer, and the products of its heads in heads.npz."""

    def part() -> list[Row]:
        model = base.make_model(job.config)
        problem = base.make_regression(model, softmax=True)
        layer = softmax_descent_layer(model.tasks.dim, model.tasks.context, centred_rate(job.config, model.tasks))
        found = [
            base.trained_family(job, model, name=name, problem=problem, heads=n) for n, name in enumerate(HEADS.values(), 1)
        ]
        found.append(base.Family("constructed", base.predict_of(problem), [(layer, {"heads": 2})]))
        products = {}
        for family, heads in zip(found, (*HEADS, "2 heads"), strict=True):
            M, R = head_maps(family.members[0][0])  # [1, heads, width, width]
            products[f"{family.name}, {heads}"] = np.asarray(M[0] * R[0, :, -1:, -1:])
        np.savez_compressed(job.folder.path / "heads.npz", **products)
        return compared(job, model, found)

    yield {}, part


@full_precision
def centred_rate(config: LayerFlags, tasks: Tasks) -> float:
    """The best η on centred inputs, `E tr S / E tr S²`."""
    X = sample_tasks(base.random_key(config, base.VALIDATION), tasks, config.validation_tasks).X
    centred = X - jnp.mean(X, axis=0, keepdims=True)
    S = jnp.einsum("nib,njb->bij", centred, centred) / tasks.context
    return float(jnp.mean(jnp.trace(S, axis1=1, axis2=2)) / jnp.mean(jnp.sum(S**2, axis=(1, 2))))


_sharpness = 0.3  # of the scores of the first layer, which are below 1
STARTS = {"cold": "softmax_cold", "warm": "softmax_warm"}


def deep_softmax(job: base.Job[DeepSoftmaxConfig]) -> Iterator[base.Part]:
    """--layers layers with two heads: constructed, and trained from random weights and from these."""
    config, model = job.config, base.make_model(job.config, job.config.layers, recurrent=job.config.recurrent)

    def part() -> list[Row]:
        problem = base.make_regression(model, softmax=True)
        exploding = replace(problem, clip=base.WARM_CLIP)  # constructed layers stay below
        linear, rates = base.constructed_layers(config, model), base.descent(config, model, "gd++")[0].eta
        sharpness = (_sharpness * rates / rates[0])[: len(linear.P)]  # inputs shrink from layer to layer, as rates grow
        layers = softmax_layers(linear, model.tasks.context, sharpness=sharpness)
        trained = partial(base.trained_family, job, model, heads=2)
        families = [
            base.Family("constructed", base.predict_of(exploding), [(layers, {"heads": 2})]),
            trained(name=STARTS["cold"], problem=problem),
        ]
        if config.warm_steps:
            warm: Any = {"start": "warm", "init": lambda key: layers, "steps": config.warm_steps}
            families.append(trained(name=STARTS["warm"], problem=exploding, **warm))
        return compared(job, model, families)

    yield model.sizes, part


def layernorm(job: base.Job[LayernormConfig]) -> Iterator[base.Part]:
    """Layer normalisation in one and two layers, with events `sweep`."""
    ranges = np.linspace(0.5, 2.0, 16).tolist()

    def part(layers: int) -> list[Row]:
        model, name = base.make_model(job.config, layers), f"layernorm_K{layers}"
        problem = base.make_regression(model, layernorm=True)
        trained = base.trained_family(job, model, name=name, problem=problem)
        for family in (trained, base.descent_family(job.config, model, "gd")):
            loss = sweep_loss(base.random_key(job.config, base.SWEEP), family.predict, min(job.config.test_tasks, 5000))
            for weights, entry in family.members:
                losses = [float(loss(weights, replace(model.tasks, input_range=r))) for r in ranges]
                about = {"predictor": family.name, "seed": entry.get("seed"), "shift": "input_range", "values": ranges}
                job.folder.log(event="sweep", model=name, **about, losses=losses)
        return compared(job, model, [trained])

    yield from (({"layers": layers}, partial(part, layers)) for layers in (1, 2))


def finite_data(job: base.Job[FiniteDataConfig]) -> Iterator[base.Part]:
    """A part for each number of tasks, whose loss is `train_loss`."""

    def part(size: int) -> list[Row]:
        model = base.make_model(job.config)
        recipe = base.make_recipe(job.config)._replace(batch_size=size, cycle=1)
        trained, members = base.trained_family(job, model, name=f"finite_{size}", recipe=recipe), []
        for layers, entry in trained.members:
            same = sample_tasks(
                base.random_key(replace(job.config, seed=entry["seed"]), 0), model.tasks, size
            )  # as in training
            loss = float(base.batch_loss(base.make_regression(model), layers, same))
            members.append((layers, {**entry, "train_loss": loss}))
        return compared(job, model, [trained._replace(members=members)])

    yield from (({"training_tasks": size}, partial(part, size)) for size in job.config.training_tasks)


def head_products(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """The products of each head and their sum (paper, Fig. 12)."""
    return {
        label: {f"head {n + 1}": product for n, product in enumerate(heads)} | {"sum": heads.sum(axis=0)}
        for label, heads in results.arrays("heads.npz").items()
    }


NOTES = {
    "softmax": "von Oswald et al. 2023, Fig. 11 and 12 (5000 steps): one head is worse than descent, two come close.",
    "layernorm": "von Oswald et al. 2023, Fig. 14 (5000 steps, five seeds): worse than descent, but flatter on larger inputs.",
    "finite": "von Oswald et al. 2023, Fig. 16 (5000 steps): 512 tasks are too few, from 2048 on it is nearly descent.",
}
SOFTMAX_VIEWS = [measures(note=NOTES["softmax"]), loss_by_step("softmax", HEADS), Images("heads", head_products)]
DEEP_VIEWS = [measures(), loss_by_step("deep_softmax", STARTS)]
FINITE_VIEWS = [measures({"training_tasks": "training tasks"}, NOTES["finite"])]

SOFTMAX = base.experiment("softmax", softmax, SOFTMAX_VIEWS, title="Softmax")
DEEP_SOFTMAX = base.experiment("deep-softmax", deep_softmax, DEEP_VIEWS, title="Layers of softmax attention")
LAYERNORM = base.experiment("layernorm", layernorm, [measures(note=NOTES["layernorm"])], title="Layer normalisation")
FINITE_DATA = base.experiment("finite-data", finite_data, FINITE_VIEWS, title="Finite training sets")

"""launch.networks lr-search: a range test and a vmapped grid of separate runs, and a training with each rate they pick."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.nn.networks import init_variables, network_outputs
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.samplers import sampler
from jexplicit.nn.steps import initial_state, network_step, variables_of
from jexplicit.nn.studies.learning_rate import grid_search, range_test, sweep_schedule
from jexplicit.runs.progress import console, stage
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row
from launch.kit.views import Lines
from launch.networks.config import RateConfig, checked
from launch.networks.data import Data, finite, image_network, open_pictures
from launch.networks.mlp_lm import language_network, open_text
from launch.networks.training import VIEWS, train_network

_batch_bytes = 1 << 28  # of examples that a compiled run may hold
_loss = objective("softmax_cross_entropy")


def measure(config: RateConfig, folder: RunFolder) -> Iterator[Part]:
    """Range test, grid, and a training run with each of the two rates that they pick."""
    if config.task == "mlp-lm":
        text = open_text(config, "lr-search")
        data, network = text.data, language_network(config, text)
    else:
        _, data = open_pictures(config, "lr-search")
        network = image_network(config, data)
    rate = 0.0
    for name, event, search in (("range test", "sweep", sweep), ("grid", "grid", grid_of_rates)):
        found = folder.events(event)
        rate = found[-1]["picked"] if found else search(config, folder, data, network, rate)
        console.print(f"    the {name} picks {rate:.3g}")
        flags = replace(config, learning_rate=rate)
        yield {"name": name}, functools.partial(train_network, folder, flags, data, network, name, config.task, searched=name)


def sweep(config: RateConfig, folder: RunFolder, data: Data, network: nn.Module, _: float) -> float:
    """The rate that a range test picks."""
    optimizer = make_optimizer(config.optimizer, sweep_schedule(config.lowest, config.highest, config.sweep_steps))
    step = network_step(network, _loss, optimizer)
    batches, size = stacked_batches(config, data, config.sweep_steps)

    def mean_step(state: Any, batch: Any) -> tuple[Any, Array]:
        state, loss = step(state, batch)
        return state, loss / size

    with stage("range test"):
        state = initial_state(init_variables(network, jax.random.key(config.seed), data.train.X[:2]), optimizer)
        test = range_test(mean_step, state, batches, lowest=config.lowest, highest=config.highest)
    curves = {name: finite(getattr(test, name)) for name in ("rates", "losses", "smoothed")}
    folder.log(event="sweep", **curves, picked=test.rate)
    return test.rate


def grid_of_rates(config: RateConfig, folder: RunFolder, data: Data, network: nn.Module, middle: float) -> float:
    """The rate with the lowest dev loss after some steps, all rates side by side."""
    rates = np.geomspace(middle / 10, middle * 10, config.grid)
    variables = init_variables(network, jax.random.key(config.seed), data.train.X[:2])
    batches, _ = stacked_batches(config, data, config.grid_steps)
    X, Y = (jnp.asarray(part[:2048]) for part in data.dev)

    def run(rate: Array) -> Array:
        optimizer = make_optimizer(config.optimizer, rate)
        state, _ = jax.lax.scan(network_step(network, _loss, optimizer), initial_state(variables, optimizer), batches)
        return _loss(network_outputs(network, variables_of(state), X), Y).mean()

    with stage("grid of rates"):
        best, losses = grid_search(run, rates)
    folder.log(event="grid", name="grid", rates=rates.tolist(), losses=finite(losses), picked=best)
    return best


def stacked_batches(config: RateConfig, data: Data, steps: int) -> tuple[Any, int]:
    """The batches of the first steps of a run, [steps, B, ...], and B.

    Raises:
        ValueError: more examples than a compiled run should hold.
    """
    M = len(data.train.X)
    size = min(config.batch_size or M, M)
    needed = steps * size * (data.train.X[0].nbytes + data.train.Y[:1].nbytes)
    if needed > _batch_bytes:
        raise ValueError(f"{steps} steps of {size} examples take {needed / 1e6:.0f} MB: use fewer steps or smaller batches")
    order = sampler(config.sampler, data.labels)
    orders = [order(config.seed, epoch) for epoch in range(1, -(-steps * size // M) + 1)]
    m = np.concatenate(orders)[: steps * size].reshape(steps, size)
    return tuple(jnp.asarray(part[m]) for part in data.train), size


def _searches(results: Results) -> Iterator[Row]:
    """Losses by rate; divergence would flatten the rest."""
    for event in (*results.events("sweep")[-1:], *results.events("grid")[-1:]):
        what = "one run with a rising rate" if "smoothed" in event else "separate runs, dev loss"
        for series in ("losses", "smoothed"):
            for rate, loss in zip(event["rates"], event.get(series, []), strict=False):
                shown = loss is not None and loss < 3 * event["losses"][0]
                row = {"learning_rate": rate, "loss": loss if shown else np.nan, "series": series}
                yield {**row, "panel": f"{what}: picks {event['picked']:.3g}"}


SEARCH = Lines("search", "learning_rate", "loss", "series", "panel", rows=_searches, axes={"xscale": "log"})
EXPERIMENT = Experiment("networks", RateConfig, measure, [*VIEWS, SEARCH], check=checked, title="launch.networks lr-search")

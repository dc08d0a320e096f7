"""Learning rates: the range test and the vmapped grid of separate runs, and launch.networks lr-search, which uses both."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.nn.learning_rate import grid_search, range_test, sweep_schedule
from jexplicit.nn.networks import network_outputs
from jexplicit.nn.objectives import objective
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.samplers import sampler
from jexplicit.nn.steps import initial_state, network_step, variables_of
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from launch.networks.config import RateConfig
from launch.networks.pictures import image_network, open_pictures
from launch.networks.text import language_network, open_text
from launch.networks.training import Data, Job, Plan, make_plan, measure

_batch_bytes = 1 << 28  # of examples that a compiled run may hold


def run_lr_search(config: RateConfig, folder: RunFolder) -> None:
    """Range test, grid, and a training run with each of the two rates that they pick."""
    if config.task == "mlp-lm":
        job, text = open_text(config, folder, "lr-search")
        data, network = text.data, language_network(config, text)
    else:
        job, _, data = open_pictures(config, folder, "lr-search")
        network = image_network(config, data)
    plan = make_plan(config, data, network, name="range test", model=config.task)
    rate = sweep(job, plan, data)
    measure(job, plan._replace(learning_rate=rate), data, searched="range test")
    plan = plan._replace(name="grid")
    rate = grid_of_rates(job, plan, data, np.geomspace(rate / 10, rate * 10, config.grid), config.grid_steps)
    measure(job, plan._replace(learning_rate=rate), data, searched="grid")


def sweep(job: Job, plan: Plan, data: Data) -> float:
    """The rate that a range test picks; from the run folder if it has been run."""
    if found := job.folder.events("sweep"):
        return found[-1]["picked"]
    config = job.config
    optimizer = make_optimizer(plan.optimizer, sweep_schedule(config.lowest, config.highest, config.sweep_steps))
    step = network_step(plan.network, objective(plan.objective), optimizer)
    batches, size = stacked_batches(data, plan, config.sweep_steps, config.seed)

    def mean_step(state: Any, batch: Any) -> tuple[Any, Array]:
        state, loss = step(state, batch)
        return state, loss / size

    with stage("range test"):
        state = initial_state(plan.variables, optimizer)
        test = range_test(mean_step, state, batches, lowest=config.lowest, highest=config.highest)
    curves = {name: _finite_or_none(getattr(test, name)) for name in ("rates", "losses", "smoothed")}
    job.folder.log(event="sweep", **curves, picked=test.rate)
    console.print(f"    the range test picks {test.rate:.3g}")
    return test.rate


def grid_of_rates(job: Job, plan: Plan, data: Data, rates: np.ndarray, steps: int) -> float:
    """The rate with the lowest dev loss after `steps` steps, all rates side by side; from the run folder if it has been run."""
    if found := [event for event in job.folder.events("grid") if event["name"] == plan.name]:
        return found[-1]["picked"]
    goal = objective(plan.objective)
    batches, _ = stacked_batches(data, plan, steps, job.config.seed)
    X, Y = (jnp.asarray(part[:2048]) for part in data.dev)

    def run(rate: Array) -> Array:
        optimizer = make_optimizer(plan.optimizer, rate)
        step = network_step(plan.network, goal, optimizer)
        state, _ = jax.lax.scan(step, initial_state(plan.variables, optimizer), batches)
        return goal.loss(network_outputs(plan.network, variables_of(state), X), Y).mean()

    with stage(f"grid of rates, {plan.name}"):
        best, losses = grid_search(run, rates)
    job.folder.log(event="grid", name=plan.name, rates=rates.tolist(), losses=_finite_or_none(losses), picked=best)
    console.print(f"    {plan.name}: rate {best:.3g}")
    return best


def stacked_batches(data: Data, plan: Plan, steps: int, seed: int) -> tuple[Any, int]:
    """The batches of the first steps of a run, [steps, B, ...], and B.

    Raises:
        ValueError: more examples than a compiled run should hold.
    """
    M = len(data.train.X)
    size = min(plan.batch_size or M, M)
    needed = steps * size * (data.train.X[0].nbytes + data.train.Y[:1].nbytes)
    if needed > _batch_bytes:
        raise ValueError(f"{steps} steps of {size} examples take {needed / 1e6:.0f} MB: use fewer steps or smaller batches")
    order = sampler(plan.sampler, data.labels)
    orders = [order(seed, epoch) for epoch in range(1, -(-steps * size // M) + 1)]
    m = np.concatenate(orders)[: steps * size].reshape(steps, size)
    return tuple(jnp.asarray(part[m]) for part in data.train), size


def _finite_or_none(values: np.ndarray) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in values]

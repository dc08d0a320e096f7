"""Learning rates for the subcommands of launch.networks: the range test, and the vmapped grid of separate runs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.nn.learning_rate import grid_search, range_test, sweep_schedule, train_scanned
from jexplicit.nn.networks import network_outputs
from jexplicit.nn.objectives import objective
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.samplers import sampler
from jexplicit.nn.steps import initial_state, network_step, variables_of
from jexplicit.runs.progress import console, stage
from launch.networks.training import Data, Job, Plan

_batches_at_once = 1 << 28  # bytes of examples that a compiled run may hold


def sweep(job: Job, plan: Plan, data: Data) -> float:
    """The rate that a range test picks, as the run found it."""
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
    rates, losses, smoothed = ([float(x) if np.isfinite(x) else None for x in part] for part in test[:3])
    job.folder.log(event="sweep", rates=rates, losses=losses, smoothed=smoothed, picked=test.picked)
    console.print(f"    the range test picks {test.picked:.3g}")
    return test.picked


def grid_of_rates(job: Job, plan: Plan, data: Data, rates: np.ndarray, steps: int) -> float:
    """The rate with the lowest dev loss after so many steps, of separate runs side by side; as the run found it."""
    found = [event for event in job.folder.events("grid") if event["name"] == plan.name]
    if found:
        return found[-1]["picked"]
    goal = objective(plan.objective)
    batches, _ = stacked_batches(data, plan, steps, job.config.seed)
    X, Y = (jnp.asarray(part[:2048]) for part in data.dev)

    def run(rate: Array) -> Array:
        optimizer = make_optimizer(plan.optimizer, rate)
        state = initial_state(plan.variables, optimizer)
        state, _ = train_scanned(network_step(plan.network, goal, optimizer), state, batches)
        return goal.loss(network_outputs(plan.network, variables_of(state), X), Y).mean()

    with stage(f"grid of rates, {plan.name}"):
        picked, losses = grid_search(run, rates)
    told = [float(loss) if np.isfinite(loss) else None for loss in losses]
    job.folder.log(event="grid", name=plan.name, rates=rates.tolist(), losses=told, picked=picked)
    console.print(f"    {plan.name}: rate {picked:.3g}")
    return picked


def stacked_batches(data: Data, plan: Plan, steps: int, seed: int) -> tuple[Any, int]:
    """The batches of the first steps of a run, [steps, B, ...], and B.

    Raises:
        ValueError: more examples than a compiled run should hold.
    """
    M = len(data.train.X)
    size = min(plan.batch_size or M, M)
    needed = steps * size * (data.train.X[0].nbytes + data.train.Y[:1].nbytes)
    if needed > _batches_at_once:
        raise ValueError(f"{steps} steps of {size} examples take {needed / 1e6:.0f} MB: use fewer steps or smaller batches")
    order = sampler(plan.sampler, data.labels)
    epochs = -(-steps * size // M)
    drawn = np.concatenate([order(seed, epoch) for epoch in range(1, epochs + 1)])[: steps * size].reshape(steps, size)
    return jax.tree.map(functools.partial(jnp.take, indices=drawn, axis=0), tuple(map(jnp.asarray, data.train))), size

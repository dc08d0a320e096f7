"""The bench of icl.training: the same steps written plainly, one sequence at a time under vmap."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icl.models.attention import AttentionLayer, init_layers, predict
from icl.models.batched import Regression
from icl.tasks import Sequence, Tasks, sequences
from icl.training import Recipe, TrainingState, make_optimizer, training_steps
from jexplicit.experiments.tables import Column
from jexplicit.runs.devices import data_mesh
from launch.bench.config import Icl
from launch.bench.shared.harness import Comparison, Timings, bench, losses_differ, step_by_step


class Task(NamedTuple):
    """What is trained: tasks and model, the recipe, initial parameters, the key of the draws, and the steps of a call."""

    regression: Regression
    recipe: Recipe
    start: AttentionLayer
    key: jax.Array
    steps: int


# A method does what is off the clock and returns the call to time, which trains from the same parameters each time and returns
# the loss of every step.


def _ours(task: Task):
    run = training_steps(task.regression, task.recipe, task.steps, data_mesh(1))
    add = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf[None], tree))
    params, keys, first = add(task.start), task.key[None], jnp.zeros((), jnp.int32)
    moments = jax.vmap(make_optimizer(task.recipe, task.steps).init)(params)

    def call() -> np.ndarray:
        state = jax.tree.map(jnp.copy, TrainingState(params, moments))  # it is donated
        return np.asarray(run(state, keys, first)[1])[0]

    return call


def _plain(task: Task):
    return _per_step(task, lambda key: sequences(task.regression.sample(key, task.recipe.batch_size)))


def _plain_sampled(task: Task):
    return _per_step(task, lambda key: jax.vmap(task.regression.tasks.sample)(jax.random.split(key, task.recipe.batch_size)))


def _per_step(task: Task, sample: Callable[[jax.Array], Sequence]) -> Callable[[], np.ndarray]:
    model, optimizer = task.regression, make_optimizer(task.recipe, task.steps)

    def loss(params: AttentionLayer, batch: Sequence) -> jax.Array:
        predictions = jax.vmap(lambda s: predict(params, s, depth=model.depth, clip=model.clip))(batch)
        return jnp.mean(jnp.sum((predictions - batch.y_q) ** 2, axis=1)) / 2

    @jax.jit
    def step(state: tuple[AttentionLayer, Any], n: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, sample(jax.random.fold_in(task.key, n)))
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes dtypes
            updates, moments = optimizer.update(gradient, moments, params)
            return (optax.apply_updates(params, updates), moments), value

    return step_by_step(step, (task.start, optimizer.init(task.start)), task.steps)


OURS, PEER, SAMPLED = "icl", "vmap of one sequence", "vmap, a key per task"
METHODS: dict[str, Callable[[Task], Callable[[], np.ndarray]]] = {OURS: _ours, PEER: _plain, SAMPLED: _plain_sampled}


def comparisons(config: Icl, folder: Path) -> Iterator[Comparison]:
    """* **icl**: `icl.training.training_steps`, batch last, sums of outer products, blocks of 128 tasks, all steps in one scan.
    * **vmap of one sequence**: the same draws, `icl.models.attention.predict` of one sequence under `jax.vmap`, a compiled call
      per step.
    * **vmap, a key per task**: the same with every task drawn from a key of its own, as the paper's code does.
    """

    def row(case: str, timings: Timings) -> dict[str, float]:
        seconds = timings.median(case, "cpu_seconds") / config.steps
        return {"steps_per_second": 1 / seconds, "cpu_ms_per_step": 1e3 * seconds}

    sizes = {name: getattr(config, name) for name in ("dim", "context", "batch_size", "steps")}
    for K in config.layers:
        cases = {name: make(_task(config, K)) for name, make in METHODS.items()}
        yield Comparison(cases, {"layers": K, **sizes}, row, OURS, losses_differ(1e-4), unchecked=[SAMPLED])


def _task(config: Icl, K: int) -> Task:
    regression = Regression(Tasks(dim=config.dim, context=config.context), K, clip=10.0 if K > 3 else None)
    keys = jax.random.split(jax.random.key(config.seed))
    start = init_layers(keys[0], config.dim + 1, layers=1 if K <= 2 else K, scale=0.002 / K)
    return Task(regression, Recipe(batch_size=config.batch_size), start, keys[1], config.steps)


COLUMNS = [Column("steps / CPU s", "steps_per_second", ",.1f"), Column("CPU ms", "cpu_ms_per_step", ".2f")]
PEERS = {"ratio_to_plain": ("vs. vmap", [PEER]), "ratio_to_sampled": ("vs. keys", [SAMPLED])}
run = bench("icl", comparisons, COLUMNS, sizes=["layers"], ours=[OURS], peers=PEERS)

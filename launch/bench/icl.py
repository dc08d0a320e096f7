"""The bench of icl.training: the same steps written plainly, one sequence at a time under vmap."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icl.models.attention import AttentionLayer, init_layers, predict
from icl.models.batched import Regression
from icl.tasks import Sequence, Tasks, sample_tasks, sequences
from icl.training import Recipe, TrainingState, make_optimizer, training_steps
from jexplicit.runs.command import Preset
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.folder import RunFolder
from launch.bench.harness import SECONDS, Bench, compare

_tolerance = 1e-4


@dataclass(frozen=True)
class Icl:
    """Training steps of linear attention, each on fresh regression tasks and with its update: icl.training against plain forms
    of the same step. Methods with the same draws give the same losses, checked first."""

    out: str | None = None
    """New run folder; default, the first free of runs/bench-icl, runs/bench-icl-2, ..."""
    layers: tuple[int, ...] = (1, 2, 5)
    """Numbers of layers K. Each is a comparison of its own; up to two layers share their weights, as in the paper."""
    dim: int = 10
    """Inputs d."""
    context: int = 10
    """Pairs N."""
    batch_size: int = 2048
    """Fresh tasks per step."""
    steps: int = 20
    """Steps per call of a method."""
    rounds: int = 5
    """How often each method is timed; the more, the steadier the medians."""
    seed: int = 0
    """Of the weights to start from, of the tasks, and of the order of the methods in each round."""


class Task(NamedTuple):
    """What is trained: tasks and model, the recipe, where to start, the key of the draws, and the steps of a call."""

    regression: Regression
    recipe: Recipe
    start: AttentionLayer
    key: jax.Array
    steps: int


# A method prepares whatever is off the clock and returns the call to time, which trains from the same start each time and gives
# the loss of every step.


def _ours(task: Task):
    """`icl.training.training_steps`: batch last, sums of outer products, blocks of 128 tasks, all steps in one scan."""
    run = training_steps(task.regression, task.recipe, task.steps, data_mesh(1))
    add = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf[None], tree))
    params, keys, first = add(task.start), task.key[None], jnp.zeros((), jnp.int32)
    moments = jax.vmap(make_optimizer(task.recipe).init)(params)

    def call() -> np.ndarray:
        state = jax.tree.map(jnp.copy, TrainingState(params, moments))  # it is donated
        return np.asarray(run(state, keys, first)[1])[0]

    return call


def _plain(task: Task):
    """The same draws, `icl.models.attention.predict` of one sequence under `jax.vmap`, a compiled call per step."""
    return _per_step(task, lambda key: sequences(task.regression.sample(key, task.recipe.batch_size)))


def _plain_sampled(task: Task):
    """The same with every task drawn by a key of its own, as the paper's code does."""

    def sample(key: jax.Array) -> Sequence:
        return jax.vmap(lambda k: sample_tasks(k, task.regression.tasks))(jax.random.split(key, task.recipe.batch_size))

    return _per_step(task, sample)


def _per_step(task: Task, sample: Callable[[jax.Array], Sequence]) -> Callable[[], np.ndarray]:
    model = task.regression
    optimizer = make_optimizer(task.recipe)

    def loss(params: AttentionLayer, batch: Sequence) -> jax.Array:
        said = jax.vmap(lambda s: predict(params, s, depth=model.depth, clip=model.clip))(batch)
        return jnp.mean(jnp.sum((said - batch.y_q) ** 2, axis=1)) / 2

    @jax.jit
    def step(params: AttentionLayer, moments: Any, n: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, sample(jax.random.fold_in(task.key, n)))
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes dtypes
            updates, moments = optimizer.update(gradient, moments, params)
            return optax.apply_updates(params, updates), moments, value

    moments = optimizer.init(task.start)
    numbers = [jnp.asarray(n, jnp.int32) for n in range(task.steps)]

    def call() -> np.ndarray:
        state, losses = (task.start, moments), []
        for n in numbers:
            *state, value = step(*state, n)
            losses.append(value)
        return np.asarray(jnp.stack(losses))

    return call


OURS, PEER, SAMPLED = "icl", "vmap of one sequence", "vmap, a key per task"
METHODS: dict[str, Callable[[Task], Callable[[], np.ndarray]]] = {OURS: _ours, PEER: _plain, SAMPLED: _plain_sampled}


def measure(config: Icl, folder: RunFolder) -> Iterator[dict[str, Any]]:
    """A comparison per number of layers: equal losses first, then the clock."""
    for K in config.layers:
        calls = {name: make(_task(config, K)) for name, make in METHODS.items()}
        losses = {name: call() for name, call in calls.items()}
        if not np.allclose(losses[PEER], losses[OURS], rtol=_tolerance):
            raise ValueError(f"{OURS} has losses {losses[OURS]}, {PEER} {losses[PEER]}, at K = {K}: mend it before timing it")
        for name, seconds, ratio in compare(config, folder, calls, K):
            yield {
                "method": name,
                "layers": K,
                "dim": config.dim,
                "context": config.context,
                "batch_size": config.batch_size,
                "steps": config.steps,
                "steps_per_second": config.steps / seconds["cpu_seconds"],
                "cpu_ms_per_step": 1e3 * seconds["cpu_seconds"] / config.steps,
                **seconds,
                "ratio_to_plain": ratio(PEER),
                "ratio_to_sampled": ratio(SAMPLED),
            }


def check(config: Icl) -> None:
    """Flags that make no sense."""
    if min(config.dim, config.context, config.batch_size, config.steps) < 1:
        sizes = f"--dim {config.dim}, --context {config.context}, --batch-size {config.batch_size}, --steps {config.steps}"
        raise ValueError(f"{sizes}: each is at least 1")


def _task(config: Icl, K: int) -> Task:
    regression = Regression(Tasks(dim=config.dim, context=config.context), K, clip=10.0 if K > 3 else None)
    keys = jax.random.split(jax.random.key(config.seed))
    start = init_layers(keys[0], config.dim + 1, layers=1 if K <= 2 else K, scale=0.002 / K)
    return Task(regression, Recipe(batch_size=config.batch_size), start, keys[1], config.steps)


BENCH = Bench(
    config=Icl,
    check=check,
    measure=measure,
    methods=METHODS,
    ours=(OURS,),
    ratio=("ratio_to_plain", f"times {PEER}"),
    columns={
        "steps / CPU s": ("steps_per_second", 1, ",.1f"),
        "CPU ms": ("cpu_ms_per_step", 1, ".2f"),
        "vs. vmap": ("ratio_to_plain", 1, ".2f"),
        "vs. keys": ("ratio_to_sampled", 1, ".2f"),
        **SECONDS,
    },
    presets={
        "tiny": Preset(Icl(layers=(1, 2), dim=3, context=4, batch_size=64, steps=3, rounds=2), "20 s on 2 CPU cores."),
        "full": Preset(Icl(rounds=9), "2 minutes on 2 CPU cores."),
    },
    size="layers",
)

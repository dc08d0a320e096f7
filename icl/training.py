"""Training attention on fresh tasks, many steps and seeds in one call.

A step samples tasks, differentiates their loss and updates the parameters; a `lax.scan` over steps is one compiled call. The
batch is processed in blocks that fit the cache; their size changes the result by rounding only. The tasks of a step depend on
(seed, step) alone, so an interrupted run resumes bit for bit from its last checkpoint. Seeds are the first axis of all arrays
and are split over the devices, without communication.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jexplicit.nn.names import ScheduleName
from jexplicit.nn.training import make_schedule
from jexplicit.runs.devices import AXIS, History, data_mesh, iterate, key_of_seed, map_rows, on_cpu


@runtime_checkable
class TrainingProblem(Protocol):
    """A sampler of tasks and a loss, e.g. `icl.Regression`; hashable."""

    def sample(self, key: Array, size: int, dtype: Any = None) -> Any:
        """A pytree of `size` fresh tasks, batch last."""
        ...

    def loss(self, params: Any, batch: Any) -> Float[Array, ""]:
        """The mean loss of a batch."""
        ...


class Recipe(NamedTuple):
    """Hyperparameters of training.

    batch_size: tasks per step.
    learning_rate, b2: of Adam; b1 is 0.9. The paper's code has b2 = 0.98, its text Adam's default, 0.999.
    gradient_clip: largest norm of the gradient. At 0.001, nearly every step uses the normalised gradient.
    cooling: schedule of the learning rate over all steps (`jexplicit.nn.training.make_schedule`). At a constant rate, Adam's
        noise decides how close training comes to the best layers.
    """

    batch_size: int = 2048
    learning_rate: float = 1e-3
    b2: float = 0.98
    gradient_clip: float = 1e-3
    cooling: ScheduleName = "cosine"


class TrainingState(NamedTuple):
    """Parameters and optimiser state of every seed, seeds first."""

    params: Any
    optimizer: Any


class TrainingResult(NamedTuple):
    """The result of `train_layers`.

    params: first axis of each leaf: seeds.
    history: the dictionaries of `evaluate`, from step 0, with `step`, `seconds`, `cpu_seconds` and, after step 0,
        `training_loss`: by seed, the mean loss since the previous entry.
    losses: [seeds, steps] losses of the training batches, each before its update.
    """

    params: Any
    history: list[dict[str, Any]]
    losses: np.ndarray

    @property
    def seconds(self) -> float:
        """Seconds of training, evaluation included, for all seeds together."""
        return self.history[-1]["seconds"]


def blocked_gradient(params: Any, batch: Any, loss: Callable[[Any, Any], Array], *, block: int) -> tuple[Float[Array, ""], Any]:
    """The mean loss of a batch and its gradient, over blocks of tasks."""
    B = jax.tree.leaves(batch)[0].shape[-1]
    gradient = jax.value_and_grad(loss)

    def add(total: Any, n: Array) -> tuple[Any, None]:
        part = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, n * block, block, -1), batch)
        return jax.tree.map(jnp.add, total, gradient(params, part)), None

    zero = jax.tree.map(jnp.zeros_like, (jax.tree.leaves(params)[0].ravel()[0], params))
    total, _ = lax.scan(add, zero, jnp.arange(B // block))
    return jax.tree.map(lambda leaf: leaf * (block / B), total)


def make_optimizer(recipe: Recipe, steps: int) -> optax.GradientTransformation:
    """Adam on clipped gradients, with a schedule over the steps."""
    rate = make_schedule(recipe.cooling, recipe.learning_rate, steps)
    return optax.chain(optax.clip_by_global_norm(recipe.gradient_clip), optax.adam(rate, b2=recipe.b2))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _optimizer_state(recipe: Recipe, steps: int, params: Any) -> Any:
    return jax.vmap(make_optimizer(recipe, steps).init)(params)


@functools.lru_cache(maxsize=64)
def training_steps(
    problem: TrainingProblem, recipe: Recipe, steps: int, mesh: Mesh, *, total: int | None = None
) -> Callable[[TrainingState, Array, Int[Array, ""]], tuple[TrainingState, Float[Array, "seeds steps"]]]:
    """The compiled `(state, keys, first step) -> (state, losses)`; it donates the state."""
    optimizer, block = make_optimizer(recipe, total or steps), _default_block(recipe.batch_size, on_cpu(mesh))

    def step(state: TrainingState, key: Array) -> tuple[TrainingState, Array]:
        batch = problem.sample(key, recipe.batch_size, jax.tree.leaves(state.params)[0].dtype)
        loss, gradient = blocked_gradient(state.params, batch, problem.loss, block=block)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
            updates, moments = optimizer.update(gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
        return TrainingState(params, moments), loss  # pyright: ignore[reportArgumentType]

    def run(state: TrainingState, key: Array, first: Array) -> tuple[TrainingState, Array]:
        keys = jax.vmap(lambda n: jax.random.fold_in(key, n))(first + jnp.arange(steps, dtype=first.dtype))
        return lax.scan(step, state, keys)

    one_thread_a_kernel = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"} if on_cpu(mesh) else {}
    return population_steps(run, mesh, 1, compiler_options=one_thread_a_kernel)


def population_steps(run: Callable[..., Any], mesh: Mesh, shared: int, **options: Any) -> Callable[..., Any]:
    """The compiled `run(state, own, *shared)` of rows, split over devices; donates states."""

    def run_rows(states: Any, own: Any, *others: Any) -> Any:
        return map_rows(lambda row: run(*row, *others), (states, own), mesh)

    split = PartitionSpec(AXIS)
    specs = (split, split, *[PartitionSpec()] * shared)
    sharded = jax.shard_map(run_rows, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    return jax.jit(sharded, donate_argnums=0, **options)


def train_layers(
    params: Any,
    problem: TrainingProblem,
    recipe: Recipe,
    *,
    steps: int,
    seeds: list[int],
    every: int = 100,
    evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
    devices: int | None = None,
    checkpoints: Path | None = None,
    checkpoint_seconds: float = 30.0,
    on_evaluation: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingResult:
    """Train the parameters of a model (attention layers or any other) once per seed.

    Args:
        params: initial parameters, random or from a closed form; the first axis of every leaf is the seed.
        steps: in total, over which the learning rate is scheduled.
        every: steps per compiled call, each followed by an evaluation.
        evaluate: `params -> dictionary` of measures to record.
        devices: number of devices to split the seeds over; default, all. On CPUs it does not change the results.
        checkpoints: folder for checkpoints; training resumes from an existing one.
        progress: called with (steps done, steps in total), summed over seeds.

    Raises:
        FloatingPointError: a loss that is not finite, with the seed and step.
        ValueError: numbers below 1, a number of parameters other than that of seeds, or a checkpoint of another model.

    Example::

        layers = jax.vmap(lambda key: init_layers(key, 11))(jax.random.split(jax.random.key(0), 2))
        trained = train_layers(layers, Regression(Tasks()), Recipe(batch_size=256), steps=1000, seeds=[0, 1])
        trained.losses[:, -100:].mean(axis=1)  # ½ mean squared error of the last 100 steps, per seed
    """
    S = len(seeds)
    starts = len(jax.tree.leaves(params)[0])
    if min(steps, every, S, recipe.batch_size) < 1 or starts != S:
        raise ValueError(
            f"{steps} steps, evaluated every {every}, {S} seeds of batches of {recipe.batch_size}, parameters of "
            f"{starts} seeds: use at least 1 of each, and as many parameters as seeds"
        )
    mesh = data_mesh(min(S, devices or jax.local_device_count()))
    filled = [*range(S), *[S - 1] * (-S % mesh.size)]  # every device has as many seeds
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[filled], params)
    keys = jnp.stack([key_of_seed(seeds[n]) for n in filled])
    state = jax.device_get(TrainingState(params, _optimizer_state(recipe, steps, params)))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec(AXIS)))  # a checkpoint is restored to the same placement

    def step(state: tuple[TrainingState, np.ndarray], history: History) -> tuple[Any, dict[str, Any]]:
        (layers, losses), entry = state, {"step": 0}
        if history:  # the first entry is of the start
            done = history[-1]["step"]
            n = min(every, steps - done)
            layers, new = training_steps(problem, recipe, n, mesh, total=steps)(layers, keys, jnp.asarray(done, jnp.int32))
            new = np.asarray(new)[:S]
            for seed, at in np.argwhere(~np.isfinite(new)):
                told = f"loss {new[seed, at]} of seed {seeds[seed]} at step {done + at}"
                raise FloatingPointError(f"{told}: lower the learning rate, or set a token clip")
            losses = np.concatenate([losses.reshape(S, done), new], axis=1).ravel()
            entry = {"step": done + n, "training_loss": new.mean(axis=1, dtype=np.float64).tolist()}
            if progress:
                progress(S * (done + n), S * steps)
        return (layers, losses), entry | dict(evaluate(_first(layers.params, S)) if evaluate else {})

    (state, losses), history = iterate(
        step,
        (state, np.zeros(0, np.float32)),
        done=lambda history: bool(history) and history[-1]["step"] >= steps,
        checkpoints=checkpoints,
        checkpoint_seconds=checkpoint_seconds,
        known={**recipe._asdict(), "seeds": list(seeds), "steps": steps},
        callback=on_evaluation,
    )
    return TrainingResult(_first(state.params, S), history, losses.reshape(S, steps))


def _default_block(batch: int, on_cpu: bool) -> int:
    """The largest divisor up to 128 on a CPU, else the whole batch."""
    return max(n for n in range(1, min(batch, 128) + 1) if batch % n == 0) if on_cpu else batch


def _first(tree: Any, S: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:S], tree)

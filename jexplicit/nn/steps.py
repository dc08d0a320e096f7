"""Training steps and losses of flax networks, for jexplicit.nn.training.train.

In training, BatchNorm normalises a batch by its own statistics and updates the running ones, and dropout sets outputs to 0. A
`scorer` is inference: with running statistics and without dropout, so that an example's output does not depend on its batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array

from jexplicit.nn.networks import network_outputs
from jexplicit.nn.parts.objectives import Objective
from jexplicit.nn.training import TrainingResult, train
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import replicate

Batch = tuple[Any, Any]


class NetworkState(NamedTuple):
    """The state of a training run.

    params: of the network.
    statistics: running mean and variance of every BatchNorm layer; empty without BatchNorm.
    optimizer: the optimiser's state.
    steps: number of steps so far.
    """

    params: Any
    statistics: Any
    optimizer: Any
    steps: Array


def initial_state(variables: dict[str, Any], optimizer: optax.GradientTransformation) -> NetworkState:
    """The initial state of training from `init_variables`, a copy."""
    params, statistics = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), (variables["params"], variables["batch_stats"]))
    return NetworkState(params, statistics, optimizer.init(params), jnp.zeros((), jnp.int32))


def variables_of(state: NetworkState) -> dict[str, Any]:
    """The variables of the network for inference: parameters and running statistics."""
    return {"params": state.params, "batch_stats": state.statistics}


def network_step(
    model: nn.Module, objective: Objective, optimizer: optax.GradientTransformation, *, seed: int | Array = 0
) -> Callable[[NetworkState, Batch], tuple[NetworkState, Array]]:
    """The pure step `(state, (X, Y)) -> (state, summed loss)` of training.

    seed: of dropout, whose masks depend on (seed, step) only; or a random key.
    """

    def mean_loss(params: Any, statistics: Any, batch: Batch, steps: Array) -> tuple[Array, Any]:
        X, Y = batch
        variables = {"params": params, "batch_stats": statistics}
        rngs = {"dropout": jax.random.fold_in(key_of_seed(seed), steps)}
        z, updated = model.apply(variables, X, train=True, mutable=["batch_stats"], rngs=rngs)
        return objective(z, Y).mean(), updated.get("batch_stats", statistics)

    def step(state: NetworkState, batch: Batch) -> tuple[NetworkState, Array]:
        differentiate = jax.value_and_grad(mean_loss, has_aux=True)
        (loss, statistics), gradient = differentiate(state.params, state.statistics, batch, state.steps)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
        return NetworkState(params, statistics, optimizer_state, state.steps + 1), loss * len(batch[1])

    return step


def training_step(
    model: nn.Module, objective: Objective, optimizer: optax.GradientTransformation, *, seed: int = 0
) -> Callable[[NetworkState, Batch], tuple[NetworkState, Array]]:
    """`network_step`, compiled, with the state donated."""
    return jax.jit(network_step(model, objective, optimizer, seed=seed), donate_argnums=0)


def train_network(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    variables: dict[str, Any],
    batch: Callable[[np.ndarray], Batch],
    evaluate: Callable[[dict[str, Any]], float],
    *,
    mesh: Mesh | None = None,
    **options: Any,
) -> TrainingResult:
    """`train` a network, and keep the variables of the best epoch.

    mesh: devices that all have the state. options: of `train`; the seed is that of dropout, too.
    """
    state, step = initial_state(variables, optimizer), training_step(model, objective, optimizer, seed=options.get("seed", 0))
    return train(replicate(state, mesh) if mesh else state, step, batch, evaluate, params=variables_of, **options)


class Scores(NamedTuple):
    """Mean loss per example (nats for cross-entropies), and accuracy."""

    loss: float
    accuracy: float


def scorer(model: nn.Module, objective: Objective, *, chunk: int = 4096) -> Callable[[dict[str, Any], Any, Any], Scores]:
    """Compiled inference `(variables, X, Y) -> Scores`, `chunk` rows at a time."""

    @jax.jit
    def summed(variables: dict[str, Any], X: Any, Y: Any) -> tuple[Array, Array]:
        z = network_outputs(model, variables, X)
        labels = Y if Y.ndim == 1 else Y.argmax(axis=1)
        right = z.argmax(axis=1).astype(labels.dtype) == labels
        return objective(z, Y).sum(), right.sum()

    def score(variables: dict[str, Any], X: Any, Y: Any) -> Scores:
        if not len(X):
            raise ValueError("no examples to score: give at least one")
        parts = [summed(variables, X[m : m + chunk], Y[m : m + chunk]) for m in range(0, len(X), chunk)]
        loss, right = (np.sum([np.asarray(part[n], np.float64) for part in parts]) for n in (0, 1))
        return Scores(float(loss) / len(X), float(right) / len(X))

    return score

"""One network of a comparison, trained from several seeds at several learning rates at once.

A whole run is one compiled scan, under `vmap` over rates and seeds, so that nothing waits for the host. Epochs are whole
batches: what is left of an order is dropped.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.optimizers import make_optimizer, make_schedule
from jexplicit.nn.parts.names import ObjectiveName, SamplerName, ScheduleName
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.samplers import sampler
from jexplicit.nn.steps import initial_state, network_step, variables_of
from launch.networks.data import Data


class Variant(NamedTuple):
    """A network to train, and how.

    group: the panel of the figure; value: of what varies, for groups drawn against a number.
    rates: learning rates to try; the one with the lowest mean dev loss is reported.
    momentum: of the optimisers momentum and nesterov.
    start: `variables -> variables`, from the random ones.
    data: other data than the comparison's.
    """

    name: str
    network: FullyConnected
    group: str = ""
    value: float | None = None
    objective: ObjectiveName = "softmax_cross_entropy"
    optimizer: str = "sgd"
    momentum: float = 0.9
    rates: tuple[float, ...] = (0.1,)
    cooling: ScheduleName = "constant"
    sampler: SamplerName = "round-robin"
    batch_size: int = 32
    epochs: int = 20
    start: Callable[[dict[str, Any]], dict[str, Any]] = lambda variables: variables
    data: Data | None = None


class Outcome(NamedTuple):
    """A variant at its best rate, from S seeds; E epochs, of which 0 is the start.

    rate: the learning rate; rate_losses: [R] mean dev loss of every rate, infinite where a run diverged.
    scores: `train_loss`, `train_accuracy`, ... [S] after the last epoch.
    curves: `dev_loss` and `dev_accuracy`, [S, E + 1], and `train_loss` [S, E + 1].
    variables: of the networks, with a leading axis S.
    steps: of each run.
    """

    rate: float
    rate_losses: Float[np.ndarray, " R"]
    scores: dict[str, Float[np.ndarray, " S"]]
    curves: dict[str, Float[np.ndarray, "S E_1"]]
    variables: dict[str, Any]
    steps: int


def train_variant(variant: Variant, data: Data, seeds: Sequence[int]) -> Outcome:
    """Train a variant from every seed at every rate, and keep the best rate."""
    data = variant.data or data
    size = min(variant.batch_size or len(data.train.X), len(data.train.X))
    steps, epochs = len(data.train.X) // size, range(1, variant.epochs + 1)
    loss, draw = objective(variant.objective), sampler(variant.sampler, data.labels)
    orders = [[draw(seed, epoch)[: steps * size].reshape(steps, size) for epoch in epochs] for seed in seeds]
    cooling = make_schedule(variant.cooling, 1.0, variant.epochs * steps)
    parts = {name: tuple(map(jnp.asarray, getattr(data, name))) for name in ("train", "dev", "test")}
    X, Y = parts["train"]

    def scores(variables: Any, part: str) -> tuple[Array, Array]:
        X, Y = parts[part]
        z = network_outputs(variant.network, variables, X)
        return loss(z, Y).mean(), (z.argmax(axis=1) == Y.argmax(axis=1)).mean(dtype=z.dtype)

    def curves_of(variables: Any) -> tuple[Array, ...]:
        return (*scores(variables, "dev"), scores(variables, "train")[0])

    def run(seed: Array, order: Array, rate: Array) -> tuple[dict[str, Any], tuple[Array, ...]]:
        optimizer = make_optimizer(variant.optimizer, lambda k: rate * cooling(k), momentum=variant.momentum)
        step = network_step(variant.network, loss, optimizer, seed=seed)
        variables = variant.start(init_variables(variant.network, jax.random.key(seed), X[:2]))

        def epoch(state: Any, order: Array) -> tuple[Any, tuple[Array, ...]]:
            state, _ = jax.lax.scan(lambda state, m: (step(state, (X[m], Y[m]))[0], None), state, order)
            return state, curves_of(variables_of(state))

        first = curves_of(variables)
        state, later = jax.lax.scan(epoch, initial_state(variables, optimizer), order)
        return variables_of(state), tuple(jnp.concatenate([a[None], b]) for a, b in zip(first, later, strict=True))

    every = jax.jit(jax.vmap(jax.vmap(run, (0, 0, None)), (None, None, 0)))
    keys, rates = jnp.asarray(seeds, jnp.uint32), jnp.asarray(variant.rates, jnp.float32)
    variables, curves = every(keys, jnp.asarray(np.array(orders), jnp.int32), rates)
    last = np.asarray(curves[0][:, :, -1], np.float64).mean(axis=1)
    rate_losses = np.where(np.isfinite(last), last, np.inf)
    best = int(rate_losses.argmin())
    variables = jax.tree.map(lambda leaf: leaf[best], variables)
    names = ("dev_loss", "dev_accuracy", "train_loss")
    named = {name: np.asarray(curve[best], np.float64) for name, curve in zip(names, curves, strict=True)}
    last_scores: dict[str, Any] = {}
    for part in parts:
        pair = jax.jit(jax.vmap(lambda v, part=part: scores(v, part)))(variables)
        last_scores |= {f"{part}_{kind}": np.asarray(x, np.float64) for kind, x in zip(("loss", "accuracy"), pair, strict=True)}
    return Outcome(variant.rates[best], rate_losses, last_scores, named, variables, variant.epochs * steps)

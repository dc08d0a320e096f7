"""What a learned rule is compared with: the same network trained by gradient descent, plain and normalised alike.

The normalised network has each layer's pre-activations normalised over the minibatch, with scales and shifts that are trained,
in training and when it is asked: all that a learner's forward pass has. Much of what a learned rule gains over
plain descent is the normalisation's, so that a comparison without it says little.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from icl.blur.data import Part
from icl.blur.descent import sgd_rules
from icl.blur.genome import backprop_genome
from icl.blur.learning import minibatches, right
from icl.blur.rules import init_synapses, normalise
from jexplicit.nn.activations import Activation, activation
from jexplicit.nn.optimizers import OptimizerName, make_optimizer

RATES = tuple(float(f"{rate:.3g}") for rate in np.geomspace(1e-3, 32, 16))
"""Learning rates over four and a half orders of magnitude."""


def descent_curves(
    optimizer: OptimizerName,
    rates: tuple[float, ...],
    hidden: tuple[int, ...],
    train: Part,
    test: Part,
    *,
    normalised: bool,
    hidden_activation: Activation = "tanh",
    steps: int,
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
) -> Float[np.ndarray, "rates seeds steps"]:
    """Accuracy after 0, 1, .. n updates at every learning rate; first weights of variance 1/n_in (twice that for ReLUs).

    Args:
        optimizer: of `jexplicit.nn.optimizers`.
        rates: learning rates, of the mean cross-entropy.
        hidden, train, test, steps, batch_size, seeds: as in `icl.blur.learning_curves`, and the same minibatches.
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.

    Raises:
        ValueError: as `minibatches`, or an activation that there is not.
    """
    activation(hidden_activation)
    sizes = (train.X.shape[1], *hidden, train.Y.shape[1])
    rows = np.stack([minibatches(seed, len(train.X), steps=steps, batch_size=batch_size) for seed in seeds])
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    run = _descents(optimizer, sizes, normalised, hidden_activation)
    data = map(jnp.asarray, (*train, *test))
    return np.asarray(run(jnp.asarray(rates, np.float32), keys, jnp.asarray(rows), *data))


@functools.lru_cache(maxsize=64)
def _descents(optimizer: OptimizerName, sizes: tuple[int, ...], normalised: bool, hidden: Activation) -> Callable[..., Array]:
    gain = 2.0 if hidden == "relu" else 1.0
    drawn_alike = sgd_rules(hidden, "cross_entropy"), backprop_genome(2, sigma=gain**0.5)

    def init(key: Array) -> list[dict[str, Array]]:
        rules, genome = drawn_alike
        weights = [synapse.W[0] for synapse in init_synapses(key, genome, rules, sizes)]
        return [{"W": W[:-1], "b": W[-1], "m": jnp.ones_like(W[-1])} for W in weights]

    def logits(layers: list[dict[str, Array]], a: Array) -> Array:
        for n, layer in enumerate(layers):
            z = a @ layer["W"]
            z = layer["m"][None] * normalise(z[None], 1.0, 0.0)[0] if normalised else z
            z = z + layer["b"][None]
            a = z if n == len(layers) - 1 else activation(hidden)(z)
        return a

    def run(rate: Array, key: Array, rows: Array, X: Array, Y: Array, X_test: Array, Y_test: Array) -> Array:
        moves = make_optimizer(optimizer, rate)

        def loss(layers: list[dict[str, Array]], drawn: Array) -> Array:
            return jnp.mean(optax.softmax_cross_entropy(logits(layers, X[drawn]), Y[drawn]))

        def step(state: tuple[Any, Any], drawn: Array) -> tuple[tuple[Any, Any], Array]:
            layers, moments = state
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax mixes dtypes
                updates, moments = moves.update(jax.grad(loss)(layers, drawn), moments, layers)
                layers = optax.apply_updates(layers, updates)
            return (layers, moments), right(logits(layers, X_test), Y_test)  # pyright: ignore[reportArgumentType]

        first = init(key)
        _, after = lax.scan(step, (first, moves.init(first)), rows)
        return jnp.concatenate([right(logits(first, X_test), Y_test)[None], after])

    def of_all(rates: Array, keys: Array, rows: Array, *data: Array) -> Array:
        return lax.map(lambda one: jax.vmap(lambda rate: run(rate, *one, *data))(rates), (keys, rows)).swapaxes(0, 1)

    return jax.jit(of_all)

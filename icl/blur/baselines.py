"""Baselines of a learned rule: the same network trained by gradient descent, plain or with the same normalisation.

The normalised network normalises the pre-activations of each layer over the minibatch, with trainable scales and shifts, in
training and prediction alike: everything that a learner's forward pass has. Much of a learned rule's lead over plain descent is
due to normalisation, so a comparison without it says little.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from icl.blur.data import Examples
from icl.blur.descent import sgd_rules
from icl.blur.genome import backprop_genome
from icl.blur.learning import accuracy_of, seeded_learners
from icl.blur.rules import init_synapses, normalise
from jexplicit.nn.activations import activation
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.runs.devices import each_row, full_precision

Layers = list[dict[str, Array]]  # W [n_in, n_out], and the shift b and scale m of the pre-activations [n_out]


@full_precision
def descent_curve(
    optimizer: OptimizerName,
    rate: Float[Array, ""],
    layers: Layers,
    batches: Int[Array, "steps batch"],
    train: Examples,
    test: Examples,
    *,
    normalised: bool,
    hidden_activation: Activation = "tanh",
) -> Float[Array, " steps1"]:
    """Accuracy of one network on `test` after 0, 1, .. n updates on the mean cross-entropy of minibatches. Pure."""
    transformation = make_optimizer(optimizer, rate)

    def logits(layers: Layers, a: Array) -> Array:
        for n, layer in enumerate(layers):
            z = a @ layer["W"]
            z = layer["m"][None] * normalise(z[None], 1.0, 0.0)[0] if normalised else z
            z = z + layer["b"][None]
            a = z if n == len(layers) - 1 else activation(hidden_activation)(z)
        return a

    def loss(layers: Layers, batch: Array) -> Array:
        return jnp.mean(optax.softmax_cross_entropy(logits(layers, train.X[batch]), train.Y[batch]))

    def step(state: tuple[Any, Any], batch: Array) -> tuple[tuple[Any, Any], Array]:
        layers, moments = state
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax mixes dtypes
            updates, moments = transformation.update(jax.grad(loss)(layers, batch), moments, layers)
            layers: Any = optax.apply_updates(layers, updates)
        return (layers, moments), accuracy_of(logits(layers, test.X), test.Y)

    _, after = lax.scan(step, (layers, transformation.init(layers)), batches)
    return jnp.concatenate([accuracy_of(logits(layers, test.X), test.Y)[None], after])


def descent_curves(
    optimizer: OptimizerName,
    rates: tuple[float, ...],
    hidden: tuple[int, ...],
    train: Examples,
    test: Examples,
    *,
    normalised: bool,
    hidden_activation: Activation = "tanh",
    steps: int,
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
) -> Float[np.ndarray, "rates seeds steps"]:
    """`descent_curve` at every learning rate; initial weights have variance 1/n_in (twice that with ReLUs).

    Args:
        optimizer: a name of `jexplicit.nn.optimizers`.
        rates: learning rates.
        hidden, train, test, steps, batch_size, seeds: as in `icl.blur.learning_curves`, with the same minibatches.
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.

    Raises:
        ValueError: as in `minibatches`, or an unknown activation.
    """
    activation(hidden_activation)
    sizes, *learners = seeded_learners(seeds, hidden, train, steps=steps, batch_size=batch_size)
    network = optimizer, sizes, normalised, hidden_activation
    return np.asarray(_descent_curves(network, jnp.asarray(rates, np.float32), *learners, train, test))


@functools.partial(jax.jit, static_argnums=0)
def _descent_curves(
    network: tuple[OptimizerName, tuple[int, ...], bool, Activation], rates: Array, keys: Array, batches: Array, *data: Examples
) -> Array:
    optimizer, sizes, normalised, hidden_activation = network
    rules = sgd_rules(hidden_activation, "cross_entropy")  # the initial weights are those of its learners
    genome = backprop_genome(2, sigma=2**0.5 if hidden_activation == "relu" else 1.0)
    curve = functools.partial(descent_curve, optimizer, normalised=normalised, hidden_activation=hidden_activation)

    def run(learner: tuple[Array, Array]) -> Array:
        key, batches = learner
        weights = [synapse.W[0] for synapse in init_synapses(key, genome, rules, sizes)]
        layers = [{"W": W[:-1], "b": W[-1], "m": jnp.ones_like(W[-1])} for W in weights]
        return jax.vmap(lambda rate: curve(rate, layers, batches, *data))(rates)

    return each_row(run, (keys, batches)).swapaxes(0, 1)

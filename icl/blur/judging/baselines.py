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
from jaxtyping import Array, Float, Int, PyTree

from icl.blur.data import Examples
from icl.blur.descent import sgd_rules
from icl.blur.genome import backprop_genome
from icl.blur.learning import accuracies_of, check_updates, follow, seeded_learners
from icl.blur.rules import init_synapses
from icl.blur.states import normalise
from jexplicit.nn.activations import activation
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.runs.devices import each_row, full_precision

Layers = list[dict[str, Array]]  # W [n_in, n_out], and the shift b and scale m of the pre-activations [n_out]


def descent_curve(
    optimizer: OptimizerName,
    rate: Float[Array, ""],
    layers: Layers,
    batches: Int[Array, "steps batch"],
    train: Examples,
    test: Any,
    *,
    normalised: bool,
    hidden_activation: Activation = "tanh",
    at: tuple[int, ...] | None = None,
) -> PyTree[Float[Array, " steps1"]]:
    """Accuracy of one network on `test` after 0, 1, .. n updates on the mean cross-entropy of minibatches. Pure.

    Args:
        optimizer: a name of `jexplicit.nn.optimizers`.
        rate: learning rate.
        layers: initial weights.
        batches: rows of `train` for each update.
        train, test: arrays of JAX; `test` is a part or several (`icl.blur.learning.accuracies_of`).
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.
        at: numbers of updates to measure after, in ascending order; default, all.
    """
    network = {"normalised": normalised, "hidden_activation": hidden_activation, "at": at}
    return follow_descent(make_optimizer(optimizer, rate), layers, batches, train, test, **network)


@full_precision
def follow_descent(
    transformation: optax.GradientTransformation,
    layers: Layers,
    batches: Int[Array, "steps batch"],
    train: Examples,
    test: Any,
    *,
    normalised: bool,
    hidden_activation: Activation,
    at: tuple[int, ...] | None,
) -> PyTree[Float[Array, " steps1"]]:
    """`descent_curve` by any transformation of gradients."""

    def logits(layers: Layers, a: Array) -> Array:
        for n, layer in enumerate(layers):
            z = a @ layer["W"]
            z = layer["m"][None] * normalise(z[None], 1.0, 0.0)[0] if normalised else z
            z = z + layer["b"][None]
            a = z if n == len(layers) - 1 else activation(hidden_activation)(z)
        return a

    def loss(layers: Layers, batch: Array) -> Array:
        return jnp.mean(optax.softmax_cross_entropy(logits(layers, train.X[batch]), train.Y[batch]))

    def step(state: tuple[Any, Any], batch: Array) -> tuple[Any, Any]:
        layers, moments = state
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax mixes dtypes
            updates, moments = transformation.update(jax.grad(loss)(layers, batch), moments, layers)
            return optax.apply_updates(layers, updates), moments

    def measure(state: tuple[Any, Any]) -> Any:
        return accuracies_of(functools.partial(logits, state[0]), test)

    return follow(step, measure, (layers, transformation.init(layers)), batches, at)


def descent_curves(
    optimizer: OptimizerName,
    rates: tuple[float, ...],
    hidden: tuple[int, ...],
    train: Examples,
    test: Any,
    *,
    normalised: bool,
    hidden_activation: Activation = "tanh",
    steps: int,
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
    at: tuple[int, ...] | None = None,
) -> PyTree[Float[np.ndarray, "rates seeds steps"]]:
    """`descent_curve` at every learning rate; initial weights have variance 1/n_in (twice that with ReLUs).

    Args:
        optimizer: a name of `jexplicit.nn.optimizers`.
        rates: learning rates.
        hidden, train, test, steps, batch_size, seeds, at: as in `icl.blur.learning_curves`, with the same minibatches.
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.

    Raises:
        ValueError: as in `minibatches` and `check_updates`, or an unknown activation.

    Returns:
        fractions of correct predictions, in an array for each part of `test`.

    Example::

        train, dev, test, _ = image_sets(jexplicit.read_images("digits"))
        curves = descent_curves("sgd", (0.1, 1.0), (32,), train, test, normalised=True, steps=10)
        curves.mean(axis=1)  # [rates, updates], over ten networks
    """
    activation(hidden_activation)
    check_updates(at, steps)
    sizes, *learners = seeded_learners(seeds, hidden, train, steps=steps, batch_size=batch_size)
    network = optimizer, sizes, normalised, hidden_activation
    curves = _descent_curves(network, jnp.asarray(rates, np.float32), *learners, train, test, at=at)
    return jax.tree.map(np.asarray, curves)


@functools.partial(jax.jit, static_argnums=0, static_argnames="at")
def _descent_curves(
    network: tuple[OptimizerName, tuple[int, ...], bool, Activation],
    rates: Array,
    keys: Array,
    batches: Array,
    *data: Any,
    at: tuple[int, ...] | None = None,
) -> PyTree[Array]:
    optimizer, sizes, normalised, hidden_activation = network
    options = {"normalised": normalised, "hidden_activation": hidden_activation, "at": at}

    def run(learner: tuple[Array, Array]) -> PyTree[Array]:
        key, batches = learner
        layers = initial_layers(key, sizes, hidden_activation)
        return jax.vmap(lambda rate: descent_curve(optimizer, rate, layers, batches, *data, **options))(rates)

    return jax.tree.map(lambda curves: curves.swapaxes(0, 1), each_row(run, (keys, batches)))


def initial_layers(key: Array, sizes: tuple[int, ...], hidden_activation: Activation) -> Layers:
    """Weights of variance 1/n_in, twice that with ReLUs, shifts of 0 and scales of 1; those of the genome of descent."""
    genome = backprop_genome(2, sigma=2**0.5 if hidden_activation == "relu" else 1.0)
    synapses = init_synapses(key, genome, sgd_rules(hidden_activation, "cross_entropy"), sizes)
    weights = [synapse.W[0] for synapse in synapses]
    return [{"W": W[:-1], "b": W[-1], "m": jnp.ones_like(W[-1])} for W in weights]

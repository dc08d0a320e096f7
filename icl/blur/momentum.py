"""Gradient descent over a grid of learning rates η and momentum coefficients β.

    M <- β M + g,   W <- W - η M          β = 0 is plain descent

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Fig. 6, has learned rules beside such a grid.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from icl.blur.baselines import follow_descent, initial_layers
from icl.blur.data import Examples
from icl.blur.learning import check_updates, seeded_learners
from jexplicit.nn.activations import activation
from jexplicit.nn.names import Activation
from jexplicit.runs.devices import each_row


def momentum_grid(
    rates: tuple[float, ...],
    momenta: tuple[float, ...],
    hidden: tuple[int, ...],
    train: Examples,
    test: Examples,
    *,
    normalised: bool,
    hidden_activation: Activation = "tanh",
    at: tuple[int, ...],
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
) -> Float[np.ndarray, "momenta rates seeds updates"]:
    """Accuracy on `test` of the networks of `icl.blur.descent_curves`, at every momentum and learning rate.

    Args:
        rates: learning rates.
        momenta: β, from 0 to below 1.
        hidden, train, test, batch_size, seeds: as in `icl.blur.descent_curves`.
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.
        at: numbers of updates to measure after, in order; the last one is the length of training.

    Raises:
        ValueError: a momentum out of range, no rates or momenta, or as in `icl.blur.descent_curves`.
    """
    activation(hidden_activation)
    if not rates or not momenta or not all(0 <= beta < 1 for beta in momenta):
        raise ValueError(f"rates {rates} and momenta {momenta}: give at least one of each, and momenta from 0 to below 1")
    steps = max(at, default=0)
    check_updates(at, steps)
    sizes, *learners = seeded_learners(seeds, hidden, train, steps=steps, batch_size=batch_size)
    pairs = jnp.asarray(list(itertools.product(momenta, rates)), np.float32)
    found = _momentum_grid((sizes, normalised, hidden_activation, at), pairs, *learners, train, test)
    return np.moveaxis(np.asarray(found), 0, 1).reshape(len(momenta), len(rates), len(seeds), len(at))


@functools.partial(jax.jit, static_argnums=0)
def _momentum_grid(
    network: tuple[tuple[int, ...], bool, Activation, tuple[int, ...]],
    pairs: Float[Array, "grid 2"],
    keys: Array,
    batches: Array,
    train: Examples,
    test: Examples,
) -> Float[Array, "seeds grid updates"]:
    """One network at a time on a CPU: its weights stay in the cache."""
    sizes, normalised, hidden_activation, at = network
    options: Any = {"normalised": normalised, "hidden_activation": hidden_activation, "at": at}

    def run(learner: tuple[Array, Array]) -> Array:
        key, batches = learner
        layers = initial_layers(key, sizes, hidden_activation)

        def accuracies(pair: Array) -> Array:
            return follow_descent(optax.sgd(pair[1], momentum=pair[0]), layers, batches, train, test, **options)

        return each_row(accuracies, pairs)

    return each_row(run, (keys, batches))

"""Gradient descent over a grid of learning rates η and momentum coefficients β.

    M <- β M + g,   W <- W - η M          β = 0 is plain descent

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Fig. 6, has learned rules beside such a grid.
"""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from icl.blur.data import Examples
from icl.blur.judging.baseline_grid import grid_accuracies
from jexplicit.nn.names import Activation


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

    Example::

        train, dev, test, _ = image_sets(jexplicit.read_images("digits"))
        grid = momentum_grid((0.1, 1.0), (0.0, 0.9), (32,), train, dev, normalised=True, at=(10, 100))
        grid.mean(axis=2)  # [momenta, rates, updates], over ten networks
    """
    if not rates or not momenta or not all(0 <= beta < 1 for beta in momenta):
        raise ValueError(f"rates {rates} and momenta {momenta}: give at least one of each, and momenta from 0 to below 1")
    pairs = jnp.asarray(list(itertools.product(momenta, rates)), np.float32)
    network: Any = {"normalised": normalised, "hidden_activation": hidden_activation, "at": at}
    found = grid_accuracies(_descent, pairs, hidden, train, test, batch_size=batch_size, seeds=seeds, **network)
    return found.reshape(len(momenta), len(rates), len(seeds), len(at))


def _descent(pair: Float[Array, "2"]) -> optax.GradientTransformation:
    return optax.sgd(pair[1], momentum=pair[0])

"""Baselines of a learned rule: the same network trained by gradient descent, plain or with the same normalisation.

The normalised network has the forward pass of a learner: the pre-activations of each layer are normalised over the minibatch,
in training and prediction, with trainable scales and shifts. Much of the advantage of a learned rule over plain descent is due
to normalisation, so the fair comparison includes it.

Networks at all points of a grid are compiled as one program, as compilation dominates the time of tuning. With the gradient g
of step k three optimisers are one formula,

    M = α M + β g;   V = γ V + (1 - γ) g²;   W -= η M̂/(√V̂ + ε)

in which SGD has α = 0, β = 1, momentum α = 0.9, β = 1, both without the denominator, and Adam α = 0.9, β = 0.1, with
`M̂ = M/(1 - α^k)` and `V̂ = V/(1 - γ^k)`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from icl.blur.data import Examples
from icl.blur.descent import sgd_rules
from icl.blur.genome import backprop_genome
from icl.blur.learning import accuracies_of, check_updates, seeded_learners, trajectory
from icl.blur.rules import init_synapses, normalise
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.parts.activations import activation
from jexplicit.nn.parts.names import Activation, OptimizerName
from jexplicit.runs.devices import full_precision, map_rows

GRID_OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam")

_gamma, _eps = 0.999, 1e-8
Layers = list[dict[str, Array]]  # W [n_in, n_out], and the shift b and scale m of the pre-activations [n_out]


def initial_layers(key: Array, sizes: tuple[int, ...], hidden_activation: Activation) -> Layers:
    """Weights of variance 1/n_in (2/n_in with ReLUs), shifts 0 and scales 1, as in the genome of descent."""
    genome = backprop_genome(2, sigma=2**0.5 if hidden_activation == "relu" else 1.0)
    synapses = init_synapses(key, genome, sgd_rules(hidden_activation, "cross_entropy"), sizes)
    weights = [synapse.W[0] for synapse in synapses]
    return [{"W": W[:-1], "b": W[-1], "m": jnp.ones_like(W[-1])} for W in weights]


@full_precision
def descent_curve(
    optimizer: optax.GradientTransformation,
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
        optimizer: e.g. `jexplicit.nn.optimizers.make_optimizer("adam", rate)`.
        layers: initial weights.
        batches: rows of `train` for each update.
        train, test: arrays of JAX; `test` is a part or several (`icl.blur.learning.accuracies_of`).
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.
        at: numbers of updates to measure after, in ascending order; default, all.
    """

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
            updates, moments = optimizer.update(jax.grad(loss)(layers, batch), moments, layers)
            return optax.apply_updates(layers, updates), moments

    def measure(state: tuple[Any, Any]) -> Any:
        return accuracies_of(functools.partial(logits, state[0]), test)

    return trajectory(step, measure, (layers, optimizer.init(layers)), batches, at)


def grid_curves(
    optimizer: Callable[[Any], optax.GradientTransformation],
    grid: Any,
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
    at_once: bool = False,
    batches: Int[np.ndarray, "seeds updates batch"] | None = None,
) -> PyTree[Float[np.ndarray, "grid seeds steps"]]:
    """`descent_curve` by `optimizer(point)` at every point of a grid [points, ...], for several networks and parts of `test`.

    Minibatches are those of `icl.blur.learning_curves`, or `batches`, rows of `train`. at_once: train points in parallel on a
    CPU too (by default in turn, where the weights of one network fit the cache). The optimizer must be a function of a module,
    as it then compiles once.
    """
    activation(hidden_activation)
    check_updates(at, steps)
    sizes, keys, drawn = seeded_learners(seeds, hidden, train, steps=steps, batch_size=batch_size)
    given = drawn if batches is None else jnp.asarray(batches)
    layers = _initial_layers(sizes, hidden_activation, keys)
    network = (normalised, hidden_activation, at)
    found = _grid_curves(optimizer, network, at_once, grid, layers, given, train, test)
    return jax.tree.map(lambda curves: np.asarray(curves).swapaxes(0, 1), found)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _initial_layers(sizes: tuple[int, ...], hidden_activation: Activation, keys: Array) -> Any:
    """Compiled separately from training, as random numbers compile more slowly than training."""
    return jax.vmap(lambda key: initial_layers(key, sizes, hidden_activation))(keys)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _grid_curves(
    optimizer: Callable[[Any], optax.GradientTransformation],
    network: tuple[bool, Activation, tuple[int, ...] | None],
    at_once: bool,
    grid: Any,
    layers: Any,
    batches: Array,
    *data: Any,
) -> PyTree[Array]:
    """Accuracies [seeds, grid, at]."""
    options: Any = dict(zip(("normalised", "hidden_activation", "at"), network, strict=True))

    def run(learner: tuple[Any, Array]) -> PyTree[Array]:
        def curve(point: Any) -> PyTree[Array]:
            return descent_curve(optimizer(point), *learner, *data, **options)

        return jax.vmap(curve)(grid) if at_once else map_rows(curve, grid)

    return map_rows(run, (layers, batches))


def descent_curves(
    optimizer: OptimizerName, rates: tuple[float, ...], hidden: tuple[int, ...], train: Examples, test: Any, **options: Any
) -> PyTree[Float[np.ndarray, "rates seeds steps"]]:
    """`descent_curve` at every learning rate; initial weights have variance 1/n_in (twice that with ReLUs).

    Args:
        optimizer: a name of `jexplicit.nn.optimizers`.
        rates: learning rates.
        hidden, train, test: as in `icl.blur.learning_curves`.
        options: see `grid_curves`; `normalised` and `steps` have no default.

    Raises:
        ValueError: as in `grid_curves`.

    Example::

        train, dev, test, _ = image_sets(jexplicit.read_images("digits"))
        curves = descent_curves("sgd", (0.1, 1.0), (32,), train, test, normalised=True, steps=10)
        curves.mean(axis=1)  # [rates, updates], over ten networks
    """
    return grid_curves(_by_rate(optimizer), jnp.asarray(rates, np.float32), hidden, train, test, at_once=True, **options)


@functools.cache
def _by_rate(optimizer: OptimizerName) -> Callable[[Any], optax.GradientTransformation]:
    return functools.partial(make_optimizer, optimizer)


def momentum_grid(
    rates: tuple[float, ...],
    momenta: tuple[float, ...],
    hidden: tuple[int, ...],
    train: Examples,
    test: Examples,
    *,
    at: tuple[int, ...],
    **options: Any,
) -> Float[np.ndarray, "momenta rates seeds updates"]:
    """Accuracy by `M <- β M + g, W <- W - η M` at every momentum β and learning rate η; β = 0 is plain descent.

    Args:
        rates: η.
        momenta: β, from 0 to below 1.
        hidden, train, test: as in `icl.blur.learning_curves`.
        at: numbers of updates to measure after, in order; the last one is the length of training.
        options: see `grid_curves`; `normalised` has no default.

    Raises:
        ValueError: a momentum out of range, no rates or momenta, or as in `grid_curves`.

    Example::

        train, dev, test, _ = image_sets(jexplicit.read_images("digits"))
        grid = momentum_grid((0.1, 1.0), (0.0, 0.9), (32,), train, dev, normalised=True, at=(10, 100))
        grid.mean(axis=2)  # [momenta, rates, updates], over ten networks

    Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Fig. 6.
    """
    if not rates or not momenta or not all(0 <= beta < 1 for beta in momenta):
        raise ValueError(f"rates {rates} and momenta {momenta}: give at least one of each, and momenta from 0 to below 1")
    pairs = jnp.asarray(list(itertools.product(momenta, rates)), np.float32)
    found = grid_curves(_with_momentum, pairs, hidden, train, test, steps=max(at, default=0), at=at, **options)
    return found.reshape(len(momenta), len(rates), *found.shape[1:])


def _with_momentum(pair: Float[Array, "2"]) -> optax.GradientTransformation:
    return optax.sgd(pair[1], momentum=pair[0])


class Coefficients(NamedTuple):
    """The optimiser in the formula above: η, α, β, and whether it has a denominator."""

    rate: Float[Any, "*grid"]
    alpha: Float[Any, "*grid"]
    beta: Float[Any, "*grid"]
    adaptive: Bool[Any, "*grid"]


def coefficients(optimizer: OptimizerName, rate: float) -> Coefficients:
    """The coefficients of one of GRID_OPTIMIZERS."""
    if optimizer not in GRID_OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r}: a grid has {', '.join(GRID_OPTIMIZERS)}; use descent_curves for others")
    alpha, beta = {"sgd": (0.0, 1.0), "momentum": (0.9, 1.0), "adam": (0.9, 0.1)}[optimizer]
    return Coefficients(np.float64(rate), np.float64(alpha), np.float64(beta), np.bool_(optimizer == "adam"))


def one_formula(c: Coefficients) -> optax.GradientTransformation:
    """The optimiser with these coefficients, which may be traced."""

    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return zeros, zeros, jnp.zeros_like(c.rate)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        M, V, k = state
        M = jax.tree.map(lambda M, g: c.alpha * M + c.beta * g, M, updates)
        V = jax.tree.map(lambda V, g: _gamma * V + (1 - _gamma) * g**2, V, updates)
        k = k + 1
        scale = c.rate / jnp.where(c.adaptive, 1 - c.alpha**k, 1)

        def change(M: Array, V: Array) -> Array:
            return -scale * M / jnp.where(c.adaptive, jnp.sqrt(V / (1 - _gamma**k)) + _eps, 1)

        return jax.tree.map(change, M, V), (M, V, k)

    return optax.GradientTransformation(init, update)


def descent_grid(
    rates: tuple[float, ...],
    hidden: tuple[int, ...],
    train: Examples,
    test: Any,
    *,
    at: tuple[int, ...],
    optimizers: tuple[OptimizerName, ...] = GRID_OPTIMIZERS,
    **options: Any,
) -> PyTree[Float[np.ndarray, "optimizers rates seeds at"]]:
    """Accuracies of some of GRID_OPTIMIZERS at every rate, after `at` updates; options and errors of `grid_curves`."""
    grid = [coefficients(optimizer, rate) for optimizer in optimizers for rate in rates]
    stacked = Coefficients(*(np.stack(field) for field in zip(*grid, strict=True)))
    stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf, None if leaf.dtype == bool else np.float32), stacked)
    found = grid_curves(one_formula, stacked, hidden, train, test, steps=max(at, default=0), at=at, **options)
    return jax.tree.map(lambda curves: curves.reshape(len(optimizers), len(rates), *curves.shape[1:]), found)

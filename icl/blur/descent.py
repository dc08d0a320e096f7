"""Gradient descent: as a genome, and as the baseline of a learned rule.

With two states, the rules are backpropagation up to rounding.

State 0 is the activation, and state 1 its derivative, then the error. With one matrix for both states and

    ν = [[1, 1], [0, 0]],   µ = I,   ν̃ = I,   µ̃ = [[0, 1], [1, 0]],   f = η = f̃ = 1,   η̃ = -rate

    forward     a⁰ = σ(z), a¹ = σ'(z)      as both states have the same pre-activation z
    feedback    a¹ <- σ'(z) ∂ℓ/∂a⁰         in the last layer
    backward    a¹ <- a¹ Σ_j W[i,j] a¹_j   which is ∂ℓ/∂z
    synapses    H[i,j] = mean_B a⁰_i a¹_j  which is ∂ℓ/∂W

The additive backward pass has no product of derivative and error, so the same matrices give a different algorithm.

A learned update is not a gradient: if ΔW were the gradient of a function of the synapses, its Jacobian `∂ΔW_k/∂W_m` would be
symmetric, as in gradient descent.

The networks of the baseline are plain, or have the forward pass of a learner: the pre-activations of each layer are normalised
over the minibatch, in training and prediction, with trainable scales and shifts. Much of the advantage of a learned rule over
plain descent is due to normalisation, so the fair comparison includes it.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 3.2 and 3.3, Fig. 2 and 6.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from icl.blur.data import Examples
from icl.blur.design import Rules
from icl.blur.genome import Genome, backprop_genome
from icl.blur.learning import accuracies_of, seeded_learners, trajectory
from icl.blur.rules import Synapses, init_synapses, learn, normalise, transpose_synapses
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.nn.networks import activation
from jexplicit.nn.training import make_optimizer
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import full_precision, map_rows

Loss = Literal["squared_error", "cross_entropy"]
Layers = list[dict[str, Array]]  # W [n_in, n_out], and the shift b and scale m of the pre-activations [n_out]


def sgd_rules(hidden: Activation, loss: Loss, *, output: Activation | None = None) -> Rules:
    """The rules with which `sgd_genome` is gradient descent.

    Args:
        hidden: σ of the hidden layers.
        loss: half the squared error of the activated outputs, or the cross-entropy of their softmax.
        output: σ of the output layer; default, that of the hidden layers for the squared error, else linear.

    Raises:
        ValueError: cross-entropy with an output layer that is not linear, or an unknown activation.

    Example:
        >>> sgd_rules("relu", "cross_entropy").backward
        'multiplicative_second_state'
    """
    output = output or (hidden if loss == "squared_error" else "linear")
    if loss == "cross_entropy" and output != "linear":
        raise ValueError(f"cross_entropy of {output} outputs: use linear outputs, as the loss applies a softmax")
    passes: Any = {"states": 2, "multistate": False, "backward": "multiplicative_second_state", "backward_activation": "linear"}
    passes |= {"normalise": "none", "normalise_output": False, "derivative": True}
    return Rules(**passes, hidden=hidden, output=output, feedback=loss)


def sgd_genome(rate: float, *, dtype: Any = np.float32) -> Genome:
    """The genome of gradient descent on the mean loss of a minibatch.

    Raises:
        ValueError: a rate that is not positive.

    Example:
        >>> float(sgd_genome(0.25).eta_synapse)
        -0.25
    """
    if not rate > 0:
        raise ValueError(f"learning rate {rate}: use one above 0")
    return backprop_genome(2, eta_synapse=-rate, dtype=dtype)


@full_precision
def network_loss(rules: Rules, weights: list[Array], x: Float[Array, "B n_in"], y: Float[Array, "B n_out"]) -> Float[Array, ""]:
    """The mean loss of the plain network, for `jax.grad`; last rows are biases."""
    a = z = x
    for n, W in enumerate(weights):
        z = a @ W[:-1] + W[-1:]
        a = activation(rules.output if n == len(weights) - 1 else rules.hidden)(z)
    if rules.feedback == "cross_entropy":
        return jnp.mean(optax.softmax_cross_entropy(z, y))
    return jnp.mean(jnp.sum((a - y) ** 2, axis=1)) / 2


class WeightDifference(NamedTuple):
    """Largest differences of weights between two runs, and largest change in a run."""

    one_step: Any
    all_steps: Any
    change: Any


def sgd_difference(
    rules: Rules,
    sizes: tuple[int, ...],
    *,
    rate: float = 0.25,
    steps: int = 50,
    batch_size: int = 32,
    seed: int = 0,
    dtype: Any = np.float32,
) -> WeightDifference:
    """Compare the learner with `jax.grad` descent on random examples.

    Args:
        sizes: n_0 (inputs) .. n_L (outputs).
        dtype: float32, or float64 if enabled in JAX.

    Raises:
        ValueError: float64 without `jax_enable_x64`, or fewer than one step.

    Example:
        >>> sgd_difference(sgd_rules("tanh", "squared_error"), (3, 4, 2), steps=5).all_steps < 1e-6
        True
    """
    if jnp.zeros(1, dtype).dtype != dtype:
        raise ValueError(f"{np.dtype(dtype).name}, but JAX computes in float32: enable jax_enable_x64")
    if steps < 1:
        raise ValueError(f"{steps} steps: use at least 1")
    genome = sgd_genome(rate, dtype=dtype)

    def step(state: tuple[Synapses, list[Array]], batch: tuple[Array, Array]) -> tuple[tuple[Synapses, list[Array]], Array]:
        synapses, weights = state
        gradient = jax.grad(lambda weights: network_loss(rules, weights, *batch))(weights)
        weights = [W - rate * g for W, g in zip(weights, gradient, strict=True)]
        synapses, _ = learn(genome, rules, synapses, *batch)
        return (synapses, weights), largest_difference(synapses, weights)

    @jax.jit
    def run(key: Array) -> WeightDifference:
        init_key, x_key, y_key = jax.random.split(key, 3)
        first = init_synapses(init_key, genome, rules, sizes)
        xs = jax.random.normal(x_key, (steps, batch_size, sizes[0]), dtype)
        ys = jax.nn.one_hot(jax.random.randint(y_key, (steps, batch_size), 0, sizes[-1]), sizes[-1], dtype=dtype)
        (_, weights), differences = lax.scan(step, (first, [synapse.W[0] for synapse in first]), (xs, ys))
        return WeightDifference(differences[0], differences[-1], largest_difference(first, weights))

    return WeightDifference(*map(float, run(key_of_seed(seed))))


def largest_difference(synapses: Synapses, weights: list[Array]) -> Float[Array, ""]:
    """Largest difference between a one-channel learner and the weights of a network."""
    gaps = [jnp.max(jnp.abs(synapse.W[0] - W)) for synapse, W in zip(synapses, weights, strict=True)]
    return jnp.max(jnp.stack(gaps))


class Curl(NamedTuple):
    """The antisymmetric part of an update's Jacobian: max |J - Jᵀ|, ||J - Jᵀ||/||J||."""

    largest: Float[Any, ""]
    relative: Float[Any, ""]


def update_jacobian(
    genome: Genome, rules: Rules, synapses: Synapses, x: Float[Array, "B n_in"], y: Float[Array, "B n_out"]
) -> Float[Array, "w w"]:
    """`∂ΔW_k/∂W_m` over all forward synapses and biases, by forward differentiation.

    Example:
        >>> from icl.blur import init_synapses
        >>> from icl.blur.genome import backprop_genome
        >>> rules, genome = Rules(states=2), backprop_genome(2)
        >>> def jacobian(key, x, y):
        ...     return update_jacobian(genome, rules, init_synapses(key, genome, rules, (2, 3, 2)), x, y)
        >>> jax.eval_shape(jacobian, jax.random.key(0), jnp.ones((4, 2), "f4"), jnp.ones((4, 2), "f4")).shape  # 2 (3 3 + 4 2)
        (34, 34)
    """
    weights, unravel = ravel_pytree([synapse.W for synapse in synapses])

    def change(flat: Array) -> Array:
        moved = [old._replace(W=W, V=transpose_synapses(W)) for old, W in zip(synapses, unravel(flat), strict=True)]
        after, _ = learn(genome, rules, tuple(moved), x, y)
        return ravel_pytree([synapse.W for synapse in after])[0] - flat

    return jax.jacfwd(change)(weights)


def curl(jacobian: Float[Any, "w w"]) -> Curl:
    """Largest entry and relative norm of `J - Jᵀ`.

    Example:
        >>> symmetric, rotation = jnp.array([[1.0, 2.0], [2.0, 0.0]]), jnp.array([[0.0, 1.0], [-1.0, 0.0]])
        >>> float(curl(symmetric).largest), round(float(curl(rotation).relative), 6)
        (0.0, 2.0)
    """
    difference = jacobian - jacobian.T
    return Curl(jnp.max(jnp.abs(difference)), jnp.linalg.norm(difference) / jnp.linalg.norm(jacobian))


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
) -> PyTree[Float[np.ndarray, "rates seeds at"]]:
    """Accuracy of networks after 0, 1, .. n updates at every learning rate.

    Initial weights have variance 1/n_in (twice that with ReLUs). The networks of all rates are one program, as compilation
    dominates the time of tuning. Minibatches are those of `icl.blur.learning_curves`.

    Args:
        optimizer: a name of `jexplicit.nn.training`.
        hidden, train, test, steps, batch_size, seeds, at: as in `icl.blur.learning_curves`.
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.

    Raises:
        ValueError: no rates, an unknown activation, or as in `icl.blur.learning_curves`.

    Example::

        train, dev, test, _ = image_sets(jexplicit.data.read_images("digits"))
        curves = descent_curves("sgd", (0.1, 1.0), (32,), train, test, normalised=True, steps=10)
        curves.mean(axis=1)  # [rates, updates], over ten networks

    Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Fig. 6.
    """
    if not rates:
        raise ValueError("no learning rates: give at least one")
    activation(hidden_activation)
    sizes, at, keys, batches = seeded_learners(seeds, hidden, train, at, steps=steps, batch_size=batch_size)
    learners = initial_layers(sizes, hidden_activation, keys), batches
    network = optimizer, normalised, hidden_activation, at
    found = _descent_curves(*network, jnp.asarray(rates, np.float32), learners, train, test)
    return jax.tree.map(lambda curves: np.asarray(curves).swapaxes(0, 1), found)


@functools.partial(jax.jit, static_argnums=(0, 1))
def initial_layers(sizes: tuple[int, ...], hidden_activation: Activation, keys: Array) -> Layers:
    """Weights of variance 1/n_in (2/n_in with ReLUs) for each key, as in genomes."""
    genome = backprop_genome(2, sigma=2**0.5 if hidden_activation == "relu" else 1.0)
    rules = sgd_rules(hidden_activation, "cross_entropy")
    weights = [synapse.W[:, 0] for synapse in jax.vmap(lambda key: init_synapses(key, genome, rules, sizes))(keys)]
    return [{"W": W[:, :-1], "b": W[:, -1], "m": jnp.ones_like(W[:, -1])} for W in weights]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
@full_precision
def _descent_curves(
    optimizer: OptimizerName,
    normalised: bool,
    hidden_activation: Activation,
    at: tuple[int, ...],
    rates: Float[Array, " rates"],
    learners: tuple[Layers, Int[Array, "seeds steps batch"]],
    train: Examples,
    test: Any,
) -> PyTree[Float[Array, "seeds rates at"]]:
    """On a CPU networks train in turn: the weights of one fit the cache."""

    def logits(layers: Layers, a: Array) -> Array:
        for n, layer in enumerate(layers):
            z = a @ layer["W"]
            z = layer["m"][None] * normalise(z[None], 1.0, 0.0)[0] if normalised else z
            z = z + layer["b"][None]
            a = z if n == len(layers) - 1 else activation(hidden_activation)(z)
        return a

    def loss(layers: Layers, batch: Array) -> Array:
        return jnp.mean(optax.softmax_cross_entropy(logits(layers, train.X[batch]), train.Y[batch]))

    def curve(layers: Layers, batches: Array, rate: Array) -> PyTree[Array]:
        descend = make_optimizer(optimizer, rate)

        def step(state: tuple[Any, Any], batch: Array) -> tuple[Any, Any]:
            layers, moments = state
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax mixes dtypes
                updates, moments = descend.update(jax.grad(loss)(layers, batch), moments, layers)
                return optax.apply_updates(layers, updates), moments

        def measure(state: tuple[Any, Any]) -> PyTree[Array]:
            return accuracies_of(functools.partial(logits, state[0]), test)

        return trajectory(step, measure, (layers, descend.init(layers)), batches, at)

    return map_rows(lambda learner: map_rows(functools.partial(curve, *learner), rates), learners)

"""Gradient descent as a genome and as a baseline, small tasks, costs and speed-ups."""

import functools
import itertools
import math
import operator
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from icl.blur.design import Rules
from icl.blur.learning import Examples, Sets, accuracies_of, image_sets, minibatches, seeded_learners, trajectory
from icl.blur.rules import Genome, Synapses, backprop_genome, init_synapses, learn, normalise, transpose_synapses
from jexplicit.data.images import Images, one_hot, read_images
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.nn.networks import activation
from jexplicit.nn.training import make_optimizer
from jexplicit.runs.devices import full_precision, key_of_seed, map_rows

# With two states, the rules are backpropagation up to rounding.
#
# State 0 is the activation, and state 1 its derivative, then the error. With one matrix for both states and
#
#     ν = [[1, 1], [0, 0]],   µ = I,   ν̃ = I,   µ̃ = [[0, 1], [1, 0]],   f = η = f̃ = 1,   η̃ = -rate
#
#     forward     a⁰ = σ(z), a¹ = σ'(z)      as both states have the same pre-activation z
#     feedback    a¹ <- σ'(z) ∂ℓ/∂a⁰         in the last layer
#     backward    a¹ <- a¹ Σ_j W[i,j] a¹_j   which is ∂ℓ/∂z
#     synapses    H[i,j] = mean_B a⁰_i a¹_j  which is ∂ℓ/∂W
#
# The additive backward pass has no product of derivative and error, so the same matrices give a different algorithm.
#
# A learned update is not a gradient: if ΔW were the gradient of a function of the synapses, its Jacobian `∂ΔW_k/∂W_m` would be
# symmetric, as in gradient descent.
#
# The networks of the baseline are plain, or have the forward pass of a learner: the pre-activations of each layer are
# normalised over the minibatch, in training and prediction, with trainable scales and shifts. Much of the advantage of a
# learned rule over plain descent is due to normalisation, so the fair comparison includes it.
#
# Source: Sandler et al. 2021, Sec. 3.2 and 3.3, Fig. 2 and 6.

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
    """`∂ΔW_k/∂W_m` [w, w] over all forward synapses and biases, by forward differentiation."""
    weights, unravel = ravel_pytree([synapse.W for synapse in synapses])

    def change(flat: Array) -> Array:
        moved = [old._replace(W=W, V=transpose_synapses(W)) for old, W in zip(synapses, unravel(flat), strict=True)]
        after, _ = learn(genome, rules, tuple(moved), x, y)
        return ravel_pytree([synapse.W for synapse in after])[0] - flat

    return jax.jacfwd(change)(weights)


def curl(jacobian: Float[Any, "w w"]) -> Curl:
    """Largest entry and relative norm of `J - Jᵀ`.

    Example:
        >>> float(curl(jnp.array([[1.0, 2.0], [2.0, 0.0]])).largest)
        0.0
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

    Initial weights have variance 1/n_in (twice that with ReLUs). Minibatches are those of `icl.blur.learning_curves`.

    Args:
        optimizer: a name of `jexplicit.nn.training`.
        hidden, train, test, steps, batch_size, seeds, at: as in `icl.blur.learning_curves`.
        normalised: whether all layers are normalised.
        hidden_activation: σ of the hidden layers.

    Raises:
        ValueError: no rates, an unknown activation, or as in `icl.blur.learning_curves`.

    Example::

        train, dev, test, _ = image_sets(jexplicit.data.read_images("digits"))
        curves = descent_curves("sgd", (0.1, 1.0), (32,), train, test, normalised=True, steps=10)  # [rates, seeds, updates]
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


# The tasks have 12 data sets that no shipped genome but `mnist` was meta-trained on, each with one hidden layer, not selected
# by results:
#
#     mnist@7 .. @28        images of MNIST's test set of this side; meta-training may have had the training set
#     iris                  150 flowers
#     moons                 two half circles that interlock           noise 0.15
#     circles               radius 1 and 1/2                          noise 0.1
#     spirals               two arms of one and a half turns          noise 0.1, radius up to 3 π
#     checkerboard          4 x 4 fields of alternating classes
#     mixture@5 .. @50      clusters at random centres, equal noise   5 to 50 inputs, see `mixture`
#
# Half of the examples are for training, a quarter each for dev (for tuning baselines) and test; MNIST has 3500, 500 and 1000.
# Inputs are standardised by the training examples: tables by column, images as a whole after centring each pixel.
#
# The cost of an update are the floating-point operations (FLOPs) of its matrix products, 2 m n k for [m, k] by [k, n]. Products
# are counted in the traced program, those of a loop as often as it runs. A compiler's own count (`cost_analysis`) has one
# iteration of each loop, but the ridge update has eight of conjugate gradients. What is not counted, such as activations and
# normalisations, adds 4 % to plain gradient descent and 10 % to the rule `digits`, in a network 64-32-10 with minibatches of
# 64.
#
# Speed is the number of updates that another learner needs to get as far, divided by the rule's own. Learned optimisers are
# reported by this ratio, as its interquartile mean over tasks (Metz et al., VeLO, 2022; Agarwal et al., Deep Reinforcement
# Learning at the Edge of the Statistical Precipice, 2021).

Points = tuple[Float[np.ndarray, "M D"], Int[np.ndarray, " M"]]

MIXTURES: dict[str, dict[str, Any]] = {
    "mixture@5": {"inputs": 5, "classes": 3, "clusters": 2, "distance": 5.0},
    "mixture@20": {"inputs": 20, "classes": 5, "clusters": 1, "distance": 3.0},
    "mixture@50": {"inputs": 50, "classes": 10, "clusters": 2, "distance": 7.0},
}
"""Gaussian mixtures by name: inputs, classes, clusters per class, distance of two clusters (see `mixture`)."""

_drawn = 2000  # points of a figure or mixture
_mnist = 4000, 1000  # images to learn from (train and dev), and for testing
_tie = 1e-9  # between accuracies that are the same fraction


class Task(NamedTuple):
    """Data, and the width of the hidden layer of the networks that learn them."""

    data: str
    width: int

    @property
    def name(self) -> str:
        """`iris/128`: the data and the width."""
        return f"{self.data}/{self.width}"


TASKS = tuple(
    Task(*task)
    for task in (
        *(("mnist@7", 128), ("mnist@10", 256), ("mnist@14", 512), ("mnist@28", 16), ("iris", 128)),
        *(("moons", 256), ("circles", 512), ("spirals", 16), ("checkerboard", 32)),
        *(("mixture@5", 128), ("mixture@20", 256), ("mixture@50", 512)),
    )
)
"""All tasks."""


def select_tasks(names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of these names, such as `iris/128`, in order of TASKS."""
    known = {name for task in TASKS for name in (task.name, task.data)}
    if not names or set(names) - known:
        wrong = ", ".join(name for name in names if name not in known) or "none"
        raise ValueError(f"tasks {wrong}: choose some of {', '.join(task.data for task in TASKS)}")
    return tuple(task for task in TASKS if {task.name, task.data} & set(names))


def task_sets(data: str, *, seed: int = 0, data_dir: str | os.PathLike | None = None) -> Sets:
    """The three splits of the data of one of TASKS, from a seed."""
    name, _, side = data.partition("@")
    rng = np.random.default_rng((seed, zlib.crc32(data.encode())))  # independent numbers for each data set
    if data not in {task.data for task in TASKS}:
        raise ValueError(f"data {data!r}: choose one of {', '.join(task.data for task in TASKS)}")
    if name == "mnist":
        return image_sets(_unseen_mnist(data_dir, seed), side=int(side))._replace(name=data)
    if data == "iris":
        from sklearn.datasets import load_iris

        flowers: Any = load_iris()
        X, labels = flowers.data, flowers.target
    else:
        X, labels = mixture(_drawn, rng, **MIXTURES[data]) if data in MIXTURES else plane(data, _drawn, rng)
    order, ends = np.random.default_rng(seed).permutation(len(X)), [len(X) // 2, len(X) // 2 + len(X) // 4]
    X, train = X[order], X[order[: ends[0]]]
    std, varies = train.std(axis=0, keepdims=True), np.ptp(train, axis=0, keepdims=True) > 0  # a constant input is 0
    Z = np.where(varies, (X - train.mean(axis=0, keepdims=True)) / np.where(varies, std, 1), 0).astype(np.float32)
    Y = one_hot(labels[order].astype(np.int64), int(labels.max()) + 1)
    return Sets(*map(Examples, np.split(Z, ends), np.split(Y, ends)), name=data)


def _unseen_mnist(data_dir: str | os.PathLike | None, seed: int) -> Images:
    """Images of MNIST's test set only, split again."""
    try:
        images = read_images("mnist", data_dir)
    except ValueError as error:
        rest = " ".join(task.data for task in TASKS if not task.data.startswith("mnist"))
        raise ValueError(f"tasks on MNIST: {error}. Or leave them out, and name the other tasks: {rest}") from error
    order, (few, tests) = np.random.default_rng(seed).permutation(len(images.test_labels)), _mnist
    learned, tested = order[:few], order[few : few + tests]
    X, Y = images.test_images, images.test_labels
    return images._replace(train_images=X[learned], train_labels=Y[learned], test_images=X[tested], test_labels=Y[tested])


def plane(name: str, examples: int, rng: np.random.Generator) -> Points:
    """M points of two classes in the plane, by name, in random order."""
    labels, t = rng.integers(0, 2, examples), rng.uniform(size=examples)
    noise = rng.normal(size=(examples, 2))
    if name == "moons":
        angle, side = np.pi * t, 1 - 2 * labels
        x = np.stack([np.cos(angle) * side + labels, np.sin(angle) * side + labels / 2], axis=1)
        return x + 0.15 * noise, labels
    if name == "circles":
        return _polar(1 - labels / 2, 2 * np.pi * t) + 0.1 * noise, labels
    if name == "spirals":
        angle = 3 * np.pi * np.sqrt(t)  # constant density along an arm
        return _polar(angle, angle + np.pi * labels) + 0.1 * noise, labels
    x = rng.uniform(0, 4, size=(examples, 2))
    return x, np.floor(x).astype(np.int64).sum(axis=1) % 2


def mixture(examples: int, rng: np.random.Generator, *, inputs: int, classes: int, clusters: int, distance: float) -> Points:
    """Points around random centres, x ~ N(centre, I), in random order."""
    centres = distance / (2 * inputs) ** 0.5 * rng.normal(size=(classes, clusters, inputs))
    labels = rng.integers(0, classes, examples)
    return centres[labels, rng.integers(0, clusters, examples)] + rng.normal(size=(examples, inputs)), labels


def _polar(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def matrix_flops(function: Callable[..., Any], *args: Any) -> int:
    """FLOPs of the matrix products in one call; refuses loops of unknown length."""
    return _flops(jax.make_jaxpr(function)(*args).jaxpr)


def _flops(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left: Any = equation.invars[0].aval
            out: Any = equation.outvars[0].aval
            total += 2 * math.prod(out.shape) * math.prod(left.shape[axis] for axis in contracted)
        elif name == "while":
            raise ValueError("a loop whose number of iterations is not known before it runs: use jax.lax.scan")
        elif name == "custom_linear_solve":  # its other parts are for derivatives
            total += _flops(params["jaxprs"].solve.jaxpr)
        elif name == "cond":
            total += max(_flops(branch.jaxpr) for branch in params["branches"])
        else:
            total += params.get("length", 1) * sum(map(_flops, jaxprs_in_params(params)))
    return total


def rule_flops(genome: Genome, rules: Rules, sizes: tuple[int, ...], batch_size: int) -> int:
    """FLOPs of one update of a learner with neurons `sizes` on a minibatch."""
    synapses = init_synapses(jax.random.key(0), genome, rules, sizes)
    x, y = (jnp.zeros((batch_size, size), np.float32) for size in (sizes[0], sizes[-1]))
    return matrix_flops(lambda synapses: learn(genome, rules, synapses, x, y)[0], synapses)


def descent_flops(sizes: tuple[int, ...], batch_size: int) -> int:
    """FLOPs of a descent update: `2 B (3 Σ_l n_l n_{l+1} - n_0 n_1)`."""
    return 2 * batch_size * (3 * sum(itertools.starmap(operator.mul, itertools.pairwise(sizes))) - sizes[0] * sizes[1])


def nearest_neighbour_accuracies(
    train: Examples, test: Examples, *, at: tuple[int, ...], batch_size: int, seeds: tuple[int, ...]
) -> Float[np.ndarray, "seeds at"]:
    """Test accuracies of the nearest neighbour in the first n minibatches."""
    from sklearn.neighbors import KNeighborsClassifier

    @functools.cache
    def accuracy(seen: tuple[int, ...]) -> float:  # once they are all examples, they are the same for all learners
        fitted = KNeighborsClassifier(n_neighbors=1).fit(X[list(seen)], labels[list(seen)])
        return float(fitted.score(np.asarray(test.X, np.float64), np.asarray(test.Y).argmax(axis=1)))

    X, labels, steps = np.asarray(train.X, np.float64), np.asarray(train.Y).argmax(axis=1), max(at)
    drawn = [minibatches(seed, len(X), steps=steps, batch_size=batch_size) for seed in seeds]
    return np.array([[accuracy(tuple(np.unique(batches[:n]).tolist())) for n in at] for batches in drawn])


def updates_to_reach(accuracy: float, at: Sequence[int], accuracies: Sequence[float]) -> float:
    """Updates until a curve, linear in log n, first reaches an accuracy."""
    if not 1 <= len(at) == len(accuracies) or min(at) < 1 or list(at) != sorted({*at}):
        raise ValueError(f"{len(accuracies)} accuracies after {list(at)} updates: give one for each, ascending from 1 on")
    first = next((i for i, found in enumerate(accuracies) if found >= accuracy - _tie), None)
    if first is None:
        return math.inf
    if first == 0:
        return float(at[0])
    lower, upper = accuracies[first - 1], accuracies[first]
    share = min(1.0, (accuracy - lower) / (upper - lower))
    return float(at[first - 1] * (at[first] / at[first - 1]) ** share)

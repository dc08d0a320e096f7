"""Quality and speed of a learned rule: small tasks, costs, neighbours, speed-ups.

The tasks have 12 data sets that no shipped genome but `mnist` was meta-trained on, each with one hidden layer, not selected by
results:

    mnist@7 .. @28        images of MNIST's test set of this side; meta-training may have had the training set
    iris                  150 flowers
    moons                 two half circles that interlock           noise 0.15
    circles               radius 1 and 1/2                          noise 0.1
    spirals               two arms of one and a half turns          noise 0.1, radius up to 3 π
    checkerboard          4 x 4 fields of alternating classes
    mixture@5 .. @50      clusters at random centres, equal noise   5 to 50 inputs, see `mixture`

Half of the examples are for training, a quarter each for dev (for tuning baselines) and test; MNIST has 3500, 500 and 1000.
Inputs are standardised by the training examples: tables by column, images as a whole after centring each pixel.

The cost of an update are the floating-point operations (FLOPs) of its matrix products, 2 m n k for [m, k] by [k, n]. Products
are counted in the traced program, those of a loop as often as it runs. A compiler's own count (`cost_analysis`) has one
iteration of each loop, but the ridge update has eight of conjugate gradients. What is not counted, such as activations and
normalisations, adds 4 % to plain gradient descent and 10 % to the rule `digits`, in a network 64-32-10 with minibatches of 64.

Speed is the number of updates that another learner needs to get as far, divided by the rule's own. Learned optimisers are
reported by this ratio, as its interquartile mean over tasks (Metz et al., VeLO, 2022; Agarwal et al., Deep Reinforcement
Learning at the Edge of the Statistical Precipice, 2021).
"""

import functools
import itertools
import math
import operator
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params
from jaxtyping import Float, Int

from icl.blur.data import Examples, Sets, image_sets
from icl.blur.design import Rules
from icl.blur.genome import Genome
from icl.blur.learning import minibatches
from icl.blur.rules import init_synapses, learn
from jexplicit.data.images import Images, one_hot, read_images

Points = tuple[Float[np.ndarray, "M D"], Int[np.ndarray, " M"]]

MIXTURES: dict[str, dict[str, Any]] = {
    "mixture@5": {"inputs": 5, "classes": 3, "clusters": 2, "distance": 5.0},
    "mixture@20": {"inputs": 20, "classes": 5, "clusters": 1, "distance": 3.0},
    "mixture@50": {"inputs": 50, "classes": 10, "clusters": 2, "distance": 7.0},
}
"""Gaussian mixtures by name: inputs, classes, clusters per class, distance of two clusters (see `mixture`)."""
PLANES = ("moons", "circles", "spirals", "checkerboard")
"""Names of the figures in the plane."""

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
    """M points of two classes in the plane, one of PLANES, in random order."""
    if name not in PLANES:
        raise ValueError(f"{name!r} is not a figure in the plane: choose one of {', '.join(PLANES)}")
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


def mixture(
    examples: int, rng: np.random.Generator, *, inputs: int, classes: int, clusters: int = 1, distance: float = 4.0
) -> Points:
    """Points around random centres, x ~ N(centre, I), in random order.

    clusters: centres per class. distance: root mean square distance of two centres, in standard deviations of the noise.
    """
    if min(examples, inputs, classes, clusters) < 1 or not distance >= 0:
        numbers = f"{examples} points, {inputs} inputs, {classes} classes of {clusters} clusters, distance {distance}"
        raise ValueError(f"{numbers}: use at least 1 of each, and a distance of at least 0")
    centres = distance / (2 * inputs) ** 0.5 * rng.normal(size=(classes, clusters, inputs))
    labels = rng.integers(0, classes, examples)
    return centres[labels, rng.integers(0, clusters, examples)] + rng.normal(size=(examples, inputs)), labels


def _polar(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def matrix_flops(function: Callable[..., Any], *args: Any) -> int:
    """FLOPs of the matrix products in one call.

    Raises:
        ValueError: a loop whose number of iterations is not known before it runs.
    """
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
    """Updates until a curve first reaches an accuracy; infinity if never.

    Args:
        at: numbers of updates from 1 on, in ascending order.
        accuracies: of the curve after each of them; between two of them it is linear in log n.
    """
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


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half, without the lowest and the highest quarter."""
    if not len(values):
        raise ValueError("the interquartile mean of no values: give at least one")
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))

"""Labelled data of learners, and learners as pure functions."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from icl.blur.design import Rules
from icl.blur.rules import Genome, Synapses, init_synapses, learn, load_genome, predict
from jexplicit.data.images import Images, one_hot, pixel_features
from jexplicit.runs.devices import is_concrete, key_of_seed, map_rows

# A genome is meta-trained on *train*, selected on *dev* and reported on *test*. Reported learners take minibatches from
# *train*; the learning rate of a baseline is selected on *dev*, as the genome. The embedded digits are shuffled first, as their
# last images come from other writers: the experiments measure speed of learning, not generalisation to new writers.


class Examples(NamedTuple):
    """Inputs [M, D] and one-hot targets [M, N]."""

    X: Float[Any, "M D"]
    Y: Float[Any, "M N"]


class Sets(NamedTuple):
    """The three splits of a data set, and its name."""

    train: Examples
    dev: Examples
    test: Examples
    name: str

    @property
    def inputs(self) -> int:
        """D."""
        return self.train.X.shape[1]

    @property
    def outputs(self) -> int:
        """N."""
        return self.train.Y.shape[1]


def image_sets(
    images: Images, *, side: int | None = None, limit: int | None = None, classes: tuple[int, ...] = (), seed: int = 0
) -> Sets:
    """Centred pixels, `(h - mean h)/std`, and one-hot labels, in three splits.

    Args:
        images: from `jexplicit.data.images.read_images`.
        side: resize the images to side x side (`resize_images`); default, unchanged.
        limit: use at most this many images, train and test together.
        classes: use the images of these classes only, relabelled 0, 1, ..; default, all. The test split does not depend on
            the classes.

    Raises:
        ValueError: fewer than 100 images, an impossible side, unknown or repeated classes, or a single class.
    """
    X = np.concatenate([images.train_images, images.test_images])
    labels = np.concatenate([images.train_labels, images.test_labels])
    tests = len(images.test_labels)
    outputs = images.outputs
    if images.name == "digits":
        order, tests = np.random.default_rng(seed).permutation(len(X)), len(X) // 3 - 2
        X, labels = X[order], labels[order]
    if classes:
        number, outputs = _new_labels(images, classes), len(classes)
        kept = number[labels] >= 0
        X, labels, tests = X[kept], number[labels[kept]], int(kept[-tests:].sum())
    if limit is not None and limit < len(X):
        tests = max(1, tests * limit // len(X))
        X, labels = (np.concatenate([array[: limit - tests], array[-tests:]]) for array in (X, labels))
    if len(X) < 100:
        raise ValueError(f"{len(X)} images of {images.name}: at least 100 are needed for the three parts; read more images")
    H = pixel_features(resize_images(X, X.shape[1] if side is None else side).round().astype(np.int64), images.levels)
    M = len(X) - tests
    ends = [M - M // 8, M]
    mean = H[: ends[0]].mean(axis=0)
    Z, Y = (H - mean) / (H[: ends[0]] - mean).std(), one_hot(labels, outputs)
    return Sets(*map(Examples, np.split(Z, ends), np.split(Y, ends)), name=images.name)


def _new_labels(images: Images, classes: tuple[int, ...]) -> np.ndarray:
    """[N] the new label of every class, -1 for excluded classes."""
    if len(set(classes)) < max(2, len(classes)) or not set(classes) <= set(range(images.outputs)):
        given, last = " ".join(map(str, classes)), images.outputs - 1
        raise ValueError(f"classes {given} of {images.name}: use at least two of 0 .. {last}, each once")
    number = np.full(images.outputs, -1)
    number[list(classes)] = np.arange(len(classes))
    return number


def resize_images(images: np.ndarray, side: int) -> Float[np.ndarray, "M side side"]:
    """Images resized to side x side: repeated pixels, or averages of central blocks."""
    old = images.shape[1]
    if images.shape[2] != old or side < 1 or (side > old and side % old):
        raise ValueError(f"images of {old} x {images.shape[2]} to a side of {side}: use a smaller side, or a multiple")
    images = images.astype(np.float64)
    if side >= old:
        return images.repeat(side // old, axis=1).repeat(side // old, axis=2)
    block = old // side
    first = (old - block * side) // 2
    crop = images[:, first : first + block * side, first : first + block * side]
    return crop.reshape(len(images), side, block, side, block).mean(axis=(2, 4))


def xor() -> tuple[Float[np.ndarray, "4 2"], Float[np.ndarray, "4 2"]]:
    """The four inputs ±1 of XOR, and their one-hot targets."""
    x = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    return x, np.eye(2)[[0, 1, 1, 0]]


def corners(examples: int, rng: np.random.Generator, *, noise: float = 0.1) -> Examples:
    """The four noisy inputs of `xor` as four classes."""
    corner = rng.integers(0, 4, examples)
    x = xor()[0][corner] + noise * rng.normal(size=(examples, 2))
    return Examples(x.astype(np.float32), np.eye(4, dtype=np.float32)[corner])


# Batch statistics make a prediction depend on the other examples of the batch, so accuracies are over a whole split at once.

_least_scale = 0.01  # of inputs; the digits of the package learn half as much there as at 1


def minibatches(seed: int, examples: int, *, steps: int, batch_size: int) -> Int[np.ndarray, "steps batch"]:
    """The examples of each update: epochs, each in a new random order.

    Raises:
        ValueError: a batch larger than the data, or numbers below 1.
    """
    if not (1 <= batch_size <= examples and steps >= 1):
        raise ValueError(
            f"{steps} batches of {batch_size} out of {examples} examples: use at least one, and at most all examples"
        )
    rng = np.random.default_rng(seed)
    epochs = -(-steps * batch_size // examples)
    order = np.concatenate([rng.permutation(examples) for _ in range(epochs)])
    return order[: steps * batch_size].reshape(steps, batch_size)


def learning_curves(
    genome: Genome,
    rules: Rules,
    hidden: tuple[int, ...],
    train: Examples,
    test: Any,
    *,
    steps: int,
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
    at: tuple[int, ...] | None = None,
) -> PyTree[Float[np.ndarray, "seeds at"]]:
    """Accuracy of several learners after 0, 1, .. n updates from own synapses.

    Args:
        test: examples for the accuracies, of one part or of several, from one training run.
        steps: n.
        at: numbers of updates to measure after, in ascending order; default, all.

    Raises:
        ValueError: as in `minibatches`, `init_synapses` and `learn`, or `at` that does not ascend within 0 .. n.

    Example::

        genome, rules, _ = load_genome("digits")
        train, dev, test, _ = image_sets(jexplicit.data.read_images("digits"))
        curves = learning_curves(genome, rules, (32,), train, test, steps=10)  # [seeds, updates]
    """
    *network, keys, batches = seeded_learners(seeds, hidden, train, at, steps=steps, batch_size=batch_size)
    return jax.tree.map(np.asarray, _learning_curves(rules, *network, genome, keys, batches, train, test))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _learning_curves(
    rules: Rules,
    sizes: tuple[int, ...],
    at: tuple[int, ...],
    genome: Genome,
    keys: Array,
    batches: Int[Array, "seeds steps batch"],
    train: Examples,
    test: Any,
) -> PyTree[Float[Array, "seeds at"]]:
    def step(synapses: Synapses, batch: Array) -> Synapses:
        return learn(genome, rules, synapses, train.X[batch], train.Y[batch])[0]

    def measure(synapses: Synapses) -> PyTree[Array]:
        return accuracies_of(functools.partial(predict, genome, rules, synapses), test)

    def run(learner: tuple[Array, Array]) -> PyTree[Array]:
        key, batches = learner
        return trajectory(step, measure, init_synapses(key, genome, rules, sizes), batches, at)

    return map_rows(run, (keys, batches))


def trajectory(
    step: Callable[[Any, Array], Any],
    measure: Callable[[Any], Any],
    state: Any,
    batches: Int[Array, "steps batch"],
    at: tuple[int, ...],
) -> Any:
    """`measure(state)` after some numbers of `state = step(state, batch)`, stacked."""

    def resume(state: Any, ends: Array) -> tuple[Any, Any]:
        state = lax.fori_loop(ends[0], ends[1], lambda n, state: step(state, batches[n]), state)
        return state, measure(state)

    return lax.scan(resume, state, jnp.array([(0, *at[:-1]), at]).T)[1]


def seeded_learners(
    seeds: tuple[int, ...], hidden: tuple[int, ...], train: Examples, at: tuple[int, ...] | None, *, steps: int, batch_size: int
) -> tuple[tuple[int, ...], tuple[int, ...], Array, Int[Array, "seeds steps batch"]]:
    """Neurons by layer, numbers of updates to measure, and keys by seed."""
    at = tuple(range(steps + 1)) if at is None else at
    if not at or list(at) != sorted({*at}) or at[0] < 0 or at[-1] > steps:
        raise ValueError(f"accuracies after {at} of {steps} updates: give ascending numbers from 0 to {steps}")
    batches = [minibatches(seed, len(train.X), steps=steps, batch_size=batch_size) for seed in seeds]
    keys = jnp.stack([key_of_seed(seed) for seed in seeds])
    return (train.X.shape[1], *hidden, train.Y.shape[1]), at, keys, jnp.asarray(np.stack(batches))


def accuracy_of(logits: Float[Array, "B N"], Y: Float[Array, "B N"]) -> Float[Array, ""]:
    """Fraction of examples with finite logits that are largest at their class."""
    correct = (jnp.argmax(logits, axis=1) == jnp.argmax(Y, axis=1)) & jnp.all(jnp.isfinite(logits), axis=1)
    return jnp.mean(correct.astype(logits.dtype))


def accuracies_of(logits: Callable[[Array], Array], parts: Any) -> Any:
    """`accuracy_of` on each `Examples` of a pytree, such as `(dev, test)`."""
    return jax.tree.map(
        lambda part: accuracy_of(logits(part.X), part.Y), parts, is_leaf=lambda part: isinstance(part, Examples)
    )


class Learner(NamedTuple):
    """Pure functions of one genome, like an `optax.GradientTransformation`.

    init: (key, sizes) -> state, the random synapses of layers with sizes n_0 (inputs) .. n_L (outputs).
    update: (x [B, n_0], y [B, n_L] one-hot, state) -> (state, logits before the update), one update on a minibatch. Inputs are
        best standardised, as those of meta-training were; ValueError for a root mean square below 0.01, and for NaN;
        FloatingPointError once synapses are not finite.
    predict: (state, x [B, n_0]) -> logits [B, n_L]; FloatingPointError where they are not finite.
        Neurons are normalised over the batch, so predict many examples at once.
    """

    init: Callable[[Array, Sequence[int]], Synapses]
    update: Callable[[Float[Array, "B n_in"], Float[Array, "B n_out"], Synapses], tuple[Synapses, Float[Array, "B n_out"]]]
    predict: Callable[[Synapses, Float[Array, "B n_in"]], Float[Array, "B n_out"]]


def learner(name: str | os.PathLike = "digits") -> Learner:
    """The learner of a shipped genome or of a file.

    Raises:
        ValueError: no such genome, or a damaged file.
    """
    genome, rules, _ = load_genome(name)

    def init(key: Array, sizes: Sequence[int]) -> Synapses:
        return init_synapses(key, genome, rules, sizes)

    @jax.jit
    def step(x: Any, y: Any, state: Synapses) -> tuple[Synapses, Array, Array]:
        state, logits = learn(genome, rules, state, jnp.asarray(x, genome.nu.dtype), jnp.asarray(y, genome.nu.dtype))
        return state, logits, jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()

    def update(x: Any, y: Any, state: Synapses) -> tuple[Synapses, Array]:
        if is_concrete(x) and not (scale := float(jnp.sqrt(jnp.mean(jnp.square(jnp.asarray(x, jnp.float32)))))) >= _least_scale:
            remedy = "standardise them as in meta-training, (x - mean) / standard deviation"
            raise ValueError(f"inputs of root mean square {scale:.2g}: {remedy}")
        state, logits, finite = step(x, y, state)
        if is_concrete(finite) and not bool(finite):
            raise FloatingPointError("the synapses are not finite after this update: stop earlier, as in meta-training")
        return state, logits

    compiled = jax.jit(functools.partial(predict, genome, rules))

    def logits_of(state: Synapses, x: Any) -> Array:
        logits = compiled(state, x)
        if is_concrete(logits) and not bool(jnp.isfinite(logits).all()):
            raise FloatingPointError("logits that are not finite: so are the inputs or the synapses; check x, or stop earlier")
        return logits

    return Learner(init, update, logits_of)

"""Learners at work: minibatches, and accuracy by number of updates.

Batch statistics make a prediction depend on the other examples of the batch, so accuracies are over a whole part at once.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from icl.blur.data import Examples
from icl.blur.genome import Genome
from icl.blur.rules import Rules, Synapses, init_synapses, learn, predict
from jexplicit.runs.devices import each_row


class LearningCurves(NamedTuple):
    """Learners by number of updates 0, 1, .. n.

    accuracy: [seeds, n + 1] fraction of correct predictions.
    size: [seeds, n + 1] root mean square of the first layer's synapses.
    """

    accuracy: Float[Any, "*seeds steps"]
    size: Float[Any, "*seeds steps"]


def minibatches(seed: int, examples: int, *, steps: int, batch_size: int) -> Int[np.ndarray, "steps batch"]:
    """The examples of each update: epochs over all of them, each in a new random order.

    Raises:
        ValueError: a batch larger than the data, or numbers below 1.

    Example:
        >>> sorted(minibatches(0, 4, steps=2, batch_size=2).ravel().tolist())
        [0, 1, 2, 3]
    """
    if not (1 <= batch_size <= examples and steps >= 1):
        raise ValueError(
            f"{steps} batches of {batch_size} out of {examples} examples: use at least one, and at most all examples"
        )
    rng = np.random.default_rng(seed)
    epochs = -(-steps * batch_size // examples)
    order = np.concatenate([rng.permutation(examples) for _ in range(epochs)])
    return order[: steps * batch_size].reshape(steps, batch_size)


def learning_curve(
    genome: Genome, rules: Rules, synapses: Synapses, batches: Int[Array, "steps batch"], train: Examples, test: Examples
) -> LearningCurves:
    """Accuracy on `test` and size of the synapses of one learner after 0, 1, .. n updates. Pure.

    Args:
        genome, rules, synapses: the learner.
        batches: rows of `train` for each update.
        train, test: arrays of JAX.
    """

    def measure(synapses: Synapses) -> tuple[Array, Array]:
        accuracy = accuracy_of(predict(genome, rules, synapses, test.X), test.Y)
        return accuracy, jnp.sqrt(jnp.mean(synapses[0].W ** 2))

    def step(synapses: Synapses, batch: Array) -> tuple[Synapses, tuple[Array, Array]]:
        synapses, _ = learn(genome, rules, synapses, train.X[batch], train.Y[batch])
        return synapses, measure(synapses)

    _, after = lax.scan(step, synapses, batches)
    return LearningCurves(*(jnp.concatenate([a[None], b]) for a, b in zip(measure(synapses), after, strict=True)))


def learning_curves(
    genome: Genome,
    rules: Rules,
    hidden: tuple[int, ...],
    train: Examples,
    test: Examples,
    *,
    steps: int,
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
) -> LearningCurves:
    """`learning_curve` of several learners, each with its own initial synapses and minibatches, as NumPy arrays.

    Args:
        genome, rules: of the learners.
        hidden: widths of the hidden layers.
        train: examples to learn from.
        test: examples for the accuracies.
        steps: n.
        batch_size: B.
        seeds: one per learner.

    Raises:
        ValueError: as in `minibatches`, `init_synapses` and `learn`.
    """
    sizes, *learners = seeded_learners(seeds, hidden, train, steps=steps, batch_size=batch_size)
    return LearningCurves(*map(np.asarray, _learning_curves(rules, sizes, genome, *learners, train, test)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _learning_curves(
    rules: Rules, sizes: tuple[int, ...], genome: Genome, keys: Array, batches: Array, *data: Examples
) -> LearningCurves:
    def run(learner: tuple[Array, Array]) -> LearningCurves:
        key, batches = learner
        return learning_curve(genome, rules, init_synapses(key, genome, rules, sizes), batches, *data)

    return each_row(run, (keys, batches))


def seeded_learners(
    seeds: tuple[int, ...], hidden: tuple[int, ...], train: Examples, *, steps: int, batch_size: int
) -> tuple[tuple[int, ...], Array, Int[Array, "seeds steps batch"]]:
    """Neurons by layer, and for each seed the key of the initial weights and the minibatches."""
    batches = [minibatches(seed, len(train.X), steps=steps, batch_size=batch_size) for seed in seeds]
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    return (train.X.shape[1], *hidden, train.Y.shape[1]), keys, jnp.asarray(np.stack(batches))


def accuracy_of(logits: Float[Array, "B N"], Y: Float[Array, "B N"]) -> Float[Array, ""]:
    """Fraction of examples whose largest logit is that of their class and whose logits are all finite."""
    correct = (jnp.argmax(logits, axis=1) == jnp.argmax(Y, axis=1)) & jnp.all(jnp.isfinite(logits), axis=1)
    return jnp.mean(correct.astype(logits.dtype))

"""Learners at work: minibatches, and accuracy by number of updates.

Batch statistics make a prediction depend on the other examples asked about, so all accuracies are over a whole part at once.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from icl.blur.data import Part
from icl.blur.genome import Genome
from icl.blur.rules import Rules, Synapses, forward, init_synapses, learn


class Curves(NamedTuple):
    """How learners fared, by number of updates 0, 1, .. n.

    accuracy: [seeds, n + 1] share of right answers.
    size: [seeds, n + 1] root mean square of the first layer's synapses.
    """

    accuracy: Float[np.ndarray, "seeds steps"]
    size: Float[np.ndarray, "seeds steps"]


def minibatches(seed: int, examples: int, *, steps: int, batch_size: int) -> Int[np.ndarray, "steps batch"]:
    """Which examples each update sees: all of them in random order, then again in another.

    Raises:
        ValueError: a batch larger than the data, or numbers below 1.

    Example:
        >>> sorted(minibatches(0, 4, steps=2, batch_size=2).ravel().tolist())
        [0, 1, 2, 3]
    """
    if not (1 <= batch_size <= examples and steps >= 1):
        raise ValueError(
            f"{steps} batches of {batch_size} out of {examples} examples: at least one, and no larger than the data"
        )
    rng = np.random.default_rng(seed)
    rounds = -(-steps * batch_size // examples)
    order = np.concatenate([rng.permutation(examples) for _ in range(rounds)])
    return order[: steps * batch_size].reshape(steps, batch_size)


def learning_curves(
    genome: Genome,
    rules: Rules,
    hidden: tuple[int, ...],
    train: Part,
    test: Part,
    *,
    steps: int,
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
) -> Curves:
    """Accuracy on other examples after 0, 1, .. n updates, of learners with their own first synapses and minibatches.

    Args:
        genome, rules: of the learners.
        hidden: widths of the hidden layers.
        train: what they learn from.
        test: what they are asked.
        steps: n.
        batch_size: B.
        seeds: one per learner.

    Raises:
        ValueError: as `minibatches`, `init_synapses` and `learn`.
    """
    sizes = (train.X.shape[1], *hidden, train.Y.shape[1])
    rows = [minibatches(seed, len(train.X), steps=steps, batch_size=batch_size) for seed in seeds]
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    run = _curves(rules, sizes)
    return Curves(*map(np.asarray, run(genome, keys, jnp.asarray(np.stack(rows)), *map(jnp.asarray, (*train, *test)))))


def right(logits: Float[Array, "B N"], Y: Float[Array, "B N"]) -> Float[Array, ""]:
    """The share of examples whose largest logit is that of their class; none where a logit is not finite."""
    hit = (jnp.argmax(logits, axis=1) == jnp.argmax(Y, axis=1)) & jnp.all(jnp.isfinite(logits), axis=1)
    return jnp.mean(hit.astype(logits.dtype))


@functools.lru_cache(maxsize=64)
def _curves(rules: Rules, sizes: tuple[int, ...]) -> Callable[..., tuple[Array, Array]]:
    def run(genome: Genome, key: Array, rows: Array, X: Array, Y: Array, X_test: Array, Y_test: Array) -> tuple[Array, Array]:
        def measured(synapses: Synapses) -> tuple[Array, Array]:
            accuracy = right(forward(genome, rules, synapses, X_test)[1], Y_test)
            return accuracy, jnp.sqrt(jnp.mean(synapses[0].W ** 2))

        def step(synapses: Synapses, drawn: Array) -> tuple[Synapses, tuple[Array, Array]]:
            synapses, _ = learn(genome, rules, synapses, X[drawn], Y[drawn])
            return synapses, measured(synapses)

        first = init_synapses(key, genome, rules, sizes)
        _, after = lax.scan(step, first, rows)
        return jax.tree.map(lambda zero, rest: jnp.concatenate([zero[None], rest]), measured(first), after)

    def of_seeds(genome: Genome, keys: Array, rows: Array, *data: Array) -> tuple[Array, Array]:
        return lax.map(lambda one: run(genome, *one, *data), (keys, rows))

    return jax.jit(of_seeds)

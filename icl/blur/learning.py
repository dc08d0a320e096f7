"""Learners as pure functions: minibatches, accuracy by updates, learned rules like optimisers.

Batch statistics make a prediction depend on the other examples of the batch, so accuracies are over a whole split at once.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from icl.blur.data import Examples
from icl.blur.design import Rules
from icl.blur.genome import Genome, load_genome
from icl.blur.rules import Synapses, init_synapses, learn, predict
from jexplicit.runs.checks import is_concrete, key_of_seed
from jexplicit.runs.devices import map_rows

_least_scale = 0.01  # of inputs; the digits of the package learn half as much there as at 1


def minibatches(seed: int, examples: int, *, steps: int, batch_size: int) -> Int[np.ndarray, "steps batch"]:
    """The examples of each update: epochs, each in a new random order.

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
        test: examples for the accuracies, of one part or of several (`accuracies_of`), from one training run.
        steps: n.
        at: numbers of updates to measure after, in ascending order; default, all.

    Raises:
        ValueError: as in `minibatches`, `init_synapses` and `learn`, or `at` that does not ascend within 0 .. n.

    Example::

        genome, rules, _ = load_genome("digits")
        train, dev, test, _ = image_sets(jexplicit.data.read_images("digits"))
        curves = learning_curves(genome, rules, (32,), train, test, steps=10)
        curves.mean(axis=0)  # after 0, 1, .. 10 updates, over ten learners
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

    Example:
        >>> rule = learner("digits")
        >>> state = jax.eval_shape(lambda: rule.init(jax.random.key(0), (64, 32, 10)))
        >>> state, logits = jax.eval_shape(rule.update, jnp.ones((8, 64), "f4"), jnp.ones((8, 10), "f4"), state)
        >>> logits.shape
        (8, 10)
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

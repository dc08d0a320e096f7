"""A learned rule as functions, for layered networks: what an optimiser is for gradients.

rule = icl.blur.learner("digits")
state = rule.init(jax.random.key(0), (64, 32, 10))
state, logits = rule.update(x, y, state)            # one update on a minibatch
predictions = rule.predict(state, x_new).argmax(axis=1)
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icl.blur.genome_files import load_genome
from icl.blur.rules import Synapses, init_synapses, learn, predict


class Learner(NamedTuple):
    """Pure functions with one genome inside, like an `optax.GradientTransformation`: `jit`, `vmap`, `scan` and `grad` apply.

    init: (key, sizes) -> state, the random synapses of layers with sizes n_0 (inputs) .. n_L (outputs).
    update: (x [B, n_0], y [B, n_L] one-hot, state) -> (state, logits before the update), one update on a minibatch.
    predict: (state, x [B, n_0]) -> logits [B, n_L]. Neurons are normalised over the batch, so predict many examples at once.
    """

    init: Callable[[Array, Sequence[int]], Synapses]
    update: Callable[[Float[Array, "B n_in"], Float[Array, "B n_out"], Synapses], tuple[Synapses, Float[Array, "B n_out"]]]
    predict: Callable[[Synapses, Float[Array, "B n_in"]], Float[Array, "B n_out"]]


def learner(name: str | os.PathLike = "digits") -> Learner:
    """The learner with a genome of the package or from a file.

    Args:
        name: as in `icl.blur.load_genome`.

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

    def update(x: Array, y: Array, state: Synapses) -> tuple[Synapses, Array]:
        return learn(genome, rules, state, jnp.asarray(x, genome.nu.dtype), jnp.asarray(y, genome.nu.dtype))

    return Learner(init, jax.jit(update), jax.jit(functools.partial(predict, genome, rules)))

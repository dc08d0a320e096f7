"""Episodes: what one learner sees, how well it does in the end, and the mean over learners.

    ℓ = mean_q CE(logits_T(x_q), y_q) + λ mean_t CE(logits_t(x_t), y_t)

after T updates of new random synapses, on queries that are not in the minibatches; the second term, the path loss, is the loss
on every minibatch before the update on it.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 4.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from icl.blur.data import Examples
from icl.blur.genome import Genome
from icl.blur.learning import accuracy_of
from icl.blur.rules import Rules, Synapses, forward, init_synapses, learn
from jexplicit.runs.devices import each_row


class Episode(NamedTuple):
    """The data of one learner: minibatches [T, B, D] and [T, B, N], then queries [Q, D] and [Q, N]."""

    x: Float[Array, "T B D"]
    y: Float[Array, "T B N"]
    x_q: Float[Array, "Q D"]
    y_q: Float[Array, "Q N"]


def draw_episode(key: Array, data: Examples, *, unroll: int, batch_size: int, query_size: int) -> Episode:
    """Examples in random order: first the queries, then the minibatches, which start over when the examples run out.

    Example:
        >>> data = Examples(jnp.arange(6.0)[:, None], jnp.ones((6, 1)))
        >>> one = draw_episode(jax.random.key(0), data, unroll=2, batch_size=2, query_size=2)
        >>> sorted(jnp.concatenate([one.x.ravel(), one.x_q.ravel()]).tolist())
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    order = jax.random.permutation(key, len(data.X))
    queries, others = order[:query_size], order[query_size:]
    batches = others[jnp.arange(unroll * batch_size) % len(others)].reshape(unroll, batch_size)
    return Episode(data.X[batches], data.Y[batches], data.X[queries], data.Y[queries])


def meta_loss(
    genome: Genome,
    rules: Rules,
    hidden: tuple[int, ...],
    key: Array,
    episode: Episode,
    *,
    path: float = 0.0,
    remat: bool = False,
    at_once: int = 1,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """ℓ of one learner, in nats per query, and its accuracy on the queries. Pure.

    Args:
        genome, rules: of the learner.
        hidden: widths of its hidden layers.
        key: of its initial synapses.
        episode: its data.
        path: λ.
        remat: recompute the updates in the backward pass of differentiation.
        at_once: updates in one turn of the compiled loop; more of them start fewer kernels and take longer to compile.

    Example:
        >>> from icl.blur import backprop_genome
        >>> data = Examples(jnp.eye(6, 3, dtype="float32"), jnp.eye(6, 2, dtype="float32"))
        >>> def evaluate(key):
        ...     episode = draw_episode(key, data, unroll=2, batch_size=2, query_size=2)
        ...     return meta_loss(backprop_genome(2), Rules(states=2), (4,), key, episode)
        >>> [part.shape for part in jax.eval_shape(evaluate, jax.random.key(0))]
        [(), ()]
    """

    def step(synapses: Synapses, batch: tuple[Array, Array]) -> tuple[Synapses, Array]:
        synapses, logits = learn(genome, rules, synapses, *batch)
        return synapses, cross_entropy(logits, batch[1])

    synapses = init_synapses(key, genome, rules, (episode.x.shape[-1], *hidden, episode.y.shape[-1]))
    synapses, losses = lax.scan(jax.checkpoint(step) if remat else step, synapses, (episode.x, episode.y), unroll=at_once)
    _, logits = forward(genome, rules, synapses, episode.x_q)
    return cross_entropy(logits, episode.y_q) + path * jnp.mean(losses), accuracy_of(logits, episode.y_q)


def cross_entropy(logits: Float[Array, "B N"], y: Float[Array, "B N"]) -> Float[Array, ""]:
    """Mean cross-entropy in nats, softmax over the outputs."""
    return jnp.mean(optax.softmax_cross_entropy(logits, y))


@functools.partial(jax.jit, static_argnames=("rules", "hidden", "unroll", "batch_size", "query_size", "learners"))
def mean_scores(
    genomes: Genome,
    key: Array,
    train: Examples,
    dev: Examples | None = None,
    *,
    rules: Rules,
    hidden: tuple[int, ...],
    unroll: int,
    batch_size: int,
    query_size: int = 0,
    learners: int,
) -> tuple[Float[Array, " G"], Float[Array, " G"]]:
    """Mean loss and accuracy of each genome's learners after T updates.

    Args:
        genomes: genome axis first; all have the same learners.
        key: random key.
        train: examples of the minibatches, and of `query_size` queries where there is no `dev`.
        dev: queries, all of them.
        rules, hidden, unroll, batch_size: of the learners.
        query_size: Q.
        learners: per genome.
    """

    def score(learner: tuple[Genome, Array]) -> tuple[Array, Array]:
        genome, key = learner
        draw_key, init_key = jax.random.split(key)
        episode = draw_episode(draw_key, train, unroll=unroll, batch_size=batch_size, query_size=query_size)
        if dev is not None:
            episode = episode._replace(x_q=dev.X, y_q=dev.Y)
        return meta_loss(genome, rules, hidden, init_key, episode)

    G, keys = len(genomes.f), jax.random.split(key, learners)
    every = jax.tree.map(lambda leaf: jnp.repeat(leaf, learners, axis=0), genomes), jnp.tile(keys, G)
    losses, accuracies = each_row(score, every)
    return jnp.mean(losses.reshape(G, learners), axis=1), jnp.mean(accuracies.reshape(G, learners), axis=1)

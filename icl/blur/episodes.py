"""Episodes: tasks of a labelled data set, minibatches, queries and a learner's loss.

A task of a family has a random merge of the classes, a random linear map of the inputs, noise, and random examples.
Meta-training on several families covers inputs, labels and networks of many shapes. The meta-loss is

    ℓ = mean_q CE(logits_T(x_q), y_q) + λ mean_t CE(logits_t(x_t), y_t)

after T updates of new random synapses, on queries that are not in the minibatches; the second term, the path loss, is the loss
on every minibatch before its update. The other objective is the area under the learning curve over the logarithm of n,

    ℓ = Σ_n w_n log(ε + CE(logits_n(x_q), y_q)),   w_n ∝ 1/(n + 4),   n = 1 .. T

so that the same relative decrease of the loss counts equally in easy and hard tasks, early and late.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 4.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from icl.blur.data import Examples
from icl.blur.design import Rules
from icl.blur.genome import Genome
from icl.blur.learning import accuracy_of
from icl.blur.rules import Synapses, init_synapses, learn, predict
from icl.names import Objective
from jexplicit.runs.devices import map_rows

_floor = 0.02  # ε, in nats: lower losses count as learned
_early = 4  # the first updates, of about equal weights
_queries = 80  # per point of a learning curve


class Source(NamedTuple):
    """Examples to draw tasks from, and the principal axes [D, D] of inputs."""

    examples: Examples
    axes: Any


class Family(NamedTuple):
    """A family of tasks with a learner. Hashable: a static argument of compiled functions.

    hidden: widths of the learner's hidden layers.
    batch_size: examples per update.
    inputs: number of inputs, random mixtures of the principal components, standardised; default, the original inputs.
    rank: number of mixed principal components; default, all.
    classes: number of groups into which the classes are merged at random; default, the original classes (their order does not
        matter to learners with random synapses).
    examples: number of examples of a task, without queries; default, all others.
    noise: standard deviation of noise on the mixed inputs, relative to theirs.
    """

    hidden: tuple[int, ...] = (32,)
    batch_size: int = 64
    inputs: int | None = None
    rank: int | None = None
    classes: int | None = None
    examples: int | None = None
    noise: float = 0.0


FAMILIES: dict[str, tuple[Family, ...]] = {
    "digits": (
        Family((32,)),
        Family((128, 128)),
        Family((64, 64, 64)),
        Family((32, 32, 32, 32)),
        Family((512,)),
        Family((256, 256)),
        Family((32,), inputs=12, classes=3, examples=90),
        Family((32,), inputs=30, classes=2, examples=200, noise=0.3),
        Family((16, 16), inputs=4, rank=4, classes=3, examples=80),
        Family((16, 16, 16), inputs=16, classes=5, examples=500, noise=0.3),
        Family((32, 32), inputs=2, rank=2, classes=2),
        Family((256,), inputs=2, rank=4, classes=4),
    ),
    "boolean": (Family((20,), classes=2),),
}
"""Families by name: of images with ten classes, and of four corners whose classes merge into functions of two inputs."""


def make_source(examples: Examples, *, mixed: bool = True) -> Source:
    """The source of a data set; without axes if no family mixes inputs."""
    examples = Examples(*map(jnp.asarray, examples))
    if not mixed:
        return Source(examples, None)
    X = np.asarray(examples.X, np.float64)
    centred = X - X.mean(axis=0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    return Source(examples, jnp.asarray(axes, examples.X.dtype))


def check_family(family: Family, source: Source, query_size: int) -> None:
    """Refuse a family that does not fit the source."""
    (M, D), N = source.examples.X.shape, source.examples.Y.shape[1]
    examples, classes = family.examples or M - query_size, family.classes or N
    if min(query_size, family.batch_size) < 1 or not family.batch_size <= examples <= M - query_size:
        raise ValueError(
            f"{query_size} queries and batches of {family.batch_size} out of {M if family.examples is None else examples} "
            "examples: use at least one of each, and fewer than the examples"
        )
    if not 2 <= classes <= N or not 1 <= (family.rank or D) <= D or (family.inputs or 1) < 1 or family.noise < 0:
        raise ValueError(f"{family}: of {N} classes and {D} inputs, use 2 to {N} classes, rank 1 to {D}, noise of at least 0")


def draw_task(key: Array, family: Family, source: Source, *more: Examples) -> list[Examples]:
    """The source's examples, transformed to a task and standardised; `more` likewise."""
    order_key, map_key, noise_key = jax.random.split(key, 3)
    Y = source.examples.Y
    N = family.classes or Y.shape[1]
    group = jax.random.permutation(order_key, jnp.arange(Y.shape[1]) % N)
    see_inputs = functools.partial(_mix_inputs, family, map_key, source)

    def see(number: int, part: Examples) -> Examples:
        merged = family.classes is not None
        y = jax.nn.one_hot(group[jnp.argmax(part.Y, axis=1)], N, dtype=part.Y.dtype) if merged else part.Y
        return Examples(see_inputs(jax.random.fold_in(noise_key, number), part.X), y)

    return [see(number, part) for number, part in enumerate((source.examples, *more))]


def _mix_inputs(family: Family, map_key: Array, source: Source, noise_key: Array, X: Array) -> Array:
    """Random mixtures of principal components plus noise, standardised, constant ones 0; or X unchanged."""
    if family.inputs is None:
        return X
    rank = family.rank or X.shape[1]
    axes = source.axes[:, :rank] @ jax.random.normal(map_key, (rank, family.inputs), X.dtype)
    mixed = source.examples.X @ axes
    std, varies = mixed.std(axis=0, keepdims=True), jnp.ptp(mixed, axis=0, keepdims=True) > 0
    Z = jnp.where(varies, (X @ axes - mixed.mean(axis=0, keepdims=True)) / jnp.where(varies, std, 1), 0)
    return Z + family.noise * jax.random.normal(noise_key, Z.shape, X.dtype)


class Episode(NamedTuple):
    """Minibatches [T, B, D], [T, B, N], then queries [Q, D], [Q, N]."""

    x: Float[Array, "T B D"]
    y: Float[Array, "T B N"]
    x_q: Float[Array, "Q D"]
    y_q: Float[Array, "Q N"]


def draw_episode(key: Array, data: Examples, *, unroll: int, batch_size: int, query_size: int) -> Episode:
    """Examples in random order: queries first, then minibatches, repeated if needed."""
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
    objective: Objective = "end",
    path: float = 0.0,
    at_once: int = 1,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """ℓ of one learner in nats per query, and its accuracy. Pure.

    Args:
        objective: end, or the area under the curve.
        path: λ; with the curve there is no path loss.
        at_once: updates per iteration of the compiled loop; more launch fewer kernels and compile more slowly.
    """

    def step(synapses: Synapses, batch: tuple[Array, Array]) -> tuple[Synapses, Array]:
        synapses, logits = learn(genome, rules, synapses, *batch)
        return synapses, cross_entropy(logits, batch[1])

    def step_and_ask(synapses: Synapses, batch: tuple[Array, Array, Array]) -> tuple[Synapses, tuple[Array, Array]]:
        x, y, asked = batch
        synapses, _ = learn(genome, rules, synapses, x, y)
        return synapses, score(synapses, episode.x_q[asked], episode.y_q[asked])

    def score(synapses: Synapses, x: Array, y: Array) -> tuple[Array, Array]:
        logits = predict(genome, rules, synapses, x)
        return cross_entropy(logits, y), accuracy_of(logits, y)

    synapses = init_synapses(key, genome, rules, (episode.x.shape[-1], *hidden, episode.y.shape[-1]))
    T, Q = len(episode.x), len(episode.x_q)
    if objective == "curve":
        asked = jnp.arange(T * min(Q, _queries)).reshape(T, -1) % Q
        _, curves = lax.scan(step_and_ask, synapses, (episode.x, episode.y, asked), unroll=at_once)
        w = 1 / (jnp.arange(T, dtype=curves[0].dtype) + 1 + _early)
        loss, accuracy = jnp.log(_floor + curves[0]), curves[1]
        return jnp.sum(w * loss) / jnp.sum(w), jnp.sum(w * accuracy) / jnp.sum(w)
    synapses, losses = lax.scan(step, synapses, (episode.x, episode.y), unroll=at_once)
    loss, accuracy = score(synapses, episode.x_q, episode.y_q)
    return loss + path * jnp.mean(losses), accuracy


def cross_entropy(logits: Float[Array, "B N"], y: Float[Array, "B N"]) -> Float[Array, ""]:
    """Mean cross-entropy in nats, softmax over the outputs."""
    return jnp.mean(optax.softmax_cross_entropy(logits, y))


def draw_family_episode(
    key: Array, family: Family, source: Source, dev: Examples | None = None, *, unroll: int, query_size: int
) -> Episode:
    """An episode of a new task of the family, with queries from dev."""
    draw_key, task_key = jax.random.split(key)
    data, *others = draw_task(task_key, family, source, *([] if dev is None else [dev]))
    if family.examples is not None:
        chosen = jax.random.permutation(jax.random.fold_in(task_key, 1), len(data.X))[: family.examples + query_size]
        data = Examples(data.X[chosen], data.Y[chosen])
    episode = draw_episode(draw_key, data, unroll=unroll, batch_size=family.batch_size, query_size=query_size)
    return episode._replace(x_q=others[0].X, y_q=others[0].Y) if others else episode


@functools.partial(jax.jit, static_argnames=("rules", "family", "unroll", "query_size", "learners", "objective"))
def mean_scores(
    genomes: Genome,
    key: Array,
    source: Source,
    dev: Examples | None = None,
    *,
    rules: Rules,
    family: Family,
    unroll: int,
    query_size: int = 0,
    learners: int,
    objective: Objective = "end",
) -> tuple[Float[Array, " G"], Float[Array, " G"]]:
    """Mean loss and accuracy of each genome's learners, at T or along curves.

    Args:
        genomes: genome axis first; all with the same learners.
        source: of the minibatches, and without `dev` of `query_size` queries.
        dev: queries, all of them.
    """

    def score(learner: tuple[Genome, Array]) -> tuple[Array, Array]:
        genome, key = learner
        draw_key, init_key = jax.random.split(key)
        episode = draw_family_episode(draw_key, family, source, dev, unroll=unroll, query_size=query_size)
        return meta_loss(genome, rules, family.hidden, init_key, episode, objective=objective)

    G, keys = len(genomes.f), jax.random.split(key, learners)
    every = jax.tree.map(lambda leaf: jnp.repeat(leaf, learners, axis=0), genomes), jnp.tile(keys, G)
    losses, accuracies = map_rows(score, every)
    return jnp.mean(losses.reshape(G, learners), axis=1), jnp.mean(accuracies.reshape(G, learners), axis=1)

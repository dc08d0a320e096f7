"""Meta-training by gradient: episodes of random tasks, their loss, and better genomes.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 4 and App. C.1.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from icl.blur.design import Rules
from icl.blur.learning import Examples, accuracy_of
from icl.blur.rules import Genome, Synapses, init_synapses, learn, predict
from icl.names import Objective
from icl.training import population_steps
from jexplicit.runs.devices import AXIS, History, data_mesh, iterate, key_of_seed, map_rows

# A task of a family has a random merge of the classes, a random linear map of the inputs, noise, and random examples.
# Meta-training on several families covers inputs, labels and networks of many shapes. The meta-loss is
#
#     ℓ = mean_q CE(logits_T(x_q), y_q) + λ mean_t CE(logits_t(x_t), y_t)
#
# after T updates of new random synapses, on queries that are not in the minibatches; the second term, the path loss, is the
# loss on every minibatch before its update. The other objective is the area under the learning curve over the logarithm of n,
#
#     ℓ = Σ_n w_n log(ε + CE(logits_n(x_q), y_q)),   w_n ∝ 1/(n + 4),   n = 1 .. T
#
# so that the same relative decrease of the loss counts equally in easy and hard tasks, early and late.

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
    """ℓ of one learner in nats per query, and its accuracy. Pure."""

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
    """Mean loss and accuracy of the learners of each genome."""

    def score(learner: tuple[Genome, Array]) -> tuple[Array, Array]:
        genome, key = learner
        draw_key, init_key = jax.random.split(key)
        episode = draw_family_episode(draw_key, family, source, dev, unroll=unroll, query_size=query_size)
        return meta_loss(genome, rules, family.hidden, init_key, episode, objective=objective)

    G, keys = len(genomes.f), jax.random.split(key, learners)
    every = jax.tree.map(lambda leaf: jnp.repeat(leaf, learners, axis=0), genomes), jnp.tile(keys, G)
    losses, accuracies = map_rows(score, every)
    return jnp.mean(losses.reshape(G, learners), axis=1), jnp.mean(accuracies.reshape(G, learners), axis=1)


# Meta-training differentiates through T updates of a learner, `Θ <- Θ - Adam(∂ℓ/∂Θ)`. A population of genomes is trained in
# parallel on the same minibatches. T grows from stage to stage of a curriculum, and each stage starts with all genomes equal to
# the best one so far. The random draws of a step depend on (seed, step) alone, so an interrupted run resumes bit for bit from
# its last checkpoint.
#
# A genome with a loss or gradient that is not finite is unchanged in that step, and the step is counted.

_updates_at_once = 5  # on a GPU this halves the kernels per update; on a TPU it does not, and compilation takes minutes


class SearchResult(NamedTuple):
    """The outcome of meta-training.

    best: the genome with the highest dev accuracy of all evaluations (of the last stage, in a curriculum).
    score: its dev accuracy.
    genomes: the genomes of the last evaluation, genome axis first.
    history: an entry per evaluation with `step`, `unroll`, `seconds`, `loss` and `accuracy` (lists over genomes), `best`,
        and `skipped` (meta-steps of a genome that were not finite).
    """

    best: Genome
    score: float
    genomes: Genome
    history: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """Wall-clock seconds, including evaluation and compilation."""
        return self.history[-1]["seconds"]

    @property
    def skipped(self) -> int:
        """Meta-steps of single genomes that were not finite."""
        return int(np.sum(self.history[-1]["skipped"]))


class Stage(NamedTuple):
    """A stage of a curriculum: T updates per learner, and the number of meta-steps."""

    unroll: int
    steps: int


class MetaRecipe(NamedTuple):
    """Hyperparameters of meta-training.

    hidden: widths of the learners' hidden layers.
    batch_size: examples per update; query_size: examples for the loss at the end.
    families: tasks and learners to meta-train on, in turn, `icl.blur.search.Family`; default, the original data, learners of
        `hidden` and `batch_size`.
    objective: the loss of the queries at the end, or the area under their learning curve.
    learning_rate: of Adam at the start of each stage; a cosine schedule decays it to a tenth.
    gradient_clip: largest norm of a genome's gradient.
    path: λ, weight of the path loss.
    """

    hidden: tuple[int, ...] = (32,)
    batch_size: int = 64
    query_size: int = 200
    families: tuple[Family, ...] = ()
    objective: Objective = "end"
    learning_rate: float = 5e-3
    gradient_clip: float = 10.0
    path: float = 0.0

    @property
    def tasks(self) -> tuple[Family, ...]:
        """The families, or the one of `hidden` and `batch_size`."""
        return self.families or (Family(self.hidden, self.batch_size),)


class MetaState(NamedTuple):
    """A genome in training, or a population; `skipped` counts non-finite meta-steps."""

    genomes: Genome
    optimizer: Any
    skipped: Int[Array, "*G"]


def meta_optimizer(recipe: MetaRecipe, steps: int) -> optax.GradientTransformation:
    """Adam with clipped gradients and a cosine schedule to a tenth."""
    schedule = optax.cosine_decay_schedule(recipe.learning_rate, steps, alpha=0.1)
    return optax.chain(optax.clip_by_global_norm(recipe.gradient_clip), optax.adam(schedule))


def meta_step(
    state: MetaState,
    number: Int[Array, ""],
    step: Int[Array, ""],
    key: Array,
    source: Source,
    *,
    rules: Rules,
    recipe: MetaRecipe,
    family: Family,
    stage: Stage,
    at_once: int = 1,
) -> tuple[MetaState, Float[Array, ""]]:
    """One meta-step of one genome, and its loss before. Pure."""
    draw_key, init_key = jax.random.split(jax.random.fold_in(key, step))
    init_key = jax.random.fold_in(init_key, number)

    episode = draw_family_episode(draw_key, family, source, unroll=stage.unroll, query_size=recipe.query_size)

    def loss(genome: Genome) -> Array:
        how: Any = {"path": recipe.path, "at_once": at_once, "objective": recipe.objective}
        return meta_loss(genome, rules, family.hidden, init_key, episode, **how)[0]

    value, gradient = jax.value_and_grad(loss)(state.genomes)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        updates, moments = meta_optimizer(recipe, stage.steps).update(gradient, state.optimizer, state.genomes)
        genomes: Any = optax.apply_updates(state.genomes, updates)
    finite = jnp.isfinite(value) & jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in gradient]))
    new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), MetaState(genomes, moments, state.skipped), state)
    return new._replace(skipped=state.skipped + (~finite).astype(state.skipped.dtype)), value


@functools.lru_cache(maxsize=64)
def meta_steps(
    rules: Rules, recipe: MetaRecipe, family: Family, stage: Stage, steps: int, mesh: Mesh
) -> Callable[[MetaState, Int[Array, " G"], Array, Int[Array, ""], Source], tuple[MetaState, Float[Array, "G steps"]]]:
    """The compiled `(state, genomes, key, first, source) -> (state, losses)`."""

    def run(state: MetaState, number: Array, key: Array, first: Array, source: Source) -> tuple[MetaState, Array]:
        at_once = _updates_at_once if mesh.devices.flat[0].platform in ("gpu", "cuda", "rocm") else 1  # real or described
        step = functools.partial(meta_step, rules=rules, recipe=recipe, family=family, stage=stage, at_once=at_once)
        numbers = first + jnp.arange(steps, dtype=first.dtype)
        return lax.scan(lambda state, n: step(state, number, n, key, source), state, numbers)

    return population_steps(run, mesh, 3)


def meta_train(
    genomes: Genome,
    rules: Rules,
    recipe: MetaRecipe,
    curriculum: tuple[Stage, ...],
    train: Examples,
    dev: Examples,
    *,
    devices: int | None = None,
    seed: int = 0,
    every: int = 100,
    episodes: int = 8,
    checkpoints: Path | None = None,
    checkpoint_seconds: float = 30.0,
    on_evaluation: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Meta-train a population, and return the best genome of all evaluations.

    Args:
        genomes: initial values, genome axis first, e.g. `jax.vmap(lambda key: random_genome(key, 4))(keys)`.
        curriculum: stages, in order.
        train, dev: examples of the learners' minibatches and queries, and for selecting genomes.
        devices: number of devices to split the genomes over; default, all. On CPUs it does not change the result.
        every, episodes: meta-steps between two evaluations on dev, and learners per genome in an evaluation.
        checkpoints: folder for checkpoints; meta-training resumes bit for bit from the last one.
        progress: called with the number of steps done and in total, of all genomes.

    Raises:
        FloatingPointError: no genome of the population has a finite loss.
        ValueError: no genomes, no stages, numbers below 1, too few examples for the queries, or a checkpoint of another run.

    Example::

        genomes = jax.vmap(lambda key: random_genome(key, 4))(jax.random.split(jax.random.key(0), 8))
        curriculum = Stage(unroll=5, steps=100), Stage(unroll=10, steps=100)
        found = meta_train(genomes, Rules(), MetaRecipe(), curriculum, train, dev)  # found.best, found.score
    """
    G, total = len(genomes.f), sum(stage.steps for stage in curriculum)
    source = make_source(train, mixed=any(family.inputs for family in recipe.tasks))
    if G < 1 or not curriculum or min(*(min(stage) for stage in curriculum), every) < 1:
        raise ValueError(f"{G} genomes, stages {list(map(tuple, curriculum))}, evaluated every {every}: all at least 1")
    for family in recipe.tasks:
        check_family(family, source, recipe.query_size)
    mesh = data_mesh(min(G, devices or jax.local_device_count()))
    numbers = jnp.asarray([*range(G), *[G - 1] * (-G % mesh.size)])  # padded by the last genome to a multiple of the devices
    train_key, dev_key = jax.random.split(key_of_seed(seed))
    dev = Examples(*map(jnp.asarray, dev))
    ends = np.cumsum([stage.steps for stage in curriculum]).tolist()

    def init_state(genomes: Genome, skipped: Array, stage: Stage) -> MetaState:
        state = MetaState(genomes, jax.vmap(meta_optimizer(recipe, stage.steps).init)(genomes), skipped)
        return jax.device_put(state, NamedSharding(mesh, PartitionSpec(AXIS)))

    def population(state: MetaState) -> Genome:
        return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:G]), state.genomes)

    def step(found: tuple[MetaState, Genome], history: History) -> tuple[tuple[MetaState, Genome], dict[str, Any]]:
        (state, best), last = found, history[-1] if history else {"step": 0, "best": -1.0}
        done, score = last["step"], last["best"]
        at = next(n for n, end in enumerate(ends) if done < end)
        stage = curriculum[at]
        if at > 0 and done == ends[at - 1]:  # a new stage starts from the best genome
            equal = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(numbers), *leaf.shape)), best)
            state, score = init_state(equal, jnp.asarray(state.skipped), stage), -1.0
        n = min(every, ends[at] - done)
        at_a_time = n if len(recipe.tasks) == 1 else 1  # families take turns
        for first in range(done, done + n, at_a_time):
            run = meta_steps(rules, recipe, recipe.tasks[first % len(recipe.tasks)], stage, at_a_time, mesh)
            state, _ = run(state, numbers, train_key, jnp.asarray(first, jnp.int32), source)
            if progress:
                progress(G * (first + at_a_time), G * total)
        genomes = population(state)
        learners: Any = {"rules": rules, "unroll": stage.unroll, "objective": recipe.objective}
        learners |= {"query_size": recipe.query_size, "learners": episodes}
        scores = [mean_scores(genomes, dev_key, source, dev, family=family, **learners) for family in recipe.tasks]
        losses, accuracy = np.mean(np.asarray(scores), axis=0)  # over families
        if not np.isfinite(losses).any():
            raise FloatingPointError(
                f"no genome has a finite loss after {done + n} meta-steps: lower the learning rate, or normalise"
            )
        finite = np.isfinite(losses)
        accuracy = np.where(finite, accuracy, 0.0)
        if accuracy.max() > score:
            score, best = float(accuracy.max()), jax.tree.map(lambda leaf: leaf[int(accuracy.argmax())], genomes)
        values = [float(loss) if ok else None for loss, ok in zip(losses, finite, strict=True)]
        entry = {"step": done + n, "unroll": stage.unroll, "skipped": np.asarray(state.skipped)[:G].tolist()}
        return (state, best), {**entry, "loss": values, "accuracy": accuracy.tolist(), "best": score}

    first = jax.tree.map(lambda leaf: leaf[0], genomes)
    start = init_state(jax.tree.map(lambda leaf: leaf[numbers], genomes), jnp.zeros(len(numbers), np.int32), curriculum[0])
    (state, best), history = iterate(
        step,
        (start, first),
        done=lambda history: bool(history) and history[-1]["step"] >= total,
        checkpoints=checkpoints,
        checkpoint_seconds=checkpoint_seconds,
        known={**recipe._asdict(), "rules": asdict(rules), "curriculum": curriculum, "examples": train, "seed": seed},
        callback=on_evaluation,
    )
    return SearchResult(best, history[-1]["best"], population(state), history)

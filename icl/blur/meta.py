"""Meta-training by gradient: a learner learns for T steps, and its genome is moved so that it ends up knowing more.

    Θ <- Θ - Adam(∂ℓ/∂Θ),   ℓ = mean_q CE(logits_T(x_q), y_q) + λ mean_t CE(logits_t(x_t), y_t)

after T updates of freshly drawn synapses, on queries that the learner has not seen; the second term asks the same of every
minibatch before it is learned from. A population of genomes runs side by side on the same minibatches. In the stages of a
curriculum T grows, and each begins with all genomes at the best one so far. What a step draws depends on (seed, step) alone: a
run that stops anywhere continues from its last checkpoint bit for bit.

A genome with a loss or gradient that is not finite stays as it was for that step, and the step is counted.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 4 and App. C.1.
"""

import functools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from icl.blur.data import Part
from icl.blur.genome import Genome
from icl.blur.learning import right
from icl.blur.rules import Rules, Synapses, forward, init_synapses, learn
from jexplicit.runs.checkpoints import load_latest, save_latest
from jexplicit.runs.devices import AXIS, data_mesh


class Stage(NamedTuple):
    """A stage of a curriculum: T updates per learner, for so many meta-steps."""

    unroll: int
    steps: int


class MetaRecipe(NamedTuple):
    """How genomes are meta-trained.

    hidden: widths of the learners' hidden layers.
    batch_size: examples per update; query_size: examples that a learner is asked at the end.
    learning_rate: of Adam at the start of each stage, with a cosine down to a tenth of it.
    gradient_clip: largest norm of a genome's gradient.
    path: λ, weight of the loss along the way.
    remat: recompute the updates when differentiating rather than keep all of their states.
    """

    hidden: tuple[int, ...] = (32,)
    batch_size: int = 64
    query_size: int = 200
    learning_rate: float = 5e-3
    gradient_clip: float = 10.0
    path: float = 0.0
    remat: bool = False


class MetaState(NamedTuple):
    """A population in training: each leaf with the genomes first.

    skipped: [G] meta-steps that were not finite.
    """

    genomes: Genome
    optimizer: Any
    skipped: Int[Array, " G"]


class MetaTrained(NamedTuple):
    """The outcome of `meta_train`.

    best: the genome with the highest dev accuracy, of all genomes and all evaluations.
    score: its dev accuracy after the T updates of the stage that it was found in.
    genomes: the population at the end.
    history: an entry per evaluation with `step`, `unroll`, `seconds`, and lists over genomes `loss`, `accuracy`, `skipped`.
    """

    best: Genome
    score: float
    genomes: Genome
    history: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """Seconds of training, evaluation and compilation included."""
        return self.history[-1]["seconds"]

    @property
    def skipped(self) -> int:
        """Meta-steps of single genomes that were not finite."""
        return sum(self.history[-1]["skipped"])


class Episode(NamedTuple):
    """What one learner meets: minibatches [T, B, D] and [T, B, N], then queries [Q, D] and [Q, N]."""

    x: Float[Array, "T B D"]
    y: Float[Array, "T B N"]
    x_q: Float[Array, "Q D"]
    y_q: Float[Array, "Q N"]


def draw_episode(key: Array, data: Part, *, unroll: int, batch_size: int, query_size: int) -> Episode:
    """A random order of the examples: first the queries, then the minibatches, again from their first one when all are used up.

    Example:
        >>> data = Part(jnp.arange(6.0)[:, None], jnp.ones((6, 1)))
        >>> one = draw_episode(jax.random.key(0), data, unroll=2, batch_size=2, query_size=2)
        >>> sorted(jnp.concatenate([one.x.ravel(), one.x_q.ravel()]).tolist())
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    order = jax.random.permutation(key, len(data.X))
    queries, others = order[:query_size], order[query_size:]
    drawn = others[jnp.arange(unroll * batch_size) % len(others)].reshape(unroll, batch_size)
    return Episode(data.X[drawn], data.Y[drawn], data.X[queries], data.Y[queries])


def meta_loss(
    genome: Genome,
    rules: Rules,
    hidden: tuple[int, ...],
    key: Array,
    episode: Episode,
    *,
    path: float = 0.0,
    remat: bool = False,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """ℓ of one learner, in nats per query, and its accuracy on the queries.

    Args:
        genome, rules: of the learner.
        hidden: widths of its hidden layers.
        key: of its first synapses.
        episode: what it meets.
        path: λ.
        remat: recompute the updates when differentiating.

    Example:
        >>> from icl.blur import backprop_genome
        >>> data = Part(jnp.eye(6, 3, dtype="float32"), jnp.eye(6, 2, dtype="float32"))
        >>> def ask(key):
        ...     episode = draw_episode(key, data, unroll=2, batch_size=2, query_size=2)
        ...     return meta_loss(backprop_genome(2), Rules(states=2), (4,), key, episode)
        >>> [part.shape for part in jax.eval_shape(ask, jax.random.key(0))]
        [(), ()]
    """

    def step(synapses: Synapses, batch: tuple[Array, Array]) -> tuple[Synapses, Array]:
        synapses, logits = learn(genome, rules, synapses, *batch)
        return synapses, cross_entropy(logits, batch[1])

    first = init_synapses(key, genome, rules, (episode.x.shape[-1], *hidden, episode.y.shape[-1]))
    synapses, before = lax.scan(jax.checkpoint(step) if remat else step, first, (episode.x, episode.y))
    _, logits = forward(genome, rules, synapses, episode.x_q)
    return cross_entropy(logits, episode.y_q) + path * jnp.mean(before), right(logits, episode.y_q)


def cross_entropy(logits: Float[Array, "B N"], y: Float[Array, "B N"]) -> Float[Array, ""]:
    """Mean cross-entropy in nats, softmax over the outputs."""
    return jnp.mean(optax.softmax_cross_entropy(logits, y))


def make_optimizer(recipe: MetaRecipe, steps: int) -> optax.GradientTransformation:
    """Adam on gradients of bounded norm, cooled by a cosine to a tenth over a stage."""
    cooled = optax.cosine_decay_schedule(recipe.learning_rate, steps, alpha=0.1)
    return optax.chain(optax.clip_by_global_norm(recipe.gradient_clip), optax.adam(cooled))


@functools.lru_cache(maxsize=64)
def meta_steps(
    rules: Rules, recipe: MetaRecipe, stage: Stage, steps: int, mesh: Mesh
) -> Callable[[MetaState, Array, Array, Int[Array, ""], Part], tuple[MetaState, Array]]:
    """The compiled call `(state, genomes' numbers, key, first step, data) -> (state, losses [G, steps])`; the state is donated.

    The same arguments give the same call, which compiles once. Genomes lie on the devices of the mesh, which never wait for one
    another; those of one CPU device take turns, on an accelerator they are one vmap.
    """
    optimizer = make_optimizer(recipe, stage.steps)

    def step(state: MetaState, number: Array, key: Array, data: Part) -> tuple[MetaState, Array]:
        drawn, made = jax.random.split(key)
        episode = draw_episode(
            drawn, data, unroll=stage.unroll, batch_size=recipe.batch_size, query_size=recipe.query_size
        )  # of the step, for all genomes
        key = jax.random.fold_in(made, number)

        def loss(genome: Genome) -> Array:
            return meta_loss(genome, rules, recipe.hidden, key, episode, path=recipe.path, remat=recipe.remat)[0]

        value, gradient = jax.value_and_grad(loss)(state.genomes)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, moved = optimizer.update(gradient, state.optimizer, state.genomes)
            genomes: Any = optax.apply_updates(state.genomes, updates)
        finite = jnp.isfinite(value) & all_finite(gradient)
        new = MetaState(genomes, moved, state.skipped)
        new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state)
        return new._replace(skipped=state.skipped + (~finite).astype(state.skipped.dtype)), value

    def run(state: MetaState, number: Array, key: Array, first: Array, data: Part) -> tuple[MetaState, Array]:
        keys = jax.vmap(lambda n: jax.random.fold_in(key, n))(first + jnp.arange(steps, dtype=first.dtype))
        return lax.scan(lambda state, key: step(state, number, key, data), state, keys)

    def of_genomes(
        states: MetaState, numbers: Array, key: Array, first: Array, data: Part
    ) -> tuple[MetaState, Float[Array, "G steps"]]:
        def one(held: tuple[MetaState, Array]) -> tuple[MetaState, Array]:
            return run(held[0], held[1], key, first, data)

        return lax.map(one, (states, numbers)) if jax.default_backend() == "cpu" else jax.vmap(one)((states, numbers))

    split, same = PartitionSpec(AXIS), PartitionSpec()
    specs = (split, split, same, same, same)
    return jax.jit(jax.shard_map(of_genomes, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False), donate_argnums=0)


def all_finite(tree: Any) -> Array:
    """Whether all numbers of a pytree are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


@functools.lru_cache(maxsize=64)
def scores(
    rules: Rules, hidden: tuple[int, ...], unroll: int, batch_size: int, episodes: int
) -> Callable[[Genome, Array, Part, Part], tuple[Float[Array, " G"], Float[Array, " G"]]]:
    """The compiled call `(genomes, key, train, dev) -> (loss [G], accuracy [G])`, means over learners asked all of dev."""

    def score(genome: Genome, key: Array, train: Part, dev: Part) -> tuple[Array, Array]:
        def one(key: Array) -> tuple[Array, Array]:
            drawn, made = jax.random.split(key)
            episode = draw_episode(drawn, train, unroll=unroll, batch_size=batch_size, query_size=0)
            return meta_loss(genome, rules, hidden, made, episode._replace(x_q=dev.X, y_q=dev.Y))

        losses, right = lax.map(one, jax.random.split(key, episodes))
        return jnp.mean(losses), jnp.mean(right)

    return jax.jit(lambda genomes, key, train, dev: lax.map(lambda genome: score(genome, key, train, dev), genomes))


def meta_train(
    genomes: Genome,
    rules: Rules,
    recipe: MetaRecipe,
    curriculum: tuple[Stage, ...],
    train: Part,
    dev: Part,
    *,
    seed: int = 0,
    every: int = 100,
    episodes: int = 8,
    devices: int | None = None,
    checkpoints: Path | None = None,
    checkpoint_seconds: float = 30.0,
    on_evaluation: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MetaTrained:
    """Meta-train a population, and keep the best genome that was ever seen.

    Args:
        genomes: where it starts, the genomes first in every leaf.
        rules: the design that they share.
        recipe: how.
        curriculum: its stages, one after the other.
        train: what learners learn from and are asked about in training.
        dev: what genomes are chosen by.
        seed: of first synapses and minibatches.
        every: meta-steps of a call, after each of which comes an evaluation on dev.
        episodes: learners per genome in an evaluation.
        devices: to split the genomes over; default, all. On CPUs results do not change.
        checkpoints: folder for checkpoints; where it holds one, training continues from it.
        checkpoint_seconds: time between two checkpoints.
        on_evaluation: called with each new entry of the history.
        progress: called with (meta-steps done, meta-steps in all), of all genomes together.

    Raises:
        FloatingPointError: no genome of the population has a finite score.
        ValueError: no genomes, no stages, numbers below 1, too few examples for the queries, or a checkpoint of another run.
    """
    G, total = len(genomes.f), sum(stage.steps for stage in curriculum)
    _check(G, recipe, curriculum, train, every)
    mesh = data_mesh(min(G, devices or len(jax.devices())))
    filled = jnp.asarray([*range(G), *[G - 1] * (-G % mesh.size)])  # every device has as many genomes
    numbers, (key, asked) = filled, jax.random.split(jax.random.key(seed))
    placed = NamedSharding(mesh, PartitionSpec(AXIS))

    def fresh(genomes: Genome, skipped: Array, stage: Stage) -> MetaState:
        state = MetaState(genomes, jax.vmap(make_optimizer(recipe, stage.steps).init)(genomes), skipped)
        return jax.device_put(state, placed)

    state = fresh(jax.tree.map(lambda leaf: leaf[filled], genomes), jnp.zeros(len(filled), np.int32), curriculum[0])
    best, score = jax.tree.map(lambda leaf: leaf[0], genomes), -1.0
    done, history, before = 0, [], 0.0
    if checkpoints is not None and (found := load_latest(checkpoints, _saved(state, best, {}))):
        state, best, note = found["state"], found["best"], json.loads(found["note"].tobytes())
        done, history, before, score = note["done"], note["history"], note["seconds"], note["score"]
    start = saved = time.perf_counter()
    parts = [Part(*map(jnp.asarray, part)) for part in (train, dev)]
    ends = np.cumsum([stage.steps for stage in curriculum]).tolist()
    while done < total:
        at = next(n for n, end in enumerate(ends) if done < end)
        stage, begun = curriculum[at], ends[at] - curriculum[at].steps
        if done == begun and at > 0:  # all go on from the best
            best_of_all = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(filled), *leaf.shape)), best)
            state, score = fresh(best_of_all, jnp.asarray(state.skipped), stage), -1.0
        n = min(every, ends[at] - done)
        call = meta_steps(rules, recipe, stage, n, mesh)
        state, _ = call(state, numbers, key, jnp.asarray(done, jnp.int32), parts[0])
        done += n
        population = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:G]), state.genomes)
        losses, right = map(
            np.asarray,
            scores(rules, recipe.hidden, stage.unroll, recipe.batch_size, episodes)(population, asked, *parts),
        )
        if not np.isfinite(losses).any():
            raise FloatingPointError(
                f"no genome has a finite loss after {done} meta-steps: lower the learning rate, or normalise"
            )
        right = np.where(np.isfinite(losses), right, 0.0)
        if right.max() > score:
            score = float(right.max())
            best = _member(population, int(right.argmax()))
        entry = {
            "step": done,
            "unroll": stage.unroll,
            "seconds": before + time.perf_counter() - start,
            "loss": [float(loss) if np.isfinite(loss) else None for loss in losses],
            "accuracy": right.tolist(),
            "best": score,
            "skipped": np.asarray(state.skipped)[:G].tolist(),
        }
        history.append(entry)
        if on_evaluation:
            on_evaluation(entry)
        if progress:
            progress(G * done, G * total)
        if checkpoints is not None and time.perf_counter() - saved > checkpoint_seconds and done < total:
            note = {"done": done, "history": history, "seconds": entry["seconds"], "score": score}
            save_latest(checkpoints, done, _saved(state, best, note))
            saved = time.perf_counter()
    return MetaTrained(best, score, jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:G]), state.genomes), history)


def population(keys: Array, make: Callable[[Array], Genome]) -> Genome:
    """Genomes of several keys, the genomes first in every leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[make(key) for key in keys])


def _member(genomes: Genome, n: int) -> Genome:
    return jax.tree.map(lambda leaf: leaf[n], genomes)


def _check(G: int, recipe: MetaRecipe, curriculum: tuple[Stage, ...], train: Part, every: int) -> None:
    if G < 1 or not curriculum or min(*(min(stage) for stage in curriculum), every) < 1:
        raise ValueError(f"{G} genomes, stages {list(map(tuple, curriculum))}, evaluated every {every}: all at least 1")
    left = len(train.X) - recipe.query_size
    if min(recipe.query_size, recipe.batch_size) < 1 or left < recipe.batch_size:
        raise ValueError(
            f"{recipe.query_size} queries and batches of {recipe.batch_size} out of {len(train.X)} examples: "
            "at least one of each, and fewer than there are"
        )


def _saved(state: MetaState, best: Genome, note: dict[str, Any]) -> dict[str, Any]:
    text = np.frombuffer(json.dumps(note).encode() if note else b"", np.uint8)
    return {"state": state, "best": best, "note": text}

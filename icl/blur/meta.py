"""Meta-training by gradient: differentiate through T updates of a learner, and improve its genome.

    Θ <- Θ - Adam(∂ℓ/∂Θ)

with the loss ℓ of `icl.blur.episodes`. A population of genomes is trained in parallel on the same minibatches. T grows from
stage to stage of a curriculum, and each stage starts with all genomes equal to the best one so far. The random draws of a step
depend on (seed, step) alone, so an interrupted run resumes bit for bit from its last checkpoint.

A genome with a loss or gradient that is not finite is unchanged in that step, and the step is counted.

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

from icl.blur.data import Examples
from icl.blur.design import Rules
from icl.blur.episodes import Family, Source, check_family, draw_family_episode, make_source, mean_scores, meta_loss
from icl.blur.genome import Genome
from icl.names import Objective
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import AXIS, data_mesh, map_rows, on_gpu
from jexplicit.runs.loop import History, iterate

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
    families: tasks and learners to meta-train on, in turn, `icl.blur.episodes.Family`; default, the original data, learners of
        `hidden` and `batch_size`.
    objective: the loss of the queries at the end, or the area under their learning curve (`icl.blur.episodes`).
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
    """One meta-step of one genome, and its loss before. Pure.

    Args:
        number: index of the genome in its population; the initial synapses depend on it.
        key: of the search; the whole population shares the key of a step, and so its tasks and minibatches.
        at_once: updates per iteration of the compiled loop; see `meta_loss`.
    """
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
    """The compiled meta-steps, `(state, genomes, key, first, source) -> (state, losses)`.

    Cached by its arguments. Genomes are split over the devices of the mesh without communication; those of one device run in
    turn on a CPU, on an accelerator under `vmap`.
    """

    def run(state: MetaState, number: Array, key: Array, first: Array, source: Source) -> tuple[MetaState, Array]:
        at_once = _updates_at_once if on_gpu(mesh) else 1
        step = functools.partial(meta_step, rules=rules, recipe=recipe, family=family, stage=stage, at_once=at_once)
        numbers = first + jnp.arange(steps, dtype=first.dtype)
        return lax.scan(lambda state, n: step(state, number, n, key, source), state, numbers)

    def run_all(
        states: MetaState, numbers: Array, key: Array, first: Array, source: Source
    ) -> tuple[MetaState, Float[Array, "G steps"]]:
        def one(genome: tuple[MetaState, Array]) -> tuple[MetaState, Array]:
            return run(*genome, key, first, source)

        return map_rows(one, (states, numbers), mesh)

    split, same = PartitionSpec(AXIS), PartitionSpec()
    specs = (split, split, same, same, same)
    return jax.jit(jax.shard_map(run_all, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False), donate_argnums=0)


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
        train: examples of the learners' minibatches and queries.
        dev: examples for selecting genomes.
        devices: number of devices to split the genomes over; default, all. On CPUs it does not change the result.
        seed: of initial synapses and minibatches.
        every: meta-steps between two evaluations on dev.
        episodes: learners per genome in an evaluation.
        checkpoints: folder for checkpoints; meta-training resumes bit for bit from the last one.
        progress: called with the number of steps done and in total, of all genomes.

    Raises:
        FloatingPointError: no genome of the population has a finite loss.
        ValueError: no genomes, no stages, numbers below 1, too few examples for the queries, or a checkpoint of another run.

    Example::

        train, dev, test, _ = image_sets(jexplicit.data.read_images("digits"))
        genomes = jax.vmap(lambda key: random_genome(key, 4))(jax.random.split(jax.random.key(0), 8))
        curriculum = Stage(unroll=5, steps=100), Stage(unroll=10, steps=100)
        found = meta_train(genomes, Rules(), MetaRecipe(), curriculum, train, dev)
        found.best, found.score  # the genome, and the accuracy of its learners on dev
    """
    G, total = len(genomes.f), sum(stage.steps for stage in curriculum)
    source = make_source(train, mixed=any(family.inputs for family in recipe.tasks))
    _check(G, recipe, curriculum, source, every)
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


def _check(G: int, recipe: MetaRecipe, curriculum: tuple[Stage, ...], source: Source, every: int) -> None:
    if G < 1 or not curriculum or min(*(min(stage) for stage in curriculum), every) < 1:
        raise ValueError(f"{G} genomes, stages {list(map(tuple, curriculum))}, evaluated every {every}: all at least 1")
    for family in recipe.tasks:
        check_family(family, source, recipe.query_size)

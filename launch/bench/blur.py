"""The bench of icl.blur: meta-steps, beside the same steps with the state axis last and beside all genomes under one vmap."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from icl.blur.data import image_sets
from icl.blur.episodes import Episode, Source, cross_entropy, draw_family_episode, make_source, meta_loss
from icl.blur.genome import Genome, random_genome
from icl.blur.meta import MetaRecipe, MetaState, Stage, meta_optimizer, meta_steps
from icl.blur.rules import Rules, init_synapses
from jexplicit.data.images import read_images
from jexplicit.experiments.tables import Column
from jexplicit.runs.devices import data_mesh
from launch.bench.config import Blur
from launch.bench.shared.harness import Comparison, bench, losses_differ, step_by_step


class Task(NamedTuple):
    """What is meta-trained: rules, recipe, stage, initial genomes, key and what tasks are made of."""

    rules: Rules
    recipe: MetaRecipe
    stage: Stage
    genomes: Genome
    key: jax.Array
    source: Source


# A method does what is off the clock and returns the call to time, which meta-trains from the same genomes each time and
# returns the losses [genomes, steps].


def _ours(task: Task):
    run = meta_steps(task.rules, task.recipe, task.recipe.tasks[0], task.stage, task.stage.steps, data_mesh(1))
    numbers = jnp.arange(len(task.genomes.f))

    def call() -> np.ndarray:
        state = jax.tree.map(jnp.copy, _first(task))  # it is donated
        return np.asarray(run(state, numbers, task.key, jnp.zeros((), np.int32), task.source)[1])

    return call


def _vmapped(task: Task):
    def loss(genome: Genome, key: jax.Array, episode: Episode) -> jax.Array:
        return meta_loss(genome, task.rules, task.recipe.hidden, key, episode, path=task.recipe.path)[0]

    return _per_step(task, loss)


def _states_last(task: Task):
    m = task.rules

    def normalised(z: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
        centred = z - z.mean(axis=0, keepdims=True)
        return scale * centred * lax.rsqrt(jnp.mean(centred**2, axis=0, keepdims=True) + 1e-5) + shift

    def read(g: Genome, W: jax.Array) -> jax.Array:
        return g.rescale * W * lax.rsqrt(jnp.sum(W**2, axis=0, keepdims=True) + 1e-9)

    def forward(g: Genome, weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        a, z = [jnp.pad(x[:, :, None], ((0, 0), (0, 0), (0, m.states - 1)))], x
        for n, W in enumerate(weights):
            last = n == len(weights) - 1
            with_bias = jnp.concatenate([a[-1], jnp.ones_like(a[-1][:, :1])], axis=1)
            z = g.eta * jnp.einsum("bid,dc,ijc->bjc", with_bias, g.nu, read(g, W))
            z = normalised(z, g.m_output if last else g.m, g.s)
            a.append(jax.nn.softmax(z, axis=1) if last else jnp.tanh(z))
        return a, z[:, :, 0]

    def learn(g: Genome, weights: list[jax.Array], x: jax.Array, y: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        a, logits = forward(g, weights, x)
        a[-1] = jnp.stack([a[-1][:, :, 0], 2 * y - 1, *[jnp.zeros_like(y)] * (m.states - 2)], axis=2)
        for n in range(len(weights) - 1, 0, -1):
            V = read(g, weights[n][:-1].swapaxes(0, 1))
            z = g.f * a[n] + g.eta * jnp.einsum("bjd,dc,jic->bic", a[n + 1], g.mu, V)
            a[n] = jnp.tanh(normalised(z, g.m, g.s))
        new = []
        for W, before, after in zip(weights, a[:-1], a[1:], strict=True):
            before = jnp.concatenate([before, jnp.ones_like(before[:, :1])], axis=1)
            H = jnp.einsum("bie,ec,cd,bjd->ijc", before, g.pre, g.post, after) / len(x)
            new.append(g.f_synapse * W + g.eta_synapse * H)
        return new, logits

    def loss(g: Genome, key: jax.Array, episode: Episode) -> jax.Array:
        sizes = (episode.x.shape[-1], *task.recipe.hidden, episode.y.shape[-1])
        first = [jnp.moveaxis(synapse.W, 0, -1) for synapse in init_synapses(key, g, m, sizes)]

        def step(weights: list[jax.Array], batch: tuple[jax.Array, jax.Array]) -> tuple[list[jax.Array], jax.Array]:
            weights, logits = learn(g, weights, *batch)
            return weights, cross_entropy(logits, batch[1])

        weights, before = lax.scan(step, first, (episode.x, episode.y))
        return cross_entropy(forward(g, weights, episode.x_q)[1], episode.y_q) + task.recipe.path * jnp.mean(before)

    return _per_step(task, loss)


def _first(task: Task) -> MetaState:
    optimizer = meta_optimizer(task.recipe, task.stage.steps)
    return MetaState(task.genomes, jax.vmap(optimizer.init)(task.genomes), jnp.zeros(len(task.genomes.f), np.int32))


def _per_step(task: Task, loss: Callable[[Genome, jax.Array, Episode], jax.Array]) -> Callable[[], np.ndarray]:
    optimizer, recipe = meta_optimizer(task.recipe, task.stage.steps), task.recipe
    numbers = jnp.arange(len(task.genomes.f))

    @jax.jit
    def step(state: MetaState, n: jax.Array) -> tuple[MetaState, jax.Array]:
        episode_key, learner_key = jax.random.split(jax.random.fold_in(task.key, n))
        sizes: Any = {"unroll": task.stage.unroll, "query_size": recipe.query_size}
        episode = draw_family_episode(episode_key, recipe.tasks[0], task.source, **sizes)
        keys = jax.vmap(lambda number: jax.random.fold_in(learner_key, number))(numbers)
        values, gradients = jax.vmap(jax.value_and_grad(loss), in_axes=(0, 0, None))(state.genomes, keys, episode)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, moments = jax.vmap(optimizer.update)(gradients, state.optimizer, state.genomes)
            genomes: Any = jax.tree.map(jnp.add, state.genomes, updates)
        return MetaState(genomes, moments, state.skipped), values

    return step_by_step(step, _first(task), task.stage.steps)


OURS, PEER, VMAPPED = "icl.blur", "state axis last", "genomes under vmap"
METHODS: dict[str, Callable[[Task], Callable[[], np.ndarray]]] = {OURS: _ours, PEER: _states_last, VMAPPED: _vmapped}


def comparisons(config: Blur, folder: Path) -> Iterator[Comparison]:
    """* **icl.blur**: `icl.blur.meta.meta_steps`, state axis first, one genome after another, all meta-steps in one scan.
    * **state axis last**: the same loss written as `einsum("bid,dc,ijc->bjc", a, nu, W)`, all genomes under one `jax.vmap`, a
      compiled call per meta-step.
    * **genomes under vmap**: the loss of icl.blur, all genomes under one `jax.vmap`, a compiled call per meta-step.
    """
    sizes = {name: getattr(config, name) for name in ("width", "genomes", "states", "unroll", "batch_size")}
    for K in config.layers:
        yield Comparison(
            cases={name: make(_task(config, K)) for name, make in METHODS.items()},
            fields={"layers": K, **sizes},
            row=lambda case, timings: {"cpu_ms_per_step": 1e3 * timings.median(case, "cpu_seconds") / config.steps},
            reference=OURS,
            difference=losses_differ(1e-3),
        )


def _rules(config: Blur) -> Rules:
    return Rules(states=config.states, synapse_norm=True, output="softmax")


def _task(config: Blur, K: int) -> Task:
    recipe = MetaRecipe(hidden=(config.width,) * K, batch_size=config.batch_size, path=0.5)
    keys = jax.random.split(jax.random.key(config.seed))
    genomes = jax.vmap(lambda key: random_genome(key, config.states))(jax.random.split(keys[0], config.genomes))
    source = make_source(image_sets(read_images("digits")).train)
    return Task(_rules(config), recipe, Stage(config.unroll, config.steps), genomes, keys[1], source)


PEERS = {"ratio_to_states_last": ("vs. last", [PEER]), "ratio_to_vmap": ("vs. vmap", [VMAPPED])}
COLUMNS = [Column("CPU ms", "cpu_ms_per_step", ".1f")]
run = bench("blur", comparisons, COLUMNS, sizes=["layers"], ours=[OURS], peers=PEERS, check=_rules)

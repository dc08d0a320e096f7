"""Timed steps on an accelerator, each with its least work.

What a part needs is imported by it: where a package is missing, the others still run.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from launch.accelerator.texts import draw_stream

CONTEXT = 4  # tokens that n-gram models and Adagrad's tables read


class Sizes(NamedTuple):
    """How large the parts are.

    copied: numbers that are copied for the bandwidth. matrix: rows of the square matrices of the roofline; on a CPU a quarter.
    vocabulary: N. pairs, positions, batch: tokens whose pairs are counted, whose contexts are, and of a step of Adagrad.
    images: examples of the sweep, of 784 features. tasks, genomes: of a step of linear attention and of BLUR.
    width, layers, texts: of the transformer, and how many texts of 256 tokens a step has.
    seconds: of a measurement, at most.
    """

    copied: int = 1 << 28
    matrix: int = 8192
    vocabulary: int = 8192
    pairs: int = 1 << 22
    positions: int = 1 << 20
    batch: int = 8192
    images: int = 60_000
    tasks: int = 2048
    genomes: int = 8
    width: int = 512
    layers: int = 8
    texts: int = 32
    seconds: float = 4.0


FULL, TINY = Sizes(), Sizes(1 << 10, 16, 32, 512, 256, 32, 64, 8, 1, 8, 1, 1, 0.0)


class Case(NamedTuple):
    """A compiled function, its arguments, and the least that a step does.

    donates: its first argument; its result then begins with the next one. flops: of the matrix products, and their matrix rate.
    bytes: that it moves; default, every argument read once and every result written once, of a call.
    """

    run: Callable[..., object]
    arguments: tuple[object, ...]
    donates: bool = False
    steps: int = 1
    flops: float | None = None
    rate: str = "float32"
    bytes: float | None = None


def scattered_pairs(sizes: Sizes, mesh: Mesh) -> Case:
    """Pairs of neighbours added to a table: a token, a cell read and written."""
    from jexplicit.counts.dense import counting_step

    x, N = draw_stream(sizes.pairs, sizes.vocabulary), sizes.vocabulary
    arguments = (jnp.zeros(N * N, jnp.int32),), x[None], np.array([len(x) - 1], np.int32)
    return Case(counting_step(mesh, 1, N), arguments, donates=True, bytes=(2 + 8) * len(x))


def summed_pairs(sizes: Sizes, mesh: Mesh) -> Case:
    """The same by `segment_sum` of ready ids, into a new table."""
    x, N = draw_stream(sizes.pairs, sizes.vocabulary).astype(np.int32), sizes.vocabulary
    run = jax.jit(lambda ids: jax.ops.segment_sum(jnp.ones_like(ids), ids, N * N))
    return Case(run, (x[:-1] * N + x[1:],), bytes=(4 + 8) * len(x) + 4 * N * N)


def explicit_tables(sizes: Sizes, mesh: Mesh) -> Case:
    """The explicit solution of the tables of four offsets."""
    from jexplicit.solvers.explicit import explicit_solution

    F = np.random.default_rng(0).integers(1, 1000, (sizes.vocabulary,) * 2).astype(np.float32)
    return Case(jax.jit(lambda F: explicit_solution(F, float(CONTEXT))), (tuple(F + k for k in range(CONTEXT)),))


def swept_images(sizes: Sizes, mesh: Mesh) -> Case:
    """A curvature-bound sweep, 784 features: `4 M D N + 2 D² N` operations."""
    from jexplicit.solvers.curvature_bound import curvature_bound_sweep, curvature_problem

    M, D, N = sizes.images, 784, 10
    rng = np.random.default_rng(0)
    H, Y = rng.normal(size=(M, D)).astype(np.float32), np.eye(N, dtype=np.float32)[rng.integers(0, N, M)]
    arguments = jnp.zeros((D, N), jnp.float32), curvature_problem(jnp.asarray(H), jnp.asarray(Y), 1e-4)
    return Case(curvature_bound_sweep, arguments, flops=4 * M * D * N + 2 * D * D * N)


def evaluated_ngrams(sizes: Sizes, mesh: Mesh) -> Case:
    """Log-probabilities by an n-gram model: four reads of 32 bytes a level."""
    from jexplicit.data.contexts import contexts
    from jexplicit.lm.rows import BackOffChain, smoothed_ngrams

    X, Y = contexts(draw_stream(sizes.positions, sizes.vocabulary), CONTEXT)
    rows = smoothed_ngrams(X, Y, vocab_size=sizes.vocabulary)
    run = jax.jit(lambda rows, X, Y: jax.vmap(functools.partial(BackOffChain.entry, rows))(X, Y))
    return Case(run, (rows, X.astype(np.int32), Y.astype(np.int32)), bytes=len(Y) * CONTEXT * 4 * 32)


def adagrad_step(sizes: Sizes, mesh: Mesh) -> Case:
    """A step of Adagrad on four tables, all rows."""
    from jexplicit.data.contexts import contexts
    from jexplicit.lm.fits.gradient import cold_start, initial_state, make_batch, training_step
    from jexplicit.nn.optimizers import adagrad

    N, B = sizes.vocabulary, sizes.batch
    X, Y = (part[:B] for part in contexts(draw_stream(2 * B, N), CONTEXT))
    tables = cold_start(jax.random.key(0), features="cat", radius=CONTEXT, vocab_size=N)
    batch = make_batch(X, Y, features="cat", size=B)
    run = training_step(adagrad(0.01), features="cat", noise=None, mesh=mesh)
    return Case(run, (initial_state(tables, adagrad(0.01), mesh), batch), donates=True)


def attention_step(sizes: Sizes, mesh: Mesh) -> Case:
    """A step of linear attention: `12 w (w + N)` operations a task."""
    from icl.attention import Regression, init_layers
    from icl.tasks import Tasks
    from icl.training import Recipe, TrainingState, make_optimizer, training_steps

    recipe, problem, seeds, steps = Recipe(batch_size=sizes.tasks), Regression(Tasks(dim=10, context=10)), 5, 20
    keys = jax.random.split(jax.random.key(0), seeds)
    layers = jax.vmap(lambda key: init_layers(key, 11))(keys)
    state = TrainingState(layers, jax.vmap(make_optimizer(recipe, steps).init)(layers))
    run = training_steps(problem, recipe, steps, mesh)
    flops = seeds * sizes.tasks * 12 * 11 * (11 + 10)
    moved = 8 * seeds * sizes.tasks * 11 * 11
    return Case(run, (state, keys, jnp.zeros((), jnp.int32)), donates=True, steps=steps, flops=flops, bytes=moved)


def blur_step(sizes: Sizes, mesh: Mesh) -> Case:
    """A meta-step of BLUR: learners 64-32-10, ten updates on 64 examples."""
    from icl.blur.baselines import matrix_flops
    from icl.blur.learning import Examples
    from icl.blur.rules import Rules, random_genome
    from icl.blur.search import MetaRecipe, MetaState, Stage, make_source, meta_optimizer, meta_steps

    (recipe, stage), G, rng = ((MetaRecipe(), Stage(10, 100)), sizes.genomes, np.random.default_rng(0))
    genomes = jax.vmap(lambda key: random_genome(key, 4))(jax.random.split(jax.random.key(0), G))
    X, Y = rng.normal(size=(1000, 64)).astype(np.float32), np.eye(10, dtype=np.float32)[rng.integers(0, 10, 1000)]
    state = MetaState(genomes, jax.vmap(meta_optimizer(recipe, 100).init)(genomes), jnp.zeros(G, jnp.int32))
    run = meta_steps(Rules(states=4), recipe, recipe.tasks[0], stage, 1, mesh)
    arguments = (state, jnp.arange(G), jax.random.key(1), jnp.zeros((), jnp.int32), make_source(Examples(X, Y), mixed=False))
    return Case(run, arguments, donates=True, flops=matrix_flops(run, *arguments))


def transformer_step(sizes: Sizes, mesh: Mesh) -> Case:
    """A step of Adam on a transformer with windows of 256 tokens."""
    import optax

    from jexplicit.nn.steps import initial_state, training_step
    from jexplicit.nn.transformer import Transformer

    N, T, optimizer = sizes.vocabulary, 256, optax.adam(1e-3)
    model = Transformer(vocab_size=N, width=sizes.width, layers=sizes.layers, heads=max(1, sizes.width // 64), window=T)
    x = draw_stream(sizes.texts * T, N).astype(np.int32)[: sizes.texts * T].reshape(-1, T)
    state = initial_state({"batch_stats": {}, **jax.jit(model.init)(jax.random.key(0), x)}, optimizer)
    run = training_step(model, optax.softmax_cross_entropy_with_integer_labels, optimizer)
    flops = x.size * model.flops_per_token()
    return Case(run, (state, (x, np.roll(x, -1))), donates=True, flops=flops, rate="default")


Part = Callable[[Sizes, Mesh], Case]
PARTS: tuple[Part, ...] = (
    *(scattered_pairs, summed_pairs, explicit_tables, swept_images, evaluated_ngrams),
    *(adagrad_step, attention_step, transformer_step, blur_step),
)

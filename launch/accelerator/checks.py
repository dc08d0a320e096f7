"""Results of an accelerator compared with NumPy, and timed steps with their least work.

Each check returns the greatest difference and how much of it is allowed. A product that is rounded to TF32 is off by more than
1e-4. What a check or a part needs is imported by it: where a package is missing, the others still run.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh


def draw_stream(tokens: int, N: int, seed: int = 0) -> np.ndarray:
    """Tokens by Zipf's law, every fortieth one a `<pad>`, and at both ends."""
    p = 1 / np.arange(1, N)
    x = 1 + np.random.default_rng(seed).choice(N - 1, tokens + 2, p=p / p.sum()).astype(np.uint16)
    x[::40] = x[-1] = 0
    return x


def apart(ours: object, theirs: object) -> float:
    """The greatest difference of two arrays of one shape."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(a - b).max(initial=0)) if a.shape == b.shape else float("inf")


def pairs_by_scatter() -> tuple[float, float]:
    """Counts of pairs, two tokens back, equal a loop's counts."""
    from jexplicit.counts.pairs import count
    from jexplicit.runs.devices import data_mesh

    x, N = draw_stream(300, 20), 20
    counted = np.zeros((2, N, N), int)
    for k in (1, 2):
        for m in range(1, len(x)):
            j = x[m - k] if m >= k and x[m - k : m].all() else 0  # `<pad>` once a nearer token is one
            counted[k - 1, j, x[m]] += 1
    return apart(count(x, radius=2, vocab_size=N, mesh=data_mesh(1)), counted), 0


def pairs_by_segment_sum() -> tuple[float, float]:
    """Features summed by label, small whole numbers, equal NumPy's sums."""
    from jexplicit.solvers.explicit import dense_cooccurrence

    rng = np.random.default_rng(0)
    H, labels = rng.integers(0, 256, (200, 12)), rng.integers(0, 7, 200)
    F = dense_cooccurrence(jnp.asarray(H, jnp.float32), jnp.asarray(labels, jnp.int32), 7)
    return apart(F, H.T @ np.eye(7, dtype=int)[labels]), 0


def closed_form() -> tuple[float, float]:
    """`explicit_solution` of counts: ten roundings of logarithms below 10, in float32."""
    from jexplicit.solvers.explicit import explicit_solution

    F = np.random.default_rng(0).integers(1, 1000, (50, 20)).astype(np.float32)
    return apart(explicit_solution(jnp.asarray(F), 4.0), np.log(F) - 3 / 4 * np.log(F.sum(axis=0, dtype=float))), 1e-5


def sweep_of_images() -> tuple[float, float]:
    """One sweep with a bound on the curvature, from small weights, beside float64."""
    from jexplicit.solvers.sweeps import curvature_problem, curvature_sweep

    rng = np.random.default_rng(0)
    H, Y, U = rng.normal(size=(64, 12)), np.eye(5)[rng.integers(0, 5, 64)], rng.normal(size=(12, 5)) / 4
    problem = curvature_problem(jnp.asarray(H, jnp.float32), jnp.asarray(Y, jnp.float32), 1e-4)
    (swept, _), _ = curvature_sweep((jnp.asarray(U, jnp.float32), jnp.zeros(5, jnp.float32)), problem)
    A, P = H.T @ H / len(H), np.exp(H @ U)
    penalty = 1e-4 * np.trace(A) / len(A)
    ascent = H.T @ (Y - P / P.sum(axis=1, keepdims=True)) / len(H) - penalty * U
    return apart(swept, U + 2 * np.linalg.solve(A + 2 * penalty * np.eye(len(A)), ascent)), 1e-5


def least_squares() -> tuple[float, float]:
    """Ridge regression's prediction beside NumPy's least squares of the examples and the penalty's rows."""
    from icl.descent import ridge
    from icl.tasks import Sequence

    X, Y, x = (np.random.default_rng(n).normal(size=size) for n, size in enumerate([(20, 5), (20, 1), (5,)]))
    ours = ridge(Sequence(*(jnp.asarray(Z, jnp.float32) for Z in (X, Y, x, Y[0]))), 0.1)
    W = np.linalg.lstsq(np.vstack([X, 0.1**0.5 * np.eye(5)]), np.vstack([Y, np.zeros((5, 1))]), rcond=None)[0]
    return apart(ours, W.T @ x), 1e-5


def ngrams_of_tokens() -> tuple[float, float]:
    """Probabilities of the n-gram model sum to 1 in every context."""
    from jexplicit.data.contexts import contexts
    from jexplicit.lm.core.model import LanguageModel
    from jexplicit.lm.rows import smoothed_ngrams

    N = 20
    X, Y = contexts(draw_stream(300, N), 2)
    model = LanguageModel(smoothed_ngrams(X, Y, vocab_size=N), "none")
    X, outputs = np.repeat(X[:8], N, axis=0), np.tile(np.arange(N), 8)
    log_p = model.rows.target_logits(X, outputs)
    return apart(np.exp(log_p).reshape(8, N).sum(axis=1), np.ones(8)), 2e-5


def adagrad_steps() -> tuple[float, float]:
    """Two steps of Adagrad at rate 0.1, compared with float64 loops."""
    from jexplicit.lm.fits.gradient import initial_state, make_batch, training_step
    from jexplicit.nn.training import adagrad
    from jexplicit.runs.devices import data_mesh

    N, rng, mesh = 12, np.random.default_rng(0), data_mesh(1)
    U, X, Y = rng.normal(size=(2, N, N)), rng.integers(0, N, (2, 40, 2)), rng.integers(0, N, (2, 40))
    step = training_step(adagrad(0.1), features="cat", noise=None, mesh=mesh)
    state, squares = initial_state(tuple(jnp.asarray(table, jnp.float32) for table in U), adagrad(0.1), mesh), np.zeros_like(U)
    for x, y in zip(X, Y, strict=True):
        state, _ = step(state, make_batch(x, y, features="cat", size=40))
        G = np.zeros_like(U)
        for (i, j), target in zip(x, y, strict=True):
            p = np.exp(U[0, i] + U[1, j])
            G[[0, 1], [i, j]] += p / p.sum() - np.eye(N)[target]
        squares += G**2
        U = U - 0.1 * G / np.sqrt(squares + 1e-30)
    return apart(jnp.stack(state.params), U), 1e-5


def linear_attention_gradient() -> tuple[float, float]:
    """The loss of linear attention and a slope, compared with float64."""
    from icl.attention import Regression, init_layers
    from icl.tasks import Tasks

    problem, rng = Regression(Tasks(dim=3, context=8)), np.random.default_rng(0)
    batch = problem.sample(jax.random.key(0), 16, jnp.float32)
    layer = jax.tree.map(lambda W: (W / 3).astype(jnp.float32), init_layers(jax.random.key(1), 4, scale=1.0))
    loss, gradient = jax.jit(jax.value_and_grad(problem.loss))(layer, batch)
    W, directions = ([np.asarray(leaf, float) for leaf in layer], [rng.normal(size=leaf.shape) for leaf in layer])
    X, Y, x_q, y_q = (np.asarray(part, float) for part in batch)

    def loss_of(h: float) -> float:
        (W_K, W_Q, W_V, P), total = ((w + h * d)[0, 0] for w, d in zip(W, directions, strict=True)), 0.0
        for b in range(16):
            E, e = np.hstack([X[..., b], Y[..., b]]), np.append(x_q[:, b], 0)
            total += float((-(P @ W_V @ E.T @ (E @ W_K.T @ W_Q @ e))[3] - y_q[0, b]) ** 2) / 32
        return total

    slope = sum(np.sum(np.asarray(g, float) * d) for g, d in zip(gradient, directions, strict=True))
    differences = (loss_of(1e-5) - loss_of(-1e-5)) / 2e-5
    return max(apart(loss, loss_of(0)) / loss_of(0), apart(slope / differences, 1)), 1e-5


Check = Callable[[], tuple[float, float]]
CHECKS: tuple[Check, ...] = (
    *(pairs_by_scatter, pairs_by_segment_sum, closed_form, sweep_of_images, least_squares),
    *(ngrams_of_tokens, adagrad_steps, linear_attention_gradient),
)


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
    from jexplicit.counts.pairs import counting_step

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
    from jexplicit.solvers.sweeps import curvature_problem, curvature_sweep

    M, D, N = sizes.images, 784, 10
    rng = np.random.default_rng(0)
    H, Y = rng.normal(size=(M, D)).astype(np.float32), np.eye(N, dtype=np.float32)[rng.integers(0, N, M)]
    arguments = (
        (jnp.zeros((D, N), jnp.float32), jnp.zeros(N, jnp.float32)),
        curvature_problem(jnp.asarray(H), jnp.asarray(Y), 1e-4),
    )
    return Case(curvature_sweep, arguments, flops=4 * M * D * N + 2 * D * D * N)


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
    from jexplicit.nn.training import adagrad

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

    from jexplicit.nn.networks import initial_state, training_step
    from jexplicit.nn.sequences import Transformer

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

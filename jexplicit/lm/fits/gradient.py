"""Gradient training of the single-layer decoder, with the gradient by hand.

    L = sum_m log Z(x_m) - Ũ[x_m, y_m],    Ũ = E U,    dL/dŨ = Hᵀ(P - Y),    dL/dU = Eᵀ dL/dŨ

Tables are split over devices by output column: a step exchanges one number per context and device, its part of log Z.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import contexts, distinct_contexts, pad_to
from jexplicit.lm.core.model import LanguageModel, map_contexts, token_model
from jexplicit.lm.core.names import Features
from jexplicit.lm.core.smoothing import Noise, noise_model, noisy_counts, noisy_rows
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.rows import explicit_blocks, token_counts
from jexplicit.lm.training_text import FitResult, Options, TrainingText, Watch, written_for
from jexplicit.nn.training import adagrad, optax_optimizer, train
from jexplicit.runs.devices import AXIS, full_precision, key_of_seed, on_cpu
from jexplicit.solvers.explicit import closeness

_nothing = -1e30  # the logit of a column that only fills the mesh: exp gives 0, and 0 * it is still 0
_block = 64  # contexts at a time on a CPU: their logits stay in its cache
_block_elsewhere = 4096  # at most
_compared = 10_000  # dev contexts, at most, of which the guesses are compared with those of the explicit solution
_round_up = 512  # contexts are padded to multiples of this, so that few shapes are compiled


class DecoderState(NamedTuple):
    """Tables U_b [N, columns] (one for Sum, K for Cat) and the optimiser's state."""

    params: tuple[Float[Array, "N I"], ...]
    optimizer: Any


class DecoderBatch(NamedTuple):
    """Each different context once with its weight, and contexts and targets by position."""

    distinct: Int[np.ndarray, "u K"]
    weights: Float[np.ndarray, " u"]
    X: Int[np.ndarray, "B K"]
    Y: Int[np.ndarray, " B"]


def initial_state(params: tuple[Array, ...], optimizer: optax.GradientTransformation, mesh: Mesh) -> DecoderState:
    """The initial state of training from given tables, split over the mesh by column."""
    sharding, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, AXIS), ()))
    filler = ((0, 0), (0, -params[0].shape[1] % mesh.size))
    # a copy, as the state is donated and the tables may still be wanted
    params = tuple(jax.device_put(np.pad(np.asarray(U), filler, constant_values=_nothing), sharding) for U in params)
    placed = jax.tree.map(lambda leaf: leaf if leaf.ndim == 2 else jax.device_put(leaf, everywhere), optimizer.init(params))
    return DecoderState(params, placed)


def decoder_model(params: tuple[Any, ...], *, features: Features, radius: int, eos: bool, noise: Noise | None) -> LanguageModel:
    """The language model of trained tables, the noise folded into their rows."""
    N = params[0].shape[0]
    columns = (jnp.asarray(U)[:, :N] for U in params)
    tables = tuple(U if noise is None else noisy_rows(U, noise) for U in columns)
    return token_model(tables * (radius // len(tables)), features, eos)


def make_batch(X: Integer[np.ndarray, "B K"], Y: Integer[np.ndarray, " B"], *, features: Features, size: int) -> DecoderBatch:
    """A batch of contexts and targets, padded to `size` without weight."""
    distinct, n = distinct_contexts(X, ordered=features == "cat")
    return _batch(distinct, n, X, Y, _padded(len(distinct), size), size)


def _batch(distinct: np.ndarray, n: np.ndarray, X: np.ndarray, Y: np.ndarray, u: int, size: int) -> DecoderBatch:
    return DecoderBatch(pad_to(distinct, u, 0), pad_to(n, u, 0), pad_to(X, size, 0), pad_to(Y, size, -1))


def training_step(
    optimizer: optax.GradientTransformation, *, features: Features, noise: Noise | None, mesh: Mesh
) -> Callable[[DecoderState, DecoderBatch], tuple[DecoderState, Array]]:
    """The compiled step `(state, batch) -> (state, summed loss)`, with its state donated."""

    def step(state: DecoderState, batch: DecoderBatch) -> tuple[DecoderState, Array]:
        loss, gradient = loss_and_gradient(state.params, batch, features=features, noise=noise, mesh=mesh)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
            params = tuple(U + change for U, change in zip(state.params, updates, strict=True))  # pyright: ignore
        return DecoderState(params, optimizer_state), loss

    # else XLA:CPU copies donated tables that a loop reads before they are written
    in_place = {"xla_cpu_copy_insertion_use_region_analysis": True} if on_cpu(mesh) else None
    return jax.jit(step, donate_argnums=0, compiler_options=in_place)


def loss_and_gradient(
    params: tuple[Array, ...], batch: DecoderBatch, *, features: Features, noise: Noise | None, mesh: Mesh
) -> tuple[Array, tuple[Array, ...]]:
    """The summed loss of a batch in nats, and its gradient."""
    columns, everywhere, K = PartitionSpec(None, AXIS), PartitionSpec(), batch.X.shape[1]
    block = [0 if features == "sum" else k for k in range(K)]

    @full_precision
    def of_columns(params, batch, noise):
        dtype, I = params[0].dtype, params[0].shape[1]  # noqa: E741  (outputs of this device)
        q, one_minus_q, p = (jnp.asarray(v, dtype) for v in noise or (1, 0, 0))
        mean = [p @ U for U in params] if noise else []

        def logits(x, i: Any = slice(None)):
            """`sum_k Ũ[x_k]` of contexts, or of one output each."""
            total = []
            for b, j in zip(block, x.T, strict=True):
                own = params[b][j, i]
                if noise:
                    weight, rest = (v[j].reshape(-1, *[1] * (own.ndim - 1)) for v in (q, one_minus_q))
                    own = weight * own + rest * mean[b][i].reshape(*[1] * (own.ndim - 1), -1)
                total.append(own)
            return functools.reduce(jnp.add, total)

        def add_by_loop(G, x, expected):  # row by row: XLA's scatter of rows on a CPU takes twice as long
            def add_row(m, G):
                G = list(G)
                for k in range(K):
                    table, j = G[block[k]], x[m, k]
                    row = lax.dynamic_index_in_dim(table, j, keepdims=False) + expected[m]
                    G[block[k]] = lax.dynamic_update_index_in_dim(table, row, j, axis=0)
                return tuple(G)

            return lax.fori_loop(0, len(x), add_row, G)

        def add_by_scatter(G, x, expected):  # an accelerator would start several kernels for every row of a loop
            G = list(G)
            for k in range(K):
                G[block[k]] = G[block[k]].at[x[:, k]].add(expected, mode="promise_in_bounds")
            return tuple(G)

        def expected_counts(x, w, *, most, add):
            """`HᵀP` and the weighted log Z, by blocks of contexts."""
            blocks = max(1, -(-len(x) // most))
            size = -(-len(x) // blocks)
            x = jnp.pad(x, ((0, blocks * size - len(x)), (0, 0))).reshape(blocks, size, K)
            w = jnp.pad(w, (0, blocks * size - len(w))).reshape(blocks, size)

            def add_block(G, block_of_contexts):
                x, w, log_Z = block_of_contexts
                rows = logits(x)
                if log_Z is None:
                    log_Z = jax.nn.logsumexp(rows, axis=1)
                return add(G, x, jnp.exp(rows - log_Z[:, None]) * w[:, None]), (w * log_Z).sum()

            # several devices agree on all partition functions at once: meeting once a step is worth reading the rows twice
            local = None if mesh.size == 1 else lax.map(lambda x: jax.nn.logsumexp(logits(x), axis=1), x)
            shared = None if mesh.size == 1 else jax.nn.logsumexp(lax.all_gather(local, AXIS), axis=0)
            gradient, log_Z = lax.scan(add_block, tuple(jnp.zeros_like(U) for U in params), (x, w, shared))
            return gradient, log_Z.sum()

        gradient, log_Z = lax.platform_dependent(
            batch.distinct,
            batch.weights.astype(dtype),
            cpu=functools.partial(expected_counts, most=_block, add=add_by_loop),
            default=functools.partial(expected_counts, most=_block_elsewhere, add=add_by_scatter),
        )

        i = batch.Y - lax.axis_index(AXIS) * I
        here = (i >= 0) & (i < I)
        loss = log_Z - lax.psum(jnp.where(here, logits(batch.X, jnp.where(here, i, 0)), 0).sum(), AXIS)
        gradient = list(gradient)
        for k in range(K):
            gradient[block[k]] = gradient[block[k]].at[batch.X[:, k], jnp.where(here, i, I)].add(-1, mode="drop")
        if noise is not None:
            gradient = [noisy_counts(G, noise) for G in gradient]
        return loss, tuple(gradient)

    specs: Any = {"in_specs": (columns, everywhere, everywhere), "out_specs": (everywhere, columns)}
    # log Z is equal on all devices, which the check cannot see
    return jax.shard_map(of_columns, mesh=mesh, check_vma=False, **specs)(params, batch, noise)


def kkt_residual(
    model: LanguageModel, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, mesh: Mesh, chunk: int = 1 << 18
) -> float:
    """The distance from the optimum, `||H^T (Y - P)||_1 / (K M)`, below 2."""
    blocks = model.tables[:1] if model.features == "sum" else model.tables
    params = initial_state(blocks, optax.identity(), mesh).params
    distinct, n = distinct_contexts(X, ordered=model.ordered)  # of the whole text: fewer than chunk by chunk
    _, gradient = text_gradient(params, distinct, n, X, Y, features=model.features, mesh=mesh, chunk=chunk)
    misplaced = sum(float(jnp.abs(G).sum(axis=1).sum()) for G in gradient)
    return misplaced / (X.shape[1] * len(Y))


def text_gradient(
    params: tuple[Array, ...],
    distinct: Integer[np.ndarray, "u K"],
    n: Integer[np.ndarray, " u"],
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    features: Features,
    mesh: Mesh,
    chunk: int = 1 << 18,
) -> tuple[float, tuple[Array, ...]]:
    """The summed loss of a whole text in nats, and its gradient.

    Without positions (M = 0): `sum_ctx n(ctx) log Z(ctx)` of distinct contexts, and the expected co-occurrences `HᵀP`.
    """
    loss, total = 0.0, jax.tree.map(jnp.zeros_like, params)
    batches = -(-max(len(Y), len(distinct)) // chunk)
    size, u = -(-len(Y) // batches), _padded(-(-len(distinct) // batches), len(distinct))
    for b in range(batches):
        own, now = slice(b * u, (b + 1) * u), slice(b * size, (b + 1) * size)
        batch = _batch(distinct[own], n[own], X[now], Y[now], u, size)
        part, total = add_gradient(total, params, batch, features, mesh)
        loss += float(part)
    return loss, total


@functools.partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
def add_gradient(total: Any, params: Any, batch: DecoderBatch, features: Features, mesh: Mesh) -> tuple[Array, Any]:
    """The loss of a batch, and `total` with its gradient added, without noise."""
    loss, gradient = loss_and_gradient(params, batch, features=features, noise=None, mesh=mesh)
    return loss, jax.tree.map(jnp.add, total, gradient)


def _padded(length: int, most: int) -> int:
    """The length rounded up to a multiple of a block, for few compiled shapes."""
    return -(-min(-(-length // _round_up) * _round_up, max(most, length)) // _block) * _block


def train_language_model(start: str, text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Train from a cold or warm start, and keep the best dev epoch."""
    if watch.dev is None:
        raise ValueError(f"{start} without a dev text: training keeps its best epoch there; pass Watch(dev=stream)")
    K, features, eos = options.radius, options.features, text.eos
    counts, name, shape = text.counts(K), f"{start}, {features}, K = {K}", {"features": features, "radius": K}
    noise, optimizer = noise_model(token_counts(counts)), make_optimizer(options)
    read = functools.partial(decoder_model, **shape, eos=eos, noise=noise)
    X, Y = contexts(text.in_memory, K, eos=eos)
    params: tuple[Array, ...] = explicit_blocks(counts, **shape, eos=eos, read=False)  # U below the noise
    goal = read(params)
    if start == "cold":
        bound = 1 / np.sqrt(len(params) * text.vocab_size)  # of D features
        keys = jax.random.split(key_of_seed(options.seed), len(params))
        params = tuple(jax.random.uniform(k, U.shape, U.dtype, -bound, bound) for k, U in zip(keys, params, strict=True))
    dev = np.asarray(watch.dev[:])
    seen = contexts(dev, K, eos=eos)[0][:_compared]
    guesses, near = map_contexts(_guess, goal, seen, mesh=text.mesh), dict[str, float]()

    def dev_loss(params: Any) -> float:
        model = read(params)
        found = closeness(*(jnp.concatenate(one.rows.tables) for one in (model, goal)))
        found["agreement"] = float(np.mean(map_contexts(_guess, model, seen, mesh=text.mesh) == guesses))
        near.update({f"explicit_{name}": value for name, value in found.items()})
        return evaluate(model, dev, mesh=text.mesh).loss

    def on_epoch(entry: Mapping[str, Any]) -> None:
        epoch = dict(entry)
        if epoch["epoch"] == 0:
            of_start = evaluate(
                read(params), text.stream, counts=counts, sample=options.train_sample, seed=options.seed, mesh=text.mesh
            )
            epoch |= {"train_loss": of_start.loss, "seconds": 0.0, "cpu_seconds": 0.0}
        watch.log(event="epoch", method=start, **shape, **_with_perplexities(epoch), **near)

    with watch.stage(f"training {name}", "positions") as progress:
        trained = train(
            initial_state(params, optimizer, text.mesh),
            training_step(optimizer, features=features, noise=noise, mesh=text.mesh),
            lambda drawn: make_batch(X[drawn], Y[drawn], features=features, size=options.batch_size),
            dev_loss,
            params=lambda state: state.params,
            size=len(Y),
            batch_size=options.batch_size,
            epochs=options.epochs,
            seed=options.seed,
            patience=options.patience,
            checkpoints=watch.checkpoints,
            known=written_for(start, text, options, watch),
            on_epoch=on_epoch,
            progress=progress,
        )
    model, history = read(trained.params), _with_perplexities(trained.history[-1])
    with watch.stage("KKT residual"):
        residual = kkt_residual(model, X, Y, mesh=text.mesh)
    info = {
        "solve_seconds": trained.seconds,
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        **{f"last_{name}": value for name, value in history.items() if "perplexity" in name},
        "positions_per_second": trained.epochs * len(Y) / trained.seconds,
        "kkt_residual": residual,
        **{name: getattr(options, name) for name in ("optimizer", "learning_rate", "batch_size")},
    }
    return FitResult(model, info)


def _guess(model: LanguageModel, x: jax.Array) -> jax.Array:
    """The likeliest token after a context."""
    return jnp.argmax(model.logits(x))


def make_optimizer(options: Options) -> optax.GradientTransformation:
    """The optimiser of optax, on the gradient of the mean loss of a batch."""
    if options.optimizer == "adagrad":
        chosen = adagrad(options.learning_rate, accumulator=options.accumulator)
    else:
        chosen = optax_optimizer(options.optimizer, options.learning_rate)
    return optax.chain(optax.scale(1 / options.batch_size), chosen)


def _with_perplexities(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An epoch with perplexities in the place of losses."""
    with np.errstate(over="ignore"):  # a diverging run is worth its line: infinite perplexity
        found = {name.replace("loss", "perplexity"): float(np.exp(entry[name])) for name in entry if name.endswith("loss")}
    return {name: value for name, value in entry.items() if not name.endswith("loss")} | found

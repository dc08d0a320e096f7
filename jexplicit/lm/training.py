"""Training of tables: Adagrad with the gradient by hand, and iterative scaling."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Integer

from jexplicit.counts import Counts, merge_offsets
from jexplicit.data.streams import contexts, distinct_contexts, pad_to
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.layers import (
    Noise,
    counts_of_counts,
    decoder_model,
    discounts_of,
    explicit_decoder,
    explicit_language_model,
    log_linear_model,
    noise_model,
    noisy_counts,
    noisy_rows,
    rows_of_text,
    token_counts,
    weights_held_out,
    with_targets,
)
from jexplicit.lm.model import LanguageModel, map_contexts
from jexplicit.lm.names import Features
from jexplicit.lm.training_text import FitResult, Options, TrainingText, Watch, written_for
from jexplicit.nn.training import adagrad, train
from jexplicit.runs.devices import AXIS, check_memory, full_precision, key_of_seed, on_cpu
from jexplicit.solvers.explicit import closeness
from jexplicit.solvers.sweeps import run_sweeps

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


def split_columns(tables: tuple[Any, ...], mesh: Mesh) -> tuple[Float[Array, "N I"], ...]:
    """Copies of tables, split over the mesh by output.

    A step exchanges one number per context and device, its part of log Z.
    """
    filler, sharding = ((0, 0), (0, -tables[0].shape[1] % mesh.size)), NamedSharding(mesh, PartitionSpec(None, AXIS))
    return tuple(jax.device_put(np.pad(np.asarray(U), filler, constant_values=_nothing), sharding) for U in tables)


def initial_state(params: tuple[Array, ...], optimizer: optax.GradientTransformation, mesh: Mesh) -> DecoderState:
    """The initial state of training from given tables."""
    params, everywhere = split_columns(params, mesh), NamedSharding(mesh, PartitionSpec())
    placed = jax.tree.map(lambda leaf: leaf if leaf.ndim == 2 else jax.device_put(leaf, everywhere), optimizer.init(params))
    return DecoderState(params, placed)


def make_batch(X: Integer[np.ndarray, "B K"], Y: Integer[np.ndarray, " B"], *, features: Features, size: int) -> DecoderBatch:
    """A batch of contexts and targets, padded to `size` without weight."""
    distinct, n = distinct_contexts(X, ordered=features == "cat")
    u = min(-(-len(distinct) // _round_up) * _round_up, -(-size // _block) * _block)
    return DecoderBatch(pad_to(distinct, u, 0), pad_to(n, u, 0), pad_to(X, size, 0), pad_to(Y, size, -1))


def training_step(
    optimizer: optax.GradientTransformation, *, features: Features, noise: Noise | None, mesh: Mesh
) -> Callable[[DecoderState, DecoderBatch], tuple[DecoderState, Array]]:
    """The compiled step `(state, batch) -> (state, summed loss)`, with its state donated."""

    def step(state: DecoderState, batch: DecoderBatch) -> tuple[DecoderState, Array]:
        loss, gradient = loss_and_gradient(state.params, batch, features=features, noise=noise, mesh=mesh)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return DecoderState(params, optimizer_state), loss

    # else XLA:CPU copies donated tables that a loop reads before they are written
    in_place = {"xla_cpu_copy_insertion_use_region_analysis": True} if on_cpu(mesh) else None
    return jax.jit(step, donate_argnums=0, compiler_options=in_place)


@functools.partial(jax.jit, static_argnames=("features", "mesh"))
def loss_and_gradient(
    params: tuple[Array, ...], batch: DecoderBatch, *, features: Features, noise: Noise | None, mesh: Mesh
) -> tuple[Array, tuple[Array, ...]]:
    """The summed loss of a batch in nats, and its gradient.

    L = sum_m log Z(x_m) - Ũ[x_m, y_m],    Ũ = E U,    dL/dŨ = Hᵀ(P - Y),    dL/dU = Eᵀ dL/dŨ

    Without positions: `sum_ctx n(ctx) log Z(ctx)` of distinct contexts, and the expected co-occurrences `HᵀP`.
    """
    columns, everywhere, K = PartitionSpec(None, AXIS), PartitionSpec(), batch.X.shape[1]
    block = [0 if features == "sum" else k for k in range(K)]

    @full_precision
    def of_columns(params, batch, noise):
        dtype, I = params[0].dtype, params[0].shape[1]  # noqa: E741  (outputs of this device)
        tables = params if noise is None else [noisy_rows(U, noise) for U in params]

        def logits(x, i: Any = slice(None)):
            """`sum_k Ũ[x_k]` of contexts, or of one output each."""
            return functools.reduce(jnp.add, [tables[b][j, i] for b, j in zip(block, x.T, strict=True)])

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
        return loss, tuple(G if noise is None else noisy_counts(G, noise) for G in gradient)

    specs: Any = {"in_specs": (columns, everywhere, everywhere), "out_specs": (everywhere, columns)}
    # log Z is equal on all devices, which the check cannot see
    return jax.shard_map(of_columns, mesh=mesh, check_vma=False, **specs)(params, batch, noise)


def train_language_model(start: str, text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Train from a cold or warm start, and keep the best dev epoch."""
    if watch.dev is None:
        raise ValueError(f"{start} without a dev text: training keeps its best epoch there; pass Watch(dev=stream)")
    K, features, eos, mesh = options.context, options.features, text.eos, text.mesh
    counts, shape = text.counts(K)[:K], {"features": features, "context": K}
    noise = noise_model(token_counts(counts))
    optimizer = optax.chain(optax.scale(1 / options.batch_size), adagrad(options.learning_rate))  # of the mean loss
    read = functools.partial(decoder_model, noise=noise, **shape, eos=eos)
    X, Y = contexts(text.in_memory, K, eos=eos)
    params: tuple[Array, ...] = explicit_decoder(counts, noise, features, eos)
    goal = read(params)
    if start == "cold":
        bound = 1 / np.sqrt(len(params) * text.vocab_size)  # of D features
        keys = jax.random.split(key_of_seed(options.seed), len(params))
        params = tuple(jax.random.uniform(k, U.shape, U.dtype, -bound, bound) for k, U in zip(keys, params, strict=True))
    dev = np.asarray(watch.dev[:])
    seen = contexts(dev, K, eos=eos)[0][:_compared]
    guesses, near = map_contexts(_guess, goal, seen, mesh=mesh), dict[str, float]()

    def dev_loss(params: Any) -> float:
        model = read(params)
        found = closeness(*(jnp.concatenate(one.rows.tables) for one in (model, goal)))
        found["agreement"] = float(np.mean(map_contexts(_guess, model, seen, mesh=mesh) == guesses))
        near.update({f"explicit_{name}": value for name, value in found.items()})
        return evaluate(model, dev, mesh=mesh).loss

    def on_epoch(entry: Mapping[str, Any]) -> None:
        epoch = dict(entry)
        if epoch["epoch"] == 0:
            of_start = evaluate(read(params), text.stream, sample=options.train_sample, seed=options.seed, mesh=mesh).loss
            epoch |= {"train_loss": of_start, "seconds": 0.0, "cpu_seconds": 0.0}
        watch.log(event="epoch", method=start, **shape, **_with_perplexities(epoch), **near)

    with watch.stage(f"training {start}, {features}, K = {K}", "positions") as progress:
        trained = train(
            initial_state(params, optimizer, mesh),
            training_step(optimizer, features=features, noise=noise, mesh=mesh),
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
    model, last = read(trained.params), _with_perplexities(trained.history[-1])
    info = {
        "solve_seconds": trained.seconds,
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        **{f"last_{name}": value for name, value in last.items() if "perplexity" in name},
        "positions_per_second": trained.epochs * len(Y) / trained.seconds,
        "learning_rate": options.learning_rate,
        "batch_size": options.batch_size,
    }
    return FitResult(model, info)


def _guess(model: LanguageModel, x: jax.Array) -> jax.Array:
    """The likeliest token after a context."""
    return jnp.argmax(model.logits(x))


def _with_perplexities(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An epoch with perplexities in the place of losses."""
    with np.errstate(over="ignore"):  # a diverging run is worth its line: infinite perplexity
        found = {name.replace("loss", "perplexity"): float(np.exp(entry[name])) for name in entry if name.endswith("loss")}
    return {name: value for name, value in entry.items() if not name.endswith("loss")} | found


# Generalised iterative scaling (Darroch & Ratcliff 1972)
#
#     U[j, i] += (1/K) log(F[j, i] / E[j, i]),    E = HᵀP,    P = softmax(H U);    with noise Ũ += (1/K) N log(NᵀF / NᵀE)
#
# `discount=D` minimises `L(U) + D ||U - U0||_1`: F - D above U0, F + D below, else U0. At the minimum `|E - F| <= D`.


class SweepResult(NamedTuple):
    """A model, the losses of its sweeps, and the last penalty."""

    model: LanguageModel
    losses: np.ndarray
    penalty: float


def sweep_tables(
    model: LanguageModel,
    text: TrainingText,
    *,
    sweeps: int,
    noise: bool = True,
    discount: float = 0.0,
    weights: Float[np.ndarray, "K N"] | None = None,
    known: Mapping[str, Any] | None = None,
    on_sweep: Callable[[int, float, LanguageModel], bool | None] | None = None,
    **options: Any,
) -> SweepResult:
    """Lower the training loss by sweeps `U += (1/K) log(F / HᵀP)`.

    noise: whether the parameters are those of the noisy features; without, pairs that never occur stay as they are. discount: D
    of the prior around the start, in counts. weights: [K, N] w of Sum with attention. Both need `noise=False`. on_sweep:
    called with (sweeps done, loss without penalty, model), from 0 sweeps on; where it returns True, they end.

    Source: Darroch & Ratcliff 1972; Goodman 2004 for the prior (its upper half); paper, Eq. 1 and 4.
    """
    K, N, mesh, eos = model.context, model.vocab_size, text.mesh, model.eos
    if not 0 <= discount < np.inf or (noise and (discount or weights is not None)):
        raise ValueError(f"a discount of {discount} with noise={noise}: use a finite one >= 0; it and weights need noise=False")
    if text.vocab_size != N:
        raise ValueError(f"a text of vocabulary {text.vocab_size} and a model of {N}: use the model's own tokenizer")
    X, Y = contexts(text.in_memory, K, eos=eos)
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    features = model.features if weights is None else "cat"
    F = _blocks(text.counts(K)[:K], features, eos)
    seen = (*distinct_contexts(X, ordered=features == "cat"), X[:0], Y[:0])
    distinct = DecoderBatch(*(part.astype(np.int32) for part in seen))
    tables = model.tables if weights is not None else model.tables[: len(F)]
    dtype = tables[0].dtype
    check_memory(mesh, 10 * len(tables) * tables[0].nbytes // mesh.size, "tables and their co-occurrences")
    if discount and not all(bool(jnp.isfinite(U).all()) for U in tables):
        raise ValueError("a prior around infinite logits: start from tables that are finite, such as log-linear ones")
    of_start = split_columns(tables, mesh)
    observed = split_columns(tuple(jnp.asarray(F_b, dtype) for F_b in F), mesh)
    start, norm, read, gather = of_start, jnp.asarray(K, dtype), lambda moving: moving, lambda blocks: blocks
    if weights is not None:  # one table V, from 0: offset k reads its row j with the weight w_k(j), on top of where it started
        norm = jnp.asarray(np.sum([w[x] for w, x in zip(weights, X.T, strict=True)], axis=0).max(), dtype)
        start, w = (jnp.zeros_like(of_start[0]),), jnp.asarray(weights, dtype)
        read, gather = functools.partial(_read_weighted, w, of_start), functools.partial(_gather_weighted, w)
    F_moving, of_noise = gather(observed), noise_model(token_counts(text.counts(K))) if noise else None
    as_model = functools.partial(decoder_model, noise=None, features=model.features, context=K, eos=eos)

    def penalty(moving: tuple[Array, ...]) -> float:
        return discount * _total(_moved_by, moving, start) / len(Y) if discount else 0.0

    def sweep(moving: tuple[Array, ...], problem: Any) -> tuple[tuple[Array, ...], Any]:
        tables = read(moving)
        log_Z, E = loss_and_gradient(tables, distinct, features=features, noise=None, mesh=mesh)
        loss = (float(log_Z) - _total(_matched_logits, observed, tables)) / len(Y) + penalty(moving)
        parts = zip(moving, F_moving, gather(E), start, strict=True)
        return tuple(_moved(*part, of_noise, discount, norm) for part in parts), np.asarray(loss)

    def met(sweep: int, loss: float, moving: tuple[Array, ...]) -> bool | None:
        return on_sweep and on_sweep(sweep, loss - penalty(moving), as_model(read(moving)))

    problem = {**(known or {}), "text": text.in_memory, "noise": noise, "discount": discount, "tables": (tables, weights)}
    moved, losses = run_sweeps(sweep, start, problem, sweeps=sweeps, on_sweep=met, **options)
    return SweepResult(as_model(read(moved)), losses, penalty(moved))


@jax.jit
def _read_weighted(weights: Array, tables: tuple[Array, ...], moving: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(U + w[:, None] * moving[0] for U, w in zip(tables, weights, strict=True))


@jax.jit
def _gather_weighted(weights: Array, blocks: tuple[Array, ...]) -> tuple[Array, ...]:
    gathered = [w[:, None] * jnp.maximum(block, 0) for block, w in zip(blocks, weights, strict=True)]
    return (functools.reduce(jnp.add, gathered),)


# Sums of every row: the distance from the start (columns that fill the mesh stay at -inf), and logits of pairs that occur
_moved_by = jax.jit(lambda U, U0: jnp.where(U == U0, 0, jnp.abs(U - U0)).sum(axis=1))
_matched_logits = jax.jit(lambda F, U: jnp.where(F > 0, F * U, 0).sum(axis=1))


def _blocks(counts: Counts, features: str, eos: bool) -> Counts:
    """F of every table: Sum's offsets share one, and add up in it."""
    F = tuple(with_targets(C, eos=eos) for C in counts)
    return merge_offsets(F) if features == "sum" else F


def _total(rows: Callable[..., Array], *blocks: tuple[Array, ...]) -> float:
    """The sum of `rows(...)` over blocks and rows, in float64."""
    return sum(float(np.asarray(rows(*block), np.float64).sum()) for block in zip(*blocks, strict=True))


@functools.partial(jax.jit, static_argnames="D")
def _moved(U: Array, F: Array, E: Array, U0: Array, noise: Noise | None, D: float, K: Array) -> Array:
    """The tables after a sweep; with D of a prior around U0."""
    F = jnp.maximum(F, 0)  # columns that only fill the mesh
    if noise is not None:
        return U + noisy_rows(_log_ratio(noisy_counts(F, noise), noisy_counts(E, noise)), noise) / K
    if not D:
        return U + _log_ratio(F, E) / K
    above = jnp.where(F > D, U + _log_ratio(F - D, E) / K, -jnp.inf)
    below = jnp.where(E > 0, U + _log_ratio(F + D, E) / K, jnp.inf)
    return jnp.where(above > U0, above, jnp.where(below < U0, below, U0))


def _log_ratio(F: Array, E: Array) -> Array:
    """`log(F/E)`, 0 where F is 0; an underflow of E shortens the step."""
    return jnp.where(F > 0, jnp.log(jnp.where(F > 0, F, 1) / jnp.maximum(E, jnp.finfo(E.dtype).tiny)), 0)


def fit_iterative_scaling(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Sweeps from the log-linear model, or without discount from the explicit solution."""
    mine = {"features": options.features, "context": options.context}
    weights = None if options.discount == 0 else weights_held_out(text, options, watch).weights
    start, how = _start(text, options, weights)
    info = {"sweeps": options.sweeps, "scalars": 0}
    if weights is not None:
        info = {"scalars": len(weights), **_held_out_sweeps(text, options, watch, weights)}
    earlier = [e["seconds"] for e in watch.events("sweep") if {**e, **mine} == e]  # of the run that is resumed
    begin = time.perf_counter() - (earlier[-1] if earlier else 0.0)

    def on_sweep(sweep: int, loss: float, model: LanguageModel) -> None:
        nonlocal begin
        paused = time.perf_counter()
        dev = {} if watch.dev is None else {"dev_perplexity": evaluate(model, watch.dev, mesh=text.mesh).perplexity}
        watch.log(event="sweep", **mine, sweep=sweep, train_perplexity=float(np.exp(loss)), **dev, seconds=paused - begin)
        begin += time.perf_counter() - paused  # no part of the sweeps

    known = written_for("iterative-scaling", text, options, watch)
    with watch.stage(f"iterative-scaling, {options.features}, K = {options.context}", "sweeps") as progress:
        how |= {"checkpoints": watch.checkpoints, "known": known, "on_sweep": on_sweep, "progress": progress}
        swept = sweep_tables(start, text, sweeps=info["sweeps"], **how)
    info |= {"discount": how["discount"], "penalty": swept.penalty, "solve_seconds": time.perf_counter() - begin}
    return FitResult(swept.model, info)


def _start(text: TrainingText, options: Options, weights: np.ndarray | None) -> tuple[LanguageModel, dict[str, Any]]:
    """The initial tables of sweeps, their discount, and weights of Sum's offsets."""
    K, features, eos = options.context, options.features, text.eos
    if weights is None:
        start = explicit_language_model(text.counts(K), features=features, context=K, eos=eos)
        return start, {"noise": True, "discount": 0.0, "weights": None}
    rows, attention, D = rows_of_text(text, options), None, options.discount
    if rows.attention is not None:  # at most that of the nearest offset: rare tokens with a large one would shorten every step
        attention = np.maximum(weights[1:, None], 0) * np.minimum(np.asarray(rows.attention), 1)
    if D is None:
        n = sum(map(counts_of_counts, _blocks(text.counts(K)[:K], features, eos)))
        D = float(discounts_of(n, modified=False)[0])
    return log_linear_model(rows, weights), {"noise": False, "discount": D, "weights": attention}


def _held_out_sweeps(text: TrainingText, options: Options, watch: Watch, weights: np.ndarray) -> dict[str, Any]:
    """The best number of sweeps on held-out documents, and their perplexity."""
    mine = {"features": options.features, "context": options.context}
    if chosen := [e for e in watch.events("held_out_sweeps") if {**e, **mine} == e]:
        return {name: chosen[-1][name] for name in ("sweeps", "held_out_perplexity")}
    (rest, held), losses = text.parts(options.calibration_positions), []
    start, how = _start(rest, options, weights)

    def on_sweep(sweep: int, loss: float, model: LanguageModel) -> bool:
        losses.append(evaluate(model, held, mesh=text.mesh).loss)
        return losses[-1] > min(losses)

    with watch.stage(f"held-out sweeps, {options.features}, K = {options.context}", "sweeps") as progress:
        sweep_tables(start, rest, sweeps=options.sweeps, **how, on_sweep=on_sweep, progress=progress)
    best = {"sweeps": int(np.argmin(losses)), "held_out_perplexity": float(np.exp(min(losses)))}
    watch.log(event="held_out_sweeps", **mine, **best, perplexities=[float(np.exp(loss)) for loss in losses])
    return best

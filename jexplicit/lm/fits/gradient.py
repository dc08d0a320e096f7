"""Gradient training of the single-layer decoder, with the gradient by hand.

The loss of a batch is `L = sum_m log Z(x_m) - U[x_m, y_m]`. With noisy embeddings the layer reads `Ũ = E U`, so

    dL/dŨ = H̃ᵀ(P - Y),    dL/dU = Eᵀ dL/dŨ = diag(q) dL/dŨ + p ⊗ (1 - q)ᵀ dL/dŨ,

the same diagonal plus rank one that makes noisy co-occurrences out of counts. The rank-one part touches every row, so an exact
step on U is dense. Optimising Ũ itself (`noise=None`) leaves the rows alone that a batch does not touch; it is another
trajectory of the same model.

Tables are split over devices by output column: a step exchanges one number per context and device (its part of log Z), where
data parallelism would exchange the whole gradient.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import distinct_contexts, pad_to
from jexplicit.lm.core.model import Features, LanguageModel, token_model
from jexplicit.lm.core.smoothing import Noise, noisy_counts, noisy_rows
from jexplicit.runs.devices import AXIS, full_precision, on_cpu

_nothing = -1e30  # the logit of a column that only fills the mesh: exp gives 0, and 0 * it is still 0
_block = 64  # contexts at a time on a CPU: their logits stay in its cache
_block_elsewhere = 4096  # at most
_round_up = 512  # contexts and rows are padded to multiples of this, so that few shapes are compiled


class DecoderState(NamedTuple):
    """Tables U_b [N, columns] (one for Sum, K for Cat) and the optimiser's state."""

    params: tuple[Float[Array, "N I"], ...]
    optimizer: Any


class DecoderBatch(NamedTuple):
    """Each different context once with its weight, and every position's own context and target; padded.

    rows: row numbers of the tables that the batch touches, for an update of those rows alone; then X and distinct number
        these rows. Empty for a dense update.
    """

    distinct: Int[np.ndarray, "u K"]
    weights: Float[np.ndarray, " u"]
    X: Int[np.ndarray, "B K"]
    Y: Int[np.ndarray, " B"]
    rows: tuple[Int[np.ndarray, " R"], ...]


def cold_start(key: Array, *, features: Features, radius: int, vocab_size: int, dtype=jnp.float32) -> tuple[Array, ...]:
    """Random tables, uniform in +-1/sqrt(D) with D the number of features: N for Sum, K N for Cat.

    The paper does not state its own; this is the usual default for a linear layer.
    """
    blocks = 1 if features == "sum" else radius
    bound = 1 / np.sqrt(blocks * vocab_size)
    shape = (vocab_size, vocab_size)
    return tuple(jax.random.uniform(k, shape, dtype, -bound, bound) for k in jax.random.split(key, blocks))


def initial_state(params: tuple[Array, ...], optimizer: optax.GradientTransformation, mesh: Mesh) -> DecoderState:
    """The state of a training run from given tables, split over the mesh by output column."""
    sharding = NamedSharding(mesh, PartitionSpec(None, AXIS))
    filler = ((0, 0), (0, -params[0].shape[1] % mesh.size))
    # a copy, as the state is donated and the tables may still be wanted
    params = tuple(jax.device_put(np.pad(np.asarray(U), filler, constant_values=_nothing), sharding) for U in params)
    everywhere = NamedSharding(mesh, PartitionSpec())
    optimizer_state = jax.tree.map(
        lambda leaf: leaf if leaf.ndim == 2 else jax.device_put(leaf, everywhere), optimizer.init(params)
    )
    return DecoderState(params, optimizer_state)


def decoder_model(params: tuple[Any, ...], *, features: Features, radius: int, eos: bool, noise: Noise | None) -> LanguageModel:
    """The language model of trained tables, the noise folded into their rows."""
    N = params[0].shape[0]
    tables = tuple(_read_tables(jnp.asarray(U)[:, :N], noise) for U in params)
    return token_model(tables * (radius // len(tables)), features, eos)


def make_batch(
    X: Integer[np.ndarray, "B K"], Y: Integer[np.ndarray, " B"], *, features: Features, vocab_size: int, size: int, sparse: bool
) -> DecoderBatch:
    """A batch from its contexts and targets.

    Args:
        X: [B, K] contexts.
        Y: [B] targets.
        features: Sum does not see the order of a context, so fewer are different.
        vocab_size: N.
        size: positions of a whole batch; a smaller one is padded without weight.
        sparse: update only the rows that the batch touches, where they are few enough for this to pay.
    """
    N, K = vocab_size, X.shape[1]
    distinct, n = distinct_contexts(X, ordered=features == "cat")
    rows: tuple[np.ndarray, ...] = ()
    if sparse:
        touched = [np.unique(X)] * K if features == "sum" else [np.unique(column) for column in X.T]
        R = _padded(max(map(len, touched)), N)
        if R <= N // 4:  # beyond, gathering and scattering rows costs more than passing over the whole table
            distinct, X = (
                np.stack([np.searchsorted(*pair) for pair in zip(touched, Z.T, strict=True)], 1) for Z in (distinct, X)
            )
            rows = tuple(pad_to(t, R, N) for t in touched[: 1 if features == "sum" else K])
    u = _padded(len(distinct), size)
    return DecoderBatch(pad_to(distinct, u, 0), pad_to(n, u, 0), pad_to(X, size, 0), pad_to(Y, size, -1), rows)


def training_step(
    optimizer: optax.GradientTransformation, *, features: Features, noise: Noise | None, mesh: Mesh
) -> Callable[[DecoderState, DecoderBatch], tuple[DecoderState, Array]]:
    """The compiled step `(state, batch) -> (state, summed loss)`, with its state donated.

    A batch with rows updates these alone. This is the dense update exactly, for an optimiser that leaves a parameter with
    gradient zero where it is (Adagrad, gradient descent); others need batches without rows.

    Args:
        optimizer: of optax, applied to the gradient of the summed loss.
        features: Sum's offsets share a table.
        noise: the noise model of the embeddings; None to optimise the tables that are read by token ids.
        mesh: devices to split the columns over.

    Raises:
        ValueError: by the step, for a batch with rows under noise.
    """

    def step(state: DecoderState, batch: DecoderBatch) -> tuple[DecoderState, Array]:
        if batch.rows and noise is not None:
            raise ValueError("a batch of some rows, and noise, which touches them all: make batches with sparse=False")
        rows = batch.rows and state._replace(params=batch.rows, optimizer=_rows_of(optimizer, state.optimizer, batch.rows))
        part = _take(state, rows) if rows else state
        loss, gradient = loss_and_gradient(part.params, batch, features=features, noise=noise, mesh=mesh)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
            updates, optimizer_state = optimizer.update(gradient, part.optimizer, part.params)
            params = tuple(U + change for U, change in zip(part.params, updates, strict=True))  # pyright: ignore
        updated = DecoderState(params, optimizer_state)
        return (_put(state, updated, rows) if rows else updated), loss

    return jax.jit(step, donate_argnums=0, compiler_options=_keep_donated_in_place(mesh))


def loss_and_gradient(
    params: tuple[Array, ...], batch: DecoderBatch, *, features: Features, noise: Noise | None, mesh: Mesh
) -> tuple[Array, tuple[Array, ...]]:
    """The summed loss of a batch in nats, and its gradient with respect to the tables.

    Source: paper, Eq. 1; Sec. 3.1.1 for the noise.
    """
    columns, everywhere = PartitionSpec(None, AXIS), PartitionSpec()
    local = functools.partial(_columns_loss_and_gradient, features=features, devices=mesh.size)
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(columns, everywhere, everywhere),
        out_specs=(everywhere, columns),
        check_vma=False,  # log Z is equal on all devices, which the check cannot see
    )(params, batch, noise)


def kkt_residual(
    model: LanguageModel, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, mesh: Mesh, chunk: int = 1 << 18
) -> float:
    """How far a model is from the optimum: `||H^T (Y - P)||_1 / (K M)`, 0 at the optimum and below 2 everywhere.

    The gradient of the convex loss is what the model expects less what occurred; this is the share of co-occurrences that it
    misplaces (twice over, once where they are and once where they should be).

    Args:
        model: tables that are read by token ids.
        X: [M, K] contexts.
        Y: [M] targets.
        mesh: devices to split the columns over.
        chunk: positions at a time; it changes the memory, not the result.

    Source: first-order condition of Eq. 1.
    """
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
    """The summed loss of a whole text in nats and its gradient: expected less observed co-occurrences.

    Without positions (M = 0) it is what the contexts alone give: `sum_ctx n(ctx) log Z(ctx)` and the expected co-occurrences
    `HᵀP`.

    Args:
        params: tables [N, columns] as `initial_state` splits them over the mesh.
        distinct: [u, K] the different contexts of the text.
        n: [u] how often each occurs.
        X: [M, K] contexts.
        Y: [M] targets.
        features: Sum's offsets share a table.
        mesh: devices to split the columns over.
        chunk: positions or contexts at a time; it changes the memory, not the result.

    Source: paper, Eq. 1.
    """
    loss, total = 0.0, jax.tree.map(jnp.zeros_like, params)
    batches = -(-max(len(Y), len(distinct)) // chunk)
    size, u = -(-len(Y) // batches), _padded(-(-len(distinct) // batches), len(distinct))
    for b in range(batches):
        own, now = slice(b * u, (b + 1) * u), slice(b * size, (b + 1) * size)
        batch = DecoderBatch(
            pad_to(distinct[own], u, 0), pad_to(n[own], u, 0), pad_to(X[now], size, 0), pad_to(Y[now], size, -1), ()
        )
        part, total = add_gradient(total, params, batch, features, mesh)
        loss += float(part)
    return loss, total


@full_precision
def _columns_loss_and_gradient(
    params: tuple[Array, ...], batch: DecoderBatch, noise: Noise | None, *, features: Features, devices: int
):
    """Loss and gradient of the columns of one device; `params` and the gradient are [N, I]."""
    dtype, I = params[0].dtype, params[0].shape[1]  # noqa: E741  (outputs of this device)
    K = batch.X.shape[1]
    block = [0 if features == "sum" else k for k in range(K)]
    if noise is None:
        read = [lambda j, U=params[b]: U[j] for b in block]
        read_one = [lambda j, i, U=params[b]: U[j, i] for b in block]
    else:
        q, one_minus_q, p = (jnp.asarray(v, dtype) for v in noise)
        mean = [p @ U for U in params]
        read = [lambda j, U=params[b], u=mean[b]: q[j][:, None] * U[j] + one_minus_q[j][:, None] * u[None, :] for b in block]
        read_one = [lambda j, i, U=params[b], u=mean[b]: q[j] * U[j, i] + one_minus_q[j] * u[i] for b in block]

    def logits(x):
        return functools.reduce(jnp.add, [read[k](x[:, k]) for k in range(K)])

    def local_log_Z(x):
        return jax.nn.logsumexp(logits(x), axis=1)

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
        """`HᵀP` and the weighed log Z, at most so many contexts at a time; those that fill the last block have weight 0."""
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

        # several devices first agree on all partition functions at once: meeting once a step is worth reading the rows twice
        shared = None if devices == 1 else jax.nn.logsumexp(lax.all_gather(lax.map(local_log_Z, x), AXIS), axis=0)
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
    targets = functools.reduce(jnp.add, [read_one[k](batch.X[:, k], jnp.where(here, i, 0)) for k in range(K)])
    loss = log_Z - lax.psum(jnp.where(here, targets, 0).sum(), AXIS)
    gradient = list(gradient)
    for k in range(K):
        gradient[block[k]] = gradient[block[k]].at[batch.X[:, k], jnp.where(here, i, I)].add(-1, mode="drop")
    if noise is not None:
        gradient = [noisy_counts(G, noise) for G in gradient]
    return loss, tuple(gradient)


@functools.partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
def add_gradient(total: Any, params: Any, batch: DecoderBatch, features: Features, mesh: Mesh) -> tuple[Array, Any]:
    """The loss of a batch, and `total` with its gradient added, without noise."""
    loss, gradient = loss_and_gradient(params, batch, features=features, noise=None, mesh=mesh)
    return loss, jax.tree.map(jnp.add, total, gradient)


@jax.jit
def _read_tables(U: Array, noise: Noise | None) -> Array:
    return U if noise is None else noisy_rows(U, noise)


def _rows_of(optimizer: optax.GradientTransformation, optimizer_state: Any, rows: tuple[Any, ...]) -> Any:
    """The optimiser's state with every array that goes with a table replaced by that table's rows."""
    return optax.tree_utils.tree_map_params(optimizer, lambda _, r: r, optimizer_state, rows)


def _keep_donated_in_place(mesh: Mesh) -> dict[str, Any] | None:
    """Compiler options: else XLA:CPU copies donated tables that a loop reads before they are written."""
    return {"xla_cpu_copy_insertion_use_region_analysis": True} if on_cpu(mesh) else None


def _take(state: Any, rows: Any) -> Any:
    return jax.tree.map(lambda leaf, r: leaf.at[r].get(mode="clip") if leaf.ndim == 2 else leaf, state, rows)


def _put(state: Any, part: Any, rows: Any) -> Any:
    return jax.tree.map(lambda leaf, new, r: _set_rows(leaf, new, r) if leaf.ndim == 2 else new, state, part, rows)


def _set_rows(table: Float[Array, "N I"], new: Float[Array, "R I"], rows: Int[Array, " R"]) -> Float[Array, "N I"]:
    """`table[rows] = new`, without the rows N at the end, which only fill."""

    def by_loop(table, new, rows):  # on a CPU faster than XLA's scatter of rows: a step by 1.2
        return lax.fori_loop(
            0, (rows < len(table)).sum(), lambda m, t: lax.dynamic_update_index_in_dim(t, new[m], rows[m], axis=0), table
        )

    def by_scatter(table, new, rows):
        return table.at[rows].set(new, mode="drop")

    return lax.platform_dependent(table, new, rows, cpu=by_loop, default=by_scatter)


def _padded(length: int, most: int) -> int:
    """The length rounded up, so that few shapes are compiled; a multiple of a block."""
    return -(-min(-(-length // _round_up) * _round_up, max(most, length)) // _block) * _block

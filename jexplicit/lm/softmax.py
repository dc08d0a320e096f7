"""The softmax layer on token contexts: logits, partition functions, loss.

A model is K tables [N, N] with the logits of a context `sum_k tables[k][x_k]`: a table per offset for Cat, the same one K
times for Sum. The loss needs one partition function per *different* context,
`NLL = sum_ctx n(ctx) log Z(ctx) - sum_k <C_k, U_k>`, and at K = 1 nothing but the counts.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Integer

from jexplicit.data.contexts import distinct_contexts
from jexplicit.runs.devices import AXIS, data_mesh, everywhere, on_cpu
from jexplicit.runs.processes import gather_over_processes, part_of_process

Tables = Sequence[Float[Array, "N N"]]

_contexts_per_call = 1 << 15  # of one device, at most
_positions_per_call = 1 << 18


def logits(tables: Tables, x: Integer[Array, " K"]) -> Float[Array, " N"]:
    """Logits of one context, `sum_k U_k[x_k]` = H U for one-hot H, in nats.

    Args:
        tables: K tables [N, N].
        x: [K] token ids, nearest first.

    Example:
        >>> logits([jnp.eye(2), 2 * jnp.eye(2)], jnp.array([0, 1])).tolist()
        [1.0, 2.0]

    Source: paper, Eq. 1 and Sec. 3.1.2.
    """
    rows = [table.at[x[k]].get(mode="promise_in_bounds") for k, table in enumerate(tables)]
    return functools.reduce(jnp.add, rows)


def log_partition(
    tables: Tables,
    X: Integer[np.ndarray, "M K"],
    *,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, " M"]:
    """`log Z(x) = log sum_i exp(logits(x)_i)` of many contexts, in nats, on the host.

    Only a block of logits exists at a time, small enough for a CPU's cache. The contexts are split over the mesh.
    """
    return map_contexts(_log_Z, tables, X, mesh=mesh, progress=progress)


def map_contexts(
    one: Callable[[Any, Array], Array],
    tables: Any,
    X: Integer[np.ndarray, "M K"],
    *,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """`one(tables, x)` for every row of X, block by block and device by device, gathered on the host.

    Several processes share the rows, and each gets the whole answer.

    `one` is compiled once per function object: pass a module-level function, not a lambda. The tables are whatever pytree of
    arrays it reads, a language model for one; they are placed on every device.
    """
    mesh = mesh or data_mesh(1)
    X = X[slice(*part_of_process(0, len(X)))]
    block = 64 if on_cpu(mesh) else 4096  # on a CPU, 64 rows of logits stay in the L2 cache
    calls = max(1, -(-len(X) // (_contexts_per_call * mesh.size)))
    blocks = max(1, -(-len(X) // (calls * block * mesh.size)))  # equal calls: little of the last one is padding
    call = blocks * block * mesh.size
    apply = compiled_map(one, mesh, block)
    tables, out = everywhere(tables, mesh), []
    for start in range(0, max(1, len(X)), call):
        part = np.zeros((call, X.shape[1]), np.int32)
        part[: len(X) - start] = X[start : start + call]
        out.append(np.asarray(apply(tables, part))[: len(X) - start])
        if progress:
            progress(min(start + call, len(X)), len(X))
    return gather_over_processes(np.concatenate(out))


def target_logits(tables: Tables, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """The logit `sum_k U_k[x_k, y]` of every position's own target, in nats, on the host.

    Summed over positions this is `sum_k <C_k, U_k>`.
    """
    parts = [
        np.asarray(_gather(tuple(tables), X[m : m + _positions_per_call], Y[m : m + _positions_per_call]))
        for m in range(0, len(Y), _positions_per_call)
    ]
    return np.concatenate(parts)


def negative_log_likelihood(
    tables: Tables,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    ordered: bool = True,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """`L = sum_ctx n(ctx) log Z(ctx) - sum_m logit(x_m)_{y_m}`, in nats, summed over positions in float64.

    Args:
        tables: K tables [N, N].
        X: [M, K] contexts, nearest token first.
        Y: [M] targets.
        ordered: False where all tables are the same (Sum), so that the order of a context does not matter.

    Raises:
        ValueError: no position to predict.

    Example:
        >>> tables = [jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))]
        >>> round(negative_log_likelihood(tables, np.array([[0], [1]]), np.array([0, 2])), 3)  # log 2 + log 4
        2.079

    Source: paper, Eq. 1.
    """
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    distinct, n = distinct_contexts(X, ordered=ordered)
    log_Z = log_partition(tables, distinct, mesh=mesh, progress=progress)
    return float(n @ log_Z.astype(np.float64) - target_logits(tables, X, Y).sum(dtype=np.float64))


def negative_log_likelihood_from_counts(U: Float[Array, "N I"], C: Integer[np.ndarray, "N I"]) -> float:
    """The loss at K = 1 from counts alone, `L = sum_j C(j) log Z(j) - <C, U>`, in nats, whatever the number of positions.

    Example:
        >>> C = np.array([[3, 1], [1, 1]])
        >>> round(negative_log_likelihood_from_counts(jnp.log(jnp.array(C)), C), 4)  # 4 H(3/4) + 2 H(1/2)
        3.6356

    Raises:
        ValueError: no position to predict.

    Source: paper, Eq. 1, at K = 1.
    """
    n = C.sum(axis=1)
    if not n.any():
        raise ValueError("no position to predict: the text has no tokens")
    log_Z = np.where(n > 0, np.asarray(_row_log_partition(U), np.float64), 0)  # 0 log 0 = 0: what never occurs costs nothing
    return float(n @ log_Z - _inner_product(C, np.asarray(U)))


def _inner_product(C: np.ndarray, U: np.ndarray) -> float:
    """`<C, U>` in float64, over the pairs that occur, by blocks of rows that stay in the cache."""

    def of_block(C: np.ndarray, U: np.ndarray) -> float:
        occurs = np.flatnonzero(C > 0)
        return float(np.dot(C.ravel()[occurs].astype(np.float64), U.ravel()[occurs].astype(np.float64)))

    return sum(of_block(C[j : j + 64], U[j : j + 64]) for j in range(0, len(C), 64))


def _log_Z(tables: Tables, x: Integer[Array, " K"]) -> Float[Array, ""]:
    return jax.nn.logsumexp(logits(tables, x))


@functools.cache
def compiled_map(one: Callable, mesh: Mesh, block: int):
    def shard(tables, X):
        return jax.lax.map(functools.partial(one, tables), X, batch_size=block)

    data = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=(PartitionSpec(), data), out_specs=data))


@jax.jit
def _gather(tables: tuple[Array, ...], X: Array, Y: Array) -> Array:
    X, Y = X.astype(jnp.int32), Y.astype(jnp.int32)
    return functools.reduce(jnp.add, [table[X[:, k], Y] for k, table in enumerate(tables)])


@jax.jit
def _row_log_partition(U: Array) -> Array:
    return jax.nn.logsumexp(U, axis=1)

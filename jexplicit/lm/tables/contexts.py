"""A function of every context of many, block by block and device by device."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Integer

from jexplicit.data.contexts import pad_to
from jexplicit.runs.devices import AXIS, default_mesh, on_cpu, replicate
from jexplicit.runs.processes import gather_over_processes, part_of_process

_contexts_per_call = 1 << 15  # of one device, at most
_columns_per_call = 1 << 16


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
    mesh = mesh or default_mesh()
    X = X[slice(*part_of_process(0, len(X)))]
    block = 64 if on_cpu(mesh) else 4096  # on a CPU, 64 rows of logits stay in the L2 cache
    calls = max(1, -(-len(X) // (_contexts_per_call * mesh.size)))
    blocks = max(1, -(-len(X) // (calls * block * mesh.size)))  # equal calls: little of the last one is padding
    call = blocks * block * mesh.size
    apply = compiled_map(one, mesh, block)
    tables, out = replicate(tables, mesh), []
    for start in range(0, max(1, len(X)), call):
        part = np.zeros((call, X.shape[1]), np.int32)
        part[: len(X) - start] = X[start : start + call]
        out.append(jax.device_get(apply(tables, part))[: len(X) - start])
        if progress:
            progress(min(start + call, len(X)), len(X))
    return gather_over_processes(np.concatenate(out))


@functools.cache
def compiled_map(one: Callable, mesh: Mesh, block: int):
    """`one(tables, x)` of all rows of X, divided over the mesh, `block` rows at a time."""

    def shard(tables, X):
        return jax.lax.map(functools.partial(one, tables), X, batch_size=block)

    data = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=(PartitionSpec(), data), out_specs=data))


def vmap_contexts(f: Callable[..., Any], tables: Any, *columns: Integer[np.ndarray, "M ..."]) -> Any:
    """`f(tables, x, ...)` of every position, which takes little memory, all at once on the default device: [M, ...]."""
    M, parts = len(columns[0]), []
    for m in range(0, max(1, M), _columns_per_call):
        own = [column[m : m + _columns_per_call] for column in columns]
        size = few_sizes(len(own[0]), 64)
        found = _vmapped(f)(tables, *(pad_to(column, size, 0) for column in own))
        parts.append(jax.tree.map(lambda part: part[: len(own[0])], jax.device_get(found)))  # noqa: B023
    return jax.tree.map(lambda *part: np.concatenate(part), *parts)


def few_sizes(n: int, least: int) -> int:
    """n or up to a quarter more, of few different numbers: shapes that are compiled.

    Example:
        >>> few_sizes(5, 64), few_sizes(1000, 64), few_sizes(1030, 64)
        (64, 1024, 1280)
    """
    step = 1 << max(0, max(n, least).bit_length() - 3)
    return -(-max(n, least) // step) * step


@functools.cache
def _vmapped(f: Callable[..., Any]) -> Any:
    return jax.jit(lambda tables, *columns: jax.vmap(functools.partial(f, tables))(*columns))

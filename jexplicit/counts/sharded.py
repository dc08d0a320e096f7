"""Co-occurrence counts whose columns are spread over devices: tables as large as all of their memories together.

Every device reads the whole stream and counts the pairs whose target it owns, so that nothing is left to reduce. Columns are
dealt round-robin by frequency: under Zipf's law a contiguous range would hold nearly all the work.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Integer
from scipy.sparse import csr_array, hstack

from jexplicit.counts.dense import add_pairs, zero_table
from jexplicit.counts.merging import INT32_CELLS, SparseCounts, sparse_table
from jexplicit.counts.stream import windows
from jexplicit.data.contexts import Stream, check_radius, check_stream, check_token_ids, pad_to
from jexplicit.runs.devices import AXIS, check_memory, data_mesh

_EVERYWHERE, _COLUMNS = PartitionSpec(), PartitionSpec(None, AXIS)


class ShardedCounts(NamedTuple):
    """C_1 .. C_K with the column of token i at `places[i]`: device d of D holds columns d S .. (d + 1) S - 1.

    tables: K tables [N, D S] of int32, sharded by column; S = ceil(N / D).
    places: [N] column of each output.
    f: [N] how often each token occurs in the stream.
    mesh: the devices.
    """

    tables: tuple[Integer[Array, "N DS"], ...]
    places: Int[np.ndarray, " N"]
    f: Int[np.ndarray, " N"]
    mesh: Mesh

    @property
    def vocab_size(self) -> int:
        """N, the number of token ids."""
        return len(self.places)


def places_by_frequency(f: Integer[np.ndarray, " N"], devices: int) -> Int[np.ndarray, " N"]:
    """The column of each token: the one of frequency rank r is column r // D of device r mod D.

    Example:
        >>> places_by_frequency(np.array([5, 9, 1]), 2).tolist()  # two columns per device
        [2, 0, 1]
    """
    N = len(f)
    rank = np.empty(N, np.int64)
    rank[np.argsort(-f, kind="stable")] = np.arange(N)
    return (rank % devices * -(-N // devices) + rank // devices).astype(np.int32)


def count_sharded(
    stream: Stream,
    *,
    radius: int,
    vocab_size: int,
    mesh: Mesh | None = None,
    chunk: int = 1 << 18,
    progress: Callable[[int, int], None] | None = None,
) -> ShardedCounts:
    """Co-occurrence counts `C_k[j, i]`, k = 1..radius, with the columns i spread over devices.

    All devices read the whole stream and each adds the pairs whose target it owns: the counts are those of
    `jexplicit.counts.dense.count`, and no device ever holds another's.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`: an array, a memory map, or shards, read twice.
        radius: K, the largest offset in tokens.
        vocab_size: N, the number of token ids.
        mesh: devices that share the columns; default, all of them.
        chunk: positions per step.
        progress: called with (positions done, positions in all) after every step.

    Raises:
        ValueError: a token id out of range, a malformed stream, chunk < 1, or a share of the table, or of the stream, whose
            numbers would overflow int32.

    Example:
        >>> counts = count_sharded(np.array([0, 1, 2, 0, 1, 0], np.uint8), radius=1, vocab_size=3, mesh=data_mesh(1))
        >>> np.asarray(counts.tables[0])[:, counts.places].tolist()
        [[0, 2, 0], [1, 0, 1], [1, 0, 0]]

    Source: paper, Eq. 2 and Sec. 3.1.
    """
    check_radius(radius)
    check_stream(stream)
    mesh = mesh or data_mesh()
    N, K, D = vocab_size, radius, mesh.size
    S = -(-N // D)  # columns per device
    if N * S > INT32_CELLS - 1:
        raise ValueError(
            f"vocabulary {N} on {D} devices: each holds {N} x {S} cells, and their ids overflow int32; use at least "
            f"{-(-N // max((INT32_CELLS - 1) // N, 1))} devices, or sparse counts (jexplicit.counts.sparse)"
        )
    positions = len(stream) - 1
    if positions >= INT32_CELLS:
        raise ValueError(f"{positions} positions: a cell may overflow int32; use sparse counts (jexplicit.counts.sparse)")
    if chunk < 1:
        raise ValueError(f"chunk of {chunk} positions: count at least one position per step")
    check_memory(mesh, 4 * K * N * S, "tables of counts")

    chunk = min(chunk, positions)
    read = functools.partial(windows, stream, 1, len(stream), radius=K, span=chunk)
    f = np.zeros(N, np.int64)
    for window in read():
        check_token_ids(window, N)
        f += np.bincount(window[K:], minlength=N)
    places = places_by_frequency(f, D)
    everywhere = NamedSharding(mesh, _EVERYWHERE)
    tables, step, done, counted = tuple(zero_table(mesh, N * S)() for _ in range(K)), _counting_step(mesh, K, S), 0, None
    placed = jax.device_put(np.append(places, D * S).astype(np.int32), everywhere)  # N, beyond the stream: no device's column
    for window in read():
        before = counted
        tables, counted = step(tables, placed, jax.device_put(pad_to(window, K + chunk, N), everywhere))
        jax.block_until_ready(before)  # two windows at a time: more would fill the memory
        done += len(window) - K
        if progress:
            progress(done, positions)
    return ShardedCounts(tuple(_as_table(mesh, N)(table) for table in tables), places, f, mesh)


@functools.cache
def _counting_step(mesh: Mesh, K: int, S: int):
    """Compiled `tables, places, block -> tables, done`: every device adds the pairs whose targets it owns to donated tables."""

    def add(tables, places, x):
        i = places[x[K:]] - jax.lax.axis_index(AXIS) * S  # column of the device's own share
        return add_pairs(tables, x, i, (0 <= i) & (i < S), S), x[:1] + 0

    shard = PartitionSpec(AXIS)
    specs = {"in_specs": (shard, _EVERYWHERE, _EVERYWHERE), "out_specs": shard}
    return jax.jit(jax.shard_map(add, mesh=mesh, **specs), donate_argnums=0)


@functools.cache
def _as_table(mesh: Mesh, N: int):
    """Compiled `[D N S] -> [N, D S]`, the same numbers on the same devices."""
    shard = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(lambda table: table.reshape(N, -1), mesh=mesh, in_specs=shard, out_specs=_COLUMNS))


def as_sparse(counts: ShardedCounts) -> SparseCounts:
    """The same counts as sparse tables on the host, for saving: one device's columns at a time are copied."""
    tables = []
    for table in counts.tables:
        shards = sorted(table.addressable_shards, key=lambda shard: shard.index[1].start or 0)
        by_device: Any = hstack([csr_array(np.asarray(shard.data)) for shard in shards], format="csr")
        C = by_device[:, counts.places]
        C.sort_indices()
        tables.append(sparse_table(C.data, C.indices, C.indptr))
    return tuple(tables)

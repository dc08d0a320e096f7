"""Co-occurrence counts F(H, Y) = HᵀY (paper, Eq. 2): dense, sparse, merged, in files.

Token features are one-hot, so `HᵀY` is a table of pair counts: `C_k[j, i]` positions have target i and token j at offset k.
Devices and processes count their own parts and meet in ONE reduction at the end.
"""

import functools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, Integer
from scipy.sparse import csr_array

from jexplicit.data.streams import Shards, Stream, check_context, check_stream, check_token_ids, context_columns, distinct_rows
from jexplicit.data.tokenizers import PAD, Progress
from jexplicit.runs.devices import (
    AXIS,
    check_memory,
    default_mesh,
    gather_over_processes,
    is_concrete,
    on_cpu,
    part_of_process,
    sum_over_processes,
)
from jexplicit.runs.files import local_path, refuse_errors, write_whole

Counts = tuple[Integer[np.ndarray, "N N"], ...]
"""C_1 .. C_K on the host: int32, or int64 once a cell could pass 2^31. Column PAD counts the ends of documents."""

SparseCounts = tuple[csr_array, ...]
"""The same with sorted columns in every row; `toarray` makes a table dense."""

INT32_CELLS = 2**31
_TABLES, _LAYOUT, _CSR = "tables.npz", 5, ("data", "indices", "indptr")
_chunk_positions = 1 << 18  # on a CPU; amortises the dispatch, and the block (0.5 MB of uint16) still fits the L2 cache
_chunk_elsewhere = 1 << 22
_least_chunk = 1 << 10
_block_positions = 1 << 20  # in a sparse table at once


def count(
    stream: Stream,
    *,
    context: int,
    vocab_size: int,
    mesh: Mesh | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Counts:
    """Counts of every target with the token k places before, k = 1..context.

    `C_k[j, i] = sum_m [x_{m-k} = j] [x_m = i]`, the ends of documents (i = PAD) included. Chunk size, devices and processes
    change the speed, never a count.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`, best in the smallest unsigned type: an array, a memory map, or
            `jexplicit.data.streams.Shards`, of which one window is in memory at a time.
        context, vocab_size: K, the tokens of a context, and N, the number of token ids.
        mesh: devices of this process to share its part of the work; default, all accelerators, or one CPU.
        chunk: positions that one device counts per step; default, 2^18 on a CPU and 2^22 elsewhere.
        progress: called with (positions done, positions in all), of this process, after every step.

    Returns:
        K tables [N, N], of all processes together, in each of them.

    Raises:
        ValueError: a token id out of range, a vocabulary whose flat ids overflow int32, a malformed stream, a damaged file.

    Example:
        >>> C, = count(np.array([0, 1, 2, 0, 1, 0], np.uint8), context=1, vocab_size=3)
        >>> C.tolist()  # rows: the context <pad>, 1, 2; columns: the target
        [[0, 2, 0], [1, 0, 1], [1, 0, 0]]

    Source: paper, Eq. 2 and Sec. 3.1.
    """
    K, N, mesh = context, vocab_size, mesh or default_mesh()
    check_context(K)
    if N * N > INT32_CELLS - 1:
        remedy = f"use a vocabulary of at most {int(np.sqrt(INT32_CELLS - 1))}"
        raise ValueError(f"vocabulary {N}: a dense table has {N * N} cells, and their ids overflow int32; {remedy}")
    chunk = (_chunk_positions if on_cpu(mesh) else _chunk_elsewhere) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk of {chunk} positions: count at least one position per step")
    check_memory(mesh, 4 * K * N * N, "tables of counts")
    first, last = _own_part(stream, K)
    each = max(_least_chunk, -(-(last - first) // mesh.size))
    chunk = min(chunk, 1 << (each - 1).bit_length())  # few sizes are compiled
    D, span, sharding = mesh.size, chunk * mesh.size, NamedSharding(mesh, PartitionSpec(AXIS))
    total: Counts = ()  # on the host
    tables: list[jax.Array] = []  # on devices
    counted, unmerged = None, 0
    for window in windows(stream, first, last, context=K, span=span, progress=progress):
        check_token_ids(window, N)
        if unmerged + span >= INT32_CELLS:  # no cell can have passed 2^31 yet
            total, unmerged = merge_counts(total, _on_host(tables, N)), 0
        if not tables:  # flat: with an axis of devices a TPU would copy them
            tables = [jnp.zeros(D * N**2, jnp.int32, device=sharding) for _ in range(K)]
        padded = np.pad(window, (0, span + K - len(window)))  # a block of K + chunk tokens for each device
        blocks = np.stack([padded[start : start + K + chunk] for start in range(0, span, chunk)])
        lengths = np.clip(len(window) - K - chunk * np.arange(D), 0, chunk).astype(np.int32)
        placed = jax.device_put((blocks, lengths), sharding)
        before = counted
        [*tables], counted = counting_step(mesh, K, N)(tuple(tables), *placed)
        jax.block_until_ready(before)  # the window before: more than two at a time would fill the memory
        unmerged += span
    total = merge_counts(total, _on_host(tables, N)) or (np.zeros((N, N), np.int32),) * K  # of a process without a position
    return tuple(map(sum_over_processes, total))


@functools.cache
def counting_step(mesh: Mesh, K: int, N: int):
    """Compiled `tables, blocks, lengths -> tables, done`; it donates the tables.

    For each position, 1 is added to the cell (token k places back, target) of every flat table: 2.5 times as fast as
    `segment_sum`, which fills a new table for every block (N = 4098, K = 4, blocks of 2^18, on a CPU).
    """

    def add(tables, blocks, lengths):
        x = blocks[0].astype(jnp.int32)
        counted = jnp.arange(len(x) - K, dtype=jnp.int32) < lengths[0]
        ids = (jnp.where(counted, j * N + x[K:], N * N) for j in context_columns(x, K))  # those past the table are dropped
        return tuple(table.at[i].add(1, mode="drop") for table, i in zip(tables, ids, strict=True)), lengths + 0

    shard = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(add, mesh=mesh, in_specs=(shard, shard, shard), out_specs=shard), donate_argnums=0)


@functools.partial(jax.jit, static_argnums=1)
def _sum_devices(table: jax.Array, cells: int) -> jax.Array:
    return table.reshape(-1, cells).sum(axis=0, dtype=jnp.int32)


def _on_host(tables: list[jax.Array], N: int) -> Counts:
    """The tables of all devices together; each is freed before the next is fetched."""
    counts = []
    while tables:
        table = tables.pop(0)
        counts.append(np.asarray(table if len(table) == N * N else _sum_devices(table, N * N)).reshape(N, N))
    return tuple(counts)


def _own_part(stream: Stream, K: int) -> tuple[int, int]:
    """The targets first .. last - 1 of this process, in verified files."""
    first, last = part_of_process(1, len(stream))
    if isinstance(stream, Shards):
        stream.verify(max(first - K, 0), last)
    return first, last


def windows(
    stream: Stream, first: int, last: int, *, context: int, span: int, progress: Progress | None = None
) -> Iterator[np.ndarray]:
    """Windows of a range, each after `context` tokens; the next is read ahead.

    >>> [w.tolist() for w in windows(np.array([0, 5, 6, 0]), 1, 4, context=1, span=2)]
    [[0, 5, 6], [6, 0]]
    """
    check_stream(stream)

    def read(start: int) -> np.ndarray:
        tokens = np.asarray(stream[max(start - context, 0) : min(start + span, last)])
        return np.concatenate([np.full(max(context - start, 0), PAD, tokens.dtype), tokens])

    with ThreadPoolExecutor(1, "reader") as reader:
        ahead = reader.submit(read, first)
        for start in range(first, last, span):
            tokens = ahead.result()
            ahead = reader.submit(read, start + span) if start + span < last else ahead
            yield tokens
            if progress:
                progress(min(start + span, last) - first, last - first)


def window_pairs(window: np.ndarray, context: int, vocab_size: int) -> SparseCounts:
    """Sparse tables of the targets `window[K:]` with the K tokens before each."""
    check_token_ids(window, N := vocab_size)
    tables = []
    for j in context_columns(window, context):
        C = csr_array((np.ones(len(j), np.int32), (j, window[context:])), shape=(N, N))
        C.sum_duplicates()
        tables.append(C)
    return tuple(tables)


def count_sparse(stream: Stream, *, context: int, vocab_size: int, progress: Progress | None = None) -> SparseCounts:
    """The counts of `count` as sparse tables, for vocabularies that no dense table holds.

    >>> C, = count_sparse(np.array([0, 1, 2, 0, 1, 0], np.uint8), context=1, vocab_size=3)
    >>> C.nnz, C[0, 1].item()
    (4, 2)
    """
    check_context(context)
    if not 1 <= (N := vocab_size) <= 2**31:
        raise ValueError(f"vocabulary {N}: sparse counts take token ids below 2^31; use 1 <= N <= 2^31")
    parts = windows(stream, *_own_part(stream, context), context=context, span=_block_positions, progress=progress)
    counts = sum_tables(window_pairs(window, context, N) for window in parts)
    counts = counts or (csr_array((N, N), dtype=np.int32),) * context
    if jax.process_count() == 1:
        return counts
    merged = ()
    for C in counts:  # of all processes, one below the other, in each of them
        cells, columns = gather_over_processes(C.data.astype(np.int64)), gather_over_processes(C.indices)
        in_rows = gather_over_processes(np.diff(C.indptr).astype(np.int64))
        below = sparse_table(cells, columns, np.append(0, np.cumsum(in_rows)), vocab_size=N)
        merged += merge_counts(*((below[start : start + N],) for start in range(0, len(in_rows), N)))
    return merged


def counted_context(counts: Counts | SparseCounts, context: int | None) -> int:
    """The length K of contexts of valid counts; default, all counted offsets."""
    if not len(counts):
        raise ValueError("no counts: count a text first, with jexplicit.count")
    K = len(counts) if context is None else context
    if not 1 <= K <= len(counts):
        remedy = f"count with context={context}" if K > 0 else "use at least 1"
        raise ValueError(f"context {context} with counts of offsets 1..{len(counts)}: {remedy}")
    tables: Any = counts[:K] if is_concrete(counts[0]) else ()
    if tables and not 0 < (total := float(tables[0].sum(dtype=np.float64))) < np.inf:
        raise ValueError(f"counts with a sum of {total:g}: count a text with at least one token")
    for C in tables:
        if C.shape != (C.shape[0],) * 2 or C.min() < 0 or (C.dtype.kind == "f" and (C % 1).any()):
            raise ValueError(f"counts {C.shape} from {C.min()} to {C.max()}: pass tables [N, N] of whole numbers of at least 0")
    return K


# Tables, their sums and files


def merge_counts(*parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Summed counts of several texts, in int64 if a cell could pass 2^31.

    parts: `Counts`, or `SparseCounts`, of one context length and vocabulary; an empty tuple is the counts of no text.

    >>> C = (np.full((1, 1), 2**31 - 1, np.int32),)
    >>> merge_counts(C, C)[0].item(), merge_counts(C, C)[0].dtype.name
    (4294967294, 'int64')
    """
    parts = tuple(counts for counts in parts if counts)
    if len(parts) < 2:
        return parts[0] if parts else ()
    K, N = len(parts[0]), parts[0][0].shape[0]
    for counts in parts:
        if (len(counts), *counts[0].shape) != (K, *parts[0][0].shape):
            other = f"{len(counts)} offsets and vocabulary {counts[0].shape[0]}: count both with the same context and tokenizer"
            raise ValueError(f"counts of {K} offsets and vocabulary {N} do not merge with {other}")
        if not all(np.issubdtype(C.dtype, np.integer) and C.shape == counts[0].shape and C.min() >= 0 for C in counts):
            found = ", ".join(f"{C.dtype} {C.shape} from {C.min()}" for C in counts)
            raise ValueError(f"counts of {found}: pass tables of integers of at least 0, all of one shape, as counted")
    return sum_tables(parts)


def sum_tables(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The summed tables of parts that arrive one by one; () for no part."""
    sums: list[tuple[Any, ...]] = []

    def merge_last() -> None:
        sums[-2:] = [tuple(_add_tables(x, y) for x, y in zip(*sums[-2:], strict=True))]

    for part in parts:
        sums.append(part)
        while len(sums) > 1 and sums[-2][0].size < 2 * sums[-1][0].size:
            merge_last()
    while len(sums) > 1:  # the smallest first
        merge_last()
    return sums[0] if sums else ()


def merge_offsets(counts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The one table `sum_k C_k`, for a table that all offsets share."""
    return merge_counts(*((C,) for C in counts))


def _add_tables(x: Any, y: Any) -> Any:
    """The sum of two tables, in int64 where a cell could pass 2^31."""
    dtype = np.int32 if int(x.max()) + int(y.max()) < INT32_CELLS else np.int64
    return (x.astype(dtype, copy=False) + y).astype(dtype, copy=False)


def sparse_table(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, *, vocab_size: int | None = None) -> csr_array:
    """A table of sorted CSR arrays; vocab_size: columns, default square."""
    rows = len(indptr) - 1
    return csr_array((data, indices, indptr), shape=(rows, vocab_size or rows))


def write_tables(folder: str | os.PathLike, counts: SparseCounts, *, tokenizer: str = "") -> None:
    """Write the counts of a text, with the hash of its tokenizer."""
    arrays = {f"{part}_{k}": getattr(C, part) for k, C in enumerate(counts, 1) for part in _CSR}
    about = {"layout": _LAYOUT, "context": len(counts), "tokenizer": tokenizer}
    write_whole(local_path(folder) / _TABLES, lambda file: np.savez(file, **arrays, **about))


def read_tables(folder: str | os.PathLike, *, tokenizer: str | None = None) -> SparseCounts:
    """The counts of `write_tables`, of a tokenizer (its hash)."""
    path = local_path(folder) / _TABLES
    if not path.exists():
        raise ValueError(f"{folder} holds no whole counts: write them with launch.beam")
    refusing = refuse_errors(f"{path} is damaged or of another version", "count again")
    with refusing, open(path, "rb") as file, np.load(file) as stored:
        if stored["layout"] != _LAYOUT:
            raise ValueError(f"layout {stored['layout']}")
        tables = tuple(sparse_table(*(stored[f"{part}_{k + 1}"] for part in _CSR)) for k in range(stored["context"]))
        found = stored["tokenizer"].item()
    if tokenizer not in (None, found):
        raise ValueError(f"{folder} holds counts of another tokenizer: count again with this one")
    return tables


# Contexts of several tokens


class ContextLevel(NamedTuple):
    """The contexts of one length, numbered in the order of ids.

    contexts: sorted keys `number of the shorter context * N + id`; for single ids, all of them.
    start, outputs: context c has the targets outputs[start[c] : start[c + 1]], sorted.
    counts: of the longest contexts how often it did; of shorter ones in how many contexts that are an id longer.
    """

    contexts: Int[np.ndarray, " C"]
    start: Int[np.ndarray, " C_plus_1"]
    outputs: Integer[np.ndarray, " E"]
    counts: Int[np.ndarray, " E"]

    def part(self, c: slice) -> "ContextLevel":
        """Some contexts beside each other."""
        pairs = slice(self.start[c.start], self.start[c.stop])
        start = self.start[c.start : c.stop + 1] - pairs.start
        return ContextLevel(self.contexts[c], start, self.outputs[pairs], self.counts[pairs])

    def of_pairs(self, values: np.ndarray) -> np.ndarray:
        """The value of its context for every pair."""
        return np.repeat(values, np.diff(self.start))

    def keys(self, contexts: Int[np.ndarray, " C"], N: int) -> Int[np.ndarray, " E"]:
        """`context * N + target` of every pair, with other numbers for the contexts."""
        keys = self.of_pairs(np.multiply(contexts, N, dtype=np.int64))
        keys += self.outputs
        return keys


def count_contexts(X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], vocab_size: int) -> list[ContextLevel]:
    """Count the contexts of 1, 2, ... K tokens (nearest first) before the targets."""
    N = vocab_size
    (number, *longer, y), n = distinct_rows([*X.T, Y])
    begins = np.concatenate([[True], number[1:] != number[:-1]])
    contexts, start = [np.arange(N)], starts_of(number, N)
    for c in longer:
        begins[1:] |= c[1:] != c[:-1]
        first = np.flatnonzero(begins).astype(start.dtype)
        contexts.append(np.multiply(number[first], N, dtype=np.int64) + c[first])
        number = np.cumsum(begins, dtype=np.int32) - 1
        start = np.append(first, start[-1:])
    small = np.min_scalar_type(N - 1)
    pairs = [(start, y.astype(small), n.astype(np.int32))]
    del number, y, n, longer, begins, start  # large, as is all that follows
    for level in range(len(contexts) - 1, 0, -1):
        keys = ContextLevel(contexts[level], *pairs[-1]).keys(contexts[level] // N, N)
        keys, n = np.unique(keys, return_counts=True)
        context, y = quotient_and_rest(keys, N)
        pairs.append((starts_of(context, len(contexts[level - 1])), y.astype(small), n.astype(np.int32)))
        del keys, context, y, n
    return [ContextLevel(c, *pair) for c, pair in zip(contexts, reversed(pairs), strict=True)]


def quotient_and_rest(keys: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Quotient and remainder; NumPy's own take ten times as long."""
    quotient = keys // size
    rest = quotient * size
    return quotient, np.subtract(keys, rest, out=rest)


def starts_of(numbers: np.ndarray, n: int) -> np.ndarray:
    """Where each of n numbers starts among sorted ones."""
    start = np.zeros(n + 1, np.int32 if len(numbers) < 1 << 31 else np.int64)
    np.cumsum(np.bincount(numbers, minlength=n), out=start[1:])
    return start


def sum_runs(values: np.ndarray, start: Int[np.ndarray, " C_plus_1"]) -> np.ndarray:
    """`sum_e values[e]` over start[c] <= e < start[c + 1], for many short runs."""
    until = np.concatenate([[0], np.cumsum(values)])
    return until[start[1:]] - until[start[:-1]]

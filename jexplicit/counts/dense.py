"""Co-occurrence counts F(H, Y) = HᵀY (paper, Eq. 2), in one pass.

Token features are one-hot, so `HᵀY` is a table of pair counts: `C_k[j, i]` positions have target i and token j at offset k.
The counts are integers from end to end and are all that a fit needs: Sum, Cat, every radius up to the counted one, and the
noise model follow from them. A pair's id is the flat `j * N + i`, added into a donated table; devices and processes count
their own parts of the stream and meet in ONE reduction at the end.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jexplicit.counts.merging import INT32_CELLS, Counts, SparseCounts, add_tables
from jexplicit.counts.stream import Saving, feed
from jexplicit.data.contexts import Stream, check_radius, check_token_ids, context_columns
from jexplicit.runs.checks import is_concrete
from jexplicit.runs.devices import AXIS, check_memory, default_mesh, on_cpu, part_of_process, sum_over_processes

_chunk_positions = 1 << 18  # on a CPU; amortises the dispatch, and the block (0.5 MB of uint16) still fits the L2 cache
_chunk_elsewhere = 1 << 22
_least_chunk = 1 << 10


def count(
    stream: Stream,
    *,
    radius: int,
    vocab_size: int,
    mesh: Mesh | None = None,
    chunk: int | None = None,
    saving: Saving | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Counts:
    """Counts of every target with the token k places before, k = 1..radius.

    `C_k[j, i] = sum_m [x_{m-k} = j] [x_m = i]`, the ends of documents (i = PAD) included. Chunk size, number of devices,
    number of processes and interruptions change the speed, never a count.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`, best in the smallest unsigned type: an array, a memory map, or
            `jexplicit.data.shards.Shards`, of which one window is in memory at a time.
        radius: K, the largest offset in tokens.
        vocab_size: N, the number of token ids.
        mesh: devices of this process to share its part of the work; default, all accelerators, or one CPU.
        chunk: positions that one device counts per step; default, 2^18 on a CPU and 2^22 elsewhere.
        saving: where partial counts are saved, from which a killed pass continues; default, nowhere.
        progress: called with (positions done, positions in all), of this process, after every step.

    Returns:
        K tables [N, N], of all processes together, in each of them.

    Raises:
        ValueError: a token id out of range, a vocabulary whose flat ids would overflow int32, a malformed stream, chunk < 1,
            a damaged shard or partial count.

    Example:
        >>> C, = count(np.array([0, 1, 2, 0, 1, 0], np.uint8), radius=1, vocab_size=3)
        >>> C.tolist()  # rows: the context <pad>, 1, 2; columns: the target
        [[0, 2, 0], [1, 0, 1], [1, 0, 0]]

    Source: paper, Eq. 2 and Sec. 3.1.
    """
    first, last = part_of_process(1, len(stream))
    counter = DenseCounter(radius=radius, vocab_size=vocab_size, mesh=mesh, chunk=chunk, positions=last - first)
    feed(counter, stream, first, last, saving=saving, progress=progress)
    return sum_over_processes(counter.tables())


class DenseCounter:
    """Adds windows of a stream into tables on the devices of a mesh.

    Args:
        radius: K.
        vocab_size: N.
        mesh: default, that of `count`.
        chunk: positions of a device per window; default as in `count`.
        positions: how many there are in all, if known: a short stream gets smaller chunks.

    Raises:
        ValueError: K < 1, chunk < 1, a vocabulary whose flat ids would overflow int32, tables that memory cannot hold.

    Example:
        >>> counter = DenseCounter(radius=1, vocab_size=3)
        >>> counter.add(np.array([0, 1, 2])), counter.add(np.array([2, 0]))
        (None, None)
        >>> counter.tables()[0].tolist()
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    """

    def __init__(
        self, *, radius: int, vocab_size: int, mesh: Mesh | None = None, chunk: int | None = None, positions: int | None = None
    ):
        N, K = vocab_size, radius
        check_radius(K)
        if N * N > INT32_CELLS - 1:
            raise ValueError(
                f"vocabulary {N}: a dense table has {N * N} cells, and their ids overflow int32; use a vocabulary of at most "
                f"{int(np.sqrt(INT32_CELLS - 1))}"
            )
        self.radius, self.vocab_size = K, N
        self._mesh = mesh or default_mesh()
        if chunk is None:
            chunk = _chunk_positions if on_cpu(self._mesh) else _chunk_elsewhere
        if chunk < 1:
            raise ValueError(f"chunk of {chunk} positions: count at least one position per step")
        each = max(_least_chunk, -(-(positions or 0) // self._mesh.size))
        self._chunk = chunk if positions is None else min(chunk, 1 << (each - 1).bit_length())  # few sizes are compiled
        check_memory(self._mesh, 4 * K * N * N, "tables of counts")
        self._total: Counts = ()  # on the host, of what is no longer in the devices' tables
        self._tables: tuple[jax.Array, ...] = ()
        self._counted: jax.Array | None = None  # there once the devices have counted the last window
        self._unmerged = 0

    @property
    def span(self) -> int:
        """Preferred number of positions per `add`: those that the devices count in one step."""
        return self._chunk * self._mesh.size

    def add(self, window: np.ndarray) -> None:
        """Count the positions of `window[K:]` while the devices work.

        Raises:
            ValueError: a token id out of range.
        """
        check_token_ids(window, self.vocab_size)
        if self._unmerged + self.span >= INT32_CELLS:  # no cell can have passed 2^31 yet
            self._merge()
        K, D, sharding = self.radius, self._mesh.size, NamedSharding(self._mesh, PartitionSpec(AXIS))
        if not self._tables:  # flat: with an axis of devices a TPU would copy them
            self._tables = tuple(jnp.zeros(D * self.vocab_size**2, jnp.int32, device=sharding) for _ in range(K))
        padded = np.pad(window, (0, self.span + K - len(window)))  # a block of K + chunk tokens for each device
        blocks = np.stack([padded[start : start + K + self._chunk] for start in range(0, self.span, self._chunk)])
        lengths = np.clip(len(window) - K - self._chunk * np.arange(D), 0, self._chunk).astype(np.int32)
        step = counting_step(self._mesh, self.radius, self.vocab_size)
        self._tables, counted = step(self._tables, jax.device_put(blocks, sharding), jax.device_put(lengths, sharding))
        jax.block_until_ready(self._counted)  # of the window before: more than two at a time would fill the memory
        self._counted = counted
        self._unmerged += self.span

    def tables(self) -> Counts:
        """The counts so far, in host memory."""
        self._merge()
        N = self.vocab_size
        return self._total or tuple(np.zeros((N, N), np.int32) for _ in range(self.radius))

    def state(self) -> dict[str, np.ndarray]:
        """The counts so far, by name."""
        return {f"C_{k}": C for k, C in enumerate(self.tables(), 1)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from the `state` of another counter."""
        self._total = tuple(state[f"C_{k}"] for k in range(1, self.radius + 1))

    def _merge(self) -> None:
        """The devices' tables added to the host's, offset by offset."""
        new, old, merged = list(self._tables), list(self._total), []
        self._tables, self._total = (), ()
        while new:
            counted = _reduce(new.pop(0), self.vocab_size)
            merged.append(add_tables(old.pop(0), counted) if old else counted)
        self._total, self._unmerged = (*merged, *old), 0


def counted_radius(counts: Counts | SparseCounts, radius: int | None) -> int:
    """The radius K <= K' to use; default, all K' counted offsets.

    Raises:
        ValueError: a radius that was not counted; no counts, or such that are NaN, negative, fractions or all zero.
    """
    if not len(counts):
        raise ValueError("no counts: count a text first, with jexplicit.counts.dense.count")
    K = len(counts) if radius is None else radius
    if not 1 <= K <= len(counts):
        remedy = f"count with a radius of at least {radius}" if K > 0 else "use a radius of at least 1"
        raise ValueError(f"radius {radius} with counts of offsets 1..{len(counts)}: {remedy}")
    if is_concrete(counts[0]) and not 0 < (total := float(counts[0].sum(dtype=np.float64))) < np.inf:
        raise ValueError(f"counts with a sum of {total:g}: count a text with at least one token")
    tables: Any = counts[:K] if is_concrete(counts[0]) else ()
    for C in tables:
        if C.shape != (C.shape[0],) * 2 or C.min() < 0 or (C.dtype.kind == "f" and (C % 1).any()):
            raise ValueError(f"counts {C.shape} from {C.min()} to {C.max()}: pass tables [N, N] of whole numbers of at least 0")
    return K


@functools.cache
def counting_step(mesh: Mesh, K: int, N: int):
    """Compiled `tables, blocks, lengths -> tables, done`; it donates the tables.

    For each position, 1 is added to the cell (token k places back, target) of every flat table: a scatter into one axis is the
    fastest.
    """

    def add(tables, blocks, lengths):
        x = blocks[0].astype(jnp.int32)
        counted = jnp.arange(len(x) - K, dtype=jnp.int32) < lengths[0]
        ids = (jnp.where(counted, j * N + x[K:], N * N) for j in context_columns(x, K))  # those past the table are dropped
        return tuple(table.at[i].add(1, mode="drop") for table, i in zip(tables, ids, strict=True)), lengths + 0

    shard = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(add, mesh=mesh, in_specs=(shard, shard, shard), out_specs=shard), donate_argnums=0)


def _reduce(table: jax.Array, N: int) -> np.ndarray:
    """One table of all devices together, on the host."""
    return np.asarray(table if len(table) == N * N else _sum_devices(table, N * N)).reshape(N, N)


@functools.partial(jax.jit, static_argnums=1)
def _sum_devices(table: jax.Array, cells: int) -> jax.Array:
    return table.reshape(-1, cells).sum(axis=0, dtype=jnp.int32)

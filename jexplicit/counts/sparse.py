"""Co-occurrence counts of large vocabularies, as sparse tables made by sorting.

A dense table has N² cells, most of them zero: with 128,000 tokens it takes 65 GB. Here a block of pairs becomes sorted
keys `j * N + i`, which runs of equal keys turn into counts: a sparse table. The tables of all blocks are merged as they come
(jexplicit.counts.merging).

Two thirds of the time is NumPy's sort. On AMD processors of family 25 (Zen 4) its AVX-512 version takes five times as long as
the one for AVX2, which NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL" in the environment brings back.
"""

from collections.abc import Callable

import jax
import numpy as np

from jexplicit.counts.contexts import rows_of_keys, tally
from jexplicit.counts.merging import CSR, MergeTree, SparseCounts, merge_counts, sparse_table
from jexplicit.counts.stream import Saving, feed
from jexplicit.data.contexts import Stream, check_radius, check_token_ids, context_columns
from jexplicit.runs.devices import gather_over_processes, part_of_process

_block_positions = 1 << 20  # sorted at once: the keys of one offset are 8 MB


class SparseCounter:
    """Counts by window: `C_k[j, i] = sum_m [x_{m-k} = j] [x_m = i]`.

    Args:
        radius: K, the largest offset in tokens.
        vocab_size: N, the number of token ids.

    Raises:
        ValueError: K < 1, N < 1 or N > 2^31.

    Example:
        >>> counter = SparseCounter(1, 3)
        >>> counter.add(np.array([0, 1, 2, 0, 1, 0]))
        >>> C, = counter.tables()
        >>> C.toarray().tolist()  # rows: the context <pad>, 1, 2; columns: the target
        [[0, 2, 0], [1, 0, 1], [1, 0, 0]]

    Source: paper, Eq. 2 and Sec. 3.1.
    """

    def __init__(self, radius: int, vocab_size: int):
        check_radius(radius)
        if not 1 <= vocab_size <= 2**31:
            raise ValueError(f"vocabulary {vocab_size}: sparse counts take token ids below 2^31; use 1 <= N <= 2^31")
        self.radius, self.vocab_size = radius, vocab_size
        self._keys: list[list[np.ndarray]] = [[] for _ in range(radius)]
        self._waiting = 0  # positions in _keys
        self._trees = [MergeTree(vocab_size) for _ in range(radius)]

    @property
    def span(self) -> int:
        """Preferred number of positions per `add`: one block."""
        return _block_positions

    def add(self, window: np.ndarray) -> None:
        """Count the targets `window[K:]` with the K tokens before each.

        Raises:
            ValueError: a window that is not of integers or shorter than K, or a token id out of range.
        """
        K, N = self.radius, self.vocab_size
        window = np.asarray(window)
        if window.ndim != 1 or not np.issubdtype(window.dtype, np.integer) or len(window) < K:
            raise ValueError(
                f"a {window.dtype} window of shape {window.shape}: pass one axis of integers, K = {K} context tokens before "
                "the targets"
            )
        check_token_ids(window, N)
        key_type = np.uint32 if N * N <= 2**32 else np.int64
        for start in range(0, len(window) - K, _block_positions):
            part = window[start : start + K + _block_positions]
            i = part[K:].astype(key_type)
            for keys, j in zip(self._keys, context_columns(part, K), strict=True):
                keys.append(j.astype(key_type) * key_type(N) + i)
            self._waiting += len(i)
            if self._waiting >= _block_positions:
                self._sort()

    def tables(self) -> SparseCounts:
        """C_1 .. C_K of all windows so far; counting may go on afterwards."""
        self._sort()
        return tuple(tree.total() for tree in self._trees)

    def state(self) -> dict[str, np.ndarray]:
        """The counts so far, as named arrays."""
        return {f"{name}_{k}": getattr(C, name) for k, C in enumerate(self.tables(), 1) for name in CSR}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from the `state` of another counter."""
        for k, tree in enumerate(self._trees, 1):
            tree.add(sparse_table(*(state[f"{name}_{k}"] for name in CSR)))

    def _sort(self) -> None:
        """Turn the waiting keys into one table per offset."""
        if not self._waiting:
            return
        N = self.vocab_size
        for tree, waiting in zip(self._trees, self._keys, strict=True):
            keys, n = tally(np.concatenate(waiting))
            waiting.clear()
            start, outputs, n = rows_of_keys(keys, n, N, N)
            tree.add(sparse_table(n, outputs, start))
        self._waiting = 0


def count_sparse(
    stream: Stream,
    *,
    radius: int,
    vocab_size: int,
    saving: Saving | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SparseCounts:
    """The counts of `jexplicit.counts.dense.count` as sparse tables, for vocabularies that no dense table holds.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`: an array, a memory map, or shards.
        radius: K, the largest offset in tokens.
        vocab_size: N, the number of token ids.
        saving: where partial counts are saved, from which a killed pass continues; default, nowhere.
        progress: called with (positions done, positions in all), of this process.

    Returns:
        K tables [N, N], of all processes together, in each of them.

    Raises:
        ValueError: a token id out of range, a malformed stream, or an error of `SparseCounter`.

    Example:
        >>> C, = count_sparse(np.array([0, 1, 2, 0, 1, 0], np.uint8), radius=1, vocab_size=3)
        >>> C.nnz, C[0, 1].item()
        (4, 2)
    """
    counter = SparseCounter(radius, vocab_size)
    first, last = part_of_process(1, len(stream))
    feed(counter, stream, first, last, saving=saving, progress=progress)
    return _sum_over_processes(counter.tables())


def _sum_over_processes(counts: SparseCounts) -> SparseCounts:
    """The tables of all processes merged, in each of them."""
    if jax.process_count() == 1:
        return counts
    merged, N = (), len(counts[0].indptr) - 1
    for C in counts:
        cells, columns = gather_over_processes(C.data.astype(np.int64)), gather_over_processes(C.indices)
        in_rows = gather_over_processes(np.diff(C.indptr).astype(np.int64))
        below = sparse_table(cells, columns, np.append(0, np.cumsum(in_rows)), vocab_size=N)  # one process below the other
        merged += merge_counts(*((below[first : first + N],) for first in range(0, len(in_rows), N)))
    return merged

"""Counts of contexts of a text beyond memory: the contexts that begin with some ids at a time, each such range in a file.

The nearest ids are the first digits of a context's key (jexplicit.counts.contexts). Positions are cut into ranges by their two
nearest ids, `key = nearest * N + second`, and so contexts of two and more ids never meet between ranges: the levels that are
counted in each, one after the other, are those of the whole text. Only contexts of a single id are merged, which are pairs
(jexplicit.counts.merging). The text is read once for every range, and ranges are as large as the memory allows. A range that is
on disk is not counted again, and several processes count different ones.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int, Integer

from jexplicit.counts.contexts import ContextLevel, count_contexts, distinct_positions
from jexplicit.counts.merging import MergeTree, sparse_table
from jexplicit.counts.stream import checksums, windows
from jexplicit.data.contexts import PAD, Stream, check_stream, check_token_ids, context_columns
from jexplicit.data.corpus.shards import Shards
from jexplicit.runs.arrays import load_arrays, save_arrays
from jexplicit.runs.files import make_folder, write_whole
from jexplicit.runs.processes import barrier, check_equal_across_processes, is_first

_bytes_per_position = 128  # while the contexts of a range are counted, or smoothed
_most_readings = 256  # of the text
_fullest = 7 / 8  # of the positions that fit into memory, when they are reduced to the different ones
_window = 1 << 20  # positions read at a time
_ABOUT = "about.json"


class Disk(NamedTuple):
    """Where and how contexts are counted beyond memory.

    folder: of the ranges; empty or missing at the start. What is there is continued, and stays until it is removed.
    memory: bytes that counting may take beside the program and a window of the text.
    """

    folder: Path
    memory: int

    def of(self, offsets: Sequence[int]) -> "Disk":
        """The folder in this one for contexts at some offsets."""
        return self._replace(folder=self.folder / "_".join(map(str, offsets)))


class Range(NamedTuple):
    """Positions whose keys are first .. last - 1, and how many there are."""

    first: int
    last: int
    positions: int


class TextContexts(NamedTuple):
    """The contexts of a text that are counted on disk: the arguments of `count_ranges`."""

    stream: Stream
    offsets: Sequence[int]
    vocab_size: int
    disk: Disk
    eos: bool = False

    @property
    def most(self) -> int:
        """How many positions the memory holds."""
        return self.disk.memory // _bytes_per_position

    @property
    def keys_per_id(self) -> int:
        """How many keys have the same nearest id."""
        return self.vocab_size if len(self.offsets) > 1 else 1

    def path(self, keys: Range) -> Path:
        """The file of a range."""
        return self.disk.folder / f"keys_{keys.first}_to_{keys.last}.npz"

    def positions(self, low: int, high: int) -> Iterator[Integer[np.ndarray, "offsets_and_target M"]]:
        """Ids and targets of the predicted positions whose nearest id is low .. high, a window of the text at a time."""
        K, nearest = max(self.offsets), self.offsets[0]
        for tokens in windows(self.stream, 1, len(self.stream), radius=K, span=_window):
            check_token_ids(tokens, self.vocab_size)
            j, y = context_columns(tokens[K - nearest :], nearest)[-1], tokens[K:]
            own = np.flatnonzero((j >= low) & (j <= high) & (self.eos | (y != PAD)))
            columns = context_columns(tokens[own + np.arange(K + 1)[:, None]], K)  # [1, M] each
            yield np.concatenate([*(columns[offset - 1] for offset in self.offsets), y[None, own]])


def count_ranges(
    stream: Stream,
    *,
    offsets: Sequence[int],
    vocab_size: int,
    disk: Disk,
    eos: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Count the contexts of a stream at some offsets, a range of nearest ids at a time, and leave each in a file.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`: an array, a memory map, or shards.
        offsets: how far back the tokens of a context are, in the order in which it grows.
        vocab_size: N, the number of token ids.
        disk: folder and memory. Folder and text are the same for all processes.
        eos: whether the `<pad>` after each document is a target too.
        progress: called with (positions counted, positions in all).

    Returns:
        the files of all ranges in the order of their keys, each for `read_levels`.

    Raises:
        ValueError: a malformed stream or one without a position, offsets that are not different, a token id out of range, a
            memory too small, a folder that is full or holds contexts of another text, a damaged file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stream, disk = np.array([0, 1, 2, 1, 0]), Disk(Path(folder), 1000)
        ...     files = count_ranges(stream, offsets=(1, 2), vocab_size=3, disk=disk)
        ...     [level.outputs.tolist() for level in read_levels(files[0])[1]]  # of contexts of one id, and of two
        [[1, 2, 1], [1, 2, 1]]
    """
    contexts = TextContexts(stream, offsets, vocab_size, disk, eos)
    ranges = plan_ranges(contexts)
    check_equal_across_processes(
        "ranges of contexts, as they have other memory,", json.dumps(ranges)
    )  # later, some of them are there
    own, done = ranges[jax.process_index() :: jax.process_count()], 0
    for keys in own:
        count_range(contexts, keys)
        done += keys.positions
        if progress:
            progress(done, sum(keys.positions for keys in own))
    barrier("contexts")
    return [contexts.path(keys) for keys in ranges]


def plan_ranges(contexts: TextContexts) -> list[Range]:
    """The ranges of `count_ranges`, those that are in the folder among them."""
    stream, offsets, N, disk, eos = contexts
    check_stream(stream)
    if not offsets or len(set(offsets)) < len(offsets) or min(offsets) < 1:
        raise ValueError(f"offsets {offsets}: give different numbers of tokens back, each at least 1")
    if isinstance(stream, Shards):
        stream.verify()
    path, about = disk.folder / _ABOUT, json.dumps([list(offsets), N, eos, len(stream), *checksums(stream, 1, len(stream))])
    if path.exists() and path.read_text() != about:
        raise ValueError(
            f"{disk.folder} holds contexts of another text, or other contexts: delete it, or choose another folder"
        )
    if not path.exists() and is_first():
        make_folder(disk.folder)
        write_whole(path, lambda file: file.write(about.encode()))
    names = (re.fullmatch(r"keys_(\d+)_to_(\d+)\.npz", path.name) for path in disk.folder.glob("keys_*"))
    known = {int(found[1]): int(found[2]) for found in names if found}  # first key -> the one after the last
    keys, f = _positions_by_key(contexts, [*known, *known.values()])
    M = int(f.sum())
    if not M:
        raise ValueError("no position to predict: the text has no tokens")
    if M > _most_readings * contexts.most:
        least = -(-M // _most_readings) * _bytes_per_position
        raise ValueError(
            f"memory of {disk.memory} bytes: contexts of {M} positions need at least {least}, as the text is read "
            "once for every part of them that fits"
        )
    return _ranges(keys, f, contexts.most, N * contexts.keys_per_id, known)


def count_range(contexts: TextContexts, keys: Range) -> None:
    """Count one of these ranges, if it is not in the folder."""
    path = contexts.path(keys)
    if not path.exists():
        levels = enumerate(_levels_of(contexts, keys))
        arrays = {f"{name}_{n}": array for n, level in levels for name, array in level._asdict().items()}
        save_arrays(path, {"first": np.array(keys.first // contexts.keys_per_id), **arrays})


def read_levels(path: Path) -> tuple[int, list[ContextLevel]]:
    """The nearest id that a range begins with, and its contexts, whose nearest ids are less by it. Of its first and its last
    nearest id the range may have a part of the contexts.

    Raises:
        ValueError: a damaged file.
    """
    arrays = load_arrays(path)
    first = int(arrays.pop("first"))
    parts = [[arrays[f"{name}_{n}"] for name in ContextLevel._fields] for n in range(len(arrays) // len(ContextLevel._fields))]
    return first, [ContextLevel(*level) for level in parts]


def merge_nearest(parts: Iterable[tuple[int, ContextLevel]], vocab_size: int) -> ContextLevel:
    """The contexts of a single id of the whole text, from those of all ranges.

    Args:
        parts: of every range the id that it begins with and its first level, as `read_levels` gives them.
        vocab_size: N.

    Example:
        >>> one = ContextLevel(np.arange(1), np.array([3]), np.array([0, 1]), np.array([1]), np.array([2], np.int32))
        >>> whole = merge_nearest([(1, one), (1, one)], 3)
        >>> whole.totals.tolist(), whole.start.tolist(), whole.outputs.tolist(), whole.counts.tolist()
        ([0, 6, 0], [0, 0, 1, 1], [1], [4])
    """
    tree, totals = MergeTree(vocab_size), np.zeros(vocab_size, np.int32)
    for first, level in parts:
        last = first + len(level.totals)
        totals[first:last] += level.totals
        tree.add(sparse_table(level.counts, level.outputs, np.pad(level.start, (first, vocab_size - last), "edge")))
    C = tree.total()
    return ContextLevel(np.arange(vocab_size), totals, C.indptr, C.indices.astype(np.min_scalar_type(vocab_size - 1)), C.data)


def _ranges(
    keys: Int[np.ndarray, " U"], f: Int[np.ndarray, " U"], most: int, end: int, known: Mapping[int, int]
) -> list[Range]:
    """Ranges of neighbouring keys with at most so many positions, or of a single one with more. Some are known, and those
    without a position are left out.

    >>> [tuple(keys) for keys in _ranges(np.arange(6), np.array([1, 1, 9, 1, 1, 0]), 2, 6, {3: 4})]
    [(0, 2, 2), (2, 3, 9), (3, 4, 1), (4, 6, 1)]
    """
    before, edges, ranges, first = np.concatenate([[0], np.cumsum(f)]), np.append(keys, end), [], 0
    while first < end:
        u = int(np.searchsorted(keys, first))
        fit = max(u + 1, int(np.searchsorted(before, before[u] + most, "right")) - 1)
        last = known.get(first) or min([int(edges[fit]), *(key for key in known if key > first)])
        if positions := int(before[np.searchsorted(keys, last)] - before[u]):
            ranges.append(Range(first, last, positions))
        first = last
    return ranges


def _positions_by_key(contexts: TextContexts, edges: Sequence[int]) -> tuple[Int[np.ndarray, " U"], Int[np.ndarray, " U"]]:
    """How many positions there are after each token, or, of tokens with too many and of those that edges of ranges cut, after
    each pair of tokens; by the first of their keys."""
    N, size = contexts.vocab_size, contexts.keys_per_id
    f = np.zeros(N, np.int64)
    for nearest, _ in contexts._replace(offsets=contexts.offsets[:1]).positions(0, N - 1):
        f += np.bincount(nearest, minlength=N)
    cut = [edge // size for edge in edges if edge % size]
    many = np.union1d(np.flatnonzero(f > contexts.most) if size > 1 else [], cut).astype(np.int64)
    pairs, of_two = np.zeros((len(many), N), np.int64), contexts._replace(offsets=contexts.offsets[:2])
    for nearest, second, _ in of_two.positions(int(many[0]), int(many[-1])) if len(many) else ():
        for row, j in zip(pairs, many, strict=True):
            row += np.bincount(second[nearest == j], minlength=N)
    alone = np.delete(np.arange(N), many)
    keys = np.concatenate([alone * size, (many[:, None] * size + np.arange(N)).ravel()])
    order = np.argsort(keys)
    return keys[order], np.concatenate([f[alone], pairs.ravel()])[order]


def _levels_of(contexts: TextContexts, keys: Range) -> list[ContextLevel]:
    """The levels of the contexts of a range. Where there are too many positions, they are reduced to the different ones as they
    come."""
    N, size, dtype = contexts.vocab_size, contexts.keys_per_id, contexts.stream.dtype
    low, high = keys.first // size, (keys.last - 1) // size  # nearest ids
    sizes = (high - low + 1, *(N,) * (len(contexts.offsets) - 1))
    x, times = [np.zeros((len(sizes) + 1, 0), dtype)], None  # ids and targets; how often those of x[0] occurred

    def joined() -> Any:
        *columns, y = np.concatenate(x, axis=1)
        return columns, y, sizes, N, None if times is None else np.append(times, np.ones(len(y) - len(times), np.int32))

    for new in contexts.positions(low, high):
        if keys.first % size or keys.last % size:
            key = new[0].astype(np.int64) * size + new[1]
            new = new[:, (key >= keys.first) & (key < keys.last)]
        new[0] -= dtype.type(low)
        x.append(new)
        if sum(part.shape[1] for part in x) > contexts.most:
            ids, y, times = distinct_positions(*joined())
            x = [np.stack([column.astype(dtype) for column in (*ids, y)])]
            if len(times) > _fullest * contexts.most:
                raise ValueError(
                    f"memory of {contexts.most * _bytes_per_position} bytes: the different contexts after token {low} do not "
                    "fit; allow twice as much, and continue"
                )
    return count_contexts(*joined())

"""Contexts of several tokens as sparse rows: the n-gram model.

A context h of several tokens extends a shorter one h' by a token further back. Its smoothed row backs off to the row of h',

    P(i|h) = (C(h, i) - D) / C(h) + γ(h) P(i|h'),      row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),

so that the rows of h, h', ... add up to log P(i|h). An output that never followed h has row_h[i] = 0, hence a row holds only
what was seen: the table is sparse, and a context that never occurred adds nothing, which is an exact back-off.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, Integer
from numpy.typing import DTypeLike

from jexplicit.counts.context_ranges import merge_nearest, read_levels
from jexplicit.counts.contexts import ContextLevel, count_contexts, quotient_and_rest, starts_of, sum_runs
from jexplicit.counts.runs import DeviceLevel, count_contexts_on_devices, join_ranges
from jexplicit.lm.core.smoothing import counts_of_counts, discounts_of, relative_frequencies, smooth_pairs
from jexplicit.lm.tables.storage import SparseRows, find_entry
from jexplicit.runs.arrays import ArrayFile, ArrayParts
from jexplicit.runs.devices import AXIS

_pairs_per_block = 1 << 20


class Children(NamedTuple):
    """The contexts that extend shorter ones by a token: those of context r are start[r] .. start[r + 1] - 1, in the order of
    their tokens. The number of a one-token context is the token."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


class Ngrams(NamedTuple):
    """Smoothed rows of the contexts of one, two, ... tokens, each found in the text at the given offsets.

    offsets: of the tokens, in the order in which they are added to the context.
    children: of every level but the last.
    rows: of every level.
    lower: [N] the distribution that the first level backs off to, in the precision of the smoothing.
    log_gamma: of every level, the log of what each context leaves to the shorter one; 0 where it never occurred.
    """

    offsets: tuple[int, ...]
    children: tuple[Children, ...]
    rows: tuple[SparseRows, ...]
    lower: Any
    log_gamma: tuple[Float[Array, " _"], ...]


def context_numbers(
    children: tuple[Children, ...], offsets: tuple[int, ...], context: Integer[Array, " K"]
) -> Int[Array, " levels"]:
    """The number of the context of every level, -1 where it never occurred: a binary search per level, pure.

    Example:
        >>> X, Y = np.array([[1, 0], [2, 1]]), np.array([2, 1])
        >>> ngrams = smoothed_ngrams(X, Y, offsets=(1, 2), vocab_size=3)
        >>> [context_numbers(ngrams.children, (1, 2), jnp.array(x)).tolist() for x in ([2, 1], [2, 2])]
        [[2, 1], [2, -1]]
    """
    numbers = [context[offsets[0] - 1].astype(jnp.int32)]
    for level, offset in zip(children, offsets[1:], strict=True):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[offset - 1].astype(jnp.int32), most))
    return jnp.stack(numbers)


def smoothed_ngrams(
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    offsets: tuple[int, ...],
    vocab_size: int,
    mesh: Mesh | None = None,
) -> Ngrams:
    """Count and smooth the contexts at some offsets: modified Kneser-Ney rows of every length up to `len(offsets)`.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Args:
        X: [M, K] contexts, nearest token first.
        Y: [M] targets.
        offsets: (1, 2, 3, 4) for the n-gram model of order 5; (1, 3) for a pair with a gap. Each at most K.
        vocab_size: N.
        mesh: devices to count and to smooth on, where the arrays stay, whole on each; default, the host, which is the fastest
            on CPUs. The contexts and their order are the same; the host smooths in float64, devices in float32.

    Raises:
        ValueError: offsets that are not different, or outside 1 .. K; no position.

    Example:
        >>> X, Y = np.array([[1], [1], [2]]), np.array([1, 2, 1])
        >>> rows = smoothed_ngrams(X, Y, offsets=(1,), vocab_size=3).rows[0]
        >>> rows.outputs.tolist(), rows.start.tolist()  # 1 is followed by 1 and 2; 2 by 1
        ([1, 2, 1], [0, 0, 2, 3])

    Source: Chen & Goodman 1999, Sec. 4; as additive logits, this project.
    """
    N, K = vocab_size, X.shape[1]
    if not offsets or len(set(offsets)) < len(offsets) or min(offsets) < 1 or max(offsets) > K:
        raise ValueError(f"offsets {offsets}: give different numbers of tokens back, from 1 to the {K} that contexts have")
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    sizes, columns = (N,) * len(offsets), [X[:, offset - 1] for offset in offsets]
    if mesh is not None:
        return _smoothed_on_devices(count_contexts_on_devices(columns, Y, sizes, N, mesh), offsets, sizes, N, mesh)
    one, *longer = count_contexts(columns, Y, sizes, N)
    n = [counts_of_counts(level.counts) for level in longer]
    return _smoothed_levels(one, n, iter([(0, longer)]), offsets, sizes, N, ArrayParts)


def smoothed_ranges(ranges: Sequence[Path], *, offsets: tuple[int, ...], vocab_size: int, folder: Path) -> Ngrams:
    """The same Ngrams from contexts beyond memory, with all arrays mapped from files.

    Args:
        ranges: what `jexplicit.counts.context_ranges.count_ranges` gave.
        offsets, vocab_size: as it was given them.
        folder: for the files of the arrays, which have no name and go with them.

    Raises:
        ValueError: a damaged file, or a folder that is full.
    """
    n = [np.zeros(4, np.int64) for _ in offsets[1:]]

    def nearest() -> Iterator[tuple[int, ContextLevel]]:
        for first, (one, *longer) in map(read_levels, ranges):
            for level, of_level in zip(longer, n, strict=True):
                of_level += counts_of_counts(level.counts)
            yield first, one

    def longer() -> Iterator[tuple[int, list[ContextLevel]]]:
        for first, levels in map(read_levels, ranges):
            yield first, levels[1:]

    one, array = merge_nearest(nearest(), vocab_size), functools.partial(ArrayFile, folder=folder)
    return _smoothed_levels(one, n, longer(), offsets, (vocab_size,) * len(offsets), vocab_size, array)


def _smoothed_levels(
    one: ContextLevel,
    n: Sequence[Int[np.ndarray, "4"]],
    parts: Iterable[tuple[int, list[ContextLevel]]],
    offsets: tuple[int, ...],
    sizes: Sequence[int],
    N: int,
    array: Callable[[DTypeLike], ArrayParts | ArrayFile],
) -> Ngrams:
    """The smoothed rows of contexts.

    Args:
        one: contexts of a single id.
        n: how many pairs of each longer level occurred 1 to 4 times.
        parts: the longer levels in parts, each with the id that its nearest ids count from.
        offsets, sizes, N: of the contexts.
        array: makes the arrays that parts are put together in.
    """
    lower = relative_frequencies(np.bincount(one.outputs, minlength=N))
    D = [discounts_of(of_level, modified=True) for of_level in (counts_of_counts(one.counts), *n)]
    rows = [_RowsInParts(array, _small(N), np.float32) for _ in sizes]
    log_gamma = [array(np.float32) for _ in sizes]

    def smooth(n: int, level: ContextLevel, P_lower: Callable[[ContextLevel], np.ndarray]) -> np.ndarray:
        longest = n == len(sizes) - 1
        P = np.empty(0 if longest else len(level.outputs))  # nothing backs off to the longest contexts
        for c in _blocks(level):
            block = level.part(c)
            sums = functools.partial(sum_runs, start=block.start)
            smoothed = smooth_pairs(block.counts, P_lower(block), D[n], sums, block.of_pairs)
            if not longest:
                P[level.start[c.start] : level.start[c.stop]] = smoothed.P
            rows[n].append(block.start, block.outputs, smoothed.values)
            log_gamma[n].append(smoothed.log_gamma)
        return P

    P_one = smooth(0, one, lambda block: lower[block.outputs])
    of_one, pairs = np.zeros(sizes[0], np.int64), [array(_small(size)) for size in sizes[1:2]]  # parts may share a nearest id
    children = [_RowsInParts(array, _small(size)) for size in sizes[2:]]

    def add_part(first: int, levels: list[ContextLevel]) -> None:
        shorter, P = one, P_one
        for n, size in enumerate(sizes[1:], start=1):
            level = levels.pop(0)  # and so no level is kept for longer than it is needed
            shorter_of, ids = quotient_and_rest(level.contexts, size)
            shorter_of = shorter_of.astype(np.int32)
            level = level._replace(contexts=shorter_of)  # as the keys are large
            if n == 1:
                shorter_of += first
                of_one[:] += np.bincount(shorter_of, minlength=sizes[0])
                pairs[0].append(ids)
            else:
                children[n - 2].append(starts_of(shorter_of, len(shorter.contexts)), ids)
            del ids
            P = smooth(n, level, functools.partial(_shorter_P, shorter, P, N))
            shorter = level

    for part in parts:
        add_part(*part)
    starts = np.append(0, np.cumsum(of_one)).astype(np.int32)
    return Ngrams(
        offsets,
        (
            *(Children(jax.device_put(starts), _on_device(ids)) for ids in pairs),
            *(Children(*level.arrays()) for level in children),
        ),
        tuple(SparseRows(*level.arrays()) for level in rows),
        lower,
        tuple(map(_on_device, log_gamma)),
    )


class _OfContexts(NamedTuple):
    """What is kept of the contexts of a level: the id that each adds, how many longer ones and pairs it has, and log γ."""

    ids: Any
    longer: Any
    pairs: Any
    log_gamma: Any


def _smoothed_on_devices(
    levels: list[DeviceLevel], offsets: tuple[int, ...], sizes: tuple[int, ...], N: int, mesh: Mesh
) -> Ngrams:
    """`_smoothed_levels` where the levels are, in float32: their sizes and counts of counts alone come to the host."""
    D = [discounts_of(n, modified=True).astype(np.float32) for n in jax.device_get(_counts_of_counts(levels))]
    lower, smoothed = compiled_smoothing(mesh, N)(levels, D)
    children, rows, log_gamma = _stored(join_ranges(levels, smoothed, mesh), sizes, N)
    return Ngrams(offsets, children, rows, lower, log_gamma)


@jax.jit
def _counts_of_counts(levels: Sequence[DeviceLevel]) -> list[Int[Array, "4"]]:
    return [counts_of_counts(level.counts) for level in levels]


@functools.cache
def compiled_smoothing(mesh: Mesh, N: int) -> Any:
    """Compiled `levels, D -> lower, [(of contexts, (outputs, values)) of each level]`."""

    def sums(numbers: Array, R: int, values: Array) -> Array:
        return jax.ops.segment_sum(values.astype(jnp.int32), numbers, R, indices_are_sorted=True)

    def of_range(levels: list[DeviceLevel], D: list[Array]) -> Any:
        levels, found = jax.tree.map(lambda x: x[0], levels), []
        occurred = [jnp.where(level.counts > 0, level.outputs, N) for level in levels]  # N is dropped
        f = jnp.maximum(jax.lax.psum(jnp.bincount(occurred[0], length=N).astype(jnp.int32), AXIS), 1)
        P_lower = lower = f.astype(jnp.float32) / f.sum(dtype=jnp.int32).astype(jnp.float32)
        place, above = occurred[0], ()
        for n, level in enumerate(levels):
            R = len(level.totals)
            numbers = jnp.where(level.counts > 0, level.numbers, R - 1)
            own, of_pairs = functools.partial(sums, numbers, R), lambda x, numbers=numbers: x[numbers]
            if n:
                find = functools.partial(find_entry, *above, most=N)  # what occurred after h occurred after h' too
                place = jax.vmap(find)(of_pairs(level.shorter), occurred[n])
            smoothed = smooth_pairs(level.counts, P_lower[place], D[n], own, of_pairs)
            P_lower, pairs, longer = smoothed.P, own(level.counts > 0), None
            above = _starts(pairs), level.outputs
            if n + 1 < len(levels):
                some = levels[n + 1].totals > 0
                longer = sums(jnp.where(some, levels[n + 1].shorter, R - 1), R, some)
            of_contexts = _OfContexts(level.ids if n else None, longer, pairs, smoothed.log_gamma)
            found.append((of_contexts, (level.outputs, smoothed.values)))
        return lower, jax.tree.map(lambda x: x[None], found)

    own, whole = PartitionSpec(AXIS), PartitionSpec()
    return jax.jit(jax.shard_map(of_range, mesh=mesh, in_specs=(own, whole), out_specs=(whole, own)))


@functools.partial(jax.jit, static_argnames=("sizes", "N"))
def _stored(joined: list[Any], sizes: tuple[int, ...], N: int) -> tuple[Any, ...]:
    """Children, rows and log γ, in the types in which they are stored."""
    levels, pairs = zip(*joined, strict=True)
    each = zip(levels, levels[1:], sizes[1:], strict=False)
    return (
        tuple(Children(_starts(shorter.longer), level.ids.astype(_small(size))) for shorter, level, size in each),
        tuple(SparseRows(_starts(level.pairs), i.astype(_small(N)), x) for level, (i, x) in zip(levels, pairs, strict=True)),
        tuple(level.log_gamma for level in levels),
    )


def _starts(lengths: Int[Array, " R"]) -> Int[Array, " R_plus_1"]:
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(lengths)])


class _RowsInParts:
    """Rows one after the other in some columns, and where each starts."""

    def __init__(self, array: Callable[[DTypeLike], ArrayParts | ArrayFile], *dtypes: DTypeLike):
        self._start, self._columns = array(np.int32), [array(dtype) for dtype in dtypes]

    def append(self, start: Int[np.ndarray, " R_plus_1"], *columns: np.ndarray) -> None:
        before = len(self._columns[0])
        if (pairs := before + len(columns[0])) >= 2**31:
            raise ValueError(f"{pairs} different pairs: rows of contexts number at most 2^31 - 1; fit on less text")
        self._start.append(start[min(len(self._start), 1) :] + before)
        for mine, new in zip(self._columns, columns, strict=True):
            mine.append(new)

    def arrays(self) -> list[Array]:
        """Start and columns on the device."""
        return [_on_device(part) for part in (self._start, *self._columns)]


def _on_device(array: ArrayParts | ArrayFile) -> Array:
    """What is mapped from a file stays so on a CPU, where it is not copied."""
    return jax.device_put(array.map(), may_alias=True)


def _blocks(level: ContextLevel) -> list[slice]:
    """The contexts of a level, a few at a time: what is computed of their pairs stays near the caches."""
    later = np.searchsorted(level.start, np.arange(_pairs_per_block, level.start[-1], _pairs_per_block), "right") - 1
    cuts = np.unique([0, *later, len(level.contexts)]).tolist()
    return [slice(*block) for block in pairwise(cuts)]


def _shorter_P(shorter: ContextLevel, P: np.ndarray, N: int, block: ContextLevel) -> np.ndarray:
    """`P(i|h')` of every pair (h, i) of a block, whose contexts h have the numbers of their h': what occurred after h occurred
    after h' too, and has a key there."""
    near = slice(block.contexts[0], block.contexts[-1] + 1)  # contexts stand in the order of those that they extend
    some = shorter.part(near)
    keys = some.keys(np.arange(len(some.contexts)), N)
    return P[shorter.start[near.start] :][np.searchsorted(keys, block.keys(block.contexts - near.start, N))]


def _small(size: int) -> DTypeLike:
    """The type of so many ids on a device."""
    return np.uint16 if size <= 1 << 16 else np.int32

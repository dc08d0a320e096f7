"""Contexts of several tokens as sparse rows: the interpolated n-gram model, read by look-ups alone.

A context h of several tokens extends a shorter one h' by a token further back. Its smoothed row backs off to the row of h',

    P(i|h) = (C(h, i) - D) / C(h) + γ(h) P(i|h'),      row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),

An output that never followed h has row_h[i] = 0, hence a row holds only what was seen: the table is sparse, and a context that
never occurred adds nothing, which is an exact back-off. The sum of rows leaves out the weights γ alone,

    log p(i|x) = log P(i) + sum_n row_n(x)[i] + sum_n log γ(h_n)

with h_n the last n tokens of x: the partition function is their product. An entry is found by binary search, no row is read.
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
from jexplicit.lm.core.model import LanguageModel, TableRows
from jexplicit.lm.core.smoothing import counts_of_counts, discounts_of, relative_frequencies, smooth_pairs
from jexplicit.lm.core.tables import Dense, Sparse, SparseRows, find_entry, pytree, static, vmap_contexts
from jexplicit.runs.arrays import ArrayFile, ArrayParts
from jexplicit.runs.devices import AXIS

_pairs_per_block = 1 << 20


class Children(NamedTuple):
    """The contexts that extend shorter ones by a token: those of context r are start[r] .. start[r + 1] - 1, in the order of
    their tokens. The number of a one-token context is the token."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


class Ngrams(NamedTuple):
    """Smoothed rows of the contexts of the nearest token, the nearest two, ...

    children: of every level but the last.
    rows: of every level.
    lower: [N] the distribution that the first level backs off to, in the precision of the smoothing.
    log_gamma: of every level, the log of what each context leaves to the shorter one; 0 where it never occurred.
    """

    children: tuple[Children, ...]
    rows: tuple[SparseRows, ...]
    lower: Any
    log_gamma: tuple[Float[Array, " _"], ...]


def context_numbers(children: tuple[Children, ...], context: Integer[Array, " K"]) -> Int[Array, " levels"]:
    """The number of the context of every level, -1 where it never occurred: a binary search per level, pure.

    Example:
        >>> ngrams = smoothed_ngrams(np.array([[1, 0], [2, 1]]), np.array([2, 1]), vocab_size=3)
        >>> [context_numbers(ngrams.children, jnp.array(x)).tolist() for x in ([2, 1], [2, 2])]
        [[2, 1], [2, -1]]
    """
    numbers = [context[0].astype(jnp.int32)]
    for n, level in enumerate(children, 1):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[n].astype(jnp.int32), most))
    return jnp.stack(numbers)


def smoothed_ngrams(
    X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, vocab_size: int, mesh: Mesh | None = None
) -> Ngrams:
    """Count and smooth contexts: modified Kneser-Ney rows of every length up to K.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Args:
        X: [M, K] contexts, nearest token first; four columns for the n-gram model of order 5.
        mesh: devices to count and to smooth on, where the arrays stay, whole on each; default, the host, which is the fastest
            on CPUs. The contexts and their order are the same; the host smooths in float64, devices in float32.

    Raises:
        ValueError: contexts of no token; no position.

    Example:
        >>> rows = smoothed_ngrams(np.array([[1], [1], [2]]), np.array([1, 2, 1]), vocab_size=3).rows[0]
        >>> rows.outputs.tolist(), rows.start.tolist()  # 1 is followed by 1 and 2; 2 by 1
        ([1, 2, 1], [0, 0, 2, 3])

    Source: Chen & Goodman 1999, Sec. 4; as additive logits, this project.
    """
    N, K = vocab_size, X.shape[1]
    if not K or not len(Y):
        raise ValueError(f"{len(Y)} positions with contexts of {K} tokens: give at least one of each")
    if mesh is not None:
        return _smoothed_on_devices(count_contexts_on_devices([*X.T], Y, (N,) * K, N, mesh), N, mesh)
    one, *longer = count_contexts([*X.T], Y, (N,) * K, N)
    n = [counts_of_counts(level.counts) for level in longer]
    return _smoothed_levels(one, n, iter([(0, longer)]), N, ArrayParts)


def smoothed_ranges(ranges: Sequence[Path], *, order: int, vocab_size: int, folder: Path) -> Ngrams:
    """The same Ngrams from contexts beyond memory, with all arrays mapped from files.

    Args:
        ranges: what `jexplicit.counts.context_ranges.count_ranges` gave.
        order: tokens of the longest contexts.
        folder: for the files of the arrays, which have no name and go with them.

    Raises:
        ValueError: a damaged file, or a folder that is full.
    """
    n = [np.zeros(4, np.int64) for _ in range(1, order)]

    def nearest() -> Iterator[tuple[int, ContextLevel]]:
        for first, (one, *longer) in map(read_levels, ranges):
            for level, of_level in zip(longer, n, strict=True):
                of_level += counts_of_counts(level.counts)
            yield first, one

    def longer() -> Iterator[tuple[int, list[ContextLevel]]]:
        for first, levels in map(read_levels, ranges):
            yield first, levels[1:]

    one, array = merge_nearest(nearest(), vocab_size), functools.partial(ArrayFile, folder=folder)
    return _smoothed_levels(one, n, longer(), vocab_size, array)


def _smoothed_levels(
    one: ContextLevel,
    n: Sequence[Int[np.ndarray, "4"]],
    parts: Iterable[tuple[int, list[ContextLevel]]],
    N: int,
    array: Callable[[DTypeLike], ArrayParts | ArrayFile],
) -> Ngrams:
    """The smoothed rows of contexts.

    Args:
        one: contexts of a single id.
        n: how many pairs of each longer level occurred 1 to 4 times.
        parts: the longer levels in parts, each with the id that its nearest ids count from.
        N: number of token ids.
        array: makes the arrays that parts are put together in.
    """
    lower = relative_frequencies(np.bincount(one.outputs, minlength=N))
    D = [discounts_of(of_level, modified=True) for of_level in (counts_of_counts(one.counts), *n)]
    small = _small(N)
    rows, log_gamma = [_RowsInParts(array, small, np.float32) for _ in D], [array(np.float32) for _ in D]

    def smooth(n: int, level: ContextLevel, P_lower: Callable[[ContextLevel], np.ndarray]) -> np.ndarray:
        longest = n == len(D) - 1
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
    of_one, pairs = np.zeros(N, np.int64), [array(small) for _ in D[1:2]]  # parts may share a nearest id
    children = [_RowsInParts(array, small) for _ in D[2:]]

    def add_part(first: int, levels: list[ContextLevel]) -> None:
        shorter, P = one, P_one
        for n in range(1, len(D)):
            level = levels.pop(0)  # and so no level is kept for longer than it is needed
            shorter_of, ids = quotient_and_rest(level.contexts, N)
            shorter_of = shorter_of.astype(np.int32)
            level = level._replace(contexts=shorter_of)  # as the keys are large
            if n == 1:
                shorter_of += first
                of_one[:] += np.bincount(shorter_of, minlength=N)
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


def _smoothed_on_devices(levels: list[DeviceLevel], N: int, mesh: Mesh) -> Ngrams:
    """`_smoothed_levels` where the levels are, in float32: their sizes and counts of counts alone come to the host."""
    D = [discounts_of(n, modified=True).astype(np.float32) for n in jax.device_get(_counts_of_counts(levels))]
    lower, smoothed = compiled_smoothing(mesh, N)(levels, D)
    children, rows, log_gamma = _stored(join_ranges(levels, smoothed, mesh), _small(N))
    return Ngrams(children, rows, lower, log_gamma)


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


@functools.partial(jax.jit, static_argnames="small")
def _stored(joined: list[Any], small: DTypeLike) -> tuple[Any, ...]:
    """Children, rows and log γ, in the types in which they are stored."""
    levels, pairs = zip(*joined, strict=True)
    each = zip(levels, levels[1:], strict=False)
    return (
        tuple(Children(_starts(shorter.longer), level.ids.astype(small)) for shorter, level in each),
        tuple(SparseRows(_starts(level.pairs), i.astype(small), x) for level, (i, x) in zip(levels, pairs, strict=True)),
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


@pytree
class BackOffChain(TableRows):
    """The rows of an n-gram model: no context, the nearest token, the nearest two, ...

    base: [N] log of the distribution that the nearest token backs off to.
    children: how a context is found, level by level.
    levels: the sparse rows of contexts of one token, of two, ...; a context that never occurred has a row of zeros.
    log_gamma: [contexts] `log γ` of every level, 0 for a context that never occurred; empty where rows are of a file whose
        probabilities sum to 1 only to its digits: there the softmax normalises.
    longest: entries of the longest row of each level.
    """

    base: Any
    children: tuple[Children, ...]
    levels: tuple[SparseRows, ...]
    log_gamma: tuple[Any, ...] = ()
    longest: tuple[int, ...] = static(())

    names = property(lambda self: ("unigram", *(f"context {n}" for n in range(1, len(self.levels) + 1))))
    tokens = property(lambda self: (None, *range(1, len(self.levels) + 1)))
    radius = property(lambda self: max(1, len(self.levels)))
    vocab_size = property(lambda self: len(self.base))
    normalised = property(lambda self: bool(self.log_gamma))

    @property
    def row_tables(self):
        tables = (Sparse(rows, len(self.base), n) for rows, n in zip(self.levels, self.longest, strict=True))
        return (Dense(jnp.asarray(self.base)[None]), *tables)

    def index(self, context):
        none = jnp.zeros(1, jnp.int32)
        return jnp.concatenate([none, context_numbers(self.children, context)]) if self.levels else none

    def target_logits(self, X, Y):
        return vmap_contexts(log_probability, self, X, Y)


def ngram_model(chain: Ngrams, *, eos: bool = False) -> LanguageModel:
    """The interpolated modified Kneser-Ney model.

    Args:
        chain: of `smoothed_ngrams`.
        eos: whether the text predicts the end of a document.

    Example:
        >>> from jexplicit.lm.training_text import TrainingText
        >>> from jexplicit.lm.generation import next_token
        >>> text = TrainingText(np.array([0, 2, 3, 2, 4, 2, 3, 0]), 5)
        >>> model = ngram_model(text.ngrams(2))
        >>> round(float(np.exp(next_token(model, np.array([2]))[3])), 3)  # two times of three, discounted
        0.754

    Source: Chen & Goodman 1999, Sec. 4.
    """
    base, longest = jnp.asarray(jnp.log(chain.lower), jnp.float32), tuple(rows.longest for rows in chain.rows)
    return LanguageModel(BackOffChain(base, chain.children, chain.rows, chain.log_gamma, longest), "none", eos)


def log_probability(chain: BackOffChain, context: Int[Array, " K"], output: Int[Array, ""]) -> Float[Array, ""]:
    """`log p(output | context)`, pure; without weights γ the logit of the output."""
    numbers = chain.index(context)
    entries = [table.entry(n, output) for table, n in zip(chain.row_tables, numbers, strict=True)]
    weights = [
        jnp.where(n >= 0, jnp.asarray(log_gamma)[jnp.maximum(n, 0)], 0)
        for log_gamma, n in zip(chain.log_gamma, numbers[1:] if chain.log_gamma else (), strict=True)
    ]
    return functools.reduce(jnp.add, entries + weights)

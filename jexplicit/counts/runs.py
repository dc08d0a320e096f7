"""Counts of keys by sorting, on devices: runs of equal keys, and the contexts of several tokens that they are.

    sort the keys;   a run begins where a key differs from the one before;   counts = segment_sum(1, number of the run)

A key is a few words of 32 bits. Shapes are static: what is no key has all bits set and is counted 0 times. The tables are those
of `jexplicit.counts.contexts.count_contexts`, to the last bit.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Integer, UInt32

from jexplicit.counts.contexts import ContextLevel, starts_of
from jexplicit.runs.devices import AXIS

NO_KEY = np.uint32(2**32 - 1)
_word = 1 << 32  # values


class Runs(NamedTuple):
    """Different keys in their order, and how often each occurred; what is counted 0 times comes last and is none."""

    words: tuple[UInt32[Array, " E"], ...]
    counts: Int[Array, " E"]


class DeviceLevel(NamedTuple):
    """The contexts of one length, and what followed them; of E places the first `contexts` and `pairs` are some.

    shorter, ids: the number of the shorter context of each one, and the id that it adds.
    totals: how often each occurred.
    numbers, outputs, counts: the context and the target of each pair, and its count as in `ContextLevel`.
    """

    shorter: Int[Array, " E"]
    ids: Int[Array, " E"]
    totals: Int[Array, " E"]
    numbers: Int[Array, " E"]
    outputs: Int[Array, " E"]
    counts: Int[Array, " E"]
    contexts: Int[Array, ""]
    pairs: Int[Array, ""]


def count_runs(words: Sequence[UInt32[Array, " M"]], times: Int[Array, " M"]) -> Runs:
    """The different keys, and the sum of `times` of each.

    Example:
        >>> runs = count_runs([jnp.array([7, 3, 7], jnp.uint32)], jnp.array([1, 1, 1]))
        >>> runs.words[0][:2].tolist(), runs.counts.tolist()
        ([3, 7], [1, 2, 0])
    """
    *words, times = jax.lax.sort((*words, times), num_keys=len(words), is_stable=False)
    begins = functools.reduce(jnp.logical_or, map(_changes, words))
    counts = jax.ops.segment_sum(times, jnp.cumsum(begins, dtype=jnp.int32) - 1, len(times), indices_are_sorted=True)
    first = jnp.flatnonzero(begins, size=len(times), fill_value=len(times))
    return Runs(tuple(word.at[first].get(mode="fill", fill_value=NO_KEY) for word in words), counts)


def context_levels(
    ids: Sequence[Int[Array, " E"]], y: Int[Array, " E"], counts: Int[Array, " E"], size: int
) -> list[DeviceLevel]:
    """The contexts of 1, 2, ... ids of different (ids, target) in their order.

    Args:
        ids: the ids of each, in the order in which a context grows.
        y: [E] targets.
        counts: how often each occurred; those that did not come last.
        size: how many first ids there are.
    """
    E, some = len(y), counts > 0
    begins, number = _changes(ids[0]), ids[0]
    of_length: list[Any] = [(number, number, jax.ops.segment_sum(counts, number, size), jnp.int32(size))]
    for column in ids[1:]:
        begins |= _changes(column)
        first = jnp.flatnonzero(begins & some, size=E, fill_value=0)
        longer = jnp.cumsum(begins & some, dtype=jnp.int32) - 1
        totals = jax.ops.segment_sum(counts, longer, E, indices_are_sorted=True)
        of_length.append((number[first], column[first], totals, (begins & some).sum()))
        number = longer
    pairs: list[Any] = [(number, y, counts)]
    for shorter, *_ in of_length[:0:-1]:  # pairs of a shorter length, each counted once for every longer context
        number, y, counts = pairs[-1]
        key = [jnp.where(counts > 0, part.astype(jnp.uint32), NO_KEY) for part in (shorter[number], y)]
        runs = count_runs(key, (counts > 0).astype(jnp.int32))
        pairs.append((*(word.astype(jnp.int32) for word in runs.words), runs.counts))
    pairs.reverse()
    levels: Any = zip(of_length, pairs, strict=True)
    return [DeviceLevel(*c, *pair, contexts=n, pairs=(pair[-1] > 0).sum()) for (*c, n), pair in levels]


def count_contexts_on_devices(
    columns: Sequence[Integer[np.ndarray, " M"]],
    Y: Integer[np.ndarray, " M"],
    sizes: Sequence[int],
    vocab_size: int,
    mesh: Mesh,
) -> list[ContextLevel]:
    """`count_contexts` on devices: each sorts the positions of a part of the text, and after one exchange the contexts of a
    range of first ids.

    Args:
        columns, Y, sizes, vocab_size: those of `count_contexts`.
        mesh: devices.

    Example:
        >>> from jexplicit.runs.devices import data_mesh
        >>> columns, Y = [np.array([1, 1, 1]), np.array([0, 2, 2])], np.array([1, 1, 1])
        >>> one, two = count_contexts_on_devices(columns, Y, (3, 3), 2, data_mesh(1))
        >>> two.contexts.tolist(), two.counts.tolist()
        ([3, 5], [1, 2])
    """
    radices = (*sizes, vocab_size)
    each = -(-len(Y) // mesh.size)
    padded = [np.zeros(mesh.size * each, np.int32) for _ in radices]
    for part, column in zip(padded, (*columns, Y), strict=True):
        part[: len(Y)] = column
    runs, of_first = _count_parts(mesh, radices)(padded, np.arange(mesh.size * each) < len(Y))
    if mesh.size == 1:
        return _on_host([_levels(runs, radices)], sizes, vocab_size)
    until = np.cumsum(np.asarray(of_first), axis=1, dtype=np.int64)  # rows of each device up to each first id
    cuts = np.searchsorted(until.sum(axis=0), until[:, -1].sum() * np.arange(1, mesh.size) / mesh.size)
    starts = np.concatenate([np.zeros((mesh.size, 1), np.int64), until[:, cuts], until[:, -1:]], axis=1).astype(np.int32)
    most = int(np.diff(starts).max())
    levels = _exchange(mesh, radices, 1 << (most - 1).bit_length())(runs, starts)
    return _on_host([jax.tree.map(lambda x, d=d: x[d], levels) for d in range(mesh.size)], sizes, vocab_size)


@functools.cache
def _count_parts(mesh: Mesh, radices: tuple[int, ...]):
    """Compiled `columns, known -> runs, [devices, first ids]`: what each device has of the text, and its rows by first id."""

    def of_part(columns, known):
        words = [jnp.where(known, word, NO_KEY) for word in _packed(columns, radices)]
        runs = count_runs(words, known.astype(jnp.int32))
        first = _unpacked(runs.words, radices)[0]
        return runs, jax.ops.segment_sum((runs.counts > 0).astype(jnp.int32), first, radices[0])[None]

    own = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(of_part, mesh=mesh, in_specs=own, out_specs=own))


@functools.partial(jax.jit, static_argnames="radices")
def _levels(runs: Runs, radices: tuple[int, ...]) -> list[DeviceLevel]:
    """The levels of different positions in their order."""
    *ids, y = _unpacked(runs.words, radices)
    return context_levels(ids, y, runs.counts, radices[0])


@functools.cache
def _exchange(mesh: Mesh, radices: tuple[int, ...], most: int):
    """Compiled `runs, starts -> levels`: each device gets the rows of its range from all others, at most `most` from each."""

    def of_range(runs, starts):
        def sent(first, end):
            place = first + jnp.arange(most, dtype=jnp.int32)
            parts = (*((word, NO_KEY) for word in runs.words), (runs.counts, 0))
            return [jnp.where(place < end, part.at[place].get(mode="clip"), none) for part, none in parts]

        received = jax.vmap(sent)(starts[0, :-1], starts[0, 1:])
        *words, counts = (jax.lax.all_to_all(part, AXIS, 0, 0, tiled=True).reshape(-1) for part in received)
        return jax.tree.map(lambda x: x[None], _levels(count_runs(words, counts), radices))

    own = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(of_range, mesh=mesh, in_specs=own, out_specs=own))


def _changes(x: Array) -> Bool[Array, " E"]:
    """Where a value differs from the one before."""
    return jnp.append(True, x[1:] != x[:-1])


def _fields(radices: Sequence[int]) -> list[list[int]]:
    """Which digits each word has: as many as it holds."""
    fields: list[list[int]] = [[]]
    for n, radix in enumerate(radices):
        if fields[-1] and np.prod([radices[i] for i in fields[-1]], dtype=object) * radix > _word:
            fields.append([])
        fields[-1].append(n)
    return fields


def _packed(columns: Sequence[Int[Array, " M"]], radices: Sequence[int]) -> list[UInt32[Array, " M"]]:
    """Digits as words, the first the most significant."""

    def pack(digits: list[int]) -> Array:
        word = columns[digits[0]].astype(jnp.uint32)
        for n in digits[1:]:
            word = word * np.uint32(radices[n]) + columns[n].astype(jnp.uint32)
        return word

    return [pack(digits) for digits in _fields(radices)]


def _unpacked(words: Sequence[UInt32[Array, " E"]], radices: Sequence[int]) -> list[Int[Array, " E"]]:
    """The digits of words."""
    columns: list[Array] = []
    for word, digits in zip(words, _fields(radices), strict=True):
        of_word = []
        for n in reversed(digits[1:]):
            word, digit = word // np.uint32(radices[n]), word % np.uint32(radices[n])
            of_word.append(digit)
        columns += [word, *reversed(of_word)]
    return [column.astype(jnp.int32) for column in columns]


def _on_host(parts: Sequence[list[DeviceLevel]], sizes: Sequence[int], N: int) -> list[ContextLevel]:
    """The levels of ranges of first ids, one after the other."""
    found, before, small = [], np.zeros(len(parts), np.int64), np.min_scalar_type(N - 1)
    for n, size in enumerate(sizes):
        levels = [level[n] for level in parts]
        contexts, pairs = ([int(level[i]) for level in levels] for i in (-2, -1))

        def joined(field: str, some: Sequence[int], add: Sequence[int] | np.ndarray, levels=levels) -> np.ndarray:
            arrays = [np.asarray(getattr(level, field))[:m] for level, m in zip(levels, some, strict=True)]
            return np.concatenate([array + more for array, more in zip(arrays, add, strict=True)])

        none, own = np.zeros(len(parts), np.int32), np.cumsum([0, *contexts[:-1]]) * (n > 0)
        if n:
            keys = joined("shorter", contexts, before) * size + joined("ids", contexts, none)
            totals = joined("totals", contexts, none)
        else:
            keys, totals = np.arange(size), np.stack([level.totals for level in levels]).sum(axis=0, dtype=np.int32)
        numbers, outputs, counts = (
            joined(*of) for of in (("numbers", pairs, own), ("outputs", pairs, none), ("counts", pairs, none))
        )
        found.append(ContextLevel(keys, totals, starts_of(numbers, len(keys)), outputs.astype(small), counts))
        before = own
    return found
